"""Encodes frames and writes them, as chunks of their groups, into record files."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import CodecError, FrameError, located
from seqrecord.store.bfloat16 import BFLOAT16, as_words
from seqrecord.store.format.footer import EpisodePart
from seqrecord.store.format.page_kinds import (
    EncodedColumn,
    encode_each,
    page_codec,
    page_kind,
    reference_kind,
)
from seqrecord.store.format.pages import check_fits
from seqrecord.store.format.rows import MAX_EPISODE_FRAMES, may_be_references
from seqrecord.store.format.time_spans import TimeSpanCollector, timestamp_features
from seqrecord.store.schema import Block, EncodedImage, FeatureSpec, Schema
from seqrecord.store.statistics.collecting import StatisticsCollector
from seqrecord.store.storage.base import Storage
from seqrecord.store.writing.chunking import ChunkGroup, FrameGroup, StoredChunk
from seqrecord.store.writing.rates import IrregularEpisode, RateChecks
from seqrecord.store.writing.record_files import ChunkWriter, FeatureTimeSpans
from seqrecord.store.writing.values import plain_items

_Encoder: TypeAlias = "Callable[[npt.NDArray[Any] | Sequence[Any]], EncodedColumn]"
"""Encodes one feature of a block's frames. Raises `FrameError`, with the frame's number in the
block, for values that do not fit the feature."""


Times: TypeAlias = "tuple[npt.NDArray[Any], npt.NDArray[np.int64]]"
"""Timestamps [n], and the numbers of their frames, int64 [n]."""


class RecordFileWriter(ChunkWriter):
    """Writes episodes, one at a time and block by block, into record files.

    With `only`, it writes chunks of these groups; the other groups of the same episodes are in
    other files. `externals` and `checksums` are as for `ReferenceKind`. `irregular` lists episodes
    that lost their fps, because timestamps contradict it.
    """

    def __init__(
        self,
        storage: Storage,
        schema: Schema,
        *,
        writer: str,
        max_file_size: int | None = None,
        statistics: StatisticsCollector | None = None,
        only: Collection[int] | None = None,
        externals: Mapping[str, tuple[str, int]] | None = None,
        checksums: bool = False,
        notes: bool = True,
        began: float | None = None,
    ) -> None:
        super().__init__(
            storage, schema, writer=writer, max_file_size=max_file_size, notes=notes, began=began
        )
        self._names = dict.fromkeys(schema.active)
        self._statistics = statistics or StatisticsCollector(None)
        self._bools = [name for name, spec in schema.items() if spec.dtype == np.bool_]
        self._encoders = {name: _encoder(spec) for name, spec in schema.items()}
        numbers = range(schema.num_groups) if only is None else only
        self._groups = [_group_of(schema, n, externals or {}, checksums) for n in numbers]
        self._video: dict[str, ChunkGroup] = {}
        self._referred: set[str] = set()
        for group in self._groups:
            self._video |= dict.fromkeys(group.schema, group) if group.keeps_video else {}
            self._referred.update(() if group.encodes else group.schema)
        self._encoders |= dict.fromkeys(self._referred, _as_they_are)
        watched = self._statistics.names - self._referred
        self._watched = [
            name
            for name, spec in schema.items()
            if name in watched and not page_kind(spec).in_slices
        ]
        self._time_spans = {name: TimeSpanCollector() for name in timestamp_features(schema)}
        self._rates = RateChecks(schema)
        self.irregular: list[IrregularEpisode] = []  # whose fps their timestamps contradict
        self._flushed_irregular: str | None = None  # key of the last entry of this episode
        self._key, self._start = "", 0  # of the episode, see `begin_part`
        self._num_frames = 0  # of the episode
        self._encoding = self._groups  # without those whose chunks are copied

    def begin(
        self,
        key: str,
        *,
        ordinal: int,
        chunk_frames: int | None,
        metadata: str,
        fps: float | None = None,
    ) -> None:
        """Start an episode; `ChunkLength` chooses the length of chunks if `chunk_frames` is
        `None`."""
        uid = self._writer + secrets.token_hex(8)
        part = EpisodePart(key, uid, ordinal, None, fps, metadata)
        self.begin_part(part, chunk_frames)

    def begin_part(
        self,
        episode: EpisodePart,
        chunk_frames: int | None = None,
        *,
        key: str | None = None,
        start: int = 0,
    ) -> None:
        """Start chunks of an episode that may also have chunks in other files.

        Errors, notes and statistics name it `key`, and count frames from `start`: its key and first
        frame in a dataset that renamed or trimmed it.
        """
        super().begin_part(episode)
        self._key, self._start = episode.key if key is None else key, start
        self._num_frames = 0
        self._encoding = self._groups
        for group in self._groups:
            group.begin(chunk_frames)
        for time_spans in self._time_spans.values():
            time_spans.begin()
        self._rates.begin(replace(episode, key=self._key))
        self._flushed_irregular = None
        self._statistics.begin(self._key, -start)
        for name in self._referred:
            self._statistics.exclude(name)

    def append(self, block: Block) -> None:
        """Encode the episode's next frames, which may lack every feature.

        The partition of frames into blocks has no effect on the files. Raises `FrameError`, with
        episode and frame, for a frame that does not fit the schema.
        """
        self._current_episode()
        first_frame = self._num_frames
        if first_frame + block.num_frames > MAX_EPISODE_FRAMES:
            raise FrameError("episode has too many frames", episode=self._key)
        columns = block.columns
        for name in self._bools:
            if (items := columns.get(name)) is not None:
                is_array = isinstance(items, np.ndarray)
                proper = _proper_bools(items) if is_array else [*map(_proper_bools, items)]
                columns = {**columns, name: proper}
        try:
            check_names(self._names, columns)
            columns = {
                name: column if type(column) is np.ndarray else plain_items(column, name)
                for name, column in columns.items()
            }
            encoded = {name: self._encoders[name](column) for name, column in columns.items()}
        except (FrameError, CodecError) as error:
            error.frame = first_frame - self._start + (error.frame or 0)
            raise error.located(episode=self._key) from error.__cause__
        start = 0
        while start < block.num_frames:
            # Write each chunk right after its last frame.
            rows = range(start, block.num_frames)
            room = min((g.rows_left(encoded, rows) for g in self._encoding), default=len(rows))
            self._add(columns, encoded, rows[:room])
            start += room

    def _add(
        self,
        columns: Mapping[str, npt.NDArray[Any] | Sequence[Any]],
        encoded: Mapping[str, EncodedColumn],
        rows: range,
    ) -> None:
        """Take these rows of a block; no group has a chunk that ends before the last row."""
        self._current_episode()
        number = self._num_frames
        self._hold_back_if_full()
        with located((FrameError, CodecError), episode=self._key, frame=number - self._start):
            for group in self._encoding:
                group.add(encoded, rows)
        numbers = number + np.arange(len(rows))
        for name in self._time_spans.keys() & columns.keys():
            times = np.asarray(columns[name][rows.start : rows.stop]).reshape(len(rows))
            self._add_times(name, times, numbers)
        self._num_frames += len(rows)
        if watched := [name for name in self._watched if name in columns]:
            for row in rows:
                self._statistics.add({name: columns[name][row] for name in watched})
        else:
            self._statistics.skip(len(rows))
        for group in self._groups:
            self._write_chunks(group)

    def _hold_back_if_full(self) -> None:
        """Continue a flushed episode in a new file, between frames that all features have."""
        if self._flushed and self.is_full and self._other_length() is None:
            self._flush_chunks()  # the file may only have chunks of flushed frames
            self.hold_back()

    def append_chunk(self, chunk: StoredChunk, times: Mapping[str, Times]) -> None:
        """Add the next chunk of a group without encoding, with its timestamps by feature.

        All frames of the group must come this way, in order; `append` takes the other groups. The
        features get no statistics.
        """
        self._current_episode()
        [group] = (group for group in self._groups if group.number == chunk.group)
        group.num_kept = chunk.first_frame + chunk.num_frames
        self._encoding = [sibling for sibling in self._encoding if sibling is not group]
        for name in group.schema:
            self._statistics.exclude(name)
        for name in self._time_spans.keys() & times.keys():
            self._add_times(name, *times[name])
        self.add(chunk)

    def _add_times(
        self, name: str, times: npt.NDArray[Any], numbers: npt.NDArray[np.int64]
    ) -> None:
        self._time_spans[name].add(times, numbers)
        self._rates.add(name, times, numbers - self._start)

    def append_video(self, name: str, video: Any) -> None:
        """Keep the next frames of a video feature in their encoding: a `Gop` or similar.

        The frames belong, in order, to the frames that `append` gets without this feature, before
        or afterwards. Raises `FrameError` if the feature is not video.
        """
        self._current_episode()
        group = self._video.get(name)
        self._hold_back_if_full()
        with located(FrameError, episode=self._key):
            if group is None:
                raise FrameError(
                    "feature is not video",
                    feature=name,
                    expected=f"one of {', '.join(self._video) or 'none: the schema has no video'}",
                )
            group.keep(video)
        self._statistics.exclude(name)
        self._write_chunks(group)

    def check_times(self, times: npt.NDArray[np.float64]) -> None:
        """Compare the fps also with timestamps in seconds, float64 [frames], of no feature."""
        self._rates.add(None, times, np.arange(len(times)))

    def _is_regular(self) -> bool:
        """Whether the episode's timestamps so far agree with its fps."""
        contradiction = self._rates.contradiction()
        if self._episode is not None and self._key == self._flushed_irregular:
            self.irregular.pop()  # the mean rate of all frames counts
        self._flushed_irregular = contradiction.episode if contradiction else None
        if contradiction is None:
            return True
        self.irregular.append(contradiction)
        return False

    def check_lengths(self) -> None:
        """Raise `FrameError` if an appended video has more or fewer frames than the other
        features."""
        assert self._episode is not None
        if (uneven := self._other_length()) is not None:
            feature, num_frames = uneven
            raise FrameError(
                "video and episode have different numbers of frames",
                episode=self._key,
                feature=feature,
                expected=self._num_frames,
                got=num_frames,
            )

    def flush(self) -> bool:
        """Write the frames so far, in shorter chunks if needed: `drop` keeps them.

        Returns whether a kill keeps them too, with all ended episodes; see `store`.
        """
        self._flush_chunks()
        return self.store()

    def _flush_chunks(self) -> None:
        self._current_episode()
        self.check_lengths()
        if self._flushed == self._num_frames:
            return
        with located(CodecError, episode=self._key):
            for group in self._groups:
                self._write_chunks(group, with_tail=True)
        self.flush_part(self._num_frames, self._time_spans_so_far(), is_regular=self._is_regular())
        self._statistics.keep()

    def end(self, metadata: str | None = None) -> None:
        """End the episode, with other `metadata` if given; see `ChunkWriter.end_part`."""
        episode = self._current_episode()
        if metadata is not None:
            self._episode = replace(episode, metadata=metadata)
        self.check_lengths()
        if not self._num_frames:
            raise FrameError("episode has no frames", episode=self._key)
        with located(CodecError, episode=self._key):
            for group in self._groups:
                group.fix_length()
                self._write_chunks(group, with_tail=True)
        self.end_part(self._num_frames, self._time_spans_so_far(), is_regular=self._is_regular())
        self._statistics.keep()

    def drop(self) -> bool:
        """Drop the current episode, except its flushed frames; returns whether there are any.

        Chunks in earlier files are not removed, but nothing refers to them.
        """
        for group in self._groups:
            group.clear()
        return super().drop()

    def discard(self) -> None:
        """Drop the current episode and its flushed frames.

        From one moment on, possibly before this returns, no resume recovers any of it. Its bytes in
        the open file are freed now; finished files with nothing else are removed when the writer
        commits.
        """
        self.check()
        for group in self._groups:
            group.clear()
        self._statistics.discard()
        super().discard()
        self._num_frames = 0

    def _current_episode(self) -> EpisodePart:
        """The current episode; raises if the writer is broken."""
        self.check()
        assert self._episode is not None, "no episode has begun"
        return self._episode

    def _other_length(self) -> tuple[str, int] | None:
        """A feature of kept video or copied chunks with another number of frames, and that
        number."""
        counts = ((next(iter(group.schema)), group.num_kept) for group in self._groups)
        lengths = [(name, count) for name, count in counts if count is not None]
        if lengths and len(lengths) == len(self._groups):  # no other frames will come
            self._num_frames = lengths[0][1]
        return next((length for length in lengths if length[1] != self._num_frames), None)

    def _write_chunks(self, group: ChunkGroup, *, with_tail: bool = False) -> None:
        for chunk in group.chunks(with_tail=with_tail):
            self._watch(group.schema, chunk)
            self.add(chunk)

    def _watch(self, schema: Schema, chunk: StoredChunk) -> None:
        """Add a chunk's raw pages to the statistics: a page is an array of many frames."""
        for (name, spec), page in zip(schema.items(), chunk.parts, strict=False):
            if len(page) and page_kind(spec).in_slices:
                shape = tuple(size for size in spec.shape if size is not None)
                frames = np.frombuffer(page, spec.dtype).reshape(-1, *shape)
                numbers = chunk.first_frame - self._start + np.arange(chunk.num_frames)
                if (mask := chunk.gaps.get(self.schema.position(name))) is not None:
                    numbers = numbers[mask]
                self._statistics.add_frames(name, frames, numbers)

    def _time_spans_so_far(self) -> FeatureTimeSpans:
        """For each timestamp feature that no frame lacks."""
        pairs = (
            (name, self._time_spans[name].time_spans(self._num_frames))
            for name in sorted(self._time_spans)
        )
        return tuple((name, time_spans) for name, time_spans in pairs if time_spans is not None)


def _group_of(
    schema: Schema, number: int, externals: Mapping[str, tuple[str, int]], checksums: bool
) -> ChunkGroup:
    """The group of this number. Its kind of pages decides, and imports what its features need."""
    features = schema.group(number)
    group: ChunkGroup | None = None
    if externals and may_be_references(features):
        group = reference_kind().group(schema, number, externals, checksums=checksums)
    if group is None:
        group = page_kind(next(iter(features.values()))).group(schema, number)
    return FrameGroup(schema, number) if group is None else group


def _encoder(spec: FeatureSpec) -> _Encoder:
    """Encoder for values of a feature: arrays, `str`, or `bytes` and similar buffers."""
    codec = page_codec(spec)
    encoders = codec.encode_block, codec.encode_frame, encode_each
    encoder = spec.value_kind.column_encoder(spec.name, *encoders)
    return partial(_encode_words, spec.name, encoder) if spec.dtype == BFLOAT16 else encoder


def _encode_words(
    feature: str, encode: _Encoder, items: npt.NDArray[Any] | Sequence[Any]
) -> EncodedColumn:
    """Encode frames of a bfloat16 feature."""
    if isinstance(items, np.ndarray):
        return encode(as_words(feature, items))
    words = []
    for frame, item in enumerate(items):
        with located(FrameError, frame=frame):
            words.append(item if isinstance(item, EncodedImage) else as_words(feature, item))
    return encode(words)


def _as_they_are(items: Any) -> Any:
    return items


def check_names(features: Collection[str], names: Iterable[str]) -> None:
    """Raise `FrameError` for names of features that are not known."""
    if unknown_names := [name for name in names if name not in features]:
        raise FrameError(
            "dataset lacks this feature; pass a schema with it",
            expected=f"some of {', '.join(features)}",
            got=", ".join(unknown_names),
        )


def check_value(spec: FeatureSpec, item: Any) -> None:
    """Raise `FrameError` for a value that does not fit the feature; arrays are not encoded."""
    if not isinstance(item, EncodedImage):
        array = spec.value_kind.stored_array(spec.name, item)
        if spec.dtype == BFLOAT16:
            array = as_words(spec.name, array)
        check_fits(spec, array.dtype, array.shape)
        return
    try:
        _encoder(spec)((item,))
    except (FrameError, CodecError) as error:
        facts = {name: fact for name, fact in error.context().items() if name != "frame"}
        raise FrameError(error.message, **facts) from error


def _proper_bools(item: Any) -> Any:
    """Bools as bytes 0 and 1; arrays of Pillow's 1-bit images have 255 for true."""
    array = np.asarray(item)
    return np.asarray(array, order="C").view(np.uint8) != 0 if array.dtype == np.bool_ else item
