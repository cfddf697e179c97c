"""One episode's frames: single ones, slices, any order."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError, SchemaError
from seqrecord.format.index import Index
from seqrecord.format.rows import MAX_CHUNK_FRAMES
from seqrecord.reading.chunks import ChunkReader, Page
from seqrecord.reading.html_card import html_card
from seqrecord.schema import Schema

__all__ = ["Episode", "FrameArray"]

_SHOWN_METADATA = 20  # in a notebook

FrameArray: TypeAlias = "npt.NDArray[Any]"


class Episode:
    """One episode's frames.

    `episode[10]` is a frame: feature name to array, without the features that the frame lacks.
    `episode[10:26]` is 16 frames: feature name to array [16, …], or to a list of arrays for a
    feature with a variable dimension; raises `ClipError` if one of the frames lacks a feature.
    """

    def __init__(self, reader: ChunkReader, index: Index, number: int) -> None:
        self.key: str = index.keys[number].as_py()
        self._reader = reader
        self._index = index
        self._number = number

    @property
    def features(self) -> Schema:
        """The features that the dataset was opened with."""
        return self._reader.features

    @property
    def metadata(self) -> dict[str, Any]:
        """What the writer was told of the episode."""
        return self._index.episode_metadata(self._number)

    def __len__(self) -> int:
        return int(self._index.num_frames[self._number])

    @overload
    def __getitem__(self, frames: int) -> dict[str, FrameArray]: ...
    @overload
    def __getitem__(self, frames: slice) -> dict[str, FrameArray | list[FrameArray]]: ...
    def __getitem__(self, frames: int | slice) -> Any:
        if isinstance(frames, slice):
            return self.read(range(len(self))[frames])
        number = operator.index(frames)
        if not -len(self) <= number < len(self):
            raise IndexError(f"frame {number} of an episode of {len(self)} frames")
        return self._frame(number % len(self))

    def present(self, feature: str) -> npt.NDArray[np.bool_]:
        """Which frames have a feature: bool [frames]."""
        reader = self._reader
        if feature not in reader.features:
            raise SchemaError(
                "no such feature", expected=f"one of {', '.join(reader.features)}", got=feature
            )
        index, number = self._index, self._number
        size, first = int(index.chunk_frames[number]), int(index.first_chunk[number])
        last = first + int(index.num_chunks[number])
        # Only chunks with a gap have a row, in the order of their chunks.
        start, stop = np.searchsorted(index.gaps["chunk"], [first, last])
        gaps = index.gaps[start:stop]
        gaps = gaps[gaps["feature"] == index.schema.position(feature)]
        bits = np.ones((last - first, MAX_CHUNK_FRAMES), np.bool_)
        words = gaps["present"].astype("<u8")[:, None].view(np.uint8)
        bits[gaps["chunk"] - first] = np.unpackbits(words, axis=1, bitorder="little")
        return bits[:, :size].reshape(-1)[: len(self)]

    def read(
        self, frames: Sequence[int] | range, *, features: Sequence[str] | None = None
    ) -> dict[str, FrameArray | list[FrameArray]]:
        """These frames of the episode, in this order; see the class. Each page is read once.

        Frames count from the first; raises `IndexError` for one outside `[0, len(self))`. With
        `features` only these are read; raises `SchemaError` for one that the dataset was not
        opened with.
        """
        reader, chosen = self._reader, self.features.select(features)
        arrays: dict[str, FrameArray | list[FrameArray]] = {
            name: np.empty((len(frames), *(n or 0 for n in spec.shape)), spec.dtype)
            if spec.is_fixed
            else [np.empty(0)] * len(frames)
            for name, spec in chosen.items()
        }
        size = int(self._index.chunk_frames[self._number])
        wanted: dict[int, list[int]] = {}
        for place, frame in enumerate(frames):
            if not 0 <= frame < len(self):
                raise IndexError(f"frame {frame} of an episode of {len(self)} frames")
            wanted.setdefault(frame // size, []).append(place)
        for number, places in wanted.items():
            chunk = reader.chunk(self._number, number)
            pages = [page for page in reader.pages(chunk) if page.feature in chosen]
            inside = [frames[place] - number * size for place in places]
            for page in pages:
                self._check_present(page, inside)
            for page, data in zip(pages, reader.read(pages), strict=True):
                self._fill(page, data, inside, arrays[page.feature], places)
        return arrays

    def _fill(
        self,
        page: Page,
        data: memoryview,
        inside: Sequence[int],
        target: FrameArray | list[FrameArray],
        places: Sequence[int],
    ) -> None:
        reader = self._reader
        if isinstance(target, list):
            shapes = reader.shapes(page, data)
            dtype = reader.features[page.feature].dtype
            for frame, place in zip(inside, places, strict=True):
                target[place] = np.empty(shapes[page.position(frame) or 0], dtype)
            reader.decode(page, data, inside, [target[place] for place in places])
            return
        if _is_run(inside) and _is_run(places):
            run = range(inside[0], inside[-1] + 1)
            reader.decode(page, data, run, target[places[0] : places[-1] + 1])
        else:
            reader.decode(page, data, inside, [target[place, ...] for place in places])

    def _frame(self, number: int) -> dict[str, FrameArray]:
        reader = self._reader
        size = int(self._index.chunk_frames[self._number])
        chunk = reader.chunk(self._number, number // size)
        inside = number % size
        pages = [page for page in reader.pages(chunk) if page.present >> inside & 1]
        if not reader.verify:
            return {page.feature: reader.read_frame(page, inside) for page in pages}
        return reader.decode_frame(pages, reader.read(pages), inside)

    def _check_present(self, page: Page, inside: Sequence[int]) -> None:
        for frame in inside:
            if not page.present >> frame & 1:
                raise ClipError(
                    "a frame lacks a feature; ask for other frames or features",
                    file=self._reader.path_of(page.chunk),
                    episode=self.key,
                    frame=page.chunk.first_frame + frame,
                    feature=page.feature,
                )

    def __repr__(self) -> str:
        return f"Episode({self.key!r}, {len(self)} frames)"

    def _repr_html_(self) -> str:
        """What a notebook shows. No frame is read for it."""
        metadata = [(name, str(value)) for name, value in self.metadata.items()]
        facts = [("frames", f"{len(self):,}"), *metadata[:_SHOWN_METADATA]]
        if len(metadata) > _SHOWN_METADATA:
            facts.append(("…", f"{len(metadata) - _SHOWN_METADATA} more"))
        missing = [str(len(self) - int(self.present(name).sum())) for name in self.features]
        return html_card(self.key, facts, self.features.values(), {"missing": missing})


def _is_run(numbers: Sequence[int]) -> bool:
    return list(numbers) == list(range(numbers[0], numbers[0] + len(numbers)))
