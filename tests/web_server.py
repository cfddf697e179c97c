"""A web server of a folder on 127.0.0.1, with ranges or, as Python's own, without."""

from __future__ import annotations

import re
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.local_server import LocalServer

__all__ = ["WebFolder"]


class WebFolder(LocalServer):
    """Serves the files of `folder`; `sent` is how many bytes of their bodies it could send,
    `connections` how many were made to it."""

    def __init__(self, folder: Path, *, ranges: bool = True, head: bool = True) -> None:
        self.folder, self.ranges, self.head = folder, ranges, head
        self.sent = self.connections = 0
        super().__init__(_Handler)

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}"


class _Handler(BaseHTTPRequestHandler):
    server: WebFolder
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        self.server.connections += 1
        super().setup()

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        if self.server.head:
            self._serve()
        else:
            self._send(405, b"", {})

    def _serve(self) -> None:
        path = self.server.folder / unquote(urlsplit(self.path).path).lstrip("/")
        if not path.is_file():
            self._send(404, b"not here", {})
            return
        data = path.read_bytes()
        headers = {"ETag": f'"{path.stat().st_mtime_ns:x}-{len(data):x}"'}
        headers["Last-Modified"] = "Wed, 01 Jan 2025 00:00:00 GMT"
        if self.headers.get("If-Match", headers["ETag"]) != headers["ETag"]:
            self._send(412, b"", {})
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None or not self.server.ranges:
            self._send(200, data, headers)
            return
        start, stop = int(asked[1]), min(int(asked[2] or len(data)) + 1, len(data))
        if start >= len(data):
            self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        self._send(206, data[start:stop], headers)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        for at in range(0, len(body), 1 << 16):
            self.wfile.write(body[at : at + (1 << 16)])
            self.server.sent += len(body[at : at + (1 << 16)])
