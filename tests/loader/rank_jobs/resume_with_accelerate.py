"""Training with Accelerate that is killed and resumed, as docs/recipes.md and docs/ranks.md say."""

from __future__ import annotations

import json
import sys
from itertools import islice
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from seqrecord import SeqRecordIterableDataset
from tests.kit.clip_data import names
from tests.loader.rank_jobs import CLIPS, report

STOP = 2  # batches of each rank before the kill, in the second epoch


def main(path: str) -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(2, 1))

    def train(batches: Any) -> list[Any]:
        seen = []
        for batch in batches:
            accelerator.backward(model(batch["id"].float()).sum())
            seen.append(names(batch))
        return seen

    def make(state: Any = None) -> tuple[Any, Any]:
        numbers: Any = (accelerator.process_index, accelerator.num_processes)
        stream = SeqRecordIterableDataset(path, **CLIPS, rank=numbers)
        if state is not None:
            stream.load_state_dict(state)
        loader: Any = DataLoader(stream, batch_size=None, num_workers=2)
        if accelerator.num_processes == 1:  # several ranks would share out each shard again
            loader = accelerator.prepare(loader)
            if state is not None:
                loader.set_epoch(state["epoch"])
        return stream, loader

    _, loader = make()
    whole = [train(loader) for _ in range(3)]
    stream, loader = make()
    train(loader)
    before = train(islice(loader, STOP))
    state = json.loads(json.dumps(stream.state_dict(batches=STOP)))
    _, loader = make(state)
    resumed = [before + train(loader), train(loader)]
    report({"whole": whole[1:], "resumed": resumed})
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1])
