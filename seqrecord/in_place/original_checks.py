"""Compares the external files of a dataset with their state when indexed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from seqrecord.errors import ClipError, NotFoundError, StorageError
from seqrecord.in_place.externals import AGAIN, ExternalFiles, bare_root
from seqrecord.store.checksum import crc32c
from seqrecord.store.format.references import (
    ExternalFile,
    ExternalList,
    Sample,
    sampled_ranges,
    stored_list_ids,
)
from seqrecord.store.reading.home import is_settled, is_trusted, settle
from seqrecord.store.storage.base import Storage, fixed_url_of, identity_of, reads_commit
from seqrecord.store.storage.local import modified_ns, new_since
from seqrecord.store.storage.parallel import identities_of
from seqrecord.store.storage.ranges import ByteRange
from seqrecord.store.storage.url import without_commit
from seqrecord.store.text import repr_of

_BLOCK = 1 << 20
_PLACE = "give the place of the same original as originals="
_checked_roots: set[object] = set()  # roots on remote stores already checked by this process

_logger = logging.getLogger("seqrecord")


class OriginalFiles(ExternalFiles):
    """External files that are compared with their index.

    Implements `store.reading.external_files.ExternalFiles`.
    """

    def compare(self, lists: Sequence[str], *, always: bool = False) -> None:
        """Check external files when a dataset is opened; on remote stores once per process.

        Files of `lists` must have the size and modification time or e-tag of their indexing; on the
        Hub the commit decides. Files moved to `originals` must have the same sizes, and samples the
        same checksums. Files that this user neither indexed nor located are skipped, with a
        warning. `always` repeats checks of remote stores.

        Raises `ClipError` if `originals` does not match the roots, `StorageError` for a changed
        file, and `NotFoundError` for a missing one, both with the remedy.
        """
        compared = {list_id: self.list(list_id) for list_id in lists}
        if self.originals is not None:
            compared |= {list_id: self.list(list_id) for list_id in stored_list_ids(self.storage)}
            _check_roots(self, compared.values())
        for list_id, external_list in compared.items():
            for root in dict.fromkeys(file.root for file in external_list.files):
                if self.new_place(root) is None and not is_trusted(list_id):
                    _logger.warning(
                        "%s: copied values not compared with the original: the index was made by "
                        "another user, or on another machine; pass originals= to compare them",
                        self.storage.url,
                    )
                    return
                key = (self.storage.place, list_id, root, str(self.new_place(root)))
                if always or key not in _checked_roots:
                    _check_root(self, external_list, root)
                if "://" in self.store(root).url:  # listings of remote stores are requests
                    _checked_roots.add(key)
        if compared and self.storage.local_path("any name") is not None:
            check_new(self)


def check_new(files: ExternalFiles) -> None:
    """Compare files that were new when indexed with their checksums, until they are older.

    Raises `StorageError` for a file that was written again with the same size and time. Files
    with another size or time are skipped: reading them raises.
    """
    for list_id in stored_list_ids(files.storage):
        if is_settled(list_id) or not is_trusted(list_id):
            continue
        external_list, new_times, are_old = files.list(list_id), dict[str, int](), True
        for number, checksum in external_list.new_checksums:
            file = external_list.files[number]
            if file.root not in new_times:  # the clock is read before the files
                new_times[file.root] = new_since(file.root)
            store, state = files.store(file.root), None
            with suppress(NotFoundError):
                state = identity_of(store, file.path)
            if state == (file.size, file.identity):
                _check_checksum(store, file, checksum)
                are_old &= (modified_ns(file.identity) or 0) < new_times[file.root]
        if are_old:
            settle(list_id)


def _check_checksum(store: Storage, file: ExternalFile, checksum: int) -> None:
    starts = range(0, file.size, _BLOCK)
    current = _checksum(store, file.path, [[(n, min(n + _BLOCK, file.size))] for n in starts])
    if current != checksum:
        raise StorageError(
            f"a file of the original has changed since it was indexed; {AGAIN}",
            file=f"{store.url}/{file.path}",
            expected=f"CRC32C {checksum:08x}",
            got=f"{current:08x}, with the same size and modification time",
        )


def _check_roots(files: ExternalFiles, lists: Iterable[ExternalList]) -> None:
    """Raise `ClipError` unless `originals` has a location for each root."""
    roots = sorted({bare_root(f.root) for external_list in lists for f in external_list.files})
    if isinstance(files.originals, Mapping):
        passed_roots = set(map(bare_root, files.originals))
        if unknown_roots := sorted(passed_roots.difference(roots)):
            raise ClipError(
                "originals= has an unknown root",
                expected=", ".join(roots),
                got=", ".join(unknown_roots),
            )
    elif len(roots) > 1:
        raise ClipError(
            "this dataset refers to several originals; pass originals= as a dict from each old "
            "root to its new location",
            file=files.storage.url,
            expected="{" + ", ".join(f"{root!r}: PLACE" for root in roots) + "}",
            got=repr_of(files.originals, 100),
        )


def _check_root(files: ExternalFiles, external_list: ExternalList, root: str) -> None:
    """Check the listed files of this root against their state when indexed."""
    store, is_moved = files.store(root), files.new_place(root) is not None
    if reads_commit(store) and fixed_url_of(store) == root:
        return
    root_files = [file for file in external_list.files if file.root == root and file.size]
    identities = identities_of(store, [file.path for file in root_files])
    for file in root_files:
        files.check_identity(file, *identities.get(file.path, (None, None)))
    is_of_hub = without_commit(root) != root
    if not is_moved or (reads_commit(store) and is_of_hub):
        return
    if is_of_hub:
        _logger.warning(
            "%s: compared with %s by sizes only: indexes of Hub files have no samples",
            *(store.url, root),
        )
    for sample in external_list.samples:
        file = external_list.files[sample.number]
        if file.root == root:
            _check_sample(store, file, sample)


def _check_sample(store: Storage, file: ExternalFile, sample: Sample) -> None:
    path = "/".join(filter(None, (file.path, sample.name)))
    facts: dict[str, Any] = {"file": f"{store.url}/{path}"}
    try:
        size = store.size(path)
    except NotFoundError as error:
        raise NotFoundError(f"a file of the original is missing; {_PLACE}", **facts) from error
    is_same = size == sample.size
    checksum = _checksum(store, path, [sampled_ranges(size)]) if is_same else 0
    if not is_same or checksum != sample.crc32c:
        raise StorageError(
            f"the file differs from the indexed one; {_PLACE}",
            **facts,
            expected=f"{sample.size} bytes, CRC32C {sample.crc32c:08x} of a sample",
            got=f"{size} bytes" + (f", {checksum:08x}" if is_same else ""),
        )


def _checksum(store: Storage, path: str, reads: Iterable[Sequence[tuple[int, int]]]) -> int:
    """Return the CRC32C of a file's ranges; each item of `reads` is for one call."""
    checksum = 0
    for ranges in reads:
        buffers = [memoryview(bytearray(stop - start)) for start, stop in ranges]
        store.read_ranges(path, [ByteRange(*bounds) for bounds in ranges], buffers)
        for buffer in buffers:
            checksum = crc32c(buffer, start=checksum)
    return checksum
