"""Who may look: names by which the server is asked for, a token for others than this machine, and strict headers.

A page of another site can make a browser ask a server on this machine under a name of its own (DNS rebinding): only
known names are answered. What is shown is allowed to run and fetch nothing but what this server gives.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from dprankdiag.errors import UsageError

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
SHORTEST_TOKEN = 16
COOKIE = "dprankdiag"


@dataclass(frozen=True, slots=True)
class Entrance:
    """Who is let in.

    Attributes:
        hosts: names that are answered besides those of this machine.
        token: what others have to know; None if nobody else can reach the server.
        any_address: answer under any IP address too, as where the server listens on all of them.
    """

    hosts: frozenset[str] = frozenset()
    token: str | None = None
    any_address: bool = False

    def __repr__(self) -> str:
        """Describe it without the token."""
        return f"Entrance(hosts={sorted(self.hosts)}, token={'set' if self.token else None})"

    def knows_host(self, header: str) -> bool:
        """Tell whether a Host header names this server."""
        name = _cut_port(header).lower()
        return name in LOOPBACK_NAMES or name in self.hosts or (self.any_address and _is_address(name))

    def knows_token(self, given: str) -> bool:
        """Tell whether a token is the right one."""
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def make_pass(self) -> str:
        """Make what a browser shows after it gave the token: from it the token cannot be told."""
        assert self.token is not None
        return hmac.new(self.token.encode(), b"dprankdiag dashboard", hashlib.sha256).hexdigest()

    def knows_pass(self, given: str) -> bool:
        """Tell whether a browser gave the token before."""
        return hmac.compare_digest(given.encode(), self.make_pass().encode())


def open_entrance(host: str, *, allow_remote: bool, token: str | None, names: Iterable[str] = ()) -> Entrance:
    """Decide who is let in at an address.

    Raises:
        UsageError: others could reach it although that is not allowed, or without a token, or with a short one.
    """
    is_local = _is_loopback(host)
    if not is_local and not allow_remote:
        mend = "leave --host out and reach it through ssh -L or kubectl port-forward, or add --allow-remote and a token"
        raise UsageError("others could reach it", where=f"--host {host}", mend=mend)
    if allow_remote and token is None:
        mend = "put one in a file and add --view-token-file FILE, or name a variable with --view-token-env NAME"
        raise UsageError("needs a token that others have to know", where="--allow-remote", mend=mend)
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise UsageError(
            f"the token to view is short, expected {SHORTEST_TOKEN} characters or more",
            mend="make one with: openssl rand -hex 16",
        )
    known = frozenset(name.lower() for name in (*names, *(() if is_local else (host,))))
    return Entrance(known, token, any_address=not is_local)


def write_policy(scripts: Iterable[str]) -> str:
    """Write the content security policy: scripts of this server and the given hashes, data of this server alone."""
    return (
        f"default-src 'none'; script-src 'self' {' '.join(scripts)}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )


def guard(server: Any, entrance: Entrance, policy: str) -> None:
    """Let a Flask server answer only who is let in, and give every answer its headers."""
    from flask import Response, redirect, request

    def refuse() -> Any:
        if not entrance.knows_host(request.host):
            return Response("This server is not known by that name.\n", 403, mimetype="text/plain")
        if entrance.token is None or entrance.knows_pass(request.cookies.get(COOKIE, "")):
            return None
        if entrance.knows_token(request.headers.get("Authorization", "").removeprefix("Bearer ")):
            return None
        if request.method == "POST" and entrance.knows_token(request.form.get("token", "")):
            answer = redirect(f"/{request.full_path.lstrip('/')}".rstrip("?"), 303)
            answer.set_cookie(COOKIE, entrance.make_pass(), httponly=True, samesite="Lax", secure=request.is_secure)
            return answer
        return Response(_write_door(), 401, mimetype="text/html")

    def dress(answer: Any) -> Any:
        answer.headers["Content-Security-Policy"] = policy
        answer.headers["X-Content-Type-Options"] = "nosniff"
        answer.headers["Referrer-Policy"] = "no-referrer"
        answer.headers["X-Frame-Options"] = "DENY"
        answer.headers["Cross-Origin-Opener-Policy"] = "same-origin"
        answer.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        if not request.path.startswith(("/assets/", "/_dash-component-suites/")):
            answer.headers["Cache-Control"] = "no-store"
        return answer

    server.before_request(refuse)
    server.after_request(dress)


def _write_door() -> str:
    """Write the page that asks for the token."""
    field = '<input id="token" name="token" type="password" autocomplete="off" autofocus>'
    form = f'<form method="post"><label for="token">Token</label> {field} <button>look</button></form>'
    head = '<head><meta charset="utf-8"><title>dprankdiag: token</title></head>'
    body = f"<main><h1>dprankdiag</h1><p>Whoever started this dashboard knows the token.</p>{form}</main>"
    return f'<!doctype html><html lang="en">{head}<body>{body}</body></html>\n'


def _cut_port(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)
