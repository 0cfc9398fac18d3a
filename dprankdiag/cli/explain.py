"""`dprankdiag explain`: the page of a cause, or the list of causes."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from dprankdiag.cli.base import open_doors
from dprankdiag.cli.terminal import find_width, wants_color, write_result
from dprankdiag.errors import UsageError

if TYPE_CHECKING:
    from dprankdiag.catalog.causes import Cause


@click.command(name="explain", short_help="Explain a cause, or list them.")
@click.argument("cause", required=False)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option("--no-color", is_flag=True, help="No colour (as with NO_COLOR set).")
@click.pass_context
def command(context: click.Context, /, cause: str | None, debug: bool, no_color: bool) -> None:
    """Explain CAUSE (such as load.context): what you see, why, how it is told apart, what to do and to type.

    Without CAUSE: the list of causes. With a class (such as load): the causes of that class.
    """
    from dprankdiag.catalog.commands import tell_all
    from dprankdiag.views import causes as pages

    doors = open_doors(context)
    known = doors.causes()
    width, color = find_width(), wants_color(no_color)
    chosen = known if cause is None else _select_class(known, cause)
    if chosen:
        write_result(pages.render_list(chosen, width=width, color=color))
        return
    name = _find_cause(known, str(cause))
    page = doors.pages().get(name, "")
    commands = tell_all(remedy.key for remedy in known[name].remedies)
    write_result(pages.render_page(name, known[name], page, commands, width=width, color=color))


def _select_class(known: Mapping[str, Cause], name: str) -> dict[str, Cause]:
    return {key: cause for key, cause in known.items() if key.split(".")[0] == name.lower()}


def _find_cause(known: Mapping[str, Cause], given: str) -> str:
    plain = given.lower().replace(".", "_")
    for name in known:
        if name.replace(".", "_") == plain:
            return name
    near = get_close_matches(given.lower(), known, n=3, cutoff=0.5)
    mend = f"did you mean {' or '.join(near)}?" if near else "list the causes with: dprankdiag explain"
    raise UsageError(f"no cause '{given}'", where="explain", mend=mend)
