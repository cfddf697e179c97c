from __future__ import annotations

import gc
import os
import pickle
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np

from seqrecord import SeqRecordPipe
from seqrecord.engine.workspace import Needs, Scratch, Workspaces
from seqrecord.frames import ArraySpec
from tests.datasets import write_small

NEEDS = Needs({"image": ArraySpec(np.dtype("u1"), (3, 4))}, 10, 2, 5, 3)


def test_the_next_iteration_takes_over() -> None:
    workspaces = Workspaces()
    first = workspaces.take(NEEDS)
    assert workspaces.take(NEEDS) is not first  # it is in use
    workspaces.give_back(first)
    assert workspaces.take(replace(NEEDS, num_rows=10)) is first


def test_other_needs_get_other_memory_and_the_old_is_gone() -> None:
    workspaces = Workspaces()
    first = workspaces.take(NEEDS)
    gone = weakref.ref(first)
    workspaces.give_back(first)
    del first
    assert workspaces.take(replace(NEEDS, num_rows=11)).arena.num_rows == 11
    assert gone() is None


def test_only_one_is_kept() -> None:
    workspaces = Workspaces()
    first, second = workspaces.take(NEEDS), workspaces.take(NEEDS)
    workspaces.give_back(first)
    workspaces.give_back(second)
    assert workspaces.take(NEEDS) is second
    assert workspaces.take(NEEDS) is not first


def test_a_copy_and_a_fork_have_none() -> None:
    workspaces = Workspaces()
    first = workspaces.take(NEEDS)
    workspaces.give_back(first)
    assert pickle.loads(pickle.dumps(workspaces)).take(NEEDS) is not first
    pid = os.fork()
    if pid == 0:
        os._exit(workspaces.take(NEEDS) is first)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_fork_keeps_what_it_has_taken_itself() -> None:
    workspaces = Workspaces()
    workspaces.give_back(workspaces.take(NEEDS))
    pid = os.fork()
    if pid == 0:
        first = workspaces.take(NEEDS)
        workspaces.give_back(first)
        os._exit(workspaces.take(NEEDS) is not first)
    assert os.waitpid(pid, 0)[1] == 0


def test_scratch_blocks_grow_and_come_back() -> None:
    scratch = Scratch()
    small = scratch.take(10)
    scratch.give_back(small)
    assert scratch.take(10) is small
    scratch.give_back(small)
    large = scratch.take(20)
    assert len(large) >= 20
    scratch.give_back(large)
    assert scratch.take(5) is large


def test_epochs_share_an_arena_which_goes_with_the_pipe(tmp_path: Path) -> None:
    write_small(tmp_path / "records")
    pipe = SeqRecordPipe(tmp_path / "records", clip_len=2, batch_size=2, features=["image_left"])
    workspaces = pipe._epochs.loader._workspaces
    arenas = set()
    for _ in range(3):
        assert len(list(pipe)) == len(pipe)
        arenas.add(id(workspaces._idle[0].arena))
    gone = weakref.ref(workspaces._idle[0])
    del pipe, workspaces
    gc.collect()
    assert len(arenas) == 1
    assert gone() is None
