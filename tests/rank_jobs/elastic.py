"""Training that goes on from a state that any number of ranks has saved; started by torchrun."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from seqrecord import SeqRecordPipe
from tests.clip_data import names
from tests.rank_jobs import CLIPS, report


def main(path: str, state: str, following: str, stop: str) -> None:
    dist.init_process_group("gloo")
    pipe = SeqRecordPipe(path, **CLIPS)
    if state != "-":
        pipe.load_state_dict(json.loads(Path(state).read_text()))
    batches = []
    for batch in pipe:  # ranks that took unequal numbers of steps would wait forever
        dist.barrier()
        batches.append(names(batch))
        if len(batches) == int(stop):
            break
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, pipe.state_dict())
    assert all(state == states[0] for state in states)
    if dist.get_rank() == 0:
        Path(following).write_text(json.dumps(states[0]))
    report({"batches": batches, "repeated": pipe.stats()["duplicate_clips"]})
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
