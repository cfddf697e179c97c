"""A proxy on 127.0.0.1 that opens tunnels (CONNECT), as companies have them."""

from __future__ import annotations

import contextlib
import select
import socket
import socketserver
import threading
from collections.abc import Callable

from tests.local_server import LocalServer, read_head, reset

__all__ = ["ConnectProxy"]


class ConnectProxy(LocalServer):
    """`asked` are the hosts that tunnels were asked for, `HOST:PORT`.

    `cut(number)` says after how many bytes from the server the `number`-th tunnel, from 0, is
    reset; `None` for never.
    """

    def __init__(self, cut: Callable[[int], int | None] = lambda _: None) -> None:
        self.asked: list[str] = []
        self.cut = cut
        self._lock = threading.Lock()
        super().__init__(_Handler)

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}"

    def count(self, host: str) -> int:
        """Note a tunnel; its number."""
        with self._lock:
            self.asked.append(host)
            return len(self.asked) - 1


class _Handler(socketserver.BaseRequestHandler):
    server: ConnectProxy

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            head, _ = read_head(self.request)
            method, host, _ = head.split(" ", 2)
            if method != "CONNECT":
                self.request.sendall(b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n")
                return
            left = self.server.cut(self.server.count(host))
            name, _, port = host.rpartition(":")
            with socket.create_connection((name, int(port)), 10) as service:
                self.request.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                self._pass_on(service, left)

    def _pass_on(self, service: socket.socket, left: int | None) -> None:
        client = self.request
        while not self.server.stopping.is_set():
            for source in select.select([client, service], [], [], 0.05)[0]:
                data = source.recv(65536)
                if not data:
                    return
                if source is client:
                    service.sendall(data)
                    continue
                client.sendall(data if left is None else data[:left])
                if left is not None:
                    left -= len(data)
                    if left <= 0:
                        reset(client)
                        return
