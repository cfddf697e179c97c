"""Batches by the costs of clips: `Budget`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from torch.utils.data import DataLoader

from seqrecord import Budget, SeqRecordIterableDataset, SeqRecordMix, SeqRecordPipe
from seqrecord.errors import ClipError, MemoryLimitError, StateError
from tests.kit.command_line import main
from tests.kit.datasets import columns, write_dataset

EPISODES = 12
FRAMES = 60
LENGTHS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 17]
"""Frames of the lists of each episode."""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("budgets") / "records"
    episodes = {
        f"e{number}": columns(x=np.arange(FRAMES) + 1000 * number) for number in range(EPISODES)
    }
    write_dataset(path, episodes, codecs="raw")
    return path


def lists() -> dict[str, Any]:
    """Lists of consecutive frames that cover all episodes, of a length for each episode."""
    rows = [
        (f"e{number}", [*range(start, min(start + length, FRAMES))])
        for number, length in enumerate(LENGTHS)
        for start in range(0, FRAMES, length)
    ]
    tokens = [1 + 7 * row % 30 for row in range(len(rows))]
    return {"episode": [e for e, _ in rows], "frames": [f for _, f in rows], "tokens": tokens}


def starts() -> dict[str, Any]:
    """Starts of clips of 4 frames, with tokens."""
    rows = [(f"e{number}", start) for number in range(EPISODES) for start in range(0, 56, 2)]
    tokens = [1 + 7 * row % 30 for row in range(len(rows))]
    return {"episode": [e for e, _ in rows], "start": [s for _, s in rows], "tokens": tokens}


def lengths_of(batch: dict[str, Any]) -> list[int]:
    """The frames of the lists of a batch."""
    return [flags.count(False) for flags in batch["frames_is_pad"].tolist()]


def rows_of(batch: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    """The rows of a batch of lists, after a check of their values."""
    lengths = lengths_of(batch)
    values = batch["x"]
    values = [*values.unbind()] if not isinstance(values, list) else values
    rows = []
    for key, frames, clip, length in zip(
        batch["episode"], batch["frames"].tolist(), values, lengths, strict=True
    ):
        assert clip[:length].tolist() == [1000 * int(key[1:]) + f for f in frames[:length]]
        rows.append((key, tuple(frames[:length])))
    return rows


def test_small_memory_joins_rounds(records: Path) -> None:
    """Padded windows of single rounds would need 30 batches; 25 with any memory."""
    table, limit = lists(), 6000
    pipe = SeqRecordPipe(
        records, samples=table, ragged="pad", batch_size=Budget(34), memory_limit=limit
    )
    rows = Counter[Any]()
    for batch in pipe:
        rows.update(rows_of(batch))
    assert rows.total() == len(table["frames"])
    assert pipe.stats()["peak_buffer_bytes"] <= limit
    assert len(pipe) <= 27


def test_joined_rounds_of_distant_frames_fit_into_memory(records: Path) -> None:
    """Cursors keep every third frame."""
    for limit in (3600, 4200, 5000, 6000, 8000):
        pipe = SeqRecordPipe(
            records,
            clip_len=3,
            stride=3,
            dilation=3,
            batch_size=Budget(40, lambda columns: 1 + columns["start"] % 7, padded=True),
            memory_limit=limit,
        )
        assert sum(len(batch["start"]) for batch in pipe) == pipe.num_clips
        assert pipe.stats()["planned_bytes"] <= limit


def test_the_longest_window_is_the_cost_of_a_clip(records: Path) -> None:
    pipe = SeqRecordPipe(records, windows={"x": [-1, 0, 1, 2]}, pad="edge", batch_size=Budget(18))
    assert next(iter(pipe))["x"].shape == (4, 4)
    frames = SeqRecordPipe(
        records,
        windows={"x": [0, 1]},
        samples=starts(),
        batch_size=Budget(70, lambda columns: columns["frames"] + columns["tokens"]),
    )
    tokens = dict(
        zip(
            zip(starts()["episode"], starts()["start"], strict=True),
            starts()["tokens"],
            strict=True,
        )
    )
    for batch in frames:
        names = zip(batch["episode"], batch["start"].tolist(), strict=True)
        assert sum(2 + tokens[name] for name in names) <= 70


@pytest.mark.parametrize("form", ["list", "nested", "pad"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_each_list_comes_once_within_the_budget(records: Path, form: str, ranks: int) -> None:
    table, budget = lists(), 40
    expected = Counter(
        (key, tuple(frames)) for key, frames in zip(table["episode"], table["frames"], strict=True)
    )
    for epoch in (0, 1):
        rows, numbers, decoded = Counter[Any](), set(), 0
        for rank in range(ranks):
            pipe = SeqRecordPipe(
                records,
                samples=table,
                ragged=form,  # type: ignore[arg-type]
                batch_size=Budget(budget),
                rank=(rank, ranks),
            )
            pipe.set_epoch(epoch)
            length, batches = len(pipe), [*pipe]
            assert len(batches) == length
            numbers.add(length)
            decoded += pipe.stats()["frames_decoded"]
            for batch in batches:
                rows.update(rows_of(batch))
                lengths = lengths_of(batch)
                assert batch["frames"].shape[1] == max(lengths)
                if form == "pad":
                    assert max(lengths) * len(lengths) <= budget
                    assert batch["x"].shape == (len(lengths), max(lengths))
                else:
                    assert sum(lengths) <= budget
                    assert batch["cu_seqlens"].tolist() == [0, *np.cumsum(lengths)]
        assert len(numbers) == 1
        assert rows == expected
        assert decoded == EPISODES * FRAMES or ranks > 1


def test_few_lengths_in_a_rank_fill_padded_batches(records: Path) -> None:
    """Windows have many batches although each rank has two episodes: few are padded or short."""
    rows = [(e, [s % 40]) for e in range(12) if e % 4 for s in range(300)]
    rows += [(e, [*range(s, s + 20)]) for e in range(0, 12, 4) for s in range(40)] * 2
    table = {"episode": [f"e{e}" for e, _ in rows], "frames": [f for _, f in rows]}
    frames, padded, numbers = 0, 0, list[int]()
    for rank in range(6):
        pipe = SeqRecordPipe(
            records, samples=table, ragged="pad", batch_size=Budget(100), rank=(rank, 6)
        )
        shapes = [(lengths_of(batch), batch["x"].shape) for batch in pipe]
        frames += sum(sum(lengths) for lengths, _ in shapes)
        padded += sum(shape[0] * shape[1] for _, shape in shapes)
        numbers.append(len(shapes))
    assert frames == sum(len(f) for _, f in rows)
    assert padded <= 1.06 * frames
    assert len({*numbers}) == 1
    assert sum(numbers) * 100 <= 1.35 * frames  # 14 batches of a rank: one is 7 %


def test_shares_have_equal_costs(records: Path) -> None:
    """Long lists and single frames: equal numbers of rows would give one rank most frames."""
    rows = [(0, [*range(s, s + 20)]) for s in range(40)] + [(5, [s]) for s in range(60)] * 2
    table = {"episode": [f"e{e}" for e, _ in rows], "frames": [f for _, f in rows]}
    frames, batches = list[int](), set[int]()
    for rank in range(4):
        pipe = SeqRecordPipe(records, samples=table, batch_size=Budget(40), rank=(rank, 4))
        sums = [int(batch["cu_seqlens"][-1]) for batch in pipe]
        frames.append(sum(sums))
        batches.add(len(sums))
    assert sum(frames) == 40 * 20 + 120
    assert max(frames) - min(frames) <= 20
    assert len(batches) == 1


@pytest.mark.parametrize(
    ("lengths", "budget"),
    [
        ([1 + 7 * row % 29 for row in range(30)], Budget(30, max_rows=1)),
        ([16 + row % 5 for row in range(42)], Budget(30)),  # no two in a batch
        ([16 + 7 * row % 15 for row in range(60)], Budget(30)),
    ],
)
def test_single_clips_of_a_budget_are_not_repeated(
    records: Path, lengths: list[int], budget: Budget
) -> None:
    """Ranks get equal numbers of clips, and not about equal costs, which would need repeats."""
    frames = [[*range(row % 20, row % 20 + n)] for row, n in enumerate(lengths)]
    table = {"episode": [f"e{row % 8}" for row in range(len(lengths))], "frames": frames}
    for epoch in range(2):
        rows = Counter[Any]()
        for rank in range(3):
            pipe = SeqRecordPipe(records, samples=table, batch_size=budget, rank=(rank, 3))
            pipe.set_epoch(epoch)
            batches = [*map(rows_of, pipe)]
            assert [len(batch) for batch in batches] == [1] * (len(lengths) // 3)
            rows.update(row for batch in batches for row in batch)
        expected = [(f"e{row % 8}", tuple(some)) for row, some in enumerate(frames)]
        assert rows == Counter(expected)


def trend(pipe: SeqRecordPipe) -> float:
    """The correlation of mean length and number of a batch."""
    means = [float(np.mean(lengths_of(batch))) for batch in pipe]
    return float(np.corrcoef(means, np.arange(len(means)))[0, 1])


@pytest.mark.slow
def test_long_clips_come_at_no_time(records: Path) -> None:
    """Few episodes for each rank: without a cursor for each, single seeds have .3."""
    rows = [(e, [*range(s, s + n)]) for e, n in enumerate(LENGTHS) for s in range(40)] * 3
    table = {"episode": [f"e{e}" for e, _ in rows], "frames": [f for _, f in rows]}
    for seed in range(2):
        trends = [
            trend(
                SeqRecordPipe(
                    records, samples=table, batch_size=Budget(34), seed=seed, rank=(rank, 4)
                )
            )
            for rank in range(4)
        ]
        assert abs(float(np.mean(trends))) < 0.1  # four ranks of 78 batches: by chance .06


@pytest.mark.slow
def test_short_clips_beside_a_long_episode(records: Path) -> None:
    """One episode of long lists fills most ranks."""
    rows = [(0, [*range(s, s + 20)]) for s in range(40)] * 3
    rows += [(e, [s]) for e in range(1, 12) for s in range(60)]
    table = {"episode": [f"e{e}" for e, _ in rows], "frames": [f for _, f in rows]}
    batches, decoded = 0, 0
    for rank in range(6):
        pipe = SeqRecordPipe(records, samples=table, batch_size=Budget(50), rank=(rank, 6))
        batches += sum(1 for _ in pipe)
        decoded += pipe.stats()["frames_decoded"]
    # A rank with long lists alone fills four fifths; 11 batches of a rank: one is 9 %.
    assert batches * 50 <= 1.3 * sum(len(f) for _, f in rows)
    assert decoded <= 59 * 6 + 660 + 60  # the long episode in each rank, and another one twice


@pytest.fixture(scope="module")
def many_episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many") / "records"
    frames = columns(x=np.arange(70))
    write_dataset(path, {f"e{number:03d}": frames for number in range(200)}, codecs="raw")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "form", "most"),
    [
        (lambda number: 1 if number % 8 else 20 + number % 13, "pad", 1.08),
        (lambda number: 4 + 7 * number % 36, "pad", 1.05),
        (lambda number: 4 + 7 * number % 36, "list", 1.03),
    ],
)
def test_windows_of_many_episodes(many_episodes: Path, length: Any, form: Any, most: float) -> None:
    """Few batches more than costs need, and none of longer clips at first or at last."""
    rows = [(e, [*range(s, s + length(e))]) for e in range(200) for s in range(30)]
    table = {"episode": [f"e{e:03d}" for e, _ in rows], "frames": [f for _, f in rows]}
    lengths = [len(f) for _, f in rows]
    size, numbers, correlations = 8 * max(lengths), set[int](), list[float]()
    for rank in range(4):
        pipe = SeqRecordPipe(
            many_episodes, samples=table, ragged=form, batch_size=Budget(size), rank=(rank, 4)
        )
        means = [float(np.mean(lengths_of(batch))) for batch in pipe]
        numbers.add(len(means))
        correlations.append(float(np.corrcoef(means, np.arange(len(means)))[0, 1]))
    [number] = numbers
    parts = [1 / (size // n) if form == "pad" else n / size for n in lengths]
    assert number <= most * sum(parts) / 4 + 1
    # 26 to 110 batches in four ranks: a standard error of .10 to .05.
    assert abs(np.mean(correlations)) < 0.2


def cost_of_mapping(columns: Mapping[str, Any]) -> Any:
    """As of any mapping; a column that is not there has a default."""
    assert [*columns] == ["frames", "episode", "start", "tokens"]
    assert len(columns) == 4
    assert "tokens" in columns
    assert not {0, "words"} & columns.keys()
    assert columns.get("words") is None
    return columns["tokens"] + columns.get("frames") + columns.get("words", 1)


@pytest.mark.parametrize(
    ("options", "cost"),
    [
        ({"cost": "tokens"}, lambda tokens: tokens),
        ({"cost": lambda columns: columns["tokens"] + columns["frames"]}, lambda n: n + 4),
        ({"cost": cost_of_mapping}, lambda n: n + 4 + 1),
        ({"cost": "tokens", "padded": True}, lambda tokens: tokens),
        ({"cost": "tokens", "max_rows": 3}, lambda tokens: tokens),
    ],
)
@pytest.mark.parametrize("shuffle", [True, False])
def test_costs_of_columns(records: Path, options: Any, cost: Any, shuffle: bool) -> None:
    table = starts()
    tokens = dict(
        zip(zip(table["episode"], table["start"], strict=True), table["tokens"], strict=True)
    )
    for epoch in (0, 2):  # epoch 2 from memory
        found = list[tuple[str, int]]()
        pipe = SeqRecordPipe(
            records,
            clip_len=4,
            samples=table,
            batch_size=Budget(100, **options),
            shuffle=shuffle,
        )
        pipe.set_epoch(epoch)
        for batch in pipe:
            names = [*zip(batch["episode"], batch["start"].tolist(), strict=True)]
            costs = [cost(tokens[name]) for name in names]
            assert (max(costs) * len(costs) if options.get("padded") else sum(costs)) <= 100
            assert len(costs) <= options.get("max_rows", len(costs))
            assert batch["x"].shape == (len(names), 4)
            found += names
        assert Counter(found) == Counter([*tokens])
        if not shuffle:
            assert found == [*tokens]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("max_rows", [1, 4])
def test_ranks_have_equal_rows_where_these_limit_batches(
    records: Path, max_rows: int, shuffle: bool
) -> None:
    """Not equal costs: a rank of expensive clips would repeat many of another one."""
    rows = [(number, start) for number in range(EPISODES) for start in range(0, 56, 2)]
    table = {
        "episode": [f"e{number}" for number, _ in rows],
        "start": [start for _, start in rows],
        "tokens": [30 if number % 3 == 0 else 1 for number, _ in rows],
    }
    clips, numbers = Counter[tuple[str, int]](), list[int]()
    for rank in range(4):
        pipe = SeqRecordPipe(
            records,
            clip_len=4,
            samples=table,
            batch_size=Budget(120, "tokens", max_rows=max_rows),
            shuffle=shuffle,
            rank=(rank, 4),
        )
        batches = [*pipe]
        numbers.append(len(batches))
        for batch in batches:
            clips.update(zip(batch["episode"], batch["start"].tolist(), strict=True))
    assert clips == Counter({(f"e{number}", start): 1 for number, start in rows})
    assert len({*numbers}) == 1
    assert numbers[0] <= 1.04 * len(rows) / max_rows / 4 + 1


def test_clips_above_the_budget(records: Path) -> None:
    table = lists()
    large = sum(len(frames) > 12 for frames in table["frames"])
    assert large
    with pytest.raises(ClipError, match=r"in row \d+: episode 'e10'.*at most 12") as caught:
        SeqRecordPipe(records, samples=table, batch_size=Budget(12))
    assert caught.value.got == 13
    alone = SeqRecordPipe(records, samples=table, batch_size=Budget(12, too_large="alone"))
    sizes = [[len(clip) for clip in batch["x"]] for batch in alone]
    assert sum(map(len, sizes)) == len(table["frames"])
    assert all(sum(size) <= 12 or len(size) == 1 for size in sizes)
    assert alone.stats()["clips_too_large"] == large
    drop = SeqRecordPipe(records, samples=table, batch_size=Budget(12, too_large="drop"))
    assert sum(len(batch["x"]) for batch in drop) == len(table["frames"]) - large
    assert drop.stats()["clips_too_large"] == large
    assert drop.num_clips == len(table["frames"]) - large


@pytest.mark.parametrize("too_large", ["error", "drop", "alone"])
def test_clips_of_one_length_above_the_budget(records: Path, too_large: str) -> None:
    options: dict[str, Any] = {"batch_size": Budget(3, too_large=too_large)}
    for samples in (
        {"clip_len": 4},
        {"samples": {"episode": ["e10"] * 2, "frames": [[0, 1, 2, 4]] * 2}},
    ):
        if too_large != "alone":
            with pytest.raises(ClipError, match=r"every clip costs more.*at most 3.*got: 4 frames"):
                SeqRecordPipe(records, **samples, **options)
            continue
        for batch in SeqRecordPipe(records, **samples, **options):
            assert len(batch["episode"]) == 1


def test_frames_of_a_budget_are_those_of_clips(records: Path) -> None:
    """The first axis of what functions of clips return is no number of frames."""

    def embed(clip: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
        return {"x": clip["x"], "embedding": np.zeros(512, np.float32)}

    pipe = SeqRecordPipe(records, clip_len=4, clip_transform=embed, batch_size=Budget(12))
    assert {len(batch["episode"]) for batch in pipe} == {3}


def test_resuming_on_other_ranks_and_workers(records: Path) -> None:
    """Each row once, in parts of 4 ranks, 3 ranks with 2 workers, and 2 ranks; rows() agrees."""
    table = lists()

    def make(rank: int, ranks: int, size: int = 30) -> SeqRecordIterableDataset:
        return SeqRecordIterableDataset(
            records, samples=table, batch_size=Budget(size), rank=(rank, ranks)
        )

    rows, state = Counter[Any](), None
    for ranks, workers, count in ((4, 0, 2), (3, 2, 3), (2, 0, None)):
        states = set()
        for rank in range(ranks):
            loader = make(rank, ranks)
            if state is not None:
                loader.load_state_dict(json.loads(state))
            batches: Any = DataLoader(loader, None, num_workers=workers) if workers else loader
            iterator = iter(batches)
            for number in range(count or 1 << 30):
                if (batch := next(iterator, None)) is None:
                    break
                rows.update(rows_of(batch))
                if not workers and ranks == 4:
                    planned = loader.rows(0, number)
                    assert planned["frames"].tolist() == batch["frames"].tolist()
                    assert planned["episode"] == batch["episode"]
            saved = loader.state_dict(batches=count) if workers else loader.state_dict()
            states.add(json.dumps(saved))
        if count is not None:
            [state] = states
            assert len(state) < 3000
    assert rows == Counter(
        (key, tuple(frames)) for key, frames in zip(table["episode"], table["frames"], strict=True)
    )
    other = make(0, 4, size=31)
    with pytest.raises(StateError, match="budget"):
        other.load_state_dict(json.loads(state or ""))


def test_memory_limits_windows(records: Path) -> None:
    """Batches of a small memory limit are within the budget, and buffers within the limit."""
    table = lists()
    with pytest.raises(MemoryLimitError) as caught:
        SeqRecordPipe(records, samples=table, batch_size=Budget(40), memory_limit=1)
    limit = int(str(caught.value.expected).split()[2])
    pipe = SeqRecordPipe(records, samples=table, batch_size=Budget(40), memory_limit=limit)
    rows = Counter[Any]()
    for batch in pipe:
        assert batch["cu_seqlens"][-1] <= 40
        rows.update(rows_of(batch))
    assert rows.total() == len(table["frames"])
    assert pipe.stats()["peak_buffer_bytes"] <= limit


def test_one_cost_is_a_number_of_clips(records: Path) -> None:
    pipe = SeqRecordPipe(records, clip_len=4, batch_size=Budget(18))
    plain = SeqRecordPipe(records, clip_len=4, batch_size=4)
    assert pipe.state_dict() == plain.state_dict()
    source = SeqRecordIterableDataset(records, clip_len=4)
    mix = SeqRecordMix({"a": source}, batch_size=Budget(18))
    assert next(iter(mix))["x"].shape == (4, 4)
    uneven = SeqRecordIterableDataset(records, samples=lists(), ragged="pad")
    with pytest.raises(ClipError, match="a loader for each source with the Budget"):
        SeqRecordMix({"a": uneven}, batch_size=Budget(18))
    tokens = SeqRecordIterableDataset(records, clip_len=4, samples=starts())
    for source in (tokens, SeqRecordIterableDataset(records, clip_len=4)):  # also without tokens
        with pytest.raises(
            ClipError, match=r"counts frames, and not a column .*got: cost='tokens'"
        ):
            SeqRecordMix({"a": source}, batch_size=Budget(100, "tokens"))


def numbers_of_ranks(
    records: Path, table: dict[str, Any], last_batch: str, budget: int
) -> tuple[list[int], Counter[Any], tuple[int, int]]:
    """The batches of each of 5 ranks, how often each row comes, and rows repeated and dropped."""
    numbers, rows, counts = list[int](), Counter[Any](), np.zeros(2, np.int64)
    for rank in range(5):
        pipe = SeqRecordPipe(
            records,
            samples=table,
            batch_size=Budget(budget),
            rank=(rank, 5),
            last_batch=last_batch,
        )
        batches = [*map(rows_of, pipe)]
        numbers.append(len(batches))
        rows.update(row for batch in batches for row in batch)
        counts += [pipe.stats()[name] for name in ("duplicate_clips", "clips_dropped")]
    return numbers, rows, (int(counts[0]), int(counts[1]))


def test_last_batch_of_ranks(records: Path) -> None:
    """Ranks divide their batches, so that none is dropped; with "keep" they have fewer."""
    table, numbers = lists(), dict[str, list[int]]()
    for last_batch in ("repeat", "drop", "keep"):
        numbers[last_batch], rows, counts = numbers_of_ranks(records, table, last_batch, 20)
        assert max(rows.values()) == 1
        assert rows.total() == len(table["frames"])
        assert counts == (0, 0)
    assert {*numbers["repeat"]} == {*numbers["drop"]} == {max(numbers["keep"])}
    assert min(numbers["keep"]) < max(numbers["keep"])


def test_last_batch_of_ranks_with_fewer_clips_than_batches(records: Path) -> None:
    """Batches of one list each: two ranks have two, the others one."""
    table = {"episode": ["e10"] * 7, "frames": [[*range(i + i % 2, i + 8)] for i in range(7)]}
    for last_batch, numbers, counts in (
        ("repeat", [2] * 5, (3, 0)),
        ("drop", [1] * 5, (0, 2)),
        ("keep", [2, 2, 1, 1, 1], (0, 0)),
    ):
        found, rows, found_counts = numbers_of_ranks(records, table, last_batch, 9)
        assert (sorted(found, reverse=True), found_counts) == (numbers, counts)
        assert len(rows) == (5 if last_batch == "drop" else 7)
        assert rows.total() == sum(numbers)


@pytest.mark.parametrize(
    ("budget", "match"),
    [
        (lambda: Budget(0), "size of a Budget"),
        (lambda: Budget(8, cost=""), "cost of a Budget"),
        (lambda: Budget(8, padded=1), "padded of a Budget"),  # type: ignore[arg-type]
        (lambda: Budget(8, max_rows=0), "max_rows of a Budget"),
        (lambda: Budget(8, too_large="split"), "too_large of a Budget"),
        (lambda: Budget(99, "missing"), "expected: frames or .* or tokens or text; got: missing"),
        (lambda: Budget(99, lambda columns: columns["token"]), "expected: frames or .*tokens"),
        (lambda: Budget(99, lambda columns: columns["tokens"] - 1), "integer of at least 1"),
        (lambda: Budget(99, lambda columns: columns["tokens"][:2]), r"shape \[336\].*shape \[2\]"),
        (lambda: Budget(99, lambda columns: 7), r"shape \[336\].*shape \[\]"),
        (lambda: Budget(99, lambda columns: [[7], [7, 8]]), "not numbers.* got: ValueError"),
        (lambda: Budget(99, lambda columns: [[7]] * 336), r"shape \[336\].*shape \[336, 1\]"),
        (lambda: Budget(99, lambda columns: columns["tokens"][:0]), r"shape \[0\]"),
        (lambda: Budget(99, "text"), "not numbers"),
    ],
)
def test_invalid_budgets(records: Path, budget: Any, match: str) -> None:
    table = {**starts(), "text": ["a"] * len(starts()["start"])}
    with pytest.raises(ClipError, match=match):
        SeqRecordPipe(records, clip_len=4, samples=table, batch_size=budget())


def test_budgets_that_exclude_other_arguments(records: Path) -> None:
    with pytest.raises(ClipError, match="does not count padding"):
        SeqRecordPipe(records, samples=lists(), ragged="pad", batch_size=Budget(40, padded=False))
    with pytest.raises(ClipError, match="a number of rows as batch_size"):
        SeqRecordPipe(
            records,
            clip_len=4,
            order="sequences",
            batch_size=Budget(9, lambda columns: 1 + columns["start"] % 3),
        )
    named = {**lists(), "cu_seqlens": lists()["tokens"]}
    with pytest.raises(ClipError, match="cu_seqlens"):
        SeqRecordPipe(records, samples=named, batch_size=Budget(40))


def test_info_predicts_the_use(records: Path, tmp_path: Path) -> None:
    table = tmp_path / "samples.parquet"
    pq.write_table(pa.table(lists()), table)
    arguments = ["info", str(records), "--samples", str(table), "--budget"]
    result = CliRunner().invoke(main, [*arguments, "{size: 60, cost: tokens}", "--json"])
    assert result.exit_code == 0, result.output
    values = json.loads(result.output)
    pipe = SeqRecordPipe(records, samples=str(table), batch_size=Budget(60, "tokens"))
    assert values["batches"] == len(pipe)
    total = sum(lists()["tokens"])
    assert values["budget_used"] == pytest.approx(total / 60 / len(pipe), abs=1e-3)
    result = CliRunner().invoke(main, [*arguments, "40"])
    assert "\n  budget_used: " in result.output


def test_the_log_has_the_use_of_the_budget(records: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "seqrecord")
    pipe = SeqRecordPipe(records, samples=lists(), ragged="pad", batch_size=Budget(40))
    iterator = iter(pipe)
    next(iterator)
    [message] = [m for m in caplog.messages if "budget" in m]
    assert "padded batches of a budget of 40" in message
    assert "% used" in message
