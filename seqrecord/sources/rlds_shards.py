"""The files of a TFDS dataset: which shards there are, and how many records each has."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqrecord.errors import SourceError
from seqrecord.sources.files import is_file, list_folder, read_bytes
from seqrecord.sources.rlds_features import FEATURES
from seqrecord.text import repr_of

__all__ = ["Shard", "find_dataset", "find_shards"]

_INFO = "dataset_info.json"
_MAX_BYTES = 64 << 20
_MAX_DEPTH = 2  # NAME/VERSION/, or NAME/CONFIG/VERSION/
_SHARD = re.compile(r"(?:.+-)?([A-Za-z0-9_]+)\.tfrecord-(\d{5,9})-of-(\d{5,9})")


@dataclass(frozen=True)
class Shard:
    """A file of records; `num_records` is what dataset_info.json says, if it does."""

    split: str
    file: str
    num_records: int | None


def find_dataset(root: Path) -> Path | None:
    """The folder of `features.json`: `root`, or the only such folder below it."""
    found = _find(root, _MAX_DEPTH)
    if len(found) > 1:
        raise SourceError(
            "more than one TFDS dataset: name one of them",
            file=str(root),
            expected=f"one {FEATURES}",
            got=", ".join(str(path.relative_to(root)) for path in found)[:200],
        )
    return found[0] if found else None


def _find(folder: Path, depth: int) -> list[Path]:
    if is_file(folder / FEATURES):
        return [folder]
    if not depth:
        return []
    names = sorted(name for name, is_folder in list_folder(folder) if is_folder)
    return [path for name in names for path in _find(folder / name, depth - 1)]


def find_shards(folder: Path) -> list[Shard]:
    """All shards by split and number; raises `SourceError` for one that is missing."""
    lengths = _lengths(folder)
    found: dict[str, dict[int, str]] = {}
    totals: dict[str, int] = {}
    for name, is_folder in sorted(list_folder(folder)):
        match = None if is_folder else _SHARD.fullmatch(name)
        if match is None:
            continue
        split, number, total = match[1], int(match[2]), int(match[3])
        if totals.setdefault(split, total) != total or number in found.get(split, {}):
            raise SourceError(
                "shards that are not of one dataset",
                file=str(folder / name),
                expected=f"one file for each of {totals[split]} shards of {split}",
            )
        found.setdefault(split, {})[number] = name
    if not found:
        raise SourceError("no TFRecord file", file=str(folder), expected="NAME-SPLIT.tfrecord-…")
    shards = []
    for split in sorted({*found, *lengths}, key=lambda name: (name != "train", name)):
        known = lengths.get(split)
        total = totals.get(split, 0)
        if known is not None and total and len(known) != total:
            raise SourceError(
                "another number of shards than dataset_info.json says",
                file=str(folder),
                expected=f"{len(known)} of {split}",
                got=total,
            )
        for number in range(total):
            if number not in found[split]:
                raise SourceError(
                    "a shard is missing", file=str(folder), expected=f"{split}, {number} of {total}"
                )
            shards.append(Shard(split, found[split][number], known[number] if known else None))
        if not total and known and sum(known):
            raise SourceError("the shards of a split are missing", file=str(folder), expected=split)
    return shards


def _lengths(folder: Path) -> Mapping[str, list[int]]:
    """The numbers of records of each split's shards; nothing where it is not said."""
    path = folder / _INFO
    if not is_file(path):
        return {}
    try:
        info = json.loads(read_bytes(path, _MAX_BYTES))
        kind = info.get("fileFormat", "tfrecord")
        splits = {str(each["name"]): _numbers(each) for each in info.get("splits", [])}
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise SourceError(f"not a {_INFO}", file=str(path), got=str(error)[:200]) from error
    if kind not in ("tfrecord", ""):
        raise SourceError(
            "a TFDS dataset of another file format",
            file=str(path),
            expected="tfrecord",
            got=repr_of(kind, 50),
        )
    return splits


def _numbers(split: dict[str, Any]) -> list[int]:
    lengths = [int(length) for length in split.get("shardLengths", [])]
    if min(lengths, default=0) < 0:
        raise ValueError(f"a shard of {min(lengths)} records")
    return lengths
