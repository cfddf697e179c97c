"""Datasets of tests: a builder, numbered frames, and a small dataset with many features.

>>> written = write_dataset(tmp_path, {"a": 12, "b": 3}, chunk_frames=4)
>>> lengths_of(tmp_path)
{'a': 12, 'b': 3}
>>> write_dataset(path, {"a": columns(x=range(9), image=noise(9, 4, 5, 3))}, codecs="raw")
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import seqrecord
from seqrecord import Dataset, EncodedImage, FeatureSpec, Schema, SeqRecordRecorder, SeqRecordWriter
from seqrecord.errors import NotFoundError
from seqrecord.sources import Gop
from seqrecord.store.storage.opening import StorageLike

Frame = dict[str, Any]
"""Values by feature."""


# The builder


def write_dataset(
    path: StorageLike,
    episodes: Mapping[str, int | Iterable[Frame]],
    *,
    metadata: Mapping[str, Mapping[str, Any]] | None = None,
    rates: Mapping[str, float | None] | None = None,
    flush_at: Collection[int] = (),
    **options: Any,
) -> dict[str, list[Frame]]:
    """Write and commit a dataset; return its frames by episode.

    Args:
        path: local path, URL or storage.
        episodes: by key the frames, or how many numbered ones (see `frame`). The items of an
            episode with encoded video are frames of its other features, and one `Gop` per feature:
            `columns(image=gops) + columns(state=rows)`.
        metadata: metadata by key; other episodes have none.
        rates: frames per second by key; other episodes have `fps` of the options.
        flush_at: numbers of frames of each episode that are followed by a flush.
        options: of `SeqRecordWriter`.
    """
    with SeqRecordWriter(path, **options) as writer:
        return write_episodes(writer, episodes, metadata=metadata, rates=rates, flush_at=flush_at)


def write_episodes(
    writer: SeqRecordWriter | SeqRecordRecorder,
    episodes: Iterable[str] | Mapping[str, int | Iterable[Frame]],
    *,
    metadata: Mapping[str, Mapping[str, Any]] | None = None,
    rates: Mapping[str, float | None] | None = None,
    flush_at: Collection[int] = (),
) -> dict[str, list[Frame]]:
    """Write episodes to an open writer; arguments are those of `write_dataset`.

    Keys alone stand for episodes with the lengths in `LENGTHS`.
    """
    if not isinstance(episodes, Mapping):
        episodes = {key: LENGTHS[key] for key in episodes}
    written: dict[str, list[Frame]] = {}
    for key, content in episodes.items():
        fps = (rates or {}).get(key)
        written[key] = []
        episode: Any = writer.episode(key, metadata=(metadata or {}).get(key), fps=fps)
        with episode:
            if isinstance(content, int):
                content = numbered(key, content)
            for number, one in enumerate(content):
                gops = {name: value for name, value in one.items() if isinstance(value, Gop)}
                for name, gop in gops.items():
                    episode.append_video(name, [gop])
                if not gops:
                    episode.append(one)
                written[key].append(one)
                if number in flush_at:
                    episode.flush()
    return written


def append(episode: Any, frames: Iterable[Frame], *, flush_every: int = 0) -> Any:
    """Append frames to an open episode and return it; `flush_every` so many frames, if not 0."""
    for number, one in enumerate(frames, 1):
        episode.append(one)
        if flush_every and number % flush_every == 0:
            episode.flush()
    return episode


def resume(where: StorageLike, **options: Any) -> frozenset[str]:
    """Commit what a stopped writer left; return the keys that the resumed writer found."""
    with SeqRecordWriter(where, mode="resume", **options) as writer:
        return writer.completed_episodes


def columns(**values: Iterable[Any]) -> list[Frame]:
    """Frames of columns of equal length; `None` in a column is a missing value.

    `columns(x=range(3), note=["a", None, "b"])` are three frames, the second without a `note`.
    """
    rows = zip(*values.values(), strict=True)
    return [
        {name: value for name, value in zip(values, row, strict=True) if value is not None}
        for row in rows
    ]


def noise(*shape: int, dtype: npt.DTypeLike = np.uint8, seed: int = 0) -> npt.NDArray[Any]:
    """Random values: integers from the whole range of the dtype, or normally distributed floats.

    The first number of `shape` is the number of frames: `noise(9, 4, 5, 3)` are nine RGB images.
    """
    rng, kind = np.random.default_rng(seed), np.dtype(dtype)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max, shape, kind, endpoint=True)
    return rng.normal(size=shape).astype(kind)


def encoded(
    pixels: npt.NDArray[Any], mode: str | None = None, kind: str = "png", **options: Any
) -> bytes:
    """Bytes of an image file; `mode` and `options` are Pillow's."""
    stream, image = io.BytesIO(), Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(stream, kind, **options)
    return stream.getvalue()


def written_once(
    write: Callable[..., object],
    *arguments: Any,
    params: Sequence[Any] | None = None,
    open_it: bool = False,
    **options: Any,
) -> Any:
    """A fixture of a module: the path where `write(path, *arguments, **options)` wrote a dataset.

    With `params` the fixture has them as parameters, which follow `arguments`. With `open_it` it is
    the open dataset. Tests must not change it.
    """

    @pytest.fixture(scope="module", params=params)
    def written(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Path | Dataset:
        path = tmp_path_factory.mktemp("written") / "records"
        write(path, *arguments, *([] if params is None else [request.param]), **options)
        return seqrecord.open(path) if open_it else path

    return written


# Numbered frames


LENGTHS: Mapping[str, int] = {key: 1 + number % 7 for number, key in enumerate("abcdefghijkl")}
"""Number of numbered frames by episode, for tests that write episodes at several places."""


def frame(key: str, number: int) -> Frame:
    """Frame `number` of an episode of numbered frames: 50 equal bytes, `x`."""
    return {"x": np.full(50, (zlib.crc32(key.encode()) + number) % 256, np.uint8)}


NUMBERED = Schema([FeatureSpec("x", np.dtype("u1"), (50,))])
"""The schema of numbered frames."""


def numbered(key: str, stop: int, start: int = 0) -> list[Frame]:
    """Frames `start` to `stop` of an episode of numbered frames."""
    return [frame(key, number) for number in range(start, stop)]


def lengths_of(where: Any) -> dict[str, int]:
    """Number of frames by episode, in order; asserts all values of numbered frames.

    Empty without a dataset.
    """
    try:
        dataset = seqrecord.open(where)
    except NotFoundError:
        return {}
    with dataset:
        for key, episode in dataset.episodes.items():
            want = [frame(key, number)["x"] for number in range(len(episode))]
            np.testing.assert_array_equal(episode[:]["x"], want)
        return {key: len(episode) for key, episode in dataset.episodes.items()}


def keys_of(folder: Path, *, verify: bool = True) -> str:
    """Keys of `LENGTHS` in order; asserts all values and, with `verify`, a sound dataset."""
    found = lengths_of(folder)
    assert found == {key: LENGTHS[key] for key in found}
    assert not (found and verify) or seqrecord.verify(folder).problems == ()
    return "".join(found)


def check_rebuilt(folder: Path, read: Callable[[Path], object], expected: object) -> None:
    """Assert that `read(folder)` is `expected`, also after index and manifest are rebuilt."""
    assert read(folder) == expected
    assert not seqrecord.verify(folder, deep=True).problems
    seqrecord.reindex(folder)
    assert read(folder) == expected
    (folder / "manifest.json").unlink()
    seqrecord.reindex(folder)
    assert read(folder) == expected
    assert not seqrecord.verify(folder).problems


def contents(folder: Path) -> dict[str, bytes]:
    """Contents of all files below a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def chunk_lengths(root: Any) -> list[list[int]]:
    """Frames of each chunk, by group."""
    with seqrecord.open(root) as dataset:
        return [group.num_frames.tolist() for group in dataset.contents.index.groups]


def record_files(folder: Path) -> list[Path]:
    """Record files in the manifest."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    return [folder / file["path"] for file in manifest["record_files"]]


# A small dataset with missing frames, variable shapes, many codecs and several files


HEIGHT, WIDTH = 32, 40

EPISODES: Mapping[str, int] = {"alpha/Easy/P000": 11, "alpha/Easy/P001": 5, "beta/Hard/P000": 1}
"""Keys and frame counts, in the order of writing."""

SmallFrame = dict[str, "npt.NDArray[Any]"]


def small_schema() -> Schema:
    """Features in stored order; `photo` stores PNG files, `note` has a variable shape."""
    png = ({"id": "seqrecord.image", "format": "png"},)
    return Schema(
        [
            FeatureSpec("image_left", np.dtype("u1"), (HEIGHT, WIDTH, 3)),
            FeatureSpec("depth_left", np.dtype("<f4"), (HEIGHT, WIDTH)),
            FeatureSpec("flow", np.dtype("<f4"), (HEIGHT, WIDTH, 2)),
            FeatureSpec("mask", np.dtype("u1"), (HEIGHT, WIDTH)),
            FeatureSpec("range", np.dtype("<u2"), (None, WIDTH)),
            FeatureSpec("photo", np.dtype("u1"), (HEIGHT, WIDTH, 3), png),
            FeatureSpec("note", np.dtype("u1"), (None,)),
            FeatureSpec("pose", np.dtype("<f8"), (7,)),
            FeatureSpec("step", np.dtype("<i8"), ()),
        ]
    )


def small_frames(seed: int, num_frames: int, *, missing: bool = True) -> list[SmallFrame]:
    """Decoded frames that a reader must return.

    With `missing`, the last frame has no `flow` and no `mask`, and every fifth no `note`.
    """
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    frames: list[SmallFrame] = []
    for i in range(num_frames):
        depth = (5 + y + np.sin(x / 5 + i)).astype(np.float32)
        depth[0, :4] = [np.nan, np.inf, -0.0, 1e4]
        image = np.stack([x * 7 + i, y * 9, x + y], axis=-1).astype(np.uint8)
        frame = {
            "image_left": image ^ rng.integers(0, 4, image.shape, np.uint8),
            "depth_left": depth,
            "flow": np.stack([x / 8 - i, y / 8], axis=-1),
            "mask": ((x > 20) * 100 + (y > 20) * 10).astype(np.uint8),
            "range": rng.integers(0, 60_000, (3 + i % 4, WIDTH), np.uint16),
            "photo": np.ascontiguousarray(image[::-1]),
            "note": np.frombuffer(f"frame {i}".encode(), np.uint8),
            "pose": rng.normal(size=7),
            "step": np.array(1000 * seed + i, np.int64),
        }
        if missing and i == num_frames - 1:
            del frame["flow"], frame["mask"]
        if missing and i % 5 == 4:
            del frame["note"]
        frames.append(frame)
    return frames


def write_small(
    path: str | PathLike[str],
    *,
    episodes: Mapping[str, int] = EPISODES,
    codecs: Any = None,
    missing: bool = True,
    chunk_frames: int = 4,
    max_file_size: int = 30_000,
    mode: Any = "create",
) -> dict[str, list[SmallFrame]]:
    """Write the dataset with one group of features; returns the decoded frames by episode.

    Three episodes of 11, 5 and 1 frames in chunks of 4, in several record files; the first
    episode spans more than one.
    """
    written = {
        key: small_frames(number, num_frames, missing=missing)
        for number, (key, num_frames) in enumerate(episodes.items())
    }
    write_dataset(
        path,
        {
            key: [{**frame, "photo": EncodedImage(encoded(frame["photo"]))} for frame in each]
            for key, each in written.items()
        },
        metadata={
            key: {"difficulty": key.split("/")[1], "number": number, "place": "Ürümqi"}
            for number, key in enumerate(episodes)
        },
        schema=small_schema() if mode == "create" else None,
        features={"step": {"group": 0}},  # the other features join the same group
        codecs=codecs,
        chunk_frames=chunk_frames,
        max_file_size=max_file_size,
        mode=mode,
    )
    return written


def nth_chunk(dataset: Dataset, episode: int, number: int, *, group: int = 0) -> Any:
    """Chunk `number` of an episode, both counted from 0."""
    row = int(dataset.contents.index.groups[group].first_chunk[episode]) + number
    return dataset.contents.chunks.chunk_at(group, row, episode)


def nth_page(dataset: Dataset, feature: str, episode: int, number: int) -> Any:
    """Page of a feature in chunk `number` of an episode, both counted from 0."""
    chunk = nth_chunk(dataset, episode, number, group=dataset.features[feature].group)
    pages = dataset.contents.chunks.pages(chunk)
    return next(page for page in pages if page.feature == feature)


def damage(root: Path, feature: str, episode: int, number: int, *, at: int = 5) -> Any:
    """Flip a bit of the page's byte `at`; a second call restores it."""
    with seqrecord.open(root) as dataset:
        page = nth_page(dataset, feature, episode, number)
    flip(root / page.chunk.path, page.start + at)
    return page


def flip(file: Path, at: int) -> None:
    """Flip a bit of the file's byte `at`."""
    with file.open("r+b") as opened:
        opened.seek(at)
        [byte] = opened.read(1)
        opened.seek(at)
        opened.write(bytes([byte ^ 1]))
