"""A server on 127.0.0.1 that answers HTTP requests with what a test wrote down, byte by byte."""

from __future__ import annotations

import contextlib
import re
import socketserver
from collections.abc import Sequence
from dataclasses import dataclass

from tests.local_server import LocalServer, read_head, reset

__all__ = ["Canned", "CannedServer", "answer"]


@dataclass(frozen=True)
class Canned:
    """What one request gets: `data`, then `end`: `close` or `reset` the connection, or `hang`."""

    data: bytes
    end: str = "close"


def answer(status: int, body: bytes = b"", *, length: int | None = None, **headers: str) -> bytes:
    """An HTTP/1.1 answer whose Content-Length may lie; `_` in a header's name stands for `-`."""
    lines = [f"HTTP/1.1 {status} Said"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines += [
        f"Content-Length: {len(body) if length is None else length}",
        'ETag: "0x1"',
        "Last-Modified: Wed, 01 Jan 2025 00:00:00 GMT",
        "x-ms-blob-type: BlockBlob",
        "x-ms-error-code: " if status < 400 else "x-ms-version: 2020-10-02",
        "Connection: close",
        "\r\n",
    ]
    return "\r\n".join(line for line in lines if line != "x-ms-error-code: ").encode() + body


class CannedServer(LocalServer):
    """Gives each request the next answer, and the last one to all that follow.

    `asked` are the requests' heads as they came.
    """

    def __init__(self, answers: Sequence[Canned]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        super().__init__(_Handler)

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}/account"


class _Handler(socketserver.BaseRequestHandler):
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
