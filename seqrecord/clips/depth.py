"""DepthToMeters: depth of any unit and dtype becomes float32 metres."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.feature_kinds import same_unit, size_in
from seqrecord.text import repr_of

if TYPE_CHECKING:
    from seqrecord.schema import Schema

_Transform = TypeVar("_Transform")


class DepthToMeters:
    """Converts depth features to float32 metres, as a `frame_transform` or in a `clip_transform`.

    ::

        steps = [RandomCrop(224), DepthToMeters("depth")]
        SeqRecordPipe("records/", clip_len=16, clip_transform=steps)

    A loader binds it to the units of its dataset: `m`, `mm`, `cm`, or a multiple such as the
    `1/5000 m` of TUM RGB-D. Shapes stay as they are. Pixels without depth become `invalid`: zeros,
    negative numbers, NaN and infinities.

    Raises `ClipError` for a feature that is not there or is no depth, and for an unknown unit.

    Args:
        features: names of depth features.
        unit: their unit, where the dataset does not know it. Another one than the dataset's is an
            error.
        invalid: the depth of pixels without depth; 0.0 by default, so that `depth > 0` is valid.
    """

    def __init__(self, *features: str, unit: str | None = None, invalid: float = 0.0) -> None:
        if not features or not all(isinstance(name, str) for name in features):
            raise ClipError(
                "DepthToMeters: not names of features",
                expected='for example DepthToMeters("depth")',
                got=repr_of(features, 100),
            )
        if isinstance(invalid, bool) or not isinstance(invalid, (int, float, np.number)):
            raise ClipError(
                "DepthToMeters: invalid is not a number",
                expected="0.0, nan, inf, …",
                got=repr_of(invalid, 50),
            )
        self.features = features
        self.invalid = float(invalid)
        self._unit = unit
        self._sizes: dict[str, float] = {}
        if unit is not None:
            self._sizes = {name: _size_of(name, unit, unit) for name in features}

    def __repr__(self) -> str:
        said = [repr(name) for name in self.features]
        said += [] if self._unit is None else [f"unit={self._unit!r}"]
        said += [f"invalid={self.invalid:g}"] if self.invalid != 0 else []
        return f"DepthToMeters({', '.join(said)})"

    @property
    def units(self) -> dict[str, str]:
        """The units of the features that it makes."""
        return dict.fromkeys(self.features, "m")

    def with_schema(self, schema: Schema) -> DepthToMeters:
        """The same, with the units of a dataset's features."""
        sizes = {}
        for name in self.features:
            spec = schema.get(name)
            if spec is None and self._unit is None:
                raise ClipError(
                    "DepthToMeters is for a feature that is not read",
                    feature=name,
                    expected=f"some of {', '.join(schema)}; or unit=, for one that a function "
                    "before makes",
                )
            if spec is not None and spec.kind not in (None, "depth"):
                raise ClipError(
                    "DepthToMeters is for a feature that is no depth",
                    feature=name,
                    expected="kind depth",
                    got=f"kind {spec.kind}",
                )
            known = None if spec is None else spec.unit
            if known is not None and self._unit is not None and not same_unit(known, self._unit):
                raise ClipError(
                    "the dataset has another unit; `seqrecord edit describe` changes it",
                    feature=name,
                    expected=f"DepthToMeters without unit=, or unit={known!r}",
                    got=f"unit={self._unit!r}",
                )
            sizes[name] = _size_of(name, known, self._unit or known)
        bound = copy.copy(self)
        bound._sizes = sizes
        return bound

    def __call__(self, frame: Mapping[str, Any], _generator: Any = None) -> dict[str, Any]:
        """A frame, or a clip, with its depth in metres."""
        made = dict(frame)
        for name in self.features:
            if name not in made:
                raise ClipError(
                    "DepthToMeters gets no such feature",
                    feature=name,
                    expected=f"some of {', '.join(made)}",
                )
            if name not in self._sizes:
                raise _unknown(name, None)
            made[name] = self._metres(name, np.asarray(made[name]))
        return made

    def _metres(self, name: str, depth: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        if depth.dtype.kind not in "iuf":
            raise ClipError(
                "depth that is not numbers",
                feature=name,
                expected="integers or floats",
                got=str(depth.dtype),
            )
        # Of 16 bits, float32 has every number; division by a whole number rounds once.
        exact = np.float32 if depth.dtype.itemsize <= 2 or depth.dtype == np.float32 else np.float64
        per_metre = 1 / self._sizes[name]
        is_whole = abs(per_metre - round(per_metre)) < 1e-6 * per_metre and per_metre >= 1
        operation, factor = (
            (np.divide, round(per_metre)) if is_whole else (np.multiply, self._sizes[name])
        )
        with np.errstate(invalid="ignore", over="ignore"):
            found = np.asarray(operation(depth, exact(factor), dtype=exact), np.float32)
            if depth.dtype.kind != "u" or self.invalid != 0:
                np.copyto(found, self.invalid, where=~((found > 0) & (found < np.inf)))
        return found


def bound(transform: _Transform, schema: Schema) -> _Transform:
    """A transform of users, told the features of the dataset if it has a method `with_schema`."""
    tell: Any = getattr(transform, "with_schema", None)
    found: _Transform = transform if tell is None else tell(schema)
    return found


def _size_of(name: str, known: str | None, unit: str | None) -> float:
    if unit is None or (size := size_in(unit, "m")) is None:
        raise _unknown(name, unit or known)
    return size


def _unknown(name: str, unit: str | None) -> ClipError:
    return ClipError(
        "DepthToMeters: the unit of depth is not known" if unit is None else "not a unit of depth",
        feature=name,
        expected="m, mm, cm or a multiple such as 1/5000 m: by `seqrecord edit describe PATH "
        f"--unit {name}=mm`, or DepthToMeters({name!r}, unit='mm')",
        got=unit,
    )
