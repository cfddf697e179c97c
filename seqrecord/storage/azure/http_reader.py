"""Blobs read with urllib3: no client library between the socket and the buffers."""

from __future__ import annotations

from collections.abc import Sequence

from seqrecord.errors import StorageError
from seqrecord.storage.azure.account import AzureAccount
from seqrecord.storage.azure.http import UNFINISHED, AzureHttp, HttpStatusError
from seqrecord.storage.azure.reader import AzureReader
from seqrecord.storage.base import check_path, short_read
from seqrecord.storage.failures import call
from seqrecord.storage.requests import TIMEOUT_SECONDS, Request, fill, hurried, missing_bytes

__all__ = ["HttpReader"]

_READ_BYTES = 1 << 20


class HttpReader(AzureReader):
    """A `RangeReader` of an Azure account that needs urllib3 alone.

    It works in any process, a forked one too, and sees all that the service says of a failure,
    `Retry-After` included. An attempt fails when nothing has come for `timeout` seconds, or very
    little: see `hurried`. `shown` is the root as it may be shown.
    """

    def __init__(
        self, account: AzureAccount, shown: str, *, timeout: float = TIMEOUT_SECONDS
    ) -> None:
        super().__init__(account, shown, timeout=timeout)
        self._http = AzureHttp(account, timeout=timeout)

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

    def close(self) -> None:
        self._http.close()

    def _read(self, path: str, requests: Sequence[Request]) -> None:
        for request in requests:
            call(f"{self.shown}/{path}", self._read_one, path, request)

    def _read_one(self, path: str, request: Request) -> None:
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
