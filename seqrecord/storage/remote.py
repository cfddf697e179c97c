"""Files of any filesystem that fsspec knows: hf, memory, …; and the writing half of S3 and GCS."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import fsspec
from fsspec.registry import known_implementations

from seqrecord.checksum import Buffer
from seqrecord.errors import DestinationError, LocationError, NotFoundError, StorageError
from seqrecord.ranges import ByteRange
from seqrecord.storage.base import (
    CutUpload,
    FileInfo,
    Lock,
    RangeReader,
    Unfinished,
    Upload,
    check_path,
)
from seqrecord.storage.failures import call
from seqrecord.storage.fsspec_reader import FsspecReader
from seqrecord.storage.per_process import PerProcess
from seqrecord.storage.redaction import redact_logs

__all__ = ["FsspecStorage"]

_PARTIAL = ".partial"
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "oci", "oss"})


class FsspecStorage:
    """Storage below a path of an fsspec filesystem.

    The filesystem is made when it is first used, in each process anew: no client survives a fork.
    `make` makes it where it is not fsspec's own of the protocol, with `options`; `reader` reads
    where it is not the filesystem that does.
    An object store shows a file when its upload is closed; elsewhere a file gets another name while
    it is written. Nothing unfinished is kept, and there is no lock.
    """

    def __init__(
        self,
        protocol: str,
        root: str,
        *,
        shown: str,
        options: Mapping[str, Any] | None = None,
        make: Callable[[], Any] | None = None,
        reader: RangeReader | None = None,
    ) -> None:
        redact_logs()
        self._protocol = protocol
        self._root = root.rstrip("/")
        self._shown_root = shown.rstrip("/")
        self._make = make or partial(_filesystem, protocol, self._shown_root, dict(options or {}))
        self._reader = reader or FsspecReader(self._make, self._root, self._shown_root)
        self._filesystems = (
            self._reader.filesystems
            if isinstance(self._reader, FsspecReader)
            else PerProcess(partial(call, self._shown_root, self._make))
        )
        self._uploads: set[_FsspecUpload] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        given = (self._protocol, self._root, self._shown_root, self._make, self._reader)
        return _rebuild, given

    def __repr__(self) -> str:
        return f"FsspecStorage({self._shown_root!r})"

    @property
    def url(self) -> str:
        return self._shown_root

    def size(self, path: str) -> int:
        return self._reader.size(check_path(path))

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
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
        upload = _FsspecUpload(
            path,
            self._filesystems.get(),
            self._full(path),
            self._shown(path),
            replace=replace,
            renamed=self._protocol not in _OBJECT_STORES,
            ended=self._uploads.discard,
        )
        self._uploads.add(upload)
        return upload

    def list_files(self, folder: str) -> list[str]:
        fs, full = self._filesystems.get(), self._full(folder)

        def ls() -> list[dict[str, Any]]:
            fs.invalidate_cache(full)
            try:
                return list(fs.ls(full, detail=True))
            except FileNotFoundError:
                return []

        entries = call(self._shown(folder), ls)
        names = [entry["name"].rsplit("/", 1)[-1] for entry in entries if entry["type"] == "file"]
        return sorted(
            f"{folder}/{name}"
            for name in names
            if not name.endswith(_PARTIAL) and not name.startswith(".")
        )

    def remove(self, path: str) -> None:
        with contextlib.suppress(NotFoundError):
            call(self._shown(path), self._filesystems.get().rm_file, self._full(path))

    def interrupted(self, folder: str) -> list[str]:
        check_path(folder)
        return []

    def reopen(self, path: str) -> CutUpload:
        raise NotFoundError("no interrupted upload", file=self._shown(path))

    def lock(self) -> Lock:
        return _NoLock()

    def local_path(self, path: str) -> str | None:
        check_path(path)
        return None

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        for upload in list(self._uploads):
            upload.abort()
        self._filesystems.take()
        self._reader.close()

    def _full(self, path: str) -> str:
        return f"{self._root}/{check_path(path)}"

    def _shown(self, path: str) -> str:
        return f"{self._shown_root}/{path}"


class _FsspecUpload:
    """An upload that goes nowhere after its first failure: what is sent cannot be taken back."""

    def __init__(
        self,
        path: str,
        fs: Any,
        full: str,
        shown: str,
        *,
        replace: bool,
        renamed: bool,
        ended: Callable[[_FsspecUpload], None],
    ) -> None:
        self.path = path
        self._fs = fs
        self._full = full
        self._target = full + _PARTIAL if renamed else full
        self._shown = shown
        self._replace = replace
        self._ended = ended
        self._size = 0
        self._open = True
        call(shown, fs.makedirs, full.rpartition("/")[0], exist_ok=True)
        self._file = call(shown, fs.open, self._target, "wb")

    def write(self, data: Buffer) -> None:
        self._check_open()
        view = memoryview(data).cast("B")
        try:
            call(self._shown, self._file.write, view)
        except BaseException:
            self.abort()
            raise
        self._size += len(view)

    def tell(self) -> int:
        return self._size

    def checkpoint(self, note: bytes) -> None:
        pass

    def rewind(self, offset: int) -> bool:  # noqa: ARG002 - what is sent is sent
        return False

    def commit(self) -> None:
        self._check_open()
        try:
            if not self._replace and call(self._shown, self._fs.exists, self._full):
                raise DestinationError("the file exists already", file=self._shown)
            call(self._shown, self._file.close)
            if self._target != self._full:
                call(self._shown, self._fs.mv, self._target, self._full)
        except BaseException:
            self.abort()
            raise
        self._end()

    def abort(self) -> None:
        if not self._open:
            return
        self._end()
        with contextlib.suppress(Exception):  # whatever it is, the upload is given up
            self._file.discard()
        with contextlib.suppress(Exception):
            # An fsspec file uploads when it is closed, and closes itself when it is collected.
            self._file.closed = True
        if self._target != self._full:
            with contextlib.suppress(Exception):
                self._fs.rm_file(self._target)

    def _end(self) -> None:
        self._open = False
        self._ended(self)

    def _check_open(self) -> None:
        if not self._open:
            raise StorageError("the upload is closed", file=self._shown)


class _NoLock:
    def release(self) -> None:
        pass


def _filesystem(protocol: str, shown: str, options: Mapping[str, Any]) -> Any:
    try:
        kind = fsspec.get_filesystem_class(protocol)
    except ValueError:
        raise LocationError("no known kind of URL", file=shown, got=f"{protocol}://") from None
    except ImportError:
        needed = known_implementations.get(protocol, {}).get("err", "")
        raise LocationError(
            f"a package is missing for {protocol}://: {needed}", file=shown
        ) from None
    # Not the cached instance, which would be another one in every thread.
    return kind(skip_instance_cache=True, **options)


def _rebuild(
    protocol: str, root: str, shown: str, make: Callable[[], Any], reader: RangeReader
) -> FsspecStorage:
    return FsspecStorage(protocol, root, shown=shown, make=make, reader=reader)
