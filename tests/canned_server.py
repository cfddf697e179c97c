"""A server on 127.0.0.1 that answers HTTP requests with what a test wrote down, byte by byte."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

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


class CannedServer:
    """Gives each request the next answer, and the last one to all that follow.

    `asked` are the requests' heads as they came.
    """

    def __init__(self, answers: Sequence[Canned]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []
        self._stopping = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/account"

    def __enter__(self) -> CannedServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._answer, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                part = connection.recv(65536)
                if not part:
                    return
                head += part
            self.asked.append(head.decode())
            canned = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            connection.sendall(canned.data)
            if canned.end == "hang":
                self._stopping.wait()
            elif canned.end == "reset":
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
