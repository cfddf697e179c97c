"""Rows of LeRobot's parquet files as frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.errors import SourceError, located
from seqrecord.schema import FeatureSpec, Frame
from seqrecord.sources.embedded import embedded_value
from seqrecord.sources.lerobot_layout import LeRobotEpisode, read_batches
from seqrecord.text import repr_of

__all__ = ["EpisodeRows", "NumberedTexts", "array_of", "image_bytes"]

_ROWS, _ROWS_OF_IMAGES = 512, 32  # in memory at a time, by default
_ORDER = ("episode_index", "frame_index", "timestamp")


class NumberedTexts(NamedTuple):
    """Texts that a column has by their numbers."""

    column: str
    texts: Mapping[int, str]


class EpisodeRows:
    """Reads the rows of episodes, from files that hold one or many of them.

    Consecutive episodes of one file are read in one pass: a row group may be the whole file, and
    nothing in it can be reached without decoding what comes before.
    """

    def __init__(
        self,
        root: Path,
        schema: Mapping[str, FeatureSpec],
        texts: Mapping[str, NumberedTexts],
        *,
        batch_rows: int | None = None,
    ) -> None:
        self._root, self._schema, self._numbered = root, schema, texts
        has_images = any(spec.kind == "image" for spec in schema.values())
        self._batch_rows = batch_rows or (_ROWS_OF_IMAGES if has_images else _ROWS)
        self._path: Path | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._rest: pa.RecordBatch | None = None  # rows that were read, of a later episode
        self._times_path: Path | None = None
        self._times = np.empty(0, np.int64), np.empty(0)
        self._last: int = -1  # the episode that was read last from the open file

    def frames(self, episode: LeRobotEpisode) -> Iterator[Frame]:
        """All frames; raises `SourceError` for rows that are missing, twice or out of order."""
        path = self._root / episode.file
        with located(SourceError, file=str(path)):
            count, last = 0, -np.inf
            for batch in self._rows_of(path, episode.index):
                numbers = _column(batch, "frame_index").astype(np.int64)
                wrong = np.flatnonzero(numbers != np.arange(count, count + len(numbers)))
                if len(wrong):
                    raise SourceError(
                        "rows that are missing or out of order",
                        frame=count + int(wrong[0]),
                        expected=f"frame_index {count + int(wrong[0])}",
                        got=int(numbers[wrong[0]]),
                    )
                times = np.concatenate([[last], _column(batch, "timestamp").astype(np.float64)])
                back = np.flatnonzero(~(np.diff(times) > 0))
                if len(back):
                    raise SourceError(
                        "timestamps that go back",
                        frame=count + int(back[0]),
                        expected=f"more than {times[back[0]]} s",
                        got=f"{times[back[0] + 1]} s",
                    )
                last = float(times[-1])
                yield from self._frames(batch, path, count)
                count += len(numbers)
            if count != episode.length:
                raise SourceError(
                    "another number of rows than the episode's length",
                    expected=episode.length,
                    got=count,
                )

    def times(self, episode: LeRobotEpisode) -> npt.NDArray[np.float64]:
        """The timestamps of an episode's rows: seconds [rows]."""
        path = self._root / episode.file
        if path != self._times_path:
            with located(SourceError, file=str(path)):
                self._times, self._times_path = _read_times(path), path
        episodes, times = self._times
        mine: npt.NDArray[np.float64] = times[episodes == episode.index]
        return mine

    def _frames(self, batch: pa.RecordBatch, path: Path, first: int) -> Iterator[Frame]:
        columns: dict[str, Any] = {}
        for name, spec in self._schema.items():
            if name in self._numbered:
                columns[name] = _numbered_texts(batch, name, self._numbered[name])
            elif spec.value == "text":
                columns[name] = _texts(batch.column(name), spec)
            elif spec.kind == "image":
                columns[name] = batch.column(name)
            else:
                columns[name] = array_of(batch.column(name), spec)
        for row in range(batch.num_rows):
            frame: dict[str, Any] = {}
            for name, column in columns.items():
                if isinstance(column, (np.ndarray, list)):
                    frame[name] = column[row]
                    continue
                with located(SourceError, feature=name, frame=first + row):
                    frame[name] = embedded_value(_image(column[row]), self._schema[name], path)
            yield frame

    def _rows_of(self, path: Path, episode: int) -> Iterator[pa.RecordBatch]:
        """The rows of one episode, batch by batch."""
        if path != self._path or episode <= self._last:
            self._batches, self._rest = self._opened(path, episode), None
        self._last = episode
        found = False
        while True:
            batch, self._rest = self._rest, None
            if batch is None:
                self._path = None  # unless more can be read
                batch = next(self._batches, None)
                if batch is None:
                    return
                self._path = path
            mine = np.flatnonzero(_column(batch, "episode_index") == episode)
            if not len(mine):
                if found:
                    self._rest = batch
                    return
                continue
            found = True
            begin, end = int(mine[0]), int(mine[-1]) + 1
            if len(mine) != end - begin:
                raise SourceError("rows of other episodes among those of this one")
            if end < batch.num_rows:
                self._rest = batch.slice(end)
            yield batch.slice(begin, end - begin)
            if end < batch.num_rows:
                return

    def _opened(self, path: Path, episode: int) -> Iterator[pa.RecordBatch]:
        stands_for = {name: each.column for name, each in self._numbered.items()}
        features = [stands_for.get(name, name) for name in self._schema]
        columns = [*dict.fromkeys([*_ORDER, *features])]
        rows = self._batch_rows
        return read_batches(path, columns, features=self._schema, rows=rows, episode=episode)


def _read_times(path: Path) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Episode and timestamp of each row of a file."""
    episodes, times = [np.empty(0, np.int64)], [np.empty(0)]
    for batch in read_batches(path, ["episode_index", "timestamp"]):
        episodes.append(_column(batch, "episode_index").astype(np.int64))
        times.append(_column(batch, "timestamp").astype(np.float64))
    return np.concatenate(episodes), np.concatenate(times)


def image_bytes(path: Path, name: str) -> bytes:
    """The first image of a column."""
    with located(SourceError, file=str(path)):
        for batch in read_batches(path, [name], rows=1):
            return _image(batch.column(0)[0])
        raise SourceError("a parquet file without rows")


def _image(value: pa.Scalar) -> bytes:
    """The encoded image of one row."""
    data = value.as_py()
    if isinstance(data, dict):
        data = data.get("bytes")
    if not isinstance(data, bytes):
        raise SourceError(
            "an image that is not in the parquet file",
            expected="the bytes of a PNG or JPEG",
            got=repr_of(value.as_py(), 100),
        )
    return data


def _column(batch: pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    """A column of one number a row, without gaps."""
    column = batch.column(name)
    if column.null_count or not (
        pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    ):
        raise SourceError(
            f"a column {name} that is not one number a row",
            expected="numbers",
            got=f"{column.type}, {column.null_count} of them missing",
        )
    values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values


def array_of(column: pa.Array, spec: FeatureSpec) -> npt.NDArray[Any]:
    """[rows, *shape] of the feature's dtype, from numbers or from lists nested to its shape."""
    values, rows = column, len(column)
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    sizes: list[int] = []
    while isinstance(values, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
        # Not by `flatten`, which imports pyarrow.compute: that takes 0.1 s.
        if values.null_count:
            raise _misshapen(spec, "lists of several lengths, or missing ones")
        if isinstance(values, pa.FixedSizeListArray):
            size = values.type.list_size
            begin = values.offset * size
        else:
            offsets = values.offsets.to_numpy()
            begin, size = (int(offsets[0]), int(offsets[1] - offsets[0])) if len(values) else (0, 0)
            if (np.diff(offsets) != size).any():
                raise _misshapen(spec, "lists of several lengths, or missing ones")
        sizes.append(size)
        values = values.values.slice(begin, len(values) * size)
    if tuple(sizes) != spec.shape and (spec.shape or sizes != [1]):
        raise _misshapen(spec, f"{values.type} {sizes}")
    if values.null_count or not (
        pa.types.is_integer(values.type)
        or pa.types.is_floating(values.type)
        or pa.types.is_boolean(values.type)
    ):
        raise _misshapen(spec, f"{values.type}, {values.null_count} of them missing")
    array = values.to_numpy(zero_copy_only=False)
    if array.dtype != spec.dtype:
        raise _misshapen(spec, array.dtype.name)
    return np.ascontiguousarray(array).reshape(rows, *(n or 1 for n in spec.shape))


def _numbered_texts(batch: pa.RecordBatch, feature: str, numbered: NumberedTexts) -> list[str]:
    column, texts = numbered
    numbers = _column(batch, column).tolist()
    for number in numbers:
        if number not in texts:
            raise SourceError(
                f"a {feature} without a name",
                feature=feature,
                expected=f"one of {len(texts)} texts",
                got=f"{column} {number}",
            )
    return [texts[number] for number in numbers]


def _texts(column: pa.Array, spec: FeatureSpec) -> list[str]:
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if column.null_count or not is_text:
        raise _misshapen(spec, f"{column.type}, {column.null_count} of them missing")
    values: list[str] = column.to_pylist()
    return values


def _misshapen(spec: FeatureSpec, got: str) -> SourceError:
    return SourceError(
        "a column that is not as info.json declares it",
        feature=spec.name,
        expected=str(spec),
        got=got[:200],
    )
