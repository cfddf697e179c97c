"""Reads what pages of a dataset refer to in files that are not its own.

A dataset may come from anyone, and to read it must not read files that its user does not mean. So
an external file is opened only where this user has made its list, or says where the original lies;
and only if it still has the size that it had when it was indexed, and is the same file as far as
its store tells.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import platformdirs

from seqrecord.errors import FormatError, NotFoundError, StorageError, located
from seqrecord.format.references import (
    EXTERNALS,
    MAX_LIST_BYTES,
    ExternalFile,
    ExternalList,
    Reference,
    list_path,
)
from seqrecord.storage import (
    Storage,
    StorageLike,
    expect_pages,
    identity_of,
    map_files,
    open_storage,
)
from seqrecord.storage.counting import Asked, CountingStorage
from seqrecord.storage.local_upload import local_errors
from seqrecord.storage.ranges import ByteRange


def home() -> Path:
    """The folder in which this user's indexes of originals are kept, and which lists are trusted.

    It is `SEQRECORD_HOME`, or `seqrecord` in the platform's folder of caches.
    """
    given = os.environ.get("SEQRECORD_HOME")
    return Path(given or platformdirs.user_cache_dir("seqrecord", appauthor=False)).absolute()


@contextmanager
def folder_of_home(name: str) -> Iterator[Path]:
    """A folder in `home`, made if none is there; what the system says of it in the block is a
    `StorageError`."""
    folder = home() / name
    with local_errors(str(folder), writing=True):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield folder


def trust(list_id: str) -> None:
    """This user has made the list of this id: the files that it names may be opened."""
    with folder_of_home("trusted") as folder:
        (folder / list_id).touch()


def is_trusted(list_id: str) -> bool:
    """Whether this user has made the list."""
    return (home() / "trusted" / list_id).is_file()


class ExternalFiles:
    """The files that pages of a dataset refer to. Safe to use from many threads, and picklable.

    Args:
        storage: the dataset's.
        originals: where the user says that all external files lie: a path or URL that takes the
            place of their root.
        options: of `open_storage`, for what serves them.
    """

    leaves_buffers = False
    """Whether nothing is read, see `CountedFiles`."""

    def __init__(
        self,
        storage: Storage,
        originals: StorageLike | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._storage, self._originals = storage, originals
        self._options = dict(options or {})
        self._lists: dict[str, ExternalList] = {}
        self._stores: dict[str, Storage] = {}  # by root
        self._seen: set[object] = set()  # hashes of files that are as they were indexed

    def __reduce__(self) -> tuple[Any, ...]:
        return ExternalFiles, (self._storage, self._originals, self._options)

    def read(self, reference: Reference, memory: npt.NDArray[np.uint8] | None = None) -> memoryview:
        """The bytes of the range that a page refers to, with `Reference.room` in front of them: in
        `memory`, where that is large enough.

        Raises `FormatError` for a list or a file that is not there, `StorageError` for an external
        file that may not be opened or has changed, and `NotFoundError` for one that is gone.
        """
        file = self.file_of(reference.list_id, reference.file)
        nbytes = reference.room + reference.length
        if memory is None or len(memory) < nbytes:
            memory = np.empty(nbytes, np.uint8)
        whole = memory[:nbytes].data
        data = whole[reference.room :]
        if reference.parts:
            self._read_parts(reference, file, data)
            return whole
        item = ByteRange(reference.start, reference.stop)
        if item.stop > file.size:
            raise FormatError(
                "a page that refers to bytes behind the end of a file",
                file=f"{file.root}/{file.path}",
                offset=item.start,
                expected=f"at most {file.size}",
                got=item.stop,
            )
        self._check(reference.list_id, file)
        ranges, buffers = [item], [data]
        if not reference.is_video:
            sizes = reference.sizes.tolist()
            starts = (reference.start + reference.offsets).tolist()
            ranges = [ByteRange(a, a + n) for a, n in zip(starts, sizes, strict=True)]
            buffers = [data[a:b] for a, b in pairwise(accumulate(sizes, initial=0))]
        self._store(file.root).read_ranges(file.path, ranges, buffers)
        return whole

    def _read_parts(self, reference: Reference, folder: ExternalFile, data: memoryview) -> None:
        """The files of a folder, one behind the other."""
        if folder.size:
            raise FormatError(
                "a page that refers to files in what is no folder",
                file=f"{folder.root}/{folder.path}",
            )
        above, root = f"{folder.path}/" if folder.path else "", folder.root
        wanted = {}
        spans = zip(reference.offsets.tolist(), reference.sizes.tolist(), strict=True)
        for part, (start, size) in zip(reference.parts, spans, strict=True):
            file = ExternalFile(root, above + part.name, size, part.identity)
            wanted[file.path] = file, data[start : start + size]
        self._check_allowed(reference.list_id, folder)
        store = self._store(root)

        def read(path: str) -> None:
            file, part = wanted[path]
            if store.local_path(path) is not None:
                self._check_same(file)
            elif hash(file) not in self._seen:  # a request: made once
                self._check_same(file)
                self._seen.add(hash(file))
            store.read_ranges(path, [ByteRange(0, file.size)], [part])

        map_files(store, read, wanted)

    def file_of(self, list_id: str, number: int) -> ExternalFile:
        """The file that pages refer to by the id of a list and a number in it."""
        files = self.list(list_id).files
        if number >= len(files):
            raise FormatError(
                "a page that refers to no file of its list",
                file=f"{self._storage.url}/{list_path(list_id)}",
                expected=f"below {len(files)}",
                got=number,
            )
        return files[number]

    def place_of(self, reference: Reference, offset: int = 0) -> dict[str, Any]:
        """File and offset, as errors name them, of what is at an offset in the page that holds
        what a page refers to; of video where the page's range begins."""
        file = self.file_of(reference.list_id, reference.file)
        shown, start = f"{self._store(file.root).url}/{file.path}", reference.start
        if not reference.is_video:
            ends = np.cumsum(reference.sizes)
            frame = int(np.searchsorted(ends[:-1], offset - reference.room, side="right"))
            start += int(reference.offsets[frame])
            if reference.parts:
                shown, start = f"{shown}/{reference.parts[frame].name}", 0
        return {"file": shown, "offset": start}

    def list(self, list_id: str) -> ExternalList:
        """A list of the dataset."""
        found = self._lists.get(list_id)
        if found is None:
            path = list_path(list_id)
            with located((FormatError, StorageError), file=f"{self._storage.url}/{path}"):
                data, _ = self._storage.read_whole(path, MAX_LIST_BYTES)
                found = ExternalList.parse(data, list_id)
            self._lists[list_id] = found
        return found

    def all_files(self) -> set[ExternalFile]:
        """The files of all lists that are there."""
        paths = (file.path for file in self._storage.files(EXTERNALS))
        found = [self.list(Path(path).stem) for path in paths if path.endswith(".json")]
        return {file for each in found for file in each.files}

    def are_remote(self) -> bool:
        """Whether any of them lies elsewhere than on a disk of this machine."""
        return any(store.local_path("any name") is None for store in self.storages())

    def storages(self) -> Sequence[Storage]:
        """What serves the files of all lists."""
        return [self._store(root) for root in {file.root for file in self.all_files()}]

    def _check(self, list_id: str, file: ExternalFile) -> None:
        """Raise `StorageError` unless a file may be opened, and is as it was indexed.

        It is looked at once.
        """
        if hash(file) not in self._seen:
            self._check_allowed(list_id, file)
            self._check_same(file)
            self._seen.add(hash(file))

    def _check_allowed(self, list_id: str, file: ExternalFile) -> None:
        """Raise `StorageError` unless what a list names may be opened."""
        if self._originals is None and not is_trusted(list_id):
            raise StorageError(
                "this dataset refers to files outside of it, and was not indexed by you on this "
                "machine: say with originals= where they lie",
                file=f"{self._storage.url}/{list_path(list_id)}",
                expected="originals=…, or an index that `seqrecord index` has made",
                got=file.root,
            )

    def _check_same(self, file: ExternalFile) -> None:
        """Raise `StorageError` unless a file is as it was indexed. Looks anew."""
        store = self._store(file.root)
        shown = f"{store.url}/{file.path}"
        try:
            size, identity = identity_of(store, file.path)
        except NotFoundError as error:
            raise NotFoundError(
                "a file of the original is gone", file=shown, expected=f"{file.size} bytes"
            ) from error
        # Of another place than it was indexed at, the store tells other things.
        moved = self._originals is not None or None in (identity, file.identity)
        if size != file.size or not (moved or identity == file.identity):
            raise StorageError(
                "a file of the original has changed since it was indexed; index it again",
                file=shown,
                expected=f"{file.size} bytes, {file.identity}",
                got=f"{size} bytes, {identity}",
            )

    def close(self) -> None:
        """Close the files; using them again opens them again."""
        stores, self._stores = self._stores, {}
        for store in stores.values():
            store.close()

    def _store(self, root: str) -> Storage:
        store = self._stores.get(root)
        if store is None:
            store = open_storage(self._originals or root, **self._options)
            expect_pages(store)
            store = self._stores.setdefault(root, store)
        return store


class CountedFiles(ExternalFiles):
    """Counts what would be asked for external files, of which nothing is read. Not picklable."""

    leaves_buffers = True

    def __init__(self, files: ExternalFiles, asked: Asked) -> None:
        super().__init__(files._storage, files._originals, files._options)
        self._asked, self._seen = asked, asked.seen

    def _check_same(self, file: ExternalFile) -> None:
        """A file is looked at with one request, which tells its address, too."""
        store = self._store(file.root)
        self._asked.requests += store.local_path("any name") is None
        self._asked.seen.add((store.place, file.path))

    def _store(self, root: str) -> Storage:
        store = super()._store(root)
        if not isinstance(store, CountingStorage):
            self._stores[root] = store = CountingStorage(store, self._asked)
        return store
