"""DepthToMeters: depth of any unit and dtype becomes float32 metres."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.store.feature_kinds import same_unit, size_in
from seqrecord.store.text import repr_of
from seqrecord.store.units import is_number

if TYPE_CHECKING:
    from seqrecord.store.schema import Schema


class DepthToMeters:
    """Convert depth features to float32 meters; a `frame_transform` or a `clip_transform` step.

    The loader supplies the unit from its dataset's schema: `m`, `mm`, `cm`, or a multiple such as
    `1/5000 m` (TUM RGB-D). Shapes are unchanged. Zero, negative, NaN and infinite depths become
    `invalid`.

    Args:
        features: names of depth features.
        unit: their unit, if the dataset's schema has none. A unit that differs from the schema's
            is an error.
        invalid: value of pixels without depth. With the default 0.0, `depth > 0` selects the
            valid pixels.

    Raises `ClipError` if a feature is missing or is not depth, or if its unit is unknown.

    Example:
        steps = [seqrecord.RandomCrop(32), seqrecord.DepthToMeters("depth")]
        pipe = seqrecord.SeqRecordPipe(
            "records/", clip_len=4, batch_size=2, clip_transform=steps
        )
        depth = next(iter(pipe))["depth"]  # float32 [2, 4, 32, 32], stored as uint16 mm
    """

    def __init__(self, *features: str, unit: str | None = None, invalid: float = 0.0) -> None:
        if not features or not all(isinstance(name, str) for name in features):
            raise ClipError(
                "DepthToMeters: invalid feature names",
                expected='for example DepthToMeters("depth")',
                got=repr_of(features, 100),
            )
        number: Any = invalid
        if not isinstance(number, (float, np.floating)) and not is_number(number):
            raise ClipError(
                "DepthToMeters: invalid is not a number",
                expected="0.0, nan, inf, …",
                got=repr_of(invalid, 50),
            )
        argument: Any = unit
        if argument is not None and not isinstance(argument, str):
            raise _unknown(features[0], repr_of(argument, 50))
        self.features = features
        self.invalid = float(invalid)
        self._unit = unit
        self._sizes: dict[str, float] = {}
        if unit is not None:
            self._sizes = {name: _size_of(name, unit, unit) for name in features}

    def __repr__(self) -> str:
        arguments = [repr(name) for name in self.features]
        arguments += [] if self._unit is None else [f"unit={self._unit!r}"]
        arguments += [f"invalid={self.invalid:g}"] if self.invalid != 0 else []
        return f"DepthToMeters({', '.join(arguments)})"

    @property
    def units(self) -> dict[str, str]:
        """Units of the converted features."""
        return dict.fromkeys(self.features, "m")

    def with_schema(self, schema: Schema) -> DepthToMeters:
        """Bind the transform to the units of a dataset. Raises `ClipError`."""
        sizes = {}
        for name in self.features:
            spec = schema.get(name)
            if spec is None and self._unit is None:
                raise ClipError(
                    "DepthToMeters: the loader does not read this feature",
                    feature=name,
                    expected=f"some of {', '.join(schema)}; or unit=, for the result of an "
                    "earlier function",
                )
            if spec is not None and spec.kind not in (None, "depth"):
                raise ClipError(
                    "DepthToMeters: the feature is not depth",
                    feature=name,
                    expected="kind depth",
                    got=f"kind {spec.kind}",
                )
            known = None if spec is None else spec.unit
            if known is not None and self._unit is not None and not same_unit(known, self._unit):
                raise ClipError(
                    "DepthToMeters: the unit differs from the dataset's; to change the latter, use "
                    "`seqrecord edit describe`",
                    feature=name,
                    expected=f"DepthToMeters without unit=, or unit={known!r}",
                    got=f"unit={self._unit!r}",
                )
            sizes[name] = _size_of(name, known, self._unit or known)
        bound = copy.copy(self)
        bound._sizes = sizes
        return bound

    def __call__(self, frame: Mapping[str, Any], _generator: Any = None) -> dict[str, Any]:
        """Convert the depth features of a frame or a clip."""
        made = dict(frame)
        for name in self.features:
            if name not in made:
                raise ClipError(
                    "DepthToMeters: no such feature",
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
                "depth is not numeric",
                feature=name,
                expected="integers or floats",
                got=str(depth.dtype),
            )
        # float32 represents all 16-bit numbers; dividing by an integer rounds only once.
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


def _size_of(name: str, known: str | None, unit: str | None) -> float:
    if unit is None or (size := size_in(unit, "m")) is None:
        raise _unknown(name, unit or known)
    return size


def _unknown(name: str, unit: str | None) -> ClipError:
    return ClipError(
        "DepthToMeters: the unit is unknown" if unit is None else "DepthToMeters: invalid unit",
        feature=name,
        expected="m, mm, cm or a multiple such as 1/5000 m, set by `seqrecord edit describe PATH "
        f"--unit {name}=mm` or DepthToMeters({name!r}, unit='mm')",
        got=unit,
    )
