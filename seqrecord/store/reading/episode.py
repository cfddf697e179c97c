"""Random access to one episode's frames."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.store.bfloat16 import numbers_of
from seqrecord.store.format.index import Index
from seqrecord.store.reading.chunks import ChunkReader
from seqrecord.store.reading.notebook import MAX_ROWS, html_card
from seqrecord.store.reading.pages import Page
from seqrecord.store.reading.raw_frames import frame_runs
from seqrecord.store.schema import FeatureSpec, Schema
from seqrecord.store.tables.grids import run_bounds
from seqrecord.store.text import repr_of

_FRAMES_AT_ONCE = 32  # a typical chunk of images
_SMALL_BYTES = 1 << 20  # of small frames, with many in a chunk


class Episode:
    """Frames of one episode.

    `episode[10]` is a dict from feature name to array, `str` or `bytes`. It contains only the
    features of this frame. `episode[10:26]` is the frames [10, 26), as a dict from feature name to
    array [16, …], or to a list for variable dimensions. Frames count from 0; negative numbers count
    from the end.

    Raises `ClipError` if a slice has a frame without a feature, and `IndexError` for a frame out of
    range.

    Example:
        dataset = seqrecord.open("records/")
        episode = next(iter(dataset.episodes.values()))
        print(episode[0]["pose"].shape, episode[0:4]["pose"].shape)
    """

    def __init__(self, reader: ChunkReader, index: Index, number: int) -> None:
        self.key = index.key(number)
        self._reader = reader
        self._index = index
        self._number = number

    @property
    def features(self) -> Schema:
        """Selected features of the dataset."""
        return self._reader.features

    @property
    def uid(self) -> str:
        """Unique id of this recording, independent of its key: 32 hexadecimal digits."""
        return self._index.uid(self._number)

    @property
    def fps(self) -> float | None:
        """Frames per second, `None` if unknown."""
        return float(self._index.fps[self._number]) or None

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata passed to the writer."""
        return self._index.episode_metadata(self._number)

    def __len__(self) -> int:
        return int(self._index.num_frames[self._number])

    def __getitem__(self, frames: int | slice) -> dict[str, Any]:
        if isinstance(frames, slice):
            return self.read(range(len(self))[frames])
        try:
            number = operator.index(frames)
        except TypeError:
            raise TypeError(
                "index an episode by frames, then by feature: episode[0:16]['image']; "
                f"got {repr_of(frames, 100)}"
            ) from None
        if not -len(self) <= number < len(self):
            raise IndexError(f"frame {repr_of(number)} of an episode of {len(self)} frames")
        number %= len(self)
        specs = {n: spec for n, spec in self.features.items() if self._has(spec, number)}
        columns = self._read(np.array([number]), specs)
        return {n: v[0, ...] if isinstance(v, np.ndarray) else v[0] for n, v in columns.items()}

    def present(self, feature: str) -> npt.NDArray[np.bool_]:
        """Return which frames have a feature: bool [frames].

        Raises `SchemaError` for a feature that is not selected.
        """
        self.features.select([feature])  # raises for unknown features
        table, column = self._index.group_of(feature), self._index.schema.position(feature)
        rows = table.rows_of(self._number)
        gaps = table.gaps_of(rows.start, rows.stop)
        present = np.ones(len(self), np.bool_)
        for row in np.unique(gaps["chunk"][gaps["feature"] == column]).tolist():
            first_frame, mask = int(table.first_frame[row]), table.present(row, column)
            assert mask is not None, "its chunk has gap rows"
            section = present[max(first_frame, 0) : first_frame + len(mask)]
            section[:] = mask[max(-first_frame, 0) :][: len(section)]
        return present

    def read(
        self, frames: Sequence[int] | range, *, features: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Read frames in the given order. Each page is read once; of raw pages only these frames.

        Returns values like a slice of the episode. `features` restricts the result. Raises
        `IndexError` for a frame outside `[0, len(self))`, `SchemaError` for a feature that is not
        selected, and `ClipError` if a frame lacks a feature, and for frames that are no integers.

        Example:
            dataset = seqrecord.open("records/")
            episode = next(iter(dataset.episodes.values()))
            print(episode.read([3, 0, 2], features=["pose"])["pose"].shape)
        """
        specs, given = self.features.select(features), np.asarray(frames)
        if given.size and given.dtype.kind not in "iu":  # such as a mask
            expected, got = "integers", f"{given.dtype} {[*given.shape]}"
            raise ClipError("frames are not numbers", episode=self.key, expected=expected, got=got)
        numbers = given.astype(np.int64, copy=False)
        if (is_outside := (numbers < 0) | (numbers >= len(self))).any():
            frame = int(numbers[np.argmax(is_outside)])
            raise IndexError(f"frame {frame} of an episode of {len(self)} frames")
        for name in specs:
            self._check_present(name, numbers)
        return self._read(numbers, specs)

    def _read(
        self, numbers: npt.NDArray[np.int64], specs: Mapping[str, FeatureSpec]
    ) -> dict[str, Any]:
        reader = self._reader
        arrays: dict[str, Any] = {
            name: spec.value_kind.allocate(spec, len(numbers)) for name, spec in specs.items()
        }
        names_by_group: dict[int, set[str]] = {}
        for name, spec in specs.items():
            names_by_group.setdefault(spec.group, set()).add(name)
        for group, names in names_by_group.items():
            table, raw = self._index.groups[group], reader.raw[group]
            rows = table.chunks_of(self._number, numbers)
            chunk_frames = numbers - table.first_frame[rows]
            direct_arrays = {name: arrays[name] for name in raw.specs if name in names}
            page_names = names - direct_arrays.keys()
            is_read = np.full(len(rows), bool(direct_arrays))
            if page_names and not reader.is_local:  # one request for the whole chunk
                _, number, counts = np.unique(rows, return_inverse=True, return_counts=True)
                is_read &= counts[number] < table.num_frames[rows]
            direct_rows = is_read.nonzero()[0]
            raw.read(
                frame_runs(rows[direct_rows], chunk_frames[direct_rows], direct_rows),
                direct_arrays,
                exact=True,
            )
            order = np.argsort(rows, kind="stable") if page_names else rows[:0]
            for begin, stop in pairwise(run_bounds(constant=rows[order])):
                places = order[begin:stop]
                chunk = reader.chunk_at(group, int(rows[places[0]]), self._number)
                features = page_names if is_read[places[0]] else names
                pages = [page for page in reader.pages(chunk) if page.feature in features]
                self._read_pages(pages, chunk_frames[places], arrays, places)
        return {n: v if isinstance(v, list) else numbers_of(v) for n, v in arrays.items()}

    def _read_pages(
        self,
        pages: Sequence[Page],
        chunk_frames: npt.NDArray[np.int64],
        arrays: dict[str, Any],
        places: npt.NDArray[np.int64],
    ) -> None:
        """Decode frames of a chunk's pages into rows `places` of the arrays.

        `inside` are the frames, counted from the chunk's start.
        """
        reader, runs = self._reader, run_bounds(chunk_frames, places)
        for page, data in zip(pages, reader.read(pages), strict=True):
            target = arrays[page.feature]
            if isinstance(target, list):
                for frame, place in zip(chunk_frames.tolist(), places.tolist(), strict=True):
                    target[place] = reader.value_of(page, data, frame)
            elif reader.kinds[page.feature].decodes_in_order:  # one call, which sorts the frames
                reader.decode(
                    page, data, chunk_frames.tolist(), [target[i] for i in places.tolist()]
                )
            else:
                for a, b in pairwise(runs):
                    frames = range(int(chunk_frames[a]), int(chunk_frames[b - 1]) + 1)
                    reader.decode(page, data, frames, target[places[a] : places[b - 1] + 1])

    def _has(self, spec: FeatureSpec, number: int) -> bool:
        table = self._index.groups[spec.group]
        if not len(table.gaps):
            return True
        [row] = table.chunks_of(self._number, np.array([number])).tolist()
        present = table.present(row, self._index.schema.position(spec.name))
        return present is None or bool(present[number - int(table.first_frame[row])])

    def _check_present(self, feature: str, frames: npt.NDArray[np.int64]) -> None:
        table = self._index.group_of(feature)
        if not len(table.gaps) or (present := self.present(feature)[frames]).all():
            return
        frame = int(frames[np.argmin(present)])
        [row] = table.chunks_of(self._number, np.array([frame])).tolist()
        raise ClipError(
            "a frame lacks a feature; select other frames or features",
            file=self._reader.raw[self.features[feature].group].place_of(row)["file"],
            episode=self.key,
            frame=frame,
            feature=feature,
        )

    def __repr__(self) -> str:
        return f"Episode({self.key!r}, {len(self)} frames)"

    def _repr_html_(self) -> str:
        """HTML for notebooks. Reads no frames."""
        metadata = [(name, str(value)) for name, value in self.metadata.items()]
        facts = [("frames", f"{len(self):,}"), *metadata[:MAX_ROWS]]
        if len(metadata) > MAX_ROWS:
            facts.append(("…", f"{len(metadata) - MAX_ROWS} more"))
        num_missing = [str(len(self) - int(self.present(name).sum())) for name in self.features]
        return html_card(self.key, facts, self.features.values(), {"missing": num_missing})


def values_in_order(episode: Episode, feature: str, numbers: Sequence[int]) -> Iterator[Any]:
    """Yield a feature's values of frames `numbers`, in order; `None` for frames without it.

    Reads 32 frames at a time, or 1 MiB of small frames with a fixed shape. Raises the errors of
    `Episode.read`.
    """
    present, spec = episode.present(feature), episode.features[feature]
    nbytes = spec.value_kind.constant_nbytes(spec) or _SMALL_BYTES
    at_once = max(_FRAMES_AT_ONCE, _SMALL_BYTES // nbytes)
    for start in range(0, len(numbers), at_once):
        part = numbers[start : start + at_once]
        complete_numbers = [number for number in part if present[number]]
        values = iter(episode.read(complete_numbers, features=[feature])[feature])
        for number in part:
            yield next(values) if present[number] else None
