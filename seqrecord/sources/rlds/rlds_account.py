"""Inventory of an RLDS dataset."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqrecord.originals.protocol import EpisodeInfo
from seqrecord.sources.inventory import Account, LeftOut, not_selected, unread_files
from seqrecord.sources.rlds.layout import (
    FEATURES,
    INFO,
    RldsFeature,
    RldsFeatures,
    find_shards,
    read_splits,
)
from seqrecord.text import counted


def account_of(
    root: Path,
    folder: Path,
    features: RldsFeatures,
    chosen: Collection[str],
    infos: Sequence[EpisodeInfo],
) -> Account:
    """Return the account of a dataset, from file names and sizes; `infos` are all episodes."""
    shards = find_shards(folder)
    taken = {folder / name for name in (FEATURES, INFO, *(shard.file for shard in shards))}
    taken |= {folder / each.labels_file for each in (*features.steps, *features.episode)}
    steps = sum(info.num_frames for info in infos)
    left_out = [
        not_selected(f"feature {each.name}", steps, "steps", also=_unreadable(each))
        for each in features.steps
        if each.name not in chosen
    ]
    for each in features.episode:
        if absent := sum(not _has(info.metadata, each.key) for info in infos):
            reason = "not short text or numbers" if each.can_be_read else f"no reader ({each.kind})"
            left_out.append(LeftOut(f"episode feature {each.key}", absent, reason, "episodes"))
    left_out += unread_files(root, lambda path: path in taken)
    numbers = [
        f"{counted(len(files), 'shard')} of {split}"
        for split in dict.fromkeys(shard.split for shard in shards)
        if (files := [each for each in shards if each.split == split])
    ]
    reason = f"{FEATURES} with steps, {', '.join(numbers)}"
    places = {
        each.name: f"*.tfrecord-*, feature {each.key}"
        for each in features.steps
        if each.name in chosen
    }
    declared = read_splits(folder)
    notes = [] if declared else [f"no {INFO}: record counts not checked"]
    for split, stated in declared.items():
        if all(shard.split != split for shard in shards):
            notes.append(f"split {split}: declared as empty, no files")
        elif not stated.lengths:
            notes.append(f"split {split}: no shardLengths in {INFO}, record counts not checked")
    return Account(reason, places, tuple(left_out), tuple(notes))


def _unreadable(feature: RldsFeature) -> str:
    return "" if feature.can_be_read else f", no reader ({feature.kind})"


def _has(metadata: Mapping[str, Any], key: str) -> bool:
    place: Any = metadata
    for name in key.split("/"):
        if not isinstance(place, Mapping) or name not in place:
            return False
        place = place[name]
    return True
