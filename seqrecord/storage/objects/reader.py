"""Reading objects with obstore, Python bindings of Apache Arrow's object_store library in Rust."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from seqrecord.errors import ConflictError, StorageError, TransientError
from seqrecord.storage.base import check_path, too_large
from seqrecord.storage.clients import RUNTIME, Clients
from seqrecord.storage.failures import call
from seqrecord.storage.objects.bucket import Bucket
from seqrecord.storage.requests import TIMEOUT_SECONDS, Request, RequestReader, check_rate, fill

_SMALL_BYTES = 1 << 20
_CHUNK_BYTES = 256 << 10
_RECORDS = "records/"  # folder of files that are read after a dataset was opened
# Parts of errors' texts, their only information: the response has no range, or another one.
_OTHER_RANGE = ("status code: 416", "InvalidRangeRequest", "UnexpectedRange")

_logger = logging.getLogger("seqrecord")


def whole_of(answer: Any, file: str, limit: int) -> bytes:
    """Content of a response; raises `StorageError` above `limit` bytes, before reading."""
    size = int(answer.meta["size"])
    if size > limit:
        raise too_large(file, limit, size)
    data = bytes(call(file, answer.bytes))
    if len(data) > size:
        raise StorageError(
            "the answer is longer than declared; the server must send files unchanged, without "
            "compression",
            file=file,
            expected=f"{size} bytes",
            got=f"{len(data)} bytes",
        )
    if len(data) != size:
        raise TransientError("an answer was cut", file=file, expected=size, got=len(data))
    return data


class ObstoreReader(RequestReader):
    """Reads an object store or web server.

    Responses are copied to the buffers in chunks, so that memory has no second copy of a request.
    An attempt fails after `timeout` seconds without data, or with very little: see
    `check_rate`. If a file is replaced between two reads (the e-tag differs), reads fail
    until the next `size`.

    `fallback` reads without obstore: in a forked child after its parent used obstore, and in any
    process until it has read 1 MiB of record files. So obstore remains usable in workers that are
    forked after datasets were opened. The fallback also makes the attempt after a refusal with an
    HTTP status, because obstore does not report `Retry-After`.
    """

    def __init__(
        self,
        bucket: Bucket,
        shown: str,
        *,
        fallback: RequestReader | None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        self._bucket, self._shown, self._timeout = bucket, shown.rstrip("/"), timeout
        self._fallback = fallback
        self._clients = Clients(partial(bucket.client, timeout), is_reread=bucket.is_reread)
        self._tags: dict[str, str] = {}
        self._refused = set[str]()  # files whose last read the server refused
        self._looked = 0  # bytes read of record files
        self._pages_below = _RECORDS

    def size(self, path: str) -> int:
        self._tags.pop(path, None)
        fallback = self._fallback_for(path, 0)
        return fallback.size(path) if fallback is not None else super().size(path)

    def length(self, path: str) -> int:
        file, key = f"{self._shown}/{path}", self._bucket.key(path)
        return int(self._clients.ask(file, lambda store: store.head(key))["size"])

    def read(self, path: str, request: Request) -> None:
        item, views = request
        fallback = self._fallback_for(path, item.length)
        if fallback is not None:
            fallback.read(path, request)
            return
        file = f"{self._shown}/{path}"
        options: dict[str, Any] = {"range": (item.start, item.stop)}
        if path in self._tags:
            options["if_match"] = self._tags[path]
        got = 0
        try:
            answer = self._get(path, options)
        except TransientError as error:
            if "HTTP status" in error.message:
                self._refused.add(path)
            raise
        if answer is not None:
            found = answer.meta.get("e_tag")
            if found and not found.startswith("W/"):  # weak e-tags do not support `if_match`
                self._tags.setdefault(path, found)
            chunks = (memoryview(chunk) for chunk in answer.stream(min_chunk_size=_CHUNK_BYTES))
            got = call(file, fill, views, check_rate(chunks, self._timeout, file))
        if got != item.length:
            raise self.missing(path, file, item, got)

    def read_whole(self, path: str, limit: int) -> bytes:
        check_path(path)
        self._tags.pop(path, None)
        fallback = self._fallback_for(path, 0)
        if fallback is not None:
            return fallback.read_whole(path, limit)
        return whole_of(self._get(path, {}), f"{self._shown}/{path}", limit)

    def expect_pages(self) -> None:
        self._pages_below = ""

    def close(self) -> None:
        if self._fallback is not None:
            self._fallback.close()
        self._clients.close()

    def _fallback_for(self, path: str, nbytes: int) -> RequestReader | None:
        """The reader without obstore, if it must be used."""
        fallback = self._fallback
        if path in self._refused:
            self._refused.discard(path)
            return fallback
        if fallback is None or (RUNTIME.is_wanted and not RUNTIME.lost):
            return None
        if RUNTIME.lost:
            if not RUNTIME.warned:
                RUNTIME.warned = True
                _logger.warning(
                    "%s: reading without obstore, which was used before this process was forked; "
                    'use multiprocessing_context="forkserver" for workers with obstore',
                    self._shown,
                )
            return fallback
        if path.startswith(self._pages_below):
            self._looked += nbytes
            if self._looked >= _SMALL_BYTES:
                return None
        return fallback

    def _get(self, path: str, options: dict[str, Any]) -> Any:
        """Request an object; `None` if the response has another range."""
        file, key = f"{self._shown}/{path}", self._bucket.key(path)

        def get(store: Any) -> Any:
            try:
                return store.get(key, options=options)
            except Exception as error:
                if not any(mark in str(error) for mark in _OTHER_RANGE):
                    raise
                return None

        try:
            return self._clients.ask(file, get)
        except ConflictError:
            pass
        raise StorageError(
            "the file was replaced while it was read: open the dataset again", file=file
        )
