"""Which columns of a LeRobot dataset a dataset's features become."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from seqrecord.codecs.video.container import CONTAINED
from seqrecord.errors import SchemaError
from seqrecord.schema import FeatureSpec, Schema

__all__ = [
    "RECORDED",
    "TASK",
    "TIMESTAMP",
    "LeRobotColumn",
    "LeRobotColumns",
    "arrow_columns",
    "plan_columns",
]

TASK = "task"
TIMESTAMP = "timestamp"
RECORDED = "recorded_timestamp"
"""The column of a feature `timestamp` that is not regular."""

_OWN = ("frame_index", "episode_index", "index", "task_index", RECORDED)
_MOST_DIMENSIONS = 5
_AXES = ["height", "width", "channels"]


@dataclass(frozen=True)
class LeRobotColumn:
    """A column and the feature that it is made of; `dtype` is LeRobot's name, such as `video`."""

    name: str
    feature: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def is_picture(self) -> bool:
        return self.dtype in ("image", "video")

    def described(self, names: Any) -> dict[str, Any]:
        """As `info.json` has it."""
        return {
            "dtype": self.dtype,
            "shape": list(self.shape),
            "names": _AXES if self.is_picture else names,
        }

    def array(self, values: Any) -> pa.Array:
        """The column of these frames: [rows, *shape], or a list of texts."""
        if self.dtype == "string":
            return pa.array(values, pa.string())
        if self.dtype == "image":
            kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            return pa.array([{"bytes": _png(image), "path": None} for image in values], kind)
        array = np.ascontiguousarray(values)
        column = pa.array(array.reshape(-1))
        if self.shape == (1,):
            return column
        for size in reversed(self.shape[1:]):
            column = pa.ListArray.from_arrays(_offsets(len(column), size), column)
        if len(self.shape) == 1:
            return pa.FixedSizeListArray.from_arrays(column, self.shape[0])
        return pa.ListArray.from_arrays(_offsets(len(column), self.shape[0]), column)


@dataclass(frozen=True)
class LeRobotColumns:
    """All columns that are made of features, and the features among them that stay video."""

    columns: tuple[LeRobotColumn, ...]
    frame_bytes: int  # of those that are read

    @property
    def videos(self) -> tuple[str, ...]:
        return tuple(each.feature for each in self.columns if each.dtype == "video")

    @property
    def read(self) -> tuple[str, ...]:
        """Features whose frames are read."""
        return tuple(each.feature for each in self.columns if each.dtype != "video")


def plan_columns(features: Schema, keeps_times: bool) -> LeRobotColumns:
    """The columns for these features. `keeps_times` says that `timestamp` is one of them.

    Raises `SchemaError` for a feature that LeRobot has no form for.
    """
    columns, size = [], 0
    for name, spec in features.items():
        if name == TIMESTAMP and not keeps_times:
            continue
        column = _column(RECORDED if name == TIMESTAMP else name, spec)
        columns.append(column)
        if column.dtype != "video":
            size += math.prod(n or 0 for n in spec.shape) * spec.dtype.itemsize
    return LeRobotColumns(tuple(columns), size)


def arrow_columns(columns: LeRobotColumns, arrays: Mapping[str, Any]) -> dict[str, pa.Array]:
    """The columns of rows whose features are given; the task has a number in place of it."""
    return {
        each.name: each.array(arrays[each.feature])
        for each in columns.columns
        if each.dtype != "video" and each.name != TASK
    }


def _column(name: str, spec: FeatureSpec) -> LeRobotColumn:
    if name in _OWN and spec.name in _OWN:
        raise _impossible(spec, "it is a column of LeRobot's own; choose other features")
    if spec.value == "text":
        return LeRobotColumn(name, spec.name, "string", (1,))
    if spec.value != "array" or not spec.is_fixed:
        raise _impossible(spec, "LeRobot has no form for bytes and for shapes that vary")
    shape = tuple(n or 0 for n in spec.shape) or (1,)
    if spec.codec and spec.codec[0]["id"] == "video" and spec.codec[0]["codec"] in CONTAINED:
        return LeRobotColumn(name, spec.name, "video", shape)
    if spec.dtype == np.uint8 and len(shape) == 3 and shape[2] == 3:
        return LeRobotColumn(name, spec.name, "image", shape)
    if spec.dtype.kind == "c" or len(shape) > _MOST_DIMENSIONS or 0 in shape:
        raise _impossible(
            spec, f"LeRobot has real numbers, of at most {_MOST_DIMENSIONS} dimensions"
        )
    return LeRobotColumn(name, spec.name, spec.dtype.name, shape)


def _impossible(spec: FeatureSpec, why: str) -> SchemaError:
    return SchemaError(
        f"a feature that cannot be exported: {why}", feature=spec.name, got=str(spec)
    )


def _offsets(count: int, size: int) -> pa.Array:
    return pa.array(np.arange(0, count + 1, size, dtype=np.int32))


def _png(image: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "png", compress_level=1)
    return stream.getvalue()
