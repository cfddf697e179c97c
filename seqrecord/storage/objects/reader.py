"""Objects read with obstore: the object_store library of Apache Arrow, written in Rust."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from typing import Any

from seqrecord.errors import LocationError, NotFoundError, StorageError, TransientError
from seqrecord.storage.base import check_path, too_large
from seqrecord.storage.failures import call
from seqrecord.storage.objects.source import Clients, ObjectSource
from seqrecord.storage.requests import (
    TIMEOUT_SECONDS,
    Request,
    RequestReader,
    fill,
    hurried,
)

__all__ = ["ObstoreReader", "use_obstore", "whole_of"]

_SMALL_BYTES = 1 << 20
_CHUNK_BYTES = 256 << 10
_RECORDS = "records/"  # the folder of what is read after a dataset was opened
# In the text of errors, which is all that they have: the answer is of no or of another range.
_OTHER_RANGE = ("status code: 416", "InvalidRangeRequest", "UnexpectedRange")
_WHOLE = ("NotPartial", "RangeNotSupported", "non-partial response")

_logger = logging.getLogger("seqrecord")


class _Runtime:
    """Whether obstore has been used in this process, and whether it cannot be.

    It has one Rust runtime in a process, whose threads a fork does not copy: in a child of a
    process that had used obstore every call would wait forever.
    """

    used = False
    lost = False
    told = False

    @classmethod
    def after_fork(cls) -> None:
        cls.lost = cls.lost or cls.used or "obstore" in sys.modules
        cls.used = cls.told = False

    @classmethod
    def is_wanted(cls) -> bool:
        """Whether all reading may go through obstore: nobody will fork here after it.

        A daemonic process, such as a DataLoader's worker, may have no children.
        """
        return cls.used or multiprocessing.current_process().daemon


os.register_at_fork(after_in_child=_Runtime.after_fork)


def use_obstore(file: str) -> None:
    """Note that this process uses obstore, for `file`; `StorageError` where it cannot."""
    if _Runtime.lost:
        raise StorageError(
            "obstore was used before this process was forked, and cannot be used here: write, and "
            "list files, from a process that is spawned",
            file=file,
        )
    _Runtime.used = True


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

    `quiet` reads without obstore: in a forked child of a process that has used obstore, and in any
    process that has only looked so far, at less than 1 MiB of record files in all. So a
    process that opens datasets before it forks its workers leaves them obstore. obstore does not
    tell `Retry-After`.
    """

    def __init__(
        self,
        source: ObjectSource,
        shown: str,
        *,
        quiet: RequestReader | None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        self.source, self._shown, self._timeout = source, shown.rstrip("/"), timeout
        self._quiet = quiet
        self._clients = Clients(source, timeout)
        self._tags: dict[str, str] = {}
        self._looked = 0  # bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.source, self._shown, self._quiet, self._timeout)

    def __repr__(self) -> str:
        return f"ObstoreReader({self._shown!r})"

    def size(self, path: str) -> int:
        check_path(path)
        self._tags.pop(path, None)
        quiet = self._quiet_for(path, 0)
        if quiet is not None:
            return quiet.size(path)
        file = f"{self._shown}/{path}"
        try:
            answer = self._get(file, path, {"head": True})
        except NotFoundError:
            answer = None
        if answer is None:
            # Reading says whether it is the container that is not there.
            self._get(file, path, {"range": (0, 1)})
            answer = self._get(file, path, {"head": True})  # now it is there
        return int(answer.meta["size"])

    def read(self, path: str, request: Request) -> None:
        item, views = request
        quiet = self._quiet_for(path, item.length)
        if quiet is not None:
            quiet.read(path, request)
            return
        file = f"{self._shown}/{path}"
        options: dict[str, Any] = {"range": (item.start, item.stop)}
        tag = self._tags.get(path)
        if tag is not None:
            options["if_match"] = tag
        got = 0
        answer = self._get(file, path, options)
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
        quiet = self._quiet_for(path, 0)
        if quiet is not None:
            return quiet.read_whole(path, limit)
        file = f"{self._shown}/{path}"
        return whole_of(self._get(file, path, {}), file, limit)

    def close(self) -> None:
        if self._quiet is not None:
            self._quiet.close()
        self._clients.close()

    def _quiet_for(self, path: str, nbytes: int) -> RequestReader | None:
        """The reader without obstore, where that is the one to use."""
        quiet = self._quiet
        if _Runtime.lost:
            if quiet is None:
                raise LocationError(
                    "obstore was used before this process was forked, and cannot be used here",
                    file=self._shown,
                    expected='workers that are not forked (multiprocessing_context="forkserver"), '
                    f"or without obstore: {self.source.without_obstore}",
                )
            if not _Runtime.told:
                _Runtime.told = True
                _logger.warning(
                    "%s: read without obstore, which was used before this process was forked; "
                    'workers with multiprocessing_context="forkserver" have it',
                    self._shown,
                )
            return quiet
        if quiet is None or _Runtime.is_wanted():
            return None
        if path.startswith(_RECORDS):
            self._looked += nbytes
            if self._looked >= _SMALL_BYTES:
                return None
        return quiet

    def _get(self, file: str, path: str, options: dict[str, Any]) -> Any:
        """The answer, or `None` where it is of another range than asked."""
        _Runtime.used = True

        def get(store: Any) -> Any:
            import obstore

            key = self.source.key(path)
            try:
                return obstore.get(store, key, options=options)  # type: ignore[arg-type]
            except Exception as error:
                text = str(error)
                if type(error).__name__ == "PreconditionError":
                    self._tags.pop(path, None)
                    said = "the file was replaced while it was read: open the dataset again"
                elif any(mark in text for mark in _WHOLE):
                    said = (
                        "the server does not answer ranges (206 and Content-Range): "
                        "it would send whole files"
                    )
                elif any(mark in text for mark in _OTHER_RANGE):
                    return None
                else:
                    raise
            raise StorageError(said, file=file)

        return self._clients.ask(file, get)


def _rebuild(
    source: ObjectSource, shown: str, quiet: RequestReader | None, timeout: float
) -> ObstoreReader:
    return ObstoreReader(source, shown, quiet=quiet, timeout=timeout)
