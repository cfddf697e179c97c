"""Ranks and workers get disjoint shards, from arguments or the environment."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import os
import pickle
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper

import seqrecord
from seqrecord import ClipError, SeqRecordIterableDataset, SeqRecordMix, SeqRecordPipe
from seqrecord.loader.pipes.distributed import Ranks, worker_threads
from seqrecord.loader.sampling.runs import Shard
from tests.kit.clip_data import all_names, names, write_numbered
from tests.kit.processes import be_worker, run_code
from tests.loader.rank_jobs import PATIENCE, check_once, finish, start


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Any:
    def be(number: int, world: int) -> None:
        monkeypatch.setenv("RANK", str(number))
        monkeypatch.setenv("WORLD_SIZE", str(world))

    return be


SETTINGS: dict[str, Any] = {"clip_len": 3, "features": ["id"]}


def test_shards_of_ranks_and_workers(rank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, given, alone = Ranks(), Ranks((1, 5)), Ranks((0, 1))
    rank(2, 3)  # after their creation
    assert ranks.shard() == Shard(2, 3)
    assert ranks.current().divided(2) == [Shard(4, 6), Shard(5, 6)]
    assert given.shard() == Shard(1, 5)
    assert alone.shard() == Shard()
    cores = worker_threads()
    assert 1 <= cores <= (os.cpu_count() or 1)
    be_worker(monkeypatch, 1, 4)
    assert ranks.shard() == Shard(9, 12)
    assert given.shard() == Shard(5, 20)
    assert worker_threads() == max(1, cores // 4)


def clips_of(location: Any, **given: Any) -> list[tuple[str, int]]:
    """Clips of this process, in order."""
    return all_names(SeqRecordPipe(location, **{**SETTINGS, **given}))


def be(monkeypatch: pytest.MonkeyPatch, environment: str) -> None:
    for item in environment.split():
        monkeypatch.setenv(*item.split("=", 1))


def test_environments(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = seqrecord.open(path)
    shards = {n: [clips_of(dataset, rank=(i, n)) for i in range(n)] for n in (1, 2, 3, 4)}
    assert all(len(set(map(tuple, parts))) == len(parts) for parts in shards.values())
    for environment, rank, world_size in (
        ("RANK=2 WORLD_SIZE=3 LOCAL_RANK=0", 2, 3),
        ("LOCAL_RANK=1 WORLD_SIZE=2", 1, 2),
        ("LOCAL_RANK=1 WORLD_SIZE=4 NODE_RANK=0", 1, 4),
        ("LOCAL_RANK=1 WORLD_SIZE=4 NODE_RANK=1 LOCAL_WORLD_SIZE=2", 3, 4),
        ("LOCAL_RANK=0 WORLD_SIZE=4 GROUP_RANK=1 LOCAL_WORLD_SIZE=2", 2, 4),
        ("LOCAL_RANK=1", 0, 1),
        ("WORLD_SIZE=1", 0, 1),
        ("LOCAL_RANK=0 WORLD_SIZE=1", 0, 1),
    ):
        with monkeypatch.context() as patch:
            be(patch, environment)
            assert clips_of(dataset) == shards[world_size][rank], environment


def test_invalid_ranks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = SeqRecordPipe(path, clip_len=3)
    for environment in (
        "RANK=0",
        "WORLD_SIZE=2",
        "RANK=2 WORLD_SIZE=2",
        "RANK=-1 WORLD_SIZE=2",
        "RANK=one WORLD_SIZE=2",
        "RANK= WORLD_SIZE=",
        "LOCAL_RANK=2 WORLD_SIZE=2",
        "LOCAL_RANK=0 WORLD_SIZE=2 NODE_RANK=one",
        "LOCAL_RANK=0 WORLD_SIZE=4 NODE_RANK=1",  # … of how many processes each?
        "LOCAL_RANK=0 WORLD_SIZE=4 NODE_RANK=2 LOCAL_WORLD_SIZE=2",
        "LOCAL_RANK=2 WORLD_SIZE=4 NODE_RANK=-1 LOCAL_WORLD_SIZE=2",
    ):
        with monkeypatch.context() as patch:
            be(patch, environment)
            with pytest.raises(ClipError, match=r"make no sense.*or rank="):
                next(iter(pipe))
            pickle.dumps(pipe)  # raises nothing
    wrong: list[tuple[Any, Any]] = [(1, None), (None, 2), (0, None), (2, 2), (-1, 2), (0, 0)]
    for number, world_size in [*wrong, (0, -1), (0.0, 2), (True, 2), ("0", 2)]:
        with pytest.raises(ClipError, match="rank"):
            SeqRecordPipe(path, clip_len=3, rank=(number, world_size))


def test_rank_is_inherited_by_child_processes_only(path: Path, rank: Any) -> None:
    rank(1, 2)
    sent = pickle.dumps(SeqRecordIterableDataset(path, **SETTINGS))
    given = pickle.dumps(SeqRecordIterableDataset(path, **SETTINGS, rank=(3, 5)))
    with multiprocessing.get_context("fork").Pool(1) as pool:
        rank(0, 4)  # as in a fork server with an older environment
        assert pool.apply(_clips_of, (sent,)) == clips_of(path, rank=(1, 2))
        assert pool.apply(_clips_of, (given,)) == clips_of(path, rank=(3, 5))
    # From the own environment:
    assert all_names(pickle.loads(sent)) == clips_of(path, rank=(0, 4))


def _clips_of(stream: bytes) -> list[tuple[str, int]]:
    os.environ.update(RANK="0", WORLD_SIZE="7")
    found: SeqRecordIterableDataset = pickle.loads(stream)
    clips = all_names(copy.deepcopy(found))
    assert all_names(found) == clips
    return clips


def test_evaluation_has_every_clip_exactly_once(path: Path, rank: Any) -> None:
    """With `last_batch="keep"`, also with a sharding filter."""

    def filtered(**options: Any) -> Any:
        pipe: Any = SeqRecordPipe(path, **options)
        return pipe.shuffle(buffer_size=10).sharding_filter().map(same)

    total = len(clips_of(path))
    for make, size, workers in (
        (partial(SeqRecordPipe, path), None, 0),
        (partial(SeqRecordPipe, path), 4, 2),
        (filtered, None, 0),
        (filtered, None, 2),
    ):
        clips, ranks = [], 2 if workers else 3
        for number in range(ranks):
            rank(number, ranks)
            pipe = make(**SETTINGS, batch_size=size, last_batch="keep")
            loader = DataLoader(pipe, batch_size=None, num_workers=workers)
            batches = [names(batch) for batch in loader]
            assert len(batches) == len(loader)
            clips += [name for batch in batches for name in batch]
        assert len(clips) == len(set(clips)) == total
    rank(0, 1)
    stream = SeqRecordIterableDataset(path, **SETTINGS, last_batch="keep")
    chain = IterableWrapper(stream, deepcopy=False).sharding_filter()
    with pytest.raises(ClipError, match=r"sharding_filter\(\) behind IterableWrapper"):
        all_names(DataLoader(chain, batch_size=None, num_workers=2))


def same(clip: dict[str, Any]) -> dict[str, Any]:
    return {"id": clip["id"], "episode": clip["episode"], "start": clip["start"]}


def test_more_ranks_than_clips(path: Path) -> None:
    options: dict[str, Any] = {"features": ["flow"], "episodes": [1]}
    dataset = seqrecord.open(path)
    total = len(clips_of(dataset, **options))
    equal, exact = [], []
    for number in range(total + 3):
        options |= {"rank": (number, total + 3)}
        equal.append(clips_of(dataset, **options))
        exact += clips_of(dataset, last_batch="keep", **options)
    assert {len(clips) for clips in equal} == {1}
    assert len({clip for clips in equal for clip in clips}) == len(set(exact)) == total
    assert len(exact) == total
    pipe = SeqRecordPipe(path, clip_len=3, last_batch="drop", rank=(1, 100))
    with pytest.raises(ClipError, match=r"leaves no batch at all.*at least 100 clips"):
        list(pipe)


def test_accelerate_needs_explicit_ranks(
    path: Path, rank: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It divides the epoch of a prepared loader among ranks; the loader must not yield a shard."""
    state = pytest.importorskip("accelerate.state").PartialState(cpu=True)

    def mix(path: Path, **given: Any) -> SeqRecordMix:
        source = SeqRecordIterableDataset(path, **SETTINGS)
        return SeqRecordMix({"one": source}, batch_size=4, **given)

    rank(1, 2)
    of_rank = clips_of(path, rank=(1, 2))
    assert clips_of(path) == of_rank  # Accelerate has one process
    monkeypatch.setattr(state, "num_processes", 2)
    makes: list[Any] = [partial(k, **SETTINGS) for k in (SeqRecordPipe, SeqRecordIterableDataset)]
    asks: list[Any] = [list, len, pickle.dumps, lambda data: data.state_dict()]
    for make, ask in itertools.product([*makes, mix], asks):
        with pytest.raises(ClipError, match=r"rank=\(0, 1\) for a loader that accelerator\.prep"):
            ask(make(path))
        ask(make(path, rank=(0, 1)))
    loader = DataLoader(SeqRecordPipe(path, **SETTINGS), batch_size=None)
    with pytest.raises(ClipError, match=r"accelerator\.num_processes\).*rank 1 of 2"):
        iter(loader)  # in this process, not in a worker
    assert clips_of(path, rank=(1, 2)) == of_rank


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.slow
@pytest.mark.timeout(PATIENCE + 50)
def test_a_process_group(path: Path, tmp_path: Path, method: str) -> None:
    script = [
        "-m",
        "tests.loader.rank_jobs.process_group",
        str(path),
        str(tmp_path / "store"),
        method,
    ]
    found = finish([start([*script, str(rank), "2"]) for rank in range(2)])
    assert len(found) == 2
    check_once(found, SeqRecordPipe(path, clip_len=3, features=["id"]).clips.num_clips)


RANKS = """
import json, os, sys
from pathlib import Path
import torch.distributed as dist
from torch.utils.data import DataLoader
import seqrecord
from seqrecord import SeqRecordPipe, SeqRecordIterableDataset, SeqRecordError

path, other, store = sys.argv[1:]
rank = int(os.fork() == 0)
clips = {"clip_len": 3, "features": ["id"], "batch_size": 4}

def compare(name, loader):
    try:
        seqrecord.check_ranks(loader)
    except SeqRecordError as error:
        os.write(1, f"{rank} {name} {error}\\n".encode())  # in one piece: ranks share the file

compare("no group", SeqRecordPipe(path, **clips, rank=(rank, 2)))
dist.init_process_group("gloo", init_method=Path(store).as_uri(), rank=rank, world_size=2)
same = SeqRecordIterableDataset(path, **clips)
compare("same", same)
loader = DataLoader(same, batch_size=None, num_workers=1)
assert len(list(loader)) == len(loader)
compare("after an epoch in workers", loader)
same.set_epoch(3, batches=4 * rank)
compare("batch", loader)
same.set_epoch(4 + rank)
compare("epoch", loader)
compare("seed", SeqRecordPipe(path, **clips, seed=rank))
engine = seqrecord.EngineOptions(shuffle_buffer=4 + rank)
compare("settings", SeqRecordPipe(path, **clips, engine=engine))
compare("dataset", SeqRecordPipe((path, other)[rank], **clips))
dist.destroy_process_group()
os._exit(0) if rank else os.wait()
"""


def test_check_ranks_compares_positions_orders_and_datasets(path: Path, tmp_path: Path) -> None:
    """A difference is an error on both ranks, and so is a rank's own error."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    other = write_numbered(tmp_path / "other", chunk_frames=8)
    found = run_code(RANKS, path, other, tmp_path / "store")
    expected = {
        "no group": "check_ranks compares ranks through torch.distributed; expected: torch.",
        "batch": "; 0 and 1 differ in: batch; expected: batch=0; got: batch=4",
        "epoch": "0 and 1 differ in: epoch; expected: epoch=4; got: epoch=5",
        "seed": r"all ranks need the same arguments, .*differ in: sources\[0\]\.settings\.seed",
        "settings": r"differ in: .*sources\[0\]\.request\.shuffle_buffer",
        "dataset": r"differ in: .*sources\[0\]\.episodes\.dataset",
    }
    lines = sorted(found.stdout.splitlines())
    assert [line.split(" ", 1)[0] for line in lines] == ["0"] * 6 + ["1"] * 6
    for name, message in expected.items():
        for rank in "01":
            [line] = [line for line in lines if line.startswith(f"{rank} {name}")]
            assert re.search(message, line), line
    for wrong in (1, DataLoader([1, 2])):  # type: ignore[var-annotated, arg-type]
        with pytest.raises(ClipError, match="check_ranks compares loaders of this package"):
            seqrecord.check_ranks(wrong)
    seqrecord.check_ranks(SeqRecordPipe(path, clip_len=3))  # a single process
