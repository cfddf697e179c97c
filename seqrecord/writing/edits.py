"""Changes episodes of a dataset: which there are, their keys, their metadata, their splits.

Record files stay as they are. What changes is kept in a file of edits that the manifest names, so
that a lost index is rebuilt with it, and index and manifest are written anew, in one commit.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError, FormatError, NotFoundError
from seqrecord.format import Footer
from seqrecord.format.edits import (
    Delete,
    Edit,
    Edits,
    Relabel,
    Rename,
    Split,
    encode_edit,
)
from seqrecord.format.index import NO_SPLIT, Index
from seqrecord.format.manifest import EDITS, MAX_SPLITS, SPLIT_NAME, IndexFile, Manifest
from seqrecord.format.text import check_key, encode_metadata
from seqrecord.reading.filters import EpisodeFilter, find_episodes
from seqrecord.reading.index_building import complete_episodes
from seqrecord.reading.metadata import read_edits, read_footer, record_sizes
from seqrecord.storage import Storage, open_storage
from seqrecord.text import repr_of
from seqrecord.writing.commits import Opened, Version, opened_to_edit, put_version, rebuilt
from seqrecord.writing.committing import Base, read_indexed
from seqrecord.writing.own_files import SmallFiles, of_merges

__all__ = [
    "check_split_name",
    "commit_splits",
    "delete_episodes",
    "edit_path",
    "gathered",
    "keep_episodes",
    "next_number",
    "put_edits",
    "put_splits",
    "relabel_episodes",
    "rename_episodes",
    "split_episodes",
    "split_names",
]

_NUMBERED = re.compile(rf"{EDITS}/([0-9]{{8}})-")

_UIDS_AT_ONCE = 500_000  # in one file
_TEXT_AT_ONCE = 1 << 22  # characters, of which JSON makes at most six bytes each

_T = TypeVar("_T")
Location: TypeAlias = str | PathLike[str]
_Change: TypeAlias = tuple[Sequence[int], list[Edit]]  # numbers of episodes, and what is edited


def delete_episodes(
    location: Location,
    episodes: EpisodeFilter,
    *,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Delete episodes: keys, a glob, or a function of an episode. Returns their keys.

    They are gone for every reader that opens the dataset from then on, and do not come back by
    `reindex`. Record files of which no episode is left are not the dataset's any more: `clean`
    removes them. Others keep their bytes until `rewrite_files`. The dataset has no statistics then;
    `add_statistics` computes those of what is left. With `dry_run` nothing is changed.

    `location` is a local path or URL, and `storage_options` are for the filesystem that serves the
    URL: so for all functions here.

    Raises `ClipError` where nothing is selected or nothing would be left, `NotFoundError` where
    there is no dataset, and `ConflictError` where another writer commits meanwhile.
    """

    return _edit(location, partial(_deleted, episodes, False), dry_run, storage_options)


def keep_episodes(
    location: Location,
    episodes: EpisodeFilter,
    *,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Delete all other episodes: see `delete_episodes`. Returns the keys of those deleted."""
    return _edit(location, partial(_deleted, episodes, True), dry_run, storage_options)


def rename_episodes(
    location: Location,
    keys: Mapping[str, str],
    *,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Give episodes other keys, `{old: new}`. Returns the old ones.

    Two episodes may change keys with each other. Raises as `delete_episodes` does, `FormatError`
    for what is no key, and `ClipError` for a key that another episode has.
    """

    def make(dataset: Opened, before: Edits) -> _Change:
        index = dataset.index
        new = {i: check_key(keys[index.key(i)]) for i in _find(dataset, list(keys))}
        new = {i: key for i, key in new.items() if key != index.key(i)}
        others = index.positions.keys() - {index.key(i) for i in new}
        times = Counter(new.values())
        taken = sorted(key for key in times if key in others or times[key] > 1)
        if taken:
            raise ClipError(
                "two episodes would have one key",
                file=dataset.storage.url,
                got=", ".join(taken[:10]),
            )
        renamed = Rename({index.uid(i): key for i, key in new.items()})
        return [*new], [Delete(_copies(dataset, before, new)), renamed]

    return _edit(location, make, dry_run, storage_options)


def relabel_episodes(
    location: Location,
    episodes: EpisodeFilter,
    entries: Mapping[str, Any],
    *,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Change entries of the metadata of episodes; `None` removes one. Returns their keys.

    Other entries stay. Raises as `delete_episodes` does, and `FormatError` for what JSON cannot
    hold.
    """

    def make(dataset: Opened, _: Edits) -> _Change:
        index = dataset.index
        texts = {}
        for i in _find(dataset, episodes):
            metadata = {**index.episode_metadata(i), **entries}
            gone = {name for name, value in entries.items() if value is None}
            text = encode_metadata({k: v for k, v in metadata.items() if k not in gone})
            if text != encode_metadata(index.episode_metadata(i)):
                texts[i] = text
        return [*texts], [Relabel({index.uid(i): text for i, text in texts.items()})]

    return _edit(location, make, dry_run, storage_options)


def split_episodes(
    location: Location,
    episodes: EpisodeFilter,
    split: str | None,
    *,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Put episodes into the split of this name, or for `None` into none. Returns their keys.

    `split_dataset` draws them. Raises as `delete_episodes` does, and `ClipError` for what is no
    name of a split.
    """
    if split is not None:
        check_split_name(split)
    with closing(open_storage(location, storage_options)) as storage:
        base, manifest, index = read_indexed(storage)
        names = split_names(manifest, [] if split is None else [split], storage.url)
        number = NO_SPLIT if split is None else names.index(split)
        found = find_episodes(index, manifest.splits, episodes, url=storage.url)
        chosen = found[index.split[found] != number]
        new = index.split.astype(np.int64)
        new[chosen] = number
        if not dry_run:
            commit_splits(storage, base, manifest, index, new, names)
        return [index.key(i) for i in chosen.tolist()]


def _find(dataset: Opened, episodes: EpisodeFilter) -> list[int]:
    """The numbers of the episodes that a filter selects; see `find_episodes`."""
    found: list[int] = find_episodes(
        dataset.index, dataset.manifest.splits, episodes, url=dataset.storage.url
    ).tolist()
    return found


def _deleted(episodes: EpisodeFilter, but_these: bool, dataset: Opened, before: Edits) -> _Change:
    """These episodes are deleted, or all but these."""
    chosen = _find(dataset, episodes)
    if but_these:
        chosen = sorted(set(dataset.index.positions.values()).difference(chosen))
    if len(chosen) == len(dataset.index.num_frames):
        raise ClipError(
            "no episode would be left",
            file=dataset.storage.url,
            expected="a dataset of at least one; to delete all, remove the folder",
        )
    uids = [dataset.index.uid(i) for i in chosen]
    return chosen, [Delete((*uids, *_copies(dataset, before, chosen)))]


def _copies(dataset: Opened, before: Edits, episodes: Iterable[int]) -> tuple[str, ...]:
    """The uids of complete episodes of the same keys, which are not in the dataset.

    Else one of them would come in the place of an episode that goes.
    """
    keys = {dataset.index.key(i): dataset.index.uid(i) for i in episodes}
    complete = complete_episodes(list(dataset.footers.items()), dataset.manifest.schema)
    others = complete.keys() - set(keys.values()) - before.deleted
    return tuple(sorted(u for u in others if before.keys.get(u, complete[u].key) in keys))


def _edit(
    location: Location,
    make: Callable[[Opened, Edits], _Change],
    dry_run: bool,
    storage_options: Mapping[str, Any] | None,
) -> list[str]:
    """Commit the change that `make` says; returns the keys of the episodes that change.

    `make` gets the dataset with the footers of all record files that are there, and the edits that
    were made before.
    """
    with opened_to_edit(location, storage_options) as opened:
        storage, manifest, index = opened.storage, opened.manifest, opened.index
        before = read_edits(storage, manifest.edits)
        every = {**opened.footers, **_others(storage, opened.sizes)}
        chosen, edits = make(replace(opened, footers=every), before)
        keys = [index.key(i) for i in chosen]
        if dry_run or not chosen:
            return keys
        with SmallFiles(storage) as own:
            files = put_edits(own, edits, len(manifest.edits))
            changed = replace(manifest, edits=(*manifest.edits, *files))
            base = replace(opened.base, manifest=changed)
            version = rebuilt(storage, base, opened.footers, opened.sizes)
            deleted = before.deleted | Edits.of(edits).deleted
            used = (f for f in version.record_files if _is_used(opened.footers[f.path], deleted))
            version = replace(version, record_files=tuple(used))
            if np.array_equal(version.index.uids, index.uids):
                version = replace(version, statistics=manifest.statistics)
            put_version(own, opened.base, version)
        return keys


def _others(storage: Storage, named: Mapping[str, int]) -> dict[str, Footer]:
    """Of the record files that the manifest does not name, those that `reindex` would take."""
    found = {}
    sizes = {path: n for path, n in record_sizes(storage).items() if path not in named}
    passed = of_merges(storage, sizes)
    for path, size in sizes.items():
        if path not in passed:
            with contextlib.suppress(FormatError, NotFoundError):
                found[path] = read_footer(storage, path, size)
    return found


def _is_used(footer: Footer, deleted: frozenset[str]) -> bool:
    """Whether a record file has any part of an episode that was not deleted."""
    return any(part.uid not in deleted for part in footer.episodes)


def check_split_name(name: object) -> None:
    """`ClipError` for what is no name of a split."""
    if not isinstance(name, str) or not SPLIT_NAME.fullmatch(name):
        raise ClipError(
            "not the name of a split", expected=SPLIT_NAME.pattern, got=repr_of(name, 100)
        )


def split_names(manifest: Manifest, more: Iterable[str], url: str) -> tuple[str, ...]:
    """The names of a dataset's splits, and then those of more."""
    names = tuple(dict.fromkeys((*manifest.splits, *more)))
    if len(names) > MAX_SPLITS:
        raise ClipError("too many splits", file=url, expected=MAX_SPLITS, got=len(names))
    return names


def commit_splits(
    storage: Storage,
    base: Base,
    manifest: Manifest,
    index: Index,
    new: npt.NDArray[np.int64],
    names: tuple[str, ...],
) -> None:
    """Commit that episodes are in other splits than before; see `put_splits`."""
    if (new != index.split).any():
        version = Version(
            *(index, manifest.record_files, manifest.next_ordinal, manifest.left_out),
            *(names, manifest.statistics, manifest.edits),
        )
        with SmallFiles(storage) as own:
            put_version(own, base, put_splits(own, version, new, names))


def put_splits(
    own: SmallFiles, version: Version, new: npt.NDArray[np.int64], names: tuple[str, ...]
) -> Version:
    """The version in which episodes are in the splits `new`, int64 [episodes]: places in `names`,
    or `NO_SPLIT`. Writes the edits that say so."""
    index = version.index
    changed = np.flatnonzero(new != index.split)
    edits = [
        Split(
            None if number == NO_SPLIT else names[number],
            tuple(index.uid(i) for i in changed[new[changed] == number].tolist()),
        )
        for number in np.unique(new[changed]).tolist()
    ]
    files = put_edits(own, edits, len(version.edits))
    return replace(
        version,
        index=replace(index, split=new.astype(np.uint16)),
        splits=names,
        edits=(*version.edits, *files),
    )


def put_edits(own: SmallFiles, edits: Sequence[Edit], number: int) -> list[IndexFile]:
    """Write files of edits; their names ascend, and come after `number` others.

    They come after what is there, too, and be it of an edit that was interrupted: where the
    manifest is lost, what was committed last counts.
    """
    number = max(number, next_number(own.storage))
    pieces = (piece for edit in edits for piece in _pieces(edit))
    return [
        own.put(edit_path(i, own.writer), encode_edit([edit]))
        for i, edit in enumerate(pieces, number)
    ]


def edit_path(number: int, writer: str) -> str:
    """The path of a writer's file of edits."""
    return f"{EDITS}/{number:08d}-{writer}.json"


def next_number(storage: Storage) -> int:
    """The number of a file of edits whose name comes after all that are there."""
    known = (_NUMBERED.match(file.path) for file in storage.files(EDITS))
    return max((int(match[1]) + 1 for match in known if match), default=0)


def _pieces(edit: Edit) -> Iterator[Edit]:
    """The same as edits of which each goes into one file."""
    if isinstance(edit, Delete | Split):
        for i in range(0, len(edit.uids), _UIDS_AT_ONCE):
            yield replace(edit, uids=edit.uids[i : i + _UIDS_AT_ONCE])
    elif isinstance(edit, Rename):
        yield from (Rename(dict(some)) for some in _parts(edit.keys))
    elif isinstance(edit, Relabel):
        yield from (Relabel(dict(some)) for some in _parts(edit.metadata))
    else:
        yield edit


def _parts(texts: Mapping[str, str]) -> Iterator[list[tuple[str, str]]]:
    return gathered(texts.items(), lambda item: len(item[0]) + len(item[1]), _TEXT_AT_ONCE)


def gathered(items: Iterable[_T], size_of: Callable[[_T], int], most: int) -> Iterator[list[_T]]:
    """The items in lists that come to at most so much each, or of one item that is larger."""
    some: list[_T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if some and total + size > most:
            yield some
            some, total = [], 0
        some.append(item)
        total += size
    if some:
        yield some
