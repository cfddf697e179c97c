"""Random choices of batches and clips: lengths, spans, sizes, dilations and directions.

Frames in combinations with other arguments, resuming and clips by number: `test_combinations`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.nodes import Loader
from torchdata.stateful_dataloader import StatefulDataLoader

import seqrecord
from seqrecord import (
    BatchResize,
    Budget,
    CenterCrop,
    ClipError,
    HorizontalFlip,
    Latest,
    RandomCrop,
    Resize,
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordMix,
    SeqRecordNode,
    SeqRecordPipe,
    SeqRecordWriter,
    StateError,
)
from seqrecord.loader.sampling.plan_settings import PlanSettings
from seqrecord.loader.sampling.runs import Shard
from seqrecord.loader.sampling.shard_batches import BatchDraws, ShardBatches
from seqrecord.samples import dilate, every, reverse, subset
from tests.kit.clip_data import (
    begun,
    digest,
    digests,
    expected_frame,
    names,
    possible_clips,
    resumed,
    write_numbered,
)
from tests.kit.datasets import written_once
from tests.loader.resume_contract import check_resume, check_stateful_loader

FEATURES = ["image", "flow", "id"]
VGGT: dict[str, Any] = {"clip_len": (2, 5), "batch_size": Budget(12), "features": FEATURES}
CUT3R: dict[str, Any] = {"clip_len": (2, 5), "batch_size": 4, "features": FEATURES}
SPAN = {"samples": [subset(of=7), dilate(1, 2), reverse(0.5)]}
SIZES = [(3, 4), (4, 4), (6, 3)]
RESIZED = {"clip_transform": [BatchResize(SIZES, weights=[2, 1, 1]), HorizontalFlip()]}
CASES = [
    VGGT,
    CUT3R,
    {**VGGT, **SPAN},
    {**VGGT, "last_batch": "drop", **RESIZED},
    {**CUT3R, "shuffle": False, "clip_len": 3, **RESIZED},
]


path = written_once(write_numbered, groups={"image": 0, "flow": 1, "id": 1, "note": 1})


def shape(batch: dict[str, Any]) -> tuple[int, ...]:
    """The clips of a batch, the frames of each, and their height and width."""
    return tuple(batch["image"].shape[:4])


def every_clip(case: dict[str, Any]) -> set[tuple[str, int]]:
    """All clips that are complete with the greatest length, or with a span of 7 or 14 frames."""
    if "samples" not in case:
        length = case["clip_len"]
        return set(possible_clips(FEATURES, length if isinstance(length, int) else length[1]))
    return {clip for dilation in (1, 2) for clip in possible_clips(FEATURES, 7, 1, dilation)}


def check(batch: dict[str, Any]) -> list[tuple[str, int]]:
    """Each clip has the frames that its columns name. Returns keys and starts."""
    clips, length, *size = shape(batch)
    resized = ["image"] if "crop" in batch else []
    assert tuple(size) in (SIZES if resized else [(6, 8)])
    dilations = batch.get("dilation", torch.ones(clips, dtype=torch.int64)).tolist()
    turned = batch.get("reversed", torch.zeros(clips)).tolist()
    for clip, (key, start) in enumerate(names(batch)):
        frames = [start + i * dilations[clip] for i in range(length)]
        if "frames" in batch:
            frames = batch["frames"][clip].tolist()[:: -1 if turned[clip] else 1]
            assert frames == sorted(set(frames))
            of_span = [(frame - start) / dilations[clip] for frame in frames]
            assert set(of_span) <= set(range(7))
        for i, frame in enumerate(frames[::-1] if turned[clip] else frames):
            whole = expected_frame(int(key[4:]), frame)
            for name in set(FEATURES) - {*resized}:
                assert np.array_equal(batch[name][clip, i].numpy(), whole[name])
    return names(batch)


@given(
    st.integers(1, 5), st.integers(0, 9), st.integers(1, 40), st.integers(0, 900), st.integers(0, 3)
)
def test_batches_by_brute_force(
    least: int, more: int, frames: int, clips: int, worker: int
) -> None:
    draws = BatchDraws(least, least + more, frames)
    shard = Shard(4 + worker, 12, 4)
    found = ShardBatches.of(PlanSettings(seed=3), draws, 2, 0, shard)
    drawn = found.frames(np.arange(clips + 2)).tolist()
    sizes = [max(1, frames // n) for n in drawn]
    assert set(drawn) <= set(range(least, least + more + 1))
    assert max(sizes) <= draws.most_clips
    assert all(a * b <= draws.most_frames(1) for a, b in zip(sizes, drawn, strict=True))
    places = [(batch, slot) for batch, size in enumerate(sizes) for slot in range(size)][:clips]
    batch, slot = found.find(np.arange(clips))
    assert list(zip(batch.tolist(), slot.tolist(), strict=True)) == places
    assert found.count(clips) == len({batch for batch, _ in places})
    for number in range(found.count(clips) + 1):
        assert found.first_clip(number) == sum(sizes[:number])
    ends = [0, *np.cumsum(sizes).tolist()]
    assert found.whole(np.array([clips])).tolist() == [max(end for end in ends if end <= clips)]


def test_steps_of_workers_draw_independently_and_ranks_equally() -> None:
    draws, settings = BatchDraws(2, 24, 48), PlanSettings(seed=1)
    each = {
        (rank, worker): ShardBatches.of(settings, draws, 0, 0, Shard(4 * rank + worker, 8, 4))
        for rank in range(2)
        for worker in range(4)
    }
    drawn = {key: one.frames(np.arange(500)).tolist() for key, one in each.items()}
    assert all(drawn[0, worker] == drawn[1, worker] for worker in range(4))
    alone = ShardBatches.of(settings, draws, 0, 0, Shard()).frames(np.arange(2000)).tolist()
    assert [drawn[0, step % 4][step // 4] for step in range(2000)] == alone
    assert alone[:12] == [11, 19, 20, 8, 20, 12, 9, 24, 17, 13, 6, 7]  # in every version
    counts = Counter(alone)
    assert set(counts) == set(range(2, 25))
    assert max(counts.values()) < 2 * min(counts.values())


@pytest.mark.parametrize("case", CASES)
def test_clips_have_their_frames(path: Path, case: dict[str, Any]) -> None:
    """Streamed, then in a full shuffle of frames that stay; on a device, too."""
    pipe, on_device = (SeqRecordPipe(path, **case, seed=2, device=one) for one in (None, "cpu"))
    every = every_clip(case)
    for _ in range(2):
        length, given, sizes = len(pipe), list[Any](), list[tuple[int, ...]]()
        for batch, other in zip(pipe, on_device, strict=True):
            given += check(batch)
            sizes.append(shape(batch))
            assert digest(batch) == digest(other)
        assert len(sizes) == length
        whole = [max(1, 12 // n) if case["batch_size"] != 4 else 4 for _, n, *_ in sizes]
        is_whole = [size[0] == most for size, most in zip(sizes, whole, strict=True)]
        assert all(is_whole[:-1])
        assert len(given) == len(set(given))
        assert set(given) <= every
        assert is_whole[-1] if "last_batch" in case else set(given) == every
        assert len({size[1:] for size in sizes}) > 1


@pytest.mark.parametrize(
    "more",
    [
        {"pad": "edge", "samples": subset(of=8)},
        {"windows": {"note": Latest(unknown="zeros")}, "samples": subset(of=6)},
        {"frame_transform": lambda frame: {"image": frame["image"] / 2.0}, "samples": subset(of=7)},
        {"ragged": "pad"},
        {"ragged": "nested"},
        {"samples": every(3, rotate=True)},
        {
            "samples": [
                {"episode": ["set/0", "set/3"], "start": [3, 4], "repeat": [2, 3.4]},
                subset(of=6),
            ]
        },
    ],
    ids=lambda more: next(iter(more)),
)
def test_other_arguments(path: Path, more: dict[str, Any]) -> None:
    """Every feature and column of a batch has the drawn number of frames."""
    options = {"clip_len": (2, 5), "batch_size": Budget(12), **more}
    found = []
    for batch in (batch for _ in range(2) for batch in SeqRecordPipe(path, **options)):
        clips, frames, *_ = shape(batch)
        for name, value in batch.items():
            if name == "note" and more.get("ragged") == "nested":
                assert value.size(0) == clips * frames
            elif name == "note" and more.get("ragged") != "pad":
                assert [len(one) for one in value] == [frames] * clips
            elif name not in ("episode", "start"):
                assert value.shape[:2] == (clips, frames)
        if "id" in batch and "frames" in batch:
            assert (batch["id"][..., 1] == batch["frames"]).all()
        if more.get("ragged") != "nested":
            found.append(digest(batch))
    if found:
        on_device = SeqRecordPipe(path, **options, device="cpu")
        assert found[: len(found) // 2] == digests(on_device)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_ranks_draw_equally_at_each_step(path: Path, workers: int) -> None:
    for case in ({**VGGT, **RESIZED}, {**CUT3R, **SPAN}):
        every: list[list[tuple[int, ...]]] = []
        given: list[tuple[str, int]] = []
        for rank in range(3):
            stream = SeqRecordIterableDataset(path, **case, rank=(rank, 3))
            loader = DataLoader(stream, batch_size=None, num_workers=workers)
            length, batches = len(loader), list(loader)
            assert length == len(batches)
            every.append([shape(batch) for batch in batches])
            given += [clip for batch in batches for clip in check(batch)]
        assert every[0] == every[1] == every[2]
        clips = every_clip(case)
        assert set(given) == clips
        assert len(given) <= len(clips) + 3 * max(1, workers)  # that even out


@pytest.mark.parametrize("case", [{**VGGT, **RESIZED}, {**CUT3R, **SPAN}])
def test_resume_at_every_batch(path: Path, case: dict[str, Any], thorough: bool) -> None:
    make = partial(SeqRecordPipe, path, **case, episodes="set/[03]")
    check_resume(make, num_epochs=2, positions=range if thorough else lambda n: [n // 3])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*deprecated:UserWarning")
def test_a_stateful_loader_resumes(path: Path) -> None:
    def make(**options: int) -> StatefulDataLoader[Any]:
        stream = SeqRecordIterableDataset(path, **VGGT)
        return StatefulDataLoader(stream, batch_size=None, num_workers=2, **options)

    check_stateful_loader(make)


def test_resume_with_workers(path: Path, thorough: bool) -> None:
    def loading(stream: SeqRecordIterableDataset) -> Any:
        return DataLoader(stream, batch_size=None, num_workers=2)

    stream = SeqRecordIterableDataset(path, **VGGT)
    stream.set_epoch(1)
    whole = digests(loading(stream))
    for taken in (1, len(whole) // 2, len(whole) - 1) if thorough else (len(whole) // 2,):
        stream.set_epoch(1, batches=taken)
        assert digests(loading(stream)) == whole[taken:]
        stream.set_epoch(1)
        begun(loading(stream), taken)
        state = stream.state_dict(batches=taken)
        again = resumed(SeqRecordIterableDataset(path, **VGGT), state)
        assert digests(loading(again)) == whole[taken:]


@pytest.mark.parametrize("case", [VGGT, pytest.param({**CUT3R, **SPAN}, marks=pytest.mark.slow)])
def test_other_ranks_and_workers_in_the_middle_of_an_epoch(path: Path, case: Any) -> None:
    """Every clip once, and equal draws of the ranks also in the rest."""
    given = of_changing_ranks(
        partial(SeqRecordIterableDataset, path, **case), [(2, 2, 3), (3, 0, 1), (1, 2, None)], check
    )
    clips = every_clip(case)
    assert set(given) == clips
    assert len(given) <= len(clips) + 2  # that even out the last segment


def of_changing_ranks(
    make: Callable[..., Any],
    stages: Sequence[tuple[int, int, int | None]],
    clips_of: Callable[[dict[str, Any]], list[Any]],
) -> list[Any]:
    """The clips of all ranks. A stage is a number of ranks, of workers, and of batches."""
    state, after, given = None, None, list[Any]()
    for ranks, workers, taken in stages:
        shapes = []
        for rank in range(ranks):
            data = make(rank=(rank, ranks))
            if state is not None:
                data.load_state_dict(state)
            loader = DataLoader(data, batch_size=None, num_workers=workers)
            batches = [batch for batch, _ in zip(loader, range(taken or 100), strict=False)]
            given += [clip for batch in batches for clip in clips_of(batch)]
            shapes.append([shape(batch) for batch in batches])
            after = data.state_dict(batches=len(batches)) if taken else None
        assert all(one == shapes[0] for one in shapes)
        state = after
    return given


@pytest.mark.parametrize("length", [(3, 3), [3, 3]])
def test_a_range_of_one_length_is_that_length(path: Path, length: Any) -> None:
    """Also where a drawn length is refused: windows, sequences, functions, single clips."""
    for more in (
        {"batch_size": 4},
        {},
        {"windows": {"id": [-1, 0]}},
        {"batch_size": 2, "order": "sequences"},
        {"batch_size": 4, "clip_transform": lambda clip, _: {"id": clip["id"] + 1}},
    ):
        pair = [
            SeqRecordPipe(path, features=["image", "id"], clip_len=one, **more)
            for one in (length, 3)
        ]
        assert pair[0].options.clip_len == 3
        assert pair[0].state_dict() == pair[1].state_dict()
        assert digests(pair[0], 2) == digests(pair[1], 2)
    mapped = SeqRecordMapDataset(path, features=["id"], clip_len=length)
    assert mapped[5]["id"].shape == (3, 2)
    pipe = SeqRecordPipe(path, clip_len=length, batch_size=Budget(13), last_batch="drop")
    assert {len(batch["start"]) for batch in pipe} == {4}


@pytest.mark.parametrize(
    ("width", "aspects", "multiple", "sizes", "weights"),
    [
        (56, (0.33, 1.0), 14, [14, 28, 42, 56], [0.68, 1, 1, 0]),
        (56, (0.25, 0.75), 14, [14, 28, 42], [1, 1, 0]),
        (10, (0.5, 0.5), 1, [5], [1]),
        (10, (0.55, 0.85), 1, [5, 6, 7, 8], [0.5, 1, 1, 0.5]),
        (8, (1.0, 2.0), 4, [8, 12, 16], [1, 1, 0]),
    ],
)
def test_heights_of_aspects(
    width: int,
    aspects: tuple[float, float],
    multiple: int,
    sizes: list[int],
    weights: list[float],
) -> None:
    """A height comes for the ratios that round down to it; one of no ratio never comes."""
    step = BatchResize.of_aspects(width, aspects, multiple=multiple)
    pairs = [(size, weight) for size, weight in zip(sizes, weights, strict=True) if weight]
    assert list(step.sizes) == [(size, width) for size, _ in pairs]
    total, end = sum(weights), 0.0
    for size, weight in pairs:
        for draw in (end + 1e-6, end + weight / total - 1e-6):
            assert step.size_of(None, None, draw) == (size, width)
        end += weight / total


def test_bench(path: Path) -> None:
    options: dict[str, Any] = {**VGGT, "shuffle": False}
    sizes = [shape(batch)[:2] for batch in SeqRecordPipe(path, **options)]
    report = seqrecord.bench(path, **options)
    assert report.num_clips == sum(clips for clips, _ in sizes)
    assert report.num_frames == sum(clips * frames for clips, frames in sizes)


def test_states_of_other_draws(path: Path) -> None:
    case = {**VGGT, "samples": subset(of=7)}
    pipe = SeqRecordPipe(path, **case)
    next(iter(pipe))
    state = pipe.state_dict()
    others = {"clip_len": (2, 4), "batch_size": Budget(10), "samples": subset(of=6)}
    for name, value in others.items():
        with pytest.raises(StateError, match=name.replace("batch_size", "frames_per_batch")):
            SeqRecordPipe(path, **{**case, name: value}).load_state_dict(state)


MIXES: list[dict[str, Any]] = [{"batch_size": Budget(12)}, {"batch_size": 4}]


def make_mix(path: Path, episodes: str | None = None, **options: Any) -> SeqRecordMix:
    """A mix of two sources; "one" has twice the clips of "two", in turns."""
    case: dict[str, Any] = {"clip_len": (2, 5), "features": FEATURES, **RESIZED}
    sources = {
        "one": SeqRecordIterableDataset(path, **case, samples=subset(of=7), episodes=episodes),
        "two": SeqRecordIterableDataset(path, **case, episodes="set/[13]"),
    }
    return SeqRecordMix(sources, weights={"one": 2, "two": 1}, **options)


def given_by(batch: dict[str, Any]) -> list[tuple[str, tuple[str, int]]]:
    """Source, key and start of each clip, which are checked."""
    found: list[tuple[str, tuple[str, int]]] = []
    for name in ("one", "two"):
        some = [i for i, source in enumerate(batch["dataset"]) if source == name]
        clips = {n: v[some] for n, v in batch.items() if isinstance(v, torch.Tensor)}
        clips["episode"] = [batch["episode"][i] for i in some]  # type: ignore[assignment]
        if name == "two":
            del clips["frames"]
        found += [(name, clip) for clip in check(clips)] if some else []
    return found


@pytest.mark.parametrize("options", MIXES)
def test_mixes(path: Path, options: dict[str, Any]) -> None:
    mix, on_device = (make_mix(path, **options, device=one) for one in (None, "cpu"))
    given: list[Any] = []
    for _ in range(2):
        length, shapes = len(mix), list[tuple[int, ...]]()
        for batch, other in zip(mix, on_device, strict=True):
            assert batch["frames"].shape == shape(batch)[:2]
            given += given_by(batch)
            shapes.append(shape(batch))
            assert digest(batch) == digest(other)
        assert len(shapes) == length
        for clips, frames, *_ in shapes[:-1]:
            assert clips == (4 if options["batch_size"] == 4 else 12 // frames)
        assert len({one[1] for one in shapes}) > 2
    counts = Counter(name for name, _ in given)
    assert abs(counts["one"] - 2 * counts["two"]) <= 2
    every = {("one", clip) for clip in every_clip({"clip_len": 7})}
    assert set([clip for clip in given if clip[0] == "one"][: len(every)]) == every


def test_draws_of_a_mix_depend_on_seed_and_epoch(path: Path) -> None:
    def lengths(seed: int) -> list[list[int]]:
        mix = make_mix(path, **{**MIXES[0], "seed": seed})
        return [[shape(batch)[1] for batch in mix] for _ in range(2)]

    (first, second), other = lengths(5), lengths(6)
    assert lengths(5) == [first, second]
    assert first != second
    assert first[: len(other[0])] != other[0][: len(first)]


@pytest.mark.parametrize("options", [MIXES[0], pytest.param(MIXES[1], marks=pytest.mark.slow)])
def test_mixes_resume(path: Path, options: dict[str, Any]) -> None:
    """In the middle of an epoch; see also tests/loader/test_mix_elastic.py."""
    make = partial(make_mix, path, **options)
    check_resume(partial(make, "set/[01]"), num_epochs=2, positions=lambda n: [n // 2])


def test_batches_reuse_buffers_of_the_largest_batch(path: Path) -> None:
    pipe = SeqRecordPipe(path, clip_len=(2, 24), batch_size=Budget(30), features=["id"])
    addresses = Counter(batch["id"].data_ptr() for _ in range(12) for batch in pipe)
    assert len(addresses) <= 10 < sum(addresses.values()) // 5


def test_frames_of_a_span_are_equally_likely(path: Path) -> None:
    options: dict[str, Any] = {"samples": subset(of=6), "features": ["flow", "id"]}
    dataset = SeqRecordMapDataset(path, clip_len=3, **options)
    counts: Counter[tuple[int, ...]] = Counter()
    for epoch in range(30):
        dataset.set_epoch(epoch)
        for clip in dataset.__getitems__(list(range(len(dataset)))):
            counts[tuple((clip["frames"] - clip["start"]).tolist())] += 1
            assert clip["id"][:, 1].tolist() == clip["frames"].tolist()
    assert len(counts) == 20
    assert max(counts.values()) < 2 * min(counts.values())


@pytest.mark.parametrize("device", [None, "cpu"])
def test_sizes_of_batches_by_single_resizes(tmp_path: Path, device: str | None) -> None:
    """Image, depth and intrinsics, as with a crop of the window and a `Resize` to the size."""
    rng, camera = np.random.default_rng(0), {"fx": 9.0, "fy": 8.0, "cx": 9.5, "cy": 6.0}
    with SeqRecordWriter(tmp_path / "r", codecs={"image": "raw", "depth": "raw"}) as writer:
        for key in "ab":
            with writer.episode(key, metadata={"camera": camera}) as episode:
                for _ in range(12):
                    image = rng.integers(0, 255, (13, 20, 3), np.uint8)
                    depth = rng.integers(0, 999, (13, 20), np.uint16)
                    episode.append({"image": image, "depth": depth})
    sizes = [(8, 20), (8, 8), (10, 6), (26, 40)]
    drawn: dict[str, Any] = {"clip_transform": BatchResize(sizes), "device": device}
    drawn["camera"] = True
    pipe = SeqRecordPipe(tmp_path / "r", clip_len=2, batch_size=3, **drawn)
    found: set[tuple[int, ...]] = set()
    for batch in (batch for _ in range(2) for batch in pipe):
        size = tuple(batch["image"].shape[2:4])
        (window,) = {tuple(crop) for crop in batch["crop"].tolist()}
        ratio = size[1] / size[0]
        assert window[2:] in ((13, round(13 * ratio)), (round(20 / ratio), 20))
        steps = [CenterCrop(window[2:]), Resize(size)]
        single = SeqRecordMapDataset(tmp_path / "r", clip_len=2, clip_transform=steps, camera=True)
        places = ["ab".index(key) * 11 + start for key, start in names(batch)]
        clips = seqrecord.collate(single.__getitems__(places))
        for name in ("image", "depth", "image_K", "crop"):
            torch.testing.assert_close(batch[name], clips[name], atol=1, rtol=0)
        found.add(size)
    assert found == set(sizes)


def test_weights_and_aspects() -> None:
    step = BatchResize.of_aspects(518, (0.33, 1.0), multiple=14)
    heights = [step.size_of(None, None, draw)[0] for draw in np.linspace(0, 1, 1001)[:-1]]
    wanted = [int(518 * aspect) // 14 * 14 for aspect in np.linspace(0.33, 1, 1001)[:-1]]
    assert np.mean(np.array(heights) == wanted) > 0.95
    assert set(heights) == set(wanted)
    counts = Counter(
        BatchResize(SIZES, weights=[2, 1, 1]).size_of(None, None, draw)
        for draw in (0.2, 0.4, 0.6, 0.8)
    )
    assert counts == {(3, 4): 2, (4, 4): 1, (6, 3): 1}
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: BatchResize([]), "sizes of BatchResize is not valid"),
        (lambda: BatchResize([(0, 3)]), "invalid size"),
        (lambda: BatchResize(SIZES, weights=[1, 0, 1]), "weights"),
        (lambda: BatchResize(SIZES, weights=[1]), "weights"),
        (lambda: BatchResize.of_aspects(14, (1.0, 0.5)), "aspects"),
        (lambda: BatchResize.of_aspects(14, (0.1, 1), multiple=14), "one multiple"),
    ]
    for make, match in cases:
        with pytest.raises(ClipError, match=match):
            make()


def test_errors(path: Path) -> None:
    two: dict[str, Any] = {"clip_len": (2, 5), "batch_size": 2}
    errors: list[tuple[dict[str, Any], str]] = [
        ({"clip_len": (5, 2)}, "clip_len"),
        ({"clip_len": (2, 3, 4)}, "clip_len"),
        ({"clip_len": (0, 3)}, "clip_len"),
        ({"clip_len": (2, 5)}, "single clips"),
        ({"clip_len": (2, 5), "batch_size": Budget(8, max_rows=2)}, "max_rows"),
        ({**two, "windows": {"id": [0]}}, "windows"),
        ({**two, "order": "sequences"}, "sequences"),
        (
            {"clip_len": 2, "samples": subset(of=4), "batch_size": 2, "order": "sequences"},
            "sequences",
        ),
        ({**two, "samples": subset(of=4)}, "subset"),
        ({"samples": [{"episode": ["set/0"], "frames": [[0, 1]]}, subset(of=4)]}, "subset"),
        ({**two, "clip_transform": lambda clip, _: clip}, "clips of one shape"),
        ({"clip_len": 2, **RESIZED}, "single clips"),
        ({"clip_len": 2, "batch_size": 2, "order": "sequences", **RESIZED}, "sequences"),
        (
            {**two, "clip_len": 2, "clip_transform": [BatchResize([3]), Resize((2, 2))]},
            "after Resize",
        ),
    ]
    for options, match in errors:
        with pytest.raises(ClipError, match=match):
            next(iter(SeqRecordPipe(path, **options)))
    for options in ({"clip_len": (2, 5)}, {"clip_len": 3, **RESIZED}):
        with pytest.raises(ClipError, match="map-style"):
            SeqRecordMapDataset(path, **options)
    drawn: dict[str, Any] = {"clip_len": (2, 5), "features": ["image"]}
    frames = {"batch_size": Budget(8)}
    mixes: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        (VGGT, {"batch_size": 4}, "batch_size"),
        ({"clip_len": 2}, frames, "source"),
        (drawn, {**frames, "stopping_strategy": 3}, "number of batches"),
        (drawn, {**frames, "single_source_batches": True}, "number of batches"),
        ({**drawn, **RESIZED}, {"batch_size": 4}, "size of a feature differently"),
        ({**drawn, "clip_len": 3}, {"batch_size": 4}, "clip_len differently"),
    ]
    for source, options, match in mixes:
        sources = [SeqRecordIterableDataset(path, **one) for one in (source, drawn)]
        with pytest.raises(ClipError, match=match):
            SeqRecordMix(dict(zip("ab", sources, strict=True)), **options)


def test_a_drawn_length_is_within_the_budget(path: Path) -> None:
    options: dict[str, Any] = {"features": ["id"], "clip_len": (2, 6)}
    for batch in SeqRecordPipe(path, batch_size=Budget(6), **options):
        assert batch["id"].shape[:2].numel() <= 6
    for too_large in ("error", "drop"):
        budget = Budget(5, too_large=too_large)
        with pytest.raises(ClipError, match=r"greatest clip_len costs more .*\(2, 6\)"):
            SeqRecordPipe(path, batch_size=budget, **options)
    source = SeqRecordPipe(path, **options)
    with pytest.raises(ClipError, match="greatest clip_len costs more"):
        SeqRecordMix({"a": source}, batch_size=Budget(5))
    alone = {
        tuple(b["id"].shape[:2])
        for b in SeqRecordPipe(path, batch_size=Budget(5, too_large="alone"), **options)
    }
    assert (1, 6) in alone
    assert all(clips == 1 or clips * length <= 5 for clips, length in alone)


# ---- draws per clip: dilate(1, 2, 5) and reverse(p)

DRAWN: dict[str, Any] = {"clip_len": 4, "samples": [dilate(1, 2, 5), reverse(0.5)]}
STEPS: dict[str, Any] = {**DRAWN, "features": FEATURES}


def fitting(
    features: Sequence[str] = FEATURES, dilations: Sequence[int] = (1, 2, 5)
) -> dict[Any, set[int]]:
    """The dilations with which each clip lacks nothing, of clips of 4."""
    found: dict[Any, set[int]] = {}
    for dilation in dilations:
        for clip in possible_clips(features, 4, 1, dilation):
            found.setdefault(clip, set()).add(dilation)
    return found


def check_clip(clip: dict[str, Any], features: Sequence[str] = FEATURES) -> tuple[int, bool]:
    """Check the frames of a clip. Returns its dilation, and whether it is reversed."""
    dilation, is_reversed = int(clip["dilation"]), bool(clip["reversed"])
    frames = [int(clip["start"]) + i * dilation for i in range(4)]
    for i, frame in enumerate(frames[::-1] if is_reversed else frames):
        whole = expected_frame(int(clip["episode"][4:]), frame)
        for name in features:
            assert np.array_equal(clip[name][i].numpy(), whole[name])
    return dilation, is_reversed


def drawn(items: Any, features: Sequence[str] = FEATURES) -> dict[Any, tuple[int, bool]]:
    """Dilation and direction of each clip, after a check of its frames."""
    found = {}
    for item in items:
        columns = [one if isinstance(one, (list, torch.Tensor)) else [one] for one in item.values()]
        singles = (
            [item]
            if isinstance(item["episode"], str)
            else [dict(zip(item, row, strict=True)) for row in zip(*columns, strict=True)]
        )
        for place, clip in zip(names(item), singles, strict=True):
            assert place not in found
            found[place] = check_clip(clip, features)
    return found


def test_every_clip_that_fits_with_any_dilation_is_yielded(path: Path) -> None:
    expected = fitting()
    for settings in ({"batch_size": 4}, {"batch_size": 3, "device": "cpu"}, {"shuffle": False}):
        pipe = SeqRecordPipe(path, **STEPS, **settings)
        found = drawn(pipe)
        assert pipe.num_clips == len(expected)
        assert found.keys() == expected.keys()
        assert all(dilation in expected[clip] for clip, (dilation, _) in found.items())
        assert {dilation for dilation, _ in found.values()} == {1, 2, 5}
        assert 0.25 < np.mean([is_reversed for _, is_reversed in found.values()]) < 0.75
        assert drawn(pipe) != found  # another epoch


@pytest.mark.slow
def test_each_dilation_that_fits_is_as_likely(path: Path) -> None:
    options: dict[str, Any] = {"clip_len": 4, "features": ["id"]}
    options["samples"] = [dilate(1, 2), reverse(0.5)]
    pipe = SeqRecordPipe(path, **options, batch_size=16)
    counts: dict[Any, list[int]] = {}
    for _ in range(60):
        for clip, (dilation, _) in drawn(pipe, ["id"]).items():
            counts.setdefault(clip, []).append(dilation)
    for clip, dilations in fitting(["id"], (1, 2)).items():
        share = np.mean(np.array(counts[clip]) == 1)
        assert share == 1 if dilations == {1} else 0.2 < share < 0.8


def test_draws_depend_on_seed_epoch_and_clip_alone(path: Path) -> None:
    more: dict[str, Any] = {**STEPS, "seed": 3}
    first = drawn(SeqRecordPipe(path, **more, batch_size=4))
    assert first == drawn(SeqRecordPipe(path, **more, shuffle=False))
    some = drawn(SeqRecordPipe(path, **more, batch_size=5, episodes="set/[13]"))
    assert some.keys() == {clip for clip in first if clip[0] in ("set/1", "set/3")}
    assert first != drawn(SeqRecordPipe(path, **{**more, "seed": 4}, batch_size=4))
    assert first == drawn(Loader(SeqRecordNode(path, **more, batch_size=4)))
    stream = SeqRecordIterableDataset(path, **more, batch_size=3, last_batch="keep")
    assert first == drawn(DataLoader(stream, batch_size=None, num_workers=2))

    dataset = SeqRecordMapDataset(path, **more)  # by number, and the epoch that is set
    numbers = list(range(len(dataset)))
    assert drawn(dataset.__getitems__(numbers)) == first
    dataset.set_epoch(1)
    assert drawn(dataset.__getitems__(numbers)) != first
    assert seqrecord.collate(dataset.__getitems__([0, 1]))["dilation"].dtype == torch.int64


def test_chosen_clips_and_phases(path: Path) -> None:
    expected = fitting()
    listed = [("set/0", 19), ("set/3", 17), ("set/3", 3)]
    table = {"episode": [key for key, _ in listed], "start": [start for _, start in listed]}
    pipe = SeqRecordPipe(path, **{**STEPS, "samples": [table, *DRAWN["samples"]]}, batch_size=2)
    assert drawn(pipe).keys() == set(listed[1:])  # frame 22 of set/0 lacks flow, whatever is drawn
    assert expected["set/3", 17] == {2, 5}  # not 1, for frame 20 lacks flow
    turning = {**STEPS, "samples": [every(3, rotate=True), *DRAWN["samples"]]}
    turns = SeqRecordPipe(path, **turning, batch_size=3)
    assert {clip for _ in range(3) for clip in drawn(turns)} == expected.keys()


def test_crops_and_functions_get_the_frames_that_are_drawn(path: Path) -> None:
    for device in (None, "cpu"):
        for clip in SeqRecordPipe(path, **STEPS, clip_transform=RandomCrop((3, 4)), device=device):
            top, left = clip["crop"].tolist()[:2]
            images = [expected_frame(*frame)["image"] for frame in clip["id"].tolist()]
            window = np.stack(images)[:, top : top + 3, left : left + 4]
            np.testing.assert_array_equal(clip["image"], window)

    def numbers(clip: dict[str, Any], _: np.random.Generator) -> Any:
        return {**clip, "frame": torch.tensor(clip["id"][:, 1])}  # no negative strides

    for clip in SeqRecordPipe(path, **STEPS, clip_transform=numbers):
        dilation, is_reversed = check_clip(clip)
        assert (
            np.diff(clip["frame"].numpy()).tolist() == [-dilation if is_reversed else dilation] * 3
        )

    def double(frame: dict[str, Any]) -> dict[str, Any]:
        return {"id": frame["id"], "twice": frame["flow"] * 2}

    pipe = SeqRecordPipe(path, **DRAWN, frame_transform=double, batch_size=3)
    assert drawn(pipe, ["id"]).keys() == fitting(["id", "flow", "image", "note"]).keys()


def test_batches_have_columns_of_random_choices_only(path: Path) -> None:
    def first(**options: Any) -> dict[str, Any]:
        batch: dict[str, Any] = next(iter(SeqRecordPipe(path, **options, clip_len=4, batch_size=2)))
        return batch

    batch = first(dilation=2, samples=reverse(np.int64(1)))
    assert "dilation" not in batch
    assert batch["reversed"].tolist() == [True, True]
    assert (np.diff(batch["id"][..., 1].numpy(), axis=1) == -2).all()
    assert "reversed" not in first(samples=dilate(2, 1))
    # No clip is as long as the others would be.
    assert first(samples=dilate(1, 50))["dilation"].tolist() == [1, 1]


def test_invalid_arguments_are_refused(path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"dilation": (1, 2)}, "dilation is not an integer"),
        ({"samples": dilate(1, 1 << 31)}, "out of range"),
        ({"samples": dilate(1, 2), "dilation": 2}, "dilation and dilate"),
        ({"samples": [dilate(1), dilate(2)]}, "twice"),
        ({"samples": dilate(30, 40)}, "no clip has all of its frames"),
        ({"samples": dilate(1, 2), "windows": {"id": [0]}}, "are for clips of clip_len frames"),
        ({"samples": reverse(0.5), "windows": {"id": [0]}}, "are for clips of clip_len frames"),
        ({"samples": reverse(0.5), "order": "sequences", "batch_size": 2}, "takes neither dilate"),
        ({"samples": lambda samples, *more: reverse(0.5)(samples, *more)}, "adds reverse, which"),
    ]
    for settings, message in cases:
        with pytest.raises(ClipError, match=message):
            SeqRecordPipe(path, clip_len=4, **settings)

    def rename(frame: dict[str, Any]) -> dict[str, Any]:
        return {"dilation": frame["id"]}

    named: dict[str, Any] = {"clip_len": 4, "frame_transform": rename}
    assert "dilation" in next(iter(SeqRecordPipe(path, **named)))
    with pytest.raises(ClipError, match="name of a batch's extra column"):
        SeqRecordPipe(path, **named, samples=dilate(1, 2))


@pytest.mark.parametrize("batch_size", [4, Budget(12)], ids=str)
def test_a_range_of_one_length_draws_nothing(path: Path, batch_size: Any) -> None:
    options: dict[str, Any] = {"batch_size": batch_size, "features": FEATURES, "seed": 2}
    drawn, fixed = (SeqRecordPipe(path, clip_len=n, **options) for n in ((3, 3), 3))
    assert digests(drawn, epochs=2) == digests(fixed, epochs=2)
