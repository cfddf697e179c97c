"""Reads the external files that a dataset's pages refer to.

Datasets may come from untrusted people and must not make a user's process read arbitrary files. An
external file is opened only if this user made its list, or passed the original's location. Its
size, and its identity if the store reports one, must be the same as when indexed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate, pairwise
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import (
    FormatError,
    NotFoundError,
    StorageError,
    located,
)
from seqrecord.store.checksum import crc32c
from seqrecord.store.format.references import (
    MAX_LIST_BYTES,
    ExternalFile,
    ExternalList,
    Reference,
    list_path,
    stored_list_ids,
)
from seqrecord.store.reading.external_files import Originals
from seqrecord.store.reading.home import is_trusted
from seqrecord.store.storage.base import LINKED, Storage, identity_of, reads_commit, state_of
from seqrecord.store.storage.local import follow_links
from seqrecord.store.storage.opening import StorageLike, open_storage
from seqrecord.store.storage.parallel import map_files
from seqrecord.store.storage.ranges import ByteRange
from seqrecord.store.storage.url import without_commit

_SAMPLE_BYTES = 4 << 10

FileState: TypeAlias = tuple[int, int, int]


AGAIN = "index it again (`seqrecord index SRC -o DST`)"


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
        self.storage, self.originals = storage, originals
        # Local files, by their paths and states at the first read.
        self._first_states: dict[ExternalFile, tuple[str | None, FileState]] = {}
        self._options = dict(options or {})
        self._lists: dict[str, ExternalList] = {}
        self._stores: dict[str, Storage] = {}  # by root
        self._unchanged_files: set[object] = set()  # hashes of unchanged files
        self._states: dict[ExternalFile, list[Any] | None] = {}  # of files on remote storages

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.storage, self.originals, self._options)

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
        whole_range = ByteRange(reference.start, reference.stop)
        if whole_range.stop > file.size:
            raise FormatError(
                "a page refers to bytes beyond the end of a file",
                file=f"{file.root}/{file.path}",
                offset=whole_range.start,
                expected=f"at most {file.size}",
                got=whole_range.stop,
            )
        ranges = reference.ranges()
        ends = accumulate((part.length for part in ranges), initial=0)
        buffers = [data[a:b] for a, b in pairwise(ends)]
        with self._unchanged(file, reference.list_id):
            self.store(file.root).read_ranges(file.path, ranges, buffers)
        return whole

    def check(self, reference: Reference) -> None:
        """Check the files of a page as `read` does, without reading them."""
        file = self.file_of(reference.list_id, reference.file)
        parts = [part for part, _ in self._parts(reference, file)] if reference.parts else [file]
        for part in parts:
            with self._unchanged(part, None if reference.parts else reference.list_id):
                pass

    def states(self, reference: Reference) -> list[list[Any] | None]:
        """Return the present states of a page's files, see `state_of`.

        Elsewhere than on a local disk, as of their first use.
        """
        file = self.file_of(reference.list_id, reference.file)
        files = [part for part, _ in self._parts(reference, file)] if reference.parts else [file]
        return [self._state(external_file) for external_file in files]

    def evidence(self, reference: Reference) -> list[list[Any]]:
        """Return what identifies the content of a page's first and last item: size, and e-tag; of
        local files, whose times say nothing about content, the CRC32C of at most 4 KiB.
        """
        file = self.file_of(reference.list_id, reference.file)
        items = list(zip(reference.offsets.tolist(), reference.sizes.tolist(), strict=True))
        parts = [part for part, _ in self._parts(reference, file)] if reference.parts else []
        facts: list[list[Any]] = []
        for number in (0, len(items) - 1):
            offset, size = (0, items[number][1]) if parts else items[number]
            part = parts[number] if parts else file
            store, start = self.store(part.root), offset if parts else reference.start + offset
            if store.local_path(part.path) is None:
                facts.append([size, part.identity and part.identity.partition(LINKED)[0]])
                continue
            item = ByteRange(start, start + min(size, _SAMPLE_BYTES))
            sample = memoryview(bytearray(item.length))
            with self._unchanged(part, None if parts else reference.list_id):
                store.read_ranges(part.path, [item], [sample])
            facts.append([size, crc32c(sample)])
        return facts

    def _state(self, file: ExternalFile) -> list[Any] | None:
        if file in self._states:
            return self._states[file]
        store = self.store(file.root)
        state = state_of(store, file.path)
        if store.local_path(file.path) is None:
            self._states[file] = state
        return state

    @contextmanager
    def _unchanged(self, file: ExternalFile, list_id: str | None = None) -> Iterator[None]:
        """Check a file; raise `StorageError` if a local one changes in the block.

        This error replaces others: bytes of a changing file may belong to neither version. A file
        of a list is also compared with its state at the first read. Files of folders have no
        `list_id`: there are too many to remember, so local ones are compared with the index again.
        """
        if list_id is not None and hash(file) not in self._unchanged_files:
            self._check_allowed(list_id, file)
        path, old_state = self._first_states.get(file, (None, None))
        if path is None:
            path = self.store(file.root).local_path(file.path)
            old_state = _file_state(path)
        if path is not None and list_id is None:
            self._check_same(file)
        elif hash(file) not in self._unchanged_files:
            self._check_same(file)
            self._unchanged_files.add(hash(file))
        if old_state is not None and list_id is not None:
            _, old_state = self._first_states.setdefault(file, (path, old_state))
        try:
            yield
        finally:
            if old_state is not None and old_state != (new_state := _file_state(path)):
                raise StorageError(
                    "a file of the original changed while it was read; wait until it is complete, "
                    f"and open the dataset again, or {AGAIN}",
                    file=f"{self.store(file.root).url}/{file.path}",
                    expected=f"{old_state[0]} bytes, changed at {old_state[1]} ns",
                    got=(
                        f"{new_state[0]} bytes, changed at {new_state[1]} ns"
                        if new_state
                        else "no file"
                    ),
                )

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
        parts_by_path = {file.path: (file, data[span]) for file, span in parts}
        store = self.store(folder.root)

        def read(path: str) -> None:
            file, part = parts_by_path[path]
            with self._unchanged(file):
                store.read_ranges(path, [ByteRange(0, file.size)], [part])

        map_files(store, read, parts_by_path)

    def file_of(self, list_id: str, number: int) -> ExternalFile:
        """Return the file with a number in a list."""
        files = self.list(list_id).files
        if number >= len(files):
            raise FormatError(
                "a page refers to an unknown file of its list",
                file=f"{self.storage.url}/{list_path(list_id)}",
                expected=f"below {len(files)}",
                got=number,
            )
        return files[number]

    def place_of(self, reference: Reference, offset: int = 0) -> dict[str, Any]:
        """Return external file and offset for errors, given an offset in the resolved page.

        For video, the start of the page's range.
        """
        file = self.file_of(reference.list_id, reference.file)
        name, start = reference.place(offset)
        shown = f"{self.store(file.root).url}/{file.path}"
        return {"file": f"{shown}/{name}" if name else shown, "offset": start}

    def list(self, list_id: str) -> ExternalList:
        """Read a list of the dataset, cached."""
        external_list = self._lists.get(list_id)
        if external_list is None:
            path = list_path(list_id)
            with located((FormatError, StorageError), file=f"{self.storage.url}/{path}"):
                data, _ = self.storage.read_whole(path, MAX_LIST_BYTES)
                external_list = ExternalList.parse(data, list_id)
            self._lists[list_id] = external_list
        return external_list

    def all_files(self) -> set[ExternalFile]:
        """Return the files of all present lists."""
        lists = [self.list(list_id) for list_id in stored_list_ids(self.storage)]
        return {file for external_list in lists for file in external_list.files}

    def are_remote(self) -> bool:
        """Return whether any file is not on a local disk."""
        stores = map(self.store, {file.root for file in self.all_files()})
        return any(store.local_path("any name") is None for store in stores)

    def _check_allowed(self, list_id: str, file: ExternalFile) -> None:
        """Raise `StorageError` unless the user trusts the list or gave a location for its files."""
        if self.new_place(file.root) is None and not is_trusted(list_id):
            raise StorageError(
                "this dataset refers to external files, and you did not index it on this machine: "
                "pass their location as originals=",
                file=f"{self.storage.url}/{list_path(list_id)}",
                expected="originals=…, or an index made by you with `seqrecord index`",
                got=file.root,
            )

    def _check_same(self, file: ExternalFile) -> None:
        """Raise `NotFoundError` or `StorageError` if a file is missing or has changed since it was
        indexed.

        Always looks at the file.
        """
        size: int | None
        identity: str | None
        try:
            size, identity = identity_of(self.store(file.root), file.path)
        except NotFoundError:
            size = identity = None
        self.check_identity(file, size, identity)

    def check_identity(self, file: ExternalFile, size: int | None, identity: str | None) -> None:
        """Raise `NotFoundError` or `StorageError` unless size and identity match the indexed file.

        A size of `None` means that the file is missing.
        """
        store = self.store(file.root)
        shown = f"{store.url}/{file.path}"
        if size is None:
            raise NotFoundError(
                f"a file of the original is missing; {AGAIN}, or pass its new location as "
                "originals=",
                file=shown,
                expected=f"{file.size} bytes",
            )
        # After a move, modification times differ. The Hub reports content hashes.
        is_moved = self.new_place(file.root) is not None
        if is_moved and reads_commit(store) and without_commit(file.root) != file.root:
            is_moved = False
        is_same = is_moved or None in (identity, file.identity) or identity == file.identity
        if size != file.size or not is_same:
            raise StorageError(
                f"a file of the original has changed since it was indexed; {AGAIN}",
                file=shown,
                expected=f"{file.size} bytes, {file.identity}",
                got=f"{size} bytes, {identity}",
            )

    def new_place(self, root: str) -> StorageLike | None:
        """Return the new location of a root; `None` if unchanged."""
        if not isinstance(self.originals, Mapping):
            return self.originals
        bare = bare_root(root)
        return next((v for k, v in self.originals.items() if bare_root(k) == bare), None)

    def close(self) -> None:
        """Close the files; they are reopened on demand."""
        stores, self._stores = self._stores, {}
        for store in stores.values():
            store.close()

    def store(self, root: str) -> Storage:
        """Return the storage of a root."""
        store = self._stores.get(root)
        if store is None:
            place = self.new_place(root)
            store = open_storage(root if place is None else place, **self._options)
            if place is None:  # indexed by this user, and so are the links
                follow_links(store)
            store = self._stores.setdefault(root, store)
        return store


def _file_state(path: str | None) -> FileState | None:
    """Return size, modification time in ns and inode of a local file; `None` if missing."""
    if path is None:
        return None
    try:
        status = os.stat(path)  # noqa: PTH116 - faster than Path.stat, at each read
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


def bare_root(root: str | PathLike[str]) -> str:
    """Return a root without a commit, normalised as in indexes."""
    text = without_commit(os.fspath(root))
    return text if "://" in text else os.path.abspath(text)  # noqa: PTH100
