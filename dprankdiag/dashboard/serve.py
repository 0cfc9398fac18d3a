"""Serve the dashboard on this machine, with a server that is made for it and not with the one for trying out."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from dprankdiag.errors import UsageError

if TYPE_CHECKING:
    from dash import Dash

LOOPBACK = "127.0.0.1"
THREADS = 8
HELD_BYTES = 16 * 2**20
"""What an answer may hold in memory before it goes to a file: the largest script is 5 MB."""


@contextmanager
def serve(app: Dash, host: str = LOOPBACK, port: int = 0) -> Iterator[str]:
    """Serve an application until the block ends; gives its address.

    Args:
        host: where to listen; never taken from the environment.
        port: 0 takes a free one.

    Raises:
        UsageError: the port is taken or the address is not ours.
    """
    import logging

    from waitress import wasyncore
    from waitress.server import create_server

    # A busy moment is nothing to tell the user: a browser asks again only when it has its answer.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    server = create_server(
        app.server,
        sockets=[_listen(host, port)],
        threads=THREADS,
        ident=None,
        outbuf_overflow=HELD_BYTES,
        outbuf_high_watermark=HELD_BYTES,
    )
    thread = threading.Thread(target=server.run, name="dashboard", daemon=True)
    thread.start()
    shown = f"[{host}]" if ":" in host else host
    try:
        yield f"http://{shown}:{server.effective_port}"
    finally:
        # Closed by its own thread: it is what watches the connections.
        server.trigger.pull_trigger(partial(wasyncore.close_all, server._map))
        thread.join()
        server.task_dispatcher.shutdown()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        mend = "choose another with --port"
        raise UsageError(f"cannot listen ({error.strerror or error})", where=f"{host}:{port}", mend=mend) from error
