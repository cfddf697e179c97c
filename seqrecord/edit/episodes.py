"""Changes episodes of a dataset: which there are, their keys, their metadata, their splits.

Record files stay as they are. What changes is kept in a file of edits that the manifest names, so
that a lost index is rebuilt with it and all readers have the same splits, and index and manifest
are written anew, in one commit. Splits are shares of the episodes, drawn by a seed: episodes that
are in one stay there when others are added.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.edit.changes import Change, EditedDataset, edit_dataset, open_for_edit
from seqrecord.errors import ClipError, FormatError, NotFoundError, SchemaError
from seqrecord.format.edits import Delete, Edit, Relabel, Rename, Split
from seqrecord.format.footer import Footer
from seqrecord.format.index import NO_SPLIT, Index
from seqrecord.format.manifest import MAX_SPLITS
from seqrecord.format.text import check_key, encode_metadata
from seqrecord.reading.filters import EpisodeFilter
from seqrecord.reading.index_building import complete_episodes
from seqrecord.reading.metadata import read_edits, read_footer, record_sizes
from seqrecord.storage import Storage
from seqrecord.text import counted, repr_of
from seqrecord.units import check_seed
from seqrecord.writing.edit_files import check_split_name, split_edits


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
    removes them. Others keep their bytes until `rewrite_files`. Statistics are of all frames
    together, so a deletion removes them, with a warning: `add_statistics` (`seqrecord stats`)
    computes those of the remaining frames. With `dry_run` nothing is changed.

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

    In a new key `{}` is the old one, and the old one may then be a glob: `{"episode_*": "B/{}"}`.
    Of two entries for one episode the later counts. Two episodes may change keys with each other.
    Raises as `delete_episodes` does, `FormatError` for what is no key, and `ClipError` for a key
    that another episode has.
    """

    def make(dataset: EditedDataset) -> Change:
        index = dataset.index
        new = {}
        for old, key in keys.items():
            is_glob = "{}" in key and old not in index.positions
            for i in dataset.find(old if is_glob else [old]):
                new[i] = check_key(key.replace("{}", index.key(i)))
        new = {i: new[i] for i in sorted(new) if new[i] != index.key(i)}
        others = index.positions.keys() - {index.key(i) for i in new}
        times = Counter(new.values())
        taken = sorted(key for key in times if key in others or times[key] > 1)
        if taken:
            raise ClipError(
                "two episodes would have one key",
                file=dataset.storage.url,
                got=", ".join(taken[:10]),
            )
        return [*new], renaming(dataset, new)

    return edit_dataset(location, make, dry_run, storage_options)


def renaming(dataset: EditedDataset, keys: Mapping[int, str]) -> list[Edit]:
    """The edits that give episodes, by number, these keys."""
    renamed = Rename({dataset.index.uid(i): key for i, key in keys.items()})
    return [Delete(_copies(dataset, keys)), renamed]


def set_metadata(
    location: str | PathLike[str],
    episodes: EpisodeFilter,
    entries: Mapping[str, Any],
    *,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Change entries of the metadata of episodes; `None` removes one. Returns their keys.

    Other entries stay. Raises as `delete_episodes` does, `FormatError` for what JSON cannot hold,
    and `SchemaError` for a new entry of the name of a feature of texts: `set_text` changes
    those.
    """

    def make(dataset: EditedDataset) -> Change:
        index = dataset.index
        for name, spec in dataset.manifest.schema.active.items():
            if spec.value == "text" and entries.get(name) is not None:
                raise SchemaError(
                    "batches have the texts of the feature, not of the metadata; set_text "
                    f"(--text {name}=TEXT) changes them",
                    file=dataset.storage.url,
                    feature=name,
                )
        texts = {}
        for i in dataset.find(episodes):
            metadata = {**index.episode_metadata(i), **entries}
            gone = {name for name, value in entries.items() if value is None}
            text = encode_metadata({k: v for k, v in metadata.items() if k not in gone})
            if text != encode_metadata(index.episode_metadata(i)):
                texts[i] = text
        return [*texts], [Relabel({index.uid(i): text for i, text in texts.items()})]

    return edit_dataset(location, make, dry_run, storage_options)


def _deleted(episodes: EpisodeFilter, but_these: bool, dataset: EditedDataset) -> Change:
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


def _copies(dataset: EditedDataset, episodes: Iterable[int]) -> tuple[str, ...]:
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
    for path, size in sizes.items():
        with contextlib.suppress(FormatError, NotFoundError):
            found[path] = read_footer(storage, path, size)
    return found


def split_dataset(
    location: str | PathLike[str],
    shares: Mapping[str, float],
    *,
    by: str = "episode",
    seed: int = 0,
    reassign: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, int]:
    """Give episodes to named splits; returns how many episodes each split has now.

    Each split of `shares` gets its share of the episodes, as nearly as can be; the shares come to 1
    at most, and what is left is in no split. Episodes that are in one of these splits stay there,
    so that what was kept for validation is not trained on later; with `reassign` they are dealt
    again. Episodes in other splits stay there, and do not count.

    With `by="episode"` each episode is drawn for itself. Else `by` names an entry of the metadata,
    and episodes that are equal in it come into one split: all recordings of one scene, say.

    Raises `ClipError` for shares or names that make no sense, for an episode without the entry, and
    where a split whose share is above 0 would have no episode, since there are too few of them;
    `NotFoundError` where there is no dataset, and `ConflictError` where another writer commits
    meanwhile.
    """
    _check_shares(shares)
    given: object = by
    if not isinstance(given, str):
        raise ClipError(
            "by is not valid",
            expected="episode, or an entry of the metadata",
            got=repr_of(given),
        )
    seed = check_seed(seed)
    with open_for_edit(location, storage_options) as dataset:
        index, url = dataset.index, dataset.storage.url
        names = _split_names(dataset, shares)
        numbers = [names.index(name) for name in shares]
        old = index.split.astype(np.int64)
        kept = np.isin(old, numbers) & (not reassign)
        units = _split_units(index, by, url)
        new = assign_splits(old, kept, units, numbers, list(shares.values()), seed)
        counts = {name: int((new == number).sum()) for number, name in enumerate(names)}
        if empty := [name for name, share in shares.items() if share and not counts[name]]:
            raise ClipError(  # nobody could read it
                "a split would have no episode; nothing was changed",
                file=url,
                expected="more episodes, or other shares",
                got=f"{', '.join(empty)[:200]} of {counted(len(new), 'episode')}",
            )
        if edits := split_edits(index, new, names):
            dataset.commit(edits)
        return counts


def split_episodes(
    location: str | PathLike[str],
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

    def make(dataset: EditedDataset) -> Change:
        names = _split_names(dataset, [] if split is None else [split])
        number = NO_SPLIT if split is None else names.index(split)
        found = dataset.find(episodes)
        chosen = [i for i in found if dataset.index.split[i] != number]
        return chosen, [Split(split, tuple(dataset.index.uid(i) for i in chosen))]

    return edit_dataset(location, make, dry_run, storage_options)


def _check_shares(shares: object) -> None:
    wrong = partial(ClipError, "the shares of the splits are not valid")
    if not isinstance(shares, Mapping):
        expected = "a dict of shares by name, as {'train': 0.9, 'val': 0.1}"
        raise wrong(expected=expected, got=repr_of(shares, 100))
    for name, share in shares.items():
        check_split_name(name)
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
            raise wrong(expected=f"0 to 1 for split {name}", got=repr_of(share, 50))
    total = sum(shares.values())
    if not shares or total > 1 + 1e-9:
        expected = "at least one, and at most 1 together, as train=0.9 val=0.1"
        raise wrong(expected=expected, got=f"{len(shares)} of {total:g} together")


def _split_units(index: Index, by: str, url: str) -> list[str]:
    """What each episode is dealt with: its key, or an entry of its metadata."""
    if by == "episode":
        keys: list[str] = index.keys.to_pylist()
        return keys
    units = []
    for episode in range(len(index.num_frames)):
        metadata = index.episode_metadata(episode)
        if by not in metadata:
            raise ClipError(
                "an episode's metadata lacks the entry that episodes are split by",
                file=url,
                episode=index.key(episode),
                expected=repr(by),
                got=", ".join(metadata)[:200] or "no metadata",
            )
        units.append(json.dumps(metadata[by], sort_keys=True))
    return units


def assign_splits(
    old: npt.NDArray[np.int64],
    kept: npt.NDArray[np.bool_],
    units: Sequence[str],
    numbers: Sequence[int],
    shares: Sequence[float],
    seed: int,
) -> npt.NDArray[np.int64]:
    """The split of each episode, int64[n]: a number, or `NO_SPLIT`.

    Units come in an order drawn from the seed, each to the split that lacks most.
    """
    new: npt.NDArray[np.int64] = old.copy()
    new[np.isin(old, numbers) & ~kept] = NO_SPLIT
    members: dict[str, list[int]] = {}
    chosen: dict[str, int] = {}  # the split of a unit of which an episode is in one already
    for episode, unit in enumerate(units):
        if kept[episode]:
            chosen.setdefault(unit, int(old[episode]))
        elif new[episode] == NO_SPLIT:
            members.setdefault(unit, []).append(episode)
    targets = [*numbers, NO_SPLIT]
    free = int((new == NO_SPLIT).sum()) + int(kept.sum())  # what other splits have is not dealt
    rest = max(0.0, 1 - sum(shares))
    lacking = [
        share * free - int((kept & (old == number)).sum())
        for number, share in zip(numbers, shares, strict=True)
    ]
    lacking.append(rest * free if rest > 1e-9 else float("-inf"))
    for unit in sorted(members, key=lambda unit: _order_key(seed, unit)):
        place = lacking.index(max(lacking))
        if unit in chosen:
            place = targets.index(chosen[unit])
        new[members[unit]] = targets[place]
        lacking[place] -= len(members[unit])
    return new


def _order_key(seed: int, unit: str) -> bytes:
    return hashlib.sha256(f"{seed} {unit}".encode()).digest()


def _split_names(dataset: EditedDataset, more: Iterable[str]) -> tuple[str, ...]:
    """The names of a dataset's splits, and then those of more."""
    names = tuple(dict.fromkeys((*dataset.manifest.splits, *more)))
    if len(names) > MAX_SPLITS:
        raise ClipError(
            "too many splits", file=dataset.storage.url, expected=MAX_SPLITS, got=len(names)
        )
    return names
