"""Where chunks and pages lie, and what is decoded of pages that were read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import CodecError, FormatError
from seqrecord.forks import cached_property
from seqrecord.format.index import Index
from seqrecord.format.pages import PageCodec
from seqrecord.format.video_pages import VideoPageCodec, VideoReader
from seqrecord.schema import Schema

__all__ = ["Chunk", "Page", "PageDecoder"]


@dataclass(frozen=True)
class Chunk:
    """Where a chunk lies and whose frames it holds: `[first_frame, first_frame + num_frames)`.

    `row` is its row in the chunk table of its group.
    """

    group: int
    row: int
    episode: int
    first_frame: int
    num_frames: int
    path: str
    offset: int

    @property
    def stop_frame(self) -> int:
        """The frame behind its last one."""
        return self.first_frame + self.num_frames


@dataclass(frozen=True, eq=False)
class Page:
    """A page's place in its record file.

    `present`, bool [frames of the chunk], says which of them have the feature; `None` where all do.
    `sums` is where the checksums of its slices lie; `None` for a page that is not raw. `memo` keeps
    what was computed of its bytes, once they are read.
    """

    feature: str
    chunk: Chunk
    start: int
    stop: int
    crc32c: int
    present: npt.NDArray[np.bool_] | None
    largest: int | None  # bytes of its largest frame, decoded; `None` for a fixed shape
    sums: int | None
    memo: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def num_present(self) -> int:
        return self.chunk.num_frames if self.present is None else int(self._ranks[-1])

    def has(self, frame: int) -> bool:
        """Whether frame `frame` of the chunk has the feature."""
        return self.present is None or bool(self.present[frame])

    def position(self, frame: int) -> int | None:
        """Position in the page of frame `frame` of the chunk, `None` if it lacks the feature."""
        if self.present is None:
            return frame
        return int(self._ranks[frame]) - 1 if self.present[frame] else None

    def positions(self, frames: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Positions in the page of frames of the chunk, all of which have it: int64 [n]."""
        numbers = np.asarray(frames, np.int64)
        if self.present is None:
            return numbers
        assert self.present[numbers].all(), "a frame lacks the feature"
        return self._ranks[numbers] - 1

    @cached_property
    def _ranks(self) -> npt.NDArray[np.int64]:
        assert self.present is not None
        ranks: npt.NDArray[np.int64] = np.cumsum(self.present, dtype=np.int64)
        return ranks


class PageDecoder:
    """Decodes pages of these features of the dataset at `url`. An error names file, offset,
    episode and feature."""

    def __init__(self, url: str, index: Index, features: Schema) -> None:
        self.features = features
        self._url = url
        self._index = index
        self._video = {n: VideoPageCodec(spec) for n, spec in features.items() if spec.is_video}
        self._codecs = {n: PageCodec(s) for n, s in features.items() if n not in self._video}

    def path_of(self, chunk: Chunk) -> str:
        """The chunk's record file, as errors name it."""
        return f"{self._url}/{chunk.path}"

    def decode(
        self,
        page: Page,
        data: memoryview,
        frames: Sequence[int] | range,
        out: Sequence[npt.NDArray[Any]] | npt.NDArray[Any],
    ) -> None:
        """Decode frames of a page, counted from the chunk's first, into `out[i]`.

        All of them have the feature. Of video those that come after the frames of the call before,
        for the same page, are decoded from there on: so only one thread at a time may have a page.
        Raises `FormatError` or `CodecError` that names file, offset, episode and feature.
        """
        positions: Sequence[int] | range = frames
        if page.present is not None:
            positions = page.positions(frames).tolist()
        try:
            if page.feature in self._video:
                self._video_reader(page, data).decode_into(positions, out)
                return
            codec, count = self._codecs[page.feature], page.num_present
            if not codec.spec.is_raw and "offsets" not in page.memo:
                page.memo["offsets"] = codec.offsets(data, count)
            codec.decode_into(data, count, out, positions, page.memo.get("offsets"))
        except (CodecError, FormatError) as error:
            raise self._located(page, error) from error.__cause__

    def num_decoded(self, page: Page) -> int:
        """How many frames of a page of video were decoded, with those that only others need."""
        reader: VideoReader | None = page.memo.get("video")
        return 0 if reader is None else reader.num_decoded

    def _video_reader(self, page: Page, data: memoryview) -> VideoReader:
        reader: VideoReader | None = page.memo.get("video")
        if reader is None:
            make = page.memo.get("open_video")  # a device has another one
            reader = self._video[page.feature].reader(data, page.num_present, make)
            page.memo["video"] = reader
        return reader

    def decode_frame(
        self, pages: Sequence[Page], data: Sequence[memoryview], frame: int
    ) -> dict[str, npt.NDArray[Any]]:
        """One frame, counted from the chunk's first, as fresh arrays; it lacks none of the pages'
        features."""
        arrays = {}
        for page, item in zip(pages, data, strict=True):
            arrays[page.feature] = np.empty(
                self.shape_of(page, item, frame), self.features[page.feature].dtype
            )
            self.decode(page, item, [frame], [arrays[page.feature]])
        return arrays

    def shape_of(self, page: Page, data: memoryview, frame: int) -> tuple[int, ...]:
        """The shape of one frame that has the feature, counted from the chunk's first."""
        if page.largest is None:
            return tuple(n or 0 for n in self.features[page.feature].shape)
        return self.shapes(page, data)[page.position(frame) or 0]

    def shapes(self, page: Page, data: memoryview) -> list[tuple[int, ...]]:
        """Shapes of the frames in a page, in its order, as the index says of the largest."""
        shapes: list[tuple[int, ...]] | None = page.memo.get("shapes")
        if page.feature in self._video:
            return [tuple(n or 0 for n in self.features[page.feature].shape)] * page.num_present
        if shapes is None:
            try:
                shapes = self._codecs[page.feature].shapes(data, page.num_present)
                self._check_largest(page, shapes, is_whole=True)
            except FormatError as error:
                raise self._located(page, error) from error.__cause__
            page.memo["shapes"] = shapes
        return shapes

    def _check_largest(
        self, page: Page, shapes: Sequence[tuple[int, ...]], *, is_whole: bool
    ) -> None:
        """Raise `FormatError` for frames that are larger than memory was counted for."""
        if page.largest is None or not shapes:
            return
        found = max(map(math.prod, shapes)) * self.features[page.feature].dtype.itemsize
        if found > page.largest or (is_whole and found != page.largest):
            raise FormatError(
                "the largest frame of a page is not as large as the index says",
                expected=f"{page.largest} bytes",
                got=f"{found} bytes",
            )

    def value(self, page: Page, array: npt.NDArray[Any], frame: int) -> Any:
        """What a frame's array is to users: itself, or `str` or `bytes`.

        `frame` counts from the chunk's first. Raises `CodecError` for text that is not UTF-8.
        """
        kind = self.features[page.feature].value
        if kind == "array":
            return array
        data = array.tobytes()
        if kind == "bytes":
            return data
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            wrong = CodecError("text that is not UTF-8", expected="UTF-8", got=data[:50])
            wrong.frame = page.chunk.first_frame + frame
            raise self._located(page, wrong) from error

    def _located(self, page: Page, error: CodecError | FormatError) -> CodecError | FormatError:
        """The error with what is known of its place; offsets count from the file's start."""
        error.offset = page.start + (error.offset or 0)
        key = self._index.key(page.chunk.episode)
        first, last = page.chunk.first_frame, page.chunk.first_frame + page.chunk.num_frames - 1
        error.located(
            file=self.path_of(page.chunk),
            episode=f"{key} (frames {first} to {last})",
            feature=page.feature,
        )
        return error
