"""An HTTP proxy that injects faults into requests to a service, and counts them."""

from __future__ import annotations

import http.client
import itertools
import random
import re
import select
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.kit.services.local_server import Handler, LocalServer, reset

KINDS = {
    "reset": "the connection is reset before the service sees the request",
    "lost": "the service processes the request, but the connection is reset before the response",
    "500": "an internal error, like any other status of three digits",
    "503": "busy, with Retry-After",
    "429": "too many requests, with Retry-After",
    "busy": "busy, without Retry-After",
    "slow": "the body takes `slow_seconds`",
    "short": "half of the body, then an orderly end of the connection",
    "cut": "half of the body, then a reset",
    "stall": "half of the body, then nothing until the client gives up",
    "shifted": "another range of the same length, with a matching Content-Range",
    "hang": "no answer until the client gives up",
}
_CODES = {
    403: "AuthorizationFailure",
    409: "ConditionalRequestConflict",  # S3's error for two puts at the same time
    500: "InternalError",
    503: "ServerBusy",
}
_BUSY = (429, 503)
_PIECES = 20
_OWN = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True)
class Request:
    """Request number `number`, and attempt number `attempt` of it, both from 0.

    `path` is as sent, with its query; `range` is the range header, or empty.
    """

    number: int
    attempt: int
    method: str
    path: str
    range: str


Planned = Callable[[Request], "str | None"]
"""Selects the fault of `KINDS` for a request, if any. May be called from several threads."""


def no_lists(request: Request) -> str | None:
    """Requests that list objects are forbidden."""
    query = request.path.partition("?")[2]
    is_list = request.method == "GET" and ("comp=list" in query or "list-type" in query)
    return "403" if is_list else None


class ScriptedFaults:
    """The first requests get these kinds in turn, `None` for no fault; the others get none.

    Requests not selected by `of` get no fault and are not counted.
    """

    def __init__(
        self, kinds: Iterable[str | None], of: Callable[[Request], bool] = lambda _: True
    ) -> None:
        self._kinds, self._of = iter(kinds), of
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> str | None:
        if not self._of(request):
            return None
        with self._lock:
            return next(self._kinds, None)


class RandomFaults:
    """Faults in a share `rate` of the requests, chosen by seed and request in any order.

    None after `in_a_row` attempts at the same request.
    """

    def __init__(
        self,
        seed: int,
        rate: float,
        kinds: Sequence[str] = ("reset", "500", "503", "short", "cut"),
        *,
        methods: Sequence[str] = ("GET",),
        in_a_row: int = 3,
    ) -> None:
        self._seed, self._rate, self._kinds = seed, rate, tuple(kinds)
        self._methods, self._in_a_row = tuple(methods), in_a_row

    def __call__(self, request: Request) -> str | None:
        if request.method not in self._methods or request.attempt >= self._in_a_row:
            return None
        path = request.path.partition("?")[0]  # signatures differ between attempts
        name = f"{self._seed} {request.method} {path} {request.range} {request.attempt}"
        rng = random.Random(name)
        return rng.choice(self._kinds) if rng.random() < self._rate else None


class FaultProxy(LocalServer):
    """Takes HTTP/1.1 requests on a free port of 127.0.0.1 and passes them on to `target`.

    `target` is `HOST:PORT`. Headers are passed on unchanged, `Host` included: Azure's signatures
    don't cover it. `fault` may be set at any time. Requests must have a Content-Length.
    `acted` is called with the request's number after the service has processed it and before the
    response is sent.

    `requests` counts requests, `faults` the injected faults by kind.
    """

    def __init__(
        self,
        target: str,
        fault: Planned | None = None,
        *,
        slow_seconds: float = 0.3,
        retry_after: int | str = 1,
        acted: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.target, self.fault, self.acted = target, fault, acted
        self.slow_seconds, self.retry_after = slow_seconds, retry_after
        self._lock = threading.Lock()
        self.reset()
        super().__init__(_Handler)

    def reset(self) -> None:
        """Reset the counters."""
        with self._lock:
            self.requests = 0
            self.faults: Counter[str] = Counter()
            self._attempts: Counter[tuple[str, str, str]] = Counter()

    def choose(self, method: str, path: str, byte_range: str) -> tuple[int, str | None]:
        """Count a request; returns its number and fault."""
        key = (method, path.partition("?")[0], byte_range)
        with self._lock:
            request = Request(self.requests, self._attempts[key], method, path, byte_range)
            self.requests += 1
            self._attempts[key] += 1
        kind = self.fault(request) if self.fault else None
        if kind is not None:
            with self._lock:
                self.faults[kind] += 1
        return request.number, kind

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # tests close clients and kill services on purpose


class _Handler(Handler):
    wbufsize = -1
    server: FaultProxy

    def serve(self) -> None:
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers:
            self._answer(411, b"")
            return
        body = self.rfile.read(int(length))
        if len(body) < int(length):  # the client disconnected; the service would wait for the rest
            self.close_connection = True
            return
        byte_range = self.headers.get("x-ms-range") or self.headers.get("Range") or ""
        number, kind = self.server.choose(self.command, self.path, byte_range)
        if kind == "reset":
            self._reset()
        elif kind == "hang":
            self._wait(None)
            self._reset()
        elif kind == "busy":
            self._fail(503, retry_after=None)
        elif kind is not None and kind.isdigit():
            self._fail(int(kind), retry_after=self.server.retry_after)
        else:
            self._forward(number, body, kind)

    def _forward(self, number: int, body: bytes, kind: str | None) -> None:
        # A new connection for each request: the service may close idle ones.
        service = http.client.HTTPConnection(self.server.target)
        try:
            service.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("connection", "expect"):
                    service.putheader(name, value)
            service.endheaders(body or None)
            answer = service.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            self._reset()
            return
        finally:
            service.close()
        self.server.acted(number)
        if kind == "lost":
            self._reset()
            return
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in _OWN]
        if kind == "shifted":
            headers = [(name, _shifted(value)) for name, value in headers]
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self._answer(answer.status, content, headers, length=length, kind=kind)

    def _answer(
        self,
        status: int,
        content: bytes,
        headers: Sequence[tuple[str, str]] = (),
        *,
        length: str | None = None,
        kind: str | None = None,
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if status != 304 and status != 204:
            self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if kind == "slow":
            step = -(-len(content) // _PIECES) or 1
            for start in range(0, len(content), step):
                self._wait(self.server.slow_seconds / _PIECES)
                self.wfile.write(content[start : start + step])
                self.wfile.flush()
            return
        broken = kind in ("short", "cut", "stall")
        self.wfile.write(content[: len(content) // 2] if broken else content)
        self.wfile.flush()
        if kind == "cut":
            self._wait(0.05)  # or the reset would overtake the data
            self._reset()
        elif kind == "stall":
            self._wait(None)
            self._reset()
        elif kind == "short":
            self.close_connection = True

    def _fail(self, status: int, *, retry_after: int | str | None) -> None:
        """Send an error in Azure's format."""
        code = _CODES.get(status, "Injected")
        text = f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code></Error>'
        headers = [("Content-Type", "application/xml"), ("x-ms-error-code", code)]
        if status in _BUSY and retry_after is not None:
            headers.append(("Retry-After", str(retry_after)))
        self._answer(status, b"" if self.command == "HEAD" else text.encode(), headers)

    def _reset(self) -> None:
        """End the connection with RST."""
        self.close_connection = True
        self.rfile.close()
        reset(self.connection)

    def _wait(self, seconds: float | None) -> None:
        """Wait until the client or the proxy ends, at most `seconds`."""
        steps = itertools.count() if seconds is None else range(max(1, round(seconds / 0.01)))
        for _ in steps:
            if self.server.stopping.is_set():
                return
            if select.select([self.connection], [], [], 0.01)[0]:
                return


def _shifted(value: str) -> str:
    """A Content-Range shifted by one byte; other headers unchanged."""
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", value)
    if found is None:
        return value
    start, last, size = map(int, found.groups())
    return f"bytes {start + 1}-{last + 1}/{size}"
