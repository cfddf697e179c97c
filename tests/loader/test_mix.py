"""Mixes: weights, order, epochs of sources, ranks, shapes, columns, ends, errors."""

from __future__ import annotations

import cProfile
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
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import seqrecord
from seqrecord import CenterCrop, ClipError, SeqRecordIterableDataset, SeqRecordMix, StateError
from seqrecord.errors import MemoryLimitError
from seqrecord.loader.sampling.mix_memory import divide_memory
from seqrecord.samples import SampleRandom, Samples, dilate, every, final_goal, reverse
from tests.kit.clip_data import begun, digest, digests, minimum_memory, no_leaks, resumed
from tests.kit.datasets import columns, write_dataset
from tests.loader.mix_data import frame_of, write_source
from tests.loader.resume_contract import check_resume, check_stateful_loader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]

LENGTHS = {"a": (23, 9, 40), "b": (12, 15), "c": (7,)}
FRAMES = {name: sum(lengths) for name, lengths in LENGTHS.items()}
CLIPS = {"a": 66, "b": 23, "c": 5}  # of 3 frames
EXTRA = {"b": ("pose",)}
WEIGHTS = {"a": 3, "b": 2, "c": 1}
SHARES = {name: Fraction(weight, 6) for name, weight in WEIGHTS.items()}

Clip = tuple[str, str, int]
Root = dict[str, seqrecord.Dataset]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mix")
    for number, (name, lengths) in enumerate(LENGTHS.items()):
        write_source(folder / name, number, lengths, extra=EXTRA.get(name, ()))
    write_source(folder / "tall", 3, (20, 6), side=9)
    write_source(folder / "talking", 4, (20, 6), texts=True)
    return folder


@pytest.fixture(scope="module")
def root(folder: Path) -> Root:
    """Open datasets by name."""
    return opened(folder)


def opened(folder: Path) -> Root:
    return {path.name: seqrecord.open(path) for path in folder.iterdir()}


def stream(root: Root, name: str, **options: Any) -> SeqRecordIterableDataset:
    return SeqRecordIterableDataset(root[name], **{"clip_len": 3, **options})


def streams(root: Root, names: str = "abc", **options: Any) -> dict[str, SeqRecordIterableDataset]:
    return {name: stream(root, name, **options) for name in names}


def sized(root: Root, **options: Any) -> SeqRecordMix:
    """A mix, by default weighted by the sizes of its sources."""
    return SeqRecordMix(streams(root), **{"batch_size": 7, "seed": 5, **options})


def mixed(root: Root, **options: Any) -> SeqRecordMix:
    return sized(root, **{"weights": WEIGHTS, **options})


def clips_of(batch: dict[str, Any]) -> list[Clip]:
    return list(zip(batch["dataset"], batch["episode"], batch["start"].tolist(), strict=True))


def check_batch(batch: dict[str, Any], clip_len: int = 3) -> list[Clip]:
    """Check a batch against the stored values; return its clips."""
    for i, (name, key, start) in enumerate(clips_of(batch)):
        source, episode = list(LENGTHS).index(name), int(key.removeprefix("e/"))
        for t in range(clip_len):
            stored = frame_of(source, episode, start + t, EXTRA.get(name, ()))
            for feature in batch.keys() & stored.keys():
                assert (batch[feature][i, t].numpy() == stored[feature]).all()
        if "pose" in batch and "pose_is_missing" in batch:
            assert bool(batch["pose_is_missing"][i]) == (name != "b")
            assert name == "b" or not batch["pose"][i].any()
    return clips_of(batch)


def run(mix: SeqRecordMix, num_epochs: int = 1) -> Iterator[Clip]:
    for _ in range(num_epochs):
        for batch in mix:
            yield from check_batch(batch)


def check_shares(names: list[str], shares: dict[str, Fraction], unit: int = 1) -> None:
    """Check the shares of every prefix, within one clip or `unit` clips."""
    count: Counter[str] = Counter()
    for number, name in enumerate(names, 1):
        count[name] += 1
        if number % unit == 0:
            off = [abs(count[source] - share * number) for source, share in shares.items()]
            assert max(off) < unit, number


def check_source_epochs(clips: list[Clip], name: str, num_clips: int, repeats: int = 0) -> None:
    """Check that a source's clips, in one shard, are epochs with each clip once; with `repeats`,
    at most so many of an epoch's first clips also come last.
    """
    own = [clip for clip in clips if clip[0] == name]
    for begin in range(0, len(own), num_clips):
        epoch = own[begin : begin + num_clips]
        again = epoch[num_clips - repeats :] if repeats else []
        num_again = len(again) if again == epoch[: len(again)] else 0
        assert len(set(epoch)) == len(epoch) - num_again


# Shares, order, epochs


@pytest.mark.parametrize(
    ("stopping_strategy", "num_batches", "of_six"),
    [
        ("first_exhausted", 5 * 6 // 7, 5),
        ("all_exhausted", -(-66 * 2 // 7), 66 * 2 // 6),
        (11, 11, 11),
    ],
)
def test_shares_epochs_and_ends(
    root: Root, stopping_strategy: Any, num_batches: int, of_six: int
) -> None:
    assert len(mixed(root, stopping_strategy=stopping_strategy, batch_size=6)) == of_six
    mix = mixed(root, stopping_strategy=stopping_strategy)
    clips = list(run(mix, 2))
    assert len(mix) == num_batches
    assert len(clips) == 2 * 7 * num_batches
    check_shares([name for name, _, _ in clips], SHARES)
    for name, count in CLIPS.items():
        check_source_epochs(clips, name, count)
    if stopping_strategy == "all_exhausted":
        assert len(set(clips[: 7 * num_batches])) == sum(CLIPS.values())
        own = [clip for clip in clips if clip[0] == "c"]
        assert own[:5] != own[5:10], "each epoch of a source has its own order"
        assert sorted(own[:5]) == sorted(own[5:10])


def test_order_is_a_function_of_the_seed(root: Root) -> None:
    """Places of the sources and the order in each of them; threads and memory change nothing."""
    order = list(run(mixed(root), 2))
    less: dict[str, Any] = {
        "engine": seqrecord.EngineOptions(num_threads=1),
        "memory_limit": "64MiB",
    }
    assert list(run(mixed(root, **less), 2)) == order
    other = list(run(mixed(root, seed=6), 2))
    assert [clip[0] for clip in other] != [clip[0] for clip in order]
    for name in SHARES:
        mine, others = ([clip for clip in each if clip[0] == name] for each in (order, other))
        assert mine[:4] != others[:4]
    second = mixed(root)
    second.set_epoch(1)
    assert list(run(second)) == order[len(order) // 2 :]


def test_ranks_give_all_clips_and_equal_counts(root: Root) -> None:
    mixes = [mixed(root, stopping_strategy="all_exhausted", rank=(rank, 4)) for rank in range(4)]
    assert {len(mix) for mix in mixes} == {5}  # a has 17 clips on each rank: -(-17 x 2 // 7)
    by_rank = [list(run(mix, 2)) for mix in mixes]
    names = [[name for name, _, _ in clips] for clips in by_rank]
    assert names[0] == names[1] == names[2] == names[3]
    check_shares(names[0], SHARES)
    for name, count in CLIPS.items():
        length = -(-count // 4)
        for clips in by_rank:
            check_source_epochs(clips, name, length, repeats=int(count % 4 > 0))
        # One epoch of the source on all ranks: every clip, with few duplicates in 4 x length.
        epoch = [clip for clips in by_rank for clip in [c for c in clips if c[0] == name][:length]]
        assert len(epoch) == 4 * length
        assert len(set(epoch)) == count
    # A source with fewer clips than ranks is repeated.
    mixes = [mixed(root, stopping_strategy=1, rank=(rank, 6)) for rank in range(6)]
    firsts = [next(clip for clip in run(mix) if clip[0] == "c") for mix in mixes]
    assert set(firsts) == {("c", "e/0", start) for start in range(5)}


def test_sources_with_different_settings(root: Root) -> None:
    """A rotated phase, weights of clips, and no shuffle."""
    table = {"episode": ["e/0", "e/1", "e/1"], "start": [4, 0, 7], "repeat": [1, 2, 0.5]}
    sources = {
        "a": stream(root, "a", samples=every(4, rotate=True)),
        "b": stream(root, "b", samples=table),
        "c": stream(root, "c", shuffle=False),
    }

    def make() -> Any:
        return SeqRecordMix(sources, weights=WEIGHTS, batch_size=6, stopping_strategy=5)

    clips = list(run(make(), 4))
    assert [start for name, _, start in clips if name == "c"] == [*range(5)] * 4
    assert len({start % 4 for _, _, start in [c for c in clips if c[0] == "a"][:14]}) == 1
    counts = Counter((key, start) for name, key, start in clips if name == "b")
    assert counts["e/1", 0] > counts["e/0", 4] > counts["e/1", 7] > 0
    check_resume(make, num_epochs=2, positions=lambda count: (1, count // 2))


def few_rows(samples: Samples, epoch: int, rng: SampleRandom) -> Samples:
    """Another number of rows in each epoch."""
    return samples.take(rng.permutation(len(samples))[: 3 + epoch % 4])


JUMPS: dict[str, Any] = {
    "equal epochs": None,
    "rotated": every(4, rotate=True),
    "rotated, of another number": [every(3, rotate=True), few_rows],
    "repeated": {"episode": ["e/0"] * 3, "start": [0, 4, 7], "repeat": [1, 0.2, 0.7]},
    "chosen": few_rows,
    "chosen and repeated": [few_rows, lambda s, *_: s.with_columns(repeat=[0.6] * len(s))],
}


@pytest.mark.parametrize("samples", JUMPS.values(), ids=JUMPS)
@pytest.mark.parametrize("rank", [None, (1, 3)])
def test_a_position_without_a_state_is_exact(root: Root, samples: Any, rank: Any) -> None:
    """A loader that jumps over epochs of its sources counts their clips."""

    def make() -> SeqRecordMix:
        sources = {"a": stream(root, "a", samples=samples), **streams(root, "b")}
        weights = {"a": 3, "b": 1}
        return SeqRecordMix(sources, weights=weights, batch_size=5, stopping_strategy=7, rank=rank)

    mix = make()
    epochs = [list(mix) for _ in range(5)]
    jumping = make()
    for epoch, batches in ((4, 0), (2, 5), (3, 1)):  # also backwards
        jumping.set_epoch(epoch, batches=batches)
        assert digests(jumping) == digests(epochs[epoch][batches:])


def test_source_iterated_alone_gives_the_same_clips(root: Root) -> None:
    """Weighted clips of an epoch depend on the seed, which differs in a mix."""
    table = {"episode": ["e/2"] * 30, "start": list(range(30)), "repeat": [0.5] * 30}
    found = []
    for alone in (True, False):
        sources = {**streams(root, "b"), "a": stream(root, "a", samples=table)}
        mix = SeqRecordMix(sources, weights={"a": 1, "b": 1}, batch_size=4, stopping_strategy=7)
        assert not alone or list(sources["a"])
        found.append(list(run(mix)))
    assert found[0] == found[1]


def test_mix_of_mixes_equals_a_mix_of_all_datasets(root: Root) -> None:
    """Shares multiply; the order equals a mix of datasets with these names."""
    inner = SeqRecordMix(streams(root, "ab"), weights={"a": 3, "b": 2}, batch_size=1)
    sources: dict[str, Any] = {"ab": inner, **streams(root, "c")}
    mix = SeqRecordMix(sources, weights={"ab": 0.5, "c": 0.1}, batch_size=7, seed=3)
    shares = {"ab/a": Fraction(1, 2), "ab/b": Fraction(1, 3), "c": Fraction(1, 6)}
    assert mix.shares == shares
    flat_sources = {name: stream(root, name[-1]) for name in shares}
    flat = SeqRecordMix(flat_sources, weights=shares, batch_size=7, seed=3)
    iterator = iter(mix)
    assert digest(next(iterator)) == digest(next(iter(flat)))
    assert digests(resumed(flat, mix.state_dict())) == digests(iterator)


# Weights by size, and clips per epoch, against counting by hand


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, CLIPS),
        ({"weights": "clips", "alpha": 1.0}, CLIPS),
        ({"weights": "frames"}, FRAMES),
        ({"weights": "equal"}, {"a": 1, "b": 1, "c": 1}),
        ({"alpha": 0}, {"a": 1, "b": 1, "c": 1}),
        ({"alpha": 0.5}, {name: clips**0.5 for name, clips in CLIPS.items()}),
        ({"weights": "frames", "alpha": 0.3}, {name: n**0.3 for name, n in FRAMES.items()}),
        ({"repeat": {"a": 2, "b": 0.5}}, {"a": 132, "b": 11, "c": 5}),
        ({"choose": {"a": 10, "b": 0}}, {"a": 10, "b": 0, "c": 5}),
        ({"choose": {"a": 10}, "repeat": {"c": Fraction(7, 5)}}, {"a": 10, "b": 23, "c": 7}),
        ({"weights": {"a": 0, "b": 1, "c": 1}}, {"b": 1, "c": 1}),
        (
            {"weights": {"a": 10**5000, "b": 1e-300, "c": Fraction(1, 10**400)}},
            {"a": 65_534, "b": 1, "c": 1},
        ),
    ],
)
def test_weights(root: Root, options: dict[str, Any], sizes: dict[str, float]) -> None:
    mix = sized(root, memory_limit=1 << 62, **options)
    assert mix.shares.keys() == {name for name, size in sizes.items() if size}
    for name, share in mix.shares.items():
        assert abs(float(share) - sizes[name] / sum(sizes.values())) < 2 / 65_536
        assert share >= Fraction(1, 1 << 16)


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({"repeat": {"a": 2}}, np.int64),
        ({"repeat": {"a": 3, "b": 2}}, np.uint8),
        ({"weights": {"a": 200, "b": 0.5, "c": 100}}, np.uint8),
        ({"weights": {"a": 1 << 62, "b": 1 << 62, "c": 1 << 61}}, np.int64),
        ({"choose": {"a": 9, "b": 4}}, np.int16),
    ],
)
def test_integers_of_numpy_are_exact(root: Root, options: dict[str, Any], dtype: Any) -> None:
    ((argument, numbers),) = options.items()
    given = {name: n if isinstance(n, float) else dtype(n) for name, n in numbers.items()}
    expected, mix = (
        sized(root, batch_size=4, **options),
        sized(root, batch_size=4, **{argument: given}),
    )
    assert mix.shares == expected.shares
    assert digests(mix) == digests(expected)


def test_sizes_of_sources(root: Root) -> None:
    """Clips of the selected episodes; for a nested mix, its clips per epoch."""
    sources = streams(root, "bc") | {"a": stream(root, "a", episodes=[0, 1], stride=4)}
    shares = SeqRecordMix(sources, batch_size=2, weights="frames").shares
    assert shares == {"b": Fraction(27, 66), "c": Fraction(7, 66), "a": Fraction(32, 66)}
    assert SeqRecordMix(sources, batch_size=2).shares["a"] == Fraction(8, 36)

    both, c = streams(root, "ab"), stream(root, "c")
    chosen = SeqRecordMix(both, choose={"a": 9, "b": 3}, batch_size=1)
    plain = SeqRecordMix(both, weights={"a": 3, "b": 1}, batch_size=1)
    assert repr(chosen).startswith("SeqRecordMix(epoch of 12 clips")
    options: dict[str, Any]
    for inner, size, of_c, options in (
        (chosen, 12, 5, {}),
        (plain, 89, 5, {}),
        (chosen, 24, 5, {"repeat": {"ab": 2}}),
        (chosen, 99, 7, {"weights": "frames"}),
    ):
        mix = SeqRecordMix({"ab": inner, "c": c}, batch_size=2, **options)
        assert mix.shares["ab/a"] == Fraction(3, 4) * Fraction(size, size + of_c)


def test_without_weights_all_sources_end_together(root: Root) -> None:
    mix = sized(root, batch_size=94)
    assert mix.shares == {name: Fraction(count, 94) for name, count in CLIPS.items()}
    assert len(set(run(mix))) == 94
    assert len(list(sized(root, batch_size=200))) == 1, "an epoch has a batch"


@pytest.mark.parametrize("ranks", [1, 3])
def test_clips_of_an_epoch_and_their_duplicates(root: Root, ranks: int) -> None:
    """Over 7 epochs, counts of a source's clips differ by one at most."""
    total, size = Counter[Clip](), 4
    wanted = {"a": 66, "b": 46, "c": 7}
    options: dict[str, Any] = {"repeat": {"b": 2}, "choose": {"c": 7}, "batch_size": size}
    for rank in range(ranks):
        mix = sized(root, **options, rank=(rank, ranks))
        assert len(mix) == sum(wanted.values()) // (size * ranks)
        total += Counter(clip for _ in range(7) for batch in mix for clip in clips_of(batch))
    num_clips = 7 * ranks * size * (sum(wanted.values()) // (size * ranks))
    assert total.total() == num_clips
    for name, count in wanted.items():
        times = [n for (source, _, _), n in total.items() if source == name]
        assert abs(sum(times) - num_clips * count / sum(wanted.values())) < ranks
        assert len(times) == CLIPS[name]
        assert ranks > 1 or max(times) - min(times) <= 1  # ranks share evenly, by duplicates


# States and workers


def test_states(root: Root) -> None:
    mix = mixed(root, memory_limit="64MiB")
    iterator = begun(mix)
    state = mix.state_dict()
    assert json.loads(json.dumps(state)) == state
    assert (state["epoch"], state["batch"], len(state["sources"])) == (0, 1, 3)
    # A state has the settings of the loader that saved it.
    assert digests(resumed(mixed(root, memory_limit="1GiB"), state)) == digests(iterator)
    others: dict[str, dict[str, Any]] = {
        "shares": {"weights": {"a": 3, "b": 2, "c": 2}},
        "seed": {"seed": 1},
        "stopping_strategy": {"stopping_strategy": "all_exhausted"},
        "features": {"features": "intersection"},
    }
    for named, options in others.items():
        with pytest.raises(StateError, match=f"another mix: .*{named}"):
            mixed(root, **options).load_state_dict(state)
    wrong = json.loads(json.dumps(state))
    wrong["sources"][2]["episodes"]["digest"] = "0"
    lone = stream(root, "a")
    for loader, given, message in (
        (mix, lone.state_dict(), "another kind of loader"),
        (lone, state, "another kind of loader"),
        (mix, {**state, "epoch": -1}, "out of range"),
        (mix, {**state, "sources": state["sources"][:2]}, "another mix: sources"),
        (mix, wrong, "other episodes"),
    ):
        with pytest.raises(StateError, match=message):
            loader.load_state_dict(given)
    assert len(list(mix)) == 4  # the next epoch: nothing was loaded


def test_memory_is_divided_once_for_all_sources(root: Root) -> None:
    """A state of many sources loads in a time that is linear in their number."""
    state, profile = mixed(root).state_dict(), cProfile.Profile()
    profile.runcall(mixed(root).load_state_dict, state)
    functions = {getattr(one.code, "co_name", ""): one.callcount for one in profile.getstats()}
    assert functions.get("share_out", 0) <= 1


def test_state_of_another_epoch_length_is_refused(root: Root) -> None:
    mix = sized(root, repeat={"b": 2}, batch_size=9)
    begun(mix, 5)
    state = mix.state_dict()
    with pytest.raises(StateError, match="117 clips"):
        sized(root, batch_size=9, choose={"c": 6}).load_state_dict(state)


@pytest.mark.parametrize(
    ("workers", "persistent"),
    [
        (0, False),
        pytest.param(2, False, marks=pytest.mark.slow),
        pytest.param(2, True, marks=pytest.mark.slow),
    ],
)
def test_stateful_loader(root: Root, workers: int, persistent: bool) -> None:
    options: dict[str, Any] = {"weights": {"b": 2, "c": 1}, "batch_size": 3}
    options["stopping_strategy"] = 6 if workers == 0 else 8

    def make(snapshot_every_n_steps: int = 1) -> StatefulDataLoader[Any]:
        return StatefulDataLoader(
            SeqRecordMix(streams(root, "bc"), **options),
            batch_size=None,
            num_workers=workers,
            persistent_workers=persistent,
            snapshot_every_n_steps=snapshot_every_n_steps,
        )

    check_stateful_loader(make)


def test_workers(root: Root) -> None:
    """Each worker has its own shares and shards, and resumes from a state."""

    def stateful(mix: SeqRecordMix) -> StatefulDataLoader[Any]:
        return StatefulDataLoader(mix, batch_size=None, num_workers=2)

    mix = mixed(root, stopping_strategy=9)
    loader = stateful(mix)
    with no_leaks():
        assert len(loader) == 9
        batches, names_of, states = [], [], []
        for batch in loader:
            check_batch(batch)
            names_of.append(batch["dataset"])
            batches.append(digest(batch))
            states.append(loader.state_dict())
        assert len(batches) == 9
        for worker in range(2):
            check_shares([name for names in names_of[worker::2] for name in names], SHARES)
        with pytest.raises(StateError, match="worker processes"):
            mix.state_dict()
        again = resumed(stateful(mixed(root, stopping_strategy=9)), states[3])
        assert digests(again) == batches[4:]
        del loader, again, batch
    mix = sized(root, choose={"a": 40}, batch_size=4)  # workers divide an epoch of 40 clips
    assert len(list(DataLoader(mix, batch_size=None, num_workers=2))) == len(mix) == 68 // 4


# Features, shapes and columns


def test_union_and_intersection(root: Root) -> None:
    (union, *_) = mixed(root)
    assert union["pose"].shape == (7, 3, 3)
    assert union["pose_is_missing"].dtype == torch.bool
    (common, *_) = mixed(root, features="intersection")
    assert not {"pose", "pose_is_missing"} & set(common)
    assert check_batch(common) == check_batch(union)
    assert "pose" not in next(iter(SeqRecordMix(streams(root, "ac"), batch_size=2)))


def test_intersection_ignores_windows_of_other_features(root: Root) -> None:
    """Windows of unread features do not restrict the clips."""

    def first(sources: dict[str, SeqRecordIterableDataset]) -> dict[str, Any]:
        batch: dict[str, Any] = next(
            iter(SeqRecordMix(sources, batch_size=4, features="intersection"))
        )
        return batch

    image: dict[str, Any] = {"image": [0, 1]}
    windows = {**image, "pose": seqrecord.Latest(range(9), max_age=3)}
    batch = first(
        streams(root, "b", windows=windows, pad="edge", clip_len=None)
        | streams(root, "c", windows=image, pad="edge", clip_len=None)
    )
    assert "pose" not in batch
    assert batch["image"].shape[:2] == batch["image_is_pad"].shape == (4, 2)
    crops = streams(root, "a", clip_len=1, clip_transform=CenterCrop((4, 4)))
    batch = first(crops | streams(root, "c", clip_len=1, features=["where"]))
    assert set(batch) == {"where", "dataset", "episode", "start"}
    only = streams(root, "b", windows={"pose": range(9)}, pad="edge", clip_len=None)
    batch = first(only | streams(root, "c", clip_len=1))
    assert set(batch) == {"image", "where", "dataset", "episode", "start"}


@pytest.mark.parametrize("options", [{}, {"repeat": {"c": 3}}])
def test_sizes_are_of_the_features_that_are_read(root: Root, options: dict[str, Any]) -> None:
    """In an intersection, of a nested mix too, and with the phases of the mix's seed."""
    given = {"image": [0, 1]}
    of_b = {**given, "pose": range(5)}  # only b has poses: 19 clips, 25 without
    plain = streams(root, "bc", windows=given, clip_len=None)
    both = plain | {"b": stream(root, "b", windows=of_b, clip_len=None)}
    settings: dict[str, Any] = {"batch_size": 4, "features": "intersection", "seed": 7, **options}
    mix, same = SeqRecordMix(both, **settings), SeqRecordMix(plain, **settings)
    assert (mix.shares, len(mix)) == (same.shares, len(same))
    assert digests(mix) == digests(same)
    if not options:
        inner = SeqRecordMix(both, batch_size=1, weights="equal")
        found = [
            SeqRecordMix({"two": one, "a": stream(root, "a", clip_len=1)}, **settings).shares
            for one in (inner, SeqRecordMix(plain, batch_size=1, weights="equal"))
        ]
        assert found[0] == found[1]
        turned = streams(root, "ab", samples=every(4, rotate=True))
        phased = SeqRecordMix(turned, batch_size=2, seed=9)
        sizes = {one.name: one.num_clips for one in phased.summarize().sources}
        assert phased.shares == {n: Fraction(c, sum(sizes.values())) for n, c in sizes.items()}


def test_whole_batches_alternate_if_shapes_differ(root: Root) -> None:
    sources = {name: stream(root, name) for name in ("a", "tall")}
    settings: dict[str, Any] = {"weights": {"a": 2, "tall": 1}, "batch_size": 4}
    settings["stopping_strategy"] = 12
    mix = SeqRecordMix(sources, **settings)
    assert mix.single_source_batches
    names = []
    for batch in mix:
        (name,) = set(batch["dataset"])
        assert batch["image"].shape == (4, 3, 6 if name == "a" else 9, 8, 3)
        assert (batch["where"][:, 0, 0] == (0 if name == "a" else 3)).all()
        names += batch["dataset"]
    check_shares(names, {"a": Fraction(2, 3), "tall": Fraction(1, 3)}, unit=4)
    with pytest.raises(ClipError, match=r"disagree.*image.*uint8 \[3, 6, 8, 3\].*\[3, 9, 8, 3\]"):
        SeqRecordMix(sources, **settings, single_source_batches=False)
    only = {name: stream(root, name, features=["where"]) for name in ("a", "tall")}
    assert not SeqRecordMix(only, **settings).single_source_batches


@pytest.mark.parametrize("flag", [False, True])
def test_flags_of_numpy(root: Root, flag: bool) -> None:
    sources: dict[str, Any] = {"a": stream(root, "a"), "b": stream(root, "b")}
    names = ("single_source_batches", "camera_padding_masks", "number_tasks")
    flags: list[Any] = [flag, np.bool_(flag)]
    found = [
        next(iter(SeqRecordMix(sources, batch_size=4, **dict.fromkeys(names, given))))
        for given in flags
    ]
    assert digest(found[0]) == digest(found[1])
    assert ("task_index" in found[0]) is flag


def test_squeezed(root: Root) -> None:
    windows: dict[str, Any] = {"clip_len": None, "windows": {"image": [0, 1]}, "squeeze_time": True}
    sources = {name: stream(root, name, **windows) for name in ("a", "b", "talking")}
    mix = SeqRecordMix(sources, batch_size=6, stopping_strategy=5)
    assert not mix.single_source_batches
    for batch in mix:
        assert (batch["image"].shape[1], batch["where"].shape) == (2, (6, 3))
        assert batch["pose_is_missing"].tolist() == [name != "b" for name in batch["dataset"]]
        for name, text in zip(batch["dataset"], batch["text"], strict=True):
            assert isinstance(text, str) if name == "talking" else text is None
    other = {**sources, "b": stream(root, "b", **{**windows, "squeeze_time": False})}
    with pytest.raises(ClipError, match=r"disagree.*where.*a: \w+ \[3\]; b: \w+ \[1, 3\]"):
        SeqRecordMix(other, batch_size=6, single_source_batches=False)
    for batch in SeqRecordMix(other, batch_size=6, stopping_strategy=3):
        [name] = set(batch["dataset"])
        assert batch["where"].shape == ((6, 1, 3) if name == "b" else (6, 3))


def test_a_missing_feature_has_one_mask(tmp_path: Path) -> None:
    """And its own mask of padding, which is false then, has none."""
    points = [np.zeros((t + 1, 3), np.float32) for t in range(6)]
    frames = {"a": columns(x=range(6), points=points), "b": columns(x=range(6))}
    for name in frames:
        features: Any = {"points": {"shape": (None, 3)}} if name == "a" else None
        write_dataset(tmp_path / name, {"e": frames[name]}, features=features)
    sources = {
        name: SeqRecordIterableDataset(tmp_path / name, clip_len=2, ragged="pad") for name in "ab"
    }
    batch = next(iter(SeqRecordMix(sources, batch_size=4, features="union")))
    assert {*batch} == {
        *("x", "points", "points_mask", "points_is_missing", "dataset", "episode", "start")
    }
    assert batch["points_is_missing"].tolist() == [name == "b" for name in batch["dataset"]]
    assert batch["points_mask"].any(dim=(1, 2)).tolist() == [n == "a" for n in batch["dataset"]]


@pytest.mark.parametrize("device", [pytest.param(None, marks=pytest.mark.slow), "cpu"])
def test_texts_and_metadata(root: Root, device: str | None) -> None:
    sources = {"a": stream(root, "a", metadata=["task"]), "talking": stream(root, "talking")}
    mix = SeqRecordMix(sources, batch_size=6, stopping_strategy=5, device=device)
    assert not mix.single_source_batches
    for batch in mix:
        assert batch["text_is_missing"].tolist() == [name == "a" for name in batch["dataset"]]
        for i, (name, key, start) in enumerate(clips_of(batch)):
            episode, frames = int(key.removeprefix("e/")), [start, start + 1, start + 2]
            texts = [f"4 {episode} {frame}" for frame in frames]
            assert batch["where"][i, :, 2].tolist() == frames
            assert batch["text"][i] == (None if name == "a" else texts)
            assert batch["task"][i] == (f"task {episode}" if name == "a" else None)


def test_batches_have_the_columns_of_all_sources(root: Root) -> None:
    """Also batches without a clip of the source with extra columns."""
    sources = (
        streams(root, "a", clip_transform=CenterCrop((6, 8)))
        | streams(root, "b", samples=[dilate(1, 2), reverse(0.5)], features=["image", "where"])
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


def _check_summary(mix: SeqRecordMix) -> None:
    """The summary has dtype and shape of all columns, or "list"."""
    for batch in mix:
        texts = {
            name: f"{value.dtype} {[*value.shape[1:]]}".removeprefix("torch.").removesuffix(" []")
            if isinstance(value, torch.Tensor)
            else "list"
            for name, value in batch.items()
            if name not in ("image", "where", "pose")
        }
        columns = mix.summarize().columns
        assert texts.items() <= columns.items()
        assert mix.single_source_batches or texts.keys() == columns.keys()


def test_dtypes_and_shapes_of_columns_are_known_before_a_batch(root: Root) -> None:
    """Also of columns that are computed or drawn, or that only one source has."""
    by_key = {"episode": ["e/0", "e/1"], "score": np.array([[1, 2, 3]] * 2, np.float32)}
    lists = {"episode": ["e/0"] * 2, "frames": [[0, 2], [3, 1, 2]]}
    steps = [seqrecord.RandomCrop((4, 4)), seqrecord.HorizontalFlip()]
    tables: dict[str, dict[str, Any]] = {
        "a": {"samples": [{**by_key, "name": ["one", None]}, final_goal()], "metadata": ["task"]},
        "b": {"samples": [dilate(1, 2), reverse(0.5)]},
        "c": {"samples": {"episode": ["e/0"], "start": [1]}, "pad": "edge"},
    }
    vectors: dict[str, Any] = {"vectors": {"where": seqrecord.Vector(pad_to=5)}, "clip_len": None}
    placed = stream(
        root, "b", **vectors, windows={"where": seqrecord.Latest([-1, 0, 1])}, pad="edge"
    )
    plain = stream(root, "c", vectors={"where": seqrecord.Vector(pad_to=5)}, clip_transform=steps)
    for sources in (
        {name: stream(root, name, **options) for name, options in tables.items()},
        {"c": plain, "b": placed},
        {"c": stream(root, "c", samples=lists, ragged="pad", clip_len=None)},
    ):
        _check_summary(SeqRecordMix(sources, batch_size=6, stopping_strategy=6))


@pytest.mark.parametrize("clip_len", [3, (2, 3)])
def test_columns_of_tables_may_have_names_of_masks(root: Root, clip_len: Any) -> None:
    """A value of a clip is no value of its frames."""
    values: dict[str, Any] = {
        "my_age": [1.5, 2.5],
        "x_is_pad": [[1, 2, 3, 4]] * 2,
        "a_wait": ["short", "long"],
    }
    table = {"episode": ["e/0", "e/1"], "start": [0, 2], **values}
    names: dict[str, Any] = {"a": table, "b": None}
    both = {n: stream(root, n, samples=t, clip_len=clip_len) for n, t in names.items()}
    for batch in SeqRecordMix(both, batch_size=6, weights="equal", stopping_strategy=4):
        for i, (name, key, _) in enumerate(clips_of(batch)):
            row = int(key[-1])
            ages = values["my_age"][row] if name == "a" else 0
            assert batch["my_age"][i] == ages
            assert batch["x_is_pad"][i].tolist() == ([1, 2, 3, 4] if name == "a" else [0] * 4)
            assert batch["a_wait"][i] == (values["a_wait"][row] if name == "a" else None)


def test_crops_and_dilations_of_sources(root: Root) -> None:
    """A source without random dilation reports its fixed one."""
    sources = streams(root, "ab", clip_transform=CenterCrop((4, 4)))
    for batch in SeqRecordMix(sources, batch_size=5, stopping_strategy=4):
        assert batch["image"].shape == (5, 3, 4, 4, 3)
        assert batch["crop"].tolist() == [[1, 2, 4, 4]] * 5
    steps: dict[str, Any] = {"a": {"samples": dilate(1, 2)}, "b": {"dilation": 3}, "c": {}}
    sources = {name: stream(root, name, **more) for name, more in steps.items()}
    seen = set()
    for batch in SeqRecordMix(sources, batch_size=12):
        assert batch["dilation"].dtype == torch.int64
        rows = zip(batch["dataset"], batch["dilation"].tolist(), batch["where"], strict=True)
        for name, dilation, where in rows:
            assert where[:, 2].diff().tolist() == [dilation] * 2
            seen.add((name, dilation))
    assert seen == {("a", 1), ("a", 2), ("b", 3), ("c", 1)}


def test_windows_of_features(root: Root) -> None:
    """Each feature has its own frames, equally many in all sources, and a mask."""
    options: dict[str, Any] = {"pad": "edge", "clip_len": None}
    windows = {"image": [-1, 0], "where": range(4)}
    sources = streams(root, "ac", windows=windows, features=["image", "where"], **options)
    mix = SeqRecordMix(sources, batch_size=6, stopping_strategy=12)
    assert not mix.single_source_batches
    for batch in mix:
        assert batch["image"].shape[:2] == (6, 2)
        for i, (name, key, start) in enumerate(clips_of(batch)):
            length, frames = LENGTHS[name][int(key.removeprefix("e/"))], start + np.arange(4)
            assert batch["where"][i, :, 2].tolist() == frames.clip(0, length - 1).tolist()
            assert batch["where_is_pad"][i].tolist() == (frames >= length).tolist()
    other = streams(root, "b", windows={**windows, "image": [0]}, **options)
    assert SeqRecordMix(sources | other, batch_size=6).single_source_batches


# Devices, ends, statistics, memory


def test_device_of_the_iterating_thread_is_used(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In threads of the sources, another GPU may be current."""
    asked: list[threading.Thread] = []

    def current() -> int:
        asked.append(threading.current_thread())
        raise InterruptedError  # no such device here

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", current)
    with pytest.raises(InterruptedError):
        list(mixed(root, device="cuda"))
    assert asked == [threading.current_thread()]


def test_threads_end_with_each_kind_of_exit(folder: Path) -> None:
    def fail(frame: dict[str, Any]) -> dict[str, Any]:
        if frame["where"][1] == 1:
            raise RuntimeError("no")
        return frame

    with no_leaks():
        root = opened(folder)
        mix = mixed(root, stopping_strategy=50)
        iterator = begun(mix)
        other = begun(mix)  # ends the first iteration
        with pytest.raises(ClipError, match="another one has begun"):
            next(iterator)
        del iterator, other, mix
        for batch in mixed(root, stopping_strategy=50):
            del batch
            break
        sources = streams(root, "a", frame_transform=fail) | streams(root, "b")
        mix = SeqRecordMix(sources, batch_size=4, stopping_strategy="all_exhausted")
        with pytest.raises(RuntimeError, match="no"):  # an error in one source
            list(mix)
        del root, sources, mix


def test_stats(root: Root) -> None:
    # The ranks that have a clip less repeat one, in each source others
    mixes = [mixed(root, stopping_strategy="all_exhausted", rank=(rank, 4)) for rank in range(4)]
    counts = [sum(len(clips_of(batch)) for batch in mix) for mix in mixes]
    duplicates = [mix.stats()["duplicate_clips"] for mix in mixes]
    number = int(np.argmax(duplicates))
    mix, num_clips = mixes[number], counts[number]
    stats = mix.stats()
    assert (stats["clips"], stats["batches"]) == (num_clips, len(mix))
    assert set(stats["sources"]) == set("abc")
    for name in ("bytes_read", "frames_decoded", "loads", "peak_buffer_bytes", "duplicate_clips"):
        assert stats[name] == sum(source[name] for source in stats["sources"].values())
    assert stats["duplicate_clips"] > 0
    assert sum(source["clips"] for source in stats["sources"].values()) >= num_clips
    assert stats["bottleneck"].startswith(("source ", "the consumer"))
    assert "'b' 0.3333" in repr(mix)
    lone = stream(root, "c")
    list(lone)
    assert lone.stats().keys() <= stats.keys() & stats["sources"]["a"].keys()


def test_stats_count_missing_times_of_one_iteration(tmp_path: Path) -> None:
    features = {"time": {"kind": "timestamp", "unit": "s"}}
    with (
        seqrecord.SeqRecordWriter(tmp_path, features=features) as writer,
        writer.episode("e") as episode,
    ):
        for frame in range(20):
            episode.append({"x": np.zeros(2), "time": np.float64(frame * (1 + (frame > 9)))})
    windows = {"x": seqrecord.Seconds([0, 1], timestamps="time", tolerance=0.1, out_of_range="pad")}
    source = SeqRecordIterableDataset(tmp_path, windows=windows, features=["x"], pad="edge")
    mix, far = SeqRecordMix({"s": source}, batch_size=4, stopping_strategy=5), []
    for _ in range(2):
        assert len(list(mix)) == 5
        far.append(mix.stats()["times_without_frame"])
    assert far[0] == far[1] > 0


def test_memory(root: Root) -> None:
    with pytest.raises(MemoryLimitError, match=r"at least .* of batches, and .* of a, .* of b"):
        mixed(root, memory_limit=10_000)
    least = minimum_memory(partial(mixed, root))
    for limit in (least, 4 * least):
        mix = mixed(root, memory_limit=limit)
        for batch in mix:
            del batch
        # One batch being filled, and two of the consumer
        assert mix.stats()["peak_buffer_bytes"] <= limit - 3 * 7 * 3 * (6 * 8 * 3 + 24 + 12)
    with pytest.raises(MemoryLimitError):
        mixed(root, memory_limit=least - 1)


def test_memory_is_divided_by_demand() -> None:
    least = {"a": 100, "b": 300, "c": 10}
    divided = divide_memory(least, {"a": 3, "b": 6, "c": 1}, 2000, 12_000)
    assert divided == {"a": 3000, "b": 6000, "c": 1000}
    # b gets its need, the others divide the rest by request
    divided = divide_memory(least, {"a": 8, "b": 1, "c": 2}, 0, 1300)
    assert divided == {"a": 800, "b": 300, "c": 200}
    assert divide_memory(least, {"a": 1, "b": 1, "c": 1}, 5, 415) == least
    with pytest.raises(MemoryLimitError, match=r"415 bytes.*414"):
        divide_memory(least, {"a": 1, "b": 1, "c": 1}, 5, 414)


# Mistakes

EQUAL = {"a": 1, "b": 1, "c": 1}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"weights": {**EQUAL, "a": -1}}, "weight of source 'a'.*at least 0.*-1"),
    ({"weights": {**EQUAL, "a": float("nan")}}, "weight of source 'a'"),
    ({"weights": {**EQUAL, "a": "1"}}, "weight of source 'a'"),
    ({"weights": {**EQUAL, "a": float("inf")}}, "weight of source 'a'"),
    ({"weights": {"a": 1, "b": 1, "d": 1}}, "weights is not.*of a, b, c.*'d'"),
    ({"weights": dict.fromkeys("abc", 0)}, "draws from no source"),
    ({"weights": "size"}, 'weights is not valid.*"frames".*alpha=0.5'),
    ({"weights": ["a"]}, "weights is not valid"),
    ({"weights": "equal", "alpha": 0.5}, "alpha is the power of a size"),
    ({"weights": EQUAL, "alpha": 0.5}, "alpha is the power of a size"),
    ({"alpha": 1.5}, "alpha is not valid"),
    ({"alpha": "1"}, "alpha is not valid"),
    ({"repeat": {"x": 1}}, "repeat is not valid.*of a, b, c"),
    ({"repeat": {"a": -1}}, "repeat of source 'a' is not valid"),
    ({"repeat": {"c": 0.1}}, "repeat of source 'c' is too small.*1/5"),
    ({"repeat": {"a": 1}, "choose": {"a": 1}}, "source 'a' .* has repeat and choose"),
    ({"repeat": {"a": 1}, "weights": "equal"}, "exclude weights"),
    ({"repeat": {"a": 1}, "stopping_strategy": 3}, "determine the length of an epoch"),
    ({"choose": 3}, "choose is not valid"),
    ({"choose": {"a": 0.5}}, "choose of source 'a' is not an integer"),
    ({"choose": {"a": -1}}, "choose of source 'a' is too small"),
    ({"choose": dict.fromkeys("abc", 0)}, "draws from no source"),
    ({"stopping_strategy": "last"}, "is not.*'first_exhausted' or 'all_exhausted'.*'last'"),
    ({"stopping_strategy": 0}, "stopping_strategy is too small"),
    ({"stopping_strategy": 1 << 62}, "stopping_strategy is too large"),
    ({"batch_size": 0}, "batch_size is too small"),
    ({"batch_size": None}, "batch_size is not an integer"),
    ({"features": "both"}, "features is not"),
    ({"features": np.zeros(3)}, "features is not"),
    ({"single_source_batches": 1}, "single_source_batches"),
    ({"rank": (2, 2)}, "rank is not valid"),
    ({"rank": (0, 1 << 64)}, "rank is not valid"),
]


def test_invalid_arguments(root: Root) -> None:
    mix: Any = partial(SeqRecordMix, streams(root), batch_size=7)
    for options, message in WRONG:
        with pytest.raises(ClipError, match=message):
            mix(**options)


def test_invalid_sources(root: Root) -> None:
    def of_where(name: str) -> dict[str, Any]:
        """Options that give `where` another name."""
        return {"frame_transform": lambda frame: {name: frame["where"]}}

    given: dict[str, Any] = {"batch_size": 4, "seed": 1, "memory_limit": "1GiB", "device": "cpu"}
    given |= {"engine": seqrecord.EngineOptions(num_threads=2), "last_batch": "drop"}
    own = [{name: one} for name, one in given.items()] + [{"rank": (0, 2)}]
    lone, task = stream(root, "a"), {"metadata": ["task"]}
    rows = stream(root, "a", clip_len=2, order="sequences", batch_size=2)
    no_sources: list[Any] = [{}, [], None, {1: lone}, {"\ud800": lone}]
    inner: Any = partial(SeqRecordMix, {"a": lone}, batch_size=1)
    whole, seeded, until = inner(), inner(seed=1), inner(stopping_strategy=3)
    apart = streams(root, "a", features=["image"]) | streams(root, "b", features=["pose"])
    crops = {"clip_transform": CenterCrop((4, 4))}
    sources: Any
    for sources, message in (
        *(
            (streams(root, "ab", **options), f"sets options of the mix.*{next(iter(options))}")
            for options in own
        ),
        *((other, None) for other in no_sources),
        (
            {"a": seqrecord.SeqRecordMapDataset(root["a"], clip_len=3)},
            "no loader.*SeqRecordIterableDataset.*SeqRecordMapDataset",
        ),
        ({"x": rows}, "source 'x' of a mix gives sequences"),
        ({"x": seeded}, "source 'x' of a mix sets options of the mix"),
        ({"x": until}, "stopping_strategy of source 'x'"),
        ({"x": whole, "x/a": lone}, r"two datasets of a mix have one name.*got: x/a"),
        # Columns of the mix itself, or with another meaning in another source
        (
            streams(root, "a", **of_where("dataset")) | streams(root, "b"),
            "two entries of a mix.*feature: dataset",
        ),
        (
            streams(root, "a", **task) | streams(root, "b", **of_where("task")),
            "two entries of a mix.*feature: task.*'b'",
        ),
        (
            streams(root, "a", **crops) | streams(root, "b", **of_where("crop")),
            "two entries.*feature: crop",
        ),
    ):
        with pytest.raises(ClipError, match=message):
            SeqRecordMix(sources, batch_size=2)
    with pytest.raises(ClipError, match="no feature is in all sources"):
        SeqRecordMix(apart, batch_size=2, features="intersection")
