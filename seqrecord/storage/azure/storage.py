"""Files of an Azure Blob container: read by one of several clients, written by Azure's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from seqrecord.errors import LocationError, NotFoundError
from seqrecord.ranges import ByteRange
from seqrecord.storage.azure.account import PARTIAL, AzureAccount
from seqrecord.storage.azure.lease import AzureLease
from seqrecord.storage.azure.upload import AzureUpload
from seqrecord.storage.base import (
    CutUpload,
    FileInfo,
    Lock,
    RangeReader,
    Unfinished,
    Upload,
    check_buffers,
    check_path,
)
from seqrecord.storage.failures import call
from seqrecord.storage.per_process import PerProcess
from seqrecord.storage.redaction import redact_logs
from seqrecord.storage.retrying import Retrier

__all__ = ["AzureStorage"]

_LOCK = ".lock"
_FOLDER = "hdi_isfolder"  # metadata of what stands for a folder in accounts that have them


class AzureStorage:
    """Storage below a path of a container.

    `reader` reads; all else needs azure-storage-blob, whose client is made when it is first needed,
    in each process anew. Uploads repeat their own requests, by `retrier`; the others are for a
    `RetryingStorage` around this one. Pickles hold the account's credential.
    """

    def __init__(
        self,
        account: AzureAccount,
        reader: RangeReader,
        shown: str,
        *,
        retrier: Retrier | None = None,
    ) -> None:
        redact_logs()
        self._account = account
        self._reader = reader
        self._url = shown.rstrip("/")
        self._retrier = retrier or Retrier()
        self._state = PerProcess(lambda: _State(account))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._account, self._reader, self._url, self._retrier)

    def __repr__(self) -> str:
        return f"AzureStorage({self._url!r}, {type(self._reader).__name__})"

    @property
    def url(self) -> str:
        return self._url

    def size(self, path: str) -> int:
        return self._reader.size(check_path(path))

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        check_path(path)
        check_buffers(ranges, buffers)
        self._reader.read_ranges(path, ranges, buffers)

    def read_whole(self, path: str, limit: int) -> tuple[bytes, str]:
        raise NotImplementedError

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        raise NotImplementedError

    def files(self, folder: str) -> list[FileInfo]:
        raise NotImplementedError

    def unfinished(self, folder: str) -> list[Unfinished]:
        raise NotImplementedError

    def create(self, path: str, *, replace: bool = False) -> Upload:
        state = self._state.get()
        state.check()
        upload = AzureUpload(
            path,
            self._blob(path),
            self._shown(path),
            replace=replace,
            retrier=self._retrier,
            check=state.check,
            ended=state.uploads.discard,
        )
        state.uploads.add(upload)
        return upload

    def list_files(self, folder: str) -> list[str]:
        return [path for path, unfinished in self._listed(folder) if not unfinished]

    def remove(self, path: str) -> None:
        blob = self._blob(path)
        self._state.get().check()
        with suppress(NotFoundError):
            call(self._shown(path), blob.delete_blob)

    def interrupted(self, folder: str) -> list[str]:
        return [path for path, unfinished in self._listed(folder) if unfinished]

    def reopen(self, path: str) -> CutUpload:
        state = self._state.get()
        state.check()
        upload = AzureUpload.reopened(
            path,
            self._blob(path),
            self._shown(path),
            retrier=self._retrier,
            check=state.check,
            ended=state.uploads.discard,
        )
        state.uploads.add(upload)
        return CutUpload(upload, path, upload.checkpoints())

    def lock(self) -> Lock:
        state = self._state.get()
        # A client of its own: it outlasts a `close`.
        client = self._account.container_client().get_blob_client(self._account.full(_LOCK))
        state.lease = AzureLease(client, self._url, self._retrier)
        return state.lease

    def local_path(self, path: str) -> str | None:
        check_path(path)
        return None

    def counters(self) -> dict[str, int]:
        return self._retrier.counters()

    def close(self) -> None:
        self._retrier.close()  # uploads that wait for a server that is gone
        self._state.get().close()
        self._reader.close()

    def _listed(self, folder: str) -> Iterator[tuple[str, bool]]:
        """Paths of blobs directly in a folder, sorted, and whether they are unfinished."""
        prefix = self._account.full(check_path(folder)) + "/"

        def walk() -> list[tuple[str, bool]]:
            client = self._state.get().client()
            found = client.walk_blobs(prefix, include=["metadata"], delimiter="/")
            return [
                (item.name[len(prefix) :], PARTIAL in item.metadata)
                for item in found
                # What has no metadata is a prefix: a folder.
                if getattr(item, "metadata", None) is not None and _FOLDER not in item.metadata
            ]

        for name, unfinished in sorted(call(self._shown(folder), walk)):
            if _is_clean(name) and not name.startswith("."):
                yield f"{folder}/{name}", unfinished

    def _blob(self, path: str) -> Any:
        name = self._account.full(check_path(path))
        return self._state.get().client().get_blob_client(name)

    def _shown(self, path: str) -> str:
        return f"{self._url}/{path}"


class _State:
    """What one process has: the client, open uploads and the writer's claim."""

    def __init__(self, account: AzureAccount) -> None:
        self._account = account
        self._client: Any = None
        self.uploads: set[AzureUpload] = set()
        self.lease: AzureLease | None = None

    def client(self) -> Any:
        # Without a lock: of two threads that come first together, one makes a client too many.
        client = self._client
        if client is None:
            client = self._client = self._account.container_client()
        return client

    def check(self) -> None:
        if self.lease is not None:
            self.lease.check()

    def close(self) -> None:
        for upload in list(self.uploads):
            upload.leave()
        self._client = None  # its connections end with the last thread that uses it


def _is_clean(name: str) -> bool:
    try:
        check_path(name)
    except LocationError:
        return False
    return True


def _rebuild(
    account: AzureAccount, reader: RangeReader, url: str, retrier: Retrier
) -> AzureStorage:
    return AzureStorage(account, reader, url, retrier=retrier)
