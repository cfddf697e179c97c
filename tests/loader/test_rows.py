"""`rows(epoch, batch)`: which rows were in a batch, from integers, also after the run."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import FeatureSpec, Schema, SeqRecordIterableDataset, SeqRecordPipe
from tests.formats.camera_originals import write_tum
from tests.kit.datasets import columns, noise, write_dataset, written_once

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

FEATURES = ("id", "image")
CLIP: dict[str, Any] = {"clip_len": 3, "seed": 4}


_FRAMES = columns(id=np.arange(30)[:, None], image=noise(30, 6, 8, 3))
path = written_once(
    write_dataset,
    {f"e{n}": _FRAMES[: 12 + 3 * n] for n in range(6)},
    metadata={f"e{n}": {"robot": f"E{n}"} for n in range(6)},
    chunk_frames=8,
)


def check(batch: Any, rows: Any, features: tuple[str, ...] = FEATURES) -> None:
    """Assert that rows are the batch without its features."""
    assert list(rows) == [name for name in batch if name not in features]
    for name, value in rows.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == batch[name].dtype, name
            assert torch.equal(value, batch[name]), name
        elif isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, batch[name], strict=True)
        else:
            assert value == batch[name], name


TABLE = {
    "episode": ["e0", "e3", "e4", "e5"],
    "start": [0, 9, 4, 17],
    "goal": [5, 12, 12, 20],
    "loss": [0.5, 1.0, 2.0, 8.0],
    "repeat": [1.5, 2.0, 1.0, 4.0],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "batches": {"batch_size": 4},
    "single clips": {},
    "in order": {"batch_size": 4, "shuffle": False, "last_batch": "keep"},
    "sequences": {"batch_size": 2, "order": "sequences"},
    "columns": {"batch_size": 4, "windows": {"id": [-2, 0]}, "pad": "edge", "metadata": ["robot"]},
    "budget": {"batch_size": seqrecord.Budget(12), "clip_len": (2, 5)},
    "crops": {
        "batch_size": 4,
        "clip_transform": [seqrecord.RandomCrop((4, 4)), seqrecord.HorizontalFlip(0.5)],
    },
    "a table": {"batch_size": 2, "samples": TABLE, "windows": {"id": [seqrecord.At("goal")]}},
    "functions": {"batch_size": 4, "samples": seqrecord.samples.every(2, rotate=True)},
    "numpy": {"batch_size": 4, "output": "numpy"},
    "one cursor": {"batch_size": 4, "engine": seqrecord.EngineOptions(num_cursors=1)},
    "little memory": {"batch_size": 4, "memory_limit": 8000},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_rows_are_the_batch_without_features(path: Path, case: str) -> None:
    options = {**CLIP, **OPTIONS[case]}
    for rank in ((0, 1), (1, 3)):
        loader = SeqRecordPipe(path, rank=rank, **options)
        other = SeqRecordPipe(path, rank=(0, 1), **options)
        for epoch in range(3):
            for number, batch in enumerate(loader):
                check(batch, loader.rows(epoch, number))
                if number % 3 == 0:
                    check(batch, other.rows(epoch, number, rank=rank))


@pytest.mark.parametrize("kind", [SeqRecordIterableDataset, seqrecord.SeqRecordNode])
def test_every_stream_has_rows(path: Path, kind: Any) -> None:
    loader = kind(path, batch_size=4, **CLIP)
    check(next(iter(SeqRecordPipe(path, batch_size=4, **CLIP))), loader.rows(0, 0))


def mix_of(path: Path, **options: Any) -> seqrecord.SeqRecordMix:
    sources = {
        "few": SeqRecordPipe(path, clip_len=3, episodes=["e0"]),
        "many": SeqRecordPipe(path, clip_len=3, metadata=["robot"]),
    }
    weights = {"few": 0.3, "many": 0.7}
    return seqrecord.SeqRecordMix(sources, weights=weights, batch_size=5, seed=2, **options)


@pytest.mark.parametrize("alternate", [False, True])
def test_rows_of_a_mix(path: Path, alternate: bool) -> None:
    """The few clips of a source come again, in its later epochs, in one epoch of the mix."""
    options: dict[str, Any] = {"single_source_batches": alternate, "stopping_strategy": 9}
    mix = mix_of(path, **options)
    again = mix_of(path, **options)
    for epoch in range(3):
        for number, batch in enumerate(mix):
            check(batch, again.rows(epoch, number))
    stats = mix.stats()
    assert mix.rows(2, 8)
    assert mix.stats() == stats


@pytest.mark.parametrize("num_workers", [1, 2])
def test_rows_of_workers(path: Path, num_workers: int) -> None:
    for make in (
        lambda: SeqRecordIterableDataset(path, batch_size=4, **CLIP),
        lambda: mix_of(path),
    ):
        loader: Any = make()
        for epoch in range(2):
            batches = DataLoader(loader, batch_size=None, num_workers=num_workers)
            for number, batch in enumerate(batches):
                check(batch, loader.rows(epoch, number))
                if number == 0:
                    check(batch, make().rows(epoch, number, workers=num_workers))


def test_batches_of_a_dataloader(path: Path) -> None:
    loader = SeqRecordIterableDataset(path, **CLIP)
    batches = DataLoader(loader, batch_size=4, num_workers=2, collate_fn=seqrecord.collate)
    for number, batch in enumerate(batches):
        check(batch, loader.rows(0, number, batch_size=4))


def write_varying(folder: Path) -> None:
    """Write episodes whose images differ in size."""
    image = FeatureSpec("image", np.dtype(np.uint8), (None, None, 3), kind="image")
    with seqrecord.SeqRecordWriter(folder, schema=Schema([image])) as writer:
        for number in range(4):
            with writer.episode(f"v{number}") as episode:
                for frame in noise(6, 8 + number, 10, 3):
                    episode.append({"image": frame})


varying = written_once(write_varying)
CROPS = [seqrecord.RandomCrop((4, 4)), seqrecord.HorizontalFlip(0.5)]


def test_rows_of_frames_that_differ_in_size(varying: Path, path: Path) -> None:
    """Windows depend on the sizes, which only reading shows: before and after an epoch."""
    options: dict[str, Any] = {"clip_len": 2, "seed": 4, "clip_transform": CROPS}
    without = (*FEATURES, "crop", "flipped")
    loader = SeqRecordPipe(varying, batch_size=3, **options)
    sources = {
        name: SeqRecordPipe(place, clip_len=2, clip_transform=CROPS)
        for name, place in (("v", varying), ("p", path))
    }
    mix = seqrecord.SeqRecordMix(sources, features="intersection", batch_size=3)
    for stream in (loader, mix):
        planned = [stream.rows(0, number) for number in range(3)]
        for number, batch in enumerate(islice(stream, 3)):
            assert "crop" in batch
            check(batch, planned[number], without)
            check(batch, stream.rows(0, number), without)


# ---- a run that is killed, and resumed on other ranks

Named = dict[tuple[str, int, int], Any]


def run(
    path: Path, ranks: int, workers: int, stop: int, state: Any = None, **options: Any
) -> tuple[Named, Any]:
    """Run all ranks from a state on; returns their batches by (segment, rank, number), and the
    state after `stop` batches of each. The ranks take two batches more before they are killed.
    """
    batches, saved = Named(), None
    for rank in range(ranks):
        loader = SeqRecordIterableDataset(path, rank=(rank, ranks), batch_size=2, **CLIP, **options)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        stream = DataLoader(loader, batch_size=None, num_workers=workers)
        for number, batch in enumerate(islice(stream, stop + 2)):
            batches["", rank, number] = batch
        saved = loader.state_dict(batches=stop)
    return batches, saved


def test_every_batch_of_a_resumed_run_is_named_by_one_process(path: Path) -> None:
    """Four ranks of two workers are killed, three of two continue, and then three of one."""
    first, state = run(path, 4, 2, 3)
    second, later = run(path, 3, 2, 2, state)
    third, _ = run(path, 3, 1, 2, later)
    loader = SeqRecordIterableDataset(path, rank=(0, 1), batch_size=2, **CLIP)
    loader.load_state_dict(state)
    for (_, rank, number), batch in first.items():
        check(batch, loader.rows(0, number, rank=rank))
    for (_, rank, number), batch in second.items():
        check(batch, loader.rows(0, number, rank=(rank, 3)))
    loader.load_state_dict(later)
    for (_, rank, number), batch in first.items():
        check(batch, loader.rows(0, number, rank=rank, segment=0))
    for (_, rank, number), batch in second.items():
        check(batch, loader.rows(0, number, rank=rank))
        check(batch, loader.rows(0, number, rank=rank, segment=1))
    for (_, rank, number), batch in third.items():
        check(batch, loader.rows(0, number, rank=rank, workers=1))
    assert min(map(len, (first, second, third))) >= 12


# ---- a state at any place of an epoch, of a dataset that has grown since

PLACES = "start", "middle", "end", "changed ranks"
APPENDED = {"nothing": {}, "episodes": {"n0": 9, "n1": 9}, "lengths": {"n0": 3, "n1": 31, "n2": 1}}
CHANGES = {"same": ((2, 2), (3, 3)), "more": ((1, 2), (2, 3)), "fewer": ((2, 1), (3, 2))}
CHUNKS = 1, 4, 50
LIMITS = None, 6_000
MakePath = Callable[[int, str], Path]


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> MakePath:
    """The path of a dataset by frames of a chunk and what was appended; written once."""

    @lru_cache
    def make(chunk_frames: int, appended: str) -> Path:
        path = tmp_path_factory.mktemp("grown") / "records"
        if appended == "nothing":
            lengths = {"e0": 12, "e1": 7, "e2": 15, "e3": 9}
            write_dataset(path, lengths, chunk_frames=chunk_frames)
            return path
        shutil.copytree(make(chunk_frames, "nothing"), path)
        write_dataset(path, APPENDED[appended], chunk_frames=chunk_frames, mode="append")
        return path

    return make


def state_at(place: str, ranks: int, path: Path, options: dict[str, Any]) -> Any:
    """The state of rank 0 at a place of epoch 1, as JSON."""
    before = ranks % 3 + 1 if place == "changed ranks" else ranks
    loader = SeqRecordIterableDataset(path, rank=(0, before), **options)
    loader.set_epoch(1)
    assert [*islice(loader, {"start": 0, "end": None}.get(place, 2))] or place == "start"
    if place == "changed ranks":
        state = loader.state_dict()
        loader = SeqRecordIterableDataset(path, rank=(0, ranks), **options)
        loader.load_state_dict(state)
        next(iter(loader))
    return json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("appended", APPENDED)
@pytest.mark.parametrize("place", PLACES)
def test_rows_from_a_state_are_the_batches_after_it(
    grown: MakePath, place: str, appended: str, change: str, thorough: bool
) -> None:
    cases = [*product(CHANGES[change], CHUNKS, LIMITS)]
    cases = random.Random(f"{place} {appended} {change}").sample(cases, 6 if thorough else 1)
    for (ranks, new_ranks), chunk_frames, limit in cases:
        options: dict[str, Any] = {"clip_len": 2, "batch_size": 4, "seed": 3, "memory_limit": limit}
        state = state_at(place, ranks, grown(chunk_frames, "nothing"), options)
        path, first = grown(chunk_frames, appended), state["epoch"]
        continues = ranks == new_ranks
        batches = dict[tuple[int, int, int], Any]()
        for rank in range(new_ranks):
            loader = SeqRecordIterableDataset(path, rank=(rank, new_ranks), **options)
            loader.load_state_dict(state)
            for epoch in range(first, first + 2):
                begin = state["batch"] if continues and epoch == first else 0
                for number, batch in enumerate(loader, begin):
                    batches[epoch, number, rank] = batch
        assert len({epoch for epoch, _, _ in batches}) == 2
        for reader in ((0, 1), (new_ranks - 1, new_ranks)):
            loader = SeqRecordIterableDataset(path, rank=reader, **options)
            loader.load_state_dict(state)
            for (epoch, number, rank), batch in batches.items():
                rows = loader.rows(epoch, number, rank=(rank, new_ranks))
                check(batch, rows, features=("x",))


@pytest.mark.slow
def test_the_default_limit_is_that_of_the_run(tmp_path: Path) -> None:
    """Eight ranks have 2 GiB each, with which all frames of a rank stay; workers share 8 GiB."""
    image = np.zeros((3000, 3000, 3), np.uint8)
    frames = [{"image": image}] * 8
    write_dataset(tmp_path / "d", {f"e{n}": frames for n in range(8)}, chunk_frames=1)
    alone = SeqRecordPipe(tmp_path / "d", clip_len=1, rank=(0, 1))
    for workers in (1, 2):
        for rank in (0, 5):
            pipe = SeqRecordPipe(tmp_path / "d", clip_len=1, rank=(rank, 8))
            for number in range(8 // workers):
                rows = alone.rows(0, number, rank=(rank, 8), workers=workers)
                check(pipe.rows(0, number, workers=workers), rows)


def test_naming_batches_moves_no_position(path: Path) -> None:
    _, state = run(path, 2, 1, 2)
    loader = SeqRecordIterableDataset(path, rank=(0, 2), batch_size=2, **CLIP)
    loader.load_state_dict(state)
    loader.rows(3, 1, rank=(5, 8))
    again = SeqRecordIterableDataset(path, rank=(0, 2), batch_size=2, **CLIP)
    again.load_state_dict(state)
    for batch, other in zip(loader, again, strict=True):
        check(batch, other, features=())


@pytest.mark.parametrize("rank", [0, 1])
def test_a_state_names_batches_without_its_memory(path: Path, rank: int) -> None:
    """A state's order needs more memory than this process allows: names need none."""
    loader = SeqRecordPipe(path, rank=(rank, 2), batch_size=4, **CLIP)
    iterator = iter(loader)
    batch = next(iterator)
    state = loader.state_dict()
    small = SeqRecordPipe(path, batch_size=4, memory_limit=20_000, **CLIP)
    small.load_state_dict(state)
    check(batch, small.rows(0, 0, rank=rank))


def wrong() -> Iterator[tuple[dict[str, Any], str]]:
    yield {"batch": 1000}, r"no such batch; expected: 0 to \d+ on rank 0 of 4 with 2 workers"
    yield {"rank": 4}, "expected: rank=0 to rank=3, the ranks of this part of the run; got: rank=4"
    yield {"rank": None}, "got: rank=None"
    yield {"segment": 1}, "no such segment at this position; expected: 0 to 0"
    yield {"segment": 0, "epoch": 1, "rank": 9}, "no such rank"


def test_batches_that_there_are_not(path: Path) -> None:
    _, state = run(path, 4, 2, 3)
    loader = SeqRecordIterableDataset(path, rank=(0, 1), batch_size=2, **CLIP)
    loader.load_state_dict(state)
    for arguments, match in wrong():
        named = {"epoch": 0, "batch": 0, "rank": 0, **arguments}
        with pytest.raises(seqrecord.StateError, match=match):
            loader.rows(**named)


def test_a_finished_epoch_has_no_rest_for_other_ranks(path: Path) -> None:
    pipe = SeqRecordPipe(path, batch_size=4, **CLIP)
    assert [*pipe]
    with pytest.raises(
        seqrecord.StateError, match=r"expected: none, as nothing is left, on rank 1"
    ):
        pipe.rows(0, 2, rank=(1, 4))


@pytest.mark.parametrize(
    "rank", [(0,), (0, "2"), (0, 1, 2), ("0", 1), (0, 0), (0, 1 << 31), "0", 0.5, True, [0, 1]]
)
def test_ranks_that_are_no_numbers(path: Path, rank: Any) -> None:
    loader = SeqRecordIterableDataset(path, rank=(0, 1), batch_size=2, **CLIP)
    with pytest.raises(seqrecord.ClipError, match="rank") as caught:
        loader.rows(0, 0, rank=rank)
    assert caught.value.got is not None
    of_rank: Any = np.int64(0)
    check(next(iter(loader)), loader.rows(0, 0, rank=of_rank))


@pytest.mark.slow
def test_columns_of_cameras_are_rows_too(tmp_path: Path) -> None:
    """Poses and calibration are numbers of the frames' metadata and small features."""
    write_tum(tmp_path / "tum")
    seqrecord.convert(seqrecord.open_source(tmp_path / "tum"), tmp_path / "records", workers=1)
    options: dict[str, Any] = {"clip_len": 2, "features": ["image"], "batch_size": 2}
    for steps in (None, [seqrecord.HorizontalFlip(0.5)]):
        pipe = SeqRecordPipe(
            tmp_path / "records", camera=True, clip_transform=steps, seed=1, **options
        )
        for number, batch in enumerate(pipe):
            check(batch, pipe.rows(0, number))
