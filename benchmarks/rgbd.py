"""The RGB-D workload: recordings of JPEG and PNG files, and loaders of clips of resized frames.

A recording is a folder with `image_left/000000.jpg` and `depth_left/000000.png`, 16-bit
millimetres, 0 where nothing was measured. Clips have frames of 192x256, depth in metres. Recordings
are walks through a rendered hall; the same arguments give the same pixels.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from benchmarks.tartanair.camera import Intrinsics, camera_path
from benchmarks.tartanair.compare.recordings import Clip, Episode, Feature, Frame, Recordings
from benchmarks.tartanair.loaders import arrays, records
from benchmarks.tartanair.loaders.base import (
    REUSED_GRID,
    Batches,
    Into,
    Loader,
    Read,
    Settings,
    link_originals,
    load_features,
    map_style,
    memory_of,
)
from benchmarks.tartanair.loaders.streams import IN_PROCESS, Window, collate, tar_batches, windows
from benchmarks.tartanair.render import render
from benchmarks.tartanair.scene import RING, Scene

__all__ = ["DEPTH", "IMAGE", "LOADERS", "SIZE", "RgbdRecordings", "generate"]

IMAGE, DEPTH = "image_left", "depth_left"
SIZE = (192, 256)  # height and width in pixels, of the frames of clips

CACHED_FRAMES = 256  # of the LRU cache, per process
_SUFFIXES = {IMAGE: "jpg", DEPTH: "png"}
_MODES = {IMAGE: "RGB", DEPTH: "I;16"}
_METRES = np.float32(0.001)
_HALL = 1  # an odd seed gives a hall: depths that an RGB-D camera can measure
_JPEG_QUALITY = 90
_FARTHEST = 65_535  # millimetres


# ---- recordings


class RgbdRecordings(Recordings):
    """Every frame of every recording, at its full size; `delivered` resizes it."""

    @classmethod
    def open(cls, root: Path, features: Sequence[str]) -> RgbdRecordings:
        episodes = tuple(
            Episode(folder.name, sum(1 for _ in (folder / features[0]).iterdir()))
            for folder in sorted(root.iterdir())
        )
        first = {name: _decode(_file(root, episodes[0].key, name, 0), name) for name in features}
        found = {name: Feature(array.dtype.str, array.shape) for name, array in first.items()}
        return cls(root, found, episodes)

    def read(self) -> Iterator[tuple[Episode, Iterator[Frame]]]:
        for episode in self.episodes:
            yield episode, self._frames(episode)

    def _frames(self, episode: Episode) -> Iterator[Frame]:
        for index in range(episode.num_frames):
            yield _read_frame(self.root, episode.key, index, tuple(self.features))

    def delivered(self, frame: Frame) -> Frame:
        return resize(frame)


def _file(root: Path, key: str, feature: str, index: int) -> Path:
    return root / key / feature / f"{index:06d}.{_SUFFIXES[feature]}"


def _read_frame(root: Path, key: str, index: int, features: Sequence[str]) -> Frame:
    return {name: _decode(_file(root, key, name, index), name) for name in features}


def _decode(file: Path | BinaryIO, feature: str) -> npt.NDArray[Any]:
    """uint8 [H, W, 3] or uint16 [H, W]."""
    with Image.open(file) as image:
        assert image.mode == _MODES[feature], f"{file} is {image.mode}"
        return np.asarray(image)


def generate(root: Path, episodes: Sequence[int], *, height: int = 480, width: int = 640) -> None:
    """Write a folder for each of `episodes`, which are their numbers of frames."""
    scene, intrinsics = Scene.from_seed(_HALL), Intrinsics.v1(height, width)
    for number, frames in enumerate(episodes):
        key = f"{number:04d}"
        for feature in (IMAGE, DEPTH):
            _file(root, key, feature, 0).parent.mkdir(parents=True)
        path = camera_path(frames, seed=_HALL, episode=number, radius=RING)
        for index, pose in enumerate(path):
            seen = render(scene, pose, intrinsics)
            image, depth = (_file(root, key, name, index) for name in (IMAGE, DEPTH))
            Image.fromarray(seen.rgb).save(image, quality=_JPEG_QUALITY)
            millimetres = np.round(seen.depth * 1000)
            measured = np.where(millimetres <= _FARTHEST, millimetres, 0).astype(np.uint16)
            Image.fromarray(measured).save(depth)


# ---- resizing


def resize(frame: Mapping[str, npt.NDArray[Any]]) -> Frame:
    """A frame of a clip: uint8 [192, 256, 3], bilinear, and float32 [192, 256] metres, nearest.

    Depth is not averaged, as an average of two surfaces is on neither.
    """
    return {name: _RESIZE[name](array) for name, array in frame.items()}


def resize_clip(clip: Mapping[str, npt.NDArray[Any]]) -> Frame:
    """The same for arrays [N, …], frame by frame."""
    return {name: np.stack([_RESIZE[name](array) for array in clip[name]]) for name in clip}


def _resize_image(image: npt.NDArray[Any]) -> npt.NDArray[Any]:
    pixels = Image.fromarray(image).resize(SIZE[::-1], Image.Resampling.BILINEAR)
    return np.asarray(pixels)


def _resize_depth(depth: npt.NDArray[Any]) -> npt.NDArray[Any]:
    rows, columns = (
        (2 * np.arange(wanted) + 1) * there // (2 * wanted)
        for wanted, there in zip(SIZE, depth.shape, strict=True)
    )
    metres: npt.NDArray[np.float32] = depth[rows[:, None], columns] * _METRES
    return metres


_RESIZE = {IMAGE: _resize_image, DEPTH: _resize_depth}


# ---- loaders


def read_files(*, cached: bool) -> Callable[[Path, Settings], Read]:
    """The camera's own files; resized frames stay in an LRU cache if `cached`."""

    def make_read(folder: Path, settings: Settings) -> Read:
        def read_frame(key: str, index: int) -> Frame:
            return resize(_read_frame(folder / "originals", key, index, settings.features))

        frame = lru_cache(CACHED_FRAMES)(read_frame) if cached else read_frame

        def read(clip: Clip, _into: Into) -> Frame:
            frames = [frame(clip.episode, index) for index in range(clip.start, clip.stop)]
            return {name: np.stack([f[name] for f in frames]) for name in settings.features}

        return read

    return make_read


def read_resized(
    make_read: Callable[[Path, Settings], Read],
) -> Callable[[Path, Settings], Read]:
    """Clips of another loader, resized."""

    def make(folder: Path, settings: Settings) -> Read:
        read = make_read(folder, settings)
        return lambda clip, _into: resize_clip(read(clip, None))

    return make


def prepare_encoded(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    """Records of the files' own bytes, decoded by the reader."""
    import seqrecord

    with seqrecord.SeqRecordWriter(folder / "records") as writer:
        for episode in recordings.episodes:
            with writer.episode(episode.key) as into:
                for index in range(episode.num_frames):
                    files = {
                        name: _file(recordings.root, episode.key, name, index)
                        for name in recordings.features
                    }
                    into.append(
                        {n: seqrecord.EncodedImage(file.read_bytes()) for n, file in files.items()}
                    )


def _resize_tensors(clip: dict[str, Any]) -> dict[str, Any]:
    names = [name for name in clip if name not in ("episode", "start")]
    resized = resize_clip({name: clip[name].numpy() for name in names})
    return {**clip, **{name: torch.from_numpy(array) for name, array in resized.items()}}


def prepare_tars(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    """A tar of JPEG and PNG files for each recording."""
    import webdataset

    for episode in recordings.episodes:
        with webdataset.TarWriter(str(folder / f"{episode.key}.tar")) as tar:
            for index in range(episode.num_frames):
                files = [_file(recordings.root, episode.key, n, index) for n in recordings.features]
                parts = {f"{file.parent.name}{file.suffix}": file.read_bytes() for file in files}
                tar.write({"__key__": f"{episode.key}/{index:06d}", **parts})


def _wanted(name: str, features: Sequence[str]) -> bool:
    return name.partition(".")[2].partition(".")[0] in features


def _to_windows(samples: Iterable[dict[str, Any]], settings: Settings) -> Iterator[Window]:
    def frames() -> Iterator[dict[str, Any]]:
        for sample in samples:
            encoded = {name.partition(".")[0]: data for name, data in sample.items()}
            found = {name: _decode(io.BytesIO(encoded[name]), name) for name in settings.features}
            episode, index = sample["__key__"].split("/")
            yield {**resize(found), "episode": episode, "index": int(index)}

    return windows(frames(), settings)


def resized(features: Mapping[str, Feature]) -> dict[str, Feature]:
    """Dtypes and shapes of the frames of clips."""
    dtypes = {IMAGE: "|u1", DEPTH: "<f4"}
    return {n: Feature(dtypes[n], (*SIZE, *f.shape[2:])) for n, f in features.items()}


_map_style = partial(map_style, delivered=resized)


def open_tars(folder: Path, _clips: Sequence[Clip], settings: Settings) -> Batches:
    return tar_batches(
        sorted(map(str, folder.glob("*.tar"))),
        settings,
        to_clips=partial(_to_windows, settings=settings),
        collate=partial(
            collate, memory=memory_of(resized(load_features(folder, settings.features)), settings)
        ),
        wanted=partial(_wanted, features=settings.features),
    )


_STREAM = partial(records.open_stream, frame_transform=resize)
_CHAIN = partial(records.open_chain, clip_transform=_resize_tensors)
_FULL_SIZE = arrays.write_arrays(arrays.make_memmaps)
_RAW = "mapped, resized for each clip"
_EACH = "decoded for each clip"


def prepare_resized(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    """Memory maps of resized frames."""
    features = resized(recordings.features)
    specs = {n: ((recordings.num_frames, *f.shape), f.dtype) for n, f in features.items()}
    maps = arrays.make_memmaps(folder, specs)
    for row, frame in enumerate(recordings.rows()):
        for name, pixels in resize(frame).items():
            maps[name][row] = pixels


LOADERS = [
    Loader(
        "original",
        "original",
        link_originals,
        _map_style(read_files(cached=False)),
        frames=_EACH,
        grid=REUSED_GRID,
    ),
    Loader(
        "lru-cache",
        "original",
        link_originals,
        _map_style(read_files(cached=True)),
        frames="cached, of each worker",
        grid=REUSED_GRID,
    ),
    Loader(
        "by-hand",
        "memmap-resized",
        prepare_resized,
        arrays.open_by_hand,
        shuffles=("full",),
        frames="mapped",
        grid=arrays.BY_HAND_GRID,
    ),
    Loader(
        "memmap",
        "memmap",
        _FULL_SIZE,
        _map_style(read_resized(arrays.read_slices(arrays.open_memmaps))),
        frames=_RAW,
        grid=REUSED_GRID,
    ),
    Loader(
        "lmdb",
        "lmdb",
        arrays.prepare_lmdb,
        _map_style(read_resized(arrays.read_frames(arrays.open_lmdb))),
        needs=("lmdb",),
        frames=_RAW,
        grid=REUSED_GRID,
    ),
    Loader(
        "webdataset",
        "webdataset-images",
        prepare_tars,
        open_tars,
        shuffles=("off", "buffer"),
        needs=("webdataset",),
        frames="decoded in each epoch",
        grid=IN_PROCESS,
    ),
    records.make_loader("seqrecord", _STREAM),
    records.make_loader(
        "seqrecord-encoded",
        _STREAM,
        format="records-encoded",
        prepare=prepare_encoded,
        codecs=("raw",),
    ),
    records.make_loader("seqrecord-per-clip", _CHAIN),
]
