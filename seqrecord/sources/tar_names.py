"""Names of WebDataset's tar files, and of the files in them."""

from __future__ import annotations

import re
from collections.abc import Iterable

_TIME = re.compile(r"([^.]*(?:\d{9}\.\d+|\d\.\d{4,}))\.(.+)", re.ASCII | re.DOTALL)
"""The name of a file at a time, whose dot is no beginning of a field."""
_SECONDS = re.compile(r"\d+\.\d+$", re.ASCII)
_TOTAL = re.compile(r"-of-(\d{1,6})\b", re.ASCII)
_NUMBERED = re.compile(r"(.*?)(\d{1,9})((?:-of-\d{1,6})?\D*)", re.ASCII)


def split_name(name: str) -> tuple[str, str, str]:
    """The folder, the key and the field of a member: `run_1/0007.rgb.png`."""
    folder, _, file = name.rpartition("/")
    if time := _TIME.fullmatch(file):
        return folder, time[1], time[2]
    key, _, ending = file.partition(".")
    return folder, key, ending


def seconds_of(key: str) -> float | None:
    """The seconds that a key ends with, if it is a time."""
    found = _SECONDS.search(key)
    return None if found is None else float(found[0])


def missing_shards(names: Iterable[str]) -> list[str]:
    """Names that are missing in series of numbered files: `shard-000001.tar` between others, and
    those of `train-00000-of-00004.tar` up to its total."""
    series: dict[tuple[str, str], dict[int, int]] = {}  # by text around: the numbers, their digits
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            series.setdefault((match[1], match[3]), {})[int(match[2])] = len(match[2])
    missing: list[str] = []
    for (before, after), found in series.items():
        total = _TOTAL.match(after)
        numbers = range(int(total[1])) if total else range(min(found), max(found))
        # Numbers that are mostly missing are no series: dates, ids of recordings.
        if total or len(numbers) <= 2 * len(found):
            digits = min(found.values())
            missing += [f"{before}{n:0{digits}d}{after}" for n in numbers if n not in found]
    return missing
