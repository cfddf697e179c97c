"""Small chunks of raw pages: found together, and read by one job where there are several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import SeqRecordPipe
from seqrecord.engine.arena import Arena, Place
from seqrecord.engine.buffers import GroupNeeds, HostBuffers, Needs
from seqrecord.engine.loading import ChunkLoader
from seqrecord.engine.loads import Load
from seqrecord.engine.stats import EngineStats
from seqrecord.errors import ChecksumError, StorageError
from seqrecord.reading.frames import ArraySpec
from tests.clip_data import LARGE, SMALL, check, expected_frame, possible_clips, write_numbered
from tests.datasets import nth_chunk

FIXED = ["image", "flow", "id"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    return write_numbered(folder / "records", codecs="raw", flush_at=[5, 6])


@pytest.mark.parametrize("names", [FIXED, ["id"], ["image", "id"]])
def test_chunks_lie_where_their_pages_do(path: Path, names: list[str]) -> None:
    with seqrecord.open(path, features=names) as dataset:
        reader = dataset.chunk_reader()
        for group, table in enumerate(dataset.index.groups):
            raw = reader.raw[group]
            rows = np.random.default_rng(0).permutation(len(table.file))
            lacking = 0
            for row, found in zip(rows.tolist(), raw.find(rows), strict=True):
                chunk = reader.chunk_at(group, row)
                pages = reader.pages(chunk)
                if any(page.present is not None for page in pages):
                    assert found is None
                    lacking += 1
                    continue
                assert found is not None
                assert [spec.name for spec in raw.specs] == [page.feature for page in pages]
                assert reader.paths[found.file] == chunk.path
                assert found[1:3] == (chunk.first_frame, chunk.num_frames)
                assert found.starts == [page.start for page in pages]
                assert [sum(x) for x in zip(found.starts, found.lengths, strict=True)] == [
                    page.stop for page in pages
                ]
                assert found.sums == [page.crc32c for page in pages]
            assert bool(lacking) == ("flow" in names)


def test_a_group_with_a_codec_is_none(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "records", codecs={"image": "png", "flow": "raw"})
    for names, is_raw in ((["flow"], True), (["image"], False), (["flow", "image"], False)):
        with seqrecord.open(path, features=names) as dataset:
            assert (0 in dataset.chunk_reader().raw) == is_raw


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        {"shuffle": False},
        {"shuffle_buffer": 100},
        {"num_cursors": 1, "shuffle_buffer": 3},  # a short ring, which begins anew often
        {"stride": 5},  # parts of chunks
        {"stride": 2, "dilation": 2},  # every second frame
        {"device": "cpu"},
    ],
)
def test_clips_are_right(path: Path, settings: dict[str, Any], verify: bool) -> None:
    """Chunks in which a frame lacks a feature come between others."""
    pipe = SeqRecordPipe(path, clip_len=3, batch_size=4, features=FIXED, verify=verify, **settings)
    stride, dilation = settings.get("stride", 1), settings.get("dilation", 1)
    for _ in range(2):
        clips = [name for batch in pipe for name in check(batch, FIXED, 3, dilation)]
        assert sorted(clips) == sorted(possible_clips(FIXED, 3, stride, dilation))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chunks of which few frames are worth reading parts."""
    folder = tmp_path_factory.mktemp("large")
    return write_numbered(folder / "records", codecs="raw", chunk_frames=None, shape=LARGE)


@pytest.mark.parametrize("step", [1, 2, 7])
@pytest.mark.parametrize("ring", [12, 40])
@pytest.mark.parametrize("frames_are", ["small", "large"])
def test_any_frames_of_chunks_go_to_any_rows(
    path: Path, large: Path, step: int, ring: int, frames_are: str
) -> None:
    """Loads of one job, of all frames of a chunk or of some, in rings that begin anew."""
    rng = np.random.default_rng([step, ring])
    path, shape = (path, SMALL) if frames_are == "small" else (large, LARGE)
    names = ["image", "id"]
    with seqrecord.open(path, features=names) as dataset:
        specs = {n: ArraySpec(s.dtype, s.shape) for n, s in dataset.features.items()}
        group = dataset.features["id"].group
        lengths = dict.fromkeys(specs, 1)
        buffers = HostBuffers(Needs((GroupNeeds(specs, 3 * ring),), specs, lengths, 1, 1))
        (arena,) = buffers.arenas
        assert isinstance(arena, Arena)
        stats = EngineStats()
        loader = ChunkLoader(dataset, buffers, {group: step}, group, None, 1, stats)
        reader = dataset.chunk_reader()
        count = len(dataset.index.groups[group].file)
        frames = 0
        for _ in range(30):
            loads, places, expected = [], [], []
            for number, row in enumerate(rng.integers(0, count, 3).tolist()):
                chunk = reader.chunk_at(group, row)
                skipped = int(rng.integers(chunk.num_frames))
                most = -(-(chunk.num_frames - skipped) // step)
                size = min(ring, int(rng.choice([1, rng.integers(most) + 1, most])))
                first = chunk.first_frame + skipped
                rows = number * ring + (rng.integers(ring) + np.arange(size)) % ring
                loads.append(Load(group, number, 0, chunk.episode, row, first, size))
                places.append(Place(arena, np.arange(size), rows))
                expected += [
                    (at, chunk.episode, first + i * step) for i, at in enumerate(rows.tolist())
                ]
            loader.load_together(loads, places)
            frames += len(expected)
            for at, episode, frame in expected:
                for name, value in expected_frame(episode, frame, shape).items():
                    if name in names:
                        assert np.array_equal(arena[name][at], value)
        assert stats.report()["frames_decoded"] == frames
        if frames_are == "small":  # else two loads may want the same frame of a part
            assert stats.report()["decode_seconds"] == 0, "a chunk took the long way"


def test_small_raw_chunks_need_no_decoding(path: Path) -> None:
    pipe = SeqRecordPipe(path, clip_len=3, batch_size=4, features=["id"], shuffle=False)
    list(pipe)
    stats = pipe.stats()
    assert stats["loads"] > 0
    assert stats["decode_seconds"] == 0 < stats["fetch_seconds"]


def test_bytes_are_counted_once(path: Path) -> None:
    with seqrecord.open(path, features=FIXED) as dataset:
        reader = dataset.chunk_reader()
        rows = range(len(dataset.index.groups[0].file))
        pages = [page for row in rows for page in reader.pages(reader.chunk_at(0, row))]
        frames = int(dataset.num_frames)
    pipe = SeqRecordPipe(path, clip_len=1, batch_size=4, features=["image", "id"], shuffle=False)
    list(pipe)
    expected = sum(page.stop - page.start for page in pages if page.feature != "flow")
    assert pipe.stats()["bytes_read"] == expected
    assert pipe.stats()["frames_decoded"] == frames


@pytest.mark.parametrize("feature", FIXED)
def test_a_damaged_page_is_named(tmp_path: Path, feature: str) -> None:
    path = write_numbered(tmp_path / "records", codecs="raw")
    with seqrecord.open(path) as dataset:
        chunk = nth_chunk(dataset, 3, 2)
        reader = dataset.chunk_reader()
        page = next(page for page in reader.pages(chunk) if page.feature == feature)
    file = path / chunk.path
    data = bytearray(file.read_bytes())
    data[page.start + 5] ^= 1
    file.write_bytes(data)
    pipe = SeqRecordPipe(path, clip_len=3, batch_size=4, features=FIXED, shuffle=False)
    with pytest.raises(ChecksumError, match=rf"set/3 \(frames 8 to 11\).*{feature}") as caught:
        list(pipe)
    assert chunk.path in str(caught.value)
    assert list(SeqRecordPipe(path, clip_len=3, features=FIXED, verify=False))


def test_a_file_that_ends_early_is_named(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "records", codecs="raw")
    pipe = SeqRecordPipe(path, clip_len=3, batch_size=4, features=FIXED, shuffle=False)
    with seqrecord.open(path) as dataset:
        chunk = nth_chunk(dataset, 3, 2)
    with (path / chunk.path).open("r+b") as file:
        file.truncate(chunk.offset + 7)
    with pytest.raises(StorageError, match=r"set/3 \(frames 8 to 11\)") as caught:
        list(pipe)
    assert chunk.path in str(caught.value)
