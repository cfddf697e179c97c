"""A child forked while another thread has a lock does not wait for that lock."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.processes import run_code

CODE = """
import json, sys
from tests.store.forked_locks import stuck_children, watch
watch()
import numpy as np
import seqrecord
from seqrecord import Seconds, SeqRecordMapDataset, SeqRecordIterableDataset
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.local import LocalStorage
from seqrecord.store.storage.parallel import ParallelStorage
from seqrecord.cloud.retrying import RetryingStorage

path = sys.argv[1]
with seqrecord.SeqRecordWriter(
    path,
    codecs={"image": "raw", "small": "raw", "packed": [{"id": "zstd", "level": 1}]},
    features={"time": {"kind": "timestamp", "unit": "ns"}},
    chunk_frames=4,
) as writer:
    for number in range(3):
        with writer.episode(str(number)) as episode:
            for i in range(12):
                episode.append({
                    "time": np.array(100_000_000 * i + 1_000 * number),
                    "image": np.full((8, 8, 3), i, np.uint8),
                    "small": np.array([number, i]),
                    "packed": np.array([number, i]),
                })
windows = {"small": Seconds([0, 0.1], timestamps="time"), "packed": [0, 1], "image": [-1, 0]}
storage = RetryingStorage(ParallelStorage(LocalStorage(path), max_gap=0, max_bytes=256))
clips = SeqRecordMapDataset(path, windows=windows)
packed = SeqRecordMapDataset(storage, clip_len=2, memory_limit=0)
stream = SeqRecordIterableDataset(path, windows=windows, batch_size=4)
far = SeqRecordIterableDataset(storage, clip_len=3)
single = SeqRecordIterableDataset(path, clip_len=2)

def do():
    for dataset in (clips, packed):
        for numbers in ([0, 5, 9], [1, 2, 3]):
            found = dataset.__getitems__(numbers)
            assert len(seqrecord.collate(found)["start"]) == 3
            assert len(seqrecord.collate([dict(clip) for clip in reversed(found)])["start"]) == 3
    warned = SeqRecordIterableDataset(path, windows=windows)  # of skipped clips
    for loader in (stream, far, single, warned):
        loader.stats()
        assert sum(1 for _ in loader) > 5
        loader.stats()
        loader.state_dict()
    with seqrecord.open(storage) as dataset:
        assert dataset.episodes["1"][0:3]["small"].tolist() == [[1, 0], [1, 1], [1, 2]]

print(json.dumps(stuck_children(do)))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_child_waits_for_no_lock_of_its_parent(tmp_path: Path) -> None:
    done = run_code(CODE, tmp_path / "records", timeout=500)
    places, stuck = json.loads(done.stdout)
    assert len(places) > 10
    assert stuck == [], done.stderr


# Fork hooks that fail

HOOKS = """
import os, sys
from seqrecord.store.processes.forks import at_fork, check_fork
from seqrecord.errors import SeqRecordError

when, called = sys.argv[1:], []

def fails():
    if when:
        called.append(when[0])
        raise OSError(24, "no more files")

at_fork(**{name: fails for name in when})
for number in range(2):
    if not os.fork():
        try:
            check_fork()
        except SeqRecordError as error:
            assert "no more files" in str(error), error
            assert isinstance(error.__cause__, OSError)
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
    check_fork()  # the parent continues
    when.clear()
"""


@pytest.mark.parametrize("when", ["before", "after_in_child"])
def test_a_child_of_a_failed_fork_hook_raises(when: str) -> None:
    done = run_code(HOOKS, when)
    assert done.stdout.split() == ["1", "0"]  # the next fork succeeds
