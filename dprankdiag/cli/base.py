"""What the commands share: the group that finds them, the doors to the product, and the exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from dprankdiag.cli.terminal import write_error
from dprankdiag.errors import DprankdiagError
from dprankdiag.model.ranks import LARGEST_RANK

if TYPE_CHECKING:
    from dprankdiag.catalog.causes import Cause
    from dprankdiag.collectors.http import Access
    from dprankdiag.collectors.prometheus_select import Matcher
    from dprankdiag.model.checkup import Checkup
    from dprankdiag.model.comparison import Comparison
    from dprankdiag.model.ledgers import LedgerFile
    from dprankdiag.pipelines.compare import Input
    from dprankdiag.pipelines.diagnose import KernelRow, Outcome
    from dprankdiag.pipelines.record import Asker
    from dprankdiag.pipelines.stored_span import StoredQuestion

Progress = Callable[[str, "float | None"], None]

FILE = click.Path(path_type=Path, readable=False)
RANKS = click.IntRange(1, LARGEST_RANK + 1)
"""A file whose absence the command itself explains."""

VERBS = {
    "analyze": "dprankdiag.cli.analyze",
    "digest": "dprankdiag.cli.digest",
    "compare": "dprankdiag.cli.compare",
    "whatif": "dprankdiag.cli.whatif",
    "kernels": "dprankdiag.cli.kernels",
    "record": "dprankdiag.cli.record",
    "watch": "dprankdiag.cli.watch",
    "export": "dprankdiag.cli.export",
    "doctor": "dprankdiag.cli.doctor",
    "capture": "dprankdiag.cli.capture",
    "dashboard": "dprankdiag.cli.dashboard",
    "explain": "dprankdiag.cli.explain",
    "demo": "dprankdiag.cli.demo",
    "rules": "dprankdiag.cli.rules",
    "grafana": "dprankdiag.cli.grafana",
    "harness": "dprankdiag.cli.harness",
}
"""Verb to the module that holds it as `command`; imported when it is needed."""

ANSWERED, FAIL_ON_REACHED, USAGE, INTERNAL, INTERRUPTED = 0, 1, 2, 4, 130


def diagnose_paths(paths: Sequence[Path], options: Mapping[str, Any], progress: Progress | None) -> Outcome:
    """Diagnose traces with the options given by name."""
    from dprankdiag.pipelines.diagnose import Options, diagnose

    return diagnose(paths, Options(**options), progress)


def list_trace_kernels(path: Path, patterns: Path | None) -> Sequence[KernelRow]:
    """List the kernels of a trace by family."""
    from dprankdiag.pipelines.diagnose import list_kernels

    return list_kernels(path, patterns)


def compare_inputs(before: Input, after: Input, tried: Sequence[str]) -> Comparison:
    """Compare two diagnoses by their tables, and score the remedies that were tried in between."""
    from dprankdiag.pipelines.compare import compare

    return compare(before, after, tried)


def open_poller(targets: Sequence[str], access: Access, matchers: tuple[Matcher, ...] = ()) -> Asker:
    """Make what asks targets again and again."""
    from dprankdiag.pipelines.poll import Poller

    return Poller(targets, access, matchers=matchers)


def examine_targets(targets: Sequence[str], access: Access, matchers: tuple[Matcher, ...] = ()) -> Sequence[Checkup]:
    """Examine engines, and what Prometheus stores of them."""
    from dprankdiag.pipelines.doctor import examine

    return examine(targets, access, matchers)


def ask_servers(question: StoredQuestion, access: Access, progress: Progress | None) -> Sequence[LedgerFile]:
    """Read a span of what Prometheus servers store of engines."""
    from dprankdiag.pipelines.stored_span import read_servers

    return read_servers(question, access, progress)


def load_cause_catalog() -> Mapping[str, Cause]:
    """Load what the catalogue says of each cause."""
    from dprankdiag.catalog.causes import load_causes

    return load_causes()


def load_cause_pages() -> Mapping[str, str]:
    """Load the page of each cause that has a classifier: its docstring."""
    import inspect

    from dprankdiag.classifiers import PAGES

    return {classifier.cause: inspect.getdoc(type(classifier)) or "" for classifier in PAGES}


@dataclass(frozen=True, slots=True)
class Doors:
    """What the commands ask of the product; a test hands in its own as the context object."""

    diagnose: Callable[[Sequence[Path], Mapping[str, Any], Progress | None], Outcome] = diagnose_paths
    list_kernels: Callable[[Path, Path | None], Sequence[KernelRow]] = list_trace_kernels
    causes: Callable[[], Mapping[str, Cause]] = load_cause_catalog
    pages: Callable[[], Mapping[str, str]] = load_cause_pages
    compare: Callable[[Input, Input, Sequence[str]], Comparison] = compare_inputs
    open_poller: Callable[[Sequence[str], Access, tuple[Matcher, ...]], Asker] = open_poller
    examine: Callable[[Sequence[str], Access, tuple[Matcher, ...]], Sequence[Checkup]] = examine_targets
    read_servers: Callable[[StoredQuestion, Access, Progress | None], Sequence[LedgerFile]] = ask_servers


def open_doors(context: click.Context) -> Doors:
    """Return the doors handed in, or the real ones."""
    return context.obj if isinstance(context.obj, Doors) else Doors()


class Verbs(click.Group):
    """A group that imports a command when it is asked for, and answers every error with its exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the verbs in the order they are met."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a verb."""
        if cmd_name not in VERBS:
            return None
        return cast(click.Command, import_module(VERBS[cmd_name]).command)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line and leave with its exit code (see `answer_errors`)."""
        arguments = sys.argv[1:] if args is None else list(args)

        def run() -> Any:
            return click.Group.main(
                self, arguments, prog_name or "dprankdiag", complete_var, standalone_mode=False, **extra
            )

        if not standalone_mode:
            return run()
        sys.exit(answer_errors(run, debug="--debug" in arguments))


def answer_errors(run: Callable[[], Any], *, debug: bool) -> int:
    """Run a command and turn what it returns or raises into an exit code.

    Returns:
        0 answered, 1 `--fail-on` reached, 2 usage, 3 no input could be used, 4 internal error, 130 interrupted.
    """
    try:
        result = run()
    except DprankdiagError as error:
        return _report(str(error), error.exit_code, debug)
    except click.exceptions.NoArgsIsHelpError as error:
        write_error(error.format_message(), keep_lines=True, prefix="")
        return USAGE
    except click.ClickException as error:
        return _report(_describe_usage(error), USAGE, debug)
    except (click.Abort, KeyboardInterrupt):
        write_error("interrupted")
        return INTERRUPTED
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        mend = "" if debug else "; run again with --debug for the traceback"
        return _report(f"internal error: {what}{mend}", INTERNAL, debug)
    return result if isinstance(result, int) else ANSWERED


def _report(line: str, code: int, debug: bool) -> int:
    if debug:
        import traceback

        write_error(traceback.format_exc().rstrip(), keep_lines=True, prefix="")
    write_error(line)
    return code


def _describe_usage(error: click.ClickException) -> str:
    line = error.format_message()
    context = getattr(error, "ctx", None)
    if context is None:
        return line
    place = "".join(f"{name}: " for name in context.command_path.split()[1:])
    return f"{place}{line.rstrip('.')}; see {context.command_path} --help"
