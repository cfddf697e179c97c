"""Values of the loaders' arguments, each checked when it is created."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from seqrecord.loader.frames.trials import check_signature
from seqrecord.store.storage.base import MIN_CACHE_BYTES
from seqrecord.store.storage.url import local_path
from seqrecord.store.units import (
    MAX_INT,
    are_names,
    check,
    check_flag,
    check_integer,
    check_size,
    format_size,
    is_integer,
    is_word,
    parse_size,
    raise_if,
)
from seqrecord.store.value_kinds import FrameFunction

if TYPE_CHECKING:
    from seqrecord.loader.frames.normalization import Normalization

MOST_VALUES = 1 << 16  # of a vector in batches
SCOPES = ("source", "robot_type", "mix")
_CACHE = "SEQRECORD_FRAME_CACHE"  # environment variable


@dataclass(frozen=True)
class Vector:
    """Form of a vector in batches: places, size and normalization; see `vectors` of loaders.

    Example:
        wide = seqrecord.Vector(place=[0, 1, 2, 3, 4, 5, 9], pad_to=12)
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, vectors={"pose": wide})

    Args:
        place: for a feature [D] or [T, D], the index of each value in the last axis of batches, all
            different. Values at other indices are 0.
        pad_to: the number of values in batches: zeros follow the values. Default with `place`: its
            largest index + 1.
        normalize: "mean_std" subtracts the mean and divides by the standard deviation; "quantiles"
            maps the quantiles 0.01 and 0.99 to -1 and 1; or a `Normalization`.
        statistics: in a mix, the stored statistics to normalize by: "source" (default), of each
            source by itself; "robot_type", merged over sources with the same `robot_type` in the
            metadata of their episodes; "mix", merged over all sources, by their shares.
    """

    place: Sequence[int] | None = None
    pad_to: int | None = None
    normalize: str | Normalization | None = None
    statistics: str = "source"

    def __post_init__(self) -> None:
        """Raise `ClipError` for an invalid value."""
        from seqrecord.loader.frames.normalization import (  # few loaders have one
            MODES,
            Normalization,
        )

        places: Any = self.place
        if places is not None:
            is_list = isinstance(places, (Sequence, np.ndarray)) and not isinstance(places, str)
            numbers = list(places) if is_list and getattr(places, "ndim", 1) == 1 else []
            are_right = all(is_integer(one) and 0 <= one < MOST_VALUES for one in numbers)
            expected = f"distinct indices from 0 to {MOST_VALUES - 1}, one for each value"
            is_right = are_right and 0 < len(numbers) == len({*numbers})
            check("place of a Vector", places, is_right, expected)
            object.__setattr__(self, "place", tuple(map(int, numbers)))
        if self.pad_to is not None:
            size = check_integer("pad_to of a Vector", self.pad_to, least=1, most=MOST_VALUES)
            object.__setattr__(self, "pad_to", size)
        if not isinstance(self.normalize, Normalization | None):
            expected = " or ".join((*map(repr, MODES), "a seqrecord.Normalization"))
            check("normalize of a Vector", self.normalize, is_word(self.normalize, MODES), expected)
        expected = " or ".join(map(repr, SCOPES))
        check("statistics of a Vector", self.statistics, is_word(self.statistics, SCOPES), expected)


_Form: TypeAlias = "Literal['list', 'pad', 'nested']"

Ragged: TypeAlias = "_Form | Mapping[str, _Form | int | Sequence[int]]"
# Form of features of variable shapes: for all, or by name, then also sizes to pad to.

_FORMS = ("list", "pad", "nested")


def check_ragged(value: Any) -> None:
    """Raise `ClipError` for an invalid `ragged`."""
    forms = value if isinstance(value, Mapping) else {"": value}
    are_known = all(
        form in _FORMS if isinstance(form, str) else forms is value and _are_sizes(form)
        for form in forms.values()
    )
    expected = '"list", "pad" or "nested", or a dict of these and sizes by feature'
    check("ragged", value, are_names(forms) and are_known, expected)


def _are_sizes(value: Any) -> bool:
    sizes = [value] if is_integer(value) else value
    return isinstance(sizes, Sequence) and all(
        is_integer(size) and 1 <= size < 2**31 for size in sizes
    )


def check_vectors(name: str, value: Any) -> dict[str, Vector]:
    """Return vectors by feature."""
    is_right = isinstance(value, Mapping) and are_names(value)
    is_right = is_right and all(isinstance(one, Vector) for one in value.values())
    expected = '{"action": seqrecord.Vector(…)}, by feature'
    return {**check(name, value, is_right, expected)}


Cost: TypeAlias = "str | Callable[[Mapping[str, Any]], Any]"
"""The cost of samples: "frames", the name of a column, or a function of columns.

It gets the columns of the table, and `frames`, the number of each row's frames.
"""

TOO_LARGE = ("error", "alone", "drop")


@dataclass(frozen=True)
class Budget:
    """Batches by the costs of their clips: `batch_size` of loaders.

    Example:
        table = {"episode": ["demo/000"] * 3, "frames": [[0, 4, 8], [2], [5, 6]]}
        pipe = seqrecord.SeqRecordPipe("records/", samples=table, batch_size=seqrecord.Budget(4))
        batch = next(iter(pipe))  # the three lists come in two batches of at most 4 frames

    Args:
        size: the greatest cost of a batch.
        cost: of a clip: "frames" (default), the number of its frames; the name of a column of
            `samples`; or a function of columns, such as
            `lambda columns: 256 * columns["frames"] + columns["tokens"]`, an array of a value for
            each row. Costs are integers of at least 1.
        padded: whether each clip of a batch costs as much as the greatest one, so that batches have
            clips of similar costs. Default: as `ragged` of the loader is, true for "pad", also of a
            single feature.
        max_rows: the most clips of a batch. Default: four times the mean number, if costs are not
            frames; otherwise any number.
        too_large: a clip that costs more than `size` raises an "error" (default) that names its
            row, comes "alone", or is left out ("drop"). `stats()["clips_too_large"]` counts them.
    """

    size: int
    cost: Cost = "frames"
    padded: bool | None = None
    max_rows: int | None = None
    too_large: str = "error"

    def __post_init__(self) -> None:
        """Raise `ClipError` for an invalid value."""
        size = check_integer("size of a Budget", self.size, least=1, most=MAX_INT)
        object.__setattr__(self, "size", size)
        cost: Any = self.cost
        is_cost = callable(cost) or (isinstance(cost, str) and cost != "")
        expected = '"frames", the name of a column, or a function of columns'
        check("cost of a Budget", cost, is_cost, expected)
        if callable(cost):
            check_signature("cost of a Budget", cost, "columns")
        if self.padded is not None:
            padded = check_flag("padded of a Budget", self.padded, "True, False or None")
            object.__setattr__(self, "padded", padded)
        if self.max_rows is not None:
            rows = check_integer("max_rows of a Budget", self.max_rows, least=1, most=MAX_INT)
            object.__setattr__(self, "max_rows", rows)
        expected = " or ".join(map(repr, TOO_LARGE))
        check("too_large of a Budget", self.too_large, is_word(self.too_large, TOO_LARGE), expected)

    def rows(self, cost: int) -> int:
        """The clips of a batch whose clips cost `cost` each, at least 1."""
        return max(1, min(self.size // cost, self.max_rows or MAX_INT))


@dataclass(frozen=True)
class FrameCache:
    """Folder for decoded frames on a local disk, and its greatest size: `frame_cache` of loaders.

    Example:
        cache = seqrecord.FrameCache("frames/", "200GiB")
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, batch_size=2, frame_cache=cache)

    Args:
        folder: local path; created if it is missing.
        limit: bytes, or text such as "200GiB", at least 1 MiB. Frames of other trainings that were
            not used since the loader was created make room.
    """

    folder: str | PathLike[str]
    limit: int | str

    def __post_init__(self) -> None:
        """Raise `ClipError` for an invalid limit, `LocationError` for a URL."""
        local_path(self.folder, "folder of a FrameCache")
        limit = parse_size(check_size("limit of a FrameCache", self.limit))
        expected = f"at least {format_size(MIN_CACHE_BYTES)}"
        raise_if(
            limit < MIN_CACHE_BYTES, "limit of a FrameCache is too small", expected, self.limit
        )

    @classmethod
    def from_environment(cls) -> FrameCache | None:
        """The cache of `SEQRECORD_FRAME_CACHE` and `SEQRECORD_FRAME_CACHE_LIMIT`, if both are set.

        Raises `ClipError` if only one is.
        """
        folder, limit = os.environ.get(_CACHE), os.environ.get(f"{_CACHE}_LIMIT")
        problem = f"only one of {_CACHE} and {_CACHE}_LIMIT is set"
        raise_if(bool(folder) != bool(limit), problem, "both, or none", folder or limit)
        return cls(folder, limit) if folder and limit else None


@dataclass(frozen=True)
class FrameTransform:
    """A function of frames and its properties: `frame_transform` of loaders.

    Example:
        half = seqrecord.FrameTransform(
            lambda frame: {"image": frame["image"][::2, ::2]}, deterministic=True
        )
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, batch_size=2, frame_transform=half)

    Args:
        function: a function from the dict of a frame's values to those of clips.
        deterministic: declares that the result for a frame is always the same. Results may then be
            kept in memory across epochs.
        cache_key: text that identifies the function, for example `"undistort-2"`: results of a
            deterministic function are then kept in the `frame_cache`. Change it with the function.
    """

    function: FrameFunction
    deterministic: bool = False
    cache_key: str | None = None

    def __post_init__(self) -> None:
        """Raise `ClipError` for an invalid value."""
        check("function of a FrameTransform", self.function, callable(self.function), "a function")
        flag = check_flag("deterministic of a FrameTransform", self.deterministic)
        object.__setattr__(self, "deterministic", flag)
        key: object = self.cache_key
        is_key = key is None or (isinstance(key, str) and key != "" and self.deterministic)
        expected = "a text, and deterministic=True"
        check("cache_key of a FrameTransform", key, is_key, expected)
