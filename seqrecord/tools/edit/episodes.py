"""Edits of episodes: deletion, keys, metadata, trimmed frames, splits.

Record files do not change. An edit is stored in a file that the manifest names, so that a rebuilt
index includes it and all readers have the same splits; one commit replaces index and manifest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError, FormatError, NotFoundError, SchemaError
from seqrecord.store.format.edits import Delete, Edit, Rename, Split, Trim
from seqrecord.store.format.footer import Footer
from seqrecord.store.format.index import NO_SPLIT, Index
from seqrecord.store.format.manifest import MAX_SPLITS
from seqrecord.store.format.text import check_key
from seqrecord.store.reading.filters import EpisodeFilter
from seqrecord.store.reading.index_building import complete_episodes
from seqrecord.store.reading.metadata import read_edits, read_footer, record_sizes
from seqrecord.store.schema import Schema
from seqrecord.store.storage.base import Storage
from seqrecord.store.text import counted, repr_of
from seqrecord.store.units import check, check_seed
from seqrecord.store.writing.committing import Base, loose_files, recorded
from seqrecord.store.writing.edit_files import check_split_name, split_edits
from seqrecord.tools.edit.changes import Change, EditedDataset, edit_dataset, open_for_edit


@recorded
def delete_episodes(
    location: str | PathLike[str],
    episodes: EpisodeFilter,
    *,
    others: bool = False,
    dry_run: bool = False,
    if_version: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Delete episodes; returns their keys.

    Readers that open the dataset afterwards do not see the episodes, and `reindex` does not restore
    them. Record files without remaining episodes leave the dataset: `clean` removes them. Other
    record files keep the bytes until `rewrite_files`. Statistics cover all frames together, so they
    are removed, with a warning: run `add_statistics` (`seqrecord stats`).

    Args:
        location: local path or URL of the dataset.
        episodes: keys, a glob, or a function of an episode.
        others: keep these episodes, and delete all others.
        dry_run: change nothing.
        if_version: change only this version of the dataset, its id; so an edit that is repeated
            after a `CommitUnknownError` is not applied twice. Every edit has this argument.
        storage_options: for the filesystem that serves a URL.

    Raises `ClipError` if nothing is selected or nothing would remain, `NotFoundError` if there is
    no dataset, and `ConflictError` if another writer commits meanwhile, or for another version than
    `if_version`.

    Example:
        from seqrecord import edit

        edit.delete_episodes("records/", ["demo/000", "demo/001"])
    """
    return edit_dataset(
        location, partial(_deletion, episodes, others), dry_run, storage_options, if_version
    )


@recorded
def rename_episodes(
    location: str | PathLike[str],
    keys: Mapping[str, str],
    *more: str,
    dry_run: bool = False,
    if_version: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Rename episodes, `{old key: new key}`; returns the old keys.

    `{}` in a new key stands for the old key, and the old key may then be a glob: `{"episode_*":
    "B/{}"}`. If two entries match an episode, the later one counts. Two episodes may swap their
    keys. Other arguments and errors as for `delete_episodes`; also raises `FormatError` for an
    invalid key, and `ClipError` for a key of another episode, and for keys that are no dict.

    Example:
        from seqrecord import edit

        edit.rename_episodes("records/", {"*": "site-b/{}"})
    """
    if more or not isinstance(keys, Mapping):
        pair = f"{{{keys!r}: {more[0]!r}}}" if more else "{old: new}"
        got = ", ".join(map(repr, (keys, *more)))
        raise ClipError("the keys are no dict", expected=f"rename_episodes(…, {pair})", got=got)

    def make(dataset: EditedDataset) -> Change:
        index = dataset.index
        new_keys = {}
        for old, key in keys.items():
            is_glob = "{}" in key and old not in index.positions
            for i in dataset.find(old if is_glob else [old]):
                new_keys[i] = check_key(key.replace("{}", index.key(i)))
        new_keys = {i: new_keys[i] for i in sorted(new_keys) if new_keys[i] != index.key(i)}
        other_keys = index.positions.keys() - {index.key(i) for i in new_keys}
        key_counts = Counter(new_keys.values())
        repeated_keys = sorted(
            key for key in key_counts if key in other_keys or key_counts[key] > 1
        )
        if repeated_keys:
            raise ClipError(
                "two episodes would have the same key",
                file=dataset.storage.url,
                got=", ".join(repeated_keys[:10]),
            )
        return [*new_keys], renaming(dataset, new_keys)

    return edit_dataset(location, make, dry_run, storage_options, if_version)


def renaming(dataset: EditedDataset, keys: Mapping[int, str]) -> list[Edit]:
    """The edits that give these keys to episodes, by number."""
    renamed = Rename({dataset.index.uid(i): key for i, key in keys.items()})
    return [Delete(_copies(dataset, keys)), renamed]


@recorded
def set_metadata(
    location: str | PathLike[str],
    episodes: EpisodeFilter,
    entries: Mapping[str, Any],
    *,
    dry_run: bool = False,
    if_version: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Change entries of episodes' metadata, `None` removes one; returns the changed episodes' keys.

    Other entries are kept. Arguments and errors as for `delete_episodes`; also raises `FormatError`
    for a value that is not JSON, and `SchemaError` for a new entry with the name of a text feature:
    change that with `set_text`.

    Example:
        from seqrecord import edit

        edit.set_metadata("records/", None, {"site": "lab", "comment": None})
    """
    expected = 'a dict, such as {"site": "lab"}'
    check("entries", entries, isinstance(entries, Mapping), expected)

    def make(dataset: EditedDataset) -> Change:
        for name, spec in dataset.manifest.schema.active.items():
            if spec.value == "text" and entries.get(name) is not None:
                raise SchemaError(
                    "metadata entry has the name of a text feature, which batches use instead; "
                    f"change the feature with set_text (--text {name}=TEXT)",
                    file=dataset.storage.url,
                    feature=name,
                )
        removed_names = {name for name, value in entries.items() if value is None}

        def changed(metadata: dict[str, Any]) -> dict[str, Any]:
            return {k: v for k, v in {**metadata, **entries}.items() if k not in removed_names}

        return dataset.relabel(changed, dataset.find(episodes))

    return edit_dataset(location, make, dry_run, storage_options, if_version)


@recorded
def trim_episodes(
    location: str | PathLike[str],
    episodes: EpisodeFilter,
    frames: slice,
    *,
    dry_run: bool = False,
    if_version: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Cut frames off the start and the end of episodes; returns the changed episodes' keys.

    `frames` are the remaining frames of each episode, like `episode[30:-10]`: half-open bounds,
    which may be `None`, or negative to count from the end; no step. Readers that open the dataset
    afterwards number the remaining frames from 0. No record file is rewritten: trimmed frames keep
    their bytes until `rewrite_files`, and beyond it in a chunk with remaining frames. Timestamps
    keep their values. Statistics are removed as by `delete_episodes`.

    Other arguments and errors as for `delete_episodes`; also raises `ClipError` for a step, and for
    an episode without remaining frames.

    Example:
        from seqrecord import edit

        edit.trim_episodes("records/", ["demo/000"], slice(1, -1))
    """
    try:
        slice.indices(frames, 1)
    except (TypeError, ValueError) as error:
        raise ClipError(
            "frames is no slice of integers",
            expected="slice(start, stop)",
            got=repr_of(frames),
        ) from error

    def make(dataset: EditedDataset) -> Change:
        index, new_spans = dataset.index, {}
        old_spans = read_edits(dataset.storage, dataset.manifest.edits).frames
        for i in dataset.find(episodes):
            uid, length = index.uid(i), int(index.num_frames[i])
            kept_frames = range(length)[frames]
            if not kept_frames or kept_frames.step != 1:
                raise ClipError(
                    "no frame would be left" if kept_frames.step == 1 else "frames with a step",
                    file=dataset.storage.url,
                    episode=index.key(i),
                    expected="start and stop of remaining frames, for example 30:-10; to delete "
                    "the episode, use `seqrecord edit delete`",
                    got=f"{repr_of(frames)} of {counted(length, 'frame')}",
                )
            if len(kept_frames) < length:
                old_start, _ = old_spans.get(uid, (0, 0))
                new_spans[i] = uid, (old_start + kept_frames.start, old_start + kept_frames.stop)
        return [*new_spans], [Trim(dict(new_spans.values()))]

    return edit_dataset(location, make, dry_run, storage_options, if_version)


def _deletion(episodes: EpisodeFilter, others: bool, dataset: EditedDataset) -> Change:
    """Delete these episodes, or all `others`."""
    numbers = dataset.find(episodes)
    if others:
        numbers = sorted(set(dataset.index.positions.values()).difference(numbers))
    if len(numbers) == len(dataset.index.num_frames):
        raise ClipError(
            "no episode would be left",
            file=dataset.storage.url,
            expected="at least one; to delete all, remove the folder",
        )
    uids = [dataset.index.uid(i) for i in numbers]
    return numbers, [Delete((*uids, *_copies(dataset, numbers)))]


def _copies(dataset: EditedDataset, episodes: Iterable[int]) -> tuple[str, ...]:
    """Uids of other complete episodes with the keys of these episodes.

    If they were not deleted too, one would replace a deleted or renamed episode.
    """
    storage, manifest = dataset.storage, dataset.manifest
    # tests/tools/test_edits.py::test_a_skipped_duplicate_does_not_replace_a_renamed_episode
    old_edits = read_edits(storage, manifest.edits)
    keys = {dataset.index.key(i): dataset.index.uid(i) for i in episodes}
    footers = {**dataset.footers, **_recoverable(storage, dataset.base, manifest.schema)}
    episode_parts = complete_episodes(list(footers.items()), manifest.schema, old_edits.frames)
    other_uids = episode_parts.keys() - set(keys.values()) - old_edits.deleted
    return tuple(
        sorted(u for u in other_uids if old_edits.keys.get(u, episode_parts[u].key) in keys)
    )


def _recoverable(storage: Storage, base: Base, schema: Schema) -> dict[str, Footer]:
    """Footers of record files that the manifest does not name but `reindex` would read.

    Files with another schema belong to no version that continues this one.
    """
    sizes, footers = record_sizes(storage), dict[str, Footer]()
    for path in loose_files(storage, base, sizes):
        with contextlib.suppress(FormatError, NotFoundError):
            footer = read_footer(storage, path, sizes[path])
            if schema.continues(footer.schema, edited=True):
                footers[path] = footer
    return footers


@recorded
def split_dataset(
    location: str | PathLike[str],
    shares: Mapping[str, float],
    *,
    by: str = "episode",
    seed: int = 0,
    if_version: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, int]:
    """Assign episodes to named splits by their shares; returns the number of episodes per split.

    Shares add up to 1 at most; remaining episodes are in no split. Episodes already in one of the
    splits are kept there, so that validation data is never trained on later; `split_episodes`
    removes them from it. Episodes in other splits are unchanged, and do not count.

    Args:
        location: local path or URL of the dataset.
        shares: share of the episodes for each split, 0 to 1: `{"train": 0.9, "val": 0.1}`.
        by: `episode`, or an entry of the metadata: episodes with an equal entry, for example of the
            same scene, get the same split.
        seed: of the random order.
        storage_options: for the filesystem that serves a URL.

    Raises `ClipError` for invalid shares or names, for an episode without the entry, and for too
    few episodes, if a split with a share above 0 would be empty. Raises `NotFoundError` if there is
    no dataset, and `ConflictError` if another writer commits meanwhile.

    Example:
        from seqrecord import edit

        print(edit.split_dataset("records/", {"train": 0.5, "val": 0.5}, seed=1))
    """
    _check_shares(shares)
    entry: object = by
    if not isinstance(entry, str):
        raise ClipError(
            "by is not valid",
            expected="episode, or an entry of the metadata",
            got=repr_of(entry),
        )
    seed = check_seed(seed)
    with open_for_edit(location, storage_options, if_version) as dataset:
        index, url = dataset.index, dataset.storage.url
        names = _split_names(dataset, shares)
        numbers = [names.index(name) for name in shares]
        old = index.split.astype(np.int64)
        units = _split_units(index, by, url)
        new = assign_splits(old, units, numbers, list(shares.values()), seed)
        counts = {name: int((new == number).sum()) for number, name in enumerate(names)}
        if empty := [name for name, share in shares.items() if share and not counts[name]]:
            raise ClipError(  # readers refuse empty splits
                "a split would be empty; nothing was changed",
                file=url,
                expected="more episodes, or other shares",
                got=f"{', '.join(empty)[:200]} of {counted(len(new), 'episode')}",
            )
        if edits := split_edits(index, new, names):
            dataset.commit(edits)
        return counts


@recorded
def split_episodes(
    location: str | PathLike[str],
    episodes: EpisodeFilter,
    split: str | None,
    *,
    dry_run: bool = False,
    if_version: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[str]:
    """Put episodes into this split, or for `None` into none; returns the changed episodes' keys.

    Use `split_dataset` for random splits. Arguments and errors as for `delete_episodes`; also
    raises `ClipError` for an invalid name.

    Example:
        from seqrecord import edit

        edit.split_episodes("records/", "demo/00[01]", "test")
    """
    if split is not None:
        check_split_name(split)

    def make(dataset: EditedDataset) -> Change:
        names = _split_names(dataset, [] if split is None else [split])
        number = NO_SPLIT if split is None else names.index(split)
        selected_numbers = dataset.find(episodes)
        numbers = [i for i in selected_numbers if dataset.index.split[i] != number]
        return numbers, [Split(split, tuple(dataset.index.uid(i) for i in numbers))]

    return edit_dataset(location, make, dry_run, storage_options, if_version)


def _check_shares(shares: object) -> None:
    shares_error = partial(ClipError, "the shares of the splits are not valid")
    if not isinstance(shares, Mapping):
        expected = "a dict of shares by name, such as {'train': 0.9, 'val': 0.1}"
        raise shares_error(expected=expected, got=repr_of(shares, 100))
    for name, share in shares.items():
        check_split_name(name)
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
            raise shares_error(expected=f"0 to 1 for split {name}", got=repr_of(share, 50))
    total = sum(shares.values())
    if not shares or total > 1 + 1e-9:
        expected = "at least one, with a sum of at most 1, such as train=0.9 val=0.1"
        raise shares_error(expected=expected, got=f"{len(shares)} with a sum of {total:g}")


def _split_units(index: Index, by: str, url: str) -> list[str]:
    """For each episode, the text that episodes with the same split share: key or metadata entry."""
    if by == "episode":
        keys: list[str] = index.keys.to_pylist()
        return keys
    units = []
    for episode in range(len(index.num_frames)):
        metadata = index.episode_metadata(episode)
        if by not in metadata:
            raise ClipError(
                "metadata of an episode lacks the entry given as by (--by)",
                file=url,
                episode=index.key(episode),
                expected=repr(by),
                got=", ".join(metadata)[:200] or "no metadata",
            )
        units.append(json.dumps(metadata[by], sort_keys=True))
    return units


def assign_splits(
    old_splits: npt.NDArray[np.int64],
    units: Sequence[str],
    numbers: Sequence[int],
    shares: Sequence[float],
    seed: int,
) -> npt.NDArray[np.int64]:
    """The split of each episode: a number in `numbers`, another old number, or `NO_SPLIT`.

    `old_splits` are the splits before, [episodes]; episodes in one of these splits keep it. Units,
    sets of episodes with equal text in `units`, are shuffled by the seed; each goes to the split
    that lacks most episodes. Returns int64 [episodes].
    """
    new_splits: npt.NDArray[np.int64] = old_splits.copy()
    # So validation data is never trained on later:
    # tests/tools/test_edits.py::test_episodes_stay_in_their_splits_after_an_append
    is_kept = np.isin(old_splits, numbers)
    members: dict[str, list[int]] = {}
    unit_splits: dict[str, int] = {}  # splits of units with a kept episode
    for episode, unit in enumerate(units):
        if is_kept[episode]:
            unit_splits.setdefault(unit, int(old_splits[episode]))
        elif new_splits[episode] == NO_SPLIT:
            members.setdefault(unit, []).append(episode)
    targets = [*numbers, NO_SPLIT]
    num_free = int((new_splits == NO_SPLIT).sum()) + int(is_kept.sum())  # without other splits
    free_share = max(0.0, 1 - sum(shares))
    num_lacking = [
        share * num_free - int((is_kept & (old_splits == number)).sum())
        for number, share in zip(numbers, shares, strict=True)
    ]
    num_lacking.append(free_share * num_free if free_share > 1e-9 else float("-inf"))
    draws = {unit: hashlib.sha256(f"{seed} {unit}".encode()).digest() for unit in members}
    for unit in sorted(members, key=draws.__getitem__):
        place = num_lacking.index(max(num_lacking))
        if unit in unit_splits:
            place = targets.index(unit_splits[unit])
        new_splits[members[unit]] = targets[place]
        num_lacking[place] -= len(members[unit])
    return new_splits


def _split_names(dataset: EditedDataset, new_names: Iterable[str]) -> tuple[str, ...]:
    """Names of a dataset's splits, followed by the new ones in `new_names`."""
    names = tuple(dict.fromkeys((*dataset.manifest.splits, *new_names)))
    if len(names) > MAX_SPLITS:
        raise ClipError(
            "too many splits", file=dataset.storage.url, expected=MAX_SPLITS, got=len(names)
        )
    return names
