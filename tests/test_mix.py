"""Mixes: shares, order, epochs of sources, ranks, shapes, ends, errors."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from seqrecord import (
    CenterCrop,
    ClipError,
    EngineOptions,
    Latest,
    Seconds,
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordMix,
    SeqRecordPipe,
    SeqRecordWriter,
    StateError,
)
from seqrecord.errors import MemoryLimitError
from seqrecord.sampling.mix_memory import divide_memory
from tests.clip_data import begun, digest, digests, least_memory, leaves_nothing, resumed
from tests.mix_data import frame_of, write_source
from tests.resume_contract import check_resume, check_stateful_loader
from tests.side_streams import STREAMS, device_of, on_host

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]

LENGTHS = {"a": (23, 9, 40), "b": (12, 15), "c": (7,)}  # 66, 23 and 5 clips of 3 frames
CLIPS = {"a": 66, "b": 23, "c": 5}
EXTRA = {"b": ("pose",)}
WEIGHTS = {"a": 3, "b": 2, "c": 1}
SHARES = {name: Fraction(weight, 6) for name, weight in WEIGHTS.items()}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mix")
    for number, (name, lengths) in enumerate(LENGTHS.items()):
        write_source(folder / name, number, lengths, extra=EXTRA.get(name, ()))
    write_source(folder / "tall", 3, (20, 6), side=9)
    write_source(folder / "talking", 4, (20, 6), texts=True)
    return folder


def streams(root: Path, names: str = "abc", **options: Any) -> dict[str, SeqRecordIterableDataset]:
    return {
        name: SeqRecordIterableDataset(root / name, **{"clip_len": 3, **options}) for name in names
    }


def mixed(root: Path, **options: Any) -> SeqRecordMix:
    settings = {"weights": WEIGHTS, "batch_size": 7, "seed": 5, **options}
    return SeqRecordMix(streams(root), **settings)


def check_batch(batch: dict[str, Any], clip_len: int = 3) -> list[tuple[str, str, int]]:
    """That the batch is what was stored; its clips."""
    clips = list(zip(batch["dataset"], batch["episode"], batch["start"].tolist(), strict=True))
    for i, (name, key, start) in enumerate(clips):
        source, episode = list(LENGTHS).index(name), int(key.removeprefix("e/"))
        for t in range(clip_len):
            stored = frame_of(source, episode, start + t, EXTRA.get(name, ()))
            for feature in batch.keys() & stored.keys():
                assert (batch[feature][i, t].numpy() == stored[feature]).all()
        if "pose" in batch and "pose_is_missing" in batch:
            assert bool(batch["pose_is_missing"][i]) == (name != "b")
            assert name == "b" or not batch["pose"][i].any()
    return clips


def run(mix: SeqRecordMix, num_epochs: int = 1) -> Iterator[tuple[str, str, int]]:
    for _ in range(num_epochs):
        for batch in mix:
            yield from check_batch(batch)


def check_shares(names: list[str], shares: dict[str, Fraction], unit: int = 1) -> None:
    """That every prefix has its shares, to less than one clip, or `unit` clips."""
    count: Counter[str] = Counter()
    for number, name in enumerate(names, 1):
        count[name] += 1
        if number % unit == 0:
            off = [abs(count[source] - share * number) for source, share in shares.items()]
            assert max(off) < unit, number


def check_source_epochs(clips: list[tuple[str, int]], num_clips: int) -> None:
    """That clips of one source, in one shard, are epochs that each have all clips once."""
    for begin in range(0, len(clips), num_clips):
        epoch = clips[begin : begin + num_clips]
        assert len(set(epoch)) == len(epoch)


@pytest.mark.parametrize("stopping_strategy", ["first_exhausted", "all_exhausted", 11])
def test_shares_epochs_and_ends(root: Path, stopping_strategy: Any) -> None:
    mix = mixed(root, stopping_strategy=stopping_strategy)
    num_batches = {"first_exhausted": 4, "all_exhausted": 19, 11: 11}[
        stopping_strategy
    ]  # 5 x 6 // 7, -(-66 x 2 // 7)
    assert len(mix) == num_batches
    clips = list(run(mix, 3))
    assert len(clips) == 3 * 7 * num_batches

    check_shares([name for name, _, _ in clips], SHARES)
    for name, count in CLIPS.items():
        check_source_epochs([(k, s) for n, k, s in clips if n == name], count)
    if stopping_strategy == "all_exhausted":
        first = set(clips[: 7 * num_batches])
        assert len(first) == sum(CLIPS.values())
    # Source a's second epoch is in another order than its first.
    own = [clip for clip in clips if clip[0] == "c"]
    assert own[:5] != own[5:10]
    assert sorted(own[:5]) == sorted(own[5:10])


def test_the_order_is_a_function_of_the_seed(root: Path) -> None:
    order = list(run(mixed(root), 2))
    less: dict[str, Any] = {"engine": EngineOptions(num_threads=1), "memory_limit": "64MiB"}
    assert list(run(mixed(root, **less), 2)) == order
    assert list(run(mixed(root, seed=6), 2)) != order
    again = mixed(root)
    again.set_epoch(1)
    assert list(run(again)) == order[len(order) // 2 :]


def test_ranks_give_equally_many_and_all(root: Path) -> None:
    mixes = [
        mixed(root, stopping_strategy="all_exhausted", rank=rank, world_size=4) for rank in range(4)
    ]
    assert {len(mix) for mix in mixes} == {5}  # a has 17 clips on each rank: -(-17 x 2 // 7)
    by_rank = [list(run(mix, 2)) for mix in mixes]
    names = [[name for name, _, _ in clips] for clips in by_rank]
    assert names[0] == names[1] == names[2] == names[3]
    check_shares(names[0], SHARES)
    for name, count in CLIPS.items():
        length = -(-count // 4)
        for clips in by_rank:
            check_source_epochs([(k, s) for n, k, s in clips if n == name], length)
        # One epoch of the source on all ranks: every clip, and of 4 x length as few twice.
        epoch = [clip for clips in by_rank for clip in [c for c in clips if c[0] == name][:length]]
        assert len(epoch) == 4 * length
        assert len(set(epoch)) == count


def test_a_source_smaller_than_the_ranks_is_repeated(root: Path) -> None:
    mixes = [mixed(root, stopping_strategy=3, rank=rank, world_size=9) for rank in range(9)]
    by_rank = [[clip for clip in run(mix) if clip[0] == "c"] for mix in mixes]
    assert all(by_rank)
    assert {clips[0] for clips in by_rank} == {("c", "e/0", start) for start in range(5)}


@pytest.mark.parametrize(
    "options", [{}, {"stopping_strategy": "all_exhausted"}, {"single_source_batches": True}]
)
def test_resume(root: Path, options: dict[str, Any]) -> None:
    def make() -> Any:
        return mixed(root, **options)

    check_resume(make, num_epochs=2, positions=lambda count: (1, count // 2))
    mix = make()
    next(iter(mix))
    state = mix.state_dict()
    assert json.loads(json.dumps(state)) == state
    assert (state["epoch"], state["batch"], len(state["sources"])) == (0, 1, 3)


def test_resume_uses_the_settings_of_the_state(root: Path) -> None:
    mix = mixed(root, memory_limit="64MiB", stopping_strategy=20)
    iterator = begun(mix, 4)
    state = mix.state_dict()
    rest = digests(iterator)
    small = resumed(mixed(root, memory_limit="1GiB", stopping_strategy=20), state)
    assert digests(small) == rest


def test_states_of_other_mixes(root: Path) -> None:
    mix = mixed(root)
    next(iter(mix))
    state = mix.state_dict()
    others: dict[str, dict[str, Any]] = {
        "shares": {"weights": {"a": 3, "b": 2, "c": 2}},
        "seed": {"seed": 1},
        "batch_size": {"batch_size": 6},
        "stopping_strategy": {"stopping_strategy": "all_exhausted"},
        "features": {"features": "intersection"},
    }
    for named, options in others.items():
        with pytest.raises(StateError, match=f"another mix: .*{named}"):
            mixed(root, **options).load_state_dict(state)
    with pytest.raises(StateError, match="another kind of loader"):
        mix.load_state_dict(SeqRecordIterableDataset(root / "a", clip_len=3).state_dict())
    with pytest.raises(StateError, match="another kind of loader"):
        SeqRecordIterableDataset(root / "a", clip_len=3).load_state_dict(state)
    with pytest.raises(StateError, match="beyond the end"):
        mix.load_state_dict({**state, "batch": 99})
    with pytest.raises(StateError, match="out of range"):
        mix.load_state_dict({**state, "epoch": -1})
    with pytest.raises(StateError, match="another mix: sources"):
        mix.load_state_dict({**state, "sources": state["sources"][:2]})
    wrong = json.loads(json.dumps(state))
    wrong["sources"][2]["episodes"]["digest"] = "0"
    with pytest.raises(StateError, match="other episodes"):
        mix.load_state_dict(wrong)
    assert len(list(mix)) == 4  # the next epoch: nothing was loaded


def test_union_and_intersection(root: Path) -> None:
    (union, *_) = mixed(root)
    assert union["pose"].shape == (7, 3, 3)
    assert union["pose_is_missing"].dtype == torch.bool
    (common, *_) = mixed(root, features="intersection")
    assert "pose" not in common
    assert "pose_is_missing" not in common
    clips = check_batch(union)
    assert check_batch(common) == clips
    same = streams(root, "ac")
    assert "pose" not in next(iter(SeqRecordMix(same, batch_size=2)))
    sources = streams(root, "a", features=["image"]) | streams(root, "b", features=["pose"])
    with pytest.raises(ClipError, match="no feature is in all sources"):
        SeqRecordMix(sources, batch_size=2, features="intersection")


def test_whole_batches_alternate_where_shapes_disagree(root: Path) -> None:
    sources = {name: SeqRecordIterableDataset(root / name, clip_len=3) for name in ("a", "tall")}
    settings: dict[str, Any] = {
        "weights": {"a": 2, "tall": 1},
        "batch_size": 4,
        "stopping_strategy": 12,
    }
    mix = SeqRecordMix(sources, **settings)
    assert mix.single_source_batches
    names = []
    for batch in mix:
        (name,) = set(batch["dataset"])
        assert batch["image"].shape == (4, 3, 6 if name == "a" else 9, 8, 3)
        where = batch["where"][:, 0, 0]
        assert (where == (0 if name == "a" else 3)).all()
        names += batch["dataset"]
    check_shares(names, {"a": Fraction(2, 3), "tall": Fraction(1, 3)}, unit=4)
    with pytest.raises(ClipError, match=r"disagree.*image.*uint8 \[3, 6, 8, 3\].*\[3, 9, 8, 3\]"):
        SeqRecordMix(sources, **settings, single_source_batches=False)
    only = streams(root, "a", features=["where"]) | {
        "tall": SeqRecordIterableDataset(root / "tall", clip_len=3, features=["where"])
    }
    assert not SeqRecordMix(only, **settings).single_source_batches


def test_squeezed(root: Path) -> None:
    windows: dict[str, Any] = {"clip_len": None, "windows": {"image": [0, 1]}, "squeeze_time": True}
    sources = streams(root, "ab", **windows)
    sources |= {"talking": SeqRecordIterableDataset(root / "talking", **windows)}
    mix = SeqRecordMix(sources, batch_size=6, stopping_strategy=5)
    assert not mix.single_source_batches
    for batch in mix:
        assert (batch["image"].shape[1], batch["where"].shape) == (2, (6, 3))
        assert batch["pose_is_missing"].tolist() == [name != "b" for name in batch["dataset"]]
        for name, text in zip(batch["dataset"], batch["say"], strict=True):
            assert isinstance(text, str) if name == "talking" else text is None
    other = {
        **sources,
        "b": SeqRecordIterableDataset(root / "b", **{**windows, "squeeze_time": False}),
    }
    with pytest.raises(ClipError, match=r"disagree.*where.*a: \w+ \[3\]; b: \w+ \[1, 3\]"):
        SeqRecordMix(other, batch_size=6, single_source_batches=False)
    for batch in SeqRecordMix(other, batch_size=6, stopping_strategy=3):
        [name] = set(batch["dataset"])
        assert batch["where"].shape == ((6, 1, 3) if name == "b" else (6, 3))


@pytest.mark.parametrize("device", [None, "cpu"])
def test_texts_and_metadata(root: Path, device: str | None) -> None:
    sources = streams(root, "a", metadata=["task"]) | {
        "talking": SeqRecordIterableDataset(root / "talking", clip_len=3),
    }
    mix = SeqRecordMix(sources, batch_size=6, stopping_strategy=5, device=device)
    assert not mix.single_source_batches
    for batch in mix:
        assert batch["say_is_missing"].tolist() == [name == "a" for name in batch["dataset"]]
        clips = zip(batch["dataset"], batch["episode"], batch["start"].tolist(), strict=True)
        for i, (name, key, start) in enumerate(clips):
            episode = int(key.removeprefix("e/"))
            assert batch["where"][i, :, 2].tolist() == [start, start + 1, start + 2]
            if name == "a":
                assert batch["say"][i] is None
                assert batch["task"][i] == f"task {episode}"
            else:
                assert batch["say"][i] == [f"4 {episode} {start + t}" for t in range(3)]
                assert batch["task"][i] is None


def of_where(name: str) -> dict[str, Any]:
    """Options that give `where` another name."""
    return {"frame_transform": lambda frame: {name: frame["where"]}}


@pytest.mark.parametrize(
    ("of_a", "of_b", "message"),
    [
        (of_where("dataset"), {}, r"two entries of a mix.*feature: dataset"),
        ({"metadata": ["task"]}, of_where("task"), r"two entries of a mix.*feature: task.*'b'"),
        ({"clip_transform": CenterCrop((4, 4))}, of_where("crop"), "two entries.*feature: crop"),
    ],
)
def test_names_that_a_mix_gives(
    root: Path, of_a: dict[str, Any], of_b: dict[str, Any], message: str
) -> None:
    with pytest.raises(ClipError, match=message):
        SeqRecordMix(streams(root, "a", **of_a) | streams(root, "b", **of_b), batch_size=2)


def test_every_batch_has_the_columns_of_all_sources(root: Path) -> None:
    """Also one without a clip of the source that tells something."""
    sources = (
        streams(root, "a", clip_transform=CenterCrop((6, 8)))
        | streams(root, "b", dilation=(1, 2), reverse=0.5, features=["image", "where"])
        | streams(root, "c", pad="edge", metadata=["task"])
    )
    mix = SeqRecordMix(sources, weights={"a": 1, "b": 1, "c": 5}, batch_size=2, stopping_strategy=9)
    assert not mix.single_source_batches
    lone = 0
    for batch in mix:
        assert {"crop", "dilation", "reversed", "image_is_pad", "where_is_pad", "task"} < set(batch)
        if set(batch["dataset"]) == {"c"}:
            lone += 1
            assert batch["crop"].tolist() == [[0] * 4] * 2
            assert batch["dilation"].tolist() == [1] * 2
    assert lone


def test_an_intersection_leaves_out_what_is_said_of_other_features(root: Path) -> None:
    """Windows of features that are not read say nothing of which clips there are."""
    windows = {"image": [0, 1], "pose": Latest(range(9), max_age=3)}
    more: dict[str, Any] = {"windows": windows, "pad": "edge"}
    sources = streams(root, "b", **more) | streams(root, "c", windows={"image": [0, 1]}, pad="edge")
    mix = SeqRecordMix(sources, batch_size=4, features="intersection")
    batch = next(iter(mix))
    assert "pose" not in batch
    assert batch["image"].shape[:2] == (4, 2)
    assert batch["image_is_pad"].shape == (4, 2)
    only = {"b": SeqRecordIterableDataset(root / "b", windows={"pose": range(9)}, pad="edge")}
    crop = SeqRecordIterableDataset(root / "a", clip_len=1, clip_transform=CenterCrop((4, 4)))
    others = streams(root, "c", clip_len=1, features=["where"])
    batch = next(iter(SeqRecordMix({"a": crop, **others}, batch_size=4, features="intersection")))
    assert set(batch) == {"where", "dataset", "episode", "start"}
    mix = SeqRecordMix(only | streams(root, "c", clip_len=1), batch_size=4, features="intersection")
    assert set(next(iter(mix))) == {"image", "where", "dataset", "episode", "start"}


@pytest.mark.parametrize("kind", STREAMS)
def test_on_a_device(root: Path, kind: str) -> None:
    with device_of(kind) as device:
        assert digests(map(on_host, mixed(root, device=device))) == digests(mixed(root))


def test_the_device_is_that_of_the_thread_that_begins(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In threads of the sources another GPU may be the current one."""
    asked: list[threading.Thread] = []

    def current() -> int:
        asked.append(threading.current_thread())
        raise InterruptedError  # there is none here that could go on

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", current)
    with pytest.raises(InterruptedError):
        list(mixed(root, device="cuda"))
    assert asked == [threading.current_thread()]


def test_crops_of_one_source(root: Path) -> None:
    sources = streams(root, "ab", clip_transform=CenterCrop((4, 4)))
    for batch in SeqRecordMix(sources, batch_size=5, stopping_strategy=4):
        assert batch["image"].shape == (5, 3, 4, 4, 3)
        assert batch["crop"].tolist() == [[1, 2, 4, 4]] * 5


def test_dilations_of_one_source(root: Path) -> None:
    """A source that draws none says its own."""
    sources = {
        "a": SeqRecordIterableDataset(root / "a", clip_len=3, dilation=(1, 2)),
        "b": SeqRecordIterableDataset(root / "b", clip_len=3, dilation=3),
        "c": SeqRecordIterableDataset(root / "c", clip_len=3),
    }
    seen = set()
    for batch in SeqRecordMix(sources, batch_size=12):
        assert batch["dilation"].dtype == torch.int64
        for name, dilation, where in zip(
            batch["dataset"], batch["dilation"].tolist(), batch["where"], strict=True
        ):
            assert where[:, 2].diff().tolist() == [dilation] * 2
            seen.add((name, dilation))
    assert seen == {("a", 1), ("a", 2), ("b", 3), ("c", 1)}


def test_windows_of_features(root: Path) -> None:
    """Each feature has frames of its own, as many in all sources; masks come with each."""
    windows = {"image": [-1, 0], "where": range(4)}
    sources = {
        name: SeqRecordIterableDataset(
            root / name, windows=windows, pad="edge", features=["image", "where"]
        )
        for name in "ac"
    }
    mix = SeqRecordMix(sources, batch_size=6, stopping_strategy=12)
    assert not mix.single_source_batches
    for batch in mix:
        assert batch["image"].shape[:2] == (6, 2)
        for i, name in enumerate(batch["dataset"]):
            length = LENGTHS[name][int(batch["episode"][i].removeprefix("e/"))]
            frames = int(batch["start"][i]) + np.arange(4)
            assert batch["where"][i, :, 2].tolist() == frames.clip(0, length - 1).tolist()
            assert batch["where_is_pad"][i].tolist() == (frames >= length).tolist()
    other = SeqRecordIterableDataset(
        root / "b", windows={"image": [0], "where": range(4)}, pad="edge"
    )
    assert SeqRecordMix({**sources, "b": other}, batch_size=6).single_source_batches


def test_it_ends_on_every_way_out(root: Path) -> None:
    with leaves_nothing():
        mix = mixed(root, stopping_strategy=50)
        iterator = begun(mix)
        other = iter(mix)  # ends the first one
        next(other)
        with pytest.raises(ClipError, match="another one has begun"):
            next(iterator)
        del iterator, other, mix
    with leaves_nothing():
        for batch in mixed(root, stopping_strategy=50):
            del batch
            break


def test_an_error_in_one_source_ends_the_mix(root: Path) -> None:
    def fail(frame: dict[str, Any]) -> dict[str, Any]:
        if frame["where"][1] == 1:
            raise RuntimeError("no")
        return frame

    with leaves_nothing():
        sources = streams(root, "a", frame_transform=fail) | streams(root, "b")
        mix = SeqRecordMix(sources, batch_size=4, stopping_strategy="all_exhausted")
        with pytest.raises(RuntimeError, match="no"):
            list(mix)
        del sources, mix


def test_stats(root: Path) -> None:
    mix = mixed(root, stopping_strategy="all_exhausted", rank=0, world_size=4)
    num_clips = len(list(run(mix)))
    stats = mix.stats()
    assert stats["clips"] == num_clips
    assert stats["batches"] == len(mix)
    assert set(stats["sources"]) == set("abc")
    for name in ("bytes_read", "frames_decoded", "loads", "peak_buffer_bytes", "duplicate_clips"):
        assert stats[name] == sum(source[name] for source in stats["sources"].values())
    assert stats["duplicate_clips"] > 0
    assert sum(source["clips"] for source in stats["sources"].values()) >= num_clips
    assert stats["bottleneck"].startswith(("source ", "the consumer"))
    assert "'b' 0.3333" in repr(mix)
    stream = SeqRecordIterableDataset(root / "a", clip_len=3)
    list(stream)
    assert stream.stats().keys() <= stats.keys() & stats["sources"]["a"].keys()


def test_stats_count_times_without_a_frame_of_one_iteration(tmp_path: Path) -> None:
    features = {"time": {"kind": "timestamp", "unit": "s"}}
    with SeqRecordWriter(tmp_path, features=features) as writer, writer.episode("e") as episode:
        for frame in range(20):
            episode.append({"x": np.zeros(2), "time": np.float64(frame * (1 + (frame > 9)))})
    windows = {"x": Seconds([0, 1], timestamps="time", tolerance=0.1, out_of_range="pad")}
    source = SeqRecordIterableDataset(tmp_path, windows=windows, features=["x"], pad="edge")
    mix, far = SeqRecordMix({"s": source}, batch_size=4, stopping_strategy=5), []
    for _ in range(2):
        assert len(list(mix)) == 5
        far.append(mix.stats()["times_without_frame"])
    assert far[0] == far[1] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": {"a": -1, "b": 1, "c": 1}}, "weight of source 'a'.*at least 0.*-1"),
        *(
            ({"weights": {"a": weight, "b": 1, "c": 1}}, "weight of source 'a'")
            for weight in (float("nan"), "1", float("inf"))
        ),
        ({"weights": {"a": 1, "b": 1, "d": 1}}, "weights is not.*of a, b, c.*'d'"),
        ({"weights": {"a": 0, "b": 0, "c": 0}}, "draws from no source"),
        (
            {"stopping_strategy": "last"},
            "stopping_strategy is not.*'first_exhausted' or 'all_exhausted'.*'last'",
        ),
        ({"stopping_strategy": 0}, "stopping_strategy is too small"),
        ({"stopping_strategy": 1 << 62}, "stopping_strategy is too large"),
        ({"batch_size": 0}, "batch_size is too small"),
        ({"batch_size": None}, "batch_size is not an integer"),
        ({"features": "both"}, "features is not"),
        ({"features": np.zeros(3)}, "features is not"),
        ({"single_source_batches": 1}, "single_source_batches"),
        ({"rank": 2, "world_size": 2}, "rank and world_size"),
        ({"rank": 0, "world_size": 1 << 64}, "world_size is too large"),
    ],
)
def test_arguments_that_make_no_sense(root: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ClipError, match=message):
        mixed(root, **options)


def test_sources_that_make_no_sense(root: Path) -> None:
    given: dict[str, Any] = {"batch_size": 4, "seed": 1, "memory_limit": "1GiB", "device": "cpu"}
    given |= {"engine": EngineOptions(num_threads=2), "drop_last": True}
    options: dict[str, Any]
    for options in (*({name: one} for name, one in given.items()), {"rank": 0, "world_size": 2}):
        with pytest.raises(ClipError, match=f"sets options of the mix.*{next(iter(options))}"):
            SeqRecordMix(streams(root, "ab", **options), batch_size=2)
    other: Any
    lone = SeqRecordIterableDataset(root / "a", clip_len=3)
    for other in ({}, [], None, {1: lone}, {"\ud800": lone}):
        with pytest.raises(ClipError):
            SeqRecordMix(other, batch_size=2)
    other = {"a": SeqRecordMapDataset(root / "a", clip_len=3)}
    with pytest.raises(
        ClipError, match=r"no loader.*SeqRecordIterableDataset.*SeqRecordMapDataset"
    ):
        SeqRecordMix(other, batch_size=2)


def test_weights_far_apart(root: Path) -> None:
    weights = {"a": 10**5000, "b": 1e-300, "c": Fraction(1, 10**400)}
    assert min(mixed(root, weights=weights, memory_limit=1 << 62).shares.values()) == Fraction(
        1, 1 << 16
    )


def test_a_source_of_weight_0_is_left_out(root: Path) -> None:
    mix = mixed(root, weights={"a": 0, "b": 1, "c": 1})
    assert mix.shares == {"b": Fraction(1, 2), "c": Fraction(1, 2)}
    assert {name for name, _, _ in run(mix)} == {"b", "c"}


def test_a_mix_of_mixes_is_one_of_all_datasets(root: Path) -> None:
    """Shares multiply; the order is that of a mix of datasets with these names."""

    def nested(**options: Any) -> SeqRecordMix:
        inner = SeqRecordMix(streams(root, "ab"), weights={"a": 3, "b": 2}, batch_size=1)
        sources: dict[str, Any] = {"ab": inner, **streams(root, "c")}
        return SeqRecordMix(sources, weights={"ab": 0.5, "c": 0.1}, batch_size=7, **options)

    mix = nested(seed=3)
    shares = {"ab/a": Fraction(1, 2), "ab/b": Fraction(1, 3), "c": Fraction(1, 6)}
    assert mix.shares == shares
    names = {"ab/a": "a", "ab/b": "b", "c": "c"}
    flat = SeqRecordMix(
        {name: streams(root, source)[source] for name, source in names.items()},
        weights=shares,
        batch_size=7,
        seed=3,
    )
    iterator = iter(mix)
    assert digest(next(iterator)) == digest(next(iter(flat)))
    flat.load_state_dict(mix.state_dict())
    assert digests(flat) == digests(iterator)
    wrong = SeqRecordMix(streams(root, "a"), batch_size=1, seed=1)
    rows = SeqRecordIterableDataset(root / "a", clip_len=2, order="sequences", batch_size=2)
    with pytest.raises(ClipError, match="source 'x' of a mix gives sequences"):
        SeqRecordMix({"x": rows}, batch_size=2)
    with pytest.raises(ClipError, match="source 'x' of a mix sets options of the mix"):
        SeqRecordMix({"x": wrong}, batch_size=2)
    until = SeqRecordMix(streams(root, "a"), batch_size=1, stopping_strategy=3)
    with pytest.raises(ClipError, match="stopping_strategy of source 'x'"):
        SeqRecordMix({"x": until}, batch_size=2)
    whole = SeqRecordMix(streams(root, "a"), batch_size=1)
    with pytest.raises(ClipError, match=r"two datasets of a mix have one name.*got: x/a"):
        SeqRecordMix({"x": whole, "x/a": streams(root, "a")["a"]}, batch_size=2)


def test_without_weights_all_sources_end_together(root: Path) -> None:
    pipes = {name: SeqRecordPipe(root / name, clip_len=3) for name in "abc"}
    mix = SeqRecordMix(pipes, batch_size=94)
    assert mix.shares == {name: Fraction(count, 94) for name, count in CLIPS.items()}
    ((*clips,),) = (check_batch(batch) for batch in mix)
    assert len(set(clips)) == 94


def test_sources_of_their_own_kinds(root: Path) -> None:
    """A rotated phase, weights of clips, and one that is not shuffled."""
    table = {"episode": ["e/0", "e/1", "e/1"], "start": [4, 0, 7], "weight": [1, 2, 0.5]}
    sources = {
        "a": SeqRecordIterableDataset(root / "a", clip_len=3, stride=4, rotate_phase=True),
        "b": SeqRecordIterableDataset(root / "b", clip_len=3, clips=table),
        "c": SeqRecordIterableDataset(root / "c", clip_len=3, shuffle=False),
    }

    def make() -> Any:
        return SeqRecordMix(sources, weights=WEIGHTS, batch_size=6, stopping_strategy=5)

    clips = list(run(make(), 4))
    assert [start for name, _, start in clips if name == "c"] == [*range(5)] * 4
    phases = [sorted((start % 4) for _, _, start in [c for c in clips if c[0] == "a"][:14])]
    assert len(set(phases[0])) == 1
    counts = Counter((key, start) for name, key, start in clips if name == "b")
    assert counts["e/1", 0] > counts["e/0", 4] > counts["e/1", 7] > 0
    check_resume(make, num_epochs=2)


def test_a_source_that_was_iterated_alone_gives_the_same_clips(root: Path) -> None:
    """Which clips an epoch has by their weights depends on the seed, which is another in a mix."""
    table = {"episode": ["e/2"] * 30, "start": list(range(30)), "weight": [0.5] * 30}

    def first_epochs(alone: bool) -> list[tuple[str, str, int]]:
        sources = {
            **streams(root, "b"),
            "a": SeqRecordIterableDataset(root / "a", clip_len=3, clips=table),
        }
        mix = SeqRecordMix(sources, weights={"a": 1, "b": 1}, batch_size=4, stopping_strategy=7)
        if alone:
            assert list(sources["a"])
        return list(run(mix))

    assert first_epochs(alone=True) == first_epochs(alone=False)


def test_memory(root: Path) -> None:
    with pytest.raises(MemoryLimitError, match=r"at least .* of batches, and .* of a, .* of b"):
        mixed(root, memory_limit=10_000)
    least = least_memory(partial(mixed, root))
    for limit in (least, 4 * least):
        mix = mixed(root, memory_limit=limit)
        for batch in mix:
            del batch
        # One batch that is filled, and two that the consumer has
        assert mix.stats()["peak_buffer_bytes"] <= limit - 3 * 7 * 3 * (6 * 8 * 3 + 24 + 12)
    with pytest.raises(MemoryLimitError):
        mixed(root, memory_limit=least - 1)


def test_memory_is_divided_by_demand() -> None:
    least = {"a": 100, "b": 300, "c": 10}
    divided = divide_memory(least, {"a": 3, "b": 6, "c": 1}, 2000, 12_000)
    assert divided == {"a": 3000, "b": 6000, "c": 1000}
    # b gets what it needs, the others have the rest by request
    divided = divide_memory(least, {"a": 8, "b": 1, "c": 2}, 0, 1300)
    assert divided == {"a": 800, "b": 300, "c": 200}
    assert divide_memory(least, {"a": 1, "b": 1, "c": 1}, 5, 415) == least
    with pytest.raises(MemoryLimitError, match=r"415 bytes.*414"):
        divide_memory(least, {"a": 1, "b": 1, "c": 1}, 5, 414)


@pytest.mark.parametrize(
    ("workers", "persistent"),
    [
        (0, False),
        pytest.param(2, False, marks=pytest.mark.slow),
        pytest.param(2, True, marks=pytest.mark.slow),
    ],
)
def test_stateful_loader(root: Path, workers: int, persistent: bool) -> None:
    def make(snapshot_every_n_steps: int = 1) -> StatefulDataLoader[Any]:
        return StatefulDataLoader(
            mixed(root, stopping_strategy=8),
            batch_size=None,
            num_workers=workers,
            persistent_workers=persistent,
            snapshot_every_n_steps=snapshot_every_n_steps,
        )

    check_stateful_loader(make)


def test_workers(root: Path) -> None:
    """Each worker has shares and shards of its own, and goes on after a state."""
    mix = mixed(root, stopping_strategy=9)
    loader: StatefulDataLoader[Any] = StatefulDataLoader(mix, batch_size=None, num_workers=2)
    with leaves_nothing():
        assert len(loader) == 9
        batches, names_of, states = [], [], []
        for batch in loader:
            check_batch(batch)
            names_of.append(batch["dataset"])
            batches.append(digest(batch))
            states.append(loader.state_dict())
        assert len(batches) == 9
        for worker in range(2):
            names = [name for names in names_of[worker::2] for name in names]
            check_shares(names, SHARES)
        with pytest.raises(StateError, match="worker processes"):
            mix.state_dict()
        again: StatefulDataLoader[Any] = StatefulDataLoader(
            mixed(root, stopping_strategy=9), batch_size=None, num_workers=2
        )
        again.load_state_dict(states[3])
        rest = digests(again)
        assert rest == batches[4:]
        del loader, again, batch
