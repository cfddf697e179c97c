"""Mixes of datasets that have grown: the epoch of a state ends as it began, the next has all."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import SeqRecordIterableDataset, SeqRecordMix, SeqRecordPipe, StateError
from tests.kit.clip_data import digests, resumed
from tests.loader.test_grown import LENGTHS, append, clips_in, saved

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    """A large source, and one that grows."""
    return {"old": append(tmp_path / "old", 8), "new": append(tmp_path / "new", 2)}


def make(paths: dict[str, Path], **options: Any) -> SeqRecordMix:
    sources = {name: SeqRecordPipe(path, clip_len=3) for name, path in paths.items()}
    return SeqRecordMix(sources, **{"batch_size": 4, "seed": 2, **options})


OPTIONS: dict[str, dict[str, Any]] = {
    "clips": {},
    "numbers": {"weights": {"old": 0.7, "new": 0.3}},
    "by epoch": {"weights": {0: {"old": 1, "new": 1}, 2: {"old": 1, "new": 3}}},
    "a function": {"weights": lambda epoch: {"old": 4, "new": 1 + epoch}},
    "batches of one source": {"single_source_batches": True},
    "all": {"stopping_strategy": "all_exhausted"},
    "batches": {"stopping_strategy": 7},
    "repeat": {"repeat": {"new": 2}},
    "choose": {"choose": {"old": 20, "new": 12}},
}


def clips_of(batches: Any) -> Counter[tuple[str, str, int]]:
    """How often each clip comes, with its source."""
    found = Counter[tuple[str, str, int]]()
    for batch in batches:
        found.update(
            (name, *clip) for name, clip in zip(batch["dataset"], clips_in([batch]), strict=True)
        )
    return found


@pytest.mark.parametrize("case", OPTIONS)
def test_the_epoch_of_a_state_ends_as_it_began(paths: dict[str, Path], case: str) -> None:
    options = OPTIONS[case]
    mix = make(paths, **options)
    whole = [digests(mix), digests(mix)]
    mix = make(paths, **options)
    digests(mix)
    state = saved(mix)
    rest = digests(resumed(make(paths, **options), state))
    assert rest == whole[1][2:]
    append(paths["new"], 6, 2)
    grown = resumed(make(paths, **options), state)
    assert digests(grown) == rest
    batches = [*grown]
    keys = {clip[1] for clip in clips_of(batches) if clip[0] == "new"}
    assert keys & {"e2", "e3", "e4", "e5"}, "new episodes come in the next epoch"
    # A state in the next epoch, and at its end.
    again = resumed(make(paths, **options), state)
    digests(again)
    later = saved(again)
    last = digests(resumed(make(paths, **options), later))
    assert last == digests(_after(make(paths, **options), state, 1))[2:]
    assert digests(resumed(make(paths, **options), grown.state_dict())) == digests(grown)


def _after(mix: SeqRecordMix, state: Any, epochs: int) -> SeqRecordMix:
    """The mix after a state and the rest of its epoch, and further epochs."""
    mix.load_state_dict(state)
    for _ in range(epochs):
        for _ in mix:
            pass
    return mix


def test_a_source_that_has_not_grown_continues(paths: dict[str, Path]) -> None:
    """Each of its clips comes once in its epochs, whatever the other source does."""
    options: dict[str, Any] = {"weights": {"old": 3, "new": 1}, "stopping_strategy": 5}
    mix, got, total = make(paths, **options), list[Any](), 2
    num_clips = sum(length - 2 for length in LENGTHS)
    for _ in range(6):
        iterator = iter(mix)
        got += [*islice(iterator, 2)]
        state = json.loads(json.dumps(mix.state_dict()))
        append(paths["new"], total + 1, total)
        total += 1
        mix = resumed(make(paths, **options), state)
        got += [*mix]
    old = [clip for batch in got for clip in _clips_of_source(batch, "old")]
    assert len(old) > num_clips
    for start in range(0, len(old) - num_clips + 1, num_clips):
        assert len({*old[start : start + num_clips]}) == num_clips


def _clips_of_source(batch: Any, source: str) -> list[tuple[str, int]]:
    clips = clips_in([batch])
    return [clip for clip, name in zip(clips, batch["dataset"], strict=True) if name == source]


def test_a_source_that_has_grown_begins_its_next_epoch(paths: dict[str, Path]) -> None:
    options: dict[str, Any] = {"weights": {"old": 1, "new": 1}, "stopping_strategy": 40}
    mix = make(paths, **options)
    state = saved(mix)
    append(paths["new"], 4, 2)
    mix = _after(make(paths, **options), state, 1)
    new = [clip for batch in mix for clip in _clips_of_source(batch, "new")]
    num_clips = sum(length - 2 for length in LENGTHS[:4])
    assert len({*new[:num_clips]}) == num_clips
    assert len({*new[num_clips : 2 * num_clips]}) == num_clips


def test_ranks_and_workers_share_the_epochs_of_a_grown_source(paths: dict[str, Path]) -> None:
    """Each clip of the grown source comes once over all shards, which differ in their positions."""
    options: dict[str, Any] = {"weights": {"old": 1, "new": 2}, "stopping_strategy": 12}
    state = None
    for rank in range(2):
        mix = make(paths, rank=(rank, 2), **options)
        batches = DataLoader(mix, batch_size=None, num_workers=2)
        assert len([*islice(batches, 5)]) == 5
        state = state or mix.state_dict(batches=5)
        assert state == mix.state_dict(batches=5)
        del batches
    append(paths["new"], 4, 2)
    num_clips = sum(length - 2 for length in LENGTHS[:4])
    per_shard = -(-num_clips // 4)
    first = list[Any]()
    for rank in range(2):
        mix = resumed(make(paths, rank=(rank, 2), **options), state)
        batches = DataLoader(mix, batch_size=None, num_workers=2, persistent_workers=True)
        for _ in iter(batches):
            pass
        by_worker: list[list[Any]] = [[], []]
        for number, batch in enumerate(iter(batches)):
            by_worker[number % 2] += _clips_of_source(batch, "new")
        first += [clip for clips in by_worker for clip in clips[:per_shard]]
    assert len({*first}) == num_clips


def test_other_ranks_finish_the_epoch_without_what_has_grown(paths: dict[str, Path]) -> None:
    options: dict[str, Any] = {"weights": {"old": 1, "new": 1}, "stopping_strategy": 6}
    state = saved(make(paths, rank=(0, 2), **options))
    append(paths["new"], 4, 2)
    mix = resumed(make(paths, **options), state)
    epochs = [clips_of(mix), clips_of(mix)]
    keys = [{clip[1] for clip in found if clip[0] == "new"} for found in epochs]
    assert not {"e2", "e3"} & keys[0]
    assert {"e2", "e3"} & keys[1]


def test_rows_and_info(paths: dict[str, Path]) -> None:
    mix = make(paths, stopping_strategy=5)
    old = [clips_in([batch]) for batch in mix]
    state = saved(mix)
    append(paths["new"], 4, 2)
    grown = resumed(make(paths, stopping_strategy=5), state)
    expected = [clips_in([batch]) for batch in _after(make(paths, stopping_strategy=5), state, 1)]

    def named(epoch: int, batch: int) -> Any:
        rows = grown.rows(epoch, batch)
        return list(zip(rows["episode"], rows["start"].tolist(), strict=True))

    assert [named(0, n) for n in range(len(old))] == old
    assert [named(2, n) for n in range(len(expected))] == expected


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_rows_of_a_state_between_epochs(paths: dict[str, Path], ranks: int) -> None:
    """Its epoch has all episodes, with settings of their own."""
    options: dict[str, Any] = {"weights": "equal", "stopping_strategy": 9}
    state = json.loads(json.dumps(make(paths, rank=(0, ranks), **options).state_dict()))
    append(paths["new"], 8, 2)
    mix = resumed(make(paths, rank=(0, ranks), **options), state)
    reader = resumed(make(paths, rank=(0, 1), **options), state)
    for epoch in range(3):
        for number, batch in enumerate(mix):
            rows = reader.rows(epoch, number, rank=0)
            assert [rows["dataset"], rows["episode"]] == [batch["dataset"], batch["episode"]]
            assert rows["start"].tolist() == batch["start"].tolist()


def test_a_nested_mix_that_has_grown_is_refused(paths: dict[str, Path]) -> None:
    def nested() -> SeqRecordMix:
        inner: Any = {
            "inner": make(paths, seed=0),
            "more": SeqRecordIterableDataset(paths["old"], clip_len=3),
        }
        return SeqRecordMix(inner, batch_size=4, weights={"inner": 1, "more": 1})

    state = saved(nested())
    append(paths["new"], 4, 2)
    with pytest.raises(StateError, match=r"a dataset of it has grown; .*expected: its datasets as"):
        nested().load_state_dict(state)


def test_a_changed_source_is_refused(paths: dict[str, Path]) -> None:
    options: dict[str, Any] = {"weights": {"old": 1, "new": 1}}
    state = saved(make(paths, **options))
    seqrecord.edit.rename_episodes(paths["new"], {"e1": "other"})
    with pytest.raises(StateError, match=r"number 1 is the first that differs.*episode: other"):
        make(paths, **options).load_state_dict(state)


def test_a_changed_source_is_named_before_the_shares_that_follow_its_size(
    paths: dict[str, Path],
) -> None:
    state = saved(make(paths), 2)
    seqrecord.edit.trim_episodes(paths["old"], ["e2"], slice(1, None))
    append(paths["new"], 3, 2)
    with pytest.raises(StateError, match="number 2 is the first that differs") as caught:
        make(paths).load_state_dict(state)
    assert str(paths["old"]) in str(caught.value)
