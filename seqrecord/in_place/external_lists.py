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

    Lists of the existing dataset stay if they name other originals. Raises `SourceError` for a file
    that changed since they were written: the copied values would be stale.
    """
    files, content = copied_files(source), ""
    present = {(without_commit(f.root), f.path): f for f in files.values()}
    roots = {root for root, _ in present}
    before, kept = target.copied, list[str]()
    if before is not None:
        lists: Sequence[str] = before.lists
    else:
        lists = stored_list_ids(target.storage) if target.recovered else ()
    is_same = before is not None and _has_content(source, before.content)
    for list_id in lists:
        listed = ExternalList.parse(
            target.storage.read_whole(list_path(list_id), MAX_LIST_BYTES)[0], list_id
        )
        if before and roots.isdisjoint(without_commit(file.root) for file in listed.files):
            kept.append(list_id)
        elif not is_same:
            # An interrupted run also listed references, which are checked when they are read.
            _check_unchanged(listed.files, present, may_refer=before is None)
    if not kept and hasattr(source, "content"):
        content = str(source.content())
    new = dict.fromkeys(list_id for list_id, _ in put_lists(target.storage, files).values())
    return CopiedFiles((*kept, *new), content)


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
        now = present.get((without_commit(file.root), file.path))
        is_equal = now is not None and (now.size, now.identity) == (file.size, file.identity)
        if is_equal or (now is None and may_refer):
            continue
        raise SourceError(
            "a file of the original changed after its values were copied, so nothing can be "
            "appended; index it again, into another folder: `seqrecord index SRC -o DST`",
            file=f"{file.root}/{file.path}",
            expected=f"{file.size} bytes, {file.identity}",
            got=now and f"{now.size} bytes, {now.identity}",
        )


def put_lists(storage: Storage, files: Mapping[str, ExternalFile]) -> dict[str, tuple[str, int]]:
    """Write lists of the files to which a source refers.

    Returns a list's id and the place in it for each name of a file. The lists are trusted, as this
    user made them; see `seqrecord.open`. Raises `SourceError` for paths that cannot be stored.
    """
    if (out := link_out(files)) is not None:
        _logger.warning(
            "links lead out of the original, for example %s to %s; they are followed, also when "
            "the index is read",
            *out,
        )
    samples, new = samples_of(files), checksums_of_new(files)
    names = [*files]
    found: dict[str, tuple[str, int]] = {}
    for begin in range(0, len(names), _FILES_OF_A_LIST):
        some = names[begin : begin + _FILES_OF_A_LIST]
        sampled = (
            Sample(number, *each)
            for number, name in enumerate(some)
            for each in samples.get(name, ())
        )
        checksums = tuple((number, new[name]) for number, name in enumerate(some) if name in new)
        listed = tuple(files[name] for name in some)
        each = ExternalList(listed, tuple(sampled), checksums, secrets.token_hex(16))
        for file in each.files:
            if any("\ud800" <= c <= "\udfff" for c in file.root + file.path):
                raise SourceError(
                    "original with a path that is not UTF-8 cannot be read in place; rename it, "
                    "or pack it with `seqrecord write --src`",
                    file=f"{file.root}/{file.path}".rstrip("/"),
                )
        try:
            ExternalList.parse(each.encode(), each.id)
        except FormatError as error:  # readers would refuse it
            facts = {**error.context(), "file": each.files[0].root}
            message = f"originals cannot be referred to: {error.message}"
            raise SourceError(message, **facts) from error
        storage.put(list_path(each.id), each.encode(), expected=None)
        trust(each.id)
        found |= {name: (each.id, number) for number, name in enumerate(some)}
    return found
