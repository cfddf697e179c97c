"""Base class of test servers: a port of 127.0.0.1, a thread per connection, a clean shutdown."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any


class LocalServer(socketserver.ThreadingTCPServer):
    """Serves from its creation until `close` or the end of its `with` block.

    `handler` handles a connection, each in its own thread. A waiting handler must end when
    `stopping` is set; a reading or writing one ends when its connection is closed.
    """

    request_queue_size = 128

    def __init__(self, handler: type[socketserver.BaseRequestHandler]) -> None:
        self.stopping = threading.Event()
        self._connections: set[socket.socket] = set()
        self._guard = threading.Lock()
        super().__init__(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def host(self) -> str:
        """Address `127.0.0.1:PORT`."""
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}"

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and end all threads."""
        self.stopping.set()
        self.shutdown()
        self._thread.join()
        with self._guard:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._guard:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._connections.discard(request)
        super().shutdown_request(request)


class Handler(BaseHTTPRequestHandler):
    """Speaks HTTP/1.1 and logs nothing; `serve` answers a request of any method."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        pass

    def serve(self) -> None:
        raise NotImplementedError

    def _serve(self) -> None:
        self.serve()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - looked up by name

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def send(self, status: int, body: bytes = b"", headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def send_range(
        self, data: bytes, headers: Mapping[str, str] = {}, *, has_total: bool = True
    ) -> int:
        """Send the requested range, or everything; returns the number of sent bytes."""
        requested = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if requested is not None:
            start, stop = int(requested[1]), min(int(requested[2] or len(data)) + 1, len(data))
            if start >= len(data):
                self.send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                return 0
            total = str(len(data)) if has_total else "*"
            headers = {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{total}"}
            data = data[start:stop]
        self.send(200 if requested is None else 206, data, headers)
        return 0 if self.command == "HEAD" else len(data)


def read_head(connection: socket.socket) -> tuple[str, bytes]:
    """A request's head and the first bytes of its body; raises `OSError` if it is incomplete."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            raise ConnectionError("the request ends in its head")
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    return head.decode("latin-1"), body


def reset(connection: socket.socket) -> None:
    """Close a connection with RST instead of an orderly end."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@dataclass(frozen=True)
class Canned:
    """One response: `data`, then `end`: `close` or `reset` the connection, or `hang`."""

    data: bytes
    end: str = "close"


def answer(status: int, body: bytes = b"", *, length: int | None = None, **headers: str) -> bytes:
    """An HTTP/1.1 response; `length` may be wrong; `_` in a header's name stands for `-`.

    Has an e-tag and a time unless `ETag` and `Last_Modified` are empty.
    """
    version = {"ETag": '"0x1"', "Last_Modified": "Wed, 01 Jan 2025 00:00:00 GMT"}
    lines = [f"HTTP/1.1 {status} Status"]
    lines += [f"{k.replace('_', '-')}: {v}" for k, v in (version | headers).items() if v]
    lines += [
        f"Content-Length: {len(body) if length is None else length}",
        "x-ms-blob-type: BlockBlob",
        "x-ms-error-code: " if status < 400 else "x-ms-version: 2020-10-02",
        "Connection: close",
        "\r\n",
    ]
    return "\r\n".join(line for line in lines if line != "x-ms-error-code: ").encode() + body


class CannedServer(LocalServer):
    """Sends each request the next of the `answers`; the last one is repeated.

    `asked` contains the heads of the requests.
    """

    def __init__(self, answers: Sequence[Canned]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        super().__init__(_CannedHandler)

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}/account"


class _CannedHandler(socketserver.BaseRequestHandler):
    server: CannedServer

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            head, body = read_head(self.request)
            self.server.asked.append(f"{head}\r\n\r\n")
            sent = re.search(r"content-length: *(\d+)", head.lower())
            while sent is not None and len(body) < int(sent[1]):
                part = self.request.recv(65536)
                if not part:
                    return
                body += part
            answers = self.server.answers
            canned = answers.pop(0) if len(answers) > 1 else answers[0]
            self.request.sendall(canned.data)
            if canned.end == "hang":
                self.server.stopping.wait()
            elif canned.end == "reset":
                reset(self.request)


class ConnectProxy(LocalServer):
    """A proxy for HTTPS; `asked` contains the requested hosts, `HOST:PORT`.

    `cut(number)` returns the number of bytes from the server after which the `number`-th tunnel,
    counted from 0, is reset; `None` for never.
    """

    def __init__(self, cut: Callable[[int], int | None] = lambda _: None) -> None:
        self.asked: list[str] = []
        self.cut = cut
        self._lock = threading.Lock()
        super().__init__(_ProxyHandler)

    def count(self, host: str) -> int:
        """Count a tunnel; returns its number."""
        with self._lock:
            self.asked.append(host)
            return len(self.asked) - 1


class _ProxyHandler(socketserver.BaseRequestHandler):
    server: ConnectProxy

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            head, _ = read_head(self.request)
            method, host, _ = head.split(" ", 2)
            if method != "CONNECT":
                self.request.sendall(b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n")
                return
            limit = self.server.cut(self.server.count(host))
            name, _, port = host.rpartition(":")
            with socket.create_connection((name, int(port)), 10) as service:
                self.request.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                self._pass_on(service, limit)

    def _pass_on(self, service: socket.socket, limit: int | None) -> None:
        client = self.request
        while not self.server.stopping.is_set():
            for source in select.select([client, service], [], [], 0.05)[0]:
                data = source.recv(65536)
                if not data:
                    return
                if source is client:
                    service.sendall(data)
                    continue
                client.sendall(data if limit is None else data[:limit])
                if limit is not None:
                    limit -= len(data)
                    if limit <= 0:
                        reset(client)
                        return
