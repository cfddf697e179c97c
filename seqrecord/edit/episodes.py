"""Changes episodes of a dataset: which there are, their keys, their metadata.

Record files stay as they are. What changes is kept in a file of edits that the manifest names, so
that a lost index is rebuilt with it, and index and manifest are written anew, in one commit.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from os import PathLike
from typing import Any

from seqrecord.edit.changes import Change, Opened, edit_dataset
from seqrecord.errors import ClipError, FormatError, NotFoundError
from seqrecord.format import Footer
from seqrecord.format.edits import Delete, Relabel, Rename
from seqrecord.format.text import check_key, encode_metadata
from seqrecord.reading.filters import EpisodeFilter
from seqrecord.reading.index_building import complete_episodes
from seqrecord.reading.metadata import read_edits, read_footer, record_sizes
from seqrecord.storage import Storage
from seqrecord.writing.own_files import of_merges

__all__ = ["delete_episodes", "keep_episodes", "relabel_episodes", "rename_episodes"]


def delete_episodes(
    location: str | PathLike[str],
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

    return edit_dataset(location, partial(_deleted, episodes, False), dry_run, storage_options)


def keep_episodes(
    location: str | PathLike[str],
    episodes: EpisodeFilter,
    *,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Delete all other episodes: see `delete_episodes`. Returns the keys of those deleted."""
    return edit_dataset(location, partial(_deleted, episodes, True), dry_run, storage_options)


def rename_episodes(
    location: str | PathLike[str],
    keys: Mapping[str, str],
    *,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Give episodes other keys, `{old: new}`. Returns the old ones.

    Two episodes may change keys with each other. Raises as `delete_episodes` does, `FormatError`
    for what is no key, and `ClipError` for a key that another episode has.
    """

    def make(dataset: Opened) -> Change:
        index = dataset.index
        new = {i: check_key(keys[index.key(i)]) for i in dataset.find(list(keys))}
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
        return [*new], [Delete(_copies(dataset, new)), renamed]

    return edit_dataset(location, make, dry_run, storage_options)


def relabel_episodes(
    location: str | PathLike[str],
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

    def make(dataset: Opened) -> Change:
        index = dataset.index
        texts = {}
        for i in dataset.find(episodes):
            metadata = {**index.episode_metadata(i), **entries}
            gone = {name for name, value in entries.items() if value is None}
            text = encode_metadata({k: v for k, v in metadata.items() if k not in gone})
            if text != encode_metadata(index.episode_metadata(i)):
                texts[i] = text
        return [*texts], [Relabel({index.uid(i): text for i, text in texts.items()})]

    return edit_dataset(location, make, dry_run, storage_options)


def _deleted(episodes: EpisodeFilter, but_these: bool, dataset: Opened) -> Change:
    """These episodes are deleted, or all but these."""
    chosen = dataset.find(episodes)
    if but_these:
        chosen = sorted(set(dataset.index.positions.values()).difference(chosen))
    if len(chosen) == len(dataset.index.num_frames):
        raise ClipError(
            "no episode would be left",
            file=dataset.storage.url,
            expected="a dataset of at least one; to delete all, remove the folder",
        )
    uids = [dataset.index.uid(i) for i in chosen]
    return chosen, [Delete((*uids, *_copies(dataset, chosen)))]


def _copies(dataset: Opened, episodes: Iterable[int]) -> tuple[str, ...]:
    """The uids of complete episodes of the same keys, which are not in the dataset.

    Else one of them would come in the place of an episode that goes.
    """
    storage, manifest = dataset.storage, dataset.manifest
    before = read_edits(storage, manifest.edits)
    keys = {dataset.index.key(i): dataset.index.uid(i) for i in episodes}
    footers = {**dataset.footers, **_unnamed(storage, dataset.footers)}
    complete = complete_episodes(list(footers.items()), manifest.schema)
    others = complete.keys() - set(keys.values()) - before.deleted
    return tuple(sorted(u for u in others if before.keys.get(u, complete[u].key) in keys))


def _unnamed(storage: Storage, named: Collection[str]) -> dict[str, Footer]:
    """Of the record files that the manifest does not name, those that `reindex` would take."""
    found = {}
    sizes = {path: n for path, n in record_sizes(storage).items() if path not in named}
    passed = of_merges(storage, sizes)
    for path, size in sizes.items():
        if path not in passed:
            with contextlib.suppress(FormatError, NotFoundError):
                found[path] = read_footer(storage, path, size)
    return found
