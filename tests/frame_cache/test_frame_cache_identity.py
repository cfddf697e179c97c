"""The frame cache gives each frame its own pixels, whatever was cached before, and reads no page.

Datasets have few different images, so equal pages are common: in chunks with other gaps, in other
datasets, after edits, and in originals that were replaced.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from PIL import Image

import seqrecord
from seqrecord import FrameCache, FrameTransform, SeqRecordPipe, SeqRecordWriter
from seqrecord.edit import delete_episodes, trim_episodes
from seqrecord.store.storage.local import LocalStorage
from tests.kit.datasets import write_dataset
from tests.kit.faults import CountingStorage
from tests.kit.frame_files import damage as change_byte
from tests.kit.frame_files import frame_files, slots_start
from tests.kit.services.web_server import WebFolder
from tests.kit.tiny import RecordParts, change_record

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)
SIZE = {"image": (8, 8)}
PNG: dict[str, Any] = {"codecs": {"image": "png"}}


def write(path: Path, rows: Sequence[dict[str, int]], chunk_frames: int, **more: Any) -> Path:
    """One episode: numbers of images by feature, for each frame; `t` too, if a frame has none."""
    frames: list[Any] = [{name: IMAGES[i] for name, i in row.items()} for row in rows]
    if not all(rows):
        frames = [{"t": np.float32(number), **frame} for number, frame in enumerate(frames)]
    write_dataset(path, {"a": frames}, chunk_frames=chunk_frames, **more)
    return path


def rows_of(text: str) -> list[dict[str, int]]:
    """`"0.12"`: images 0, 1 and 2, and a frame without one."""
    return [{} if digit == "." else {"image": int(digit)} for digit in text]


def frames(path: Any, cache: Path | None, **options: Any) -> dict[tuple[str, int], bytes]:
    """All frames of one epoch, in so little memory that none is resident."""
    options = {"features": ["image"], "memory_limit": "2MiB", **options}
    folder = None if cache is None else FrameCache(cache, "64MiB")
    pipe = SeqRecordPipe(path, clip_len=1, batch_size=1, frame_cache=folder, **options)
    found = {}
    for batch in pipe:
        values = [np.asarray(batch[name]).tobytes() for name in sorted(options["features"])]
        found[batch["episode"][0], int(batch["start"][0])] = b"".join(values)
    assert len(found) > 0
    return found


def from_cache(path: Any, cache: Path, **options: Any) -> int:
    options = {"features": ["image"], "memory_limit": "2MiB", **options}
    pipe = SeqRecordPipe(
        path, clip_len=1, batch_size=1, frame_cache=FrameCache(cache, "64MiB"), **options
    )
    for _ in pipe:
        pass
    count: int = pipe.stats()["frames_from_cache"]
    return count


def both(frame: dict[str, Any]) -> dict[str, Any]:
    """A frame transform that needs two groups."""
    return {"image": frame["image"][::2] ^ frame["depth"][::2, :, None].astype(np.uint8)}


@pytest.mark.parametrize("codec", ["png", "raw"])
def test_equal_pages_with_other_gaps(codec: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a", rows_of("0.12012."), 4, codecs={"image": codec})
    some: dict[str, Any] = {"resize": SIZE} if codec == "raw" else {}
    expected = frames(path, None, **some)
    for _ in range(3):
        assert frames(path, tmp_path / "cache", **some) == expected


@pytest.mark.parametrize("codec", ["png", "raw"])
def test_a_page_of_another_dataset_with_an_equal_checksum(codec: str, tmp_path: Path) -> None:
    """Equal uid, length and CRC32C, as an attacker makes them; and equal digests in the index."""
    good = write(tmp_path / "good", rows_of("0120"), 4, codecs={"image": codec})
    forged = shutil.copytree(good, tmp_path / "forged")
    some: dict[str, Any] = {"resize": SIZE} if codec == "raw" else {}

    def forge(parts: RecordParts) -> None:
        """Other frames in the same page; the old digest stays in index and footer."""
        for rows, group in zip(parts.groups, parts.schema.groups, strict=True):
            if "image" in group:
                digest = rows["pages"]["digest"].copy()
                start, length = int(rows["offset"][0]) - 64, int(rows["pages"]["length"][0, 0])
                page = bytearray(parts.pages[start : start + length])
                if codec == "raw":
                    page[:768], page[768:1536] = page[768:1536], page[:768]
                else:
                    ends = np.frombuffer(page, "<u4", 5).copy()
                    blobs = [page[a:b] for a, b in pairwise(ends.tolist())]
                    blobs = [blobs[1], blobs[0], *blobs[2:]]
                    ends[1:] = 20 + np.cumsum([len(blob) for blob in blobs])
                    page = bytearray(ends.tobytes() + b"".join(blobs))
                parts.pages[start : start + length] = page
                parts.sign_pages()
                assert rows["pages"]["crc32c"][0, 0] == crc32c(page)
                rows["pages"]["digest"] = digest

    change_record(forged, forge)
    seqrecord.reindex(forged)
    expected = frames(good, None, **some)
    assert frames(forged, None, **some) != expected
    cache = tmp_path / "cache"
    frames(forged, cache, **some)
    assert frames(good, cache, **some) == expected
    assert from_cache(good, cache, **some) == 4


def test_slots_exchanged_with_their_checksums(tmp_path: Path) -> None:
    path, cache = (
        write(tmp_path / "a", rows_of("0120"), 4, **PNG),
        tmp_path / "cache",
    )
    expected = frames(path, cache)
    [entry] = frame_files(cache)
    data, size, start = bytearray(entry.read_bytes()), IMAGES[0].nbytes, slots_start(entry)
    sums = start - 4096
    assert any(data[sums : sums + 16])
    assert not any(data[sums + 16 : start])
    for begin, width in ((start, size), (sums, 4)):
        middle, end = begin + width, begin + 2 * width
        data[begin:end] = data[middle:end] + data[begin:middle]
    entry.write_bytes(data)
    assert frames(path, cache) == expected


@pytest.mark.parametrize("codec", ["png", "jpeg", "h264"])
def test_a_hit_reads_no_page(codec: str, tmp_path: Path) -> None:
    path, cache = tmp_path / "a", tmp_path / "cache"
    writer = SeqRecordWriter(path, chunk_frames=4, codecs={"image": codec})
    with writer, writer.episode("a") as episode:
        for i in range(12):
            episode.append({"image": np.full((32, 32, 3), 20 * i, np.uint8)})
    expected = frames(path, cache)
    shutil.rmtree(path / "records")
    (path / "records").mkdir()
    storage: Any = CountingStorage(LocalStorage(path))
    assert frames(storage, cache) == expected, "without the record files"


def test_entries_are_shared_by_copies_and_not_by_positions(tmp_path: Path) -> None:
    """Of equal record files in any dataset; those of a transform depend on how the groups meet."""
    cache = tmp_path / "cache"
    path = write(tmp_path / "a", rows_of("01201"), 4, **PNG)
    frames(path, cache)
    assert from_cache(shutil.copytree(path, tmp_path / "b"), cache) == 5
    rewritten = write(tmp_path / "c", rows_of("01201"), 4, **PNG)
    assert [from_cache(rewritten, cache) for _ in range(2)] == [0, 5], "another record file"
    assert from_cache(write(tmp_path / "d", rows_of("0120"), 3, **PNG), cache) == 0

    transform = FrameTransform(both, deterministic=True, cache_key="both")
    some: dict[str, Any] = {"features": ["image", "depth"], "frame_transform": transform}
    for number, lengths in enumerate(((3, 3), (3, 2), (2, 3))):
        root = tmp_path / f"t{number}"
        writer = SeqRecordWriter(root, codecs={"image": "png", "depth": "png"})
        with writer, writer.episode("a") as episode:
            for i in range(sum(lengths)):
                image = IMAGES[i % lengths[0] % 3]
                depth = IMAGES[i % lengths[1] % 3, ..., 0].astype(np.uint16)
                episode.append({"image": image, "depth": depth})
        pipe = SeqRecordPipe(root, clip_len=1, batch_size=1, **some)
        expected = [np.asarray(batch["image"]).tobytes() for batch in pipe]
        for _ in range(2):
            pipe = SeqRecordPipe(
                root, clip_len=1, batch_size=1, frame_cache=FrameCache(cache, "64MiB"), **some
            )
            assert [np.asarray(batch["image"]).tobytes() for batch in pipe] == expected


def save(folder: Path, number: int, image: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(IMAGES[image]).save(folder / f"{number:03d}.png", compress_level=0)


@pytest.mark.parametrize("tag", ["strong", "weak", "none"])
def test_raw_pages_of_a_web_server(tag: str, tmp_path: Path) -> None:
    """Their identity is the e-tag of the record file; without one they are not kept."""
    cache, some = tmp_path / "cache", {"resize": SIZE}
    with WebFolder(tmp_path, sends=(tag, "time", "total")) as server:
        for turn in range(2):
            path = write(tmp_path / "a", rows_of("0120"[turn:]), 4, codecs={"image": "raw"})
            expected = frames(path, None, **some)
            assert frames(f"{server.endpoint}/a", cache, **some) == expected
            hits = len(expected) if tag == "strong" else 0
            assert from_cache(f"{server.endpoint}/a", cache, **some) == hits
            shutil.rmtree(path)


@pytest.mark.parametrize("is_indexed_again", [False, True])
def test_replaced_originals(is_indexed_again: bool, tmp_path: Path, home: Path) -> None:
    """By files of equal size and modification time."""
    root, cache = tmp_path / "images", tmp_path / "cache"
    for number in range(6):
        save(root / "e0" / "image", number, number % 3)
        os.utime(root / "e0" / "image" / f"{number:03d}.png", (1e9, 1e9))  # not new

    def index(name: str) -> Path:
        seqrecord.convert(seqrecord.open_source(root), tmp_path / name, in_place=True, workers=1)
        return tmp_path / name

    some: dict[str, Any] = {"resize": SIZE}
    path = index("first")
    expected = frames(path, None, **some)
    assert frames(path, cache, **some) == expected
    assert from_cache(path, cache, **some) == 6
    for file in sorted((root / "e0" / "image").iterdir()):
        about = file.stat()
        save(root / "e0" / "image", int(file.stem), (int(file.stem) + 1) % 3)
        os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))
        assert file.stat().st_size == about.st_size
    path = index("second") if is_indexed_again else path
    assert frames(path, None, **some) != expected
    assert frames(path, cache, **some) == frames(path, None, **some)


STEPS = 5


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 40))]
)
def test_cache_on_and_off(seed: int, tmp_path: Path) -> None:
    """Over gaps, repeated images, swapped datasets, edits, copies and damage, in one cache."""
    rng, cache = random.Random(seed), tmp_path / "cache"
    paths: list[Path] = []

    def make(path: Path) -> Path:
        rows = rows_of("0." + "".join(rng.choices("012.", (3, 3, 1, 2), k=rng.randint(0, 9))))
        codecs = rng.choice(["png", "raw", "jpeg"])
        return write(path, rows, rng.randint(1, 4), codecs={"image": codecs})

    def swap(path: Path) -> None:
        shutil.rmtree(path)
        make(path)

    def append(path: Path) -> None:
        writer = SeqRecordWriter(path, mode="append")
        with writer, writer.episode(f"b{rng.random()}") as episode:
            for _ in range(3):
                episode.append({"t": np.float32(0), "image": IMAGES[rng.randrange(3)]})

    def edit(path: Path) -> None:
        keys = list(seqrecord.open(path).episodes)
        if len(keys) > 1 and rng.random() < 0.5:
            delete_episodes(path, keys[:1])
        elif len(seqrecord.open(path).episodes[keys[-1]]) > 2:
            trim_episodes(path, keys[-1:], slice(1, None))

    def damage(path: Path) -> None:
        for file in frame_files(cache):
            change_byte(file, rng.randrange(file.stat().st_size), 255)

    for step in range(STEPS):
        if not paths or rng.random() < 0.3:
            paths.append(make(tmp_path / f"{step}"))
        path = rng.choice(paths)
        changes: list[Callable[[Path], object]] = [swap, append, edit, damage, seqrecord.reindex]
        rng.choice(changes)(path)
        for some in ({}, {"resize": SIZE}):
            try:
                expected = frames(path, None, **some)
            except AssertionError:
                continue  # no frame has an image
            assert frames(path, cache, **some) == expected, (seed, step)
