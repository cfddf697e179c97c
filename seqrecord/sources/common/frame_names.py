"""Names of frames' files: of which feature and of which frame a file is.

::

    000007.png                          frame 7
    0007_rgb.png, 0007_depth.npy        frame 7 of rgb and of depth
    cam0_0007.png, cam1_0007.png        frame 7 of cam0 and of cam1
    -5.png, frame_-5.png, frame-5.png   frames -5, -5 and 5

A number stands between separators (`_`, `-`, `.`, blanks); in a name without one it is the last
digits (`frame0007`). A minus is its sign unless letters or digits precede. What is left of a name
are its words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from statistics import median
from string import Formatter
from typing import Any, NamedTuple

import numpy as np

from seqrecord.errors import SourceError
from seqrecord.schema import FeatureSpec
from seqrecord.sources.common.originals import natural_order
from seqrecord.sources.common.specs import text_spec

FRAME_NUMBER = "frame_number"
"""The feature, and its kind, of the numbers in files' names."""

FRAME_NAME = "frame_name"
"""The feature, and its kind, of files' names without ending, where numbers do not tell them."""

_NUMBER = re.compile(r"(?<![^_.\- ])((?:(?<![^_. ])-)?\d+)(?![^_.\- ])", re.ASCII)
_LAST = re.compile(r"(\d+)(?=\D*$)", re.ASCII)
_SEPARATORS = re.compile(r"[_.\- ]+")
_DECIMAL = re.compile(r"(?<![^_\- ])(-?\d+\.\d+)(?![^_\- ])", re.ASCII)
_WORD = re.compile(r"(?!(?:.*_)?(?:copy|kopie|copie|copia)(?:_|$))[a-z0-9_]*", re.IGNORECASE)
"""Words that may name a feature: neither `(1)` nor `copy`."""
_FIRST_TIME = 10**9
"""Numbers from here on are times: seconds since 1970, or parts of these."""
_TIME_GAP = 5
"""Steps between times that exceed the median so many times are gaps."""
_MOST = (1 << 63) - 1


@dataclass(frozen=True)
class FrameFiles:
    """The files of a feature in the order of their numbers.

    `names` are the files by number; by name without ending where these have no numbers, or several
    that differ. `pattern` makes of a number the name without ending, by `str.format`; it is `None`
    where the number is not enough. `twice` are two files of one frame, if there are such, and
    `unlike` two files of which the names differ by more than numbers.
    """

    names: Mapping[int | str, str]
    pattern: str | None = None
    twice: tuple[str, str] | None = None
    unlike: tuple[str, str] | None = None

    @property
    def first(self) -> str:
        """Name of the first frame's file."""
        return next(iter(self.names.values()))

    @property
    def num_frames(self) -> int:
        return len(self.names)

    def check(self, folder: Path, feature: str | None = None) -> None:
        """Raises `SourceError` for two files of one frame, and for files of two recordings."""
        if self.twice:
            file, other = self.twice
            raise SourceError(
                "two files of one frame",
                file=str(folder / file),
                feature=feature,
                got=f"{other} too",
            )
        if self.unlike:
            file, other = self.unlike
            raise SourceError(
                "names of files that differ by more than a number: two recordings, or a copy; move "
                "one of them to a folder of its own",
                file=str(folder / file),
                feature=feature,
                expected=f"names like {other}",
                got=file,
            )


class _Name(NamedTuple):
    """A file's name taken apart, with the texts around its numbers."""

    stem: str
    file: str
    texts: tuple[str, ...]
    numbers: tuple[int, ...]


def files_by_feature(files: Iterable[str]) -> dict[str, FrameFiles]:
    """The files of each feature among those of a folder, by the words of their names.

    They are several features where one number is in names of different words: then names without
    a number are left out. Otherwise they are one, with the words that all names have, or none; and
    if names differ by more than numbers, two of them are its `unlike`.
    """
    by_texts: dict[tuple[str, ...], list[_Name]] = {}
    for name in map(_parsed, files):
        by_texts.setdefault(name.texts, []).append(name)
    by_words: dict[str, list[_Name]] = {}
    words_of: dict[tuple[int, ...], str] = {}
    are_several = False
    for texts, names in by_texts.items():
        words = _words(texts) if names[0].numbers else ""
        by_words.setdefault(words, []).extend(names)
        if len(by_texts) > 1:
            found = (words_of.setdefault(name.numbers, words) for name in names if name.numbers)
            are_several |= any(other != words for other in found)
    odd = [
        name for words, names in by_words.items() if not _WORD.fullmatch(words) for name in names
    ]
    words_of_features = filter(_WORD.fullmatch, sorted(by_words))
    valid = {words: [n for n in by_words[words] if n.numbers] for words in words_of_features}
    if are_several and any(valid.values()):
        by_words = valid
    elif len(by_words) > 1:
        by_words, odd = {"": [name for names in by_words.values() for name in names]}, []
    ordered = {words: _in_order(names) for words, names in by_words.items() if names}
    if are_several and odd:
        words, one = next(iter(ordered.items()))
        ordered[words] = replace(one, unlike=(min(odd).file, one.first))
    return ordered


def frame_files(files: Iterable[str]) -> FrameFiles:
    """As `files_by_feature` of files that are one feature."""
    return _in_order([*map(_parsed, files)])


def escaped(text: str) -> str:
    """The text as a part of one for `str.format`."""
    return text.replace("{", "{{").replace("}", "}}")


def number_of(pattern: str, name: str) -> int:
    """The number of which a pattern makes this name."""
    before, *after = (text for text, *_ in Formatter().parse(pattern))
    return int(name.removeprefix(before).removesuffix("".join(after)))


def check_numbers(
    numbers: Sequence[int | str], folder: Path, *, num_frames: int | None = None
) -> None:
    """Raises `SourceError` for a gap in the numbers of frames, which ascend by one and the same
    step. Names and times may be at any distance.

    Of two frames the step is 1. The numbers may be some of the episode's `num_frames`.
    """
    steps = [
        later - one
        for one, later in pairwise(numbers)
        if isinstance(one, int) and isinstance(later, int)
    ]
    step = min(steps, default=1) if (num_frames or len(numbers)) > 2 else 1
    for one, found in zip(numbers, steps, strict=False):
        if (found != step or found < 1) and isinstance(one, int) and one < _FIRST_TIME:
            raise SourceError(
                "a gap in the numbers of the frames; with allow_gaps=true (--source-option) frames "
                "around a gap become neighbours",
                file=str(folder),
                expected=f"frame {one + max(step, 1)} after {one}",
                got=f"frame {one + found}",
            )


def time_gaps(frames: Iterable[int | str]) -> str | None:
    """Gaps between frames whose names are times, in words; `None` if there are none.

    A gap is a step of more than five times the median. Times are numbers from 1e9 on.
    """
    times = [time for frame in frames if (time := _time(frame)) is not None]
    steps = [later - one for one, later in pairwise(times)]
    typical = median(steps) if len(steps) > 2 else 0
    gaps = [place for place, step in enumerate(steps) if step > _TIME_GAP * typical > 0]
    if not gaps:
        return None
    widest = max(gaps, key=lambda place: steps[place])
    return (
        f"{len(gaps)} {'gap' if len(gaps) == 1 else 'gaps'} in the times of the frames, the widest "
        f"{steps[widest]:.6g} after {times[widest]}; median step {typical:.6g}"
    )


def _time(frame: int | str) -> float | None:
    """The time that a frame's name is; integers stay exact."""
    if isinstance(frame, str):
        found = _DECIMAL.search(frame)
        time: float = float(found[1]) if found else 0
    else:
        time = frame
    return time if time >= _FIRST_TIME else None


def name_specs(root: Path, *, are_named: bool) -> list[FeatureSpec]:
    """The features of files' names; of text only where the frames `are_named`."""
    specs = [FeatureSpec(FRAME_NUMBER, np.dtype("<i8"), (), kind=FRAME_NUMBER)]
    if are_named:
        specs.append(replace(text_spec(FRAME_NAME, root), kind=FRAME_NAME))
    return specs


def _parsed(file: str) -> _Name:
    stem = file.rpartition(".")[0] or file
    parts = _NUMBER.split(stem)
    if len(parts) == 1:
        parts = _LAST.split(stem)
    return _Name(stem, file, tuple(parts[::2]), tuple(map(int, parts[1::2])))


def _words(texts: Iterable[str]) -> str:
    return "_".join(word for text in texts for word in _SEPARATORS.split(text) if word)


def _in_order(names: Sequence[_Name]) -> FrameFiles:
    """By the first number that differs from file to file, where they are alike but for numbers."""
    if not names:
        return FrameFiles({})
    usual, other = _unlike(names)
    if names[0].numbers and other is None and not _is_time(names[0].stem):
        columns = [*zip(*(name.numbers for name in names), strict=True)]
        place = next((i for i, column in enumerate(columns) if len({*column}) > 1), 0)
        column = columns[place]
        is_unique = len(columns) == 1 or len({*column}) == len({*zip(*columns, strict=True)})
        if is_unique and min(column) >= -_MOST and max(column) <= _MOST:
            return _once(column, names, _pattern(names[column.index(min(column))], place))
    found = _once([name.stem for name in names], names)
    return found if other is None else replace(found, unlike=(other.file, usual.file))


def _unlike(names: Sequence[_Name]) -> tuple[_Name, _Name | None]:
    """A name of the kind that most have, and one of another kind, if there is one.

    Names without any number are of one kind.
    """
    kinds: dict[tuple[str, ...], list[_Name]] = {}
    for name in names:
        kinds.setdefault(name.texts if name.numbers else (), []).append(name)
    usual, *others = sorted(kinds.values(), key=len, reverse=True)
    return min(usual), min(others[0]) if others else None


def _once(
    frames: Sequence[int | str], names: Sequence[_Name], pattern: str | None = None
) -> FrameFiles:
    found: dict[int | str, str] = {}
    twice = None
    for frame, name in zip(frames, names, strict=True):
        if (other := found.setdefault(frame, name.file)) is not name.file:
            twice = name.file, other
        if pattern is not None and pattern.format(frame) != name.stem:
            pattern = None
    order = sorted(found, key=_place)
    return FrameFiles({frame: found[frame] for frame in order}, pattern, twice)


def _place(frame: int | str) -> Any:
    """Names in natural order, but times by value: 1305031102.5 is after 1305031102.25."""
    if isinstance(frame, int):
        return frame
    found = _DECIMAL.search(frame)
    if found is None or not _is_time(frame):
        return 0, natural_order(frame)
    return 1, natural_order(frame[: found.start()]), Decimal(found[1]), natural_order(frame)


def _is_time(stem: str) -> bool:
    """Whether a name has a time with decimals, of which each number alone is not enough."""
    found = _DECIMAL.search(stem)
    return found is not None and Decimal(found[1]) >= _FIRST_TIME


def _pattern(name: _Name, place: int) -> str:
    """The name without ending, for `str.format` of the number at this place."""
    parts = (_NUMBER if _NUMBER.search(name.stem) else _LAST).split(name.stem)
    texts = [escaped(part) for part in parts]
    number = parts[2 * place + 1]
    width = 1 if re.match("-[1-9]", number) else len(number)
    texts[2 * place + 1] = f"{{:0{width}d}}"
    return "".join(texts)
