"""Clips per second on a device, and bytes copied to it.

    python -m benchmarks.tartanair.device FOLDER [--device cuda] [--frames 480]

Renders and packs a tree unless FOLDER has them. Each row runs in its own process:

- `copies`: pinned batches in memory, copied whole, two at a time; nothing is read;
- `batches`: whole batches of a pipe, pinned and copied by torch;
- `workers`: whole batches of a DataLoader's workers, one for each two cores, pinned by its thread;
- `pipe`: `SeqRecordPipe(device=…)`, which copies each frame once and gathers on the device;
- `pipe, resident`: the same with memory for all frames, which later epochs find on the device;
- `H.264 by PyAV`, `H.264 by torchcodec`: `pipe` with video of the images alone, decoded on the host
  or by NVDEC.

All rows but `copies` and `pipe, resident` read and decode each frame in each epoch.

The consumer reads one byte of every page on the device, and waits for it at the end of each epoch.
`--device cpu` only shows that the rows run.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import seqrecord
from benchmarks.suite import Suite, make_parser
from benchmarks.tartanair.generate import generate
from benchmarks.tartanair.loaders.base import USUAL
from benchmarks.timing import (
    PAGE,
    Result,
    answer,
    markdown,
    median,
    number,
    once,
    quotient,
    run_job,
)

CLIP_LEN, BATCH_SIZE = 16, 4
_EPOCHS = 3  # the first one warms up and is not counted
_RING = 4  # batches of the row `copies`

Batches = Iterable[dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """A row: how batches get to the device, and the pipe that makes them.

    `epochs` returns a function whose results are epochs of batches on the device. The limit of
    memory decides whether frames are resident: 480 frames take 2.2 GiB, their images 422 MiB.
    """

    epochs: Callable[[seqrecord.SeqRecordPipe, str], Callable[[], Batches]]
    codec: str = "balanced"
    memory_limit: str = "2GiB"
    on_device: bool = False
    video_decoder: str = "pyav"

    def pipe(self, folder: Path, device: str) -> seqrecord.SeqRecordPipe:
        return seqrecord.SeqRecordPipe(
            folder / self.codec,
            clip_len=CLIP_LEN,
            batch_size=BATCH_SIZE,
            memory_limit=self.memory_limit,
            last_batch="drop",
            device=device if self.on_device else None,
            engine=seqrecord.EngineOptions(video_decoder=self.video_decoder),
        )


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--frames", type=int, default=480, help="in four episodes")
    options = parser.parse_args()
    is_gpu = torch.device(options.device).type == "cuda"
    device = torch.cuda.get_device_name(options.device) if is_gpu else options.device
    settings = {"device": device, "frames": options.frames}
    suite = Suite(options, settings, name="device")
    if not options.report:
        tree = suite.folder / "tree"
        once(tree, lambda root: generate(root, episodes=[options.frames // 4] * 4))
        for codec in sorted({row.codec for row in _ROWS.values()}):
            once(suite.folder / codec, partial(_pack, tree, codec))
        job = {"folder": str(suite.folder), "device": options.device}
        jobs = {row: partial(run_job, __spec__.name, {**job, "row": row}, 1800) for row in _ROWS}
        suite.take_turns(suite.wanted(jobs))
    suite.publish(page, "DEVICE")


def _pack(tree: Path, codec: str, records: Path) -> None:
    features = ["image_left"] if codec == "h264" else USUAL.features
    source = seqrecord.open_source(tree, features=features, cameras=["left"])
    seqrecord.convert(source, records, codecs=codec)


def measure(row: str, folder: str, device: str) -> Result:
    """The timing loop: the median rate of the epochs after the first, and bytes copied."""
    is_gpu = torch.device(device).type == "cuda"
    pipe = _ROWS[row].pipe(Path(folder), device)
    epoch = _ROWS[row].epochs(pipe, device)
    rates: list[float] = []
    for index in range(_EPOCHS):
        clips, start = 0, time.perf_counter()
        total = torch.zeros((), dtype=torch.int64, device=device)
        for batch in epoch():
            tensors = [value for value in batch.values() if _is_feature(value)]
            for tensor in tensors:
                total += tensor.reshape(-1).view(torch.uint8)[::PAGE].sum()
            clips += len(tensors[0])
            del batch, tensors, tensor
        total.item()  # waits for the device
        if index:
            rates.append(clips / (time.perf_counter() - start))
    frame_nbytes = pipe.dataset.features.frame_nbytes
    # Whole batches carry a frame once for each clip that contains it.
    whole = len(pipe) * BATCH_SIZE * CLIP_LEN * frame_nbytes
    moved = pipe.stats()["device_bytes"] if _ROWS[row].on_device else whole
    distinct = int((pipe.clips.count - 1 + CLIP_LEN).sum()) * frame_nbytes
    return {
        "clips_per_second": statistics.median(rates),
        "gigabytes_per_second": statistics.median(rates) * CLIP_LEN * frame_nbytes / 1e9,
        "device_bytes": moved,
        "bytes_ratio": moved / distinct,
        "peak_device_memory": torch.cuda.max_memory_allocated(device) if is_gpu else 0,
    }


def _copies(pipe: seqrecord.SeqRecordPipe, device: str) -> Callable[[], Batches]:
    """As many whole batches as the pipe has, from reused pinned buffers."""
    batches = [{n: v for n, v in batch.items() if _is_feature(v)} for batch in islice(pipe, _RING)]
    if torch.device(device).type == "cuda":
        batches = [{name: v.pin_memory() for name, v in batch.items()} for batch in batches]
    source = [batches[index % len(batches)] for index in range(len(pipe))]
    return lambda: _moved(source, device)


def _moved(batches: Batches, device: str) -> Batches:
    is_gpu = torch.device(device).type == "cuda"
    for batch in batches:
        features = {name: value for name, value in batch.items() if _is_feature(value)}
        if is_gpu:
            features = {n: v if v.is_pinned() else v.pin_memory() for n, v in features.items()}
        yield {name: value.to(device, non_blocking=True) for name, value in features.items()}


def _of_workers(pipe: seqrecord.SeqRecordPipe, device: str) -> Callable[[], Batches]:
    """Batches of a DataLoader with the pipe in its workers, pinned by its thread."""
    loader = torch.utils.data.DataLoader(
        pipe,
        batch_size=None,
        num_workers=max(1, (os.cpu_count() or 1) // 2),
        persistent_workers=True,
        pin_memory=torch.device(device).type == "cuda",
    )
    return lambda: _moved(loader, device)


def _of_device(pipe: seqrecord.SeqRecordPipe, _: str) -> Callable[[], Batches]:
    return lambda: pipe


_ROWS = {
    "copies": Row(_copies),
    "batches": Row(lambda pipe, device: lambda: _moved(pipe, device)),
    "workers": Row(_of_workers),
    "pipe": Row(_of_device, on_device=True),
    "pipe, resident": Row(_of_device, memory_limit="6GiB", on_device=True),
    "H.264 by PyAV": Row(_of_device, "h264", "400MiB", on_device=True),
    "H.264 by torchcodec": Row(
        _of_device, "h264", "400MiB", on_device=True, video_decoder="torchcodec"
    ),
}


def _is_feature(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 1


def page(document: Mapping[str, Any]) -> str:
    """Medians over the repeats, with machine and settings."""
    rows, settings = document["rows"], document["settings"]
    rates = {name: median(runs, "gigabytes_per_second") for name, runs in rows.items()}
    lines = [
        [
            name,
            number(median(runs, "clips_per_second"), ".1f"),
            number(rates[name], ".1f"),
            number(quotient(rates[name], rates.get("copies")), ".2f"),
            number(median(runs, "bytes_ratio"), ".3f"),
            number(quotient(median(runs, "peak_device_memory"), 2**20), ".0f"),
        ]
        for name, runs in rows.items()
    ]
    columns = [
        *("row", "clips/s", "GB/s of batches", "of `copies`"),
        *("bytes copied / bytes of distinct frames", "device memory, MiB"),
    ]
    machine = f"{document['machine']}; {settings['device']}; commit {document['commit']}"
    return f"# Batches on a device\n\n{machine}\n\n{markdown(columns, lines)}\n"


if __name__ == "__main__":
    import sys

    if len(sys.argv) == 1:
        answer(measure)
    main()
