"""Frames decoded once per training: residency, fixed shards, full shuffles, resuming."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from contextlib import suppress
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import seqrecord
from seqrecord import (
    DepthToMeters,
    EngineOptions,
    FrameTransform,
    SeqRecordIterableDataset,
    SeqRecordMix,
    SeqRecordPipe,
    SeqRecordWriter,
    open_source,
)
from seqrecord.errors import MemoryLimitError
from seqrecord.samples import every
from seqrecord.store.storage.opening import open_storage
from tests.formats.cases import index_source
from tests.kit.clip_data import digests, names, resumed
from tests.kit.datasets import columns, write_dataset, written_once
from tests.kit.faults import CountingStorage
from tests.kit.video_data import moving
from tests.kit.video_file_data import write_video
from tests.loader.resume_contract import check_resume, check_stateful_loader

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")

LENGTHS = {"a": 25, "b": 12, "c": 20, "d": 5, "e": 16, "f": 34}
FRAMES = sum(LENGTHS.values())
SIZES = {"video": (32, 48), "images": (160, 160)}
CODECS = {"video": "h264", "images": "balanced"}
CLIPS: dict[str, Any] = {"clip_len": 4, "batch_size": 5, "seed": 3}
NUM_CLIPS = sum(length - 3 for length in LENGTHS.values())


@lru_cache
def frames_of(path: Path) -> dict[str, dict[str, Any]]:
    """Frames of a dataset, read without a loader."""
    with seqrecord.open(path) as dataset:
        return {key: episode[:] for key, episode in dataset.episodes.items()}


def write(path: Path, kind: str) -> Path:
    episodes = {
        key: columns(
            image=moving(length, seed=number, size=SIZES[kind]),
            id=[np.array([number, i]) for i in range(length)],
        )
        for number, (key, length) in enumerate(LENGTHS.items())
    }
    write_dataset(path, episodes, codecs={"image": CODECS[kind], "id": "raw"}, chunk_frames=20)
    return path


video = written_once(write, "video")


images = written_once(write, "images")


@pytest.fixture(scope="module")
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def clips_of(path: Path, loader: Any, length: int = 4, step: int = 1) -> list[tuple[str, int]]:
    """Clips of an iteration; checks their frames."""
    found, frames = [], frames_of(path)
    for batch in loader:
        if isinstance(batch["episode"], str):
            batch = {n: [v] if n in ("episode", "start") else v[None] for n, v in batch.items()}
        clips = list(zip(batch["episode"], map(int, batch["start"]), strict=True))
        for name in {"image", "id"} & batch.keys():
            expected = [frames[key][name][i : i + length * step : step] for key, i in clips]
            assert np.array_equal(batch[name], np.stack(expected))
        found += clips
    return found


def every_clip() -> list[tuple[str, int]]:
    return [(key, i) for key, length in LENGTHS.items() for i in range(length - 3)]


OF_VIDEO = pytest.mark.parametrize(
    "path", ["video", pytest.param("images", marks=pytest.mark.slow)], indirect=True
)
"""Residency does not depend on the codec: cases with images are slow tests."""

OPTIONS: list[dict[str, Any]] = [
    {},
    {"batch_size": None, "stride": 7},
    {"shuffle": False, "last_batch": "drop"},
    {"engine": EngineOptions(num_cursors=3), "dilation": 2, "clip_len": 2, "stride": 4},
    {"samples": every(3, rotate=True)},
    {"pad": "edge", "windows": {"image": [-2, 0], "id": range(5)}},
    {"order": "sequences"},
]


@pytest.mark.parametrize(
    ("path", "options"),
    [*(("video", options) for options in OPTIONS), ("images", {})],
    indirect=["path"],
    ids=str,
)
def test_one_process_decodes_each_frame_once(path: Path, options: dict[str, Any]) -> None:
    options = {**CLIPS, **options}
    pipe = SeqRecordPipe(path, **options)
    decoded, epochs = [], []
    for _ in range(3):
        if "windows" in options:
            epochs.append([(b["episode"], b["start"].tolist()) for b in pipe])
        else:
            step = options.get("dilation", 1)
            epochs.append(clips_of(path, pipe, options["clip_len"], step))
        decoded.append(pipe.stats()["frames_decoded"])
    assert sum(decoded) <= FRAMES
    if "samples" not in options:
        assert decoded[1:] == [0, 0]
    if options == CLIPS:
        assert decoded == [FRAMES, 0, 0]
        assert all(sorted(epoch) == every_clip() for epoch in epochs)
        assert pipe.stats()["num_interleaved"] == NUM_CLIPS
    assert options.get("shuffle", True) == (epochs[1] != epochs[2])


@OF_VIDEO
@pytest.mark.parametrize(
    ("num_ranks", "options"),
    [
        (2, {}),
        (5, {"shuffle": False}),
        (2, {"last_batch": "drop"}),
        (5, {"last_batch": "keep"}),
        pytest.param(2, {"last_batch": "keep"}, marks=pytest.mark.slow),
        pytest.param(3, {}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_ranks_keep_their_clips(path: Path, num_ranks: int, options: dict[str, Any]) -> None:
    """Ranks together yield each clip once per epoch; each rank decodes only its own frames."""
    pipes = [SeqRecordPipe(path, **CLIPS, **options, rank=(i, num_ranks)) for i in range(num_ranks)]
    is_whole = options.get("last_batch") != "drop"
    shards: list[Counter[Any]] = []
    decoded = []
    for epoch in range(3):
        found = [Counter(clips_of(path, pipe)) for pipe in pipes]
        decoded.append([pipe.stats()["frames_decoded"] for pipe in pipes])
        if is_whole:
            every = sum(found, Counter[Any]())
            repeated = sum(pipe.stats()["duplicate_clips"] for pipe in pipes)
            assert every.keys() == set(every_clip())
            assert every.total() == NUM_CLIPS + repeated
            # A shard with a clip fewer repeats the first one of its epoch.
            assert not epoch or [one.keys() for one in found] == [one.keys() for one in shards]
        assert len({len(pipe) for pipe in pipes}) == 1 or options.get("last_batch") == "keep"
        shards = found
    assert sum(decoded[0]) < 2 * FRAMES
    assert not is_whole or decoded[1:] == [[0] * num_ranks] * 2
    nbytes = sum(one["image"].nbytes + one["id"].nbytes for one in frames_of(path).values())
    peaks = [pipe.stats()["peak_buffer_bytes"] for pipe in pipes]
    assert sum(peaks) < 1.6 * nbytes
    assert max(peaks) < nbytes


def test_the_order_depends_only_on_settings(video: Path) -> None:
    """Another first epoch and other engine options do not change it."""

    def make(**more: Any) -> Any:
        return SeqRecordPipe(video, **CLIPS, rank=(1, 2), **more)

    first = make()
    epochs = [digests(first) for _ in range(3)]
    assert epochs[1] != epochs[2]
    for number in (2, 1):
        other = make(engine=EngineOptions(num_threads=1))
        other.set_epoch(number)
        assert digests(other) == epochs[number]
    # Shards change with little memory.
    pipe = make(memory_limit="475KiB")
    assert len({frozenset(clips_of(video, pipe)) for _ in range(3)}) == 3


def test_frames_stay_on_a_device_with_an_explicit_limit_only(images: Path) -> None:
    """Small features stay without one, too, and all stay in host memory."""
    every_feature, small = {"features": ["image", "id"]}, {"features": ["id"]}
    cases: list[tuple[dict[str, Any], bool]] = [
        ({**every_feature}, True),
        ({**every_feature, "memory_limit": "64MiB"}, True),
        ({**every_feature, "device": "cpu"}, False),
        ({**every_feature, "device": "cpu", "memory_limit": "64MiB"}, True),
        ({**small, "device": "cpu"}, True),
    ]
    for options, stays in cases:
        pipe = SeqRecordPipe(images, clip_len=4, batch_size=4, **options)
        for epoch in range(2):
            assert sorted(clips_of(images, pipe)) == sorted(every_clip())
            assert (pipe.stats()["frames_decoded"] > 0) == (epoch == 0 or not stays), options
        kept = pipe.stats()["features_resident"]
        assert sorted(kept) == (sorted(options["features"]) if stays else []), options


def test_weighted_clips_and_clips_of_a_device(video: Path) -> None:
    # Weighted clips stay in one process only.
    clips = {"episode": list(LENGTHS), "start": [1] * 6, "repeat": [0.5, 2.5, 1.5, 3, 0.2, 4.1]}
    several: list[tuple[dict[str, Any], bool]] = [({}, True), ({"rank": (0, 2)}, False)]
    for ranks, kept in several:
        pipe = SeqRecordPipe(video, **CLIPS, samples=clips, **ranks)
        decoded = []
        for _ in range(4):
            clips_of(video, pipe)
            decoded.append(pipe.stats()["frames_decoded"])
        assert sum(decoded) <= FRAMES if kept else min(decoded) > 0
    # A device needs an explicit limit.
    for limit, kept in ((None, False), ("64MiB", True)):
        pipe = SeqRecordPipe(video, **CLIPS, device="cpu", memory_limit=limit)
        for _ in range(2):
            assert sorted(clips_of(video, pipe)) == every_clip()
        stats = pipe.stats()
        assert (stats["frames_decoded"] == 0) == kept
        assert stats["features_resident"] == (["image", "id"] if kept else [])
        assert stats["features_redecoded"] == ([] if kept else ["image"])


@OF_VIDEO
def test_memory_is_within_the_limit(path: Path) -> None:
    """Frames stay if all fit; with less memory they are decoded again. Both keep the limit."""
    nbytes = sum(one["image"].nbytes + one["id"].nbytes for one in frames_of(path).values())
    kept = []
    for limit in (nbytes, 5 * nbytes // 4, 4 * nbytes + (8 << 20)):
        pipe = SeqRecordPipe(path, **CLIPS, memory_limit=limit)
        for _ in range(2):
            assert sorted(clips_of(path, pipe)) == every_clip()
        assert pipe.stats()["peak_buffer_bytes"] <= limit
        kept.append(pipe.stats()["frames_decoded"] == 0)
    assert kept == [False, False, True]


def scaled(frame: dict[str, Any]) -> dict[str, Any]:
    return {"image": frame["image"][::2, ::2] // 2, "id": frame["id"]}


@OF_VIDEO
def test_results_of_a_transform(path: Path) -> None:
    for is_declared in (False, True):
        transform = FrameTransform(scaled, deterministic=is_declared)
        pipe = SeqRecordPipe(path, **CLIPS, frame_transform=transform)
        for epoch in range(3):
            for batch in pipe:
                clips = [frames_of(path)[key]["image"][i : i + 4] for key, i in names(batch)]
                assert np.array_equal(batch["image"], np.stack(clips)[:, :, ::2, ::2] // 2)
            assert (pipe.stats()["frames_decoded"] == 0) == (is_declared and epoch > 0)
    rng = np.random.default_rng(0)
    with pytest.raises(seqrecord.ClipError, match="frame_transform"):  # random
        SeqRecordPipe(
            path,
            **CLIPS,
            frame_transform=FrameTransform(
                lambda frame: {"image": frame["image"] * rng.random()}, deterministic=True
            ),
        )


# ---- resuming


@pytest.mark.parametrize("options", [{"last_batch": "drop"}, {"rank": (1, 3)}], ids=str)
def test_video_in_memory_resumes(video: Path, options: dict[str, Any]) -> None:
    """Raw frames and images in memory: the state machine of loaders."""
    check_resume(
        lambda: SeqRecordIterableDataset(video, **{**CLIPS, "batch_size": 16}, **options),
        positions=lambda count: range(1, count, 4),
    )


def test_a_state_needs_memory_for_its_order(video: Path) -> None:
    state = SeqRecordPipe(video, **CLIPS).state_dict()
    with pytest.raises(MemoryLimitError, match="at least"):
        SeqRecordPipe(video, **CLIPS, memory_limit="475KiB").load_state_dict(state)
    # A state saved with less memory resumes with more, in its order.
    small = SeqRecordPipe(video, **CLIPS, memory_limit="475KiB")
    state, whole = small.state_dict(), [digests(small) for _ in range(3)]
    pipe = resumed(SeqRecordPipe(video, **CLIPS), state)
    assert [digests(pipe) for _ in range(3)] == whole


# ---- mixes and workers


def mix_of(path: Path, **ranks: Any) -> SeqRecordMix:
    sources = {name: SeqRecordIterableDataset(path, clip_len=4) for name in ("one", "two")}
    return SeqRecordMix(sources, batch_size=6, seed=4, stopping_strategy="all_exhausted", **ranks)


def test_a_mix_decodes_once(video: Path) -> None:
    mix = mix_of(video)
    decoded = []
    for _ in range(3):
        list(mix)
        decoded.append(mix.stats()["frames_decoded"])
    assert decoded == [2 * FRAMES, 0, 0]
    assert mix.stats()["features_resident"] == ["image", "id"]


@pytest.mark.slow
def test_workers(video: Path, tmp_path: Path) -> None:
    handler = logging.FileHandler(log := tmp_path / "log")  # of the workers, too
    logging.getLogger("seqrecord").addHandler(handler)

    def epochs(**options: Any) -> list[list[tuple[str, int]]]:
        pipe: Any = SeqRecordPipe(video, **CLIPS)
        loader: Any = DataLoader(pipe, batch_size=None, num_workers=2, **options)
        return [clips_of(video, loader) for _ in range(3)]

    kept = epochs(persistent_workers=True)
    assert "persistent_workers" not in log.read_text()
    restarted = epochs()
    assert log.read_text().count("persistent_workers=True") == 1
    logging.getLogger("seqrecord").removeHandler(handler)
    handler.close()
    assert kept == restarted
    for clips in kept:
        assert set(clips) == set(every_clip())
    check_stateful_loader(
        lambda **options: StatefulDataLoader(
            SeqRecordIterableDataset(video, **CLIPS), batch_size=None, num_workers=2, **options
        )
    )


def some_batches(loader: Any, count: int) -> None:
    for number, _ in enumerate(loader, 1):
        if number == count:
            break


def failing(clip: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    if clip["id"][0, 1] == 3:
        raise RuntimeError(f"{generator} is not used")
    return clip


LEFT_EARLY: dict[str, dict[str, Any]] = {
    "break": {},
    "single clips": {"batch_size": None},
    "function of samples": {"samples": [lambda samples, epoch, rng: samples]},
    "other clips in each epoch": {"samples": every(3, rotate=True)},
    "error": {"clip_transform": failing},
}


@pytest.mark.parametrize("options", LEFT_EARLY.values(), ids=LEFT_EARLY)
def test_frames_stay_if_an_epoch_is_left_early(images: Path, options: dict[str, Any]) -> None:
    pipe, decoded = SeqRecordPipe(images, **{**CLIPS, **options}), list[int]()
    for count in (1, 4, 4, 0, 4, 6, 6):
        with suppress(RuntimeError):
            some_batches(pipe, count or 1000)
        decoded.append(pipe.stats()["frames_decoded"])
    assert sum(decoded) == FRAMES  # loads in progress end, and their frames stay, too
    assert sum(decoded[-2:]) <= (1 if "samples" in options else 0)  # of an end of an episode


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["pipe", "map"])
def test_frames_of_workers_stay_if_an_epoch_is_left_early(
    images: Path, kind: str, num_workers: int
) -> None:
    context = get_context("fork")
    count = context.Value("i", 0)

    def counted(frame: dict[str, Any]) -> dict[str, Any]:
        with count.get_lock():
            count.value += 1
        return frame

    transform = FrameTransform(counted, deterministic=True)
    options: dict[str, Any] = {"num_workers": num_workers}
    if num_workers:
        options |= {"persistent_workers": True, "multiprocessing_context": context}
    loader: Any
    if kind == "pipe":
        pipe = SeqRecordPipe(images, **CLIPS, frame_transform=transform)
        loader = DataLoader(pipe, batch_size=None, **options)
    else:
        clips = seqrecord.SeqRecordMapDataset(images, clip_len=4, frame_transform=transform)
        generator = torch.Generator().manual_seed(0)
        loader = DataLoader(clips, batch_size=5, shuffle=True, generator=generator, **options)
    count.value = 0  # the loader has transformed an example
    for number in (1, 4, 1, 7, 1000):
        some_batches(loader, number)
    some_batches(loader, 1000)
    # Each worker of a map-style dataset has any of its frames; shards of pipes share few.
    assert FRAMES <= count.value <= FRAMES * (max(1, num_workers) if kind == "map" else 1.2)


def test_remote_frames_stay_if_an_epoch_is_left_early(images: Path) -> None:
    storage = CountingStorage(open_storage(str(images)))
    pipe, decoded = SeqRecordPipe(storage, **CLIPS), list[int]()
    for count in (1, 4, 1, 7, 1000, 1000):
        storage.reset()
        some_batches(pipe, count)
        decoded.append(pipe.stats()["frames_decoded"])
    assert sum(decoded) == FRAMES
    assert storage.bytes_read == 0


def test_frames_of_a_mix_stay_if_an_epoch_is_left_early(video: Path) -> None:
    mix, decoded = mix_of(video), list[int]()
    for count in (3, 5, 5, 1000, 4):
        some_batches(mix, count)
        decoded.append(mix.stats()["frames_decoded"])
    assert decoded[-1] == 0
    assert sum(decoded) <= 2.5 * FRAMES


def test_residency_depends_on_the_size_of_frames(tmp_path: Path) -> None:
    depth = seqrecord.FeatureSpec("depth", np.dtype("uint16"), (200, 200), kind="depth", unit="mm")
    schema = seqrecord.Schema([depth])
    with SeqRecordWriter(tmp_path / "d", schema=schema) as writer, writer.episode("a") as episode:
        for i in range(12):
            episode.append({"depth": np.full((200, 200), i, np.uint16)})
    pipe = SeqRecordPipe(tmp_path / "d", **CLIPS, frame_transform=DepthToMeters("depth"))
    for decoded in (12, 0):  # depth in metres is deterministic
        list(pipe)
        assert pipe.stats()["frames_decoded"] == decoded
    # Large raw frames do not stay because of a text.
    codecs = {"image": "raw"}
    with SeqRecordWriter(tmp_path / "t", codecs=codecs) as writer, writer.episode("a") as episode:
        for image in moving(12, size=IMAGES["png"]):
            episode.append({"image": image, "task": "a task"})
    pipe = SeqRecordPipe(tmp_path / "t", clip_len=3)
    for _ in range(2):
        list(pipe)
        assert pipe.stats()["features_resident"] == []


@OF_VIDEO
@pytest.mark.parametrize(
    "given",
    [
        {"clip_len": 4},
        {"windows": {"image": [0], "id": range(3)}, "frame_transform": scaled},
    ],
    ids=["plain", "scaled"],
)
def test_the_map_style_class_decodes_once(path: Path, given: dict[str, Any]) -> None:
    if "frame_transform" in given:
        given = {**given, "frame_transform": FrameTransform(scaled, deterministic=True)}
    kept = seqrecord.SeqRecordMapDataset(path, **given)
    uncached = seqrecord.SeqRecordMapDataset(path, **given, memory_limit=0)
    order = np.random.default_rng(0).permutation(len(kept)).tolist()
    parts = [order[i : i + 20] for i in range(0, len(order), 20)]
    expected = [digests(uncached.__getitems__(part)) for part in parts]
    for _ in range(2):
        assert [digests(kept.__getitems__(part)) for part in parts] == expected
    stats = kept.stats()
    assert stats["frames_decoded"] <= 2 * FRAMES  # image and id, where they are read apart
    assert uncached.stats()["frames_decoded"] > 2 * FRAMES
    kept.__getitems__(order)
    assert kept.stats()["bytes_read"] == stats["bytes_read"]


@pytest.mark.parametrize(("ranks", "options"), [(3, {}), (2, {"memory_limit": "475KiB"})])
def test_resident_features_are_reported(video: Path, ranks: int, options: dict[str, Any]) -> None:
    for rank in range(ranks):
        pipe = SeqRecordPipe(video, **CLIPS, **options, rank=(rank, ranks))
        counts = []
        for _ in range(3):
            list(pipe)
            counts.append(pipe.stats()["frames_decoded"])
        stats = pipe.stats()
        found = stats["features_resident"], stats["features_redecoded"]
        assert found == (([], ["image"]) if options else (["image", "id"], []))
        assert (counts[1:] == [0, 0]) == (not options)


# ---- codecs and locations

COUNT = 10  # frames of each of two episodes
IMAGES = {"raw": (32, 48), "png": (160, 160), "jpeg": (160, 160), "balanced": (160, 160)}


def write_original(root: Path, codec: str) -> None:
    """Two episodes of images that are read in place: video files, or one file per image."""
    root.mkdir()
    for number, key in enumerate("ab"):
        images = moving(COUNT, seed=number, size=IMAGES.get(codec, (32, 48)))
        if codec in ("h264", "av1"):
            encoder = {"h264": "libx264", "av1": "libsvtav1"}[codec]
            write_video(root / f"{key}.mp4", images, encoder, options={"g": "2"})
            continue
        folder = root / key / "image"
        folder.mkdir(parents=True)
        for i, image in enumerate(images):
            if codec == "raw":
                np.save(folder / f"{i:03d}.npy", image)
            else:
                Image.fromarray(image).save(folder / f"{i:03d}.{codec}")


def write_records(location: Path | str, codec: str) -> None:
    images = [moving(COUNT, seed=number, size=IMAGES.get(codec, (32, 48))) for number in range(2)]
    frames = [columns(image=m, task=[f"task {n}"] * COUNT) for n, m in enumerate(images)]
    write_dataset(location, dict(zip("ab", frames, strict=True)), codecs={"image": codec})


@pytest.mark.parametrize(
    ("place", "codecs"),
    [
        ("packed", (*IMAGES, "h264", "av1")),
        ("remote", ("png", "h264")),
        ("in place", ("raw", "png", "jpeg", "h264", "av1")),
    ],
)
def test_every_codec_and_location(tmp_path: Path, place: str, codecs: tuple[str, ...]) -> None:
    for codec in codecs:
        location: Path | str = tmp_path / codec
        if place == "in place":
            write_original(original := tmp_path / f"original {codec}", codec)
            index_source(open_source(original), location, workers=1)
        else:
            location = f"memory://resident-{codec}" if place == "remote" else location
            write_records(location, codec)
        pipe = SeqRecordPipe(location, clip_len=3)
        first, stats = digests(pipe), pipe.stats()
        assert stats["frames_decoded"] == 2 * COUNT, codec
        assert stats["features_redecoded"] == []
        for _ in range(2):
            assert sorted(digests(pipe)) == sorted(first)
            assert pipe.stats()["frames_decoded"] == pipe.stats()["bytes_read"] == 0


def test_no_load_is_planned_where_all_used_frames_are_in_memory(video: Path) -> None:
    """Although some frames are in no clip."""
    pipe, calls = SeqRecordPipe(video, clip_len=4, stride=9, batch_size=5), Counter[str]()
    for _ in pipe:
        pass

    def watch(frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            calls[frame.f_code.co_name] += 1

    threading.setprofile(watch)
    try:
        for _ in pipe:
            pass
    finally:
        threading.setprofile(None)
    assert calls["clips"]
    assert not calls["_needed"]


def test_a_run_has_rows_for_used_frames_alone(images: Path) -> None:
    """A loader is made with room for whole episodes; its run has as many rows as samples need."""
    planned = []
    for stride in (1, 8):
        pipe = SeqRecordPipe(images, clip_len=1, stride=stride, batch_size=2, memory_limit="1GiB")
        list(pipe)
        stats = pipe.stats()
        assert stats["features_resident"] == ["image", "id"]
        planned.append(stats["planned_bytes"])
    unused = FRAMES - sum(-(-length // 8) for length in LENGTHS.values())
    height, width = SIZES["images"]
    assert planned[0] - planned[1] == unused * (3 * height * width + 2 * 8)
