"""`weights` of a mix by epoch: exact shares in each, sources that continue, and states."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from seqrecord import ClipError, SeqRecordMix, SeqRecordPipe, StateError
from tests.kit.clip_data import all_names
from tests.kit.datasets import write_dataset

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]

OLD, NEW = 29, 17  # clips of the sources


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("weights")
    for name, count in (("old", OLD), ("new", NEW)):
        frames = [{"id": np.array([number])} for number in range(count)]
        write_dataset(root / name, {f"{name}/0": frames})
    return root


def annealed(epoch: int) -> dict[str, float]:
    return {"old": max(0.9 - 0.1 * epoch, 0.2), "new": min(0.1 + 0.1 * epoch, 0.8)}


STEPS: dict[int, Any] = {0: {"old": 1, "new": 0}, 2: {"old": 1, "new": 3}, 3: "equal"}
OF_NUMPY = {np.int64(epoch): weights for epoch, weights in STEPS.items()}
WEIGHTS: dict[str, Any] = {"steps": STEPS, "steps of NumPy": OF_NUMPY, "function": annealed}


def make(path: Path, weights: Any, **options: Any) -> SeqRecordMix:
    sources = {name: SeqRecordPipe(path / name, clip_len=1) for name in ("old", "new")}
    settings = {"batch_size": 5, "seed": 3, "stopping_strategy": 8, **options}
    return SeqRecordMix(sources, weights=weights, **settings)


def shares_of(weights: Any, epoch: int) -> dict[str, Fraction]:
    if callable(weights):
        by_source = weights(epoch)
    else:
        by_source = weights[max(start for start in weights if start <= epoch)]
    by_source = {"old": 1, "new": 1} if by_source == "equal" else by_source
    exact = {name: Fraction(str(round(weight, 3))) for name, weight in by_source.items()}
    return {name: weight / sum(exact.values()) for name, weight in exact.items()}


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("alternate", [False, True])
def test_shares_are_exact_in_every_epoch(path: Path, kind: str, alternate: bool) -> None:
    weights = WEIGHTS[kind]
    rounded: Callable[[int], Any] = lambda epoch: {  # noqa: E731
        name: float(share) for name, share in shares_of(weights, epoch).items()
    }
    mix = make(path, rounded if kind == "function" else weights, single_source_batches=alternate)
    for epoch in range(6):
        expected = shares_of(weights, epoch)
        assert mix.shares == expected
        taken = Counter[str]()
        for slot, (key, _) in enumerate(all_names(mix), 1):
            taken[key.split("/")[0]] += 1
            for name, share in expected.items():
                assert abs(taken[name] - slot * share) < (5 if alternate else 1)


@pytest.mark.parametrize("kind", WEIGHTS)
def test_sources_continue_where_the_last_epoch_ended(path: Path, kind: str) -> None:
    """In any 29 consecutive clips of the old source, across epochs, all clips come."""
    mix = make(path, WEIGHTS[kind])
    taken: dict[str, list[Any]] = {"old": [], "new": []}
    for _ in range(8):
        for key, start in all_names(mix):
            taken[key.split("/")[0]].append(start)
    for name, count in (("old", OLD), ("new", NEW)):
        starts = taken[name]
        assert len(starts) > 2 * count
        for begin in range(0, len(starts) - count, count):
            assert sorted(starts[begin : begin + count]) == list(range(count))


@pytest.mark.parametrize("kind", WEIGHTS)
def test_a_jump_and_a_resume_have_the_same_batches(path: Path, kind: str) -> None:
    mix, states, epochs = make(path, WEIGHTS[kind]), [], []
    for _ in range(5):
        batches = []
        for number, batch in enumerate(mix):
            batches.append(batch)
            if number == 3:
                states.append(json.loads(json.dumps(mix.state_dict())))
        epochs.append(batches)
    for epoch in (4, 2, 3):
        jumped = make(path, WEIGHTS[kind])
        jumped.set_epoch(epoch)
        assert all_names(jumped) == all_names(epochs[epoch])
        resumed = make(path, WEIGHTS[kind])
        resumed.load_state_dict(states[epoch])
        assert all_names(resumed) == all_names(epochs[epoch][4:])
        if epoch < 4:
            assert all_names(resumed) == all_names(epochs[epoch + 1])
        for number, batch in enumerate(epochs[epoch]):
            rows = resumed.rows(epoch, number)
            assert (rows["episode"], rows["dataset"]) == (batch["episode"], batch["dataset"])


def test_ranks_and_workers_take_their_parts(path: Path) -> None:
    whole = Counter[str]()
    for rank in range(2):
        mix = make(path, STEPS, rank=(rank, 2), stopping_strategy=6)
        loader = DataLoader(mix, batch_size=None, num_workers=2)
        for epoch in range(4):
            mix.set_epoch(epoch)
            length = len(loader)
            clips = all_names(loader)
            assert len(clips) == 5 * length == 30
            if epoch == 3:
                whole.update(key.split("/")[0] for key, _ in clips)
    assert abs(whole["old"] - whole["new"]) <= 4


def test_epochs_end_by_their_own_weights(path: Path) -> None:
    """Before the first source with a weight in the epoch would begin again."""
    mix = make(path, {0: {"old": 1, "new": 0}, 1: {"old": 1, "new": 1}}, batch_size=1,
               stopping_strategy="first_exhausted")  # fmt: skip
    assert [len(list(mix)) for _ in range(3)] == [OLD, 2 * NEW, 2 * NEW]


def test_constant_weights_have_the_same_order_as_before(path: Path) -> None:
    for weights in ({0: {"old": 1, "new": 3}}, {0: {"old": 1, "new": 3}, 2: {"old": 2, "new": 6}},
                    lambda _: {"old": 1, "new": 3}):  # fmt: skip
        constant, by_epoch = make(path, {"old": 1, "new": 3}), make(path, weights)
        for _ in range(4):
            assert all_names(constant) == all_names(by_epoch)


def test_a_state_has_the_weights_up_to_its_epoch(path: Path) -> None:
    mix = make(path, STEPS)
    mix.set_epoch(2)
    next(iter(mix))
    state = mix.state_dict()
    make(path, {**STEPS, 3: {"old": 9, "new": 1}}).load_state_dict(state)  # later ones may change
    make(path, lambda epoch: STEPS[min(epoch, 2)] if epoch != 1 else STEPS[0]).load_state_dict(
        state
    )
    for changed in (
        {**STEPS, 1: "equal"},
        {**STEPS, 2: {"old": 1, "new": 2}},
        {"old": 1, "new": 3},
    ):
        with pytest.raises(StateError, match="of another mix: shares"):
            make(path, changed).load_state_dict(state)


def test_a_file_has_weights_by_epoch(path: Path) -> None:
    text = f"""
sources:
  old: {{location: "{path}/old"}}
  new: {{location: "{path}/new"}}
weights:
  0: {{old: 1, new: 0}}
  2: {{old: 1, new: 3}}
  3: equal
clip_len: 1
batch_size: 5
seed: 3
stopping_strategy: 8
"""
    (path / "mix.yaml").write_text(text)
    mix, again = make(path, STEPS), SeqRecordMix.from_file(path / "mix.yaml")
    for _ in range(4):
        assert all_names(mix) == all_names(again)


def test_a_source_that_never_has_a_weight_is_not_read(path: Path) -> None:
    mix = make(path, {0: {"old": 1, "new": 0}, 3: {"old": 2, "new": 0}})
    assert mix.shares == {"old": 1}
    assert len(list(islice(mix, 3))) == 3


WRONG: dict[str, tuple[Any, str]] = {
    "no first epoch": ({1: "equal"}, "beginning with 0"),
    "a negative epoch": ({0: "equal", -1: "equal"}, "beginning with 0"),
    "epochs and sources": ({0: "equal", "old": 1}, "beginning with 0"),
    "another source": ({0: {"old": 1, "other": 1}}, "weights by source, of old, new"),
    "nothing": (lambda _: {"old": 0, "new": 0}, "weight above 0 of some source.*none in epoch 0"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_weights_that_make_no_sense_are_refused(path: Path, kind: str) -> None:
    weights, match = WRONG[kind]
    with pytest.raises(ClipError, match=match):
        make(path, weights)


def test_what_excludes_weights_by_epoch(path: Path) -> None:
    mix = make(path, annealed)
    mix.set_epoch(1 << 20)
    with pytest.raises(ClipError, match="too far for weights that are a function"):
        next(iter(mix))
    with pytest.raises(ClipError, match="repeat and choose are numbers of clips"):
        make(path, annealed, repeat={"old": 2})
    sources = {name: SeqRecordPipe(path / name, clip_len=1) for name in ("old", "new")}
    inner = SeqRecordMix(sources, weights=STEPS, batch_size=1)
    with pytest.raises(ClipError, match="weights of source 'inner' change by epoch"):
        SeqRecordMix({"inner": inner}, batch_size=2)
