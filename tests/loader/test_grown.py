"""Data that has grown: a state of the first episodes resumes; new ones come in the next epoch."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import seqrecord
from seqrecord import (
    Budget,
    FrameCache,
    SeqRecordIterableDataset,
    SeqRecordNode,
    SeqRecordPipe,
    SeqRecordWriter,
    StateError,
)
from seqrecord.samples import every, segments
from tests.kit.clip_data import digests, resumed
from tests.loader.resume_contract import Direct

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]

LENGTHS = (12, 7, 15, 9, 11, 8, 14, 6)
CLIP: dict[str, Any] = {"clip_len": 3, "batch_size": 4, "seed": 3}

Clip = tuple[str, int]


def append(path: Path, stop: int, first: int = 0, **options: Any) -> Path:
    """Write episodes [first, stop), after those that the dataset has."""
    mode: Any = "append" if path.exists() else "create"
    with SeqRecordWriter(path, mode=mode, chunk_frames=4, **options) as writer:
        for number in range(first, stop):
            metadata = {"good": number % 3 != 1, "number": number}
            with writer.episode(f"e{number}", metadata=metadata) as episode:
                for frame in range(LENGTHS[number % len(LENGTHS)]):
                    episode.append(
                        {
                            "id": np.array([number, frame]),
                            "state": np.full(2, 10 * number + frame, np.float32),
                        }
                    )
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return append(tmp_path / "records", 4)


def clips_in(batches: Sequence[Mapping[str, Any]]) -> list[Clip]:
    """Key and start of each clip, after a check of its frames."""
    clips = []
    for batch in batches:
        for key, start, frames in zip(
            batch["episode"], batch["start"].tolist(), batch["id"].tolist(), strict=True
        ):
            assert frames == [[int(key[1:]), start + i] for i in range(len(frames))]
            clips.append((key, start))
    return clips


def saved(loader: Any, batches: int = 2) -> Any:
    """The state after some batches, as JSON."""
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return json.loads(json.dumps(loader.state_dict()))


def turn(samples: Any, epoch: int, rng: Any) -> Any:
    """Every second start, even ones in even epochs."""
    return samples.filter(samples["start"] % 2 == epoch % 2)


OPTIONS: dict[str, dict[str, Any]] = {
    "batches": {},
    "single clips": {"batch_size": None},
    "in order": {"shuffle": False, "last_batch": "keep"},
    "sequences": {"order": "sequences", "batch_size": 2},
    "lengths": {"clip_len": (2, 5), "batch_size": Budget(12)},
    "streamed": {"memory_limit": 60_000, "engine": seqrecord.EngineOptions(num_cursors=2)},
    "padded": {"pad": "edge", "windows": {"id": [0, 1, 2]}},
    "a function": {"samples": every(2, rotate=True)},
    "a user's function": {"samples": turn},
    "a predicate": {"episodes": lambda metadata: metadata["good"]},
    "a glob": {"episodes": "e*"},
}


@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.parametrize("kind", [SeqRecordPipe, SeqRecordIterableDataset, Direct])
def test_the_rest_of_an_epoch_has_the_old_episodes(path: Path, kind: Any, case: str) -> None:
    """In the middle of epoch 1; the next one is that of the grown dataset."""
    options = {**CLIP, **OPTIONS[case]}
    loader = kind(path, **options)
    digests(loader)
    state = saved(loader)
    rest = digests(resumed(kind(path, **options), state))
    append(path, 7, 4)
    grown = resumed(kind(path, **options), state)
    assert grown.state_dict() == state
    assert digests(grown) == rest
    later = kind(path, **options)
    later.set_epoch(2)
    assert digests(grown) == digests(later)
    again = resumed(kind(path, **options), json.loads(json.dumps(grown.state_dict())))
    if kind is Direct:  # a node's state stays at the end
        digests(again)
    assert digests(again) == digests(grown)


@pytest.mark.parametrize("case", OPTIONS)
def test_an_epoch_that_has_not_begun_has_all_episodes(path: Path, case: str) -> None:
    options = {**CLIP, **OPTIONS[case]}
    pipe = SeqRecordPipe(path, **options)
    digests(pipe)
    state = pipe.state_dict()
    append(path, 7, 4)
    later = SeqRecordPipe(path, **options)
    later.set_epoch(1)
    grown = resumed(SeqRecordPipe(path, **options), state)
    assert len(grown) == len(later)
    assert digests(grown) == digests(later)


def test_one_warning_names_the_growth(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = saved(SeqRecordPipe(path, **CLIP))
    append(path, 5, 4)
    pipe = resumed(SeqRecordPipe(path, **CLIP), state)
    [warning] = [r.getMessage() for r in caplog.records if "has grown" in r.getMessage()]
    expected = "since the saved state, from 4 episodes to 5 episodes: epoch 1 is the first with all"
    assert expected in warning
    assert len(pipe.dataset.episodes) == 5
    assert pipe.num_clips == sum(length - 2 for length in LENGTHS[:4])
    digests(pipe)
    assert pipe.num_clips == sum(length - 2 for length in LENGTHS[:5])


# ---- other changes


def rename(path: Path) -> None:
    seqrecord.edit.rename_episodes(path, {"e2": "other"})


def trim(path: Path) -> None:
    seqrecord.edit.trim_episodes(path, ["e2"], slice(0, 8))


def delete(path: Path) -> None:
    seqrecord.edit.delete_episodes(path, ["e2"])


@pytest.mark.parametrize(
    ("change", "episode"),
    [(rename, "other"), (trim, "e2"), (delete, "e3")],
    ids=["rename", "trim", "delete"],
)
@pytest.mark.parametrize("more", [0, 3])
def test_changed_episodes_are_refused_by_the_first(
    path: Path, change: Callable[[Path], None], episode: str, more: int
) -> None:
    loader = SeqRecordPipe(path, **CLIP)
    state = saved(loader)
    change(path)
    if more:
        append(path, 4 + more, 4)
    changed = SeqRecordPipe(path, **CLIP)
    before = changed.state_dict()
    match = f"this one has changed: .*; number 2 is the first that differs.*episode: {episode}"
    with pytest.raises(StateError, match=match) as caught:
        changed.load_state_dict(state)
    assert caught.value.episode == episode
    assert changed.state_dict() == before


def test_a_dataset_that_ends_earlier_is_refused(path: Path) -> None:
    state = saved(SeqRecordPipe(path, **CLIP))
    seqrecord.edit.delete_episodes(path, ["e3"])
    with pytest.raises(StateError, match="the first 3 are equal, and then it ends"):
        SeqRecordPipe(path, **CLIP).load_state_dict(state)


def test_among_many_episodes_a_few_are_named(tmp_path: Path) -> None:
    path = append(tmp_path / "records", 200)
    state = saved(SeqRecordPipe(path, **CLIP))
    assert len(json.dumps(state)) < 2_500
    seqrecord.edit.rename_episodes(path, {"e152": "other"})
    with pytest.raises(StateError, match="one of the numbers 151 to 152 is the first") as e:
        SeqRecordPipe(path, **CLIP).load_state_dict(state)
    assert e.value.episode == "e151"


def test_another_selection_of_the_same_data_is_a_mistake(path: Path) -> None:
    """Nothing was appended: a forgotten argument must not widen a training in silence."""
    state = saved(SeqRecordPipe(path, episodes=["e0", "e1"], **CLIP))
    with pytest.raises(StateError, match="other episodes of this dataset"):
        SeqRecordPipe(path, **CLIP).load_state_dict(state)


# ---- selections and tables


def test_a_split_that_grows(path: Path) -> None:
    seqrecord.edit.split_episodes(path, ["e0", "e2", "e3"], "train")
    options = {**CLIP, "split": "train"}
    state = saved(SeqRecordPipe(path, **options))
    rest = clips_in([*resumed(SeqRecordPipe(path, **options), state)])
    append(path, 6, 4)
    seqrecord.edit.split_episodes(path, ["e5"], "train")
    grown = resumed(SeqRecordPipe(path, **options), state)
    assert clips_in([*grown]) == rest
    assert {key for key, _ in clips_in([*grown])} == {"e0", "e2", "e3", "e5"}


LOSSES = [0.5, 1.0, 2.0, 8.0, 1.5, 0.1, 0.2, 0.3]
ROWS: dict[str, list[Any]] = {
    "episode": ["e2", "e0", "e3", "e0", "e1", "e5", "e1", "e4"],
    "start": [4, 3, 2, 8, 0, 1, 2, 5],
    "loss": LOSSES,
    "repeat": [1.5, 2.0, 1.0, 3.0, 1.0, 2.0, 1.0, 0.5],
}


def starts(count: int) -> Any:
    return {name: values[:count] for name, values in ROWS.items()}


def of_episodes(count: int) -> Any:
    names = ["e3", "e1", "e0", "e2", "e5", "e4"][: count - 2]
    return {"episode": names, "label": [f"label {n}" for n in names]}


def frame_lists(count: int) -> Any:
    table = starts(count)
    frames = [[start, start + 1, start] for start in table.pop("start")]
    return {**table, "frames": frames}


def spans(count: int) -> Any:
    table = starts(count)
    return segments({**table, "stop": [start + 4 for start in table["start"]]})


def high(samples: Any, epoch: int, rng: Any) -> Any:
    """The rows above the median, which more rows change."""
    return samples.filter(samples["loss"] >= np.median(samples["loss"]))


TABLES: dict[str, Any] = {
    "starts": starts,
    "episodes": of_episodes,
    "frames": frame_lists,
    "segments": spans,
    "a function": lambda count: [starts(count), high],
}


@pytest.mark.parametrize("is_appended", [True, False])
@pytest.mark.parametrize("case", TABLES)
def test_a_table_whose_old_rows_come_first(path: Path, case: str, is_appended: bool) -> None:
    """New rows may be of old and of new episodes."""
    make = TABLES[case]
    options = {**CLIP, "batch_size": 2, "metadata": ["number"]}
    if case == "frames":
        options["clip_len"] = None
    if not is_appended:
        append(path, 6, 4)
    first = SeqRecordPipe(path, samples=make(5), **options)
    digests(first)
    state = saved(first)
    rest = digests(resumed(SeqRecordPipe(path, samples=make(5), **options), state))
    if is_appended:
        append(path, 6, 4)
    grown = resumed(SeqRecordPipe(path, samples=make(8), **options), state)
    assert digests(grown) == rest
    later = SeqRecordPipe(path, samples=make(8), **options)
    later.set_epoch(2)
    assert digests(grown) == digests(later)


def test_a_table_with_other_first_rows_is_refused(path: Path) -> None:
    append(path, 6, 4)
    state = saved(SeqRecordPipe(path, samples=starts(5), **CLIP))
    turned = {name: values[::-1] for name, values in ROWS.items()}
    changed = {**ROWS, "loss": [0.6, *LOSSES[1:]]}
    beyond = {"episode": ["e0"] * 8, "start": [7, *range(1, 8)]}
    for table in (turned, changed, beyond, starts(4)):
        with pytest.raises(StateError, match="the saved state is of other settings: samples"):
            SeqRecordPipe(path, samples=table, **CLIP).load_state_dict(state)


# ---- ranks, workers, kills


def run_epochs(path: Path, draw: random.Random, options: dict[str, Any], num_steps: int) -> None:
    """Append, kill and resume on other ranks at random: each epoch has every clip of the episodes
    that there were at its begin, and each at most once more than shards even out.
    """
    epochs: dict[int, Counter[Clip]] = {}
    sizes: dict[int, int] = {}
    state, epoch, num_episodes, spare = None, 0, 3, Counter[int]()
    append(path, num_episodes)
    is_over = True
    for _ in range(num_steps):
        ranks = draw.randint(1, 3)
        loaders = [SeqRecordIterableDataset(path, rank=(r, ranks), **options) for r in range(ranks)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        if is_over:
            sizes[epoch] = num_episodes
        iterators = [iter(loader) for loader in loaders]
        batches = [[*iterator] for iterator in iterators]
        length = min(map(len, batches))
        stop = draw.choice([length, draw.randint(1, max(1, length - 1))])
        is_over = stop == length
        got = [rank if is_over else rank[:stop] for rank in batches]
        clips = Counter(clip for rank in got for clip in clips_in(rank))
        epochs.setdefault(epoch, Counter()).update(clips)
        spare[epoch] += ranks - 1
        if is_over:
            states = [loader.state_dict() for loader in loaders]
        else:
            for loader in loaders:
                loader.set_epoch(epoch + 100)  # the position of before
                if state is not None:
                    loader.load_state_dict(state)
                else:
                    loader.set_epoch(0)
                iterator = iter(loader)
                for _ in range(stop):
                    next(iterator)
            states = [loader.state_dict() for loader in loaders]
        assert all(one == states[0] for one in states)
        state, epoch = json.loads(json.dumps(states[0])), epoch + is_over
        if draw.random() < 0.6:
            more = draw.randint(1, 2)
            append(path, num_episodes + more, num_episodes)
            num_episodes += more
    assert len(sizes) >= 2
    for number in range(epoch):
        length = options["clip_len"]
        expected = {
            (f"e{e}", start)
            for e in range(sizes[number])
            for start in range(LENGTHS[e % len(LENGTHS)] - length + 1)
        }
        assert epochs[number].keys() == expected, number
        assert epochs[number].total() <= len(expected) + spare[number]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", ["resident", "streamed"])
def test_every_old_clip_comes_once_in_its_epoch(tmp_path: Path, case: str, seed: int) -> None:
    options: dict[str, Any] = {"clip_len": 3, "batch_size": 2, "seed": seed}
    if case == "streamed":
        options["engine"] = seqrecord.EngineOptions(num_cursors=2)
        options["memory_limit"] = 12_000
    draw = random.Random(seed)
    for number in range(1 if seed == 0 else 20):
        run_epochs(tmp_path / f"{number}", draw, options, 6 if seed == 0 else 8)


def test_workers_of_a_dataloader(path: Path) -> None:
    stream = SeqRecordIterableDataset(path, **CLIP)
    batches = DataLoader(stream, batch_size=None, num_workers=2)
    first = clips_in([*islice(batches, 3)])
    state = json.loads(json.dumps(stream.state_dict(batches=3)))
    append(path, 6, 4)
    stream = resumed(SeqRecordIterableDataset(path, **CLIP), state)
    batches = DataLoader(stream, batch_size=None, num_workers=2, persistent_workers=True)
    old = {(f"e{e}", s) for e in range(4) for s in range(LENGTHS[e] - 2)}
    assert {*first, *clips_in([*iter(batches)])} == old
    new = {(f"e{e}", s) for e in range(6) for s in range(LENGTHS[e] - 2)}
    assert {*clips_in([*iter(batches)])} == new  # torch compares its length with the last epoch's
    assert stream.state_dict(batches=0)["since"] == 1


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stateful_dataloader(path: Path, num_workers: int) -> None:
    """Also where a worker has not returned a batch yet: all workers have the same episodes."""
    append(path, 5, 4)

    def make(**options: Any) -> Any:
        stream = SeqRecordIterableDataset(path, **CLIP)
        return StatefulDataLoader(stream, batch_size=None, num_workers=num_workers, **options)

    states = []
    loader = make()
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
        states.append(loader.state_dict())
    rests = [digests(resumed(make(), state)) for state in states]
    append(path, 8, 5)
    new = {(f"e{e}", s) for e in range(8) for s in range(LENGTHS[e] - 2)}
    for state, rest in zip(states, rests, strict=True):
        again = resumed(make(), state)
        assert digests(again) == rest
        assert {*clips_in([*again])} == new


def test_a_loader_of_nodes(path: Path) -> None:
    from torchdata.nodes import Loader

    loader = Loader(SeqRecordNode(path, **CLIP))
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    state = loader.state_dict()
    rest = digests(resumed(Loader(SeqRecordNode(path, **CLIP)), state))
    append(path, 6, 4)
    again = resumed(Loader(SeqRecordNode(path, **CLIP)), state)
    assert digests(again) == rest
    assert {key for key, _ in clips_in([*again])} == {f"e{n}" for n in range(6)}


def test_a_copy_of_a_resumed_loader(path: Path) -> None:
    import pickle

    state = saved(SeqRecordPipe(path, **CLIP))
    append(path, 6, 4)
    pipe = resumed(SeqRecordPipe(path, **CLIP), state)
    copy = pickle.loads(pickle.dumps(pipe))
    assert [digests(pipe), digests(pipe)] == [digests(copy), digests(copy)]


# ---- joined datasets, caches


def test_a_joined_dataset_grows_with_its_companion(path: Path, tmp_path: Path) -> None:
    def write(first: int, stop: int) -> None:
        mode: Any = "append" if first else "create"
        with SeqRecordWriter(tmp_path / "labels", mode=mode) as writer:
            for number in range(first, stop):
                with writer.episode(f"e{number}") as episode:
                    for frame in range(LENGTHS[number]):
                        episode.append({"label": np.array([number - frame], np.int32)})

    def make() -> Any:
        return SeqRecordPipe(seqrecord.open(path, join=tmp_path / "labels"), **CLIP)

    write(0, 4)
    state = saved(make())
    rest = digests(resumed(make(), state))
    append(path, 6, 4)
    write(4, 6)
    grown = resumed(make(), state)
    assert digests(grown) == rest
    batches = [*grown]
    assert {key for key, _ in clips_in(batches)} == {f"e{n}" for n in range(6)}
    for batch in batches:
        assert (batch["label"][..., 0] == batch["id"][..., 0] - batch["id"][..., 1]).all()


def test_a_frame_cache_decodes_new_frames_only(tmp_path: Path) -> None:
    from tests.kit.datasets import noise

    def write(first: int, stop: int) -> None:
        mode: Any = "append" if first else "create"
        codecs = {"image": "png"}
        with SeqRecordWriter(tmp_path / "records", mode=mode, codecs=codecs) as writer:
            for number in range(first, stop):
                with writer.episode(f"e{number}") as episode:
                    for frame in range(20):
                        episode.append({"image": noise(6, 8, 3, seed=100 * number + frame)})

    def make() -> Any:
        cache = FrameCache(tmp_path / "cache", "16MiB")
        return SeqRecordPipe(tmp_path / "records", frame_cache=cache, **CLIP)

    write(0, 2)
    pipe = make()
    digests(pipe)
    assert pipe.stats()["frames_decoded"] == 40
    state = saved(pipe)
    write(2, 3)
    grown = resumed(make(), state)
    digests(grown)
    assert grown.stats()["frames_decoded"] == 0
    digests(grown)
    assert (grown.stats()["frames_decoded"], grown.stats()["frames_from_cache"]) == (20, 40)


# ---- rows of a batch


def test_rows_of_batches_before_and_after(path: Path) -> None:
    pipe = SeqRecordPipe(path, **CLIP)
    old = [[clips_in([batch]) for batch in pipe] for _ in range(2)]
    state = saved(pipe)  # of epoch 2

    def named(loader: Any, epoch: int, batch: int) -> list[Clip]:
        rows = loader.rows(epoch, batch)
        return list(zip(rows["episode"], rows["start"].tolist(), strict=True))

    append(path, 6, 4)
    grown = resumed(SeqRecordPipe(path, **CLIP), state)
    new = SeqRecordPipe(path, **CLIP)
    new.set_epoch(3)
    expected = [clips_in([batch]) for batch in new]
    for _ in range(2):  # before, and after the next epoch has begun
        for epoch, batches in enumerate(old):
            assert [named(grown, epoch, n) for n in range(len(batches))] == batches
        assert [named(grown, 3, n) for n in range(len(expected))] == expected
        digests(grown)
    later = resumed(SeqRecordPipe(path, **CLIP), grown.state_dict())
    assert [named(later, 3, n) for n in range(len(expected))] == expected
    with pytest.raises(StateError, match=r"epoch 2 had fewer episodes.*expected: epoch 3 or later"):
        later.rows(2, 0)


def test_info_names_the_batches_of_the_state(path: Path, tmp_path: Path) -> None:
    from tests.kit.command_line import run

    pipe = SeqRecordPipe(path, **CLIP)
    old = [clips_in([batch]) for batch in pipe]
    file = tmp_path / "state.json"
    for state in (pipe.state_dict(), saved(pipe)):
        file.write_text(json.dumps(state))
        for is_grown in (False, True):
            if is_grown:
                total = len(seqrecord.open(path).episodes)
                append(path, total + 1, total)
            for number in range(len(old)):
                place = ("--state", file, "--epoch", 0, "--batch", number, "--json")
                rows = json.loads(run("info", path, *place).output)["rows"]
                assert list(zip(rows["episode"], rows["start"], strict=True)) == old[number]
        if len(seqrecord.open(path).episodes) == 5:
            pipe = resumed(SeqRecordPipe(path, **CLIP), state)
            old = [clips_in([batch]) for batch in pipe]
            break
