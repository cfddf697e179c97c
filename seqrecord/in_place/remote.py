"""Remote originals: listings, and block-wise reading of files.

Nothing is written to a disk, except for libraries that read local files only: see
`RemoteFiles.local_copy`.

Sources name originals by paths. `az://container/set/…` becomes the path `az:HASH/container/set/…`,
which exists on no disk, with a hash of account and endpoint. `in_place.files` passes such
paths to the `RemoteFiles` object of this process that has the path's root. So all sources read URLs
like local files.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from seqrecord.errors import LocationError, NotFoundError, SeqRecordError, StorageError
from seqrecord.store.checksum import Buffer
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.storage.base import Entry, Storage, entries_of
from seqrecord.store.storage.opening import StorageLike
from seqrecord.store.storage.ranges import ByteRange

BLOCK_BYTES = 4 << 20
MAX_BLOCKS = 8
"""Blocks cached per open file: 32 MiB. As many are cached for closed files, if the storage never
replaces files."""

_READ_AT_ONCE = 4  # blocks per request if a file is read sequentially
_MAX_LISTINGS = 64  # cached folder listings

_files_by_root: dict[Path, list[weakref.ref[RemoteFiles]]] = {}
_lock = PerProcess(threading.Lock)


class RemoteFiles:
    """The files below a URL. Pickles contain the storage with its credentials.

    `root` is the path by which sources name the URL itself.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        scheme, _, path = storage.url.partition("://")
        # A hash of account and endpoint, since a URL does not have them.
        # tests/in_place/test_references.py::test_two_accounts_with_one_url_do_not_meet
        place = hashlib.sha256(storage.place.encode()).hexdigest()[:12]
        self.root = Path(f"{scheme}:{place}", path.strip("/"))
        self.failure: StorageError | None = None  # the last failed request
        self._listings: OrderedDict[str, dict[str, Entry]] = OrderedDict()
        self._unlisted: dict[str, Entry] = {}  # files of a storage without listings
        self._copy: LocalCopy | None = None
        self._blocks: OrderedDict[tuple[str, int], memoryview] = OrderedDict()  # of closed files
        with _lock.get():
            for root in [*_files_by_root]:
                _files_by_root[root] = [
                    reference for reference in _files_by_root[root] if reference() is not None
                ]
                if not _files_by_root[root]:
                    del _files_by_root[root]
            _files_by_root.setdefault(self.root, []).append(weakref.ref(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFiles, (self.storage,)

    def entry(self, path: Path) -> Entry | None:
        """Return the file or folder at a path, or `None`."""
        name = self.name_of(path)
        if not name:
            return Entry("", is_folder=True) if self.listing(path) else None
        try:
            return self.listing(path.parent).get(path.name)
        except LocationError:  # listing is not supported; the file may exist
            # Asked once: a request for the size forgets the version that reads must have.
            if name not in self._unlisted:
                try:
                    size = self.attempt(lambda: self.storage.size(name))
                except NotFoundError:
                    return None
                self._unlisted[name] = Entry(path.name, False, size)
            return self._unlisted[name]

    def listing(self, folder: Path) -> dict[str, Entry]:
        """Return a folder's entries by name; empty if it does not exist."""
        name = self.name_of(folder)
        if name not in self._listings:
            entries = self.attempt(lambda: entries_of(self.storage, name))
            self._listings[name] = {entry.name: entry for entry in entries}
            if len(self._listings) > _MAX_LISTINGS:
                self._listings.popitem(last=False)
        self._listings.move_to_end(name)
        return self._listings[name]

    def open(self, path: Path) -> RemoteFile:
        """Open a file. Raises `FileNotFoundError` if it does not exist."""
        entry = self.entry(path)
        if entry is None or entry.is_folder:
            raise FileNotFoundError(2, "no such file", str(path))
        return RemoteFile(self, self.name_of(path), entry.size)

    def local_copy(self, path: Path) -> LocalCopy:
        """Copy a file to a temporary local file. Only the last copy is kept.

        Raises `FileNotFoundError` for a missing file and `StorageError` for a full disk.
        """
        if self._copy is None or self._copy.original != path:
            self._copy = None  # frees its disk space first
            with self.open(path) as file:
                self._copy = LocalCopy(path, file)
        return self._copy

    def read(self, name: str, ranges: list[ByteRange], views: list[memoryview]) -> None:
        """Read ranges like `Storage.read_ranges`."""
        self.attempt(lambda: self.storage.read_ranges(name, ranges, views))

    def cache_blocks(self, name: str, blocks: Mapping[int, memoryview]) -> None:
        """Cache blocks of a closed file: headers are often read again.

        Takes no lock: a garbage collection in any thread may close a file.
        """
        # tests/in_place/test_references.py::test_garbage_files_are_closed_during_a_lookup
        if getattr(self.storage, "fixed_url", None) is not None:
            for number, data in blocks.items():
                self._blocks[name, number] = data
            while len(self._blocks) > MAX_BLOCKS:
                self._blocks.popitem(last=False)

    def cached_block(self, name: str, number: int) -> memoryview | None:
        """Return a cached block of a closed file."""
        return self._blocks.get((name, number))

    def attempt(self, request: Callable[[], Any]) -> Any:
        """Run a request and record its failure, since libraries replace errors by their own.

        A missing file is no failure.
        """
        try:
            return request()
        except (NotFoundError, LocationError):
            raise
        except StorageError as error:
            self.failure = error
            raise

    def name_of(self, path: Path) -> str:
        """Return the path relative to the URL, as `storage` expects it; "" for the URL itself."""
        name = path.relative_to(self.root).as_posix()
        return "" if name == "." else name


class RemoteFile(io.RawIOBase):
    """A file read in blocks; the last ones are kept in memory, 32 MiB at most.

    Sequential reading requests four blocks at once. Not thread-safe.
    """

    def __init__(self, files: RemoteFiles, name: str, size: int) -> None:
        super().__init__()
        self._files, self._name, self._size = files, name, size
        self._position, self._next = 0, 0  # position; the block after the last one received
        self._blocks: OrderedDict[int, memoryview] = OrderedDict()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise OSError(22, "negative file position")
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        num_read = 0
        while num_read < len(view) and self._position < self._size:
            number, offset = divmod(self._position, BLOCK_BYTES)
            part = self._block(number)[offset : offset + len(view) - num_read]
            view[num_read : num_read + len(part)] = part
            num_read += len(part)
            self._position += len(part)
        return num_read

    def readall(self) -> bytes:
        data = bytearray(max(self._size - self._position, 0))
        return bytes(memoryview(data)[: self.readinto(data)])

    def close(self) -> None:
        self._files.cache_blocks(self._name, self._blocks)
        self._blocks = OrderedDict()
        super().close()

    def _block(self, number: int) -> Buffer:
        if number not in self._blocks and (
            closed_block := self._files.cached_block(self._name, number)
        ):
            self._blocks[number] = closed_block
        if number not in self._blocks:
            count = _READ_AT_ONCE if number == self._next and number else 1
            count = min(count, -(-self._size // BLOCK_BYTES) - number)
            starts = [(number + i) * BLOCK_BYTES for i in range(count)]
            ranges = [ByteRange(at, min(at + BLOCK_BYTES, self._size)) for at in starts]
            blocks = [memoryview(bytearray(block_range.length)) for block_range in ranges]
            self._files.read(self._name, ranges, blocks)
            self._blocks.update(zip(range(number, number + count), blocks, strict=True))
            self._next = number + count
            while len(self._blocks) > MAX_BLOCKS:
                self._blocks.popitem(last=False)
        return self._blocks[number]


def remote_files(path: Path) -> RemoteFiles | None:
    """Return the `RemoteFiles` of a path, or `None` for local paths."""
    if path.is_absolute() or not _files_by_root:
        return None
    with _lock.get():
        for root, references in _files_by_root.items():
            if path.is_relative_to(root):
                for reference in reversed(references):
                    if (files := reference()) is not None:
                        return files
    return None


class LocalCopy:
    """A temporary local copy of `file`, removed with this object.

    Raises `StorageError` if the folder for temporary files is full.
    """

    def __init__(self, original: Path, file: io.RawIOBase) -> None:
        self.original = original
        folder, size = tempfile.gettempdir(), file.seek(0, io.SEEK_END)
        file.seek(0)
        try:
            if (free := shutil.disk_usage(folder).free) < size:
                raise OSError(f"{free} bytes free")
            copy = tempfile.NamedTemporaryFile(  # noqa: SIM115 - closed with this object
                prefix="seqrecord-", suffix=original.suffix, buffering=0
            )
            self.path = Path(copy.name)
            weakref.finalize(self, copy.close)
            shutil.copyfileobj(file, copy, BLOCK_BYTES)
        except SeqRecordError:  # failed to read the original
            raise
        except OSError as error:
            raise StorageError(
                "cannot copy the remote file to the temporary folder; set TMPDIR to another",
                file=folder,
                expected=f"{size} bytes free",
                got=error.strerror or str(error),
            ) from error


def is_url(path: StorageLike) -> TypeGuard[str]:
    """Return whether `path` is the text of a URL other than `file://`."""
    return isinstance(path, str) and "://" in path and not path.lower().startswith("file://")
