"""Values that a function returns for a batch, as columns of frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from seqrecord.errors import ClipError, SeqRecordError
from seqrecord.store.bfloat16 import as_array
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.text import repr_of
from seqrecord.store.value_kinds import object_kind

Column = Any
"""An array [B, …], words of bfloat16 included, or a list of B arrays, texts or bytes."""


def columns_of(results: object, count: int) -> dict[str, Column]:
    """Check the results of a function for a batch of `count` rows.

    Raises `ClipError` for results that are not one value per row and name.
    """
    if not isinstance(results, Mapping) or not results:
        raise ClipError(
            "the function returns no values by name",
            expected='a dict, such as {"latent": tensor}',
            got=repr_of(results, 100),
        )
    columns = dict[str, Column]()
    for name, value in results.items():
        try:
            columns[str(name)] = column = _column(value)
        except SeqRecordError:
            raise
        except (RuntimeError, TypeError, ValueError) as error:
            raise ClipError(
                "the function returns a value that is no array",
                feature=str(name),
                expected="a dense tensor, an array, or a list of these or of texts",
                got=f"{type(error).__name__}: {error}",
            ) from error
        if len(column) != count:
            raise ClipError(
                "the function returns another number of values than it got rows",
                feature=str(name),
                expected=f"{count} values, one per row",
                got=len(column),
            )
    return columns


def _column(value: Any) -> Column:
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return [array_of_result(tensor) for tensor in value.unbind()]
        return array_of_result(value)
    if isinstance(value, (list, tuple)):
        items = [
            item if isinstance(item, (str, bytes)) else array_of_result(item) for item in value
        ]
        if items and all(isinstance(item, np.ndarray) and not item.ndim for item in items):
            return np.stack(items)
        return items
    array = array_of_result(value)
    return array.reshape(-1) if not array.ndim else array


def array_of_result(value: Any) -> Any:
    """Return a result as an array on the host; bfloat16 as words."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return as_array(value)


def spec_of(name: str, column: Column) -> FeatureSpec:
    """Return the feature of a column. The first axis of arrays in a list varies.

    Raises `ClipError` for arrays of different dtypes or numbers of axes.
    """
    if isinstance(column, np.ndarray):
        return FeatureSpec(name, column.dtype, column.shape[1:])
    example = column[0]
    if (kind := object_kind(example)) is not None:
        return FeatureSpec(name, np.dtype("u1"), (None,), value=kind.value, kind=_kind_of(kind))
    for item in column:
        if not isinstance(item, np.ndarray) or item.shape[1:] != example.shape[1:]:
            raise ClipError(
                "the arrays of a list differ in more than their first axis",
                feature=name,
                expected=f"{example.dtype} [?, {', '.join(map(str, example.shape[1:]))}]",
                got=repr_of(getattr(item, "shape", item), 100),
            )
    return FeatureSpec(name, example.dtype, (None, *example.shape[1:]))


def _kind_of(kind: Any) -> str | None:
    return "text" if kind.value == "text" else None


def rows_of(column: Column, start: int, stop: int) -> np.ndarray[Any, Any] | Sequence[Any]:
    """Return the values of rows [start, stop)."""
    values: np.ndarray[Any, Any] | Sequence[Any] = column[start:stop]
    return values
