"""Read rows of LeRobot's Parquet files as frames."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.common.embedded import embedded_value
from seqrecord.formats.sources.common.parquet_tables import ParquetTable, python_values
from seqrecord.formats.sources.lerobot.language import EVENTS, Resolver, Rows, rows_of_frames
from seqrecord.formats.sources.lerobot.layout import LeRobotEpisode
from seqrecord.store.feature_kinds import PIXEL_KINDS
from seqrecord.store.format.arrow import to_numpy
from seqrecord.store.schema import Block, FeatureSpec
from seqrecord.store.tables.arrow_tables import holds_text
from seqrecord.store.text import repr_of

_ORDER = ("episode_index", "frame_index", "timestamp")
# Rows per batch: at least the first two, more for small rows.
_ROWS, _ROWS_OF_IMAGES, _MOST_ROWS, _BYTES = 512, 32, 8192, 1 << 20


class NumberedTexts(NamedTuple):
    """Texts by number, and the column of the numbers."""

    column: str
    texts: Mapping[int, str]


class EpisodeRows:
    """Read episodes' rows from files with one or many episodes.

    Consecutive episodes of a file are read in one pass: a row group may span the whole file, and
    its rows are decodable only from its start.

    `language` are the features of resolvers, and `persistent` returns an episode's persistent rows.
    """

    def __init__(
        self,
        root: Path,
        schema: Mapping[str, FeatureSpec],
        texts: Mapping[str, NumberedTexts],
        *,
        num_rows: Mapping[str, int],
        exif: str | None,
        language: Mapping[str, Resolver],
        persistent: Callable[[LeRobotEpisode], Rows],
    ) -> None:
        self._exif, self._language, self._persistent = exif, language, persistent
        self._root, self._schema, self._numbered = root, schema, texts
        self._num_rows = num_rows  # by file, from `meta`
        has_images = any(spec.kind in PIXEL_KINDS for spec in schema.values())
        self._batch_rows = _ROWS_OF_IMAGES if has_images else _ROWS
        if all(spec.is_fixed or name in texts for name, spec in schema.items()):
            max_rows = _BYTES // max(1, sum(spec.nbytes for spec in schema.values()))
            self._batch_rows = max(self._batch_rows, min(max_rows, _MOST_ROWS))
        self._episodes: dict[str, _Episodes] = {}  # of the last file
        self._spans: dict[str, dict[int, tuple[float, float]]] = {}  # by file and number
        self._file: _Episodes | None = None  # the open file
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._unread_rows: pa.RecordBatch | None = None  # rows read ahead, of a later episode
        self._row = 0  # number of the first row in `_rest`, or of the next one to read

    def blocks(self, episode: LeRobotEpisode) -> Iterator[Block]:
        """Yield all frames in blocks; with images one frame per block.

        Raises `SourceError` for missing, duplicate or unordered rows.
        """
        file = self._in_file(episode)
        with located(SourceError, file=str(file.path)):
            begin, times = file.rows_of(episode)
            persistent = self._persistent(episode)
            stamps = times.astype(np.float32).tolist()
            count = 0
            for batch in self._rows(file, begin, begin + len(times)):
                texts = self._texts(batch, stamps[count : count + batch.num_rows], persistent)
                yield from self._blocks(batch, file.path, count, texts)
                count += batch.num_rows

    def times(self, episode: LeRobotEpisode) -> npt.NDArray[np.float64]:
        """Return the timestamps of an episode's rows, float64 [rows] in seconds; raises as
        `blocks`."""
        file = self._in_file(episode)
        with located(SourceError, file=str(file.path)):
            return file.rows_of(episode)[1]

    def span(self, episode: LeRobotEpisode) -> tuple[float, float]:
        """Return the lowest and the highest timestamp of an episode's rows, in seconds.

        Of all its rows, whatever else is wrong with them. Raises `SourceError` if there are none.
        """
        if episode.file not in self._spans:  # each file is read once for all its episodes
            self._spans[episode.file] = {}
            self._spans[episode.file] = self._in_file(episode).spans()
        if (span := self._spans[episode.file].get(episode.index)) is None:
            raise SourceError("episode without rows", file=str(self._root / episode.file))
        return span

    def _in_file(self, episode: LeRobotEpisode) -> _Episodes:
        if episode.file not in self._episodes:
            path = self._root / episode.file
            with located(SourceError, file=str(path)):
                self._episodes = {episode.file: _Episodes(path, self._num_rows.get(episode.file))}
        return self._episodes[episode.file]

    def _texts(
        self, batch: pa.RecordBatch, times: list[float], persistent: Rows
    ) -> dict[str, list[str | None]]:
        """The texts of language columns and resolvers, by feature."""
        texts: dict[str, list[str | None]] = {}
        has_events = EVENTS in batch.schema.names
        events = rows_of_frames(batch.column(EVENTS), EVENTS) if has_events else None
        if events is not None and EVENTS in self._schema:
            texts[EVENTS] = [
                "" if rows == [] else json.dumps(rows, ensure_ascii=False) for rows in events
            ]
        for name, resolver in self._language.items():
            with located(SourceError, feature=name):
                texts[name] = resolver.texts(times, persistent, events)
        return texts

    def _blocks(
        self,
        batch: pa.RecordBatch,
        path: Path,
        first_frame: int,
        texts: Mapping[str, list[str | None]],
    ) -> Iterator[Block]:
        columns: dict[str, Any] = {}
        images: dict[str, pa.Array] = {}
        for name, spec in self._schema.items():
            if name in texts:
                columns[name] = texts[name]
            elif name in self._numbered:
                columns[name] = _numbered_texts(batch, name, self._numbered[name])
            elif spec.value == "text":
                columns[name] = _texts(batch.column(name), spec)
            elif spec.kind in PIXEL_KINDS:
                images[name] = batch.column(name)
            else:
                columns[name] = array_of(batch.column(name), spec)
        block = Block(batch.num_rows, columns)
        if not images:
            yield from _split_incomplete(block, self._language)
            return
        for row, row_values in enumerate(block.frames()):
            frame: dict[str, Any] = {}
            for name, spec in self._schema.items():
                if name not in images:
                    if row_values[name] is not None:
                        frame[name] = row_values[name]
                    continue
                with located(SourceError, feature=name, frame=first_frame + row):
                    frame[name] = embedded_value(_image(images[name], row), spec, path, self._exif)
            yield Block.of(frame)

    def _rows(self, file: _Episodes, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield rows `begin` to `end` (exclusive) of a file in batches."""
        if file is not self._file or begin < self._row:
            self._batches, self._unread_rows, self._row = (
                self._open_batches(file, begin),
                None,
                begin,
            )
        while begin < end:
            batch, self._unread_rows = self._unread_rows, None
            if batch is None:
                self._file = None  # until the next batch is read
                batch = next(self._batches, None)
                if batch is None:
                    raise SourceError("columns differ in length", expected=f"{end} rows or more")
                self._file = file
            num_skipped = min(begin - self._row, batch.num_rows)
            episode_rows = batch.slice(num_skipped, end - begin)
            num_used = num_skipped + episode_rows.num_rows
            self._unread_rows = batch.slice(num_used) if num_used < batch.num_rows else None
            self._row += num_used
            begin += episode_rows.num_rows
            yield episode_rows

    def _open_batches(self, file: _Episodes, first_row: int) -> Iterator[pa.RecordBatch]:
        stored_columns = {name: texts.column for name, texts in self._numbered.items()}
        for name, resolver in self._language.items():
            stored_columns[name] = EVENTS if resolver.is_of_events else _ORDER[0]
        features = [stored_columns.get(name, name) for name in self._schema]
        columns = [*dict.fromkeys(features)] or [*_ORDER[:1]]
        numbers = {
            name: math.prod(n or 0 for n in spec.shape)
            for name, spec in self._schema.items()
            if spec.value == "array" and spec.kind != "image" and spec.is_fixed
        }
        return file.table.batches(
            *(columns,),
            features=self._schema,
            rows=self._batch_rows,
            first_row=first_row,
            numbers=numbers,
        )


class _Episodes:
    """Row ranges and times of the episodes in a file."""

    def __init__(self, path: Path, listed_rows: int | None) -> None:
        self.path, self.table = path, ParquetTable(path)
        if (
            listed_rows is not None and self.table.num_rows > listed_rows
        ):  # fewer raise for an episode
            raise SourceError(
                "the file has more rows than meta/episodes lists",
                expected=f"{listed_rows} rows",
                got=f"{self.table.num_rows} rows",
            )
        batches = list(self.table.batches(_ORDER))
        self._columns = [
            np.concatenate([np.empty(0), *(number_column(batch, name) for batch in batches)])
            for name in _ORDER
        ]
        # One pass over the column; a search per episode would read it each time.
        episode_numbers, *places = np.unique(
            self._columns[0], return_index=True, return_counts=True
        )
        pairs = zip(*(column.tolist() for column in places), strict=True)
        self._places = dict(zip(episode_numbers.tolist(), pairs, strict=True))

    def rows_of(self, episode: LeRobotEpisode) -> tuple[int, npt.NDArray[np.float64]]:
        """Return an episode's first row, and the timestamps of its rows, float64 [rows] in seconds.

        Raises `SourceError` for missing or unordered rows.
        """
        begin, count = self._places.get(episode.index, (0, 0))
        episodes, numbers, times = (column[begin : begin + count] for column in self._columns)
        if (episodes != episode.index).any():
            raise SourceError("rows of other episodes are among the episode's rows")
        for frame in np.flatnonzero(numbers != np.arange(count))[:1].tolist():
            raise SourceError(
                "missing or unordered rows",
                frame=frame,
                expected=f"frame_index {frame}",
                got=f"{numbers[frame]:.0f}",
            )
        previous_times = np.concatenate([[-np.inf], times])[:-1]
        for frame in np.flatnonzero(~(times > previous_times))[:1].tolist():
            raise SourceError(
                "timestamps are not ascending",
                frame=frame,
                expected=f"more than {previous_times[frame]} s",
                got=f"{times[frame]} s",
            )
        if count != episode.length:
            raise SourceError(
                "the number of rows differs from the episode's length",
                expected=episode.length,
                got=count,
            )
        return begin, times

    def spans(self) -> dict[int, tuple[float, float]]:
        """See `EpisodeRows.span`; by number."""
        spans = dict[int, tuple[float, float]]()
        for number, (begin, count) in self._places.items():
            times = self._columns[2][begin : begin + count]
            if np.isfinite(times).all():
                spans[number] = float(times.min()), float(times.max())
        return spans


def image_bytes(path: Path, name: str, row: int) -> bytes:
    """Return a row's image of a column."""
    with located(SourceError, file=str(path)):
        for batch in ParquetTable(path).batches([name], rows=1, first_row=row):
            return _image(batch.column(0), 0)
        raise SourceError(f"Parquet file without row {row}")


def _image(column: pa.Array, row: int) -> bytes:
    """Return a row's encoded image."""
    is_struct = pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0
    [data] = python_values((column.field("bytes") if is_struct else column).slice(row, 1))
    if not isinstance(data, bytes):
        raise SourceError(
            "the image is not embedded in the Parquet file",
            expected="the bytes of a PNG or JPEG",
            got=repr_of(python_values(column.slice(row, 1)), 100),
        )
    return data


def number_column(batch: pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    """Return a column of one number per row, without nulls."""
    column = batch.column(name)
    if column.null_count or not (
        pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    ):
        raise SourceError(
            f"invalid column {name}",
            expected="one number per row",
            got=f"{column.type} with {column.null_count} nulls",
        )
    return to_numpy(column)


_NUMBER_TYPES = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)


def array_of(column: pa.Array, spec: FeatureSpec) -> npt.NDArray[Any]:
    """Convert numbers or nested lists to [rows, *shape] of the feature's dtype."""
    values, rows = getattr(column, "storage", column), len(column)  # of an extension type
    sizes: list[int] = []
    while isinstance(values, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
        # `flatten` would import pyarrow.compute, which takes 0.1 s.
        if values.null_count:
            raise _shape_error(spec, "lists that differ in length, or nulls")
        if isinstance(values, pa.FixedSizeListArray):
            size = values.type.list_size
            begin = values.offset * size
        else:
            offsets = to_numpy(values.offsets)
            begin, size = (int(offsets[0]), int(offsets[1] - offsets[0])) if len(values) else (0, 0)
            if (offsets[1:] - offsets[:-1] != size).any():
                raise _shape_error(spec, "lists that differ in length, or nulls")
        sizes.append(size)
        values = values.values.slice(begin, len(values) * size)
    if tuple(sizes) != spec.shape and (spec.shape or sizes != [1]):
        raise _shape_error(spec, f"{values.type} {sizes}")
    if values.null_count or not any(is_type(values.type) for is_type in _NUMBER_TYPES):
        raise _shape_error(spec, f"{values.type} with {values.null_count} nulls")
    array = to_numpy(values)
    if array.dtype != spec.dtype:
        raise _shape_error(spec, array.dtype.name)
    return np.ascontiguousarray(array).reshape(rows, *(n or 1 for n in spec.shape))


def _numbered_texts(batch: pa.RecordBatch, feature: str, numbered: NumberedTexts) -> list[str]:
    column, texts = numbered
    numbers = number_column(batch, column).tolist()
    for number in numbers:
        if number not in texts:
            raise SourceError(
                f"unknown {feature} number",
                feature=feature,
                expected=f"a number among {len(texts)} texts",
                got=f"{column} {number}",
            )
    return [texts[number] for number in numbers]


def _split_incomplete(block: Block, sparse: Mapping[str, Any]) -> Iterator[Block]:
    """Divide a block into blocks without the features that are `None` in some frames."""
    if not sparse:
        yield block
        return
    lacks = [{n for n in sparse if block.columns[n][i] is None} for i in range(block.num_frames)]
    ends = [i for i in range(1, block.num_frames) if lacks[i] != lacks[i - 1]]
    for begin, end in pairwise([0, *ends, block.num_frames]):
        complete_columns = (
            (name, values) for name, values in block.columns.items() if name not in lacks[begin]
        )
        yield Block(end - begin, {name: values[begin:end] for name, values in complete_columns})


def _texts(column: pa.Array, spec: FeatureSpec) -> list[str]:
    if column.null_count or not holds_text(column.type):
        raise _shape_error(spec, f"{column.type} with {column.null_count} nulls")
    return python_values(column)


def _shape_error(spec: FeatureSpec, got: str) -> SourceError:
    return SourceError(
        "the column differs from its declaration in info.json",
        feature=spec.name,
        expected=str(spec),
        got=got[:200],
    )
