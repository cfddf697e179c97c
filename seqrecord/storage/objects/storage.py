"""Files of an object store: read by one of several clients, written and listed with obstore."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from seqrecord.errors import (
    ConflictError,
    DestinationError,
    NotFoundError,
    StorageError,
    TransientError,
)
from seqrecord.storage.base import FileInfo, Upload, check_path
from seqrecord.storage.conditional import put_once
from seqrecord.storage.objects.reader import use_obstore, whole_of
from seqrecord.storage.objects.source import Clients, ObjectSource
from seqrecord.storage.requests import TIMEOUT_SECONDS, RequestReader
from seqrecord.storage.retrying import Retrier
from seqrecord.storage.stopping import check_wanted
from seqrecord.storage.whole import MOST_BYTES, WholeFileStorage, is_listed, tag_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["ObjectStorage"]

PIECE_BYTES = 16 << 20  # of a file that is sent: one request
_MOST_PIECES = 10_000  # S3 takes no more; Azure 50,000
_AT_ONCE = 4  # pieces under way, so 80 MiB of memory
_SLOWER = 5  # times the timeout of other requests: so many pieces share the way up

_REFUSED = ("AlreadyExistsError", "PreconditionError")
_AT_THE_SAME_TIME = "ConditionalRequestConflict"  # of S3, which has put neither then

_T = TypeVar("_T")


class ObjectStorage(WholeFileStorage):
    """Storage below a path of a bucket or container.

    `reader` reads; all else needs obstore, whose clients are made when they are first needed, in
    each process anew. obstore works in no forked child of a process that has used it: there writing
    is a `StorageError`. Uploads repeat their own requests, by `retrier`; the others are for a
    `RetryingStorage` around this one. Pickles hold the store's credential.

    A web server (`is_web`) is only read.
    """

    def __init__(
        self,
        source: ObjectSource,
        reader: RequestReader,
        shown: str,
        *,
        timeout: float = TIMEOUT_SECONDS,
        retrier: Retrier | None = None,
        is_web: bool = False,
    ) -> None:
        super().__init__(reader, shown, retrier)
        self._source, self._timeout, self._is_web = source, timeout, is_web
        self._clients = Clients(source, timeout)
        # Of what is sent no byte is answered until all of it is there.
        self._senders = Clients(source, timeout * _SLOWER)
        # Or one request that fails would cost all that was sent of a long file.
        self._repeaters = Clients(source, timeout * _SLOWER, self._retrier.deadline)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (
            *(self._source, self._reader, self._url),
            *(self._timeout, self._retrier, self._is_web),
        )

    @property
    def place(self) -> str:
        return self._source.place

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        self._check_written(path)
        file, key = self.shown(path), self._source.key(path)
        if expected is None:
            self._stored(path, data, "create")
            return
        try:
            answer = self._ask(path, lambda obstore, store: obstore.get(store, key))
            if tag_of(whole_of(answer, file, MOST_BYTES)) == expected:
                meta = answer.meta
                version = {n: meta[n] for n in ("e_tag", "version") if meta.get(n) is not None}
                self._stored(path, data, version)
                return
        except NotFoundError as error:
            if error.message != "no such file":  # but no such bucket
                raise
        raise ConflictError("another writer has replaced or removed it", file=file)

    def create(self, path: str) -> Upload:
        self._check_written(path)
        return super().create(path)

    def remove(self, path: str) -> None:
        self._check_written(path)
        super().remove(path)

    def close(self) -> None:
        super().close()
        self._clients.close()
        self._senders.close()
        self._repeaters.close()

    def _check_written(self, path: str) -> None:
        check_path(path)
        if self._is_web:
            raise DestinationError("a web server cannot be written to", file=self.shown(path))

    def send(self, path: str, read: Callable[[int, int], bytes], size: int) -> None:
        """Store a new file, whose name nobody else uses, once, however often it is sent."""
        if size <= PIECE_BYTES:
            data = read(0, size)
            self.retried(path, lambda: put_once(self, path, data, expected=None))
            return
        tried = False

        def attempt() -> None:
            nonlocal tried
            found = self._size(path)
            if found is not None and not (tried and found == size):
                raise DestinationError("the file exists already", file=self.shown(path))
            if found == size:
                return
            tried = True
            try:
                self._stored(path, _Pieces(self.shown(path), read, size), "overwrite")
            except StorageError:
                if self._size(path) != size:
                    raise
                return  # the answer was lost
            if (found := self._size(path)) != size:
                raise StorageError(
                    "a file was stored at another length",
                    file=self.shown(path),
                    expected=size,
                    got=found,
                )

        self.retried(path, attempt)

    def overwrite(self, path: str, data: bytes) -> None:
        self._stored(path, data, "overwrite")

    def _stored(self, path: str, data: bytes | _Pieces, mode: Any) -> None:
        """One attempt to put an object in place; `ConflictError` where `mode` forbids it.

        Of several pieces nothing is left where it fails: obstore aborts the upload.
        """

        key = self._source.key(path)

        def put(obstore: Any, store: ObjectStore) -> None:
            try:
                if isinstance(data, bytes):
                    obstore.put(store, key, data, mode=mode, use_multipart=False)
                else:
                    length = data.length
                    obstore.put(store, key, data, chunk_size=length, max_concurrency=_AT_ONCE)
                return
            except Exception as error:
                if mode == "overwrite" or type(error).__name__ not in _REFUSED:
                    raise
                at_once = _AT_THE_SAME_TIME in str(error)
            if at_once:
                raise TransientError("another put came at the same time", file=self.shown(path))
            raise ConflictError(
                "the file exists already" if mode == "create" else "another writer replaced it",
                file=self.shown(path),
            )

        self._ask(path, put, self._senders if isinstance(data, bytes) else self._repeaters)

    def _size(self, path: str) -> int | None:
        key = self._source.key(path)
        with suppress(NotFoundError):
            return int(self._ask(path, lambda obstore, store: obstore.head(store, key))["size"])
        return None

    def delete(self, path: str) -> None:
        key = self._source.key(path)
        with suppress(NotFoundError):
            self._ask(path, lambda obstore, store: obstore.delete(store, key))

    def listed(self, folder: str, *, deep: bool) -> list[FileInfo]:
        """Files in a folder, sorted, without what stands for a folder; with `deep` below it too."""
        prefix = self._source.key(check_path(folder)) + "/"
        if self._is_web:
            raise StorageError(
                "a web server does not list its files, and cannot be written to",
                file=self.shown(folder),
            )

        def listed(obstore: Any, store: ObjectStore) -> tuple[Sequence[Any], Sequence[str]]:
            if deep:
                return obstore.list(store, prefix, chunk_size=1000).collect(), ()
            found = obstore.list_with_delimiter(store, prefix)
            return found["objects"], found["common_prefixes"]

        objects, folders = self._ask(folder, listed)
        markers = {name.rstrip("/") for name in folders}
        return sorted(
            (
                FileInfo(
                    f"{folder}/{item['path'][len(prefix) :]}",
                    int(item["size"]),
                    item["last_modified"].timestamp(),
                )
                for item in objects
                if item["path"] not in markers and is_listed(item["path"][len(prefix) :])
            ),
            key=lambda file: file.path,
        )

    def _ask(
        self,
        path: str,
        function: Callable[[Any, ObjectStore], _T],
        clients: Clients | None = None,
    ) -> _T:
        """`function(obstore, store)`, its errors as ours."""
        file = self.shown(path)
        use_obstore(file)

        def ask(store: ObjectStore) -> _T:
            import obstore

            return function(obstore, store)

        return (clients or self._clients).ask(file, ask)


class _Pieces:
    """A file in pieces of `length` bytes, each read when it is due: there obstore can be ended."""

    def __init__(self, file: str, read: Callable[[int, int], bytes], size: int) -> None:
        self._file, self._read, self._size = file, read, size
        self.length = max(PIECE_BYTES, -(-size // _MOST_PIECES))

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, self._size, self.length):
            check_wanted(self._file)
            yield self._read(start, min(start + self.length, self._size))


def _rebuild(
    source: ObjectSource,
    reader: RequestReader,
    url: str,
    timeout: float,
    retrier: Retrier,
    is_web: bool,
) -> ObjectStorage:
    return ObjectStorage(source, reader, url, timeout=timeout, retrier=retrier, is_web=is_web)
