"""Names of frame files: which feature and frame number a name encodes.

::

    000007.png                          frame 7
    0007_rgb.png, 0007_depth.npy        frame 7 of rgb and of depth
    cam0_0007.png, cam1_0007.png        frame 7 of cam0 and of cam1
    -5.png, frame_-5.png, frame-5.png   frames -5, -5 and 5

A number stands between separators (`_`, `-`, `.`, blanks); in a name without separators the number
is the last digits (`frame0007`). A minus sign belongs to the number unless letters or digits
precede it. The rest of the name is its words.

Names may be times. One rule applies to all names of a folder::

    305.365.png                         a decimal point: seconds
    1403636579763555584.png             10, 13, 16 or 19 digits: s, ms, us or ns since 1970, if all
                                        dates are from 2000 to 2099
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import chain, filterfalse, pairwise
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple

import numpy as np

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.originals import natural_order
from seqrecord.formats.sources.common.specs import text_spec
from seqrecord.store.schema import FeatureSpec

FRAME_NUMBER = "frame_number"
"""Name and kind of the feature with the numbers in file names."""

FRAME_NAME = "frame_name"
"""Name and kind of the feature with file names without ending, if numbers are not enough."""

TIMESTAMP = "timestamp"
"""Name and kind of the feature with the times in file names."""

_NUMBER = re.compile(r"(?<![^_.\- ])((?:(?<![^_. ])-)?\d+)(?![^_.\- ])", re.ASCII)
_LAST = re.compile(r"(\d+)(?=\D*$)", re.ASCII)
_SEPARATORS = re.compile(r"[_.\- ]+")
_DECIMAL = re.compile(r"(?<![^_\- ])(-?\d+\.\d+)(?![^_\- ])", re.ASCII)
_STAMP = re.compile(r"(?<![^_\- ])(-?\d+\.\d+|\d+)(?![^_\- ])", re.ASCII)
_UNITS = {10: "s", 13: "ms", 16: "us", 19: "ns"}
"""Unit of a time since 1970 by its number of digits."""
_NS = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}
_DATES = range(946_684_800 * 10**9, 4_102_444_800 * 10**9)
_WORD = re.compile(r"(?!(?:.*_)?(?:copy|kopie|copie|copia)(?:_|$))[a-z0-9_]*", re.IGNORECASE)
"""Words that may name a feature: neither `(1)` nor `copy`."""
_FIRST_TIME = 10**9
"""Numbers from here on are times: seconds since 1970, or smaller units."""
_MOST = (1 << 63) - 1


class NameTimes(NamedTuple):
    """Times in file names, in nanoseconds, and a name for each of their units."""

    values: list[int]
    units: dict[str, str]

    @property
    def unit(self) -> str | None:
        """The unit in the names; `None` if there are several."""
        return None if len(self.units) > 1 else next(iter(self.units))


@dataclass(frozen=True)
class FrameFiles:
    """The files of a feature in the order of their numbers.

    Args:
        names: file names by number, or by name without ending if there is no unique number; empty
            in a `summary`.
        first: name of the first frame's file.
        num_frames: number of files.
        endings: file name endings of a `summary`, in lower case.
        pattern: `str.format` pattern from number to name without ending; `None` if the number is
            not enough.
        twice: two files of the same frame, if any.
        unlike: two files whose names differ by more than numbers, if any.
        times: the times in the names, if each name has one.
    """

    names: Mapping[int | str, str] = field(default_factory=dict)
    first: str = ""
    num_frames: int = 0
    endings: frozenset[str] = frozenset()
    pattern: str | None = None
    twice: tuple[str, str] | None = None
    unlike: tuple[str, str] | None = None
    times: NameTimes | None = None

    @property
    def time_values(self) -> Sequence[int]:
        """Times in the names, in nanoseconds; empty if some name has none."""
        return self.times.values if self.times else ()

    def summary(self) -> FrameFiles:
        """Return a copy with the `endings`, without the names and times of single files."""
        endings = frozenset(map(ending_of, self.names.values()))
        times = self.times and self.times._replace(values=[])
        return replace(self, names={}, endings=endings, times=times)

    def check(self, folder: Path, feature: str | None = None) -> None:
        """Raise `SourceError` for two files of one frame, and for files of two recordings."""
        if self.twice:
            file, other_file = self.twice
            raise SourceError(
                "two files have the same frame number",
                file=str(folder / file),
                feature=feature,
                got=f"{file} and {other_file}",
            )
        if self.unlike:
            file, other_file = self.unlike
            raise SourceError(
                "file names differ by more than a number (two recordings, or a copy); move "
                "one recording to a folder of its own",
                file=str(folder / file),
                feature=feature,
                expected=f"names like {other_file}",
                got=file,
            )
        if self.times is not None and len(self.times.units) > 1:
            raise SourceError(
                "times of several units in the names of frames; rename the files",
                file=str(folder),
                feature=feature,
                expected="one unit: " + ", ".join(f"{n} digits for {u}" for n, u in _UNITS.items()),
                got=", ".join(f"{file} ({unit})" for unit, file in self.times.units.items()),
            )


class _Name(NamedTuple):
    """A file name split into numbers and the texts around them."""

    stem: str
    file: str
    texts: tuple[str, ...]
    numbers: tuple[int, ...]


def files_by_feature(files: Iterable[str]) -> dict[str, FrameFiles]:
    """Group a folder's files into features by the words of their names.

    Files are several features if one number occurs with different words; names without a number are
    then ignored. Otherwise all files are one feature, named by words that all names share, or "".
    If names differ by more than numbers, its `unlike` gives two of them.
    """
    by_texts: dict[tuple[str, ...], list[_Name]] = {}
    for name in map(_parse_name, files):
        by_texts.setdefault(name.texts, []).append(name)
    by_words: dict[str, list[_Name]] = {}
    words_of: dict[tuple[int, ...], str] = {}
    are_several = False
    for texts, names in by_texts.items():
        words = ""
        if names[0].numbers:
            words = _words(texts)
            are_several |= any(words_of.setdefault(name.numbers, words) != words for name in names)
        by_words.setdefault(words, []).extend(names)
    odd_words = filterfalse(_WORD.fullmatch, by_words)
    odd_names = [*chain.from_iterable(map(by_words.__getitem__, odd_words))]
    words_of_features = filter(_WORD.fullmatch, sorted(by_words))
    valid_words = {words: [n for n in by_words[words] if n.numbers] for words in words_of_features}
    if are_several and any(valid_words.values()):
        by_words = valid_words
    elif len(by_words) > 1:
        by_words, odd_names = {"": [*chain(*by_words.values())]}, []
    ordered = {words: _sort_files(names) for words, names in by_words.items() if names}
    if are_several and odd_names:
        words, feature_files = next(iter(ordered.items()))
        ordered[words] = replace(feature_files, unlike=(min(odd_names).file, feature_files.first))
    return ordered


def frame_files(files: Iterable[str]) -> FrameFiles:
    """Like `files_by_feature`, for files of a single feature."""
    return _sort_files([*map(_parse_name, files)])


def ending_of(name: str) -> str:
    """Return a file name's ending in lower case: `.png`."""
    stem, dot, ending = name.rpartition(".")
    return f"{dot}{ending.lower()}" if stem else ""


def escaped(text: str) -> str:
    """Escape a text for use in a `str.format` pattern."""
    return text.replace("{", "{{").replace("}", "}}")


def number_of(pattern: str, name: str) -> int:
    """Return the number from which a pattern makes this name."""
    prefix, *suffixes = (text for text, *_ in Formatter().parse(pattern))
    return int(name.removeprefix(prefix).removesuffix("".join(suffixes)))


def check_numbers(
    numbers: Sequence[int | str], folder: Path, *, num_frames: int | None = None
) -> None:
    """Raise `SourceError` for a gap in frame numbers: they must ascend by a constant step.

    Names and times are not checked. For two frames the step is 1. `numbers` may be a part of the
    episode's `num_frames`.
    """
    steps = [
        next_number - number
        for number, next_number in pairwise(numbers)
        if isinstance(number, int) and isinstance(next_number, int)
    ]
    step = min(steps, default=1) if (num_frames or len(numbers)) > 2 else 1
    for number, distance in zip(numbers, steps, strict=False):
        if (distance != step or distance < 1) and isinstance(number, int) and number < _FIRST_TIME:
            raise SourceError(
                "gap in the frame numbers; to join the frames around gaps, set allow_gaps=true "
                "(--source-option)",
                file=str(folder),
                expected=f"frame {number + max(step, 1)} after {number}",
                got=f"frame {number + distance}",
            )


def time_note(unit: str | None) -> str:
    """Return a note on the unit of times in file names."""
    return f"the file names are times in {unit}"


def name_specs(root: Path, *, are_named: bool, are_times: bool = False) -> list[FeatureSpec]:
    """Return the specs of file name features.

    The text feature only if the frames `are_named`, the time only if names `are_times`.
    """
    specs = [FeatureSpec(FRAME_NUMBER, np.dtype("<i8"), (), kind=FRAME_NUMBER)]
    if are_times:
        specs.append(FeatureSpec(TIMESTAMP, np.dtype("<i8"), (), kind=TIMESTAMP, unit="ns"))
    if are_named:
        specs.append(replace(text_spec(FRAME_NAME, root), kind=FRAME_NAME))
    return specs


def name_times(stems: Iterable[str]) -> NameTimes | None:
    """Return the times in names without ending; `None` unless each has a time of its own."""
    values: dict[int, None] = {}
    units: dict[str, str] = {}
    for stem in stems:
        words = (_stamp(word) for word in _STAMP.findall(stem))
        stamps = [stamp for stamp in words if stamp is not None]
        if len(stamps) != 1 or stamps[0][0] in values:
            return None
        values[stamps[0][0]] = None
        units.setdefault(stamps[0][1], stem)
    is_sure = len(values) > 1 or any(time in _DATES for time in values)
    return NameTimes(list(values), units) if is_sure else None


def _stamp(word: str) -> tuple[int, str] | None:
    """Return nanoseconds and unit of a time; `None` for other numbers."""
    if "." in word:
        time, unit = round(Decimal(word) * 10**9), "s"
        return (time, unit) if abs(time) <= _MOST else None
    unit = _UNITS.get(len(word), "")
    time = int(word) * _NS[unit] if unit else -1
    return (time, unit) if time in _DATES else None


def _parse_name(file: str) -> _Name:
    stem = file.rpartition(".")[0] or file
    parts = _NUMBER.split(stem)
    if len(parts) == 1:
        parts = _LAST.split(stem)
    return _Name(stem, file, tuple(parts[::2]), tuple(map(int, parts[1::2])))


def _words(texts: Iterable[str]) -> str:
    return "_".join(word for text in texts for word in _SEPARATORS.split(text) if word)


def _sort_files(names: Sequence[_Name]) -> FrameFiles:
    """Sort files by the first number that varies, if names are equal except for numbers."""
    if not names:
        return FrameFiles()
    usual_name, unlike_name = _unlike(names)
    times = name_times(name.stem for name in names)
    if times is not None and times.unit is not None:
        names = [name for _, name in sorted(zip(times.values, names, strict=True))]
        times = times._replace(values=sorted(times.values))
    are_named = any(_DECIMAL.search(n.stem) if times else _is_time(n.stem) for n in names)
    numbered_files = (
        _files_by_number(names)
        if names[0].numbers and unlike_name is None and not are_named
        else None
    )
    numbered_files = numbered_files or _files_of_frames(
        [name.stem for name in names], names, is_sorted=times is not None
    )
    unlike = None if unlike_name is None else (unlike_name.file, usual_name.file)
    return replace(numbered_files, times=times, unlike=unlike)


def _files_by_number(names: Sequence[_Name]) -> FrameFiles | None:
    columns = [*zip(*(name.numbers for name in names), strict=True)]
    place = next((i for i, column in enumerate(columns) if len({*column}) > 1), 0)
    column = columns[place]
    is_unique = len(columns) == 1 or len({*column}) == len({*zip(*columns, strict=True)})
    if not is_unique or min(column) < -_MOST or max(column) > _MOST:
        return None
    return _files_of_frames(column, names, _pattern(names[column.index(min(column))], place))


def _unlike(names: Sequence[_Name]) -> tuple[_Name, _Name | None]:
    """Return a name of the most frequent kind, and a name of another kind, if any.

    Names without numbers are one kind.
    """
    kinds: dict[tuple[str, ...], list[_Name]] = {}
    for name in names:
        # A time may be printed without decimals: 1000000001.png after 1000000000.5.png.
        time_name = _parse_name(_DECIMAL.sub("0", name.stem)) if _is_time(name.stem) else name
        kinds.setdefault(time_name.texts if name.numbers else (), []).append(name)
    usual_names, *other_kinds = sorted(kinds.values(), key=len, reverse=True)
    return min(usual_names), min(other_kinds[0]) if other_kinds else None


def _files_of_frames(
    frames: Sequence[int | str],
    names: Sequence[_Name],
    pattern: str | None = None,
    *,
    is_sorted: bool = False,
) -> FrameFiles:
    file_of_frame: dict[int | str, str] = {}
    twice = None
    for frame, name in zip(frames, names, strict=True):
        if (earlier_file := file_of_frame.setdefault(frame, name.file)) is not name.file:
            twice = name.file, earlier_file
        if pattern is not None and pattern.format(frame) != name.stem:
            pattern = None
    order = list(file_of_frame) if is_sorted else sorted(file_of_frame, key=_place)
    ordered = {frame: file_of_frame[frame] for frame in order}
    first_file = ordered[order[0]]
    return FrameFiles(ordered, first_file, len(order), pattern=pattern, twice=twice)


def _place(frame: int | str) -> Any:
    """Sort key: natural order of names."""
    return frame if isinstance(frame, int) else natural_order(frame)


def _is_time(stem: str) -> bool:
    """Return whether a name contains a time with decimals: its single numbers are not enough."""
    decimal_match = _DECIMAL.search(stem)
    return decimal_match is not None and Decimal(decimal_match[1]) >= _FIRST_TIME


def _pattern(name: _Name, place: int) -> str:
    """Return the `str.format` pattern of the name without ending, for the number at this place."""
    parts = (_NUMBER if _NUMBER.search(name.stem) else _LAST).split(name.stem)
    texts = [escaped(part) for part in parts]
    number = parts[2 * place + 1]
    width = 1 if re.match("-[1-9]", number) else len(number)
    texts[2 * place + 1] = f"{{:0{width}d}}"
    return "".join(texts)
