"""Frames of raw pages: correct values, reads of their slices only, and checksums of each slice."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import seqrecord
from seqrecord import Dataset, FeatureSpec, SeqRecordPipe, verify
from seqrecord.cloud.cache import CachedStorage
from seqrecord.errors import ChecksumError, CodecError
from seqrecord.store.format.pages import aligned, slice_frames
from seqrecord.store.reading.chunk_sizes import (
    chunk_bytes,
    max_chunk_bytes,
    overlapping_chunk_bytes,
)
from seqrecord.store.storage.base import Storage, StorageWrapper
from seqrecord.store.storage.local import LocalStorage
from seqrecord.store.storage.ranges import ByteRange
from tests.kit.clip_data import LARGE, LENGTHS, check_clip, possible_clips, write_numbered
from tests.kit.datasets import columns, damage, flip, nth_page, write_dataset, written_once
from tests.kit.faults import CountingStorage, damages_once

FRAMES = 700
SCHEMA = seqrecord.Schema(
    [
        FeatureSpec("big", np.dtype("u1"), (5000,)),  # one slice per frame
        FeatureSpec("mid", np.dtype("<f4"), (200,), group=1),  # six frames per slice
        FeatureSpec("flag", np.dtype("?"), (3,), group=1),  # one slice per page
        FeatureSpec("small", np.dtype("<i8"), (), group=1),  # 512 frames per slice
    ]
)


def made(frame: int) -> dict[str, npt.NDArray[Any]]:
    """Every seventh frame lacks `mid`."""
    rng = np.random.default_rng(frame)
    found = {
        "big": rng.integers(0, 256, 5000, np.uint8),
        "mid": rng.normal(size=200).astype("<f4"),
        "flag": rng.integers(0, 2, 3).astype(bool),
        "small": np.array(frame * 1_000_003, "<i8"),
    }
    if frame % 7 == 3:
        del found["mid"]
    return found


EXPECTED = [made(frame) for frame in range(FRAMES)]


def write(folder: Path) -> Path:
    write_dataset(folder, {"e": EXPECTED}, schema=SCHEMA, codecs="raw", chunk_frames=600)
    return folder


root = written_once(write)


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return shutil.copytree(root, tmp_path / "copy")


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(params=["local", "remote", "unverified"])
def opened(root: Path, request: pytest.FixtureRequest) -> Dataset:
    storage = CountingStorage(LocalStorage(root), is_local=request.param != "remote")
    return seqrecord.open(storage, verify=request.param != "unverified")


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_frames_in_any_order(opened: Dataset, data: st.DataObject) -> None:
    """Frames of both chunks, some of them twice."""
    names = data.draw(st.lists(st.sampled_from(list(SCHEMA)), min_size=1, unique=True))
    frames = data.draw(st.lists(st.integers(0, FRAMES - 1), min_size=1, max_size=40))
    first, count, step = (data.draw(st.integers(*b)) for b in ((0, 600), (0, 99), (1, 3)))
    frames += [frame for frame in range(first, first + count * step, step) if frame < FRAMES]
    frames = data.draw(st.permutations(frames))
    frames = [frame for frame in frames if all(name in EXPECTED[frame] for name in names)]
    got = opened.episodes["e"].read(frames, features=names)
    for name in names:
        assert got[name].dtype == SCHEMA[name].dtype
        for value, frame in zip(got[name], frames, strict=True):
            np.testing.assert_array_equal(value, EXPECTED[frame][name])


@pytest.mark.parametrize(("name", "is_local"), [("big", True), ("mid", False), ("small", True)])
def test_only_slices_with_the_frames_are_read(root: Path, name: str, is_local: bool) -> None:
    storage = CountingStorage(LocalStorage(root), is_local=is_local)
    with seqrecord.open(storage, features=[name]) as dataset:
        page, spec, episode = nth_page(dataset, name, 0, 0), SCHEMA[name], dataset.episodes["e"]
        k = slice_frames(spec)
        for subset in ([0], [599], [3, 4, 5], [0, 100, 599], [*range(0, 600, 50)]):
            frames = [frame for frame in subset if page.has(frame)]
            slices = sorted({position // k for position in page.positions(frames).tolist()})
            storage.reset()
            got = episode.read(frames)
            for place, frame in enumerate(frames):
                np.testing.assert_array_equal(got[name][place], EXPECTED[frame][name])
            ends = [min(k * spec.nbytes * (i + 1), page.stop - page.start) for i in slices]
            nbytes = sum(ends) - k * spec.nbytes * sum(slices)
            between = 16 << 10  # gaps up to this size are read too
            assert nbytes <= storage.bytes_read <= nbytes + len(slices) * (between + 8)
            whole = page.stop - page.start
            assert len(frames) > 12 or storage.bytes_read < whole or name == "small"


def test_a_single_frame_is_read_and_checked_by_its_slice(root: Path) -> None:
    storage = CountingStorage(LocalStorage(root))
    for name, verified, nbytes in (("big", True, 5000 + 4), ("small", False, 8)):
        with seqrecord.open(storage, features=[name], verify=verified) as dataset:
            storage.reset()
            value = dataset.episodes["e"][321][name]
            np.testing.assert_array_equal(value, EXPECTED[321][name])
            assert storage.bytes_read == nbytes


@pytest.mark.parametrize(
    ("name", "is_local"),
    [
        *(("big", True), ("mid", False), ("small", True)),
        *(slow("big", False), slow("mid", True), slow("small", False)),
    ],
)
def test_a_damaged_slice_is_an_error_for_its_frames_only(
    copy: Path, name: str, is_local: bool, thorough: bool
) -> None:
    storage: Storage = LocalStorage(copy)
    storage = storage if is_local else StorageWrapper(storage)
    with seqrecord.open(storage, features=[name]) as dataset:
        k = slice_frames(SCHEMA[name])
        size = k * SCHEMA[name].nbytes
        page = damage(copy, name, 0, 0, at=size + 3)  # in the second slice
        frames = {*range(0, page.chunk.num_frames, 1 if thorough else 20), *range(k, k + 5)}
        for frame in filter(page.has, frames):
            if int(page.positions(frame)) // k != 1:
                found = dataset.episodes["e"][frame][name]
                np.testing.assert_array_equal(found, EXPECTED[frame][name])
                continue
            with pytest.raises(ChecksumError) as caught:
                dataset.episodes["e"][frame]
            error = caught.value
            assert error.episode == "e (frames 0 to 599)"
            assert error.file == f"{storage.url}/{page.chunk.path}"
            assert (error.offset, error.feature) == (page.start + size, name)
    with seqrecord.open(storage, features=[name], verify=False) as dataset:
        dataset.episodes["e"][0 : 3 if name != "mid" else 2]
    [problem] = verify(copy).problems
    assert (problem.feature, problem.offset) == (name, page.start)


def test_a_damaged_checksum_is_found(copy: Path) -> None:
    with seqrecord.open(copy, features=["mid"]) as dataset:
        page, episode = nth_page(dataset, "mid", 0, 0), dataset.episodes["e"]
        file = copy / page.chunk.path
        assert page.sums is not None
        flip(file, page.sums + 4)  # the second slice's checksum
        assert len(episode.read([0, 1])["mid"]) == 2
        with pytest.raises(ChecksumError, match="frames of a page"):
            episode.read([8])
        whole = [frame for frame in range(600) if page.has(frame)]
        assert len(episode.read(whole)["mid"]) == len(whole)
    for deep in (False, True):
        [problem] = verify(copy, deep=deep).problems
        assert isinstance(problem, ChecksumError)
        assert "slices" in str(problem)
        assert (problem.file, problem.feature) == (str(file), "mid")
        assert problem.offset == page.sums + 4


@pytest.mark.parametrize("verified", [True, False])
def test_invalid_bools_are_errors(copy: Path, verified: bool) -> None:
    with seqrecord.open(copy, verify=verified) as dataset:
        page = nth_page(dataset, "flag", 0, 0)
        file = copy / page.chunk.path
        data = bytearray(file.read_bytes())
        data[page.start + 3 * 9] = 2
        file.write_bytes(data)
        with pytest.raises(ChecksumError if verified else CodecError) as caught:
            dataset.episodes["e"].read([9], features=["flag"])
        assert (caught.value.file, caught.value.feature) == (str(file), "flag")


def test_a_slice_damaged_in_transfer_is_read_again(root: Path, tmp_path: Path) -> None:
    for is_cached in (False, True):
        storage: Storage = damages_once(LocalStorage(root))
        if is_cached:
            storage = CachedStorage(storage, tmp_path / "cache", "16MiB")
            storage.slot_bytes, storage.entry_slots = 64, 4096  # slices begin with a slot
        with seqrecord.open(storage, features=["mid"]) as dataset:
            np.testing.assert_array_equal(dataset.episodes["e"][100]["mid"], EXPECTED[100]["mid"])
            assert storage.counters().get("cache_damaged", 1) > 0


# Loads of raw chunks: slices for few frames; otherwise several whole chunks per read


def sound(episode: int) -> npt.NDArray[np.int16]:
    return np.random.default_rng(episode).integers(-9, 9, (100, 1600), np.int16)


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One chunk of 100 frames per episode; parts are read for few frames only."""
    path = tmp_path_factory.mktemp("sounds") / "records"
    episodes = {
        str(n): columns(sound=sound(n), id=[np.array([n, frame]) for frame in range(100)])
        for n in range(5)
    }
    write_dataset(path, episodes, codecs="raw")
    return path


@pytest.mark.parametrize(
    ("stride", "calls", "verify"),
    [
        *((1, 5, True), (16, 2, False), (33, 2, True)),
        *(slow(1, 5, False), slow(16, 2, True), slow(33, 2, False)),
    ],
)
def test_loads_of_raw_chunks(sounds: Path, stride: int, calls: int, verify: bool) -> None:
    read_sizes: list[int] = []

    class Watched(LocalStorage):
        def read_ranges(
            self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
        ) -> None:
            read_sizes.append(sum(map(len, buffers)))
            super().read_ranges(path, ranges, buffers)

    with seqrecord.open(Watched(sounds), verify=verify) as dataset:
        assert {spec.group for spec in dataset.features.values()} == {0}
        pipe = SeqRecordPipe(dataset, clip_len=1, batch_size=4, stride=stride, shuffle=False)
        read_sizes.clear()
        seen = []
        for batch in pipe:
            for number, samples in zip(batch["id"][:, 0], batch["sound"][:, 0], strict=True):
                episode, frame = number.tolist()
                assert np.array_equal(samples, sound(episode)[frame])
                seen.append((episode, frame))
    assert sorted(seen) == [(e, f) for e in range(5) for f in range(0, 100, stride)]
    stats, whole = pipe.stats(), 5 * 100 * (3200 + 16)
    # A slice of `sound` has two frames and a checksum; `id` is read by page.
    limit = len(seen) * (2 * 3200 + 4) + 5 * 1600
    assert stats["bytes_read"] == whole if stride == 1 else stats["bytes_read"] <= limit
    assert len(read_sizes) == calls
    assert stats["decode_seconds"] == 0, "a chunk was decoded instead of read in place"


# Parts of raw pages are read directly into rows if few of their frames are needed

FRAME = math.prod(LARGE)  # bytes of an image


def write_pieces(folder: Path, flush_at: Sequence[int] = ()) -> Path:
    options: dict[str, Any] = {"codecs": "raw", "chunk_frames": None, "shape": LARGE}
    return write_numbered(folder / "records", **options, flush_at=list(flush_at))


@pytest.fixture(scope="module", params=["even", "uneven"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chunks of 32 frames, or of up to 23: parts are read of the larger ones only."""
    folder = tmp_path_factory.mktemp("direct")
    return write_pieces(folder, [16] if request.param == "uneven" else [])


FAST = [(3, 1, None, True), (16, 2, "cpu", False)]
EVERY = product((3, 16), (1, 2), (None, "cpu"), (True, False))


@pytest.mark.parametrize(
    ("stride", "clip_len", "device", "verify"),
    [*FAST, *(slow(*case) for case in EVERY if case not in FAST)],
)
def test_clips_far_apart(
    path: Path, stride: int, clip_len: int, device: str | None, verify: bool
) -> None:
    features = ["image", "id"]
    pipe = SeqRecordPipe(
        seqrecord.open(path, verify=verify),
        clip_len=clip_len,
        stride=stride,
        features=features,
        batch_size=2,
        engine=seqrecord.EngineOptions(shuffle_buffer=8),
        device=device,
    )
    for _ in range(2):
        clips = [name for batch in pipe for name in check_clip(batch, features, clip_len)]
        assert sorted(clips) == possible_clips(features, clip_len, stride)


def test_only_requested_frames_are_read_and_checked(tmp_path: Path) -> None:
    path = write_pieces(tmp_path)
    settings: dict[str, Any] = {"clip_len": 1, "stride": 16, "features": ["image"]}
    pipe = SeqRecordPipe(path, batch_size=2, **settings)
    every = [name for batch in pipe for name in check_clip(batch, ["image"], 1)]
    assert sorted(every) == possible_clips(["image"], 1, 16)
    assert pipe.stats()["bytes_read"] == len(every) * (FRAME + 4)
    page = nth_page(seqrecord.open(path), "image", 3, 0)
    for frame in (15, 16):
        flip(path / page.chunk.path, page.start + frame * FRAME + 7)
        pipe = SeqRecordPipe(path, batch_size=2, **settings)
        if frame % 16:
            assert len(list(pipe)) == len(pipe)
        else:
            with pytest.raises(ChecksumError, match=r"set/3 \(frames 0 to 31\)"):
                list(pipe)


# Bytes of loads match brute force

GROUPS = {"image": 0, "flow": 1, "note": 1, "id": 2}


@pytest.mark.parametrize("flush_at", [[], [1, 6, 7, 8, 21]])
def test_bytes_of_overlapping_chunks(tmp_path: Path, flush_at: list[int]) -> None:
    options: dict[str, Any] = {"groups": GROUPS, "chunk_frames": 4 if flush_at else None}
    dataset = seqrecord.open(write_numbered(tmp_path / "r", **options, flush_at=flush_at))
    reader, groups = dataset.contents.chunks, dataset.contents.index.groups
    sizes = [chunk_bytes(group, ["image", "note", "id"]) for group in groups]
    chunks = [[reader.chunk_at(g, row) for row in range(len(s))] for g, s in enumerate(sizes)]

    def nbytes(place: int, episode: int, start: int, stop: int) -> int:
        """Bytes of a group's chunks with any of these frames."""
        return sum(
            size
            for chunk, size in zip(chunks[place], sizes[place].tolist(), strict=True)
            if chunk.episode == episode
            and chunk.first_frame < stop
            and start < chunk.first_frame + chunk.num_frames
        )

    every = range(len(groups))
    for place in every:
        for chunk, size in zip(chunks[place], sizes[place].tolist(), strict=True):
            pages = [page for page in reader.pages(chunk) if page.feature != "flow"]
            assert size == sum(aligned(page.stop - page.start) for page in pages)
    for lead, other in product(every, every):
        beside = overlapping_chunk_bytes(groups[lead], groups[other], sizes[other])
        ends = [(c.episode, c.first_frame, c.first_frame + c.num_frames) for c in chunks[lead]]
        assert beside.tolist() == [nbytes(other, *place) for place in ends]
    frames = [(episode, first) for episode, n in enumerate(LENGTHS) for first in range(n)]
    for place, count in product(every, (1, 2, 5, 100)):
        touched = [nbytes(place, episode, first, first + count) for episode, first in frames]
        assert max_chunk_bytes(groups[place], sizes[place], count) == max(touched)
