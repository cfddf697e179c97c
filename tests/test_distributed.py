"""Ranks and workers get disjoint parts, whoever tells of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader

from seqrecord.errors import ClipError
from seqrecord.pipes import SeqRecordPipe, distributed
from seqrecord.plan import Split
from tests.clip_data import names, write_numbered


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbered(tmp_path_factory.mktemp("distributed") / "records")


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Any:
    def be(number: int, world: int) -> None:
        monkeypatch.setenv("RANK", str(number))
        monkeypatch.setenv("WORLD_SIZE", str(world))

    return be


def test_alone() -> None:
    assert distributed.current_split() == Split(0, 1)
    assert distributed.worker_threads() == len(os.sched_getaffinity(0))


def test_rank_by_rank_and_worker_by_worker(rank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rank(2, 3)
    assert distributed.current_split() == Split(2, 3)
    assert distributed.splits_of_workers(2) == [Split(4, 6), Split(5, 6)]
    monkeypatch.setattr(
        distributed, "get_worker_info", lambda: SimpleNamespace(id=1, num_workers=4)
    )
    assert distributed.current_split() == Split(9, 12)
    assert distributed.worker_threads() == max(1, len(os.sched_getaffinity(0)) // 4)
    assert distributed.split_beside(12) == Split()  # the filter deals out to all of them
    assert distributed.split_beside(4) == Split(2, 3)  # … to the workers only
    assert distributed.split_beside(1) == Split(9, 12)  # … to nobody


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "0"},
        {"WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"RANK": "one", "WORLD_SIZE": "2"},
        {"RANK": "", "WORLD_SIZE": ""},
    ],
)
def test_an_environment_that_makes_no_sense(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ClipError, match="RANK and WORLD_SIZE"):
        distributed.current_split()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_ranks_cover_the_epoch(
    path: Path, rank: Any, num_workers: int, batch_size: int | None
) -> None:
    clips, counts = [], []
    total = SeqRecordPipe(path, clip_len=3).clips.num_clips
    for number in range(2):
        rank(number, 2)
        pipe = SeqRecordPipe(path, clip_len=3, batch_size=batch_size)
        loader = DataLoader(pipe, batch_size=None, num_workers=num_workers)
        batches = [names(batch) for batch in loader]
        assert len(batches) == len(loader)
        counts.append(len(batches))
        clips += [name for batch in batches for name in batch]
    assert len(clips) == len(set(clips)) == total
    assert batch_size is None or counts[0] == counts[1]


def test_more_ranks_than_clips(path: Path, rank: Any) -> None:
    rank(1, 100)
    with pytest.raises(ClipError, match="fewer clips than parts"):
        list(SeqRecordPipe(path, clip_len=3))


def same(clip: dict[str, Any]) -> dict[str, Any]:
    return {"id": clip["id"], "episode": clip["episode"], "start": clip["start"]}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_ranks_of_the_environment_with_a_sharding_filter(
    path: Path, rank: Any, num_workers: int
) -> None:
    clips = []
    total = SeqRecordPipe(path, clip_len=3, features=["id"]).clips.num_clips
    for number in range(2):
        rank(number, 2)
        pipe = SeqRecordPipe(path, clip_len=3, features=["id"])
        chain = pipe.shuffle(buffer_size=10).sharding_filter().map(same)
        loader = DataLoader(chain, batch_size=None, num_workers=num_workers)
        mine = [name for clip in loader for name in names(clip)]
        assert len(mine) == len(loader)
        clips += mine
    assert len(clips) == len(set(clips)) == total


GROUP = """
import json, sys
import torch.distributed as dist
from torch.utils.data import DataLoader
from seqrecord import SeqRecordPipe
from tests.clip_data import names

def same(clip):
    return {name: clip[name] for name in ("id", "episode", "start")}

if __name__ == "__main__":
    path, rank, store = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    found = {}
    for workers in (0, 2):
        for batch_size in (None, 4):
            pipe = SeqRecordPipe(path, clip_len=3, features=["id"], batch_size=batch_size)
            loader = DataLoader(pipe, batch_size=None, num_workers=workers)
            found[f"pipe {workers} {batch_size}"] = [names(batch) for batch in loader]
            assert len(loader) == len(found[f"pipe {workers} {batch_size}"])
        chain = SeqRecordPipe(path, clip_len=3, features=["id"]).shuffle(buffer_size=10)
        chain = chain.sharding_filter().map(same)
        loader = DataLoader(chain, batch_size=None, num_workers=workers)
        found[f"chain {workers}"] = [names(clip) for clip in loader]
    chain = SeqRecordPipe(path, clip_len=3, features=["id"]).sharding_filter().map(same)
    found["plain"] = [names(clip) for clip in chain]
    print(json.dumps(found))
    dist.destroy_process_group()
"""


def test_a_process_group(path: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(GROUP)
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root), "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(path), str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=100) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], outputs
    found = [json.loads(output) for output, _ in outputs]
    total = SeqRecordPipe(path, clip_len=3, features=["id"]).clips.num_clips
    for name in found[0]:
        clips = [tuple(clip) for part in found for batch in part[name] for clip in batch]
        assert len(clips) == len(set(clips)) == total, name
