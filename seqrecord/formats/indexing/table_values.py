"""Values of a table's columns: numbers, texts, bytes, and lists of numbers, as frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.errors import ClipError, SchemaError, located
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.tables.arrow_tables import holds_lists, holds_text
from seqrecord.store.tables.grids import IntArray

_EXPECTED = "numbers, booleans, texts, bytes, or lists of numbers; leave other columns out"


@dataclass
class TableColumn:
    """A column of values. `add` collects the lengths of its lists, which determine `spec`.

    Lists of one length are a fixed dimension, others a ragged one.
    """

    name: str
    type: pa.DataType
    _ranges: list[tuple[int, int]] = field(default_factory=list)  # lengths of each level's lists

    def __post_init__(self) -> None:
        levels, kind = 0, self.type  # of lists, and of the values inside
        while holds_lists(kind):
            levels, kind = levels + 1, kind.value_type
        self._levels = levels
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        is_array = is_number or pa.types.is_boolean(kind)
        if not (is_array or (not levels and (holds_text(kind) or _is_binary(kind)))):
            raise ClipError(
                "a column of a table has values that are no feature",
                feature=self.name[:100],
                expected=_EXPECTED,
                got=str(self.type)[:100],
            )
        self._number = kind
        self._ranges = [(np.iinfo(np.int64).max, -1)] * levels

    def add(self, column: pa.Array, first_row: int) -> None:
        """Count the lengths of lists. Raises `ClipError` for a null inside a list."""
        if not self._levels:
            return
        numbers, lengths = _flatten(column.drop_null(), self._levels)
        if numbers.null_count:
            rows = np.flatnonzero(np.asarray(column.is_valid()))
            place = int(np.flatnonzero(np.asarray(numbers.is_null()))[0])
            for list_lengths in reversed(lengths):
                place = int(np.searchsorted(np.cumsum(list_lengths), place, "right"))
            raise ClipError(
                f"a list has a null, in row {first_row + int(rows[place])}",
                feature=self.name,
                expected="numbers; NaN for a missing one, and null in place of the list for a gap",
            )
        for number, (low, high) in enumerate(self._ranges):
            if len(level := lengths[number]):
                self._ranges[number] = min(low, int(level.min())), max(high, int(level.max()))

    @property
    def spec(self) -> FeatureSpec:
        """The feature. Raises `ClipError` for a name that features cannot have."""
        with located(ClipError, feature=self.name):
            try:
                if holds_text(self.type) or _is_binary(self.type):
                    value: Any = "text" if holds_text(self.type) else "bytes"
                    return FeatureSpec(self.name, np.dtype(np.uint8), (None,), value=value)
                # Not `to_pandas_dtype`, which imports pandas before pyarrow 16.
                dtype = pa.array([], self._number).to_numpy(zero_copy_only=False).dtype
                return FeatureSpec(self.name, dtype, self.shape)
            except SchemaError as error:
                raise ClipError(
                    f"a column of a table cannot be a feature: {error.message}; rename it",
                    expected=error.expected,
                    got=error.got,
                ) from error

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Shape of a frame; lists that are all empty are ragged, since no dimension is 0."""
        return tuple(high if low == high > 0 else None for low, high in self._ranges)

    def values(self, column: pa.Array, rows: IntArray) -> TableValues:
        """Convert the column of rows with these numbers, for errors.

        Raises `ClipError` for a row with inner lists of different lengths.
        """
        is_valid = np.asarray(column.is_valid())
        place = np.cumsum(is_valid) - 1
        valid = column.drop_null() if column.null_count else column
        if not self._levels:
            if holds_text(self.type) or _is_binary(self.type):
                return TableValues(is_valid, place, valid.to_pylist())
            return TableValues(is_valid, place, np.asarray(valid.to_numpy(zero_copy_only=False)))
        numbers, lengths = _flatten(valid, self._levels)
        flat = np.asarray(numbers.to_numpy(zero_copy_only=False))
        if None not in self.shape:
            return TableValues(is_valid, place, flat.reshape(len(valid), *self.shape))
        stops, shapes = np.cumsum(lengths[0]), [lengths[0]]
        for level, size in zip(lengths[1:], self.shape[1:], strict=True):
            if size is None:
                shapes.append(self._uniform(level, stops, rows[is_valid]))
            else:  # also of an empty list
                shapes.append(np.full(len(stops), size))
            ends = np.concatenate([[0], np.cumsum(level)])
            stops = ends[stops]
        starts = np.concatenate([[0], stops])[:-1]
        arrays = [
            flat[start:stop].reshape(shape)
            for start, stop, shape in zip(
                starts.tolist(), stops.tolist(), zip(*shapes, strict=True), strict=True
            )
        ]
        return TableValues(is_valid, place, arrays)

    def _uniform(self, lengths: IntArray, stops: IntArray, rows: IntArray) -> IntArray:
        """The length that all lists of a row have; `stops` end the rows' lists."""
        owner = np.repeat(np.arange(len(stops)), np.diff(stops, prepend=0))
        row_lengths = np.zeros(len(stops), np.int64)
        row_lengths[owner] = lengths
        for wrong in np.flatnonzero(row_lengths[owner] != lengths)[:1].tolist():
            row = owner[wrong]
            raise ClipError(
                f"lists inside a list differ in length, in row {rows[row]}",
                feature=self.name,
                expected=int(row_lengths[row]),
                got=int(lengths[wrong]),
            )
        return row_lengths


@dataclass(frozen=True)
class TableValues:
    """Values of rows: of valid row r, item `place[r]` of `items`."""

    is_valid: npt.NDArray[np.bool_]
    place: IntArray
    items: npt.NDArray[Any] | Sequence[Any]

    def take(self, rows: IntArray) -> npt.NDArray[Any] | Sequence[Any]:
        """Return the values of valid rows, as a column of a block."""
        places = self.place[rows]
        if isinstance(self.items, np.ndarray):
            values: npt.NDArray[Any] = self.items[places]
            return values
        return [self.items[place] for place in places.tolist()]


def _flatten(column: pa.Array, levels: int) -> tuple[pa.Array, list[IntArray]]:
    """The numbers in lists, and the lists' lengths by level."""
    lengths: list[IntArray] = []
    for _ in range(levels):
        if pa.types.is_fixed_size_list(column.type):
            size = column.type.list_size
            lengths.append(np.full(len(column), size, np.int64))
        else:
            offsets = np.asarray(column.offsets, np.int64)
            lengths.append(offsets[1:] - offsets[:-1])
        if column.null_count:
            raise ClipError("a list has a null in place of an inner list", expected="lists")
        column = column.flatten()
    return column, lengths


def _is_binary(kind: pa.DataType) -> bool:
    types = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(is_type(kind) for is_type in types)
