"""A page of text in the making: headings, labelled lines and tables at a fixed width, with or without colour."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING, Literal

from dprankdiag.views.printable import make_printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

MIN_WIDTH = 40
INDENT = 3
MIN_LAST_WIDTH = 8


class Page:
    """Collect lines; every text that enters is made printable first, and none is read as markup."""

    def __init__(self, width: int, color: bool) -> None:
        from rich.console import Console

        self._buffer = StringIO()
        self._color = color
        self._console = Console(
            file=self._buffer,
            width=max(width, MIN_WIDTH),
            height=100,
            force_terminal=color,
            color_system="standard" if color else None,
            no_color=not color,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
            _environ={},
        )

    def add_heading(self, text: str) -> None:
        """Begin a section."""
        self.add_blank()
        self.add_line(text, style="bold")

    def add_blank(self) -> None:
        """Add an empty line."""
        self._console.print()

    def add_line(self, *texts: str, style: str = "", indent: int = 0) -> None:
        """Add one wrapped line made of texts; `styled` gives severities and statuses their colour."""
        from rich.padding import Padding
        from rich.text import Text

        line = Text(style=style)
        for text in texts:
            line.append_text(styled(text))
        self._print(Padding(line, (0, 0, 0, indent)))

    @property
    def width(self) -> int:
        """Characters in a line."""
        return self._console.width

    def add_fields(self, fields: Sequence[tuple[str, str]], *, label_width: int = 12) -> None:
        """Add labelled lines; a value wraps under itself, an empty label continues the one above."""
        from rich.table import Table

        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=INDENT - 1)
        grid.add_column(width=label_width, style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for label, value in fields:
            grid.add_row("", styled(label), styled(value))
        self._print(grid)

    def add_table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
        """Add a table whose last column takes what width is left; columns in `numbers` are aligned right.

        Where that is not enough, the other columns of words give way, and numbers stay whole.
        """
        from rich.padding import Padding
        from rich.table import Table

        widths = [max(len(cell) for cell in cells) for cells in zip(columns, *rows, strict=True)]
        words = [place for place, column in enumerate(columns[:-1]) if column not in numbers]
        room = self._console.width - INDENT - sum(width + 2 for width in widths[:-1])
        for _ in range(max(MIN_LAST_WIDTH - room, 0)):
            widest = max(words, key=lambda place: widths[place], default=None)
            if widest is None or widths[widest] <= MIN_LAST_WIDTH:
                break
            widths[widest] -= 1
            room += 1
        widths[-1] = min(widths[-1], max(room, MIN_LAST_WIDTH))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for column, width in zip(columns, widths, strict=True):
            justify: Literal["left", "right"] = "right" if column in numbers else "left"
            table.add_column(column, justify=justify, width=width, no_wrap=True, overflow="ellipsis")
        for row in rows:
            table.add_row(*(styled(cell) for cell in row))
        self._print(Padding(table, (0, 0, 0, INDENT)))

    def finish(self) -> str:
        """Return the page; without colour no line ends in blanks."""
        text = self._buffer.getvalue()
        if not self._color:
            text = "".join(line.rstrip() + "\n" for line in text.splitlines())
        return text.strip("\n") + "\n"

    def _print(self, item: RenderableType) -> None:
        self._console.print(item)


_STYLES = {
    "critical": "bold red",
    "warning": "yellow",
    "info": "cyan",
    "findings": "bold",
    "healthy": "green",
    "uniform": "cyan",
    "inconclusive": "yellow",
}


def styled(text: str) -> Text:
    """Make a printable rich text; a word that is a severity or status gets its colour."""
    from rich.text import Text

    return Text(make_printable(text), style=_STYLES.get(text.strip().lower(), ""))
