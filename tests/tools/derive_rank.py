"""One rank of a derivation: `python -m tests.tools.derive_rank RECORDS OUT RANK RANKS STORE CALLS`.

The last rank ends without a word in its call number CALLS, unless that is 0.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

import seqrecord


def main(records: str, out: str, rank: int, ranks: int, store: str, last_call: int) -> None:
    if ranks > 1:
        url = Path(store).as_uri()
        dist.init_process_group("gloo", init_method=url, rank=rank, world_size=ranks)
    calls: list[int] = []

    def means(batch: dict[str, Any]) -> dict[str, Any]:
        calls.append(len(batch["image"]))
        if rank == ranks - 1 and len(calls) == last_call:
            os._exit(7)
        return {"mean": batch["image"].float().mean(dim=(1, 2, 3))}

    texts: list[str] = []

    def embed(text: str) -> Any:
        texts.append(text)
        return np.full((len(text), 2), len(text), np.float32)

    per_text = {"task": embed}
    report = seqrecord.derive(
        records, means, out, features=["image"], batch_size=4, per_text=per_text
    )
    result = {"calls": calls, "texts": texts, "skipped": report.skipped}
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    records, out, rank, ranks, store, last_call = sys.argv[1:]
    main(records, out, int(rank), int(ranks), store, int(last_call))
