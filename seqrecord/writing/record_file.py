"""Writes record files: episodes in, chunks out, a footer at the end."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from typing import TypeAlias

import numpy as np

from seqrecord.codecs.video.gops import Gop
from seqrecord.collecting import StatisticsCollector
from seqrecord.errors import CodecError, FrameError, located
from seqrecord.format import MAX_EPISODE_FRAMES, EpisodePart
from seqrecord.format.pages import PageCodec
from seqrecord.format.video_pages import KeptPage
from seqrecord.lags import LagCollector, with_lags
from seqrecord.schema import Frame, Schema
from seqrecord.storage import Storage
from seqrecord.writing.chunking import FrameGroup, StoredChunk
from seqrecord.writing.encoding import Encoder, encoder, video_encoder
from seqrecord.writing.record_files import EpisodeLags, RecordFiles
from seqrecord.writing.video_group import VideoGroup

__all__ = ["RecordFileWriter"]

_Group: TypeAlias = "FrameGroup | VideoGroup"


class RecordFileWriter(RecordFiles):
    """Writes episodes, one at a time and frame by frame, into record files.

    With `only` it writes chunks of these groups alone, of episodes whose others are in other files.
    """

    def __init__(
        self,
        storage: Storage,
        schema: Schema,
        *,
        writer: str,
        record_bytes: int,
        statistics: StatisticsCollector | None = None,
        only: Collection[int] | None = None,
    ) -> None:
        super().__init__(storage, schema, writer=writer, record_bytes=record_bytes)
        self._names = frozenset(schema.kept)
        self._statistics = statistics
        self._watched = [name for name, spec in schema.items() if not spec.is_raw]
        codecs = {name: PageCodec(spec) for name, spec in schema.items() if not spec.is_video}
        self._encoders = {name: encoder(codec) for name, codec in codecs.items()}
        self._encoders |= {n: video_encoder(spec) for n, spec in schema.items() if spec.is_video}
        self._quick_encoders: Mapping[str, Encoder] | None = None
        self._video = {
            name: VideoGroup(schema, spec.group) for name, spec in schema.items() if spec.is_video
        }
        videos = {group.number: group for group in self._video.values()}
        self._groups: list[_Group] = [
            videos.get(number) or FrameGroup(schema, number, codecs)
            for number in range(schema.num_groups)
            if only is None or number in only
        ]
        self._lags = {name: LagCollector() for name in with_lags(schema)}
        self._num_frames = 0  # of the episode

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
        self.begin_again(EpisodePart(key, uid, ordinal, None, fps, metadata), chunk_frames)

    def begin_again(self, episode: EpisodePart, chunk_frames: int | None = None) -> None:
        """Start more chunks of an episode, of which other files may have some."""
        self.begin_part(episode)
        self._num_frames = 0
        for group in self._groups:
            group.begin(chunk_frames)
        for lags in self._lags.values():
            lags.begin()
        if self._statistics is not None:
            self._statistics.begin(episode.key)

    def append(self, frame: Frame, *, quick: bool = False) -> int:
        """Encode the episode's next frame, if need be `quick`. Returns the bytes that it takes.

        It may lack every feature.

        Raises `FrameError`, which names episode and frame, for one that does not fit the schema.
        """
        episode = self._begun()
        number = self._num_frames
        if number == MAX_EPISODE_FRAMES:
            raise FrameError("an episode of too many frames", episode=episode.key)
        if unknown := [name for name in frame if name not in self._names]:
            raise FrameError(
                "a feature that the dataset does not have; pass a schema that names it",
                episode=episode.key,
                frame=number,
                expected=f"some of {', '.join(self.schema.kept)}",
                got=", ".join(unknown),
            )
        try:
            encoders = self._made_quick() if quick else self._encoders
            blobs = {name: encoders[name](item) for name, item in frame.items()}
        except (FrameError, CodecError) as error:
            raise error.located(episode=episode.key, frame=number) from error.__cause__
        if self._flushed and self.is_full and self._uneven() is None:
            self.flush()  # what is in the file must not go beyond what it says of the episode
            self.hold()
        try:
            for group in self._groups:
                group.add({name: blobs[name] for name in group.schema if name in blobs})
        except (FrameError, CodecError) as error:
            raise error.located(episode=episode.key, frame=number) from error.__cause__
        for name, lags in self._lags.items():
            if name in frame:
                lags.add(np.asarray(frame[name]).reshape(1), np.array([number]))
        self._num_frames += 1
        if self._statistics is not None:
            if self._watched:
                seen = {name: frame[name] for name in self._watched if name in frame}
                self._statistics.add(seen)
            else:
                self._statistics.skip(1)
        for group in self._groups:
            self._write_full_chunks(group)
        return sum(len(blob.data) for blob in blobs.values())

    def append_video(self, name: str, video: Gop | KeptPage) -> None:
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
        if self._statistics is not None:
            self._statistics.leave_out(name)
        self._write_full_chunks(group)

    def check_even(self) -> None:
        """`FrameError` unless videos that were appended have as many frames as the rest."""
        assert self._episode is not None
        if (group := self._uneven()) is not None:
            raise FrameError(
                "a video of another number of frames than the episode",
                episode=self._episode.key,
                feature=group.name,
                expected=self._num_frames,
                got=group.num_kept,
            )

    def flush(self) -> None:
        """Write the frames so far as chunks of whatever length: a kill or `drop` keeps them."""
        self._begun()
        self.check_even()
        if self._flushed == self._num_frames:
            return
        for group in self._groups:
            self._write_rest(group)
        self.flush_part(self._num_frames, self._lags_so_far())
        if self._statistics is not None:
            self._statistics.keep()

    def end(self) -> None:
        """Finish the episode: from here on a kill does not lose it."""
        episode = self._begun()
        self.check_even()
        if not self._num_frames:
            raise FrameError("an episode without frames", episode=episode.key)
        for group in self._groups:
            group.settle()
            self._write_rest(group)
        self.end_part(self._num_frames, self._lags_so_far())
        if self._statistics is not None:
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
        if self._statistics is not None:
            self._statistics.discard()
        super().discard()
        self._num_frames = 0

    def _begun(self) -> EpisodePart:
        """The episode that has begun, of a writer that is not broken."""
        self.check()
        assert self._episode is not None, "no episode has begun"
        return self._episode

    def _made_quick(self) -> Mapping[str, Encoder]:
        if self._quick_encoders is None:
            specs = {n: spec for n, spec in self.schema.items() if spec.codec and not spec.is_video}
            quick = {name: encoder(PageCodec(spec, quick=True)) for name, spec in specs.items()}
            self._quick_encoders = {**self._encoders, **quick}
        return self._quick_encoders

    def _uneven(self) -> VideoGroup | None:
        """A video that was appended of which there are fewer frames than of the rest, or more."""
        kept = [group for group in self._groups if isinstance(group, VideoGroup)]
        kept = [group for group in kept if group.num_kept is not None]
        if kept and len(kept) == len(self._groups):  # there is nothing else to append
            self._num_frames = kept[0].num_kept or 0
        return next((group for group in kept if group.num_kept != self._num_frames), None)

    def _write_full_chunks(self, group: _Group) -> None:
        while (chunk := group.take()) is not None:
            self._write_chunk(group, chunk)

    def _write_rest(self, group: _Group) -> None:
        assert self._episode is not None
        self._write_full_chunks(group)
        with located(CodecError, episode=self._episode.key):
            while (chunk := group.take_rest()) is not None:
                self._write_chunk(group, chunk)

    def _write_chunk(self, group: _Group, chunk: StoredChunk) -> None:
        if self._statistics is not None:
            self._watch(group.schema, chunk, self._statistics)
        self.add(chunk)

    def _watch(self, schema: Schema, chunk: StoredChunk, statistics: StatisticsCollector) -> None:
        """Statistics of raw features: their pages are the frames, many of them at once."""
        for (name, spec), page in zip(schema.items(), chunk.parts, strict=False):
            if spec.is_raw and len(page):
                shape = tuple(size for size in spec.shape if size is not None)
                frames = np.frombuffer(page, spec.dtype).reshape(-1, *shape)
                numbers = chunk.first_frame + np.arange(chunk.num_frames)
                if (present := chunk.gaps.get(self.schema.position(name))) is not None:
                    numbers = numbers[present]
                statistics.add_frames(name, frames, numbers)

    def _lags_so_far(self) -> EpisodeLags:
        """By the timestamps that all frames of the episode have."""
        found = ((name, self._lags[name].lags(self._num_frames)) for name in sorted(self._lags))
        return tuple((name, lags) for name, lags in found if lags is not None)
