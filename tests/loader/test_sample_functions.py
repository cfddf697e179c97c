"""The argument `samples`: functions of the table of an epoch."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    At,
    ClipError,
    ClipSpec,
    Dataset,
    Seconds,
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordMix,
    SeqRecordNode,
    SeqRecordPipe,
    SeqRecordWriter,
    StateError,
)
from seqrecord.loader.clips.samples import SampleEpisodes
from seqrecord.loader.sampling.sample_functions import MOST_ROWS, called
from seqrecord.samples import (
    SampleRandom,
    Samples,
    dilate,
    every,
    final_goal,
    future_goal,
    inside,
    one_per_episode,
    per_episode,
    repeat_by,
    reverse,
    skip_first,
    skip_last,
    subset,
    where,
)
from tests.kit.clip_data import (
    LENGTHS,
    all_names,
    begun,
    minimum_memory,
    names,
    peak_of,
    possible_clips,
    resumed,
)
from tests.kit.datasets import columns, write_dataset
from tests.loader.clip_cases import Case
from tests.loader.resume_contract import check_resume

Clip = tuple[str, int]
EVERY = sorted(possible_clips(["id"], 3))


@pytest.fixture(scope="module")
def numbered(path: Path) -> Dataset:
    return seqrecord.open(path)


def make(dataset: Dataset, samples: Any, **more: Any) -> SeqRecordPipe:
    usual = {"clip_len": 3, "features": ["id"], "batch_size": 4, "seed": 3}
    return SeqRecordPipe(dataset, samples=samples, **{**usual, **more})


def rows_of(pipe: Any, *columns: str) -> list[tuple[Any, ...]]:
    """Key, start and columns of each sample, after a check of its frames."""
    rows: list[tuple[Any, ...]] = []
    for batch in pipe:
        for (key, start), ids in zip(names(batch), batch["id"].tolist(), strict=True):
            assert ids == [[int(key[4:]), start + i] for i in range(3)]
        values = (batch[name] for name in columns)
        lists = [one if isinstance(one, list) else one.tolist() for one in values]
        rows += [(*name, *own) for name, *own in zip(names(batch), *lists, strict=True)]
    return rows


def turned(samples: Samples, epoch: int, rng: SampleRandom) -> Samples:
    """A filter of its own in each epoch, and columns."""
    kept = samples.filter((samples["start"] + epoch) % 3 == 0)
    labels = [f"{key} {start}" for key, start in zip(kept["episode"], kept["start"], strict=True)]
    return kept.with_columns(label=labels, drawn=rng.integers(100, size=len(kept)))


def tagged(samples: Samples, epoch: int, _: SampleRandom) -> Samples:
    return samples.with_columns(tag=samples["start"] * 10 + epoch)


def test_functions_choose_samples_and_columns_of_each_epoch(numbered: Dataset) -> None:
    pipe, drawn = make(numbered, turned), []
    for epoch in (0, 1, 2):
        expected = [clip for clip in EVERY if (clip[1] + epoch) % 3 == 0]
        assert pipe.num_clips == len(expected)
        rows = sorted(rows_of(pipe, "label", "drawn"))
        assert [row[:2] for row in rows] == expected
        assert all(label == f"{key} {start}" for key, start, label, _ in rows)
        drawn.append([number for *_, number in rows])
    assert len({*drawn[0]}) > 10
    assert drawn[0] != drawn[1]
    again = make(numbered, turned, rank=(1, 2))
    again.set_epoch(1)
    of_row = dict(zip([c for c in EVERY if (c[1] + 1) % 3 == 0], drawn[1], strict=True))
    assert all(of_row[key, start] == number for key, start, number in rows_of(again, "drawn"))


def test_clips_of_one_frame_are_inside(tmp_path: Path) -> None:
    """Also where each frame has another value; longer clips are not."""
    labels = np.arange(9) // 3
    episodes = {"set/0": columns(id=np.arange(9), label=labels)}
    write_dataset(tmp_path / "records", episodes)
    for name, expected in (("id", [[*range(9)], []]), ("label", [[*range(9)], [0, 1, 3, 4, 6, 7]])):
        for clip_len, starts in enumerate(expected, 1):
            options: dict[str, Any] = {"clip_len": clip_len, "samples": inside(name)}
            if starts:
                pipe = SeqRecordPipe(tmp_path / "records", **options)
                assert sorted(clip["start"] for clip in pipe) == starts
            else:
                with pytest.raises(ClipError):
                    SeqRecordPipe(tmp_path / "records", **options)


def test_the_head_of_samples(numbered: Dataset) -> None:
    heads = list[dict[str, list[Any]]]()

    def note(samples: Samples, _epoch: int, _rng: SampleRandom) -> Samples:
        heads[:] = [samples.head(), samples.head(2)]
        return samples

    list(make(numbered, note))
    keys, starts = zip(*EVERY[:5], strict=True)
    assert heads[0] == {"episode": [*keys], "start": [*starts]}
    assert heads[1] == {"episode": [*keys[:2]], "start": [*starts[:2]]}


def weighed(samples: Samples, epoch: int, _: SampleRandom) -> Samples:
    return samples.with_columns(repeat=1 + (samples["start"] + epoch) % 3 / 4)


REPEATED = {"episode": [key for key, _ in EVERY], "start": [start for _, start in EVERY]}
REPEATED |= {"repeat": [1.5] * len(EVERY)}


@pytest.mark.parametrize("is_mixed", [False, True])
@pytest.mark.parametrize(
    ("first", "function"), [([], turned), ([], tagged), ([], weighed), ([REPEATED], tagged)]
)
def test_a_function_is_called_once_in_each_epoch(
    numbered: Dataset, first: list[Any], function: Any, is_mixed: bool
) -> None:
    calls = Counter[tuple[int, int]]()

    def counting(samples: Samples, epoch: int, rng: SampleRandom) -> Samples:
        calls[rng.seed, epoch] += 1
        found: Samples = function(samples, epoch, rng)
        return found

    pipe: Any = make(numbered, [*first, counting, skip_last(1)])
    if is_mixed:
        functions = [*first, counting, *([] if first else [every(2, rotate=True)])]
        source = SeqRecordPipe(numbered, clip_len=3, features=["id"], samples=functions)
        pipe = SeqRecordMix({"own": source}, batch_size=4)
    for _ in range(4):
        rows_of(pipe)
    assert {*range(4)} <= {epoch for _, epoch in calls}
    assert {*calls.values()} == {1}


GOALS = {
    "uniform": future_goal(),
    "geometric": future_goal("geometric", discount=0.6),
    "final": final_goal(),
}


@pytest.mark.parametrize("kind", GOALS)
def test_goals(numbered: Dataset, kind: str) -> None:
    pipe, ahead, ends = make(numbered, GOALS[kind]), Counter[int](), Counter[bool]()
    epochs = [sorted(rows_of(pipe, "goal")) for _ in range(20)]
    for rows in epochs:
        assert [row[:2] for row in rows] == EVERY
        for key, start, goal in rows:
            last = LENGTHS[int(key[4:])] - 1
            assert start <= goal <= last
            ahead[goal - start] += 1
            ends[goal == last] += 1
    if kind == "final":
        assert not ends[False]
        return
    assert epochs[0] != epochs[1]
    if kind == "geometric":
        assert ahead[0] / ahead.total() == pytest.approx(0.4, abs=0.05)
        assert ahead[1] / ahead[0] == pytest.approx(0.6, abs=0.1)
    else:
        share = np.mean([1 / (LENGTHS[int(key[4:])] - start) for key, start in EVERY])
        assert ends[True] / ends.total() == pytest.approx(float(share), abs=0.03)


def test_lists_of_functions_are_called_in_order(numbered: Dataset) -> None:
    late = where(lambda samples: samples["goal"] - samples["start"] > 4)
    for functions in ([every(4), future_goal(), late], [future_goal(), late, every(4)]):
        pipe = make(numbered, functions)
        rows = rows_of(pipe, "goal")
        assert rows
        assert all(start % 4 == 0 and goal - start > 4 for _, start, goal in rows)
    table = {"episode": ["set/3", "set/0", "set/3"], "start": [8, 2, 3], "row": [0, 1, 2]}
    pipe = make(numbered, [table, tagged, every(2)])
    for epoch in (0, 1):
        expected = [("set/0", 2, 1, 20 + epoch), ("set/3", 8, 0, 80 + epoch)]
        assert sorted(rows_of(pipe, "row", "tag")) == expected
    lists = {"episode": ["set/3", "set/0"], "frames": [[9, 8, 30], [2, 4, 0]]}
    pipe = make(numbered, [lists, tagged, future_goal()], clip_len=None)
    (batch,) = pipe
    for row, key in enumerate(batch["episode"]):
        first = {"set/3": 8, "set/0": 0}[key]
        assert batch["tag"][row] == first * 10
        assert first <= batch["goal"][row] < LENGTHS[int(key[4:])]


@pytest.mark.parametrize("n", [1, 2, 3, 6])
@pytest.mark.parametrize("stride", [1, 2, 4])
def test_every_is_a_filter_of_starts(numbered: Dataset, stride: int, n: int) -> None:
    given = [clip for clip in EVERY if clip[1] % stride == 0]
    pipe = make(numbered, [every(n), tagged], stride=stride)
    expected = [(*clip, clip[1] * 10) for clip in given if clip[1] % n == 0]
    assert sorted(rows_of(pipe, "tag")) == expected
    assert sorted(rows_of(make(numbered, [tagged, every(n)], stride=stride), "tag")) == expected
    pipe = make(numbered, [tagged, every(n, rotate=True)], stride=stride)
    phases = len({start % n for _, start in given})
    rows = [row for _ in range(phases) for row in rows_of(pipe)]
    assert sorted(rows) == given


@pytest.mark.parametrize(("stride", "n"), [(4, 6), (6, 4), (6, 9), (2, 7)])
@pytest.mark.parametrize("first", [[], [skip_first(3)]])
def test_every_with_a_stride_that_shares_a_factor(
    numbered: Dataset, stride: int, n: int, first: list[Any]
) -> None:
    """Each remainder that a start has comes once in a turn of epochs, in any order."""
    given = [clip for clip in EVERY if clip[1] % stride == 0 and (clip[1] >= 3 or not first)]
    by_remainder: dict[int, list[Clip]] = {}
    for clip in given:
        by_remainder.setdefault(clip[1] % n, []).append(clip)
    pipe = make(numbered, [*first, every(n, rotate=True)], stride=stride, shuffle=False)
    for _ in range(2):
        epochs = []
        for _ in range(len(by_remainder)):
            expected = pipe.num_clips  # of the next epoch
            epochs.append(all_names(pipe))
            assert len(epochs[-1]) == expected
        assert sorted(epochs) == sorted(by_remainder.values())
    plain = make(numbered, [*first, every(n)], stride=stride, shuffle=False)
    assert all_names(plain) == by_remainder[0]


def test_repeats_of_functions(numbered: Dataset) -> None:
    def more(samples: Samples, _epoch: int, _rng: SampleRandom) -> Samples:
        return samples.with_columns(repeat=(samples["start"] % 3) / 2)

    pipe = make(numbered, [more, future_goal()])
    rows = [row for _ in range(2) for row in rows_of(pipe, "goal")]
    found = Counter(row[:2] for row in rows)
    whole = {clip: clip[1] % 3 for clip in EVERY if clip[1] % 3 != 1}
    assert {clip: found[clip] for clip in whole} == whole
    assert sum(found.values()) == pytest.approx(sum(start % 3 for _, start in EVERY), abs=2)
    assert len({*rows}) > len(found)  # copies have goals of their own


def test_loaders_of_every_kind(numbered: Dataset) -> None:
    """Map-style datasets draw by epoch and row; sources of a mix have epochs of their own."""
    functions = [turned, future_goal()]
    expected = []
    for epoch in (0, 1):
        pipe = make(numbered, functions)
        pipe.set_epoch(epoch)
        expected.append(sorted(rows_of(pipe, "label", "drawn", "goal")))
    options: dict[str, Any] = {"clip_len": 3, "features": ["id"], "seed": 3}
    dataset = SeqRecordMapDataset(numbered, samples=functions, **options)
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        batch = seqrecord.collate(dataset.__getitems__(range(len(dataset))))
        assert rows_of([batch], "label", "drawn", "goal") == expected[epoch]
    sources = {"a": make(numbered, functions, batch_size=None, seed=0)}
    sources["b"] = SeqRecordPipe(numbered, clip_len=3, features=["id"])
    mix = SeqRecordMix(sources, batch_size=4, weights={"a": 1, "b": 1}, stopping_strategy=30)
    starts = []
    for batch in mix:
        for row, name in enumerate(batch["dataset"]):
            if name == "a":
                starts.append(int(batch["start"][row]))
                assert batch["label"][row] == f"{batch['episode'][row]} {starts[-1]}"
            else:
                assert batch["label"][row] is None
                assert batch["goal"][row] == 0
    counts = [len([1 for _, start in EVERY if (start + epoch) % 3 == 0]) for epoch in range(3)]
    assert {start % 3 for start in starts[: counts[0]]} == {0}
    assert {start % 3 for start in starts[counts[0] : counts[0] + counts[1]]} == {2}
    check_resume(
        lambda: SeqRecordMix(sources, batch_size=4, stopping_strategy=9), positions=lambda _: [3]
    )


@pytest.mark.parametrize("adds", [future_goal(), tagged])
def test_columns_before_a_choice_of_rows_keep_the_rows(numbered: Dataset, adds: Any) -> None:
    """In a mix, epochs of a source begin where those of the same rows without columns do."""
    starts = []
    for functions in ([every(4)], [adds, every(4)]):
        source = make(numbered, functions, batch_size=None, seed=0)
        mix = SeqRecordMix({"a": source}, batch_size=4, stopping_strategy=20)
        starts.append(sorted(rows_of(mix)))
    assert starts[0] == starts[1]


def test_states_compare_functions(numbered: Dataset) -> None:
    def other(samples: Samples, _epoch: int, _rng: SampleRandom) -> Samples:
        return samples.with_columns(tag=samples["start"])

    states = {n: make(numbered, f).state_dict() for n, f in (("own", tagged), ("every", every(3)))}
    for name, samples in (("own", other), ("own", every(3)), ("every", every(2)), ("every", None)):
        with pytest.raises(StateError, match="samples"):
            make(numbered, samples).load_state_dict(states[name])
    make(numbered, [tagged]).load_state_dict(states["own"])
    make(numbered, [every(3)]).load_state_dict(states["every"])


def test_columns_keep_shards_and_frames(numbered: Dataset, tmp_path: Path) -> None:
    """Other rows keep frames in one process only."""
    numbered = seqrecord.open(encoded(tmp_path))
    for samples, num_ranks, is_kept in (
        (tagged, 2, True),
        (future_goal(), 2, True),
        (every(3), 2, True),
        (turned, 1, True),
        (turned, 2, False),
        (every(3, rotate=True), 2, False),
    ):
        clips = list[Any]()
        for rank in range(num_ranks):
            place = {"rank": (rank, num_ranks), "last_batch": "keep"}
            pipe = make(numbered, samples, features=["image", "id"], **place)
            own = [{*map(tuple, (row[:2] for row in rows_of(pipe)))} for _ in range(2)]
            assert pipe.stats()["features_redecoded"] == ([] if is_kept else ["image"])
            assert samples is turned or not is_kept or own[0] == own[1]
            clips += own[0]
        assert len(clips) == len({*clips})


def encoded(folder: Path) -> Path:
    from tests.kit.clip_data import write_numbered

    return write_numbered(folder / "records", codecs={"image": "jpeg"})


@pytest.mark.parametrize("samples", [turned, every(3, rotate=True), future_goal()])
def test_the_least_memory_suffices(numbered: Dataset, samples: Any) -> None:
    def of_limit(memory_limit: int) -> SeqRecordPipe:
        return make(numbered, samples, memory_limit=memory_limit)

    pipe = of_limit(minimum_memory(of_limit))
    for _ in range(3):
        assert rows_of(pipe)
    assert pipe.stats()["peak_buffer_bytes"] <= pipe.stats()["memory_limit"]


def late(samples: Samples, epoch: int, _rng: SampleRandom) -> Samples:
    return samples.filter(samples["start"] > 3) if epoch else samples


WRONG: list[tuple[Any, str]] = [
    (lambda samples, *_: {"start": samples["start"]}, "returns no table made from its argument"),
    (lambda samples, *_: samples.filter([True]), r"filter has no flag.*bool \[67\]"),
    (lambda samples, *_: samples.filter(samples["start"] < 0), "leave no sample"),
    (lambda samples, *_: samples.take([1, 1]), "take has a row twice.*repeat"),
    (lambda samples, *_: samples.take([67]), "a row that samples lacks.*0 to 66; got: 67"),
    (lambda samples, *_: samples.take([0.5]), "no row numbers"),
    (lambda samples, *_: samples.take([[1], [1, 2]]), "no row numbers"),
    (lambda samples, *_: samples.filter([[True], [True, False]]), "filter has no flag"),
    (lambda samples, *_: samples.with_columns(goal=[1]), r"another column goal.*for 67 rows"),
    (lambda samples, *_: samples.with_columns(goal=[{}] * 67), "another column goal"),
    (lambda samples, *_: samples.with_columns(goal=np.zeros(67, np.clongdouble)), "another column"),
    (lambda samples, *_: samples.with_columns(goal=np.zeros(67, np.longdouble)), "another column"),
    (lambda samples, *_: samples.with_columns(start=samples["start"]), "does not replace"),
    (lambda samples, *_: samples.with_columns(repeat=-samples["start"]), "invalid repeat, in row"),
    (lambda samples, *_: samples.with_columns(id=samples["start"]), "name of a batch's extra"),
    (lambda samples, *_: samples["goal" if "start" in samples else "start"], "no such column"),
    (lambda samples, *_: samples["goal"], "no such column.*expected: episode, start; got: 'goal'"),
    (lambda samples, *_: samples[np.array(["goal", "start"])], "no such column"),
    (lambda samples, *_: samples.metadata(["task"]), "metadata of samples is not valid"),
    (lambda samples, *_: samples.feature(np.array(["id", "note"])), "feature of samples is not"),
    (lambda samples, *_: samples.head("3"), "count of head is not an integer"),
    (lambda samples, _, rng: rng.integers(samples["start"], 3), "empty range"),
    (lambda samples, _, rng: rng.integers([1, 2], [3, 4, 5]), "integers has no range"),
    (lambda samples, _, rng: rng.integers([0, 0], 3, size=5), "integers has no range"),
    (lambda samples, _, rng: rng.integers([0, 0], 3, size=1), "integers has no range"),
    (lambda samples, _, rng: rng.integers("three"), "integers has no range"),
    (lambda samples, _, rng: rng.integers(0.5, 3), "integers has no range"),
    (lambda samples, _, rng: rng.integers([0, 0], [2, np.nan]), "integers has no range"),
    (lambda samples, _, rng: rng.random("3"), "size is not an integer"),
    (lambda samples, _, rng: rng.permutation(-1), "length is too small"),
    (where(lambda samples: None), "filter has no flag"),
    (skip_last(50), "leave no sample"),
]


def test_columns_of_the_other_byte_order(numbered: Dataset) -> None:
    def columns(samples: Samples, *_: Any) -> Samples:
        return samples.with_columns(goal=samples["start"].astype(">i2"))

    pipe = SeqRecordPipe(numbered, clip_len=1, samples=columns, batch_size=4, last_batch="keep")
    for batch in pipe:
        assert batch["goal"].dtype == torch.int16
        assert batch["goal"].tolist() == batch["start"].tolist()


def test_columns_keep_their_values(numbered: Dataset) -> None:
    """The user's array may change in the epoch, for example to the clips' losses."""
    losses = np.zeros(len(EVERY))

    def weigh(samples: Samples, *_: Any) -> Samples:
        return samples.with_columns(loss=losses)

    pipe = make(numbered, weigh)
    for epoch in (0, 1):
        expected = float(losses[0])
        for batch in pipe:
            assert (batch["loss"] == expected).all(), epoch
            losses += 1


def test_errors(numbered: Dataset) -> None:
    for samples, match in WRONG:
        with pytest.raises(ClipError, match=match):
            make(numbered, samples)
    with pytest.raises(ClipError, match="leave no sample"):
        make(numbered, [future_goal(), skip_last(50)], windows={"id": [At("goal")]})
    pipe = make(numbered, late)
    list(pipe)
    with pytest.raises(ClipError, match="changes the rows in epoch 1, and not in epoch 0"):
        next(iter(pipe))
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: every(0), "n of every"),
        (lambda: where(3), "where has no condition"),  # type: ignore[arg-type]
        (lambda: per_episode(subset(of=5)), r"expected: subset\(…\) by itself in the list"),
        (lambda: future_goal("far"), "'uniform' or 'geometric'"),
        (lambda: future_goal(discount=1.0), "discount is out of range"),
    ]
    for call, match in wrong:
        with pytest.raises(ClipError, match=match):
            call()


def later(**columns: Any) -> Callable[..., Samples]:
    """A function that adds columns in epoch 1, and a column `weight` of floats in epoch 0."""

    def add(samples: Samples, epoch: int, _: SampleRandom) -> Samples:
        added = columns if epoch else {"weight": 0.5}
        return samples.with_columns(**{n: [value] * len(samples) for n, value in added.items()})

    return add


LATER: list[tuple[dict[str, Any], str | None, str | None]] = [  # in a pipe, and in a mix
    ({}, None, None),
    ({"weight": 1}, None, None),
    ({"goal": 1}, None, "samples has the column goal.*of epoch 0; .*same columns.*got: goal"),
    (
        {"weight": [1.0, 2.0]},
        None,
        r"another form.*float64; got: float64 \[2\]",
    ),
    ({"weight": "a"}, None, "weight of samples has another form.*expected: float64; got: texts"),
    ({"id": 1}, "name of another", "name of another"),
    ({"dataset": 1}, None, "samples has the column dataset"),
]


@pytest.mark.parametrize("number", range(len(LATER)))
def test_columns_of_a_later_epoch(numbered: Dataset, number: int) -> None:
    columns, in_pipe, in_mix = LATER[number]
    source = SeqRecordIterableDataset(numbered, clip_len=1, samples=later(**columns))
    mix = SeqRecordMix({"a": source, "b": SeqRecordPipe(numbered, clip_len=1)}, batch_size=2)
    with_rows = SeqRecordMapDataset(numbered, clip_len=1, samples=later(**columns))
    with_rows.set_epoch(1)
    for loader, match in ((make(numbered, later(**columns)), in_pipe), (mix, in_mix)):
        assert {"weight"} < next(iter(loader)).keys()
        loader.set_epoch(1)
        if match is None:
            assert list(loader)
            continue
        with pytest.raises(ClipError, match=match):
            list(loader)
        with pytest.raises(ClipError, match=match):
            [loader.rows(1, batch) for batch in range(len(loader))]
    with pytest.raises(ClipError, match=in_pipe) if in_pipe else nullcontext():
        assert {*columns} <= with_rows[0].keys()


def test_integers_of_a_later_epoch_are_never_rounded(numbered: Dataset) -> None:
    def numbers(samples: Samples, epoch: int, _: SampleRandom) -> Samples:
        weight = np.full(len(samples), 300, np.int64) if epoch else np.zeros(len(samples), np.int8)
        return samples.with_columns(weight=weight)

    sources = {"a": SeqRecordIterableDataset(numbered, clip_len=1, samples=numbers)}
    mix = SeqRecordMix(sources, batch_size=2)
    mix.set_epoch(1)
    with pytest.raises(ClipError, match=r"source 'a'.*weight.*expected: int8; got: int64"):
        list(mix)


def test_sequences_have_columns_of_their_own(numbered: Dataset) -> None:
    def ends(samples: Samples, *_: Any) -> Samples:
        return samples.with_columns(is_first=samples["start"])

    with pytest.raises(ClipError, match=r"name of another column of batches.*got: is_first"):
        make(numbered, ends, batch_size=2, order="sequences")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("low", "high"),
    [(-(2**62), 2**62), (-(2**63), 2**63 - 1), (-1, 2**63 - 1), (-(2**63), 0), (-3, 2), (5, 6)],
)
@pytest.mark.parametrize("is_array", [False, True])
def test_random_integers_of_any_range(low: int, high: int, *, is_array: bool) -> None:
    rng, count, part = SampleRandom(seed=5, epoch=2), 400, (high - low) // 16
    bounds: Any = ([low] * count, [high] * count) if is_array else (low, high)
    numbers = rng.integers(bounds[0], bounds[1], size=count).tolist()
    assert low <= min(numbers) <= low + part
    assert high - 1 - part <= max(numbers) < high
    assert low <= rng.integers(low, high) < high


def test_random_numbers_of_functions() -> None:
    """Fixed values: they are equal on all platforms and with all versions of NumPy."""
    rng = SampleRandom(seed=5, epoch=2)
    assert rng.integers(10, size=6).tolist() == RANDOM[0]
    assert rng.integers([0, 7], [4, 8]).tolist() == RANDOM[1]
    assert rng.permutation(5).tolist() == RANDOM[2]
    assert rng.random(2).tolist() == RANDOM[3]
    assert SampleRandom(5, 2, 1).integers(10, size=6).tolist() != RANDOM[0]
    assert pickle.loads(pickle.dumps(future_goal())) == future_goal()
    assert repr(every(4)) == "every(n=4, rotate=False)"


RANDOM = [[9, 6, 1, 2, 2, 8], [0, 7], [1, 4, 3, 0, 2], [0.25873053730635676, 0.887593489122354]]


def last(key: str) -> int:
    return LENGTHS[int(key[4:])]


FILTERS: list[tuple[Any, Callable[[str, int], bool]]] = [
    (skip_first(4), lambda _, start: start >= 4),
    (skip_last(5), lambda key, start: start < last(key) - 5),
    ([skip_last(30), skip_first(0)], lambda key, start: start < last(key) - 30),
    ([every(3), skip_first(5), skip_last(9)], lambda key, s: s in range(6, last(key) - 9, 3)),
    ([skip_last(9), every(3), skip_first(5)], lambda key, s: s in range(6, last(key) - 9, 3)),
    (where(lambda samples: samples["episode"] != "set/0"), lambda key, _: key != "set/0"),
]


@pytest.mark.parametrize("number", range(len(FILTERS)))
def test_filters(numbered: Dataset, number: int) -> None:
    samples, is_kept = FILTERS[number]
    expected = [clip for clip in EVERY if is_kept(*clip)]
    rows = rows_of(make(numbered, samples))
    assert sorted(rows) == expected
    functions = samples if isinstance(samples, list) else [samples]
    table = {"episode": [key for key, _ in EVERY], "start": [start for _, start in EVERY]}
    assert sorted(rows_of(make(numbered, [table, *functions]))) == expected
    lists = {"episode": table["episode"], "frames": [[s + 2, s, s + 1] for _, s in EVERY]}
    if every(3) not in functions:
        assert sorted(all_names(make(numbered, [lists, *functions], clip_len=None))) == expected


@pytest.mark.parametrize("form", ["default", "starts", "frames"])
def test_one_sample_of_each_episode(numbered: Dataset, form: str) -> None:
    table: dict[str, Any] = {"episode": [key for key, _ in EVERY]}
    table["start"] = [start for _, start in EVERY]
    options: dict[str, Any] = {}
    if form == "frames":
        table["frames"] = [[start, start + 1] for start in table.pop("start")]
        options = {"clip_len": None, "memory_limit": "6KiB"}
    functions = [one_per_episode()] if form == "default" else [table, one_per_episode()]
    pipe, counts = make(numbered, functions, **options), Counter[Clip]()
    for _ in range(60):
        epoch = all_names(pipe)
        assert [*sorted(key for key, _ in epoch)] == ["set/0", "set/1", "set/2", "set/3"]
        counts.update(epoch)
    assert counts["set/2", 0] == 60
    assert {clip for clip in counts if clip[0] == "set/1"} == {c for c in EVERY if c[0] == "set/1"}


@pytest.mark.parametrize(
    "function",
    [
        every(2),
        every(3, rotate=True),
        skip_first(5),
        skip_last(7),
        per_episode(lambda samples, *_: samples.filter(samples["start"] % 2 == 0)),
    ],
)
def test_lists_of_frames_start_at_their_first_frame(numbered: Dataset, function: Any) -> None:
    """As the same samples by `start`; places among listed frames are no frames."""
    chosen = EVERY[5::3] + EVERY[:40:7]
    starts: dict[str, Any] = {
        "episode": [key for key, _ in chosen],
        "start": [start for _, start in chosen],
    }
    frames = [[start, start + 1, start + 2] for start in starts["start"]]
    lists = {"episode": starts["episode"], "frames": frames}
    pipe = make(numbered, [starts, function, tagged])
    listed = make(numbered, [lists, function, tagged], clip_len=None, memory_limit="24KiB")
    for _ in range(3):
        expected = sorted(rows_of(pipe, "tag"))
        assert 0 < len(expected) < len(chosen)
        assert sorted(rows_of(listed, "tag")) == expected


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Episodes with subtasks, rewards and metadata."""
    path = tmp_path_factory.mktemp("labelled") / "records"
    with SeqRecordWriter(path) as writer:
        for number, (key, subtasks) in enumerate(SUBTASKS.items()):
            metadata = {"task": "open" if number else "close", "score": number + 1}
            with writer.episode(key, metadata=metadata) as episode:
                for frame, text in enumerate(subtasks):
                    values = {"frame": np.int64(frame), "reward": np.float32(frame % 4)}
                    episode.append({**values, "subtask": text, "step": np.int64(frame // 5)})
    return seqrecord.open(path)


SUBTASKS = {"a": "xxxxyyyyyyxxxzzz", "b": "xxxxxxxxx", "c": "yxyxxxyyyyyy"}


def clips_of(*windows: int, where: Callable[[str, list[int]], bool]) -> list[Clip]:
    return [
        (key, start)
        for key, texts in SUBTASKS.items()
        for start in range(len(texts))
        if (frames := [start + offset for offset in windows])
        if min(frames) >= 0 and max(frames) < len(texts) and where(key, frames)
    ]


@pytest.mark.parametrize("feature", ["subtask", "step"])
def test_inside_a_segment_are_all_clips_of_one_frame(labelled: Dataset, feature: str) -> None:
    def is_any(_key: str, _frames: list[int]) -> bool:
        return True

    features = ["frame", "subtask", "step"]
    options: dict[str, Any] = {"features": features, "samples": inside(feature)}
    pipe = SeqRecordPipe(labelled, clip_len=1, batch_size=4, **options)
    assert sorted(all_names(pipe)) == clips_of(0, where=is_any)
    windows = {name: [2] for name in features}
    pipe = SeqRecordPipe(labelled, windows=windows, batch_size=4, **options)
    assert sorted(all_names(pipe)) == clips_of(2, where=is_any)
    listed = {"episode": ["a", "c", "b"], "frames": [[4], [0], [8]]}
    options["samples"] = [listed, inside(feature)]
    pipe = SeqRecordPipe(labelled, batch_size=4, **options)
    assert sorted(all_names(pipe)) == [("a", 4), ("b", 8), ("c", 0)]


def test_inside_a_segment(labelled: Dataset) -> None:
    def is_one(key: str, frames: list[int]) -> bool:
        return len({*SUBTASKS[key][min(frames) : max(frames) + 1]}) == 1

    def step(_: str, frames: list[int]) -> bool:
        return len({frame // 5 for frame in frames}) == 1

    pipe = SeqRecordPipe(labelled, clip_len=3, samples=inside("subtask"), batch_size=3)
    assert sorted(all_names(pipe)) == clips_of(0, 1, 2, where=is_one)
    windows = {"frame": [-1, 3], "reward": [0]}
    features = ["frame", "reward", "subtask", "step"]
    options: dict[str, Any] = {"windows": {**windows, "subtask": [0]}, "features": features}
    for pad, found in ((None, [-1, 0, 3]), ("edge", None)):
        pipe = SeqRecordPipe(labelled, **options, pad=pad, samples=inside("step"), batch_size=2)
        expected = clips_of(*(found or [0]), where=step)
        if found is None:  # padded frames repeat the first or last one
            expected = [
                (key, start)
                for key, start in clips_of(0, where=step)
                if max(start - 1, 0) // 5 == min(start + 3, len(SUBTASKS[key]) - 1) // 5
            ]
        assert sorted(all_names(pipe)) == expected
    functions = [dilate(1, 2), inside("subtask")]
    pipe = SeqRecordPipe(labelled, clip_len=3, samples=functions, batch_size=3)
    for _ in range(3):
        for batch in pipe:
            for (key, start), dilation in zip(names(batch), batch["dilation"], strict=True):
                assert is_one(key, [start, start + 2 * int(dilation)])
    for more in ({"samples": [reverse(0.5)]}, {"samples": [subset(of=3)]}, {"clip_len": (2, 3)}):
        fixed: dict[str, Any] = {"clip_len": 3, "dilation": 2, "batch_size": 3, **more}
        fixed["samples"] = [*fixed.get("samples", ()), inside("subtask")]
        pipe = SeqRecordPipe(labelled, **fixed)
        assert sorted(all_names(pipe)) == clips_of(0, 2, 4, where=is_one)
    frames = {"episode": ["a", "a", "c"], "frames": [[6, 4, 9], [0, 2, 10], [3, 5, 4]]}
    pipe = SeqRecordPipe(labelled, samples=[frames, inside("subtask")])
    assert sorted(all_names(pipe)) == [("a", 4), ("c", 3)]
    frames = {"episode": ["a", "c", "b", "a"], "frames": [[6, 4], [1, 2], [5], [0, 2, 1]]}
    pipe = SeqRecordPipe(labelled, samples=[frames, inside("subtask")], ragged="pad")
    assert sorted(all_names(pipe)) == [("a", 0), ("a", 4), ("b", 5)]


@pytest.mark.parametrize("name", ["reward", "score", "task", "subtask", "weight"])
@pytest.mark.parametrize("power", [1.0, -1.0, 0.0])
def test_repeats_by_values(labelled: Dataset, name: str, power: float) -> None:
    def weigh(samples: Samples, *_: Any) -> Samples:
        return samples.with_columns(weight=samples["start"] % 2 + 1)

    clips = clips_of(0, 1, where=lambda *_: True)
    scores = {"a": 1, "b": 2, "c": 3}
    values: list[Any] = [
        {
            "reward": start % 4,
            "score": scores[key],
            "task": "close" if key == "a" else "open",
            "subtask": SUBTASKS[key][start],
            "weight": start % 2 + 1,
        }[name]
        for key, start in clips
    ]
    if name in ("task", "subtask"):
        values = [Counter(values)[value] for value in values]
    functions = [weigh, repeat_by(name, power=power)]
    options: dict[str, Any] = {"clip_len": 2, "samples": functions, "batch_size": 5}
    if name == "reward" and power < 0:
        with pytest.raises(ClipError, match="repeat_by has no share of reward in row 0"):
            SeqRecordPipe(labelled, **options)
        return
    share = np.array(values, float) ** power
    repeat = share / share.mean()
    pipe = SeqRecordPipe(labelled, **options)
    found = Counter(clip for _ in range(40) for clip in all_names(pipe))
    assert [found[clip] / 40 for clip in clips] == pytest.approx(repeat.tolist(), abs=0.35)
    assert found.total() / 40 == pytest.approx(len(clips), abs=0.1)


def test_one_long_text_takes_no_memory_in_other_frames(tmp_path: Path) -> None:
    """Texts of frames, and of rows, take the memory of the texts that there are."""
    long = "x" * 5000
    notes = [long if frame == 7 else "reach" for frame in range(2000)]
    write_dataset(tmp_path / "a", {"0": columns(note=notes)}, metadata={"0": {"long": long}})
    options: dict[str, Any] = {"clip_len": 2, "memory_limit": "1MiB"}
    found = list[Any]()

    def see(samples: Samples, *_: Any) -> Samples:
        found[:] = [samples.feature("note")[6:9].tolist()]
        return samples

    for function, num_clips in (
        (inside("note"), 1997),
        (repeat_by("note", power=0), 1999),
        (repeat_by("long", power=0), 1999),
        (see, 1999),
    ):
        make_one = partial(SeqRecordMapDataset, tmp_path / "a", samples=function, **options)
        assert len(make_one()) == num_clips
        assert peak_of(make_one) < 4 << 20
    assert found == [["reach", long, "reach"]]


@pytest.mark.parametrize(
    ("values", "row"),
    [((1, 2, None), 10), ((1.5, None, 2), 4), (([1], [2], [1]), 0), ((1, [1], [2]), 4)],
)
def test_values_that_are_no_shares(tmp_path: Path, values: Any, row: int) -> None:
    """Numbers that an episode lacks, and lists, are named; they are not counted as texts."""
    keys = "abc"
    frames = {
        key: [{"x": np.int64(i)} for i in range(n)] for key, n in zip(keys, (4, 6, 5), strict=True)
    }
    metadata = {k: {} if v is None else {"v": v} for k, v in zip(keys, values, strict=True)}
    write_dataset(tmp_path / "records", frames, metadata=metadata)
    with pytest.raises(ClipError, match=f"repeat_by has no share of v in row {row};"):
        SeqRecordPipe(tmp_path / "records", clip_len=1, samples=repeat_by("v"), batch_size=2)


def alternate(samples: Samples, epoch: int, rng: SampleRandom) -> Samples:
    """Half of an episode's samples, with a text, a draw and the largest start of the episode."""
    last = samples["start"].max()
    kept = samples.filter(np.arange(len(samples)) % 2 == epoch % 2 * (len(samples) > 1))
    columns = {"label": [str(start) for start in kept["start"]], "last": np.full(len(kept), last)}
    return kept.with_columns(**columns, drawn=rng.integers(1 << 40, size=len(kept)))


def test_functions_of_each_episode(numbered: Dataset) -> None:
    by_episode: dict[str, list[int]] = {}
    for key, start in EVERY:
        by_episode.setdefault(key, []).append(start)
    pipe = make(numbered, [future_goal(), per_episode(alternate)])
    for epoch in (0, 1):
        rows = sorted(rows_of(pipe, "label", "last", "drawn", "goal"))
        expected = [
            (key, start, str(start), starts[-1])
            for key, starts in by_episode.items()
            for start in starts[epoch % 2 * (len(starts) > 1) :: 2]
        ]
        assert [row[:4] for row in rows] == expected
        assert len({row[4] for row in rows}) == len(rows)
        assert all(start <= goal < LENGTHS[int(key[4:])] for key, start, *_, goal in rows)
    labels = per_episode(lambda samples, *_: samples.with_columns(tag=samples["start"] * 10))
    assert sorted(rows_of(make(numbered, labels), "tag")) == [(*c, c[1] * 10) for c in EVERY]
    with pytest.raises(ClipError, match="returns no table"):
        make(numbered, per_episode(lambda *_: None))  # type: ignore[arg-type]


def by_stride(samples: Samples, epoch: int, rng: SampleRandom) -> Samples:
    """Another stride in each episode, and a phase drawn for it."""
    stride = 2 + len(samples) % 2
    return every(stride, rotate=len(samples) >= stride)(samples, epoch, rng)


STRIDES: list[tuple[Any, Callable[[int], bool]]] = [
    (per_episode(every(4)), lambda start: start % 4 == 0),
    ([every(2), per_episode(every(3))], lambda start: start % 6 == 0),
    ([per_episode(every(3)), every(2)], lambda start: start % 6 == 0),
    (per_episode(per_episode(every(4))), lambda start: start % 4 == 0),
    (per_episode(lambda *of: every(4)(*of)), lambda start: start % 4 == 0),
    ([every(2), per_episode(lambda *of: every(3)(*of))], lambda start: start % 6 == 0),
    ([per_episode(lambda *of: every(3)(*of)), every(2)], lambda start: start % 6 == 0),
    ([per_episode(lambda *of: every(4)(*of)), skip_first(5)], lambda s: s > 4 and s % 4 == 0),
    ([tagged, per_episode(lambda *of: every(4)(*of))], lambda start: start % 4 == 0),
]


@pytest.mark.parametrize("number", range(len(STRIDES)))
def test_strides_of_each_episode(numbered: Dataset, number: int) -> None:
    samples, is_start = STRIDES[number]
    expected = [clip for clip in EVERY if is_start(clip[1])]
    for more in ({}, {"shuffle": False, "memory_limit": "24KiB"}):
        pipe = make(numbered, samples, last_batch="keep", **more)
        assert sorted(row[:2] for row in rows_of(pipe)) == expected
    clips = SeqRecordMapDataset(numbered, clip_len=3, features=["id"], samples=samples)
    items = [clips[number] for number in range(len(clips))]
    assert [(clip["episode"], int(clip["start"])) for clip in items] == expected


def test_episodes_rotate_by_themselves(numbered: Dataset) -> None:
    """Each has every start once, over as many epochs as it has remainders with a start."""
    by_episode: dict[str, set[int]] = {}
    for key, start in EVERY:
        by_episode.setdefault(key, set()).add(start)
    pipe = make(numbered, [per_episode(every(4, rotate=True)), tagged], last_batch="keep")
    epochs = [rows_of(pipe, "tag") for _ in range(4)]
    for key, starts in by_episode.items():
        found = [[start for one, start, _ in epoch if one == key] for epoch in epochs]
        count = min(4, len(starts))
        assert all(len({start % 4 for start in some}) == 1 for some in found)
        assert Counter(start for some in found[:count] for start in some) == Counter(starts)
    assert len({start % 4 for key, start, _ in epochs[0] if len(by_episode[key]) > 3}) == 1


def test_a_filter_behind_other_phases_of_each_episode(numbered: Dataset) -> None:
    for functions in ([per_episode(by_stride)], [every(2), per_episode(by_stride)]):
        pipe = make(numbered, functions, last_batch="keep")
        halved = make(numbered, [*functions, every(2)], last_batch="keep")
        few = make(numbered, [*functions, skip_first(4), skip_last(4)], last_batch="keep")
        for _ in range(3):
            chosen = sorted(all_names(pipe))
            assert sorted(all_names(halved)) == [clip for clip in chosen if clip[1] % 2 == 0]
            assert sorted(all_names(few)) == [
                (key, start) for key, start in chosen if 4 <= start < LENGTHS[int(key[4:])] - 4
            ]


def test_sequences_of_each_episodes_multiples(numbered: Dataset) -> None:
    """They go on from one to the next, as without `per_episode`."""
    options: dict[str, Any] = {"order": "sequences", "batch_size": 2, "last_batch": "keep"}
    several = [make(numbered, one, **options) for one in (every(6), per_episode(every(6)))]
    for batch, other in zip(*several, strict=True):
        assert names(batch) == names(other)
        assert torch.equal(batch["is_first"], other["is_first"])


def test_functions_of_all_rows_have_a_limit() -> None:
    clips = Case.of(ClipSpec(3), [MOST_ROWS + 3], 64)
    samples = Samples(clips.table, cast(SampleEpisodes, None))
    for function in (turned, where(lambda samples: samples["start"] > 2)):
        with pytest.raises(ClipError, match=r"too many rows.*per_episode.*20,000,001 rows, of"):
            called([function], samples, 0, 0)
    found, _ = called([every(7), future_goal()], samples, 0, 0)
    assert (len(found), len(found.clips.count)) == (MOST_ROWS // 7 + 1, 1)


@pytest.mark.parametrize(
    "function", [inside, partial(repeat_by, power=-1)], ids=["inside", "repeat_by"]
)
def test_states_of_functions_of_renamed_features(tmp_path: Path, function: Any) -> None:
    """A state has the stored name of the feature, or the entry of the metadata."""
    rows = columns(a=[1 + i // 3 for i in range(24)], b=[1 + i // 5 for i in range(24)])
    write_dataset(tmp_path, {"x": rows}, metadata={"x": {"task": "t"}})

    def pipe(name: str, **rename: str) -> SeqRecordPipe:
        options: dict[str, Any] = {"samples": function(name), "rename": rename}
        return SeqRecordPipe(tmp_path, clip_len=2, batch_size=2, seed=1, **options)

    running = begun(stored := pipe("a"), 2)
    state = stored.state_dict()
    rest = all_names(running)
    for again in (pipe("number", a="number"), pipe("b", a="b", b="a")):
        assert all_names(resumed(again, state)) == rest
    for other in (pipe("b"), pipe("a", a="b", b="a")):
        with pytest.raises(StateError, match="other settings: samples"):
            other.load_state_dict(state)
    if function is not inside:
        of_metadata = begun(stored := pipe("task"), 2)
        state = stored.state_dict()
        rest = all_names(of_metadata)
        assert all_names(resumed(pipe("task", a="task"), state)) == rest


@pytest.mark.parametrize("rename", [None, {"id": "number"}])
def test_samples_replaced_between_epochs(tmp_path: Path, rename: dict[str, str] | None) -> None:
    """Frames stay in memory, and a state needs the samples."""
    dataset = seqrecord.open(encoded(tmp_path))
    options: dict[str, Any] = {"clip_len": 3, "features": ["image", "id"], "batch_size": 4}
    pipe = SeqRecordPipe(dataset, **options, rename=rename, seed=3)
    assert sorted(all_names(pipe)) == EVERY
    assert pipe.stats()["frames_decoded"]
    chosen = {"episode": ["set/3", "set/0"], "start": [9, 4], "repeat": [2.0, 1.0]}
    for samples, expected in (
        (every(4), [clip for clip in EVERY if clip[1] % 4 == 0]),
        (tagged, EVERY),
        (None, EVERY),
        (chosen, [("set/0", 4), ("set/3", 9), ("set/3", 9)]),
    ):
        pipe.set_samples(samples)
        assert pipe.options.samples is samples or samples is chosen
        assert pipe.options.rename == rename
        epoch, state = pipe.state_dict()["epoch"], pipe.state_dict()
        batches = list(pipe)
        assert sorted(all_names(batches)) == expected
        assert pipe.stats()["frames_decoded"] == 0 or samples is chosen
        if samples is tagged:
            tags = [tag for batch in batches for tag in batch["tag"].tolist()]
            assert sorted(tags) == sorted(10 * start + epoch for _, start in EVERY)
        resumed = SeqRecordPipe(dataset, **options, rename=rename, seed=3, samples=samples)
        resumed.load_state_dict(state)
        assert all_names(resumed) == all_names(batches)
    iterator = iter(pipe)
    next(iterator)
    with pytest.raises(StateError, match="inside an epoch"):
        pipe.set_samples(None)


def test_samples_replaced_behind_the_end_of_a_node(numbered: Dataset) -> None:
    """Its state is at the begin of the next epoch."""
    node = SeqRecordNode(numbered, clip_len=3, features=["id"], samples=every(4), batch_size=4)
    node.reset()
    few = list(iter(node.next, None))
    node.set_samples(None)
    state = node.state_dict()
    assert (state["epoch"], state["batch"]) == (1, 0)
    node.reset(state)
    assert len(list(iter(node.next, None))) > len(few)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_samples_replaced_with_workers(numbered: Dataset) -> None:
    """New workers get them; persistent ones cannot."""
    for persistent in (False, True):
        pipe = make(numbered, every(2))
        loader: Any = DataLoader(
            pipe, batch_size=None, num_workers=1, persistent_workers=persistent
        )
        assert {start % 2 for _, start in all_names(loader)} == {0}
        pipe.set_samples(every(3))
        if persistent:
            with pytest.raises(StateError, match="samples were set while persistent workers run"):
                list(loader)
        else:
            assert {start % 3 for _, start in all_names(loader)} == {0}


CHOICES: dict[str, Callable[[st.DataObject], Any]] = {
    "every": lambda data: every(data.draw(st.integers(1, 5))),
    "rotate": lambda data: every(data.draw(st.integers(1, 4)), rotate=True),
    "skip_first": lambda data: skip_first(data.draw(st.integers(0, 9))),
    "skip_last": lambda data: skip_last(data.draw(st.integers(0, 9))),
    "where": lambda _: where(lambda samples: samples["start"] % 5 != 1),
    "one": lambda _: one_per_episode(),
    "goal": lambda data: future_goal(data.draw(st.sampled_from(["uniform", "geometric"]))),
    "tagged": lambda _: tagged,
    "turned": lambda _: turned,
    "alternate": lambda _: per_episode(alternate),
    "rotate each": lambda data: per_episode(every(data.draw(st.integers(1, 4)), rotate=True)),
    "strides": lambda _: per_episode(by_stride),
}


@given(st.data())
def test_any_functions_on_changing_ranks(numbered: Dataset, data: st.DataObject) -> None:
    """Each sample of the table once, with its columns, whatever ranks read it."""
    chosen = data.draw(st.lists(st.sampled_from([*CHOICES]), min_size=1, max_size=4, unique=True))
    functions: list[Any] = [CHOICES[name](data) for name in chosen]
    if data.draw(st.booleans()):
        rows = data.draw(st.lists(st.sampled_from(EVERY), min_size=1, max_size=30))
        key, start = map(list, zip(*rows, strict=True))
        functions = [{"episode": key, "start": start, "row": [*range(len(rows))]}, *functions]
    settings: dict[str, Any] = {
        "shuffle": data.draw(st.booleans()),
        "memory_limit": data.draw(st.sampled_from([None, "24KiB"])),
        "seed": data.draw(st.integers(0, 9)),
        "last_batch": "keep",
        "stride": 1 if isinstance(functions[0], dict) else data.draw(st.sampled_from([1, 1, 3])),
    }
    epoch = data.draw(st.integers(0, 3))
    dataset, message = None, ""
    try:
        dataset = SeqRecordMapDataset(
            numbered,
            clip_len=3,
            features=["id"],
            samples=functions,
            **{name: settings[name] for name in ("seed", "stride")},
        )
        dataset.set_epoch(epoch)
    except ClipError as error:
        message = str(error)
    if message or dataset is None:
        assert "leave no sample" in message
        return
    columns = [*{*dataset[0]} - {"id", "episode", "start"}]
    listed = seqrecord.collate(dataset.__getitems__(range(len(dataset))))
    found, state = Counter[Any](), dict[str, Any]()
    few = st.tuples(st.integers(1, 3), st.integers(0, 3))
    for ranks, batches in (*data.draw(st.lists(few, max_size=2)), (1, None)):
        states = []
        for rank in range(ranks):
            pipe = make(numbered, functions, **settings, rank=(rank, ranks))
            pipe.set_epoch(epoch)
            if state:
                pipe.load_state_dict(state)
            found.update(rows_of(islice(pipe, batches), *columns))
            states.append(pipe.state_dict())
        state = min(states, key=lambda one: one["epoch"])
        if state["epoch"] > epoch:
            break
    assert found == Counter(rows_of([listed], *columns))


def near_goal(samples: Samples, *_: Any) -> Samples:
    return samples.with_columns(goal=np.minimum(samples["start"] + 3, samples.num_frames - 1))


@pytest.mark.parametrize("within", [None, (0, 20)])
@pytest.mark.parametrize("function", [near_goal, final_goal()])
def test_inside_a_segment_of_anchored_frames(labelled: Dataset, function: Any, within: Any) -> None:
    def goal(key: str, start: int) -> int:
        last = len(SUBTASKS[key]) - 1
        return min(start + 3, last) if function is near_goal else last

    windows = {"frame": [0, At("goal", within=within)], "subtask": [0]}
    options: dict[str, Any] = {"windows": windows, "features": ["frame", "subtask"], "pad": "edge"}
    functions = [function, inside("subtask")]
    pipe = SeqRecordPipe(labelled, **options, samples=functions, batch_size=2, last_batch="keep")
    expected = [
        (key, start)
        for key, start in clips_of(0, where=lambda *_: True)
        if len({*SUBTASKS[key][start : goal(key, start) + 1]}) == 1
    ]
    assert sorted(all_names(pipe)) == expected
    with pytest.raises(ClipError, match=r"no integers for At\('goal'\)"):
        next(iter(SeqRecordPipe(labelled, **options, samples=functions[::-1], batch_size=2)))


def test_inside_a_segment_at_each_frame_rate(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path / "rates") as writer:
        for key, fps in (("slow", 2), ("fast", 8)):
            with writer.episode(key, fps=fps) as episode:
                for frame in range(16):
                    episode.append({"part": np.int64(frame // 8)})
    pipe = SeqRecordPipe(
        tmp_path / "rates",
        windows={"part": Seconds([0, 0.5])},
        samples=inside("part"),
        batch_size=2,
        last_batch="keep",
    )
    found = Counter(key for batch in pipe for key in batch["episode"])
    assert found == {"slow": 14, "fast": 8}  # 1 frame apart, and 4


def test_later_epochs_have_other_episodes(tmp_path: Path) -> None:
    """Arrays have room for the largest frames of all epochs."""
    with SeqRecordWriter(tmp_path / "sizes", features={"points": {"shape": (None, 3)}}) as writer:
        for number in range(3):
            with writer.episode(f"{number}") as episode:
                for _ in range(2 + number):
                    points = np.full((1 + 3 * number, 3), number, np.float32)
                    episode.append({"points": points, "note": "x" * (1 + 200 * number)})

    def shortest(samples: Samples, epoch: int, _: Any) -> Samples:
        return samples.filter(samples.num_frames <= 2 + epoch)

    options: dict[str, Any] = {"clip_len": 1, "samples": shortest, "ragged": "pad"}
    pipe = SeqRecordPipe(tmp_path / "sizes", **options, batch_size=1)
    for epoch in range(3):
        for batch in pipe:
            number = int(batch["episode"][0])
            assert number <= epoch
            assert tuple(batch["points"].shape) == (1, 1, 7, 3)
            assert int(batch["points_mask"].sum()) == 1 + 3 * number
            assert len(batch["note"][0][0]) == 1 + 200 * number
    clips = SeqRecordMapDataset(tmp_path / "sizes", **options)
    clips.set_epoch(2)
    assert {int(clips[i]["points_mask"].sum()) for i in range(len(clips))} == {1, 4, 7}


@pytest.mark.parametrize(("codec", "length"), [("balanced", 1), ("raw", 1), ("balanced", 3)])
def test_frames_between_samples_are_not_decoded(tmp_path: Path, codec: str, length: int) -> None:
    """Of chunks that are decoded in every epoch, frames in no clip are left out."""

    def seventh(samples: Samples, epoch: int, _: SampleRandom) -> Samples:
        return samples.filter((samples["start"] + epoch) % 7 == 0)

    rng = np.random.default_rng(0)
    images = rng.integers(255, size=(4, 60, 16, 16, 3), dtype=np.uint8)
    with SeqRecordWriter(tmp_path / "r", codecs={"image": codec}, chunk_frames=20) as writer:
        for number, frames in enumerate(images):
            with writer.episode(str(number)) as episode:
                for frame in frames:
                    episode.append({"image": frame})
    options: dict[str, Any] = {"clip_len": length, "batch_size": 2, "rank": (0, 1)}
    options |= {"samples": seventh, "seed": 1}
    limit = minimum_memory(lambda **more: SeqRecordPipe(tmp_path / "r", **options, **more))
    pipe = SeqRecordPipe(tmp_path / "r", **options, memory_limit=2 * limit)
    for _ in range(3):
        count = 0
        for batch in pipe:
            for (key, start), clip in zip(names(batch), batch["image"], strict=True):
                assert np.array_equal(clip, images[int(key)][start : start + length])
                count += 1
        assert pipe.stats()["features_resident"] == []
        assert pipe.stats()["frames_decoded"] == count * length
