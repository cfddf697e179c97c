"""A web server of a folder on 127.0.0.1, with or without support for ranges."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Container, Mapping
from email.utils import formatdate
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.kit.services.local_server import Handler, LocalServer


class WebFolder(LocalServer):
    """Serves the files of `folder`; `sent` counts bytes of bodies, `connections` counts
    connections. `user` is `NAME:PASSWORD` that requests must have. Without `if_match`, that
    header is ignored. `sends` has the headers about a file's version, `strong`, `weak` (e-tags),
    `time` and `total` (in `Content-Range`). `cut` is called before the next range of more than
    `least_cut` bytes, which has its first half only. The next `num_busy` requests get status 503.
    """

    def __init__(
        self,
        folder: Path,
        *,
        ranges: bool = True,
        head: bool = True,
        if_match: bool = True,
        user: str | None = None,
        sends: Container[str] = ("strong", "time", "total"),
    ) -> None:
        self.folder, self.ranges, self.head, self.user = folder, ranges, head, user
        self.if_match, self.sends = if_match, sends
        self.sent = self.connections = 0
        self.cut: Callable[[], object] | None = None
        self.least_cut = 1 << 16
        self.num_busy = 0
        super().__init__(_Handler)


class _Handler(Handler):
    server: WebFolder

    def setup(self) -> None:
        self.server.connections += 1
        super().setup()

    def serve(self) -> None:
        if self.server.user is not None:
            expected = f"Basic {b64encode(self.server.user.encode()).decode()}"
            if self.headers.get("Authorization") != expected:
                self.send(401)
                return
        if self.server.num_busy:
            self.server.num_busy -= 1
            self.send(503)
            return
        if self.command == "HEAD" and not self.server.head:
            self.send(405)
            return
        path = self.server.folder / unquote(urlsplit(self.path).path).lstrip("/")
        if not path.is_file():
            self.send(404, b"not here")
            return
        data = path.read_bytes()
        modified, sends = path.stat().st_mtime_ns, self.server.sends
        tag = f'"{modified:x}-{len(data):x}"'
        time = formatdate(modified / 1e9, usegmt=True)
        known = {
            "strong": ("ETag", tag),
            "weak": ("ETag", f"W/{tag}"),
            "time": ("Last-Modified", time),
        }
        headers = dict(known[name] for name in known if name in sends)
        if self.server.if_match and self.headers.get("If-Match", tag) != tag:
            self.send(412)
            return
        if self.server.ranges:
            self.cut_range(len(data))
            self.send_range(data, headers, has_total="total" in sends)
        else:
            self.send(200, data, headers)

    def cut_range(self, size: int) -> None:
        """Answer with half of a large range, if the server shall."""
        numbers = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if numbers is None or self.server.cut is None:
            return
        start, last = int(numbers[1]), min(int(numbers[2]), size - 1)
        if last - start > self.server.least_cut:
            self.server.cut()
            self.server.cut = None
            self.headers.replace_header("Range", f"bytes={start}-{(start + last) // 2}")

    def send(self, status: int, body: bytes = b"", headers: Mapping[str, str] = {}) -> None:
        super().send(status, b"", {**headers, "Content-Length": str(len(body))})
        for at in range(0, 0 if self.command == "HEAD" else len(body), 1 << 16):
            self.wfile.write(body[at : at + (1 << 16)])
            self.server.sent += len(body[at : at + (1 << 16)])
