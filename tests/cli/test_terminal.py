import io

import pytest

from dprankdiag.cli.terminal import ProgressLine, find_width, wants_color


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = FakeTerminal()
    monkeypatch.setattr("sys.stderr", terminal)
    progress = ProgressLine(quiet=False, verbose=False)
    progress("reading a\x1b[31m", 0.25)
    progress.close()
    assert "reading a\\x1b[31m 25 %" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[2K")


@pytest.mark.parametrize("is_terminal, quiet", [(True, True), (False, False)])
def test_progress_is_silent_when_quiet_or_piped(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, quiet: bool
) -> None:
    stream = FakeTerminal() if is_terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    progress = ProgressLine(quiet=quiet, verbose=False)
    progress("reading", None)
    progress.close()
    assert stream.getvalue() == ""


def test_colour_is_for_terminals_that_do_not_forbid_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", FakeTerminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert wants_color(no_color=False)
    assert not wants_color(no_color=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_color(no_color=False)


def test_pipes_are_eighty_columns_wide_whatever_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert find_width() == 80
    monkeypatch.setattr("sys.stdout", FakeTerminal())
    assert find_width() == 120
