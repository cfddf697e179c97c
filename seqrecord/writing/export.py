"""export: an episode back to files that any tool opens.

::

    DESTINATION/KEY/FEATURE/000000.png    images: uint8 [H, W], [H, W, 3], [H, W, 4], uint16 [H, W]
    DESTINATION/KEY/FEATURE/000000.npy    anything else; the number is the frame's in the episode
    DESTINATION/KEY/FEATURE.npy           scalars and vectors, all frames in one array [T, …]
    DESTINATION/KEY/metadata.json
    DESTINATION/KEY/seqrecord.json        the features, see `seqrecord.sources.exported`

`seqrecord.sources.Folders` packs it again to the same episode. A vector goes to one file a frame
where a frame lacks it. A feature whose name is another file's gets a number behind it: `FEATURE~1`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.format import open_memmap
from PIL import Image

from seqrecord.codecs.images import IMAGE
from seqrecord.errors import ClipError, DestinationError
from seqrecord.format.pages import PageCodec
from seqrecord.format.text import check_key
from seqrecord.reading.chunks import ChunkReader, Page
from seqrecord.reading.reader import DatasetLike, SeqRecordReader, opened
from seqrecord.schema import FeatureSpec
from seqrecord.sources.exported import (
    DESCRIPTION,
    ENDINGS,
    ExportedEpisode,
    ExportedFeature,
    encode_description,
    frame_stem,
)
from seqrecord.sources.files import JUNK, is_junk
from seqrecord.sources.folders_tree import MAX_METADATA_BYTES, METADATA
from seqrecord.sources.originals import MAX_DEPTH
from seqrecord.storage import local_path
from seqrecord.writing.export_folders import disk_errors, make_empty

__all__ = ["export"]

_ENDINGS = {"png": "png", "jpeg": "jpg"}
_MAX_PIXELS = 1 << 26  # Pillow warns of larger images


def export(
    dataset: DatasetLike,
    key: str,
    destination: str | PathLike[str],
    *,
    features: Sequence[str] | None = None,
    frames: Sequence[int] | range | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write an episode's frames as files; returns their paths, sorted.

    PNG is lossless, and images that were kept encoded are written as they are stored. Text becomes
    files of UTF-8. A feature that a frame lacks is left out, and so is a frame that lacks all.
    `seqrecord write`, or `convert`, packs the files again to the same episode. Holds one chunk of
    frames in memory.

    Args:
        dataset: local path or URL, or an open dataset.
        key: the episode.
        destination: a local folder; files go to a folder of the episode's key below it.
        features: names of the features, all by default.
        frames: numbers of the frames in ascending order, all by default.
        storage_options: for the filesystem that serves the dataset's URL.

    Raises `ClipError` for an episode or frame that is not there, or for no frame at all, and
    `DestinationError` if the episode's folder holds anything, or cannot be written.
    """
    with opened(dataset, storage_options=storage_options) as reader:
        reader.find_episodes([key])
        return _export(reader.select(features), key, destination, frames)


def _export(
    dataset: SeqRecordReader,
    key: str,
    destination: str | PathLike[str],
    frames: Sequence[int] | range | None,
) -> list[Path]:
    length = len(dataset.episodes[key])
    chosen = range(length) if frames is None else frames
    is_inside = all(0 <= frame < length for frame in chosen)
    if not len(chosen) or not is_inside or list(chosen) != sorted(set(chosen)):
        raise ClipError(
            "frames that cannot be exported",
            episode=key,
            expected=f"ascending numbers of 0 to {length - 1}",
            got=str(chosen)[:100],
        )
    described = _describe(dataset, key, chosen)
    root = local_path(destination, "destination")
    with disk_errors("the episode's files", root, key):
        folder = _make_folder(root, key)
        # First of all: files that are missing after an error are noticed.
        (folder / DESCRIPTION).write_text(encode_description(described), encoding="utf-8")
        exporter = _Exporter(dataset, key, folder, described)
        metadata = _write_metadata(folder, dataset.episodes[key].metadata)
        return sorted([folder / DESCRIPTION, metadata, *exporter.run()])


def _describe(dataset: SeqRecordReader, key: str, frames: Sequence[int] | range) -> ExportedEpisode:
    """What goes where. No two places are the same, even where case does not count."""
    taken = {name.casefold() for name in (*JUNK, METADATA, DESCRIPTION)}
    numbers = np.array(frames, np.int64)
    episode = dataset.episodes[key]
    numbers = numbers[np.any([episode.present(name)[numbers] for name in dataset.features], axis=0)]
    if not len(numbers):
        raise ClipError("none of the frames has any of the features", episode=key)
    features = []
    for name, spec in dataset.features.items():
        present = episode.present(name)[numbers]
        is_array = spec.is_fixed and len(spec.shape) <= 1 and bool(present.all())
        ending = ".npy" if is_array else ""
        path, number = f"{name}{ending}", 0
        while path.casefold() in taken:
            number += 1
            path = f"{name}~{number}{ending}"
        taken.add(path.casefold())
        plain = replace(spec, codec=(), group=0)
        features.append(ExportedFeature(plain, path, is_array, int(present.sum())))
    fps = float(dataset.index.fps[dataset.index.positions[key]]) or None
    return ExportedEpisode(tuple(numbers.tolist()), tuple(features), fps)


class _Exporter:
    """Walks the chunks of one episode and writes each of their pages' frames."""

    def __init__(
        self, dataset: SeqRecordReader, key: str, folder: Path, described: ExportedEpisode
    ) -> None:
        self._reader: ChunkReader = dataset.chunk_reader()
        self._number = dataset.index.positions[key]
        self._groups = {
            number: dataset.index.groups[number]
            for number in dict.fromkeys(spec.group for spec in dataset.features.values())
        }
        self._frames = described.frames
        self._paths = {f.spec.name: folder / f.path for f in described.features}
        self._arrays = {
            f.spec.name: self._open_array(f.spec) for f in described.features if f.is_array
        }

    def run(self) -> Iterator[Path]:
        for name in self._arrays:
            yield self._paths[name]
        frames = np.array(self._frames, np.int64)
        for number, group in self._groups.items():
            wanted: dict[int, list[int]] = {}
            for place, row in enumerate(group.chunks_of(self._number, frames).tolist()):
                wanted.setdefault(row, []).append(place)
            for row, places in wanted.items():
                pages = self._reader.pages(self._reader.chunk_at(number, row, self._number))
                for page, data in zip(pages, self._reader.read(pages), strict=True):
                    yield from self._write_page(page, data, places)

    def _write_page(self, page: Page, data: memoryview, places: Sequence[int]) -> Iterator[Path]:
        shapes = self._reader.shapes(page, data)
        for place in places:
            frame = self._frames[place]
            inside = frame - page.chunk.first_frame
            if not page.has(inside):
                continue
            position = int(page.positions(inside))
            spec = self._reader.features[page.feature]
            stem = self._paths[page.feature] / frame_stem(frame)
            if spec.codec and spec.codec[0]["id"] == IMAGE:
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
                yield _write_frame(stem, array, spec)

    def _open_array(self, spec: FeatureSpec) -> npt.NDArray[Any]:
        shape = (len(self._frames), *(n or 0 for n in spec.shape))
        path = self._paths[spec.name]
        array: npt.NDArray[Any] = open_memmap(path, "w+", spec.dtype, shape)
        with path.open("r+b") as file:  # or a full disk would be a signal, not an error
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return array


def _write_frame(stem: Path, array: npt.NDArray[Any], spec: FeatureSpec) -> Path:
    stem.parent.mkdir(exist_ok=True)
    if spec.value in ENDINGS:
        path = stem.with_suffix(ENDINGS[spec.value])
        path.write_bytes(array.tobytes())
    elif _is_image(array):
        path = stem.with_suffix(".png")
        # Level 1 of 9: twice as fast as Pillow's default, a few percent larger.
        Image.fromarray(array).save(path, compress_level=1)
    else:
        path = stem.with_suffix(".npy")
        np.save(path, array, allow_pickle=False)
    return path


def _is_image(array: npt.NDArray[Any]) -> bool:
    """Whether a PNG holds it, and `Folders` reads that: nothing empty, nothing enormous."""
    if array.ndim not in (2, 3) or not 0 < array.shape[0] * array.shape[1] <= _MAX_PIXELS:
        return False
    if array.dtype == np.uint16:
        return array.ndim == 2
    return array.dtype == np.uint8 and array.shape[2:] in ((), (3,), (4,))


def _write_metadata(folder: Path, metadata: dict[str, Any]) -> Path:
    path = folder / METADATA
    text = json.dumps(metadata, indent=1, ensure_ascii=False, sort_keys=True)
    if len(text.encode()) >= MAX_METADATA_BYTES:
        text = json.dumps(metadata, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
    path.write_text(f"{text}\n", encoding="utf-8")
    return path


def _make_folder(destination: Path, key: str) -> Path:
    """The episode's folder, empty; a key, or a link in its place, can't lead out of the root."""
    root = destination.resolve()
    names = check_key(key).split("/")
    if len(names) >= MAX_DEPTH or any(is_junk(name) for name in names):
        raise DestinationError(
            "an episode whose folder would not be found again: names that begin with a dot are "
            "hidden",
            file=str(root),
            episode=key,
            expected=f"fewer than {MAX_DEPTH} names, none hidden, none of {', '.join(JUNK)}",
        )
    folder = root.joinpath(*names)
    if not folder.resolve().is_relative_to(root) or folder.resolve() == root:
        raise DestinationError(
            "the episode's folder is not inside the destination",
            file=str(folder),
            episode=key,
            expected=f"inside {root}",
            got=str(folder.resolve()),
        )
    make_empty(folder, "the episode's folder", key)
    return folder
