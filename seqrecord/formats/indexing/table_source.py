"""A user's table as a source: values by episode and frame, or spans of frames.

The table is read twice, in batches: first only the columns that name episodes and frames, which
gives each episode's number of rows. Then all columns: rows are distributed over buckets of
consecutive episodes, on disk if together they exceed the size of a bucket. A bucket is sorted in
memory. So the order of a table's rows does not matter, and memory is bounded unless the rows of
one episode exceed it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from seqrecord.errors import ClipError, located
from seqrecord.formats.indexing.table_values import TableColumn, TableValues
from seqrecord.store.format.inventory import LeftOut
from seqrecord.store.originals.inventory import Account
from seqrecord.store.originals.protocol import EpisodeInfo
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.schema import Block, Frame, Schema
from seqrecord.store.tables.arrow_tables import ArrowTable
from seqrecord.store.tables.grids import IntArray
from seqrecord.store.tables.table_places import UNKNOWN, EpisodeNames, TablePlaces, place_names

BUCKET_BYTES = 32 << 20  # of rows that are sorted together

_BLOCK_BYTES = 16 << 20  # of frames, which spans may repeat
_MAX_BUCKETS = 256  # open files

# Columns of buckets beside the values.
_EPISODE, _START, _STOP, _ROW = "~episode", "~start", "~stop", "~row"


@dataclass(eq=False)
class TableSource:
    """The values of a table for the episodes of a dataset.

    Rows of episodes that the dataset lacks are left out; their number is in the inventory. Frames
    without a row, and nulls, are missing. `scratch` is the folder for buckets on disk, of about
    `bucket_bytes` each.

    Raises `ClipError` with the row for values that are no feature, frames outside of their episode,
    and frames with several rows.
    """

    table: ArrowTable
    names: EpisodeNames
    scratch: Path
    bucket_bytes: int = BUCKET_BYTES
    format_name = "table"
    has_empty_frames = True  # those without a row
    _buckets: _Buckets | None = field(default=None, init=False)
    _bucket: _Bucket | None = field(default=None, init=False)  # the present one

    def __post_init__(self) -> None:
        with located(ClipError, file=self.table.shown):
            self._places = place_names(self.table.schema.names)
            self._values = {
                f.name: TableColumn(f.name, f.type)
                for f in self.table.schema
                if f.name not in self._places
            }
            if not self._values:
                raise ClipError(
                    "the table has no values",
                    expected="a column beside the names of episodes and frames",
                    got=", ".join(self.table.schema.names)[:200],
                )

    def schema(self) -> Schema:
        """Return a feature for each column of values."""
        with located(ClipError, file=self.table.shown):
            _ = self._filled_buckets
            return Schema([column.spec for column in self._values.values()])

    def episodes(self) -> Sequence[EpisodeInfo]:
        """Return the episodes that have rows, in the dataset's order."""
        rows, keys = np.flatnonzero(self._counts.rows), self.names.keys
        lengths = self.names.num_frames
        return [EpisodeInfo(keys[row].as_py(), int(lengths[row])) for row in rows.tolist()]

    def account(self) -> Account:
        """Return the places of all features, and the number of rows without an episode."""
        counts = self._counts
        reason = f"of episodes that the dataset lacks, first in row {counts.first_unknown}"
        unknown_rows = LeftOut("rows", counts.num_unknown, reason, "rows")
        left_out = (unknown_rows,) if counts.num_unknown else ()
        places = {name: f"column {name}" for name in self._values}
        return Account(f"a table with {', '.join(self._places)}", places, left_out)

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        """Yield an episode's frames."""
        for block in self.blocks(info):
            yield from block.frames()

    def blocks(self, info: EpisodeInfo) -> Iterator[Block]:
        """Yield an episode's frames, as blocks of frames with the same features."""
        row = self._rows_by_key[info.key]
        with located(ClipError, file=self.table.shown):
            bucket = self._bucket
            if bucket is None or row not in bucket.episodes:
                self._bucket = None  # frees its memory first
                self._bucket = bucket = self._filled_buckets.load(row, self._values, self.names)
            yield from bucket.blocks(row, info.num_frames, self._frame_bytes)

    @cached_property
    def _rows_by_key(self) -> dict[str, int]:
        return {key: row for row, key in enumerate(self.names.keys.to_pylist())}

    @cached_property
    def _frame_bytes(self) -> int:
        specs = self.schema().values()
        return max(1, sum(spec.value_kind.constant_nbytes(spec) or 0 for spec in specs))

    @cached_property
    def _counts(self) -> _Counts:
        """Rows per episode; checks all places."""
        counts = _Counts(np.zeros(len(self.names.num_frames), np.int64))
        with located(ClipError, file=self.table.shown):
            for batch, places, first_row in self._read(self._places):
                del batch
                counts.add(places.episode, first_row)
            if not counts.num_rows:
                raise ClipError(
                    "the table has no rows", expected="a row per frame, span or episode"
                )
            if not counts.rows.any():
                raise ClipError(
                    "the table names no episode of the dataset",
                    expected=f"keys such as {self.names.keys[0].as_py()}, or numbers",
                    got=f"{counts.num_rows:,} rows of other episodes",
                )
        return counts

    @cached_property
    def _filled_buckets(self) -> _Buckets:
        """All rows in buckets; counts lengths of lists."""
        self._buckets = buckets = _Buckets(self._counts.rows, self.scratch, self.bucket_bytes)
        for batch, places, first_row in self._read([*self._places, *self._values]):
            for name, column in self._values.items():
                column.add(batch.column(name), first_row)
            numbers = first_row + np.arange(batch.num_rows)
            columns = {_EPISODE: places.episode, _START: places.start, _STOP: places.stop}
            columns[_ROW] = numbers
            arrays = [*map(pa.array, columns.values()), *map(batch.column, self._values)]
            rows = pa.RecordBatch.from_arrays(arrays, names=[*columns, *self._values])
            buckets.add(rows, places.episode)
        buckets.finish()
        return buckets

    def _read(self, columns: Sequence[str]) -> Iterator[tuple[pa.RecordBatch, TablePlaces, int]]:
        """Batches, the places of their rows, and the number of their first row."""
        first_row = 0
        for batch in self.table.batches(columns):
            keys = {name: batch.column(name) for name in self._places}
            yield batch, TablePlaces.of(keys, self.names, first_row), first_row
            first_row += batch.num_rows

    def close(self) -> None:
        """Remove the buckets."""
        if self._buckets is not None:
            self._buckets.close()


@dataclass
class _Counts:
    """Number of rows by episode, int64 [E], and for unknown episodes."""

    rows: IntArray
    num_rows: int = 0
    num_unknown: int = 0
    first_unknown: int = 0

    def add(self, episode: IntArray, first_row: int) -> None:
        unknown = np.flatnonzero(episode == UNKNOWN)
        if len(unknown) and not self.num_unknown:
            self.first_unknown = first_row + int(unknown[0])
        self.num_unknown += len(unknown)
        self.num_rows += len(episode)
        self.rows += np.bincount(episode[episode != UNKNOWN], minlength=len(self.rows))


class _Buckets:
    """Rows of a table by buckets of consecutive episodes, given `rows` by episode.

    All rows are one bucket in memory, as long as they are small.
    """

    def __init__(self, rows: IntArray, scratch: Path, bucket_bytes: int) -> None:
        self._rows, self._scratch, self._bucket_bytes = rows, scratch, bucket_bytes
        self._batches: list[pa.RecordBatch] = []
        self._num_bytes = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._bucket_of = np.zeros(len(rows), np.int64)
        self._files: list[Any] = []

    def add(self, batch: pa.RecordBatch, episode: IntArray) -> None:
        """Add rows, with their episodes or `UNKNOWN`."""
        if (episode == UNKNOWN).any():
            is_known = episode != UNKNOWN
            batch, episode = batch.filter(pa.array(is_known)), episode[is_known]
        if self._folder is not None:
            self._spill(batch)
            return
        self._batches.append(batch)
        self._num_bytes += batch.nbytes
        if self._num_bytes > self._bucket_bytes:
            self._divide()

    def finish(self) -> None:
        """End the files, after the last row."""
        for file in self._files:
            file.close()

    def load(
        self, episode: int, columns: Mapping[str, TableColumn], names: EpisodeNames
    ) -> _Bucket:
        """Return the bucket of an episode."""
        number = int(self._bucket_of[episode])
        episodes = np.flatnonzero(self._bucket_of == number)
        if self._folder is None:
            table = pa.Table.from_batches(self._batches)
        else:
            with pa.memory_map(self._path(number)) as file, pa.ipc.open_stream(file) as reader:
                table = reader.read_all()
        return _Bucket.of(table, range(episodes[0], episodes[-1] + 1), columns, names)

    def close(self) -> None:
        """Remove the files."""
        self._batches.clear()
        self.finish()
        if self._folder is not None:
            self._folder.cleanup()

    def _divide(self) -> None:
        """Move all rows so far to files of several buckets."""
        num_rows = sum(batch.num_rows for batch in self._batches)
        total = self._num_bytes / max(1, num_rows) * int(self._rows.sum())
        count = min(_MAX_BUCKETS, int(total // self._bucket_bytes) + 1)
        ends = np.cumsum(self._rows)
        self._bucket_of = (ends - self._rows) * count // max(1, int(ends[-1]))
        self._folder = tempfile.TemporaryDirectory(prefix="rows-", dir=self._scratch)
        schema = self._batches[0].schema
        self._files = [
            pa.ipc.new_stream(self._path(number), schema)
            for number in range(int(self._bucket_of[-1]) + 1)
        ]
        for batch in self._batches:
            self._spill(batch)
        self._batches.clear()

    def _spill(self, batch: pa.RecordBatch) -> None:
        bucket = self._bucket_of[np.asarray(batch.column(_EPISODE))]
        for number in np.unique(bucket).tolist():
            mask = bucket == number
            rows = batch if mask.all() else batch.filter(pa.array(mask))
            self._files[number].write_batch(rows)

    def _path(self, number: int) -> str:
        assert self._folder is not None, "buckets on disk"
        return str(Path(self._folder.name) / f"{number}.arrow")


@dataclass(frozen=True, eq=False)
class _Bucket:
    """Rows of consecutive episodes, sorted by episode and frame."""

    episodes: range
    bounds: IntArray  # episode i of the bucket has rows [bounds[i], bounds[i + 1])
    start: IntArray
    stop: IntArray
    values: Mapping[str, TableValues]

    @classmethod
    def of(
        cls,
        table: pa.Table,
        episodes: range,
        columns: Mapping[str, TableColumn],
        names: EpisodeNames,
    ) -> _Bucket:
        """Sort the rows. Raises `ClipError` for frames with several rows."""
        episode, start = (np.asarray(table[name], np.int64) for name in (_EPISODE, _START))
        same = episode[1:] == episode[:-1]
        if ((episode[1:] < episode[:-1]) | (same & (start[1:] < start[:-1]))).any():
            order = np.lexsort((start, episode))
            table = table.take(pa.array(order))
            episode, start = episode[order], start[order]
            same = episode[1:] == episode[:-1]
        stop, rows = (np.asarray(table[name], np.int64) for name in (_STOP, _ROW))
        for place in np.flatnonzero(same & (start[1:] < stop[:-1]))[:1].tolist():
            first_row, row = sorted((int(rows[place]), int(rows[place + 1])))
            raise ClipError(
                f"the table has a frame twice, in rows {first_row} and {row}",
                episode=names.keys[int(episode[place])].as_py(),
                frame=int(start[place + 1]),
                expected="one row per frame",
            )
        values = {
            name: column.values(_whole(table[name]), rows) for name, column in columns.items()
        }
        bounds = np.searchsorted(episode, np.arange(episodes.start, episodes.stop + 1))
        return cls(episodes, bounds, start, stop, values)

    def blocks(self, episode: int, num_frames: int, frame_bytes: int) -> Iterator[Block]:
        """Yield the frames of an episode; a span's frames repeat its row."""
        place = episode - self.episodes.start
        rows = np.arange(self.bounds[place], self.bounds[place + 1])
        counts = self.stop[rows] - self.start[rows]
        row = np.repeat(rows, counts)
        frame = np.arange(len(row)) + np.repeat(
            self.start[rows] - np.cumsum(counts) + counts, counts
        )
        is_new = np.diff(frame, prepend=frame[:1] - 1) != 1
        for values in self.values.values():
            is_new[1:] |= values.is_valid[row[1:]] != values.is_valid[row[:-1]]
        is_new[:1] = True
        starts = np.flatnonzero(is_new)
        max_frames, next_frame = max(1, _BLOCK_BYTES // frame_bytes), 0
        for begin, end in zip(starts.tolist(), [*starts[1:].tolist(), len(row)], strict=True):
            if (gap := int(frame[begin]) - next_frame) > 0:
                yield Block(gap, {})
            names = [name for name, v in self.values.items() if v.is_valid[row[begin]]]
            for first in range(begin, end, max_frames):
                part = row[first : min(first + max_frames, end)]
                yield Block(len(part), {name: self.values[name].take(part) for name in names})
            next_frame = int(frame[begin]) + end - begin
        if next_frame < num_frames:
            yield Block(num_frames - next_frame, {})


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array."""
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined
