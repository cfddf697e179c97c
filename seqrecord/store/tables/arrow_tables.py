"""Tables of users: Parquet and Arrow files, and objects that Arrow can read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from seqrecord.errors import ClipError, located

TableLike: TypeAlias = Mapping[str, Any] | Any
"""A dict of columns, a table of Arrow, pandas, Polars or any library that Arrow can read, or the
path of a Parquet or Arrow file.
"""

_BATCH_BYTES = 4 << 20  # of rows in memory together
_MAX_BATCH_ROWS = 1 << 16
_BUFFER_BYTES = 1 << 20  # of each column
_PROBED_ROWS = 1 << 6
_PARQUET, _ARROW = b"PAR1", b"ARROW1"
_HASH_BYTES = 1 << 20

PANDAS_INDEX = "__index_level_0__"
"""Column of a sliced pandas table's index."""


@dataclass(frozen=True, eq=False)
class ArrowTable:
    """A table that is read in batches.

    Attributes:
        schema: names and types, without the index of pandas, dictionaries or string views.
        batches: reads the rows of some columns, in batches of about 4 MiB.
        digest: SHA-256 of the file's or the columns' bytes, hexadecimal.
        shown: path or type, for errors.
    """

    schema: pa.Schema
    batches: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
    digest: Callable[[], str]
    shown: str

    @classmethod
    def open(cls, table: TableLike, shown: str | None = None) -> ArrowTable:
        """Open a table; errors call it `shown`. Raises `ClipError` for other files and objects."""
        if isinstance(table, (str, PathLike)):
            return _open_file(Path(table), shown or str(table))
        content = to_arrow(table)
        shown = f"{type(table).__module__.partition('.')[0]}.{type(table).__name__}"
        shown = "a dict of columns" if isinstance(table, Mapping) else shown

        def batches(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
            columns = content.select(list(names))
            rows = _rows_per_batch(content.nbytes / max(1, content.num_rows))
            yield from map(_decoded, columns.to_batches(max_chunksize=rows))

        return cls(_plain_schema(content.schema), batches, lambda: digest_of(content), shown)

    def read(self) -> pa.Table:
        """Read all rows."""
        return pa.Table.from_batches(self.batches(self.schema.names), self.schema)


def to_arrow(table: TableLike) -> pa.Table:
    """Convert an object to an Arrow table. NaN of pandas becomes null, as in its Parquet files.

    Raises `ClipError` for another object.
    """
    with arrow_errors("a table"):
        if isinstance(table, Mapping):
            return pa.table({str(name): _column(column) for name, column in table.items()})
        return pa.table(table)


@contextmanager
def arrow_errors(what: str) -> Iterator[None]:
    """Raise errors of Arrow in the block as `ClipError`; `what` names the table."""
    try:
        yield
    except (pa.ArrowException, OSError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, ClipError):
            raise
        expected = "a dict of columns, a table that Arrow can read, or a Parquet or Arrow file"
        raise ClipError(f"{what} cannot be read: {error}", expected=expected) from error


def _column(values: Any) -> Any:
    """Convert a 2-D array to Arrow lists, since Arrow accepts only 1-D arrays.

    NaN between texts is a missing text, as in pandas.
    """
    if getattr(values, "ndim", 1) != 2 or not len(values):
        if not isinstance(values, (list, tuple, np.ndarray)):
            return values
        try:
            return pa.array(values)
        except pa.ArrowException:
            return pa.array(values, from_pandas=True)
    rows = np.asarray(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])


def _open_file(path: Path, shown: str) -> ArrowTable:
    with located(ClipError, file=shown), arrow_errors("the table"):
        with path.open("rb") as file:
            magic = file.read(len(_ARROW))
        if magic.startswith(_PARQUET):
            schema, batches = _open_parquet(path)
        elif magic == _ARROW:
            schema, batches = _open_arrow(path)
        else:
            raise ClipError(
                "not a table", expected="a Parquet or Arrow file", got=f"{magic!r} at its start"
            )

    def read_batches(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with located(ClipError, file=shown), arrow_errors("the table"):
            yield from map(_decoded, batches(names))

    return ArrowTable(_plain_schema(schema), read_batches, lambda: _digest_of_file(path), shown)


def _open_parquet(path: Path) -> tuple[pa.Schema, Callable[..., Iterator[pa.RecordBatch]]]:
    import pyarrow.parquet as pq  # a slow import

    def batches(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        # Without these two, the reader keeps the bytes of all column chunks until the end.
        settings: dict[str, Any] = {"pre_buffer": False, "buffer_size": _BUFFER_BYTES}
        with pq.ParquetFile(path, **settings) as file:
            # The metadata has sizes of encoded values: a text of a dictionary counts once.
            probe = next(file.iter_batches(_PROBED_ROWS, columns=list(names)), None)
            if probe is not None and probe.num_rows:
                rows = _rows_per_batch(probe.nbytes / probe.num_rows)
                del probe
                yield from file.iter_batches(rows, columns=list(names))

    with pq.ParquetFile(path) as file:
        return file.schema_arrow, batches


def _open_arrow(path: Path) -> tuple[pa.Schema, Callable[..., Iterator[pa.RecordBatch]]]:
    def batches(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
            for number in range(file.num_record_batches):
                batch = file.get_batch(number).select(list(names))
                rows = _rows_per_batch(batch.nbytes / max(1, batch.num_rows))
                for start in range(0, batch.num_rows, rows):
                    yield batch.slice(start, rows)

    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
        return file.schema, batches


def _rows_per_batch(row_bytes: float) -> int:
    return int(min(max(1, _BATCH_BYTES // max(1.0, row_bytes)), _MAX_BATCH_ROWS))


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema without the index of pandas; raises `ClipError` for a name that comes twice."""
    fields = [pa.field(f.name, _plain_type(f.type)) for f in schema if f.name != PANDAS_INDEX]
    names = [field.name for field in fields]
    if twice := [name for name in {*names} if names.count(name) > 1]:
        raise ClipError("duplicate column names", expected="a name once", got=twice[0][:100])
    return pa.schema(fields)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if str(kind) == "string_view":  # of Polars; the type is younger than Arrow 15
        return pa.large_string()
    return pa.large_binary() if str(kind) == "binary_view" else kind


def _decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch without dictionaries and views."""
    columns = [column.cast(_plain_type(column.type)) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _digest_of_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while data := file.read(_HASH_BYTES):
            digest.update(data)
    return digest.hexdigest()


def digest_of(table: pa.Table) -> str:
    """Return the SHA-256 of a table's values and types, hexadecimal; metadata does not count."""
    digest = _Digest()
    with pa.PythonFile(digest, "w") as sink:
        schema = table.schema.remove_metadata()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(table.replace_schema_metadata(None).combine_chunks())
    return digest.hexdigest()


class _Digest:
    """A file that hashes what is written."""

    closed = False

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._hash.update(view)
        return view.nbytes

    def flush(self) -> None:
        """Do nothing: nothing waits."""

    def close(self) -> None:
        """Do nothing: the digest is read afterwards."""

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def holds_text(kind: pa.DataType) -> bool:
    """Whether a column of this type has texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def holds_lists(kind: pa.DataType) -> bool:
    """Whether a column of this type has lists, of fixed or other lengths."""
    types = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_type(kind) for is_type in types)
