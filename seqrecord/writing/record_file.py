"""Writes frames into record files: they are encoded and become chunks of their groups."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.codecs.video.gops import Gop
from seqrecord.errors import CodecError, FrameError, located
from seqrecord.format.footer import EpisodePart
from seqrecord.format.lags import LagCollector, with_lags
from seqrecord.format.pages import Blob, PageCodec, check_fits
from seqrecord.format.references import ReferencedGops
from seqrecord.format.rows import MAX_EPISODE_FRAMES, may_refer
from seqrecord.processes.forks import cached_property
from seqrecord.schema import Block, EncodedImage, FeatureSpec, Schema
from seqrecord.sources.common.references import checksum_of
from seqrecord.statistics.collecting import StatisticsCollector
from seqrecord.storage import Storage
from seqrecord.writing.chunking import Column, FrameGroup, StoredChunk
from seqrecord.writing.rates import Irregular, RateCheck
from seqrecord.writing.record_files import EpisodeLags, RecordFiles
from seqrecord.writing.reference_group import ReferenceGroup
from seqrecord.writing.values import plain_items
from seqrecord.writing.video_group import VideoGroup

_Group: TypeAlias = "FrameGroup | ReferenceGroup | VideoGroup"

_Encoder: TypeAlias = "Callable[[npt.NDArray[Any] | Sequence[Any]], Column]"
"""Encodes one feature of a block's frames. Raises `FrameError`, with the number of the block's
frame, for what does not fit the feature."""


Times: TypeAlias = "tuple[npt.NDArray[Any], npt.NDArray[np.int64]]"
"""Timestamps [n], and the numbers of their frames, int64 [n]."""


class RecordFileWriter(RecordFiles):
    """Writes episodes, one at a time and block by block, into record files.

    With `only` it writes chunks of these groups alone, of episodes whose others are in other files.
    For `externals` see `VideoGroup`; with `checksums` what pages refer to is read.
    """

    def __init__(
        self,
        storage: Storage,
        schema: Schema,
        *,
        writer: str,
        max_file_size: int,
        statistics: StatisticsCollector | None = None,
        only: Collection[int] | None = None,
        externals: Mapping[str, tuple[str, int]] | None = None,
        checksums: bool = False,
        notes: bool = True,
    ) -> None:
        super().__init__(storage, schema, writer=writer, max_file_size=max_file_size, notes=notes)
        self._names = frozenset(schema.active)
        self._statistics = statistics or StatisticsCollector(None)
        self._bools = [name for name, spec in schema.items() if spec.dtype == np.bool_]
        self._encoders = {name: _encoder(spec) for name, spec in schema.items()}
        numbers = range(schema.num_groups) if only is None else only
        self._groups = [_group(schema, number, externals or {}, checksums) for number in numbers]
        self._video = {group.name: group for group in self._groups if isinstance(group, VideoGroup)}
        self._referred = {g.name for g in self._groups if isinstance(g, ReferenceGroup)}
        self._encoders |= dict.fromkeys(self._referred, _as_they_are)
        watched = self._statistics.names - self._referred
        self._watched = [name for name in schema if name in watched and not schema[name].is_raw]
        self._lags = {name: LagCollector() for name in with_lags(schema)}
        self._rate = RateCheck(schema)
        self.irregular: list[Irregular] = []  # episodes without fps, for their timestamps differ
        self._num_frames = 0  # of the episode
        self._copied: dict[int, int] = {}  # frames by group whose chunks are copied
        self._encoding = self._groups  # groups that get frames

    def begin(
        self,
        key: str,
        *,
        ordinal: int,
        chunk_frames: int | None,
        metadata: str,
        fps: float | None = None,
    ) -> None:
        """Start an episode; see `ChunkLength` for how `None` chooses its `chunk_frames`."""
        uid = self._writer + secrets.token_hex(8)
        self.begin_part(EpisodePart(key, uid, ordinal, None, fps, metadata), chunk_frames)

    def begin_part(self, episode: EpisodePart, chunk_frames: int | None = None) -> None:
        """Start chunks of an episode, of which other files may have some."""
        super().begin_part(episode)
        self._num_frames = 0
        self._copied, self._encoding = {}, self._groups
        for group in self._groups:
            group.begin(chunk_frames)
        for lags in self._lags.values():
            lags.begin()
        self._rate.begin(episode)
        self._statistics.begin(episode.key)
        for name in self._referred:
            self._statistics.exclude(name)

    def append(self, block: Block, *, fast: bool = False) -> None:
        """Encode the episode's next frames, if need be `fast`. They may lack every feature.

        How frames are shared out to blocks makes no difference to the files. Raises `FrameError`,
        which names episode and frame, for one that does not fit the schema.
        """
        episode = self._begun()
        first = self._num_frames
        if first + block.num_frames > MAX_EPISODE_FRAMES:
            raise FrameError("an episode of too many frames", episode=episode.key)
        columns = block.columns
        if unknown := [name for name in columns if name not in self._names]:
            raise FrameError(
                "a feature that the dataset does not have; pass a schema that names it",
                episode=episode.key,
                frame=first,
                expected=f"some of {', '.join(self.schema.active)}",
                got=", ".join(unknown),
            )
        for name in self._bools:
            if (items := columns.get(name)) is not None:
                is_array = isinstance(items, np.ndarray)
                proper = _proper_bools(items) if is_array else [*map(_proper_bools, items)]
                columns = {**columns, name: proper}
        try:
            columns = {
                name: column if type(column) is np.ndarray else plain_items(column, name)
                for name, column in columns.items()
            }
            encoders = self._fast_encoders if fast else self._encoders
            encoded = {name: encoders[name](column) for name, column in columns.items()}
        except (FrameError, CodecError) as error:
            error.frame = first + (error.frame or 0)
            raise error.located(episode=episode.key) from error.__cause__
        start = 0
        while start < block.num_frames:
            # A chunk is written when its last frame has come, before there are later ones.
            rows = range(start, block.num_frames)
            room = min((g.room(encoded, rows) for g in self._encoding), default=len(rows))
            self._add(columns, encoded, rows[:room])
            start += room

    def _add(
        self,
        columns: Mapping[str, npt.NDArray[Any] | Sequence[Any]],
        encoded: Mapping[str, Column],
        rows: range,
    ) -> None:
        """Take these rows of a block, of which no group has a chunk that ends before the last."""
        episode, number = self._begun(), self._num_frames
        if self._flushed and self.is_full and self._uneven() is None:
            self.flush()  # what is in the file must not go beyond what it says of the episode
            self.hold()
        with located((FrameError, CodecError), episode=episode.key, frame=number):
            for group in self._encoding:
                group.add(encoded, rows)
        numbers = number + np.arange(len(rows))
        for name in self._lags.keys() & columns.keys():
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

    def append_chunk(self, chunk: StoredChunk, times: Mapping[str, Times]) -> None:
        """Add the next chunk of a group as it is, and the timestamps in it by feature.

        All frames of the group come so, in order; `append` gets those of the other groups. The
        features have no statistics.
        """
        self._begun()
        self._copied[chunk.group] = chunk.first_frame + chunk.num_frames
        self._encoding = [g for g in self._groups if g.number not in self._copied]
        for name in self.schema.group(chunk.group):
            self._statistics.exclude(name)
        for name in self._lags.keys() & times.keys():
            self._add_times(name, *times[name])
        self.add(chunk)

    def _add_times(
        self, name: str, times: npt.NDArray[Any], numbers: npt.NDArray[np.int64]
    ) -> None:
        self._lags[name].add(times, numbers)
        if name == self._rate.feature:
            self._rate.add(times, numbers)

    def append_video(self, name: str, video: Gop | ReferencedGops) -> None:
        """Keep the next frames of a video feature as they are encoded.

        They are those of the frames that `append` gets without this feature, in the same order,
        before or after that. Raises `FrameError` for a feature that is no video.
        """
        episode = self._begun()
        group = self._video.get(name)
        with located(FrameError, episode=episode.key):
            if group is None:
                raise FrameError(
                    "video for a feature that is none",
                    feature=name,
                    expected=f"one of {', '.join(self._video) or 'none: the schema has no video'}",
                )
            group.keep(video)
        self._statistics.exclude(name)
        self._write_chunks(group)

    def check_times(self, times: npt.NDArray[np.float64]) -> None:
        """Compare the episode's fps with the timestamps of its frames, in seconds; of an original
        of which no feature has them."""
        self._rate.add_seconds(times)

    def _is_regular(self) -> bool:
        """Whether no timestamp of the episode so far contradicts its fps."""
        if (found := self._rate.contradiction()) is None:
            return True
        if found not in self.irregular[-1:]:  # it was flushed before
            self.irregular.append(found)
        return False

    def check_even(self) -> None:
        """`FrameError` unless videos that were appended have as many frames as the rest."""
        assert self._episode is not None
        if (uneven := self._uneven()) is not None:
            feature, num_frames = uneven
            raise FrameError(
                "a video of another number of frames than the episode",
                episode=self._episode.key,
                feature=feature,
                expected=self._num_frames,
                got=num_frames,
            )

    def flush(self) -> None:
        """Write the frames so far as chunks of whatever length: a kill or `drop` keeps them."""
        episode = self._begun()
        self.check_even()
        if self._flushed == self._num_frames:
            return
        with located(CodecError, episode=episode.key):
            for group in self._groups:
                self._write_chunks(group, rest=True)
        self.flush_part(self._num_frames, self._lags_so_far(), is_regular=self._is_regular())
        self._statistics.keep()

    def end(self) -> None:
        """Finish the episode: from here on a kill does not lose it."""
        episode = self._begun()
        self.check_even()
        if not self._num_frames:
            raise FrameError("an episode without frames", episode=episode.key)
        with located(CodecError, episode=episode.key):
            for group in self._groups:
                group.settle()
                self._write_chunks(group, rest=True)
        self.end_part(self._num_frames, self._lags_so_far(), is_regular=self._is_regular())
        self._statistics.keep()

    def drop(self) -> bool:
        """Forget the episode that has begun, but for what was flushed; whether anything was.

        What earlier files hold of an episode that is forgotten is never referenced.
        """
        for group in self._groups:
            group.clear()
        return super().drop()

    def discard(self) -> None:
        """Forget the episode that has begun, and what was flushed of it.

        From one moment on, which may be before this returns, no resume brings back any of it. Its
        bytes in the open file are given back; those in finished files that hold nothing else are
        when the writer commits.
        """
        self.check()
        for group in self._groups:
            group.clear()
        self._statistics.discard()
        super().discard()
        self._num_frames = 0

    def _begun(self) -> EpisodePart:
        """The episode that has begun, of a writer that is not broken."""
        self.check()
        assert self._episode is not None, "no episode has begun"
        return self._episode

    @cached_property
    def _fast_encoders(self) -> Mapping[str, _Encoder]:
        return {name: _encoder(spec, fast=True) for name, spec in self.schema.items()}

    def _uneven(self) -> tuple[str, int] | None:
        """A feature of kept video or copied chunks that has fewer frames than the rest, or more,
        and how many."""
        kept = [(g.name, g.num_passthrough) for g in self._video.values()]
        found = [(name, count) for name, count in kept if count is not None]
        for number, count in self._copied.items():
            found.append((next(iter(self.schema.group(number))), count))
        if found and len(found) == len(self._groups):  # there is nothing else to append
            self._num_frames = found[0][1]
        return next((each for each in found if each[1] != self._num_frames), None)

    def _write_chunks(self, group: _Group, *, rest: bool = False) -> None:
        for chunk in group.chunks(rest=rest):
            self._watch(group.schema, chunk)
            self.add(chunk)

    def _watch(self, schema: Schema, chunk: StoredChunk) -> None:
        """Statistics of raw features: their pages are the frames, many of them at once."""
        for (name, spec), page in zip(schema.items(), chunk.parts, strict=False):
            if spec.is_raw and len(page):
                shape = tuple(size for size in spec.shape if size is not None)
                frames = np.frombuffer(page, spec.dtype).reshape(-1, *shape)
                numbers = chunk.first_frame + np.arange(chunk.num_frames)
                if (present := chunk.gaps.get(self.schema.position(name))) is not None:
                    numbers = numbers[present]
                self._statistics.add_frames(name, frames, numbers)

    def _lags_so_far(self) -> EpisodeLags:
        """By the timestamps that all frames of the episode have."""
        found = ((name, self._lags[name].lags(self._num_frames)) for name in sorted(self._lags))
        return tuple((name, lags) for name, lags in found if lags is not None)


def _group(
    schema: Schema, number: int, externals: Mapping[str, tuple[str, int]], checksums: bool
) -> _Group:
    own = schema.group(number)
    if any(spec.is_video for spec in own.values()):
        return VideoGroup(schema, number, externals, checksum_of if checksums else None)
    # A source of video refers to that alone.
    if externals and may_refer(own) and not any(spec.is_video for spec in schema.values()):
        return ReferenceGroup(schema, number, externals, checksums=checksums)
    return FrameGroup(schema, number)


def _encoder(spec: FeatureSpec, *, fast: bool = False) -> _Encoder:
    """Encodes items of a feature: arrays, `str`, or `bytes` and what is like them."""
    if spec.is_video:
        return partial(_each, partial(_pixels, spec))
    codec = PageCodec(spec, fast=fast)
    if spec.value == "array":
        return _raw_encoder(codec) if spec.is_raw else partial(_each, codec.encode_frame)
    data_of = _text if spec.value == "text" else _bytes

    def encode(item: Any) -> Blob:
        return codec.encode_frame(np.frombuffer(data_of(spec, item), np.uint8))

    if spec.value == "text":
        return partial(_once_each, encode)
    return partial(_each, encode)


def _as_they_are(items: Any) -> Any:
    return items


def _each(encode: Callable[[Any], Blob], items: Iterable[Any]) -> list[Blob]:
    blobs: list[Blob] = []
    for item in items:
        try:
            blobs.append(encode(item))
        except (FrameError, CodecError) as error:
            raise error.located(frame=len(blobs)) from error.__cause__
    return blobs


def _once_each(encode: Callable[[Any], Blob], items: Sequence[Any]) -> list[Blob]:
    """Encodes texts that are the same once: the task of a block's frames."""
    if not {str}.issuperset(map(type, items)):
        return _each(encode, items)
    texts = [*dict.fromkeys(items)]
    try:
        known = dict(zip(texts, _each(encode, texts), strict=True))
    except (FrameError, CodecError) as error:
        error.frame = items.index(texts[error.frame or 0])
        raise
    return [known[item] for item in items]


def _pixels(spec: FeatureSpec, item: Any) -> Blob:
    """Frames of video are encoded later, many at once."""
    array = _fitting(spec, item)
    return Blob(array.astype(spec.dtype, copy=False).tobytes(), array.shape)


def check_value(spec: FeatureSpec, item: Any) -> None:
    """`FrameError` for a value that a feature cannot hold; no array is encoded to find that out."""
    if spec.value == "array" and (spec.is_video or not isinstance(item, EncodedImage)):
        _fitting(spec, item)
        return
    try:
        _encoder(spec)((item,))
    except (FrameError, CodecError) as error:
        facts = {name: fact for name, fact in error.context().items() if name != "frame"}
        raise FrameError(error.message, **facts) from error


def _proper_bools(item: Any) -> Any:
    """Bools of the bytes 0 and 1: in arrays of Pillow's images of one bit true is 255."""
    array = np.asarray(item)
    return np.asarray(array, order="C").view(np.uint8) != 0 if array.dtype == np.bool_ else item


def _fitting(spec: FeatureSpec, item: Any) -> npt.NDArray[Any]:
    """An array of the feature's dtype, in either byte order, and shape."""
    array = np.asarray(item)
    check_fits(spec, array.dtype, array.shape)
    return array


def _raw_encoder(codec: PageCodec) -> _Encoder:
    """The bytes of all frames are one array's."""
    spec = codec.spec
    shape = tuple(n or 0 for n in spec.shape)

    def encode(items: Any) -> memoryview:
        if isinstance(items, np.ndarray):
            check_fits(spec, items.dtype, items.shape[1:])
            return memoryview(items.astype(spec.dtype, order="C", copy=False).tobytes())
        if len(items) == 1:
            [item] = items
            if type(item) is np.ndarray and item.dtype == spec.dtype and item.shape == shape:
                return memoryview(item.tobytes())  # most arrays are as they are stored
        return memoryview(b"".join(blob.data for blob in _each(codec.encode_frame, items)))

    return encode


def _text(spec: FeatureSpec, item: object) -> bytes:
    if not isinstance(item, str):
        raise _misfit(spec, "str", item)
    try:
        return item.encode()
    except UnicodeEncodeError as error:
        raise FrameError(
            "text that UTF-8 cannot hold", feature=spec.name, expected="Unicode", got=str(error)
        ) from error


def _bytes(spec: FeatureSpec, item: object) -> bytes:
    if isinstance(item, np.ndarray) and (item.dtype != np.uint8 or item.ndim != 1):
        raise _misfit(spec, "bytes, or uint8 [n]", item)
    if not isinstance(item, (bytes, bytearray, memoryview, np.ndarray)):
        raise _misfit(spec, "bytes", item)
    return bytes(item)


def _misfit(spec: FeatureSpec, expected: str, item: object) -> FrameError:
    got = type(item).__name__
    if isinstance(item, np.ndarray):
        got = f"{item.dtype} {list(item.shape)}"
    return FrameError(
        "a value does not fit its feature", feature=spec.name, expected=expected, got=got
    )
