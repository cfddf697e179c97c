"""export: an episode back to files that any tool opens.

::

    DESTINATION/KEY/FEATURE/000000.png    images: uint8 [H, W], [H, W, 3], [H, W, 4], uint16 [H, W]
    DESTINATION/KEY/FEATURE/000000.npy    anything else; the number is the frame's in the episode
    DESTINATION/KEY/FEATURE.npy           scalars and vectors, all frames in one array [T, …]
    DESTINATION/KEY/metadata.json

This is the layout that `seqrecord.sources.Folders` packs. A vector goes to one file a frame where
a frame lacks it, and where its name has a number of its own (`joint_1`), which would make its one
file look like a frame's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.format import open_memmap
from PIL import Image

from seqrecord.chunks import ChunkReader, Page
from seqrecord.errors import ClipError, DestinationError
from seqrecord.format.pages import PageCodec
from seqrecord.format.text import check_key
from seqrecord.reader import Dataset
from seqrecord.schema import FeatureSpec
from seqrecord.storage import local_path

__all__ = ["export"]

_IMAGE = "seqrecord.image"
_ENDINGS = {"png": "png", "jpeg": "jpg"}
_NUMBERED = re.compile(r"(.*[_.\-])?\d+([_.\-].*)?")


def export(
    dataset: Dataset,
    key: str,
    destination: str | PathLike[str],
    *,
    features: Sequence[str] | None = None,
    frames: Sequence[int] | range | None = None,
) -> list[Path]:
    """Write an episode's frames as files; returns their paths, sorted.

    PNG is lossless, and images that were kept encoded are written as they are stored. A feature
    that a frame lacks is left out. Holds one chunk of frames in memory.

    Args:
        dataset: an open dataset.
        key: the episode.
        destination: a local folder; files go to a folder of the episode's key below it.
        features: names of the features, all by default.
        frames: numbers of the frames in ascending order, all by default.

    Raises `ClipError` for an episode or frame that is not there, and `DestinationError` if the
    episode's folder holds anything.
    """
    dataset.find_episodes([key])
    dataset = dataset.select(features)
    length = len(dataset.episodes[key])
    chosen = range(length) if frames is None else frames
    if any(not 0 <= frame < length for frame in chosen) or list(chosen) != sorted(set(chosen)):
        raise ClipError(
            "frames that cannot be exported",
            episode=key,
            expected=f"ascending numbers of 0 to {length - 1}",
            got=str(chosen)[:100],
        )
    folder = _make_folder(local_path(destination, "destination"), key)
    exporter = _Exporter(dataset, key, folder, chosen)
    return sorted([*exporter.run(), _write_metadata(folder, dataset.episodes[key].metadata)])


class _Exporter:
    """Walks the chunks of one episode and writes each of their pages' frames."""

    def __init__(
        self, dataset: Dataset, key: str, folder: Path, frames: Sequence[int] | range
    ) -> None:
        self._reader: ChunkReader = dataset.chunk_reader()
        self._number = dataset.index.positions[key]
        self._chunk_frames = int(dataset.index.chunk_frames[self._number])
        self._folder = folder
        self._frames = frames
        episode = dataset.episodes[key]
        self._arrays = {
            name: self._open_array(spec)
            for name, spec in dataset.features.items()
            if _fits_one_file(spec) and len(frames) and episode.present(name)[list(frames)].all()
        }

    def run(self) -> Iterator[Path]:
        for name in self._arrays:
            yield self._folder / f"{name}.npy"
        wanted: dict[int, list[int]] = {}
        for place, frame in enumerate(self._frames):
            wanted.setdefault(frame // self._chunk_frames, []).append(place)
        for chunk_number, places in wanted.items():
            chunk = self._reader.chunk(self._number, chunk_number)
            pages = self._reader.pages(chunk)
            for page, data in zip(pages, self._reader.read(pages), strict=True):
                yield from self._write_page(page, data, places)

    def _write_page(self, page: Page, data: memoryview, places: Sequence[int]) -> Iterator[Path]:
        shapes = self._reader.shapes(page, data)
        for place in places:
            frame = self._frames[place]
            inside = frame - page.chunk.first_frame
            position = page.position(inside)
            if position is None:
                continue
            spec = self._reader.features[page.feature]
            stem = self._folder / page.feature / f"{frame:06d}"
            if spec.codec and spec.codec[0]["id"] == _IMAGE:
                start, stop = PageCodec(spec).blob_range(page.num_present, position, data)
                path = stem.with_suffix(f".{_ENDINGS[spec.codec[0]['format']]}")
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(data[start:stop])
                yield path
                continue
            array = np.empty(shapes[position], spec.dtype)
            self._reader.decode(page, data, [inside], [array])
            if page.feature in self._arrays:
                self._arrays[page.feature][place] = array
            else:
                yield _write_frame(stem, array)

    def _open_array(self, spec: FeatureSpec) -> npt.NDArray[Any]:
        shape = (len(self._frames), *(n or 0 for n in spec.shape))
        path = self._folder / f"{spec.name}.npy"
        array: npt.NDArray[Any] = open_memmap(path, "w+", spec.dtype, shape)
        return array


def _fits_one_file(spec: FeatureSpec) -> bool:
    return spec.is_fixed and len(spec.shape) <= 1 and not _NUMBERED.fullmatch(spec.name)


def _write_frame(stem: Path, array: npt.NDArray[Any]) -> Path:
    stem.parent.mkdir(exist_ok=True)
    channels = array.shape[2:] if array.ndim == 3 else None
    if (array.dtype == np.uint8 and (array.ndim == 2 or channels in ((3,), (4,)))) or (
        array.dtype == np.uint16 and array.ndim == 2
    ):
        path = stem.with_suffix(".png")
        # Level 1 of 9: twice as fast as Pillow's default, a few percent larger.
        Image.fromarray(array).save(path, compress_level=1)
    else:
        path = stem.with_suffix(".npy")
        np.save(path, array, allow_pickle=False)
    return path


def _write_metadata(folder: Path, metadata: dict[str, Any]) -> Path:
    path = folder / "metadata.json"
    text = json.dumps(metadata, indent=1, ensure_ascii=False, sort_keys=True)
    path.write_text(f"{text}\n", encoding="utf-8")
    return path


def _make_folder(destination: Path, key: str) -> Path:
    """The episode's folder, empty; a key, or a link in its place, can't lead out of the root."""
    root = destination.resolve()
    folder = root.joinpath(*check_key(key).split("/"))
    if not folder.resolve().is_relative_to(root) or folder.resolve() == root:
        raise DestinationError(
            "the episode's folder is not inside the destination",
            file=str(folder),
            episode=key,
            expected=f"inside {root}",
            got=str(folder.resolve()),
        )
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise DestinationError(
            "the episode's folder is not empty; choose another place, or remove what is in it",
            file=str(folder),
            episode=key,
        )
    return folder
