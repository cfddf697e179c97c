"""Changes episodes of a dataset: which there are, their keys, their metadata.

Record files stay as they are. What changes is kept in a file of edits that the manifest names, so
that a lost index is rebuilt with it, and index and manifest are written anew, in one commit.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, TypeAlias

import numpy as np

from seqrecord.errors import ClipError, FormatError, NotFoundError
from seqrecord.format import Footer
from seqrecord.format.edits import Delete, Edit, Edits, Relabel, Rename
from seqrecord.format.text import check_key, encode_metadata
from seqrecord.reading.filters import EpisodeFilter, find_episodes
from seqrecord.reading.index_building import complete_episodes
from seqrecord.reading.metadata import read_edits, read_footer, record_sizes
from seqrecord.storage import Storage
from seqrecord.writing.commits import Opened, opened_to_edit, put_version, rebuilt
from seqrecord.writing.edit_files import put_edits
from seqrecord.writing.own_files import SmallFiles, of_merges

__all__ = ["delete_episodes", "keep_episodes", "relabel_episodes", "rename_episodes"]

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
