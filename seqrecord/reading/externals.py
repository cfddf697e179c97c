"""Reads the external files that a dataset's pages refer to.

Datasets may come from untrusted people and must not make a user's process read arbitrary files. An
external file is opened only if this user made its list, or passed the original's location. Its
size, and its identity if the store reports one, must be the same as when indexed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.checksum import crc32c
from seqrecord.errors import (
    ClipError,
    FormatError,
    NotFoundError,
    StorageError,
    located,
)
from seqrecord.format.references import (
    EXTERNALS,
    MAX_LIST_BYTES,
    ExternalFile,
    ExternalList,
    Reference,
    Sample,
    list_path,
    sampled_ranges,
)
from seqrecord.reading.home import is_settled, is_trusted, settle
from seqrecord.storage import (
    Storage,
    StorageLike,
    fixed_url_of,
    follow_links,
    identities_of,
    identity_of,
    map_files,
    modified_ns,
    new_since,
    open_storage,
    reads_commit,
)
from seqrecord.storage.ranges import ByteRange
from seqrecord.storage.url import without_commit
from seqrecord.text import repr_of

Originals: TypeAlias = "StorageLike | Mapping[str, StorageLike] | None"

FileState: TypeAlias = tuple[int, int, int]

_logger = logging.getLogger("seqrecord")

_BLOCK = 1 << 20
_AGAIN = "index it again (`seqrecord index SRC -o DST`)"
_PLACE = "give the place of the same original as originals="
_checked: set[object] = set()  # roots on remote stores already checked by this process


class ExternalFiles:
    """The external files of a dataset. Thread-safe and picklable.

    Args:
        storage: storage of the dataset.
        originals: present location of the external files: a path or URL in place of their root, or
            a dict from each old root to its new location.
        options: arguments of `open_storage` for the external files.
    """

    def __init__(
        self,
        storage: Storage,
        originals: Originals = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._storage, self._originals = storage, originals
        self._states: dict[ExternalFile, FileState] = {}  # local files
        self._paths: dict[ExternalFile, str | Path | None] = {}
        self._options = dict(options or {})
        self._lists: dict[str, ExternalList] = {}
        self._stores: dict[str, Storage] = {}  # by root
        self._seen: set[object] = set()  # hashes of unchanged files

    def __reduce__(self) -> tuple[Any, ...]:
        return ExternalFiles, (self._storage, self._originals, self._options)

    def check_open(self, copied: Sequence[str], *, always: bool = False) -> None:
        """Check external files when a dataset is opened; on remote stores once per process.

        Files in the lists `copied` must have the size and modification time or e-tag of their
        indexing; on the Hub the commit decides. Files moved to `originals` must have the same
        sizes, and samples the same checksums. Files that this user neither indexed nor located are
        skipped, with a warning. `always` repeats checks of remote stores.

        Raises `ClipError` if `originals` does not match the roots, `StorageError` for a changed
        file, and `NotFoundError` for a missing one, both with the remedy.
        """
        lists = {list_id: self.list(list_id) for list_id in copied}
        if self._originals is not None:
            lists |= {list_id: self.list(list_id) for list_id in self._list_ids()}
            self._check_roots(lists.values())
        for list_id, each in lists.items():
            for root in dict.fromkeys(file.root for file in each.files):
                if self._place_of(root) is None and not is_trusted(list_id):
                    _logger.warning(
                        "%s: copied values not compared with the original: the index was made by "
                        "another user, or on another machine; pass originals= to compare them",
                        self._storage.url,
                    )
                    return
                key = (self._storage.place, list_id, root, str(self._place_of(root)))
                if always or key not in _checked:
                    self._check_root(each, root)
                if "://" in self._store(root).url:  # listings of remote stores are requests
                    _checked.add(key)
        if lists and self._storage.local_path("any name") is not None:
            self.check_new()

    def check_new(self) -> None:
        """Compare files that were new when indexed with their checksums, until they are older.

        Raises `StorageError` for a file that was written again with the same size and time. Files
        with another size or time are skipped: reading them raises.
        """
        for list_id in self._list_ids():
            if is_settled(list_id) or not is_trusted(list_id):
                continue
            found, since, are_old = self.list(list_id), dict[str, int](), True
            for number, checksum in found.new:
                file = found.files[number]
                if file.root not in since:  # the clock is read before the files
                    since[file.root] = new_since(file.root)
                store, state = self._store(file.root), None
                with suppress(NotFoundError):
                    state = identity_of(store, file.path)
                if state == (file.size, file.identity):
                    self._check_checksum(store, file, checksum)
                    are_old &= (modified_ns(file.identity) or 0) < since[file.root]
            if are_old:
                settle(list_id)

    def _check_checksum(self, store: Storage, file: ExternalFile, checksum: int) -> None:
        starts = range(0, file.size, _BLOCK)
        value = _checksum(store, file.path, [[(n, min(n + _BLOCK, file.size))] for n in starts])
        if value != checksum:
            raise StorageError(
                f"a file of the original has changed since it was indexed; {_AGAIN}",
                file=f"{store.url}/{file.path}",
                expected=f"CRC32C {checksum:08x}",
                got=f"{value:08x}, with the same size and modification time",
            )

    def _check_roots(self, lists: Iterable[ExternalList]) -> None:
        """Raise `ClipError` unless `originals` has a location for each root."""
        roots = sorted({_bare(f.root) for each in lists for f in each.files})
        if isinstance(self._originals, Mapping):
            given = set(map(_bare, self._originals))
            if unknown := sorted(given.difference(roots)):
                raise ClipError(
                    "originals= has an unknown root",
                    expected=", ".join(roots),
                    got=", ".join(unknown),
                )
        elif len(roots) > 1:
            raise ClipError(
                "this dataset refers to several originals; pass originals= as a dict from each old "
                "root to its new location",
                file=self._storage.url,
                expected="{" + ", ".join(f"{root!r}: PLACE" for root in roots) + "}",
                got=repr_of(self._originals, 100),
            )

    def _check_root(self, files: ExternalList, root: str) -> None:
        """Check the listed files of this root against their state when indexed."""
        store, is_moved = self._store(root), self._place_of(root) is not None
        if reads_commit(store) and fixed_url_of(store) == root:
            return
        mine = [file for file in files.files if file.root == root and file.size]
        now = identities_of(store, [file.path for file in mine])
        for file in mine:
            self._compare(file, *now.get(file.path, (None, None)))
        is_of_hub = without_commit(root) != root
        if not is_moved or (reads_commit(store) and is_of_hub):
            return
        if is_of_hub:
            _logger.warning(
                "%s: compared with %s by sizes only: indexes of Hub files have no samples",
                *(store.url, root),
            )
        for sample in files.samples:
            file = files.files[sample.number]
            if file.root == root:
                self._check_sample(store, file, sample)

    def _check_sample(self, store: Storage, file: ExternalFile, sample: Sample) -> None:
        path = "/".join(filter(None, (file.path, sample.name)))
        facts: dict[str, Any] = {"file": f"{store.url}/{path}"}
        try:
            size = store.size(path)
        except NotFoundError as error:
            raise NotFoundError(f"a file of the original is missing; {_PLACE}", **facts) from error
        is_same = size == sample.size
        value = _checksum(store, path, [sampled_ranges(size)]) if is_same else 0
        if not is_same or value != sample.crc32c:
            raise StorageError(
                f"the file differs from the indexed one; {_PLACE}",
                **facts,
                expected=f"{sample.size} bytes, CRC32C {sample.crc32c:08x} of a sample",
                got=f"{size} bytes" + (f", {value:08x}" if is_same else ""),
            )

    def _list_ids(self) -> list[str]:
        paths = (file.path for file in self._storage.files(EXTERNALS))
        return [Path(path).stem for path in paths if path.endswith(".json")]

    def read(self, reference: Reference, memory: npt.NDArray[np.uint8] | None = None) -> memoryview:
        """Read a page's referenced range, after `Reference.offset_table_bytes` bytes of free space.

        Uses `memory` if it is large enough. Raises `FormatError` for an unknown list or file,
        `StorageError` for an external file that is untrusted or has changed, and `NotFoundError`
        for a missing one.
        """
        file = self.file_of(reference.list_id, reference.file)
        nbytes = reference.offset_table_bytes + reference.length
        if memory is None or len(memory) < nbytes:
            memory = np.empty(nbytes, np.uint8)
        whole = memory[:nbytes].data
        data = whole[reference.offset_table_bytes :]
        if reference.parts:
            self._read_parts(reference, file, data)
            return whole
        item = ByteRange(reference.start, reference.stop)
        if item.stop > file.size:
            raise FormatError(
                "a page refers to bytes beyond the end of a file",
                file=f"{file.root}/{file.path}",
                offset=item.start,
                expected=f"at most {file.size}",
                got=item.stop,
            )
        path, before = self._begin(reference.list_id, file)
        ranges, buffers = [item], [data]
        if not reference.is_video:
            sizes = reference.sizes.tolist()
            starts = (reference.start + reference.offsets).tolist()
            ranges = [ByteRange(a, a + n) for a, n in zip(starts, sizes, strict=True)]
            buffers = [data[a:b] for a, b in pairwise(accumulate(sizes, initial=0))]
        self._read_unchanged(file, path, before, ranges, buffers)
        return whole

    def check(self, reference: Reference) -> None:
        """Check the files of a page as `read` does, without reading them."""
        file = self.file_of(reference.list_id, reference.file)
        if reference.parts:
            is_remote = self._store(file.root).local_path(file.path) is None
            for part, _ in self._parts(reference, file):
                (self._check if is_remote else self._check_same)(part)
        else:
            path, before = self._begin(reference.list_id, file)
            self._check_unchanged(file, path, before)

    def _begin(
        self, list_id: str, file: ExternalFile
    ) -> tuple[str | Path | None, FileState | None]:
        """Check a file; returns the path of a local one, and its state at the first read."""
        if hash(file) not in self._seen:
            self._check_allowed(list_id, file)
        path = self._path(file)
        before = _file_state(path)
        self._check(file)
        if before is not None:
            before = self._states.setdefault(file, before)
        return path, before

    def _parts(
        self, reference: Reference, folder: ExternalFile
    ) -> Iterator[tuple[ExternalFile, slice]]:
        """Yield the files of a folder, with their ranges in the page."""
        if folder.size:
            raise FormatError(
                "a page refers to files in a folder that is a file",
                file=f"{folder.root}/{folder.path}",
            )
        self._check_allowed(reference.list_id, folder)
        above, root = f"{folder.path}/" if folder.path else "", folder.root
        spans = zip(reference.offsets.tolist(), reference.sizes.tolist(), strict=True)
        for part, (start, size) in zip(reference.parts, spans, strict=True):
            file = ExternalFile(root, above + part.name, size, part.identity)
            yield file, slice(start, start + size)

    def _read_parts(self, reference: Reference, folder: ExternalFile, data: memoryview) -> None:
        """Read whole files of a folder into consecutive ranges of `data`."""
        parts = self._parts(reference, folder)
        wanted = {file.path: (file, data[span]) for file, span in parts}
        store = self._store(folder.root)

        def read(path: str) -> None:
            file, part = wanted[path]
            local = store.local_path(path)
            before = _file_state(local)
            if local is not None:
                self._check_same(file)
            else:  # one request per file
                self._check(file)
            self._read_unchanged(file, local, before, [ByteRange(0, file.size)], [part])

        map_files(store, read, wanted)

    def _path(self, file: ExternalFile) -> str | Path | None:
        """Return the path of a local file; `None` for a remote one."""
        path = self._paths.get(file, "")
        if path == "":
            path = self._paths[file] = self._store(file.root).local_path(file.path)
        return path

    def _read_unchanged(
        self,
        file: ExternalFile,
        path: str | Path | None,
        before: FileState | None,
        ranges: Sequence[ByteRange],
        buffers: Sequence[memoryview],
    ) -> None:
        """Read ranges. Raises `StorageError` if a local file has changed since `before`.

        This error replaces others: bytes of a changing file may belong to neither version.
        """
        try:
            self._store(file.root).read_ranges(file.path, ranges, buffers)
        finally:
            self._check_unchanged(file, path, before)

    def _check_unchanged(
        self, file: ExternalFile, path: str | Path | None, before: FileState | None
    ) -> None:
        if before is not None and before != (now := _file_state(path)):
            raise StorageError(
                "a file of the original changed while it was read; wait until it is complete, and "
                f"open the dataset again, or {_AGAIN}",
                file=f"{self._store(file.root).url}/{file.path}",
                expected=f"{before[0]} bytes, changed at {before[1]} ns",
                got="no file" if now is None else f"{now[0]} bytes, changed at {now[1]} ns",
            )

    def file_of(self, list_id: str, number: int) -> ExternalFile:
        """Return the file with a number in a list."""
        files = self.list(list_id).files
        if number >= len(files):
            raise FormatError(
                "a page refers to an unknown file of its list",
                file=f"{self._storage.url}/{list_path(list_id)}",
                expected=f"below {len(files)}",
                got=number,
            )
        return files[number]

    def place_of(self, reference: Reference, offset: int = 0) -> dict[str, Any]:
        """Return external file and offset for errors, given an offset in the resolved page.

        For video, the start of the page's range.
        """
        file = self.file_of(reference.list_id, reference.file)
        shown, start = f"{self._store(file.root).url}/{file.path}", reference.start
        if not reference.is_video:
            ends = np.cumsum(reference.sizes)
            frame = int(
                np.searchsorted(ends[:-1], offset - reference.offset_table_bytes, side="right")
            )
            start += int(reference.offsets[frame])
            if reference.parts:
                shown, start = f"{shown}/{reference.parts[frame].name}", 0
        return {"file": shown, "offset": start}

    def list(self, list_id: str) -> ExternalList:
        """Read a list of the dataset, cached."""
        found = self._lists.get(list_id)
        if found is None:
            path = list_path(list_id)
            with located((FormatError, StorageError), file=f"{self._storage.url}/{path}"):
                data, _ = self._storage.read_whole(path, MAX_LIST_BYTES)
                found = ExternalList.parse(data, list_id)
            self._lists[list_id] = found
        return found

    def all_files(self) -> set[ExternalFile]:
        """Return the files of all present lists."""
        found = [self.list(list_id) for list_id in self._list_ids()]
        return {file for each in found for file in each.files}

    def are_remote(self) -> bool:
        """Return whether any file is not on a local disk."""
        return any(store.local_path("any name") is None for store in self.storages())

    def storages(self) -> Sequence[Storage]:
        """Return the storages of all listed files."""
        return [self._store(root) for root in {file.root for file in self.all_files()}]

    def _check(self, file: ExternalFile) -> None:
        """Like `_check_same`, once per file."""
        if hash(file) not in self._seen:
            self._check_same(file)
            self._seen.add(hash(file))

    def _check_allowed(self, list_id: str, file: ExternalFile) -> None:
        """Raise `StorageError` unless the user trusts the list or gave a location for its files."""
        if self._place_of(file.root) is None and not is_trusted(list_id):
            raise StorageError(
                "this dataset refers to external files, and you did not index it on this machine: "
                "pass their location as originals=",
                file=f"{self._storage.url}/{list_path(list_id)}",
                expected="originals=…, or an index made by you with `seqrecord index`",
                got=file.root,
            )

    def _check_same(self, file: ExternalFile) -> None:
        """Raise `NotFoundError` or `StorageError` if a file is missing or has changed since it was
        indexed.

        Always looks at the file.
        """
        found: tuple[int | None, str | None]
        try:
            found = identity_of(self._store(file.root), file.path)
        except NotFoundError:
            found = None, None
        self._compare(file, *found)

    def _compare(self, file: ExternalFile, size: int | None, identity: str | None) -> None:
        """Raise `NotFoundError` or `StorageError` unless size and identity match the indexed file.

        A size of `None` means that the file is missing.
        """
        store = self._store(file.root)
        shown = f"{store.url}/{file.path}"
        if size is None:
            raise NotFoundError(
                f"a file of the original is missing; {_AGAIN}, or pass its new location as "
                "originals=",
                file=shown,
                expected=f"{file.size} bytes",
            )
        # After a move, modification times differ. The Hub reports content hashes.
        is_moved = self._place_of(file.root) is not None
        if is_moved and reads_commit(store) and without_commit(file.root) != file.root:
            is_moved = False
        is_same = is_moved or None in (identity, file.identity) or identity == file.identity
        if size != file.size or not is_same:
            raise StorageError(
                f"a file of the original has changed since it was indexed; {_AGAIN}",
                file=shown,
                expected=f"{file.size} bytes, {file.identity}",
                got=f"{size} bytes, {identity}",
            )

    def _place_of(self, root: str) -> StorageLike | None:
        """Return the new location of a root; `None` if unchanged."""
        if not isinstance(self._originals, Mapping):
            return self._originals
        bare = _bare(root)
        return next((v for k, v in self._originals.items() if _bare(k) == bare), None)

    def close(self) -> None:
        """Close the files; they are reopened on demand."""
        stores, self._stores = self._stores, {}
        for store in stores.values():
            store.close()

    def _store(self, root: str) -> Storage:
        store = self._stores.get(root)
        if store is None:
            place = self._place_of(root)
            store = open_storage(root if place is None else place, **self._options)
            if place is None:  # indexed by this user, and so are the links
                follow_links(store)
            store = self._stores.setdefault(root, store)
        return store


def _file_state(path: str | Path | None) -> FileState | None:
    """Return size, modification time in ns and inode of a local file; `None` if missing."""
    if path is None:
        return None
    try:
        found = os.stat(path)  # noqa: PTH116 - faster than Path.stat, at each read
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def _checksum(store: Storage, path: str, reads: Iterable[Sequence[tuple[int, int]]]) -> int:
    """Return the CRC32C of ranges of a file; each item of `reads` has those of one call."""
    value = 0
    for ranges in reads:
        buffers = [memoryview(bytearray(stop - start)) for start, stop in ranges]
        store.read_ranges(path, [ByteRange(*each) for each in ranges], buffers)
        for buffer in buffers:
            value = crc32c(buffer, start=value)
    return value


def _bare(root: str | PathLike[str]) -> str:
    """Return a root without a commit, normalised as in indexes."""
    text = without_commit(os.fspath(root))
    return text if "://" in text else os.path.abspath(text)  # noqa: PTH100
