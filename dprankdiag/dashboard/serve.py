"""Serve the dashboard on this machine, with a server that is made for it and not with the one for trying out."""

from __future__ import annotations

import errno
import os
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


MENDS = {
    errno.EADDRINUSE: "choose another with --port; 0 takes a free one",
    errno.EACCES: "choose one of 1024 or more with --port",
}
ELSEWHERE = "--host takes an address of this machine; 0.0.0.0 is all of them"


def listen(host: str = LOOPBACK, port: int = 0) -> socket.socket:
    """Listen at a place; who connects waits until it is served.

    Args:
        host: never taken from the environment.
        port: 0 takes a free one.

    Raises:
        UsageError: the port is taken or the address is not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        mend = MENDS.get(error.errno or 0, ELSEWHERE)
        # Its own words repeat the address.
        why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise UsageError(f"cannot listen ({why})", where=_write_place(host, port), mend=mend) from error


@contextmanager
def serve(app: Dash, place: socket.socket | None = None) -> Iterator[str]:
    """Serve an application until the block ends; gives its address.

    Args:
        place: listens; a free port of this machine alone if not given.
    """
    import logging

    from waitress import wasyncore
    from waitress.server import create_server

    # A busy moment is nothing to tell the user: a browser asks again only when it has its answer.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    place = place or listen()
    server = create_server(
        app.server,
        sockets=[place],
        threads=THREADS,
        ident=None,
        outbuf_overflow=HELD_BYTES,
        outbuf_high_watermark=HELD_BYTES,
    )
    thread = threading.Thread(target=server.run, name="dashboard", daemon=True)
    thread.start()
    try:
        host, port, *_ = place.getsockname()
        yield f"http://{_write_place(host, port)}"
    finally:
        # Closed by its own thread: it is what watches the connections.
        server.trigger.pull_trigger(partial(wasyncore.close_all, server._map))
        thread.join()
        server.task_dispatcher.shutdown()


def _write_place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
