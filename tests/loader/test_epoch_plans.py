"""`order="clips"`: plans of epochs, through a pipe."""

from __future__ import annotations

import logging
import re
from collections import Counter
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    Budget,
    ClipError,
    Seconds,
    SeqRecordMapDataset,
    SeqRecordPipe,
)
from seqrecord.errors import MemoryLimitError
from tests.kit.clip_data import all_names, begun, digest, digests, minimum_memory, names, resumed
from tests.kit.datasets import columns, noise, write_dataset, written_once
from tests.kit.video_data import moving
from tests.loader.clip_model import GROUPS, cases, check_case, write_all
from tests.loader.resume_contract import check_resume

LENGTHS = (30, 11, 47, 7, 23, 60, 3, 41)
SIZE = (48, 64)
CODECS = {"video": "h264:gop=8", "encoded": "png", "raw": "raw"}
LIMIT = 1_400_000
"""Of batches and frames: frames do not stay in memory, and cursors and blocks are few."""


def write_images(folder: Path) -> None:
    """Images in each codec, poses in longer chunks, and a feature that some frames lack."""
    for name, codec in CODECS.items():
        episodes = {}
        for number, length in enumerate(LENGTHS):
            image = moving(length, seed=number, size=SIZE)
            gps = [None if i % 13 == 12 else np.array([number, i]) for i in range(length)]
            pose = noise(length, 6, dtype=np.float32, seed=number)
            episodes[f"set/{number}"] = columns(image=image, pose=pose, gps=gps)
        write_dataset(
            folder / name,
            episodes,
            fps=10,
            codecs={"image": codec, "pose": "raw", "gps": "raw"},
            chunk_frames=None if name == "video" else 6,
            features={"image": {"group": 0}, "pose": {"group": 1}, "gps": {"group": 2}},
        )


images = written_once(write_images)
records = written_once(write_all, GROUPS)


def make_pipe(path: Path, **options: Any) -> SeqRecordPipe:
    given = {"clip_len": 4, "batch_size": 4, "features": ["image", "pose"], "seed": 3}
    return SeqRecordPipe(path, **{**given, **options})


def by_number(path: Path, **options: Any) -> dict[tuple[str, int], dict[str, Any]]:
    """The clips that a map-style dataset has, by name."""
    given = {"clip_len": 4, "features": ["image", "pose"], "seed": 3, **options}
    dataset = SeqRecordMapDataset(path, **given)
    clips = dataset.__getitems__(list(range(len(dataset))))
    return {name: clip for clip in clips for name in names(clip)}


FAST = [("video", "windows"), ("encoded", "gaps"), ("raw", "apart")]
ARGUMENTS: dict[str, dict[str, Any]] = {
    "consecutive": {},
    "strided": {"stride": 3, "dilation": 2},
    "apart": {"stride": 9},
    "windows": {"windows": {"image": [-3, 0], "pose": range(6)}, "clip_len": None},
    "seconds": {"windows": {"image": Seconds([-0.2, 0.1])}, "pad": "edge", "clip_len": 2},
    "gaps": {"features": ["image", "gps"], "clip_len": 3},
}


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        pytest.param(
            kind,
            arguments,
            id=f"{kind}, {name}",
            marks=() if (kind, name) in FAST else pytest.mark.slow,
        )
        for kind in CODECS
        for name, arguments in ARGUMENTS.items()
    ],
)
def test_each_clip_comes_once_with_its_values(
    images: Path, kind: str, arguments: dict[str, Any]
) -> None:
    pipe = make_pipe(images / kind, memory_limit=LIMIT, **arguments)
    expected = by_number(images / kind, **arguments)
    orders = []
    for _ in range(2):
        batches = list(pipe)
        stats = pipe.stats()
        assert stats["peak_buffer_bytes"] <= stats["planned_bytes"] <= LIMIT
        assert not stats["features_resident"] or arguments == ARGUMENTS["apart"]  # few frames
        orders.append(all_names(batches))
        assert sorted(orders[-1]) == sorted(expected)
        for batch in batches:
            for place, name in enumerate(names(batch)):
                for feature, values in expected[name].items():
                    if isinstance(values, torch.Tensor):
                        assert torch.equal(batch[feature][place], values), (feature, name)
    assert orders[0] != orders[1] != sorted(orders[1])


@pytest.mark.slow
@given(st.data())
def test_any_arguments_deliver_the_clips_of_the_model(records: Path, data: Any) -> None:
    case = data.draw(st.booleans().flatmap(lambda rated: cases(rated=rated)))
    assume("rotate=True" not in repr(case.options.get("samples")))  # of which epochs differ
    case.options.update(order="clips", shuffle=True)
    if case.options["last_batch"] == "drop":
        case.options["last_batch"] = "keep"
    assume(case.clips)
    check_case(records, case)


def test_the_seed_decides_the_order(images: Path) -> None:
    orders = [
        all_names(make_pipe(images / "raw", memory_limit=LIMIT, seed=seed)) for seed in (3, 3, 4)
    ]
    assert orders[0] == orders[1] != orders[2]
    # Rows of a batch come from several episodes, neighbours from different ones.
    same = [one[0] == two[0] for one, two in zip(orders[0], orders[0][1:], strict=False)]
    assert np.mean(same) < 0.3


def ranks(path: Path, count: int, **options: Any) -> list[SeqRecordPipe]:
    return [make_pipe(path, rank=(rank, count), **options) for rank in range(count)]


@pytest.mark.parametrize("last_batch", ["repeat", "drop", "keep"])
@pytest.mark.parametrize("limit", [LIMIT, None], ids=["streamed", "in memory"])
def test_ranks_share_an_epoch(images: Path, last_batch: str, limit: int | None) -> None:
    options = {"memory_limit": limit, "last_batch": last_batch, "features": ["image"]}
    expected = Counter([*by_number(images / "encoded", features=["image"])])
    pipes = ranks(images / "encoded", 5, **options)
    for _ in range(2):
        batches = [list(pipe) for pipe in pipes]
        counts = [pipe.stats() for pipe in pipes]
        repeated = sum(count["duplicate_clips"] for count in counts)
        dropped = sum(count["clips_dropped"] for count in counts)
        delivered = Counter(name for of_rank in batches for name in all_names(of_rank))
        more, fewer = delivered - expected, expected - delivered
        assert (more.total(), fewer.total()) == (repeated, dropped)
        assert (repeated > 0, dropped > 0) == (last_batch == "repeat", last_batch == "drop")
        if last_batch != "keep":
            assert len({len(all_names(of_rank)) for of_rank in batches}) == 1
        assert [len(pipe) for pipe in pipes] == [len(of_rank) for of_rank in batches]


@pytest.mark.parametrize(
    ("count", "limit"),
    [
        (3, LIMIT),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((1, LIMIT), (1, None), (3, None))
        ),
    ],
)
def test_a_state_continues_exactly(images: Path, count: int, limit: int | None) -> None:
    make = partial(make_pipe, images / "encoded", memory_limit=limit, rank=(count - 1, count))
    check_resume(make, num_epochs=2, positions=lambda length: (2, length // 2, length - 1))
    expected = digests(make(), 2)[len(make()) :]
    pipe = make()
    pipe.set_epoch(1, batches=5)
    assert digests(pipe) == expected[5:]


def test_rows_are_those_of_batches(images: Path) -> None:
    pipe = make_pipe(images / "raw", memory_limit=LIMIT)
    pipe.set_epoch(2)
    for number, batch in enumerate(pipe):
        assert names(pipe.rows(2, number)) == names(batch)


def test_a_bound_of_cursors_is_no_setting_of_a_state(images: Path) -> None:
    bounds = seqrecord.EngineOptions(num_cursors=3, shuffle_buffer=12)
    pipe = make_pipe(images / "raw", memory_limit=LIMIT, engine=bounds)
    batches = begun(pipe, 2)
    state = pipe.state_dict()
    settings = state["sources"][0]["settings"]
    assert settings["num_cursors"] <= 3
    assert settings["num_cursors"] * settings["block_rows"] <= 12
    again = make_pipe(images / "raw", memory_limit=LIMIT, engine=bounds)
    assert digests(resumed(again, state)) == [digest(batch) for batch in batches]


def test_frames_in_memory_are_decoded_once(images: Path) -> None:
    """Later epochs are permutations of their rows."""
    pipe = make_pipe(images / "video", features=["image"])
    first = all_names(pipe)
    assert pipe.stats()["features_resident"] == ["image"]
    second = all_names(pipe)
    assert pipe.stats()["frames_decoded"] == pipe.stats()["video_frames_decoded"] == 0
    assert sorted(first) == sorted(second)
    assert pipe.stats()["num_interleaved"] == len(second)


@pytest.mark.parametrize("kind", ["frames that stay", "small frames"])
def test_a_state_of_frames_in_memory_needs_their_limit(images: Path, kind: str) -> None:
    """Its order would decode most frames again for each clip."""
    features = ["image"] if kind == "frames that stay" else ["pose"]
    make = partial(make_pipe, images / "encoded", features=features)
    pipe = make()
    pipe.set_epoch(1)
    batches = begun(pipe, 2)
    state, expected = pipe.state_dict(), digests(batches)
    small = make(memory_limit=minimum_memory(make))
    before = small.state_dict()
    with pytest.raises(MemoryLimitError) as caught:
        small.load_state_dict(state)
    assert small.state_dict() == before
    enough = int(str(caught.value.expected).split()[2])
    with pytest.raises(MemoryLimitError, match=str(enough)):
        resumed(make(memory_limit=enough - 1), state)
    pipe = resumed(make(memory_limit=enough), state)
    assert digests(pipe) == expected
    assert pipe.stats()["peak_buffer_bytes"] <= enough


@pytest.mark.parametrize("kind", ["encoded", "video"])
@pytest.mark.parametrize("is_saved_there", [True, False])
def test_a_state_continues_on_a_device(images: Path, kind: str, is_saved_there: bool) -> None:
    """Also if frames stay in memory only without one."""
    make = partial(make_pipe, images / kind, features=["image"])
    devices = ("cpu", None) if is_saved_there else (None, "cpu")
    saved, other = (make(device=device) for device in devices)
    saved.set_epoch(1)
    batches = begun(saved, 2)
    assert digests(resumed(other, saved.state_dict())) == digests(batches)


def test_rows_of_small_frames_are_permuted(images: Path) -> None:
    pipes = ranks(images / "raw", 3, features=["pose"], last_batch="keep")
    for _ in range(2):
        orders = [all_names(pipe) for pipe in pipes]
        clips = by_number(images / "raw", features=["pose"])
        assert sorted(name for order in orders for name in order) == sorted(clips)
        assert all(len({key for key, _ in order}) >= len(LENGTHS) - 2 for order in orders)


def test_copies_are_no_neighbours(images: Path) -> None:
    table = {"episode": [f"set/{i}" for i in range(6)], "repeat": [1, 3, 1, 2, 1, 1]}
    pipe = make_pipe(images / "raw", samples=table, memory_limit=LIMIT, last_batch="keep")
    clips = by_number(images / "raw")
    repeats = dict(zip(*table.values(), strict=True))
    expected = Counter({name: repeats[name[0]] for name in clips if name[0] in repeats})
    for _ in range(2):
        batches = list(pipe)
        assert Counter(all_names(batches)) == expected
        for batch in batches:
            for place, name in enumerate(names(batch)):
                assert torch.equal(batch["image"][place], clips[name]["image"])


def test_the_least_limit_suffices_and_is_named(
    images: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make = partial(make_pipe, images / "video")
    least = minimum_memory(make)
    with pytest.raises(MemoryLimitError, match=str(least)):
        make(memory_limit=least - 1)
    pipe = make(memory_limit=least)
    assert sorted(all_names(pipe)) == sorted(by_number(images / "video"))
    assert pipe.stats()["peak_buffer_bytes"] <= least
    assert (
        len(re.findall("from 1 place at a time .* memory_limit leaves no room", caplog.text)) == 1
    )


def test_one_warning_names_a_remedy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Long groups of pictures allow few cursors."""
    episodes = {f"{i:02}": columns(image=moving(40, seed=i, size=SIZE)) for i in range(24)}
    write_dataset(tmp_path / "r", episodes, codecs={"image": "h264:gop=40"})
    options = {"clip_len": 8, "batch_size": 16, "features": None, "memory_limit": 20_000_000}
    caplog.set_level(logging.INFO, "seqrecord")
    for pipe in ranks(tmp_path / "r", 8, **options)[:2]:
        caplog.clear()
        for _ in range(2):
            next(iter(pipe))
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        if pipe.options.rank == (0, 8):
            [warning] = warnings
            assert "shorter groups of pictures mix better (gop=), here of 40" in warning.message
        else:
            assert not warnings
    caplog.clear()
    next(iter(make_pipe(tmp_path / "r", **options)))
    assert "pictures" not in caplog.text


def test_one_warning_says_that_much_is_decoded_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each rank begins inside one of few groups of pictures."""
    episodes = {f"{i:02}": columns(image=moving(40, seed=i, size=SIZE)) for i in range(5)}
    write_dataset(tmp_path / "r", episodes, codecs={"image": "h264:gop=40"})
    options = {"clip_len": 2, "batch_size": 1, "features": None, "memory_limit": 20_000_000}
    caplog.set_level(logging.WARNING, "seqrecord")
    next(iter(ranks(tmp_path / "r", 4, **options)[0]))
    [warning] = caplog.records
    assert "of the frames are decoded twice, where clips of 4 shards begin" in warning.message


# ---- other arguments

TABLE = {"episode": ["set/0"] * 18, "frames": [[i, i + 1, i + 4] for i in range(18)]}
ANCHORS = {"episode": ["set/0"] * 20, "start": [*range(20)], "goal": [25] * 20}
OTHERS: dict[str, dict[str, Any]] = {
    "stored order": {"shuffle": False},
    "single clips": {"batch_size": None},
    "budget": {"batch_size": Budget(16, padded=False)},
    "costs": {
        "batch_size": Budget(40, "cost"),
        "memory_limit": 4 * LIMIT,
        "samples": {
            "episode": ["set/0"] * 20,
            "start": [*range(20)],
            "cost": [1 + 7 * (i % 3) for i in range(20)],
        },
    },
    "lists": {"clip_len": None, "samples": TABLE},
    "anchors": {
        "clip_len": None,
        "windows": {"image": [0, seqrecord.At("goal")], "pose": [0, seqrecord.At("goal")]},
        "samples": ANCHORS,
    },
}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", OTHERS)
def test_other_clips_come_once_on_all_ranks(images: Path, name: str, count: int) -> None:
    options = {"memory_limit": LIMIT, "last_batch": "keep", **OTHERS[name]}
    clips = Counter[tuple[str, int]]()
    values: dict[tuple[str, int], torch.Tensor] = {}
    for batch in make_pipe(images / "encoded", **options):
        batch = batch if options.get("batch_size", 1) is not None else _batch_of(batch)
        clips.update(names(batch))
        values |= dict(zip(names(batch), batch["image"], strict=True))
    for pipe in ranks(images / "encoded", count, **options):
        for batch in pipe:
            batch = batch if options.get("batch_size", 1) is not None else _batch_of(batch)
            for place, clip in enumerate(names(batch)):
                assert torch.equal(batch["image"][place], values[clip])
            clips.subtract(names(batch))
    assert not any(clips.values())


def _batch_of(clip: dict[str, Any]) -> dict[str, Any]:
    return {
        "episode": [clip["episode"]],
        "start": torch.tensor([clip["start"]]),
        "image": clip["image"][None],
    }


def test_the_stored_order_is_that_of_the_episodes(images: Path) -> None:
    found = all_names(make_pipe(images / "raw", shuffle=False, memory_limit=LIMIT))
    assert found == [*by_number(images / "raw")]


def test_a_drawn_length_has_its_frames(images: Path) -> None:
    pipe = make_pipe(images / "raw", clip_len=(2, 4), memory_limit=LIMIT)
    expected = by_number(images / "raw")
    lengths = set()
    for batch in pipe:
        lengths.add(batch["image"].shape[1])
        for place, name in enumerate(names(batch)):
            if name in expected:
                frames = expected[name]["image"][: batch["image"].shape[1]]
                assert torch.equal(batch["image"][place], frames)
    assert lengths == {2, 3, 4}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_share_an_epoch(images: Path) -> None:
    loader = DataLoader(
        make_pipe(images / "raw", last_batch="keep"), batch_size=None, num_workers=2
    )
    assert sorted(all_names(loader)) == sorted(by_number(images / "raw"))


@pytest.mark.parametrize("budget", [None, Budget(24, padded=False)])
@pytest.mark.parametrize("before", [1, 3])
def test_other_ranks_get_the_rest_of_an_epoch(images: Path, before: int, budget: Any) -> None:
    options = {"memory_limit": LIMIT, "last_batch": "keep"}
    options |= {"batch_size": budget} if budget else {}
    pipes = ranks(images / "raw", before, **options)
    found = [name for pipe in pipes for batch in islice(pipe, 2) for name in names(batch)]
    state = pipes[0].state_dict()
    for pipe in ranks(images / "raw", 2, **options):
        found += all_names(resumed(pipe, state))
    assert sorted(found) == sorted(by_number(images / "raw"))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("last_batch", ["repeat", "keep"])
def test_ranks_without_clips_repeat_one_or_have_none(
    images: Path, last_batch: str, shuffle: bool
) -> None:
    """Whether frames are small, stay in memory, or neither."""
    expected = [name for name in by_number(images / "raw") if name[0] == "set/3"]
    for options in ({"features": ["pose"]}, {}, {"memory_limit": LIMIT}):
        given = {"episodes": ["set/3"], "shuffle": shuffle, "last_batch": last_batch, **options}
        for kind in ("raw", "encoded"):
            pipes = [make_pipe(images / kind, rank=(rank, 9), **given) for rank in range(9)]
            for _ in range(2):
                clips = [all_names(pipe) for pipe in pipes]
                assert {name for of_rank in clips for name in of_rank} == {*expected}
                counts = {len(of_rank) for of_rank in clips}
                assert counts == ({1} if last_batch == "repeat" else {0, 1})


def test_orders_are_named() -> None:
    with pytest.raises(ClipError) as caught:
        seqrecord.LoaderOptions(clip_len=4, order="reversed")
    assert caught.value.expected == "'clips' or 'sequences'"


@pytest.mark.parametrize(
    "case", [{"device": "cpu"}, {"frame_transform": dict}, {"resize": (24, 32)}]
)
def test_other_ways_of_reading(images: Path, case: dict[str, Any]) -> None:
    pipe = make_pipe(images / "encoded", memory_limit=2 * LIMIT, **case)
    resize = {name: value for name, value in case.items() if name == "resize"}
    clips = by_number(images / "encoded", **resize)
    for batch in pipe:
        for place, name in enumerate(names(batch)):
            assert torch.equal(batch["image"][place], clips.pop(name)["image"])
    assert not clips
