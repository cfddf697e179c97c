"""Blobs read with urllib3: no client library between the socket and the buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seqrecord.errors import StorageError
from seqrecord.ranges import ByteRange
from seqrecord.storage.azure.account import AzureAccount
from seqrecord.storage.azure.http import UNFINISHED, AzureHttp, HttpStatusError
from seqrecord.storage.base import check_buffers, check_path, short_read
from seqrecord.storage.failures import call
from seqrecord.storage.requests import (
    TIMEOUT_SECONDS,
    Request,
    fill,
    hurried,
    merge,
    missing_bytes,
)

__all__ = ["HttpReader"]

_READ_BYTES = 1 << 20


class HttpReader:
    """A `RangeReader` of an Azure account that needs urllib3 alone.

    It works in any process, a forked one too, and sees all that the service says of a failure,
    `Retry-After` included. An attempt fails when nothing has come for `timeout` seconds, or very
    little: see `hurried`. `shown` is the root as it may be shown.
    """

    def __init__(
        self, account: AzureAccount, shown: str, *, timeout: float = TIMEOUT_SECONDS
    ) -> None:
        self.account, self.shown, self.timeout = account, shown, timeout
        self._http = AzureHttp(account, timeout=timeout)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.account, self.shown, self.timeout)

    def __repr__(self) -> str:
        return f"HttpReader({self.shown!r})"

    def size(self, path: str) -> int:
        blob, file = self.account.full(check_path(path)), f"{self.shown}/{path}"

        def size() -> int:
            answer = self._http.send("HEAD", blob, {}, preload=True)
            if answer.status != 200:
                raise HttpStatusError(answer.status, answer.headers)
            if UNFINISHED in answer.headers:
                raise HttpStatusError(404, {})
            return int(answer.headers.get("Content-Length", -1))

        length = call(file, size)
        if length < 0:
            raise StorageError("the service does not tell the file's length", file=file)
        return length

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        check_buffers(ranges, buffers)
        check_path(path)
        requests = merge(ranges, buffers)
        if not requests:
            self.size(path)  # raises if it is not there
        for request in requests:
            call(f"{self.shown}/{path}", self._read, path, request)

    def close(self) -> None:
        self._http.close()

    def _read(self, path: str, request: Request) -> None:
        item, views = request
        file = f"{self.shown}/{path}"
        answer = self._http.send(
            "GET",
            self.account.full(path),
            {"x-ms-range": f"bytes={item.start}-{item.stop - 1}"},
        )
        whole = False
        try:
            if answer.status == 416:
                raise short_read(file, item, 0)
            if answer.status != 206:
                raise HttpStatusError(answer.status, answer.headers)
            got = 0
            if answer.headers.get("Content-Range", "").startswith(f"bytes {item.start}-"):
                chunks = iter(lambda: answer.read1(_READ_BYTES), b"")
                got = fill(views, hurried(chunks, self.timeout, file))
            whole = got == item.length
        finally:
            if whole and answer.length_remaining == 0:
                answer.release_conn()
            else:
                answer.close()
        if not whole:
            raise missing_bytes(self, path, file, item, got)


def _rebuild(account: AzureAccount, shown: str, timeout: float) -> HttpReader:
    return HttpReader(account, shown, timeout=timeout)
