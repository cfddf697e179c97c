"""Writes lists of external files, and compares them with existing lists."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from seqrecord.errors import FormatError, SourceError
from seqrecord.in_place.references import (
    checksums_of_new,
    copied_files,
    link_out,
    samples_of,
)
from seqrecord.store.format.manifest import CopiedFiles
from seqrecord.store.format.references import (
    MAX_LIST_BYTES,
    ExternalFile,
    ExternalList,
    Sample,
    list_path,
    stored_list_ids,
)
from seqrecord.store.reading.home import trust
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.url import without_commit
from seqrecord.store.writing.destination import Destination

_logger = logging.getLogger("seqrecord")

_FILES_OF_A_LIST = 10_000  # keeps a list small even if names are long


def put_copied(target: Destination, source: Any) -> CopiedFiles:
    """Write lists of the files from which a source's values are copied.

    Lists of the existing dataset are kept if they name other originals. Raises `SourceError` for
    a file that changed since they were written: the copied values would be stale.
    """
    files, content = copied_files(source), ""
    files_by_place = {(without_commit(f.root), f.path): f for f in files.values()}
    roots = {root for root, _ in files_by_place}
    old_copies, kept_ids = target.copied, list[str]()
    if old_copies is not None:
        lists: Sequence[str] = old_copies.lists
    else:
        lists = stored_list_ids(target.storage) if target.recovered else ()
    is_same = old_copies is not None and _has_content(source, old_copies.content)
    for list_id in lists:
        external_list = ExternalList.parse(
            target.storage.read_whole(list_path(list_id), MAX_LIST_BYTES)[0], list_id
        )
        if old_copies and roots.isdisjoint(
            without_commit(file.root) for file in external_list.files
        ):
            kept_ids.append(list_id)
        elif not is_same:
            # An interrupted run also listed references, which are checked when they are read.
            _check_unchanged(external_list.files, files_by_place, may_refer=old_copies is None)
    if not kept_ids and hasattr(source, "content"):
        content = str(source.content())
    new_ids = dict.fromkeys(list_id for list_id, _ in put_lists(target.storage, files).values())
    return CopiedFiles((*kept_ids, *new_ids), content)


def _has_content(source: Any, content: str) -> bool:
    """Whether a source has the content from which values were copied; false if it is unknown."""
    if not hasattr(source, "content") or not content:
        return False
    with suppress(ValueError):  # another source
        return bool(source.content(content) == content)
    return False


def _check_unchanged(
    files: Iterable[ExternalFile],
    present: Mapping[tuple[str, str], ExternalFile],
    *,
    may_refer: bool,
) -> None:
    """Raise `SourceError` for a file that differs from the present one, by root and path.

    With `may_refer`, files that are not among the present ones pass.
    """
    for file in files:
        current = present.get((without_commit(file.root), file.path))
        facts = current and (current.size, current.identity)
        if facts == (file.size, file.identity) or (current is None and may_refer):
            continue
        raise SourceError(
            "a file of the original changed after its values were copied, so nothing can be "
            "appended; index it again, into another folder: `seqrecord index SRC -o DST`",
            file=f"{file.root}/{file.path}",
            expected=f"{file.size} bytes, {file.identity}",
            got=current and f"{current.size} bytes, {current.identity}",
        )


def put_lists(storage: Storage, files: Mapping[str, ExternalFile]) -> dict[str, tuple[str, int]]:
    """Write lists of the files to which a source refers.

    Returns a list's id and the place in it for each name of a file. The lists are trusted, as this
    user made them; see `seqrecord.open`. Raises `SourceError` for paths that cannot be stored.
    """
    if (outward_link := link_out(files)) is not None:
        _logger.warning(
            "links lead out of the original, for example %s to %s; they are followed, also when "
            "the index is read",
            *outward_link,
        )
    samples, new_checksums = samples_of(files), checksums_of_new(files)
    names = [*files]
    places: dict[str, tuple[str, int]] = {}
    for begin in range(0, len(names), _FILES_OF_A_LIST):
        list_names = names[begin : begin + _FILES_OF_A_LIST]
        sampled = (
            Sample(number, *sample)
            for number, name in enumerate(list_names)
            for sample in samples.get(name, ())
        )
        checksums = tuple(
            (number, new_checksums[name])
            for number, name in enumerate(list_names)
            if name in new_checksums
        )
        list_files = tuple(files[name] for name in list_names)
        external_list = ExternalList(list_files, tuple(sampled), checksums, secrets.token_hex(16))
        for file in external_list.files:
            if any("\ud800" <= c <= "\udfff" for c in file.root + file.path):
                raise SourceError(
                    "original with a path that is not UTF-8 cannot be read in place; rename it, "
                    "or pack it with `seqrecord write --src`",
                    file=f"{file.root}/{file.path}".rstrip("/"),
                )
        try:
            ExternalList.parse(external_list.encode(), external_list.id)
        except FormatError as error:  # readers would refuse it
            facts = {**error.context(), "file": external_list.files[0].root}
            message = f"originals cannot be referred to: {error.message}"
            raise SourceError(message, **facts) from error
        storage.put(list_path(external_list.id), external_list.encode(), expected=None)
        trust(external_list.id)
        places |= {name: (external_list.id, number) for number, name in enumerate(list_names)}
    return places
