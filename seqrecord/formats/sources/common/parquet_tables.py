"""Parquet files, read in batches of bounded size even if run lengths expand."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa

from seqrecord.errors import SourceError
from seqrecord.in_place.files import openable, unreadable

_ROWS_NOT_LISTED = 1 << 20
_BATCH_BYTES = 256 << 20  # of texts and images decoded at a time


class ParquetTable:
    """An open Parquet file. Raises `SourceError` for other files."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq  # here, since it takes longer to import than this package

        self._path = path
        try:
            self._file = pq.ParquetFile(openable(path))
        except OSError as error:  # includes a damaged footer
            raise unreadable(path, error) from error
        except (pa.ArrowException, ValueError) as error:
            raise _parquet_error("not a Parquet file", path, error) from error
        names = self.names
        if len({*names}) < len(names):
            name = next(name for name in names if names.count(name) > 1)
            raise SourceError("duplicate column in the Parquet file", file=str(path), got=name)

    @property
    def names(self) -> list[str]:
        names: list[str] = self._file.schema_arrow.names
        return names

    @property
    def num_rows(self) -> int:
        return int(self._file.metadata.num_rows)

    @property
    def num_groups(self) -> int:
        return int(self._file.metadata.num_row_groups)

    def batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        features: Container[str] = (),
        rows: int = 65536,
        first_row: int = 0,
        group: int | None = None,
        numbers: Mapping[str, int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of rows, smaller ones if a few stored bytes may expand to many.

        Args:
            columns: columns to read, by default all.
            features: columns that are features; errors name them so.
            rows: maximum rows of a batch.
            first_row: number of the first row. Row groups before it are not read.
            group: number of the only row group to read.
            numbers: maximum numbers per row, by column.

        Raises `SourceError` for a damaged file or a missing column.
        """
        names = self.names
        for name in columns or ():
            if name not in names:
                raise SourceError(
                    "the Parquet file lacks a column",
                    file=str(self._path),
                    feature=name if name in features else None,
                    expected=name,
                    got=", ".join(names)[:200],
                )
        metadata = self._file.metadata
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        groups = [i for i, end in enumerate(accumulate(sizes)) if end > first_row]
        num_skipped = first_row - sum(sizes[: groups[0]] if groups else sizes)
        if group is not None:
            groups, num_skipped = [group], 0
        try:
            for i in groups:
                rows = self._fit_rows(rows, metadata.row_group(i), columns, numbers or {})
            for batch in self._file.iter_batches(
                rows, row_groups=groups, columns=columns, use_threads=False
            ):
                if num_skipped < batch.num_rows:
                    yield batch.slice(num_skipped)
                num_skipped = max(num_skipped - batch.num_rows, 0)
        # Names of columns may be no text.
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _parquet_error("damaged Parquet file", self._path, error) from error

    def check_rows(
        self, listed: int, place: str = "meta/episodes", spare: int = _ROWS_NOT_LISTED
    ) -> None:
        """Raise `SourceError` if the file declares far more rows than `place` lists.

        Up to `spare` rows may belong to episodes that are not listed yet.
        """
        if self.num_rows > listed + spare:
            raise SourceError(
                f"the table has far more rows than {place} lists; correct {place} or the table",
                file=str(self._path),
                expected=f"{listed} rows",
                got=self.num_rows,
            )

    def _fit_rows(
        self, rows: int, group: Any, columns: Sequence[str] | None, numbers: Mapping[str, int]
    ) -> int:
        """Reduce `rows` so that a batch of texts and images takes at most `_BATCH_BYTES`.

        Assumes that each value is as large as its whole column.
        """
        for column in map(group.column, range(group.num_columns)):
            name = column.path_in_schema.partition(".")[0]
            if columns is not None and name not in columns:
                continue
            if column.physical_type == "BYTE_ARRAY":
                rows = min(rows, _BATCH_BYTES // max(1, column.total_uncompressed_size))
            elif name in numbers and column.num_values > group.num_rows * max(1, numbers[name]):
                raise SourceError(
                    "the column has more numbers than info.json declares",
                    file=str(self._path),
                    feature=name,
                    expected=f"at most {group.num_rows * max(1, numbers[name])}",
                    got=column.num_values,
                )
        return max(1, rows)


def python_values(values: pa.RecordBatch | pa.Array) -> list[Any]:
    """Convert to Python values.

    Raises `SourceError` for invalid UTF-8 and for times that `datetime` cannot represent.
    """
    try:
        objects: list[Any] = values.to_pylist()
        return objects
    except UnicodeDecodeError as error:
        raise SourceError("text is not UTF-8", got=repr(error.object[:80])) from error
    except (ValueError, OverflowError) as error:  # times below a microsecond, or far away
        raise SourceError(
            "the values have no form in Python",
            expected="numbers, texts, or times in microseconds of the years 1 to 9999",
            got=f"{getattr(values, 'type', 'rows')}: {error}"[:200],
        ) from error


def _parquet_error(message: str, path: Path, error: Exception) -> SourceError:
    return SourceError(message, file=str(path), got=str(error).splitlines()[0][:200])
