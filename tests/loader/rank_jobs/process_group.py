"""One rank of a process group; the third argument is the start method of DataLoader workers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from seqrecord import SeqRecordIterableDataset, SeqRecordNode, SeqRecordPipe
from tests.kit.clip_data import names
from tests.loader.rank_jobs import report


def same(clip: dict[str, Any]) -> dict[str, Any]:
    return {name: clip[name] for name in ("id", "episode", "start")}


def main(path: str, store: str, method: str, rank: int, world_size: int) -> None:
    settings: dict[str, Any] = {"clip_len": 3, "features": ["id"], "last_batch": "keep"}
    early = SeqRecordPipe(path, **settings, batch_size=4)  # created before the process group
    dist.init_process_group(
        "gloo", init_method=Path(store).as_uri(), rank=rank, world_size=world_size
    )
    data: dict[str, Any] = {
        "pipe": early,
        "chain": SeqRecordPipe(path, **settings).sharding_filter().map(same),
        "stream": SeqRecordIterableDataset(path, **settings),
    }
    found = {}
    for name, dataset in data.items():
        # Each dataset with one kind of loader only: workers start slowly.
        kind: Any = StatefulDataLoader if name == "stream" else DataLoader
        loader = kind(dataset, batch_size=None, num_workers=2, multiprocessing_context=method)
        length = len(loader)
        found[name] = [names(item) for item in loader]
        assert len(loader) == length == len(found[name]), name
    node = SeqRecordNode(path, **settings)
    with mp.get_context(method).Pool(1) as pool:
        found["node"] = pool.apply(run_node, (node,))
    assert len(node) == len(found["node"])
    report(found)
    dist.destroy_process_group()


def run_node(node: SeqRecordNode) -> list[list[tuple[str, int]]]:
    node.reset()
    return [names(item) for item in node]


if __name__ == "__main__":
    mp.set_forkserver_preload(
        ["seqrecord.loader.pipes.loaders", "tests.kit.clip_data"]
    )  # imports torch once
    path, store, method, rank, world_size = sys.argv[1:]
    main(path, store, method, int(rank), int(world_size))
