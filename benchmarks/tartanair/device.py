"""How fast batches of clips come to a device, and how many bytes cross the bus for that.

    python -m benchmarks.tartanair.device FOLDER [--device cuda] [--frames 640] [--repeats 3]

Renders a tree and packs it where FOLDER lacks them. Each row runs in a process of its own:

- `copies`: pinned batches that are there already, copied whole, two at a time; nothing is read;
- `prefetch`: `prefetch_to_device` around a pipe, so batches are copied whole too;
- `pipe`: `SeqRecordPipe(device=…)`, which copies each frame once and gathers on the device.

The consumer reads one byte of every page on the device, and waits for it only at the end of an
epoch. With `--device cpu` it shows that it runs, and no more. Raw results go to FOLDER/device.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import seqrecord
from benchmarks.tartanair.throughput.data import prepare
from benchmarks.tartanair.throughput.rows import BATCH_SIZE, CLIP_LEN, MEMORY_LIMIT
from benchmarks.tartanair.timing import PAGE, Results, machine, markdown, run_rows, share

EPOCHS = 3  # the first of them warms up and is not counted
RING = 4  # batches of the row `copies`

Batches = Iterable[dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--codec", default="balanced")
    parser.add_argument("--frames", type=int, default=640, help="in four episodes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", choices=list(ROWS), help="run this row here and print its JSON")
    arguments = parser.parse_args()
    if arguments.one:
        print(
            json.dumps(measure(arguments.one, arguments.folder / arguments.codec, arguments.device))
        )
        return
    prepare(arguments.folder, arguments.frames, [arguments.codec])
    results = run_rows(
        __spec__.name,
        [str(arguments.folder), "--device", arguments.device, "--codec", arguments.codec],
        ROWS,
        arguments.repeats,
        shown="clips_per_second",
    )
    document = {
        "machine": machine(),
        "device": device_name(arguments.device),
        "codec": arguments.codec,
        "frames": arguments.frames,
        "rows": results,
    }
    (arguments.folder / "device.json").write_text(json.dumps(document, indent=1) + "\n")
    print(table(results))


def measure(row: str, records: Path, device: str) -> dict[str, Any]:
    """The timing loop: clips a second, the median over epochs after the first, and bytes moved."""
    pipe = make_pipe(records, device if row == "pipe" else None)
    epoch = ROWS[row](pipe, device)
    rates: list[float] = []
    for number in range(EPOCHS):
        clips, start = 0, time.perf_counter()
        seen = torch.zeros((), dtype=torch.int64, device=device)
        for batch in epoch():
            tensors = [value for value in batch.values() if is_feature(value)]
            for tensor in tensors:
                seen += tensor.reshape(-1).view(torch.uint8)[::PAGE].sum()
            clips += len(tensors[0])
            del batch, tensors, tensor
        seen.item()  # waits for the device
        if number:
            rates.append(clips / (time.perf_counter() - start))
    # Copied whole, a frame crosses once for each clip that it is in.
    whole = len(pipe) * BATCH_SIZE * CLIP_LEN * pipe.dataset.features.frame_nbytes
    moved = pipe.stats()["device_bytes"] if row == "pipe" else whole
    return {
        "clips_per_second": statistics.median(rates),
        "device_bytes": moved,
        "bytes_ratio": moved / distinct_bytes(pipe),
        "peak_device_memory": torch.cuda.max_memory_allocated(device) if on_gpu(device) else 0,
    }


def make_pipe(records: Path, device: str | None) -> seqrecord.SeqRecordPipe:
    return seqrecord.SeqRecordPipe(
        records,
        clip_len=CLIP_LEN,
        batch_size=BATCH_SIZE,
        memory_limit=MEMORY_LIMIT,
        drop_last=True,
        device=device,
    )


def copying(pipe: seqrecord.SeqRecordPipe, device: str) -> Callable[[], Batches]:
    """As many whole batches as the pipe has, from pinned buffers that are used again."""
    batches = []
    for batch in islice(pipe, RING):
        features = {name: value for name, value in batch.items() if is_feature(value)}
        if on_gpu(device):
            features = {name: value.pin_memory() for name, value in features.items()}
        batches.append(features)
    count = len(pipe)
    source = [batches[number % len(batches)] for number in range(count)]
    return lambda: seqrecord.prefetch_to_device(source, device)


def prefetching(pipe: seqrecord.SeqRecordPipe, device: str) -> Callable[[], Batches]:
    return lambda: seqrecord.prefetch_to_device(pipe, device)


def moving(pipe: seqrecord.SeqRecordPipe, _device: str) -> Callable[[], Batches]:
    return lambda: pipe


ROWS = {"copies": copying, "prefetch": prefetching, "pipe": moving}


def is_feature(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 1


def distinct_bytes(pipe: seqrecord.SeqRecordPipe) -> int:
    """Of all frames that are in a clip, each counted once; clips of an episode overlap."""
    frames = sum(
        last - first + CLIP_LEN
        for first, last in zip(
            pipe.clips.first_start.tolist(),
            (pipe.clips.first_start + pipe.clips.count - 1).tolist(),
            strict=True,
        )
    )
    return int(frames) * pipe.dataset.features.frame_nbytes


def on_gpu(device: str) -> bool:
    return torch.device(device).type == "cuda"


def device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if on_gpu(device) else device


def table(results: Results) -> str:
    """Medians over the repeats."""
    rate = {n: statistics.median(r["clips_per_second"] for r in rs) for n, rs in results.items()}
    return markdown(
        ["row", "clips/s", "of whole batches copied", "bytes moved / of distinct frames"],
        (
            [
                name,
                f"{rate[name]:.1f}",
                share(rate[name], rate["copies"]),
                f"{runs[0]['bytes_ratio']:.3f}",
            ]
            for name, runs in results.items()
        ),
    )


if __name__ == "__main__":
    main()
