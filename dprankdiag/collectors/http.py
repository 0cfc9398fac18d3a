"""Ask a target over HTTP: what came, when it came, or why nothing can be judged.

A token comes from the environment or a file, is sent only where nobody can listen, and is written nowhere: neither in
messages, nor in a `repr`, nor in what a redirect leads to.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from dprankdiag.errors import UsageError
from dprankdiag.model.ledgers import NoData
from dprankdiag.units import NS_PER_S

if TYPE_CHECKING:
    import ssl

    import httpx

ACCEPT_TEXT = "text/plain;version=0.0.4"
ACCEPT_JSON = "application/json"
MOST_BYTES = 64 * 1024 * 1024
MOST_REFUSAL_BYTES = 16 * 1024
ABSENT = (404, 405, 501)


@dataclass(frozen=True, slots=True)
class Secret:
    """A header that must not be shown.

    Attributes:
        header: its name.
        told_by: where it came from, for messages.
        value: what is sent.
    """

    header: str
    told_by: str
    value: str = field(repr=False)


def read_secret(*, env: str | None = None, file: Path | None = None, header: str = "Authorization") -> Secret | None:
    """Read a token from an environment variable or a file; None if neither is named.

    `Authorization` gets the word `Bearer` before the token unless it holds a scheme of its own.

    Raises:
        UsageError: both are named, or the one named holds nothing that can be sent.
    """
    if env is not None and file is not None:
        raise UsageError("expected the token from one place", mend="give --token-env or --token-file")
    if env is not None:
        text, told_by = os.environ.get(env, ""), f"environment variable {env}"
    elif file is not None:
        text, told_by = _read_file(file), f"file {file}"
    else:
        return None
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise UsageError("holds no token", where=told_by)
    is_bare = header.lower() == "authorization" and " " not in token
    return Secret(header, told_by, f"Bearer {token}" if is_bare else token)


def _read_file(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("cannot be read", where=str(path), mend="name a text file that holds the token") from error


@dataclass(frozen=True, slots=True)
class Access:
    """How targets are asked.

    Attributes:
        secret: sent with each request.
        ca_file: certificates to trust instead of the system's.
        connect_s: longest wait for a connection.
        reply_s: longest time from asking to the last byte.
        most_bytes: largest body.
        plain_secret: send the secret over plain HTTP to other hosts, too.
    """

    secret: Secret | None = None
    ca_file: Path | None = None
    connect_s: float = 2.0
    reply_s: float = 5.0
    most_bytes: int = MOST_BYTES
    plain_secret: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole body, and the moment its last byte came (UTC epoch ns)."""

    body: bytes
    received_ns: int


class Pace:
    """Spaces out the questions to one interface of one target: its period while it answers, longer after failures.

    One failure changes nothing, so that a hiccup costs one tick; then waits double, up to a minute, each between half
    and all of that, so that many targets that failed together do not come back together.

    Args:
        period_s: between answers; 0 asks at every tick.
        chance: numbers from 0 to 1.
    """

    LONGEST_S = 60.0
    ABSENT_S = 120.0

    def __init__(self, period_s: float, chance: Callable[[], float]) -> None:
        self._period_s = period_s
        self._chance = chance
        self._due_ns = 0
        self._failures = 0

    def is_due(self, now_ns: int) -> bool:
        """Tell whether it is time to ask."""
        return now_ns >= self._due_ns

    def note(self, now_ns: int, failure: NoData | None) -> None:
        """Note how a question went."""
        if failure is None:
            self._failures, wait_s = 0, self._period_s
        elif failure.absent:
            self._failures, wait_s = 0, self.ABSENT_S
        else:
            self._failures += 1
            wait_s = self._back_off()
        self._due_ns = now_ns + int(wait_s * NS_PER_S)

    def _back_off(self) -> float:
        if self._failures < 2:
            return 0.0
        longest = min(self.LONGEST_S, 2.0 ** min(self._failures - 2, 10))
        return longest * (0.5 + 0.5 * self._chance())


class Fetcher:
    """Asks; holds the connections.

    Args:
        transport: stands in for the network.
        clock: UTC epoch ns.
    """

    def __init__(
        self,
        access: Access | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        import httpx

        from dprankdiag.collectors.deadlines import Deadline, make_transport

        self._access = access or Access()
        self._clock = clock
        self._deadline = Deadline()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        self._client = httpx.Client(
            transport=transport or make_transport(self._deadline, _make_context(self._access.ca_file), limits),
            timeout=httpx.Timeout(self._access.reply_s, connect=self._access.connect_s),
            follow_redirects=False,
            trust_env=False,
        )

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def fetch(
        self,
        interface: str,
        base: str,
        path: str,
        accept: str = ACCEPT_TEXT,
        read_refusal: Callable[[bytes], str] | None = None,
    ) -> Reply | NoData:
        """Ask for a path of a target.

        Args:
            base: `http(s)://host:port`, perhaps with a path before ours.
            read_refusal: reads from the body of an error why it was one, "" where it does not tell; for interfaces
                that answer so by contract.
        """
        import httpx

        url = f"{base.rstrip('/')}{path}"
        where = hide_credentials(url)
        try:
            return self._ask(interface, url, where, accept, read_refusal)
        except httpx.TimeoutException as error:
            return self._fail(interface, where, f"no answer in time ({_name(error)})")
        except (httpx.RemoteProtocolError, httpx.ReadError):
            return self._fail(interface, where, "the answer was cut short or is no HTTP")
        except httpx.DecodingError:
            return self._fail(interface, where, "the compressed answer is damaged")
        except httpx.HTTPError as error:
            why = "its certificate is not trusted; give --ca-file" if _is_distrust(error) else _name(error)
            return self._fail(interface, where, f"cannot be reached ({why})")

    def _ask(
        self, interface: str, url: str, where: str, accept: str, read_refusal: Callable[[bytes], str] | None
    ) -> Reply | NoData:
        headers = {"Accept": accept, "Accept-Encoding": "gzip"}
        secret = self._access.secret
        if secret is not None:
            if not self._access.plain_secret and not is_private(url):
                reason = f"the token of {secret.told_by} is not sent over plain HTTP; use https"
                return self._fail(interface, where, reason)
            headers[secret.header] = secret.value
        with self._deadline.within(self._access.reply_s) as deadline:
            reply = self._read(interface, url, where, headers, deadline, read_refusal)
            if isinstance(reply, str):
                reply = self._read(interface, reply, where, headers, deadline, read_refusal)
        return self._fail(interface, where, "leads in a circle") if isinstance(reply, str) else reply

    def _read(
        self,
        interface: str,
        url: str,
        where: str,
        headers: Mapping[str, str],
        deadline: float,
        read_refusal: Callable[[bytes], str] | None,
    ) -> Reply | NoData | str:
        """Read a whole body; or tell where else to ask, which is only ever at the same port."""
        with self._client.stream("GET", url, headers=headers) as response:
            if response.has_redirect_location and (nearby := _find_nearby(response)):
                return nearby
            if response.status_code != 200:
                told = "" if read_refusal is None else read_refusal(_read_start(response))
                return self._refuse(interface, where, response.status_code, told)
            parts, size = [], 0
            for part in response.iter_bytes():
                parts.append(part)
                size += len(part)
                if size > self._access.most_bytes:
                    return self._fail(interface, where, f"the answer is larger than {self._access.most_bytes} bytes")
                if time.monotonic() > deadline:
                    return self._fail(interface, where, f"the answer took longer than {self._access.reply_s:g} s")
        return Reply(b"".join(parts), self._clock())  # a body shorter than announced has raised

    def _refuse(self, interface: str, where: str, status: int, why: str = "") -> NoData:
        if status in (401, 403):
            secret = self._access.secret
            told = f"the token of {secret.told_by} is not accepted" if secret else "give --token-env or --token-file"
            return self._fail(interface, where, f"wants a token (HTTP {status}); {told}")
        if 300 <= status < 400:
            return self._fail(interface, where, f"leads elsewhere (HTTP {status}); give the address it leads to")
        if why:
            return self._fail(interface, where, f"refused the question (HTTP {status}): {why}")
        reason = f"is not offered (HTTP {status})" if status in ABSENT else f"failed (HTTP {status})"
        return NoData(interface, where, self._clock(), reason, absent=status in ABSENT)

    def _fail(self, interface: str, where: str, reason: str) -> NoData:
        return NoData(interface, where, self._clock(), reason)


def check_target(target: str) -> str:
    """Check the address of a target; return it without what follows its path.

    Raises:
        UsageError: it is no HTTP address, or holds credentials.
    """
    text = target if "://" in target else f"http://{target}"
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError("expected http://HOST:PORT", where=hide_credentials(target)) from error
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError("expected http://HOST:PORT", where=hide_credentials(target))
    if parts.username or parts.password:
        raise UsageError("holds credentials", where=hide_credentials(target), mend="give --token-env or --token-file")
    path = parts.path.rstrip("/").removesuffix("/metrics")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def is_private(url: str) -> bool:
    """Tell whether nobody can listen: TLS, or this machine alone."""
    parts = urlsplit(url)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def hide_credentials(url: str) -> str:
    """Take user, password and query out of an address."""
    head, mark, rest = url.partition("://")
    rest = (rest if mark else head).split("?", 1)[0].split("#", 1)[0]
    host, slash, path = rest.partition("/")
    return f"{head}{mark}" * bool(mark) + host.rpartition("@")[2] + slash + path


def _read_start(response: httpx.Response) -> bytes:
    """Read the start of the body of an error."""
    start = b""
    for part in response.iter_bytes():
        start += part
        if len(start) >= MOST_REFUSAL_BYTES:
            break
    return start[:MOST_REFUSAL_BYTES]


def _find_nearby(response: httpx.Response) -> str:
    """Find where a redirect leads if that is at the same port, as to `/metrics/`; else ""."""
    asked, told = response.request.url, response.request.url.join(response.headers["Location"])
    is_nearby = (asked.scheme, asked.host, asked.port) == (told.scheme, told.host, told.port)
    return str(told) if is_nearby else ""


def _make_context(ca_file: Path | None) -> ssl.SSLContext:
    import ssl

    if ca_file is None:
        import httpx

        return httpx.create_ssl_context(trust_env=False)
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise UsageError("holds no certificates that can be read", where=str(ca_file)) from error


def _is_distrust(error: BaseException | None) -> bool:
    """Tell whether a certificate was refused, as one of the errors behind an error."""
    import ssl

    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _name(error: Exception) -> str:
    """Name an error by its type: its text may repeat the request."""
    return type(error).__name__
