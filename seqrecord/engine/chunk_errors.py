"""Errors of loads: each names the episode, the frames and the record file of its chunk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from seqrecord.reading.chunks import Chunk
from seqrecord.reading.frames import add_place
from seqrecord.reading.reader import SeqRecordReader

__all__ = ["ChunkErrors"]


class ChunkErrors:
    """Names the places of errors in a dataset."""

    def __init__(self, dataset: SeqRecordReader) -> None:
        self._dataset = dataset

    @contextmanager
    def naming(self, chunk: Chunk, transformed: int | None = None) -> Iterator[None]:
        """Errors name the chunk, or the frame of its episode that is being transformed."""
        try:
            yield
        except Exception as error:
            self.name(error, chunk, transformed)
            raise

    def name(self, error: Exception, chunk: Chunk, transformed: int | None = None) -> None:
        """Have an error name the chunk, or the frame of its episode that is being transformed."""
        file = f"{self._dataset.url}/{chunk.path}"
        key = self._dataset.index.key(chunk.episode)
        first, last = chunk.first_frame, chunk.first_frame + chunk.num_frames - 1
        if transformed is None:
            episode = f"{key} (frames {first} to {last})"
            add_place(error, "a chunk", file=file, episode=episode)
        else:
            add_place(error, "frame_transform", file=file, episode=key, frame=transformed)
