"""Training with Accelerate, in the ways described in docs/ranks.md."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.multiprocessing as mp
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, default_collate

from seqrecord import ClipError, SeqRecordIterableDataset, SeqRecordPipe
from tests.loader.rank_jobs import CLIPS, Found, report

KINDS: list[Any] = [SeqRecordPipe, SeqRecordIterableDataset]


# `dispatch_batches` sends tensors only, so no episode keys.
def tensors(clips: list[dict[str, Any]]) -> Any:
    return default_collate([{"id": clip["id"], "start": clip["start"]} for clip in clips])


def main(path: str) -> None:
    found: Found = {}
    for way, dispatch in (("given", None), ("sharded", False), ("dispatched", True)):
        for workers in (0, 2):
            found[f"{way} {workers}"] = trained(path, dispatch, workers)
    report(found | refused(path))
    Accelerator(cpu=True).end_training()


def trained(path: str, dispatch: bool | None, workers: int) -> list[Any]:
    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch)
    )
    model = accelerator.prepare(torch.nn.Linear(2, 1))
    if dispatch is None:  # the loader is not prepared
        numbers: dict[str, Any] = {"rank": (accelerator.process_index, accelerator.num_processes)}
        pipe = SeqRecordPipe(path, **CLIPS, **numbers)
        loader: Any = DataLoader(pipe, batch_size=None, num_workers=workers)
    else:
        # Accelerate distributes the whole epoch, and repeats clips if it is not divisible. So these
        # are 24 clips in batches of 2.
        pipe = SeqRecordPipe(
            path, clip_len=5, features=["id"], episodes=["set/0", "set/1"], rank=(0, 1)
        )
        loader = accelerator.prepare(
            DataLoader(pipe, batch_size=2, num_workers=workers, collate_fn=tensors)
        )
    seen = []
    for batch in loader:
        accelerator.backward(model(batch["id"].float()).sum())
        episodes, starts = batch["id"][:, 0, 0].tolist(), batch["start"].tolist()
        seen.append(
            [(f"set/{number}", start) for number, start in zip(episodes, starts, strict=True)]
        )
    assert len(loader) == len(seen)
    return seen


def refused(path: str) -> Found:
    """A detected rank would load only its part, of which Accelerate would take parts again."""
    accelerator = Accelerator(cpu=True)
    ways = [(d, w, k) for d in (False, True) for w in (None, "fork", "forkserver") for k in KINDS]
    ways.remove((True, "fork", SeqRecordIterableDataset))  # rank 0's worker raises; ranks 1, … wait
    count = 0
    for dispatch, method, kind in ways:
        loader: Any = DataLoader(
            kind(path, clip_len=5, features=["id"]),
            batch_size=2,
            num_workers=0 if method is None else 1,
            multiprocessing_context=method,
            collate_fn=tensors,
        )
        loader = prepare_data_loader(
            loader, accelerator.device, put_on_device=True, dispatch_batches=dispatch
        )
        try:
            next(iter(loader))
        except ClipError as error:
            count += "rank=(0, 1) for a loader that accelerator.prepare" in str(error)
    return {"refused": count, "ways": len(ways)}


if __name__ == "__main__":
    mp.set_forkserver_preload(
        ["seqrecord.loader.pipes.loaders", "tests.kit.clip_data"]
    )  # imports torch once
    main(sys.argv[1])
