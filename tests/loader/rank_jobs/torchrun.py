"""Training with DistributedDataParallel, started by torchrun; first without a process group."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from seqrecord import SeqRecordIterableDataset, SeqRecordPipe
from tests.kit.clip_data import make_loader, names
from tests.loader.rank_jobs import CLIPS, Found, report


def main(path: str, state: str) -> None:
    found: Found = {"environment": [names(batch) for batch in SeqRecordPipe(path, **CLIPS)]}
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    for workers in (0, 2):
        pipe = SeqRecordPipe(path, **CLIPS)
        loader: Any = DataLoader(pipe, batch_size=None, num_workers=workers)
        seen = found[f"{workers} workers"] = []
        for batch in loader:  # with unequal numbers of steps, ranks would wait forever
            model(batch["id"].float()).sum().backward()
            seen.append(names(batch))
        assert len(loader) == len(seen)
    # Ranks 0 and 1 share a model, rank 2 has another one.
    together = SeqRecordPipe(path, **CLIPS, rank=(dist.get_rank() // 2, 2))
    found["together"] = [names(batch) for batch in together]
    # Only rank 0 evaluates.
    stream = SeqRecordIterableDataset(path, **CLIPS, rank=(0, 1))
    loader = DataLoader(stream, batch_size=None, num_workers=1)
    found["alone"] = [] if dist.get_rank() else [names(batch) for batch in loader]
    # All ranks resume from a state that two ranks have saved.
    rest = make_loader(path, SeqRecordIterableDataset, features=["id"], batch_size=2)
    rest.load_state_dict(json.loads(Path(state).read_text()))
    found["rest"] = []
    for batch in rest:
        dist.barrier()
        found["rest"].append(names(batch))
    report(found)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
