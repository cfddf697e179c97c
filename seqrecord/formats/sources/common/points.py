"""Points with named columns: rows of a structured dtype, split into an array per dtype."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.specs import check_spec
from seqrecord.store.schema import FeatureSpec

_MAX_COLUMNS = 4096


class Points(NamedTuple):
    """Columns of one dtype: `values` [N, C], or [N] for a column with a name of its own."""

    values: npt.NDArray[Any]
    names: tuple[str, ...]


def split_points(rows: npt.NDArray[Any]) -> Mapping[str, Points]:
    """Split rows [N] of a structured dtype into little-endian arrays by feature name suffix.

    "" has all columns with the dtype of `x`, or of the first column. Columns of another dtype are
    named by it (`uint8`), or by the column if there is one (`ring`). A column of several numbers
    counts as columns `name_0`, `name_1`, …. Raises `ValueError` for no or too many columns, and
    for names in two arrays.
    """
    groups: dict[np.dtype[Any], list[tuple[str, npt.NDArray[Any]]]] = {}
    names = [name for name in rows.dtype.names or () if not re.fullmatch(r"_\d*", name)]  # padding
    counts = [int(np.prod(rows.dtype[name].shape)) for name in names]
    if not 0 < sum(counts) <= _MAX_COLUMNS:
        raise ValueError(f"points of {sum(counts)} columns; expected 1 to {_MAX_COLUMNS}")
    for name, count in zip(names, counts, strict=True):
        values = rows[name].reshape(len(rows), count)
        kind = values.dtype.newbyteorder("<")
        for place, column in enumerate(values.T):
            label = name if count == 1 else f"{name}_{place}"
            groups.setdefault(kind, []).append((label, column))
    main_name = min(names, key=lambda name: name != "x")  # the first column without an `x`
    main_kind = rows.dtype[main_name].base.newbyteorder("<")
    arrays = {}
    for kind, columns in groups.items():
        labels = tuple(label for label, _ in columns)
        suffix, stacked = kind.name, np.stack([column for _, column in columns], 1)
        if kind == main_kind:
            suffix = ""
        elif len(labels) == 1:
            suffix, stacked = re.sub(r"\W", "_", labels[0]), stacked[:, 0]
        if suffix in arrays:
            raise ValueError(f"two arrays of columns are named {suffix}")
        arrays[suffix] = Points(np.ascontiguousarray(stacked, kind), labels)
    return arrays


def check_columns(
    first_labels: dict[str, tuple[str, ...]], points: Points | None, spec: FeatureSpec, path: Path
) -> npt.NDArray[Any]:
    """Return the values. Raises `SourceError` unless columns equal the first ones, in
    `first_labels`.
    """
    names = () if points is None else points.names
    if points is None or first_labels.setdefault(spec.name, names) != names:
        raise SourceError(
            "points with other columns than the first ones",
            file=str(path),
            feature=spec.name,
            expected=", ".join(first_labels.get(spec.name, ()))[:200],
            got=", ".join(names)[:200] or "no such columns",
        )
    check_spec(points.values.dtype, points.values.shape, spec, path)
    return points.values
