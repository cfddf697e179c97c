"""Parquet files, in batches of rows that are bounded whatever run lengths stand for."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa

from seqrecord.errors import SourceError
from seqrecord.sources.common.files import openable, unreadable

_ROWS_NOT_LISTED = 1 << 20
_BATCH_BYTES = 256 << 20  # of texts and images that are decoded at a time


class ParquetTable:
    """An open parquet file; raises `SourceError` for what is none."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq  # here, since it takes longer to import than this package

        self._path = path
        try:
            self._file = pq.ParquetFile(openable(path))
        except OSError as error:  # also a footer that is damaged
            raise unreadable(path, error) from error
        except (pa.ArrowException, ValueError) as error:
            raise _parquet_error("not a parquet file", path, error) from error

    @property
    def names(self) -> list[str]:
        names: list[str] = self._file.schema_arrow.names
        return names

    @property
    def num_rows(self) -> int:
        return int(self._file.metadata.num_rows)

    def batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        features: Container[str] = (),
        rows: int = 65536,
        first: int = 0,
        numbers: Mapping[str, int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows, so many at a time; fewer where a few bytes of texts or images may stand for
        many.

        Args:
            columns: those that are read, by default all.
            features: the columns of these names are features, and named so in errors.
            rows: of a batch, at most.
            first: the number of the first row; row groups before it are not read.
            numbers: how many numbers a row has at most, by column.

        Raises `SourceError` for a file that lacks a column or is damaged.
        """
        names = self.names
        for name in columns or ():
            if name not in names:
                raise SourceError(
                    "a parquet file that lacks a column",
                    file=str(self._path),
                    feature=name if name in features else None,
                    expected=name,
                    got=", ".join(names)[:200],
                )
        metadata = self._file.metadata
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        groups = [i for i, end in enumerate(accumulate(sizes)) if end > first]
        skipped = first - sum(sizes[: groups[0]] if groups else sizes)
        for group in groups:
            rows = self._fitting(rows, metadata.row_group(group), columns, numbers or {})
        try:
            for batch in self._file.iter_batches(
                rows, row_groups=groups, columns=columns, use_threads=False
            ):
                if skipped < batch.num_rows:
                    yield batch.slice(skipped)
                skipped = max(skipped - batch.num_rows, 0)
        except (pa.ArrowException, OSError) as error:
            raise _parquet_error("a damaged parquet file", self._path, error) from error

    def check_rows(
        self, listed: int, place: str = "meta/episodes", spare: int = _ROWS_NOT_LISTED
    ) -> None:
        """Raises `SourceError` for far more rows than `place` lists or declares, unread.

        `spare` ones may be those of episodes that are not listed yet.
        """
        if self.num_rows > listed + spare:
            raise SourceError(
                f"a table of far more rows than {place} lists; correct {place}, or the table",
                file=str(self._path),
                expected=f"{listed} rows",
                got=self.num_rows,
            )

    def _fitting(
        self, rows: int, group: Any, columns: Sequence[str] | None, numbers: Mapping[str, int]
    ) -> int:
        """So many rows, or fewer: of texts and images they take `_BATCH_BYTES` at most, if each is
        as large as all that its column stores."""
        for column in map(group.column, range(group.num_columns)):
            name = column.path_in_schema.partition(".")[0]
            if columns is not None and name not in columns:
                continue
            if column.physical_type == "BYTE_ARRAY":
                rows = min(rows, _BATCH_BYTES // max(1, column.total_uncompressed_size))
            elif name in numbers and column.num_values > group.num_rows * max(1, numbers[name]):
                raise SourceError(
                    "a column of more numbers than info.json declares",
                    file=str(self._path),
                    feature=name,
                    expected=f"at most {group.num_rows * max(1, numbers[name])}",
                    got=column.num_values,
                )
        return max(1, rows)


def python_values(values: pa.RecordBatch | pa.Array) -> list[Any]:
    """The values as Python has them; raises `SourceError` for text that is not UTF-8, which pyarrow
    does not check."""
    try:
        found: list[Any] = values.to_pylist()
        return found
    except UnicodeDecodeError as error:
        raise SourceError("text that is not UTF-8", got=repr(error.object[:80])) from error


def _parquet_error(message: str, path: Path, error: Exception) -> SourceError:
    return SourceError(message, file=str(path), got=str(error).splitlines()[0][:200])
