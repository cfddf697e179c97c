"""Changes episodes of a dataset: which there are, their keys, their metadata, their splits.

Record files stay as they are. What changes is kept in a file of edits that the manifest names, so
that a lost index is rebuilt with it, and index and manifest are written anew, in one commit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, TypeAlias

import numpy as np

from seqrecord.errors import ClipError, FormatError, NotFoundError
from seqrecord.format import Footer
from seqrecord.format.edits import Delete, Edit, Edits, Relabel, Rename, Split
from seqrecord.format.index import NO_SPLIT, Index
from seqrecord.format.manifest import MAX_SPLITS, Manifest
from seqrecord.format.text import check_key, encode_metadata
from seqrecord.reading.filters import EpisodeFilter, find_episodes
from seqrecord.reading.index_building import complete_episodes
from seqrecord.reading.metadata import read_edits, read_footer, record_sizes
from seqrecord.storage import Storage
from seqrecord.writing.commits import opened_to_edit, put_version, rebuilt
from seqrecord.writing.edit_files import put_edits
from seqrecord.writing.own_files import SmallFiles, of_merges
from seqrecord.writing.splits import check_split_name

__all__ = [
    "delete_episodes",
    "keep_episodes",
    "relabel_episodes",
    "rename_episodes",
    "split_episodes",
]

Location: TypeAlias = str | PathLike[str]


@dataclass(frozen=True)
class _Dataset:
    """A dataset as its manifest says, and all that its record files say."""

    storage: Storage
    manifest: Manifest
    index: Index
    footers: Mapping[str, Footer]  # of all record files that are there
    edits: Edits  # those made before

    def find(self, episodes: EpisodeFilter) -> list[int]:
        """The numbers of the episodes that a filter selects; see `find_episodes`."""
        url = self.storage.url
        found: list[int] = find_episodes(
            self.index, self.manifest.splits, episodes, url=url
        ).tolist()
        return found

    def key(self, episode: int) -> str:
        return self.index.key(episode)

    def copies(self, episodes: Sequence[int]) -> list[str]:
        """The uids of complete episodes of the same keys, which are not in the dataset.

        Else one of them would come in the place of an episode that goes.
        """
        keys, uids = {self.key(i) for i in episodes}, {self.index.uid(i) for i in episodes}
        return sorted(
            uid
            for uid, part in complete_episodes(
                list(self.footers.items()), self.manifest.schema
            ).items()
            if self.edits.keys.get(uid, part.key) in keys
            and uid not in uids
            and uid not in self.edits.deleted
        )


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

    def make(dataset: _Dataset) -> tuple[list[int], list[Edit]]:
        return _deleted(dataset, dataset.find(episodes))

    return _edit(location, make, dry_run, storage_options)


def keep_episodes(
    location: Location,
    episodes: EpisodeFilter,
    *,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Delete all other episodes: see `delete_episodes`. Returns the keys of those deleted."""

    def make(dataset: _Dataset) -> tuple[list[int], list[Edit]]:
        kept = set(dataset.find(episodes))
        others = [i for i in range(len(dataset.index.num_frames)) if i not in kept]
        return _deleted(dataset, others)

    return _edit(location, make, dry_run, storage_options)


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

    def make(dataset: _Dataset) -> tuple[list[int], list[Edit]]:
        chosen = [i for i in dataset.find(list(keys)) if keys[dataset.key(i)] != dataset.key(i)]
        new = [check_key(keys[dataset.key(i)]) for i in chosen]
        others = dataset.index.positions.keys() - {dataset.key(i) for i in chosen}
        taken = sorted({key for key in new if key in others or new.count(key) > 1})
        if taken:
            raise ClipError(
                "two episodes would have one key",
                file=dataset.storage.url,
                got=", ".join(taken[:10]),
            )
        uids = [dataset.index.uid(i) for i in chosen]
        copies = tuple(dataset.copies(chosen))
        return chosen, [Delete(copies), Rename(dict(zip(uids, new, strict=True)))]

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

    def make(dataset: _Dataset) -> tuple[list[int], list[Edit]]:
        texts, chosen = {}, []
        for i in dataset.find(episodes):
            metadata = {**dataset.index.episode_metadata(i), **entries}
            gone = {name for name, value in entries.items() if value is None}
            text = encode_metadata({k: v for k, v in metadata.items() if k not in gone})
            if text != encode_metadata(dataset.index.episode_metadata(i)):
                chosen.append(i)
                texts[dataset.index.uid(i)] = text
        return chosen, [Relabel(texts)]

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

    def make(dataset: _Dataset) -> tuple[list[int], list[Edit]]:
        names = dataset.manifest.splits
        if split is not None and split not in names and len(names) == MAX_SPLITS:
            raise ClipError("too many splits", file=dataset.storage.url, expected=MAX_SPLITS)
        number = names.index(split) if split in names else -1 if split else NO_SPLIT
        chosen = [i for i in dataset.find(episodes) if dataset.index.split[i] != number]
        return chosen, [Split(split, tuple(dataset.index.uid(i) for i in chosen))]

    return _edit(location, make, dry_run, storage_options)


def _deleted(dataset: _Dataset, chosen: list[int]) -> tuple[list[int], list[Edit]]:
    if len(chosen) == len(dataset.index.num_frames):
        raise ClipError(
            "no episode would be left",
            file=dataset.storage.url,
            expected="a dataset of at least one; to delete all, remove the folder",
        )
    uids = [dataset.index.uid(i) for i in chosen]
    return chosen, [Delete((*uids, *dataset.copies(chosen)))]


def _edit(
    location: Location,
    make: Callable[[_Dataset], tuple[list[int], list[Edit]]],
    dry_run: bool,
    storage_options: Mapping[str, Any] | None,
) -> list[str]:
    """Commit what `make` says: the episodes that change, and edits. Returns their keys."""
    with opened_to_edit(location, storage_options) as opened:
        storage, manifest, index = opened.storage, opened.manifest, opened.index
        before = read_edits(storage, manifest.edits)
        every = {**opened.footers, **_others(storage, opened.sizes)}
        chosen, edits = make(_Dataset(storage, manifest, index, every, before))
        keys = [index.key(i) for i in chosen]
        if dry_run or not chosen:
            return keys
        with SmallFiles(storage) as own:
            files = put_edits(own, edits, len(manifest.edits))
            changed = replace(
                opened.base, manifest=replace(manifest, edits=(*manifest.edits, *files))
            )
            version = rebuilt(storage, changed, opened.footers, opened.sizes)
            deleted = before.deleted | Edits.of(edits).deleted
            kept = tuple(
                f for f in version.record_files if _is_used(opened.footers[f.path], deleted)
            )
            same = np.array_equal(version.index.uids, index.uids)
            version = replace(
                version,
                record_files=kept,
                statistics=manifest.statistics if same else version.statistics,
            )
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
