"""A mix that goes on with other ranks or workers, against counts of every clip of every source."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchdata.stateful_dataloader import StatefulDataLoader

import seqrecord
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

Given: TypeAlias = list[tuple[str, int, int, int]]
"""Clips: source, epoch of the source, episode, start."""

Drawn: TypeAlias = dict[tuple[str, int, int, int], int]
"""The epoch of the source, by source, episode, start, and what is drawn for the clip."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sources(tmp_path_factory.mktemp("elastic_mix"))


def tell(clip: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """Where a clip is, and what is drawn for it: another number in each epoch of its source."""
    return {"where": clip["where"][:1], "drawn": generator.integers(0, 1 << 62, 1)}


def mixed(root: Path, **options: Any) -> SeqRecordMix:
    sources = {
        name: SeqRecordIterableDataset(root / name, clip_len=3, clip_transform=tell)
        for name in LENGTHS
    }
    return SeqRecordMix(sources, **{"weights": WEIGHTS, "batch_size": 4, "seed": 5, **options})


def told(batch: dict[str, Any]) -> list[tuple[str, int, int, int]]:
    rows = zip(batch["where"][:, 0].tolist(), batch["drawn"][:, 0].tolist(), strict=True)
    return [(list(LENGTHS)[source], *place, drawn) for (source, *place), drawn in rows]


@pytest.fixture(scope="module")
def drawn(root: Path) -> Drawn:
    """A rank alone gives each clip once in every epoch of its source."""
    epochs, count = Drawn(), Counter[tuple[str, int, int]]()
    for batch in mixed(root, stopping_strategy=300, rank=0, world_size=1):
        for clip in told(batch):
            epochs[clip] = count[clip[:3]]
            count[clip[:3]] += 1
    return epochs


def given_in(batch: dict[str, Any], drawn: Drawn) -> Given:
    return [(clip[0], drawn[clip], *clip[1:3]) for clip in told(batch)]


def check_shares(names: list[str]) -> None:
    count: Counter[str] = Counter()
    for number, name in enumerate(names, 1):
        count[name] += 1
        assert max(abs(count[source] - share * number) for source, share in SHARES.items()) < 1


def check_given(given: list[Given], last: list[Given], changes: list[int]) -> None:
    """Every clip of each epoch of a source that is over came once; only to equalise, twice."""
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


@pytest.mark.slow
@settings(deadline=None, max_examples=6)
@given(
    stopping_strategy=st.sampled_from(["first_exhausted", "all_exhausted", 5]),
    changes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), min_size=2, max_size=4),
)
def test_any_changes(
    root: Path, drawn: Drawn, stopping_strategy: Any, changes: list[tuple[int, int]]
) -> None:
    check_changes(root, drawn, stopping_strategy, changes)


@pytest.mark.parametrize(
    ("stopping_strategy", "changes"),
    [
        ("all_exhausted", [(4, 3), (2, 2), (3, 0), (1, 5)]),
        (5, [(2, 5), (3, 7)]),
        ("first_exhausted", [(2, 1)]),
    ],
)
def test_every_clip_once(
    root: Path, drawn: Drawn, stopping_strategy: Any, changes: list[tuple[int, int]]
) -> None:
    check_changes(root, drawn, stopping_strategy, changes)


def check_changes(
    root: Path, drawn: Drawn, stopping_strategy: Any, changes: list[tuple[int, int]]
) -> None:
    """Ranks, and how many batches each gives before the next change."""
    given, last, state = list[Given](), list[Given](), None
    segments = [*changes, (2, 30)]
    so_far: list[str] = []  # of one rank since the number of ranks has changed
    for number, (ranks, batches) in enumerate(segments):
        last, states = [], []
        if number and ranks != segments[number - 1][0]:
            so_far = []
        for rank in range(ranks):
            mix = mixed(root, stopping_strategy=stopping_strategy, rank=rank, world_size=ranks)
            if state is not None:
                mix.load_state_dict(json.loads(json.dumps(state)))
                assert mix.state_dict() == state
            last.append(Given())
            iterator = iter(mix)
            for _ in range(batches):
                while (batch := next(iterator, None)) is None:
                    iterator = iter(mix)
                last[-1] += given_in(batch, drawn)
            states.append(mix.state_dict())
            del iterator
        assert all(one == states[0] for one in states), number
        state = states[0]
        given += last
        names = [[name for name, *_ in one] for one in last]
        assert all(one == names[0] for one in names)
        so_far += names[0]
        check_shares(so_far)
    check_given(given, last, [ranks for ranks, _ in changes] + [2])


@pytest.mark.parametrize("stopping_strategy", ["all_exhausted", 7])
def test_it_resumes_after_a_change(root: Path, stopping_strategy: Any) -> None:
    """In the rest of an epoch, and in later ones, and in another memory."""
    first = mixed(root, stopping_strategy=stopping_strategy, rank=0, world_size=3)
    begun(first, 2)
    state = first.state_dict()

    def go_on(memory_limit: str = "2GiB") -> SeqRecordMix:
        return mixed(
            root,
            stopping_strategy=stopping_strategy,
            rank=1,
            world_size=2,
            memory_limit=memory_limit,
        )

    whole = resumed(go_on(), state)
    states, batches = [], []
    for _ in range(2):
        for batch in whole:
            states.append(whole.state_dict())
            batches.append(told(batch))
    for number in (0, 1, len(states) // 2, len(states) - 2):
        again = resumed(go_on("1MiB"), states[number])
        # The first iteration may have nothing left.
        found = [told(batch) for _ in range(3) for batch in again]
        assert found[: len(states) - number - 1] == batches[number + 1 :]


def test_set_epoch_of_an_iteration_that_was_made(root: Path) -> None:
    """It goes on with what the former ranks have left, as one that is made later does."""
    first = mixed(root, rank=0, world_size=3)
    next(iter(first))
    state = first.state_dict()
    found = []
    for is_made in (True, False):
        mix = resumed(mixed(root, rank=0, world_size=2), state)
        iterator = iter(mix) if is_made else None
        mix.set_epoch(1)
        found.append([told(batch) for batch in iterator or mix])
    assert found[0] == found[1]


def test_workers_have_the_settings_of_a_state_that_is_loaded_beside_them(root: Path) -> None:
    """As if the StatefulDataLoader itself had loaded its state."""

    def mix(**options: Any) -> SeqRecordMix:
        sources = {
            "a": SeqRecordIterableDataset(root / "a", clip_len=3, clip_transform=tell, **options)
        }
        return SeqRecordMix(sources, batch_size=4, seed=5)

    def stateful(data: SeqRecordMix) -> Any:
        return StatefulDataLoader(data, batch_size=None, num_workers=2)

    first = mix(engine=EngineOptions(num_cursors=3))
    loader = stateful(first)
    iterator = begun(loader, 2)
    state = first.state_dict(batches=2)
    own = loader.state_dict()
    expected = [told(batch) for batch in iterator]
    data = resumed(mix(), state)
    assert [told(batch) for batch in stateful(data)] == expected
    assert [told(batch) for batch in stateful(mix())][2:] != expected
    data = mix()
    assert [told(batch) for batch in resumed(stateful(data), own)] == expected
    assert len(list(data)) == len(data)  # without workers, after an epoch in workers


def test_what_is_left_of_an_epoch(root: Path) -> None:
    """With "all_exhausted" every source has given all of its clips when the epoch ends."""
    clips = set[tuple[str, int, int]]()
    state: dict[str, Any] = {}
    for rank in range(2):
        mix = mixed(root, stopping_strategy="all_exhausted", rank=rank, world_size=2)
        iterator = iter(mix)
        for _ in range(3):
            clips.update(clip[:3] for clip in told(next(iterator)))
        state = mix.state_dict()
        del iterator
    for rank in range(3):
        mix = resumed(
            mixed(root, stopping_strategy="all_exhausted", rank=rank, world_size=3), state
        )
        left = [clip[:3] for batch in mix for clip in told(batch)]
        assert left
        clips.update(left)
        assert mix.state_dict()["epoch"] == 1
    assert len(clips) == sum(CLIPS.values())


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_come_and_go(root: Path, persistent: bool) -> None:
    """A StatefulDataLoader of two workers goes on with three, and then without, for epochs."""

    def names(batch: dict[str, Any]) -> list[tuple[str, str, int]]:
        return list(zip(batch["dataset"], batch["episode"], batch["start"].tolist(), strict=True))

    def loader(mix: SeqRecordMix, workers: int) -> StatefulDataLoader[Any]:
        keeps = persistent and workers > 0
        return StatefulDataLoader(
            mix, batch_size=None, num_workers=workers, persistent_workers=keeps
        )

    original = mixed(root, stopping_strategy=13)
    two = loader(original, 2)
    iterator = iter(two)
    first = [names(next(iterator)) for _ in range(5)]
    of_workers, saved = two.state_dict(), original.state_dict(batches=5)
    del iterator
    mix = resumed(
        mixed(root, stopping_strategy=13),
        of_workers["_snapshot"]["_worker_snapshots"]["worker_0"]["dataset_state"],
    )
    with pytest.raises(StateError, match="the position of one worker of several"):
        iter(mix).__next__()
    mix = resumed(mixed(root, stopping_strategy=13), saved)
    assert mix.state_dict()["batch"] == [3, 2]
    three = loader(mix, 3)
    rest = [names(batch) for batch in three]
    assert len(first) + len(rest) in (13, 14, 15)
    again = resumed(mixed(root, stopping_strategy=13), saved)
    repeated = loader(again, 3)
    assert [names(batch) for batch in repeated] == rest
    later = [names(batch) for batch in three]
    assert len(later) == 13
    assert [names(batch) for batch in repeated] == later
    iterator = iter(three)
    some = [names(next(iterator)) for _ in range(4)]
    saved, of_all = three.state_dict(), mix.state_dict(batches=4)
    others = [names(batch) for batch in iterator]
    third = resumed(loader(mixed(root, stopping_strategy=13), 3), saved)
    assert [names(batch) for batch in third] == others
    assert [names(batch) for batch in third] == [names(batch) for batch in three]
    assert len(some) == 4
    alone = resumed(mixed(root, stopping_strategy=13), of_all)
    assert len([names(batch) for batch in alone]) == 9
    del two, three, repeated, third


def test_states_that_make_no_sense(root: Path) -> None:
    mix = mixed(root, rank=0, world_size=3)
    next(iter(mix))
    before = mix.state_dict()
    mix = resumed(mixed(root, rank=0, world_size=2), before)
    next(iter(mix))
    good = mix.state_dict()
    assert good["rest"]["number"] == 1

    def changed(change: Any) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(json.dumps(good))
        change(state)
        return state

    def source(state: dict[str, Any]) -> Any:
        return state["rest"]["sources"][0]

    def skip_an_epoch(state: dict[str, Any]) -> None:
        [[epoch, segments]] = source(state)["pending"]
        source(state).update(
            pending=[[epoch, segments], [epoch + 2, segments]], following=epoch + 3
        )
        state["sources"][0]["left"] *= 2

    for change, message in (
        (lambda state: state["rest"].pop("left"), "other entries"),
        (lambda state: state["rest"].update(epoch=-1), "out of range"),
        (lambda state: state["rest"].update(number=0), "out of range"),
        (lambda state: state.update(rest=None), "that follow each other"),
        (lambda state: state["sources"].pop(), "sources that no loader has saved"),
        (lambda state: state["sources"].clear(), "sources that no loader has saved"),
        (lambda state: source(state).update(following=9), "that follow each other"),
        (
            skip_an_epoch,
            "skips an epoch .* expected: epoch 1 of source .a. after epoch 0; got: epoch 2",
        ),
        (lambda state: source(state)["pending"][0].__setitem__(1, []), "with its segments"),
        (lambda state: source(state)["pending"][0].__setitem__(1, 1), "another type"),
        (lambda state: source(state).update(pending=1), "another type"),
        (
            lambda state: source(state)["pending"][0][1][0].update(batches=[9999]),
            "beyond the epoch's end",
        ),
    ):
        with pytest.raises(StateError, match=message):
            mix.load_state_dict(changed(change))
    fine = resumed(mixed(root, rank=0, world_size=2), json.loads(json.dumps(good, sort_keys=True)))
    assert fine.state_dict() == good


@pytest.mark.slow
def test_epochs_without_clips_between_those_that_workers_are_in(root: Path) -> None:
    """A source of one clip in three of ten epochs: what other ranks go on with is a state."""
    key = next(iter(seqrecord.open(root / "b").episodes))
    one = {"episode": [key], "start": [0], "weight": [0.3]}

    def mixed_rarely(world_size: int) -> SeqRecordMix:
        sources = {
            "often": SeqRecordIterableDataset(root / "a", clip_len=3),
            "rarely": SeqRecordIterableDataset(root / "b", clip_len=3, clips=one),
        }
        weights = {"often": 3, "rarely": 7}
        return SeqRecordMix(
            sources,
            weights=weights,
            batch_size=1,
            stopping_strategy=4000,
            seed=1,
            rank=0,
            world_size=world_size,
        )

    gaps = 0
    mix = mixed_rarely(1)
    workers = StatefulDataLoader(mix, batch_size=None, num_workers=2)
    for number, _ in enumerate(islice(workers, 28)):
        ranks = resumed(mixed_rarely(2), mix.state_dict(batches=number + 1))
        next(iter(ranks))
        saved = json.loads(json.dumps(ranks.state_dict()))
        epochs = [epoch for epoch, _ in saved["rest"]["sources"][1]["pending"]]
        gaps += any(after > before + 1 for before, after in pairwise(epochs))
        again = resumed(mixed_rarely(2), saved)
        assert again.state_dict() == saved
    assert gaps
