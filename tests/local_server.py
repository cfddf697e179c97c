"""What servers of tests share: a port of 127.0.0.1, a thread a connection, an end to all of it."""

from __future__ import annotations

import contextlib
import re
import socket
import socketserver
import struct
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any

__all__ = ["Handler", "LocalServer", "read_head", "reset"]


class LocalServer(socketserver.ThreadingTCPServer):
    """Serves from the moment it is made, until `close` or the end of its `with` block.

    `handler` handles a connection, each in its own thread. One that waits must end when `stopping`
    is set; one that reads or writes is ended by its connection.
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
        """Where it listens, `127.0.0.1:PORT`."""
        return f"127.0.0.1:{self.server_address[1]}"

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Break what is under way and end all threads."""
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

    def send_range(self, data: bytes, headers: Mapping[str, str] = {}) -> None:
        """The range that is asked for, or all."""
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            self.send(200, data, headers)
            return
        start, stop = int(asked[1]), min(int(asked[2] or len(data)) + 1, len(data))
        if start >= len(data):
            self.send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        found = {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}
        self.send(206, data[start:stop], {**headers, **found})


def read_head(connection: socket.socket) -> tuple[str, bytes]:
    """The head of a request, and what came of its body; raises `OSError` where it ends before."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            raise ConnectionError("the request ends in its head")
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    return head.decode("latin-1"), body


def reset(connection: socket.socket) -> None:
    """Close a connection with RST, without the orderly end that a server makes of it."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
