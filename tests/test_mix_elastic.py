"""Mixes resumed with other ranks or workers, checked by counting every clip of every source."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchdata.stateful_dataloader import StatefulDataLoader

from seqrecord import EngineOptions, SeqRecordIterableDataset, SeqRecordMix, StateError
from tests.clip_data import begun, resumed
from tests.mix_data import LENGTHS, write_sources

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]

CLIPS = {name: sum(n - 2 for n in lengths) for name, lengths in LENGTHS.items()}
WEIGHTS = {"a": 3, "b": 2, "c": 1}
SHARES = {name: Fraction(weight, 6) for name, weight in WEIGHTS.items()}

Clips: TypeAlias = list[tuple[str, int, int, int]]
"""Clips: source, epoch of the source, episode, start."""

Drawn: TypeAlias = dict[tuple[str, int, int, int], int]
"""The source's epoch by source, episode, start and the clip's random number."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sources(tmp_path_factory.mktemp("elastic_mix"))


def mark(clip: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """The clip's position and a random number, a new one in each epoch of its source."""
    return {"where": clip["where"][:1], "drawn": generator.integers(0, 1 << 62, 1)}


def mixed(root: Path, **options: Any) -> SeqRecordMix:
    sources = {
        name: SeqRecordIterableDataset(root / name, clip_len=3, clip_transform=mark)
        for name in LENGTHS
    }
    return SeqRecordMix(sources, **{"weights": WEIGHTS, "batch_size": 4, "seed": 5, **options})


def keys(batch: dict[str, Any]) -> list[tuple[str, int, int, int]]:
    rows = zip(batch["where"][:, 0].tolist(), batch["drawn"][:, 0].tolist(), strict=True)
    return [(list(LENGTHS)[source], *place, drawn) for (source, *place), drawn in rows]


@pytest.fixture(scope="module")
def drawn(root: Path) -> Drawn:
    """From a single rank, which yields each clip once in every epoch of its source."""
    epochs, count = Drawn(), Counter[tuple[str, int, int]]()
    for batch in mixed(root, stopping_strategy=200, rank=0, world_size=1):
        for clip in keys(batch):
            epochs[clip] = count[clip[:3]]
            count[clip[:3]] += 1
    return epochs


def clips_of(batch: dict[str, Any], drawn: Drawn) -> Clips:
    return [(clip[0], drawn[clip], *clip[1:3]) for clip in keys(batch)]


def check_shares(names: list[str]) -> None:
    count: Counter[str] = Counter()
    for number, name in enumerate(names, 1):
        count[name] += 1
        assert max(abs(count[source] - share * number) for source, share in SHARES.items()) < 1


def check_clips(given: list[Clips], last: list[Clips], changes: list[int]) -> None:
    """Finished epochs of a source contain each clip once; only equalising repeats clips."""
    count: dict[tuple[str, int], Counter[tuple[int, int]]] = {}
    for one in given:
        for name, epoch, *clip in one:
            count.setdefault((name, epoch), Counter())[clip[0], clip[1]] += 1
    for (name, epoch), found in count.items():
        extra = sum(found.values()) - len(found)
        assert extra <= sum(ranks - 1 for ranks in changes), (name, epoch)
        now = [max((e for n, e, *_ in one if n == name), default=-1) for one in last]
        if epoch < min(now):
            assert len(found) == CLIPS[name], (name, epoch)


CHANGES: list[Any] = [
    ("all_exhausted", [(4, 3), (2, 2), (3, 0), (1, 5)]),
    pytest.param("first_exhausted", [(2, 1)], marks=pytest.mark.slow),
    pytest.param(5, [(2, 5), (3, 7)], marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("stopping_strategy", "changes"), CHANGES)
def test_each_clip_comes_once_with_changing_ranks(
    root: Path, drawn: Drawn, stopping_strategy: Any, changes: list[tuple[int, int]]
) -> None:
    """`changes`: ranks, and the batches that each yields before the next change."""
    given, last, state = list[Clips](), list[Clips](), None
    segments = [*changes, (2, 20)]
    so_far: list[str] = []  # of one rank since the number of ranks changed
    for number, (ranks, batches) in enumerate(segments):
        last, states = [], []
        if number and ranks != segments[number - 1][0]:
            so_far = []
        for rank in range(ranks):
            mix = mixed(root, stopping_strategy=stopping_strategy, rank=rank, world_size=ranks)
            if state is not None:
                mix.load_state_dict(json.loads(json.dumps(state)))
                assert mix.state_dict() == state
            last.append(Clips())
            iterator = iter(mix)
            for _ in range(batches):
                while (batch := next(iterator, None)) is None:
                    iterator = iter(mix)
                last[-1] += clips_of(batch, drawn)
            states.append(mix.state_dict())
            del iterator
        assert all(one == states[0] for one in states), number
        state = states[0]
        given += last
        names = [[name for name, *_ in one] for one in last]
        assert all(one == names[0] for one in names)
        so_far += names[0]
        check_shares(so_far)
    check_clips(given, last, [ranks for ranks, _ in changes] + [2])


@pytest.mark.slow
@settings(deadline=None, max_examples=6)
@given(
    stopping_strategy=st.sampled_from(["first_exhausted", "all_exhausted", 5]),
    changes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), min_size=2, max_size=4),
)
def test_random_changes_of_ranks(
    root: Path, drawn: Drawn, stopping_strategy: Any, changes: list[tuple[int, int]]
) -> None:
    test_each_clip_comes_once_with_changing_ranks(root, drawn, stopping_strategy, changes)


@pytest.mark.parametrize(
    "stopping_strategy", ["all_exhausted", pytest.param(7, marks=pytest.mark.slow)]
)
def test_a_mix_resumes_after_a_change_of_ranks(root: Path, stopping_strategy: Any) -> None:
    """In the rest of an epoch, in later epochs, and with another memory limit."""
    options: dict[str, Any] = {"stopping_strategy": stopping_strategy}
    clips, state = set[tuple[Any, ...]](), dict[str, Any]()
    for rank in range(3):
        first = mixed(root, **options, rank=rank, world_size=3)
        for batch in islice(first, 2):
            clips.update(clip[:3] for clip in keys(batch))
            state = first.state_dict()

    def resume(state: dict[str, Any], rank: int = 1, **more: Any) -> SeqRecordMix:
        return resumed(mixed(root, **options, rank=rank, world_size=2, **more), state)

    whole = resume(state)
    states, batches = [], []
    for _ in range(2):
        for batch in whole:
            states.append(whole.state_dict())
            batches.append(keys(batch))
    for number in (0, len(states) // 2, len(states) - 2):
        again = resume(states[number], memory_limit="1MiB")
        # The first iteration may be empty.
        wanted = batches[number + 1 : number + 9]
        found = islice((keys(batch) for _ in range(3) for batch in again), len(wanted))
        assert list(found) == wanted
    if stopping_strategy == "all_exhausted":  # together the epoch has all clips
        rest = [clip[:3] for r in range(2) for batch in resume(state, r) for clip in keys(batch)]
        assert len(clips | {*rest}) == sum(CLIPS.values())
    # `set_epoch` also applies to an iterator created before.
    mix, later = resume(state), resume(state)
    iterator = iter(mix)
    for each in (mix, later):
        each.set_epoch(1)
    assert [keys(batch) for batch in iterator] == [keys(batch) for batch in later]


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_a_mix_resumes_with_other_workers(root: Path, persistent: bool) -> None:
    """From two workers to three, and then without workers, for several epochs."""

    def stateful(mix: SeqRecordMix, workers: int) -> StatefulDataLoader[Any]:
        return StatefulDataLoader(
            mix, batch_size=None, num_workers=workers, persistent_workers=persistent
        )

    def new() -> SeqRecordMix:
        return mixed(root, stopping_strategy=13)

    original = new()
    two = stateful(original, 2)
    iterator = begun(two, 5)
    of_workers, saved = two.state_dict(), original.state_dict(batches=5)
    del iterator
    of_one = of_workers["_snapshot"]["_worker_snapshots"]["worker_0"]["dataset_state"]
    with pytest.raises(StateError, match="the position of one worker of several"):
        next(iter(resumed(new(), of_one)))
    mix = resumed(new(), saved)
    assert mix.state_dict()["batch"] == [3, 2]
    three, repeated = stateful(mix, 3), stateful(resumed(new(), saved), 3)
    rest = list(map(keys, three))
    assert 5 + len(rest) in (13, 14, 15)
    assert list(map(keys, repeated)) == rest
    later = list(map(keys, three))
    assert len(later) == 13
    assert list(map(keys, repeated)) == later
    iterator = begun(three, 4)
    saved, of_all = three.state_dict(), mix.state_dict(batches=4)
    others = list(map(keys, iterator))
    third = resumed(stateful(new(), 3), saved)
    assert list(map(keys, third)) == others
    assert list(map(keys, third)) == list(map(keys, three))
    assert len(list(resumed(new(), of_all))) == 9
    del two, three, repeated, third


def test_workers_use_the_settings_of_a_state_that_the_mix_loads(root: Path) -> None:
    """As if the StatefulDataLoader itself had loaded its state."""

    def mix(**options: Any) -> SeqRecordMix:
        sources = {
            "a": SeqRecordIterableDataset(root / "a", clip_len=3, clip_transform=mark, **options)
        }
        return SeqRecordMix(sources, batch_size=4, seed=5)

    def stateful(data: SeqRecordMix) -> Any:
        return StatefulDataLoader(data, batch_size=None, num_workers=2)

    first = mix(engine=EngineOptions(num_cursors=3))
    loader = stateful(first)
    iterator = begun(loader, 2)
    state = first.state_dict(batches=2)
    own = loader.state_dict()
    expected = [keys(batch) for batch in iterator]
    data = resumed(mix(), state)
    assert [keys(batch) for batch in stateful(data)] == expected
    assert [keys(batch) for batch in stateful(mix())][2:] != expected
    data = mix()
    assert [keys(batch) for batch in resumed(stateful(data), own)] == expected
    assert len(list(data)) == len(data)  # without workers, after an epoch in workers


def test_invalid_states_are_refused(root: Path) -> None:
    mix = mixed(root, rank=0, world_size=3)
    begun(mix)
    mix = resumed(mixed(root, rank=0, world_size=2), mix.state_dict())
    begun(mix)
    good = mix.state_dict()
    assert good["rest"]["number"] == 1

    def source(state: dict[str, Any]) -> Any:
        return state["rest"]["sources"][0]

    def skip_an_epoch(state: dict[str, Any]) -> None:
        [[epoch, segments]] = source(state)["pending"]
        pending = [[epoch, segments], [epoch + 2, segments]]
        source(state).update(pending=pending, following=epoch + 3)
        state["sources"][0]["left"] *= 2

    skipped = "skips an epoch .* expected: epoch 1 of source .a. after epoch 0; got: epoch 2"
    changes: list[tuple[Callable[[Any], Any], str]] = [
        (lambda state: state["rest"].pop("left"), "other entries"),
        (lambda state: state["rest"].update(epoch=-1), "out of range"),
        (lambda state: state["rest"].update(number=0), "out of range"),
        (lambda state: state.update(rest=None), "that follow each other"),
        (lambda state: state["sources"].pop(), "sources that no loader has saved"),
        (lambda state: state["sources"].clear(), "sources that no loader has saved"),
        (lambda state: source(state).update(following=9), "that follow each other"),
        (skip_an_epoch, skipped),
        (lambda state: source(state)["pending"][0].__setitem__(1, []), "with its segments"),
        (lambda state: source(state)["pending"][0].__setitem__(1, 1), "another type"),
        (lambda state: source(state).update(pending=1), "another type"),
        (lambda s: source(s)["pending"][0][1][0].update(batches=[9999]), "beyond the epoch's end"),
    ]
    for change, message in changes:
        state = json.loads(json.dumps(good))
        change(state)
        with pytest.raises(StateError, match=message):
            mix.load_state_dict(state)
    fine = resumed(mixed(root, rank=0, world_size=2), json.loads(json.dumps(good, sort_keys=True)))
    assert fine.state_dict() == good


@pytest.mark.slow
def test_empty_epochs_between_the_epochs_of_workers(root: Path) -> None:
    """A source with one clip in three of ten epochs: states of other ranks load again."""
    one = {"episode": ["e/0"], "start": [0], "weight": [0.3]}

    def mixed_rarely(world_size: int) -> SeqRecordMix:
        often = SeqRecordIterableDataset(root / "a", clip_len=3)
        rarely = SeqRecordIterableDataset(root / "b", clip_len=3, clips=one)
        options: Any = {"weights": {"often": 3, "rarely": 7}, "stopping_strategy": 4000, "rank": 0}
        sources = {"often": often, "rarely": rarely}
        return SeqRecordMix(sources, batch_size=1, seed=1, world_size=world_size, **options)

    gaps = 0
    mix = mixed_rarely(1)
    workers = StatefulDataLoader(mix, batch_size=None, num_workers=2)
    for number, _ in enumerate(islice(workers, 28)):
        ranks = resumed(mixed_rarely(2), mix.state_dict(batches=number + 1))
        begun(ranks)
        saved = json.loads(json.dumps(ranks.state_dict()))
        epochs = [epoch for epoch, _ in saved["rest"]["sources"][1]["pending"]]
        gaps += any(after > before + 1 for before, after in pairwise(epochs))
        assert resumed(mixed_rarely(2), saved).state_dict() == saved
    assert gaps
