"""Mixes of several kinds whose ranks or batch sizes change: passes, ends, states and rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from seqrecord import Budget, SeqRecordIterableDataset, SeqRecordMix
from tests.kit.clip_data import begun, digest, digests, names, resumed
from tests.kit.datasets import written_once
from tests.loader.mix_data import LENGTHS, write_source, write_sources

Clip: TypeAlias = Any
Step: TypeAlias = tuple[int, int, int]
"""Ranks, the epochs that they finish, and their batches of the next one."""

HISTORY: Sequence[Step] = ((3, 0, 2), (2, 1, 1), (4, 0, 1), (1, 2, 3), (3, 1, 0), (2, 1, 2))
CLIPS = {
    name: [(f"e/{number}", start) for number, n in enumerate(lengths) for start in range(n - 2)]
    for name, lengths in LENGTHS.items()
}
"""The clips of 3 frames of each source."""


root = written_once(write_sources)


def streams(root: Path, **options: Any) -> dict[str, Any]:
    arguments = {"clip_len": 3, **options}
    return {name: SeqRecordIterableDataset(root / name, **arguments) for name in LENGTHS}


def mixed(root: Path, **options: Any) -> SeqRecordMix:
    settings = {"batch_size": 4, "seed": 5, "stopping_strategy": 7, **options}
    return SeqRecordMix(settings.pop("sources", None) or streams(root), **settings)


def steps_of(
    make: Callable[..., SeqRecordMix], history: Sequence[Step] = HISTORY
) -> list[list[list[Any]]]:
    """The batches of each rank in each step; each step continues from the state before it."""
    steps, state = list[Any](), None
    for ranks, epochs, batches in history:
        of_ranks, states = list[Any](), list[Any]()
        for rank in range(ranks):
            mix = make(rank=(rank, ranks))
            if state is not None:
                mix.load_state_dict(state)
            found = [batch for _ in range(epochs) for batch in mix]
            iterator = iter(mix)
            of_ranks.append([*found, *islice(iterator, batches)])
            states.append(json.loads(json.dumps(mix.state_dict())))
        assert all(other == states[0] for other in states)
        shares = [[Counter(batch["dataset"]) for batch in batches] for batches in of_ranks]
        assert all(of_rank == shares[0] for of_rank in shares)
        state = states[0]
        steps.append(of_ranks)
    return steps


def passes_left(
    whole: Counter[Clip], opened: list[Counter[Clip]], given: list[list[Clip]]
) -> list[Counter[Clip]]:
    """What is left of each pass over a source with the clips `whole`, after the clips of each rank.

    `opened` are the passes before, or the clips that are left of them. Ranks divide each pass; some
    repeat a clip of theirs, so that all have as many.
    """
    place, found = 0, list[Counter[Clip]]()
    for number in count():
        left = opened[number] if number < len(opened) else whole
        share = -(-left.total() // len(given))
        parts = [clips[place : place + share] for clips in given]
        clips = Counter(chain(*parts))
        assert clips.keys() <= left.keys()
        assert (clips - left).total() <= share * len(given) - left.total()
        if rest := left - clips:
            assert len(parts[0]) < share
            found.append(rest)
        place += share
        if place >= len(given[0]) and number + 1 >= len(opened):
            return found
    raise AssertionError


def check_passes(steps: Sequence[Any], clips: dict[str, Counter[Clip]]) -> None:
    """Check that each source gives all its clips once before any again, over all ranks."""
    passes: dict[str, Any] = {name: [] for name in clips}
    for of_ranks in steps:
        for name, whole in clips.items():
            given: list[list[Any]] = [
                [
                    clip
                    for batch in batches
                    for source, clip in zip(batch["dataset"], names(batch), strict=True)
                    if source == name
                ]
                for batches in of_ranks
            ]
            passes[name] = passes_left(whole, passes[name], given)


def once(clips: dict[str, Any]) -> dict[str, Counter[Clip]]:
    return {name: Counter(of_source) for name, of_source in clips.items()}


@pytest.mark.parametrize(
    "options",
    [
        {"single_source_batches": True},
        {"batch_size": 1},
        {"batch_size": 40},
        {"stopping_strategy": "first_exhausted", "weights": {"a": 9, "b": 1, "c": 3}},
        {"stopping_strategy": "all_exhausted", "weights": "equal"},
        {"stopping_strategy": "first_exhausted", "repeat": {"c": 3}, "choose": {"a": 20}},
    ],
    ids=["single", "clips", "large", "first", "all", "repeat"],
)
def test_passes_over_sources(root: Path, options: dict[str, Any]) -> None:
    """Also with batches of a clip, of a source, and larger than a pass."""
    steps = steps_of(lambda **rank: mixed(root, **options, **rank))
    check_passes(steps, once(CLIPS))


def test_fewer_clips_than_ranks(tmp_path: Path) -> None:
    """Each rank has the only clip of a source, also of what another number of ranks has left."""
    write_source(tmp_path / "one", 0, (3,))
    write_source(tmp_path / "two", 1, (4,))
    sources = {n: SeqRecordIterableDataset(tmp_path / n, clip_len=3) for n in ("one", "two")}
    steps = steps_of(lambda **rank: mixed(tmp_path, sources=sources, batch_size=3, **rank))
    check_passes(steps, {"one": Counter([("e/0", 0)]), "two": Counter([("e/0", 0), ("e/0", 1)])})


def test_repeated_clips(root: Path) -> None:
    """A pass has a clip as often as its row says, whatever the ranks."""
    rows, times = CLIPS["b"][:5], [3.0, 1.0, 2.0, 1.0, 4.0]
    table = {"episode": [key for key, _ in rows], "start": [start for _, start in rows]}
    table["repeat"] = times
    repeated = SeqRecordIterableDataset(root / "b", clip_len=3, samples=table)
    sources = {**streams(root), "b": repeated}
    steps = steps_of(lambda **rank: mixed(root, sources=sources, **rank))
    whole = Counter({clip: int(n) for clip, n in zip(rows, times, strict=True)})
    check_passes(steps, {**once(CLIPS), "b": whole})


def test_a_mix_in_a_mix(root: Path) -> None:
    def make(**rank: Any) -> SeqRecordMix:
        sources = streams(root)
        last = sources.pop("c")
        inner = SeqRecordMix(sources, weights={"a": 1, "b": 2}, batch_size=1)
        weights = {"in": 3, "c": 1}
        return mixed(root, sources={"in": inner, "c": last}, weights=weights, **rank)

    clips = {"in/a": CLIPS["a"], "in/b": CLIPS["b"], "c": CLIPS["c"]}
    check_passes(steps_of(make), once(clips))


def test_drawn_lengths(root: Path) -> None:
    """With a budget of frames, all ranks have batches of equal lengths after a change."""
    sources = streams(root, clip_len=(2, 3))
    options: dict[str, Any] = {"batch_size": Budget(12), "stopping_strategy": "first_exhausted"}
    steps = steps_of(lambda **rank: mixed(root, sources=sources, **options, **rank))
    for of_ranks in steps:
        shapes = [[tuple(batch["where"].shape) for batch in batches] for batches in of_ranks]
        assert all(of_rank == shapes[0] for of_rank in shapes)
        assert all(size * length <= 12 for size, length, _ in shapes[0])
    check_passes(steps, once(CLIPS))


@pytest.mark.parametrize("alternate", [False, True])
def test_shares_after_a_change(root: Path, alternate: bool) -> None:
    """They are exact from there on, also in the epochs that follow."""
    options: dict[str, Any] = {"weights": {"a": 5, "b": 3, "c": 1}, "batch_size": 3}
    options["single_source_batches"] = alternate
    for of_ranks in steps_of(lambda **rank: mixed(root, **options, **rank)):
        clips, unit = Counter[str](), 3 if alternate else 1
        for number, batch in enumerate(of_ranks[0], 1):
            clips.update(batch["dataset"])
            for name, weight in options["weights"].items():
                assert abs(clips[name] - Fraction(3 * number * weight, 9)) < unit


@pytest.mark.parametrize("first", range(1, 12, 2))
def test_small_batches_that_are_made_together(root: Path, first: int) -> None:
    """A state between any two of them continues there, and they do not change any more."""
    options: dict[str, Any] = {"batch_size": 2, "stopping_strategy": 20}
    mix = mixed(root, **options)
    iterator = iter(mix)
    batches = [*islice(iterator, first)]
    before, state = digests(batches), mix.state_dict()
    after = digests(iterator)
    assert digests(batches) == before
    assert digests(resumed(mixed(root, **options), state)) == after
    assert before + after == digests(mixed(root, **options))


def test_a_change_without_a_batch_is_none(root: Path) -> None:
    """The state of loaders that have not begun is the one they have loaded."""
    mix = mixed(root)
    iterator = begun(mix, 2)
    state, rest = mix.state_dict(), digests(iterator)
    other = resumed(mixed(root, rank=(1, 3)), state)
    assert digests(resumed(mixed(root), other.state_dict())) == rest


def test_weights_by_epoch(root: Path) -> None:
    """A state of a later epoch has the epochs since a change of ranks."""
    weights: dict[int, Any] = {0: "equal", 1: {"a": 1, "b": 3, "c": 0}, 2: {"a": 2, "b": 1, "c": 1}}

    def make(**rank: Any) -> SeqRecordMix:
        return mixed(root, weights=weights, **rank)

    history = ((1, 1, 2), (2, 1, 1), (2, 0, 2), (3, 1, 1), (1, 1, 2))
    steps = steps_of(make, history)
    check_passes(
        [steps[0], [a + b for a, b in zip(*steps[1:3], strict=True)], *steps[3:]], once(CLIPS)
    )


def test_rows_of_other_batch_sizes(root: Path) -> None:
    """A segment has the batches that it had."""
    first = mixed(root, batch_size=4)
    iterator = iter(first)
    before = [*islice(iterator, 3)]
    mix = resumed(mixed(root, batch_size=3), first.state_dict())
    after = [*mix]
    for segment, batches in enumerate([before, after]):
        for number, batch in enumerate(batches):
            rows = mix.rows(0, number, segment=segment)
            assert digest(rows) == digest({name: batch[name] for name in rows})
