"""One of several JAX processes: global arrays with the clips of all ranks, and a missing rank."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from seqrecord import ClipError, SeqRecordIterableDataset, SeqRecordMix
from tests.loader.rank_jobs import CLIPS, Found, report


def main(path: str, address: str, rank: str) -> None:
    clips = {**CLIPS, "output": "numpy", "last_batch": "drop"}
    jax.distributed.initialize(address, 2, int(rank))
    found: Found = {"refused": "", "named": []}
    try:  # before a backend is started
        next(iter(SeqRecordIterableDataset(path, **clips)))
    except ClipError as error:
        found["refused"] = str(error)
    ranks: dict[str, Any] = {"rank": (jax.process_index(), jax.process_count())}
    mesh = jax.make_mesh((jax.device_count(),), ("batch",))
    sharding = NamedSharding(mesh, PartitionSpec("batch"))
    total = jax.jit(lambda ids: ids.sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))
    stream = SeqRecordIterableDataset(path, **clips, **ranks)
    sums, own = [], []
    for batch in stream:
        whole = jax.make_array_from_process_local_data(sharding, batch["id"])
        assert whole.shape == (8, *batch["id"].shape[1:])
        sums.append(int(total(whole)))
        own.append(int(batch["id"].astype(np.int32).sum()))
        found["named"].append(list(zip(batch["episode"], batch["start"].tolist(), strict=True)))
    source = SeqRecordIterableDataset(path, clip_len=3, features=["id"])
    mix = SeqRecordMix({"one": source}, batch_size=4, output="numpy", **ranks)
    found |= {"sums": sums, "own": own, "mixed": type(next(iter(mix))["id"]).__name__}
    found["kept"] = all(keeps_memory(SeqRecordIterableDataset(path, **clips, rank=(0, 1))))
    report(found)
    jax.distributed.shutdown()


def keeps_memory(stream: SeqRecordIterableDataset) -> Iterator[bool]:
    """Whether JAX arrays keep their values after their batches are deleted."""
    kept, copies = [], []
    for batch in stream:
        copies.append(batch["id"].copy())
        kept.append(jax.device_put(batch["id"], jax.local_devices()[0]))
        del batch
    return (bool((ours == copy).all()) for ours, copy in zip(kept, copies, strict=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
