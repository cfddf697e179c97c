"""EpisodeWriter: one episode being written, frame by frame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from seqrecord.codecs.video.gops import Gop
from seqrecord.errors import DestinationError, FrameError
from seqrecord.schema import EncodedImage, Frame
from seqrecord.writing.chunking import CHUNK_BYTES, CHUNK_FRAMES
from seqrecord.writing.packing import Packing
from seqrecord.writing.record_file import RecordFileWriter

__all__ = ["EpisodeWriter"]


class EpisodeWriter:
    """One episode being written.

    Leaving its `with` block by an error forgets the episode, but for what was flushed.
    """

    def __init__(self, packing: Packing, key: str, metadata: str, fps: float | None) -> None:
        self.key = key
        self.num_frames = 0
        self.is_open = True
        self._packing = packing
        self._metadata = metadata
        self._fps = fps
        self._pending = _PendingFrames()
        self._files: RecordFileWriter | None = None
        self._failed = False
        self._has_video = False

    @property
    def storing_seconds(self) -> float:
        """How long the writer has waited for its storage so far."""
        return 0.0 if self._files is None else self._files.storing_seconds

    def append(self, frame: Frame, *, quick: bool = False) -> None:
        """Add one frame: feature name to array, `str` or `bytes`, or `EncodedImage` for an image
        that stays encoded.

        A feature that the frame lacks is left out. Arrays are stored as they are: raises
        `FrameError` for a wrong dtype or shape, or for a feature that the dataset does not have.
        Any error ends the episode as `abort` does: a dataset holds no recording with a gap in it.
        While the features are not known yet, frames are only collected, and their errors come
        later. With `quick` the frame is encoded in less time into more bytes, as far as its codecs
        can, and is the same when it is read.
        """
        self._check_open()
        with self._forget_on_error():
            if not isinstance(frame, Mapping):
                raise FrameError(
                    "a frame is no dict",
                    episode=self.key,
                    frame=self.num_frames,
                    expected='its arrays by feature, such as {"image": image}',
                    got=type(frame).__name__,
                )
            if not frame:
                raise FrameError(
                    "a frame without any feature", episode=self.key, frame=self.num_frames
                )
            if self._files is None and self._packing.schema is not None:
                self._begin()
            if self._files is not None:
                self._files.append(frame, quick=quick)
            else:
                self._pending.append(frame)
                if self._pending.are_enough:
                    self._begin()
        self.num_frames += 1

    def append_video(self, name: str, gops: Iterable[Gop]) -> None:
        """Keep video as it is encoded: the next frames of a feature, which `append` does not get.

        The feature's codec says what the packets are: pass a `schema` with it to the writer. All
        frames of the episode come so, at once or piece by piece, before or after the others are
        appended; when the episode is flushed or ends, there must be as many of them as of the
        others. The packets are not looked at; `seqrecord verify --deep` decodes them. Raises
        `FrameError` for a feature that is no video.
        """
        self._check_open()
        with self._forget_on_error():
            if self._files is None and self._packing.schema is None:
                raise FrameError(
                    "video is kept under a schema: give one to the writer",
                    episode=self.key,
                    feature=name,
                )
            if self._files is None:
                self._begin()
            assert self._files is not None
            for gop in gops:
                self._files.append_video(name, gop)
                self._has_video = True

    def settle(self) -> None:
        """Take the features to be those of the frames so far: from here on frames are encoded as
        they come."""
        self._check_open()
        if self._files is None and self.num_frames:
            with self._forget_on_error():
                self._begin()

    def flush(self) -> None:
        """Write all frames so far: from here on neither an error nor a kill loses them.

        An episode that is not closed ends at its last flush. Each flush ends the chunks that are
        open, so flush every few seconds rather than after each frame.
        """
        self.settle()
        if self._files is not None:
            with self._forget_on_error():
                self._files.flush()

    def close(self) -> None:
        """Finish the episode: from here on neither an error nor a kill loses it."""
        self._check_open()
        with self._forget_on_error():
            if self.num_frames == 0 and not self._has_video:
                raise FrameError("an episode without frames", episode=self.key)
            if self._files is None:
                self._begin()
            assert self._files is not None
            self._files.end()
        self.is_open = False
        self._packing.keys.add(self.key)

    def abort(self) -> None:
        """Forget the episode, or what of it came after its last flush."""
        if self.is_open:
            self.is_open = False
            if self._files is not None and self._files.drop():
                self._packing.keys.add(self.key)

    def discard(self) -> None:
        """Forget the episode and all that was flushed of it, as if it had never begun.

        A kill meanwhile leaves either nothing of it, or what was flushed; once this has returned,
        nothing. (A storage that keeps flushes some seconds later forgets them as late.) Its key is
        free again, and so are its bytes in the open record file. A finished record file that holds
        nothing else is removed after the writer's commit, for a resume of another writer may have
        added it to the dataset by now. Does nothing once the episode has ended.
        """
        if self.is_open:
            with self._forget_on_error():
                if self._files is not None:
                    self._files.discard()
            self.is_open = False

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.abort()
        elif self.is_open or self._failed:
            self.close()

    def _check_open(self) -> None:
        if not self.is_open:
            why = "was given up after an error" if self._failed else "has ended"
            raise DestinationError(f"the episode {why}", episode=self.key)

    @contextmanager
    def _forget_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._failed = True
            self.abort()
            raise

    def _begin(self) -> None:
        pending = self._pending.take()
        self._files = self._packing.begin(self.key, self._metadata, self._fps, pending)
        for frame in pending:
            self._files.append(frame)


class _PendingFrames:
    """Copies of a dataset's first frames, which wait until its schema can be known from them.

    Callers may fill the same arrays again for their next frame.
    """

    def __init__(self) -> None:
        self._frames: list[Frame] = []
        self._nbytes = 0

    @property
    def are_enough(self) -> bool:
        """Whether they fill a chunk: then the schema is inferred."""
        return len(self._frames) == CHUNK_FRAMES or self._nbytes >= CHUNK_BYTES

    def append(self, frame: Frame) -> None:
        """Keep a copy of a frame."""
        copy = {name: _copied(item) for name, item in frame.items()}
        self._frames.append(copy)
        self._nbytes += sum(_nbytes(item) for item in copy.values())

    def take(self) -> list[Frame]:
        """The frames; none is left."""
        frames, self._frames, self._nbytes = self._frames, [], 0
        return frames


def _copied(item: Any) -> Any:
    if isinstance(item, (str, bytes, EncodedImage)):
        return item
    if isinstance(item, (bytearray, memoryview)):
        return bytes(item)
    return np.array(item)


def _nbytes(item: Any) -> int:
    if isinstance(item, EncodedImage):
        return len(item.data)
    return len(item) if isinstance(item, (str, bytes)) else int(np.asarray(item).nbytes)
