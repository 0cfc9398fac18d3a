"""The dashboard as a WSGI application, for a server of your own.

    export DPRANKDIAG_DASHBOARD="http://HOST:30000"
    waitress-serve --listen=127.0.0.1:8050 --call dashboards.app:make_application

`DPRANKDIAG_DASHBOARD` holds what stands after `dprankdiag dashboard` on the command line; where to listen is up to the
server. If others than this machine shall look, it needs the same as there: `--host 0.0.0.0 --allow-remote` and a token
to view. Use one process with several threads: every process would ask the engines by itself.
"""

from __future__ import annotations

import atexit
import os
import shlex
from contextlib import ExitStack
from typing import Any

from dprankdiag.cli.dashboard import command, open_dashboard, read_entrance


def make_application(arguments: str | None = None) -> Any:
    """Make the application; engines are asked until the process ends.

    Args:
        arguments: as on the command line; those of `DPRANKDIAG_DASHBOARD` if not given.
    """
    told = os.environ.get("DPRANKDIAG_DASHBOARD", "") if arguments is None else arguments
    context = command.make_context("dashboard", shlex.split(told))
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(open_dashboard(context, read_entrance(context))).server
