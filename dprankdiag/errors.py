"""The exceptions a user can meet.

DprankdiagError
├── UsageError         a command that cannot be carried out as given (exit code 2)
├── InputError         an input that cannot be used (exit code 3)
│   └── DamagedInput   readable only in part, or not at all
└── TableError         a table that breaks its declaration: a defect of ours (exit code 4)
"""


class DprankdiagError(Exception):
    """Carry one line of what is wrong, where, and how to mend it.

    Attributes:
        what: what was expected and what came.
        where: the file, option or table concerned; empty if it is plain from `what`.
        mend: what the user can do; a command where one exists.
    """

    exit_code = 4

    def __init__(self, what: str, *, where: str = "", mend: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.mend = mend

    def __str__(self) -> str:
        """Join the parts into one line."""
        line = f"{self.where}: {self.what}" if self.where else self.what
        return f"{line}; {self.mend}" if self.mend else line


class UsageError(DprankdiagError):
    """A command that cannot be carried out as given."""

    exit_code = 2


class InputError(DprankdiagError):
    """An input that cannot be used: what it is, what was expected, the command that makes it right."""

    exit_code = 3


class DamagedInput(InputError):
    """An input of the right kind that is cut short or broken."""


class TableError(DprankdiagError):
    """A table that breaks its declaration."""
