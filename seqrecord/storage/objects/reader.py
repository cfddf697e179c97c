"""Objects read with obstore: the object_store library of Apache Arrow, written in Rust."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from seqrecord.errors import ConflictError, StorageError, TransientError
from seqrecord.storage.base import check_path, too_large
from seqrecord.storage.clients import RUNTIME, Clients
from seqrecord.storage.failures import call
from seqrecord.storage.objects.bucket import Bucket
from seqrecord.storage.requests import TIMEOUT_SECONDS, Request, RequestReader, fill, hurried

_SMALL_BYTES = 1 << 20
_CHUNK_BYTES = 256 << 10
_RECORDS = "records/"  # the folder of what is read after a dataset was opened
# In the text of errors, which is all that they have: the answer is of no or of another range.
_OTHER_RANGE = ("status code: 416", "InvalidRangeRequest", "UnexpectedRange")

_logger = logging.getLogger("seqrecord")


def whole_of(answer: Any, file: str, limit: int) -> bytes:
    """All bytes of an answer; `StorageError` for more than `limit`, of which none is read."""
    size = int(answer.meta["size"])
    if size > limit:
        raise too_large(file, limit, size)
    data = bytes(call(file, answer.bytes))
    if len(data) != size:
        raise TransientError("an answer was cut", file=file, expected=size, got=len(data))
    return data


class ObstoreReader(RequestReader):
    """Reads an object store or a web server.

    Bodies are copied into the buffers as they come, so there is no second copy of a request in
    memory. An attempt fails when nothing has come for `timeout` seconds, or very little: see
    `hurried`. A file that is replaced between two reads of it is an error, by its e-tag, until
    `size` looks anew.

    `fallback` reads without obstore: in a forked child of a process that has used obstore, and in
    any process that has only looked so far, at less than 1 MiB of record files in all. So a process
    that opens datasets before it forks its workers leaves them obstore. It also makes the attempt
    after a refusal with an HTTP status, because obstore does not report `Retry-After`.
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
        self._refused = set[str]()  # files of which the server refused the last read
        self._looked = 0  # bytes
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
            if found and not found.startswith("W/"):  # of a weak one no server says that it matches
                self._tags.setdefault(path, found)
            chunks = (memoryview(chunk) for chunk in answer.stream(min_chunk_size=_CHUNK_BYTES))
            got = call(file, fill, views, hurried(chunks, self._timeout, file))
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
        """The reader without obstore, where that is the one to use."""
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
                    "%s: read without obstore, which was used before this process was forked; "
                    'workers with multiprocessing_context="forkserver" have it',
                    self._shown,
                )
            return fallback
        if path.startswith(self._pages_below):
            self._looked += nbytes
            if self._looked >= _SMALL_BYTES:
                return None
        return fallback

    def _get(self, path: str, options: dict[str, Any]) -> Any:
        """The answer, or `None` where it is of another range than asked."""
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
