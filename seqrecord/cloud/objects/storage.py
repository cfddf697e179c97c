"""Storage in an object store: read with urllib3 or fsspec, written and listed with obstore."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from seqrecord.cloud.clients import Clients
from seqrecord.cloud.failures import call
from seqrecord.cloud.objects.bucket import Bucket
from seqrecord.cloud.requests import TIMEOUT_SECONDS, FsspecReader
from seqrecord.cloud.retrying import Retrier, put_once
from seqrecord.cloud.uploads import Content
from seqrecord.cloud.whole import Pieces, WholeFileStorage, files_of
from seqrecord.errors import (
    ConflictError,
    DestinationError,
    LocationError,
    NotFoundError,
    TransientError,
)
from seqrecord.store.storage.base import (
    MAX_PUT_BYTES,
    Entry,
    FileInfo,
    Upload,
    check_path,
    digest_of,
    too_large,
)

_CONCURRENT_PIECES = 4  # concurrent pieces, so 80 MiB of memory per file
_UPLOAD_TIMEOUT_FACTOR = (
    5  # factor of the timeout for uploads, whose concurrent pieces share the bandwidth
)


class ObjectStorage(WholeFileStorage):
    """Storage below a path of a bucket or container.

    `reader` reads. Everything else requires obstore, which does not work in a forked child after
    its parent used obstore; there, writing raises `StorageError`. Uploads retry their requests with
    `retrier`; for other requests, wrap this in `RetryingStorage`. Pickles contain the credential.
    """

    refusal = "a web server cannot list or write files"
    piece_bytes = 16 << 20  # one request
    max_pieces = 10_000  # limit of S3; Azure's is 50,000

    def __init__(
        self,
        bucket: Bucket,
        reader: FsspecReader,
        shown: str,
        *,
        timeout: float = TIMEOUT_SECONDS,
        retrier: Retrier | None = None,
    ) -> None:
        super().__init__(reader, shown, retrier)
        self.bucket = bucket

        def clients(seconds: float, retrier: Retrier | None = None) -> Clients:
            make = partial(bucket.client, seconds, retrier)
            return Clients(make, is_reread=bucket.is_reread)

        self._clients = clients(timeout)
        # The server responds to an upload only after its last byte.
        self._senders = clients(timeout * _UPLOAD_TIMEOUT_FACTOR)
        # obstore repeats pieces; our own retries would begin the file again. See
        # tests/cloud/test_service_faults.py::test_uploads_survive_a_fault_of_any_request.
        # With retries: else one failed request would discard the whole upload of a long file.
        self._repeaters = clients(timeout * _UPLOAD_TIMEOUT_FACTOR, self.retrier)

    @property
    def place(self) -> str:
        return self.bucket.place

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        check_path(path)
        if expected is None:
            self._put(path, data, "create")
            return
        file, key = self.shown(path), self.bucket.key(path)
        try:
            answer = self._ask(path, lambda store: store.get(key))
            if digest_of(_content_of(answer, file, MAX_PUT_BYTES)) == expected:
                meta = answer.meta
                version = {n: meta[n] for n in ("e_tag", "version") if meta.get(n) is not None}
                self._put(path, data, version)
                return
        except NotFoundError as error:
            if error.message != "no such file":  # for example a missing bucket
                raise
        raise ConflictError("another writer has replaced or removed it", file=file)

    def identity(self, path: str) -> tuple[int, str | None]:
        """Size and e-tag; see `identity_of`. From the reader if it has e-tags: in a forked process
        obstore cannot be used, and web servers have no other client.

        Later reads fail if the file is replaced meanwhile.
        """
        size, version = self._reader.size_and_version(check_path(path))
        self.bucket.versions[self._reader.full(path)] = version
        if version.strong_tag is not None:
            return size, version.strong_tag.strip('"')
        if not self.bucket.is_writable:
            return size, None
        key = self.bucket.key(path)
        meta = self._ask(path, lambda store: store.head(key))
        return int(meta["size"]), _identity(meta)

    def create(self, path: str) -> Upload:
        self._check_writable(path)
        return super().create(path)

    def close(self) -> None:
        super().close()
        for clients in (self._clients, self._senders, self._repeaters):
            clients.close()

    def send(self, path: str, content: Content) -> None:
        if content.size > self.piece_bytes:
            super().send(path, content)
            return
        data = content.read(0, content.size)
        self.retried(path, lambda: put_once(self, path, data, expected=None))

    def upload(self, path: str, pieces: Pieces) -> None:
        """Upload pieces; obstore aborts and removes a failed upload."""
        key = self.bucket.key(path)

        def put(store: Any) -> None:
            store.put(key, pieces, chunk_size=pieces.length, max_concurrency=_CONCURRENT_PIECES)

        self._ask(path, put, self._repeaters)

    def _put(self, path: str, data: bytes, mode: Any) -> None:
        """One attempt to write an object; raises `ConflictError` if `mode` forbids it."""
        key = self.bucket.key(path)

        def put(store: Any) -> None:
            store.put(key, data, mode=mode, use_multipart=False)

        self._ask(path, put, self._senders)

    def delete(self, path: str) -> None:
        key = self.bucket.key(path)
        with suppress(NotFoundError):
            self._ask(path, lambda store: store.delete(key))

    def listed(self, folder: str) -> list[FileInfo]:
        """Sorted files in a folder, without folder markers."""
        prefix = self.bucket.key(check_path(folder)) + "/"

        listing = self._ask(folder, lambda store: store.list_with_delimiter(prefix))
        markers = {name.rstrip("/") for name in listing["common_prefixes"]}
        return files_of(
            folder,
            (
                (meta["path"][len(prefix) :], meta["size"], meta["last_modified"].timestamp())
                for meta in listing["objects"]
                if meta["path"] not in markers
            ),
        )

    def entries(self, folder: str) -> list[Entry]:
        if not self.bucket.is_writable:
            raise LocationError("a web server cannot list files", file=self.url)
        path = check_path(folder) if folder else ""
        prefix = "/".join(part for part in (self.bucket.root, path) if part)
        prefix = f"{prefix}/" if prefix else ""
        listing = self._ask(folder or ".", lambda store: store.list_with_delimiter(prefix or None))
        folders = {
            folder_path[len(prefix) :].strip("/") for folder_path in listing["common_prefixes"]
        }
        files = {meta["path"][len(prefix) :]: meta for meta in listing["objects"]}
        return sorted(
            [
                *(Entry(name, is_folder=True) for name in folders),
                # A folder marker is an object named as the folder, with or without a slash.
                *(
                    Entry(name, False, meta["size"], _identity(meta))
                    for name, meta in files.items()
                    if name and name not in folders
                ),
            ],
            key=lambda entry: entry.name,
        )

    def _ask(
        self, path: str, function: Callable[[Any], Any], clients: Clients | None = None
    ) -> Any:
        """Call `function(store)`; errors become errors of this package."""
        self._check_writable(path)
        return (clients or self._clients).ask(self.shown(path), function)

    def _check_writable(self, path: str) -> None:
        if path != ".":
            check_path(path)
        if not self.bucket.is_writable:
            raise DestinationError(self.refusal, file=self.shown(path))


def _identity(meta: Mapping[str, Any]) -> str | None:
    """E-tag of an object, without the quotes that Azure adds in responses to HEAD only."""
    return (meta.get("e_tag") or "").strip('"') or None


def _content_of(answer: Any, file: str, limit: int) -> bytes:
    """Content of a response; raises `StorageError` above `limit` bytes, before reading."""
    size = int(answer.meta["size"])
    if size > limit:
        raise too_large(file, limit, size)
    data = bytes(call(file, answer.bytes))
    if len(data) != size:
        raise TransientError("an answer was cut", file=file, expected=size, got=len(data))
    return data
