"""How fast batches of clips come, as shares of what this machine's memory can copy.

    python -m benchmarks.tartanair.throughput FOLDER [--frames 640] [--repeats 3] [--rows raw …]

Renders a tree and packs it where FOLDER lacks them, then runs each row in a process of its own,
all rows once before any of them twice, and prints medians and ratios. One timing loop serves all
rows; the consumer reads one byte of every page of memory that it is given. Raw results go to
FOLDER/throughput.json.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import seqrecord
from benchmarks.tartanair.generate import generate
from seqrecord.sources import open_source

CLIP_LEN = 16
BATCH_SIZE = 4
EPOCHS = 3  # the first of them warms up and is not counted
PAGE = 4096
FEATURES = ("image_left", "depth_left", "flow", "mask", "seg_left")
MEMORY_LIMIT = "6GiB"
SMALL_CLIPS, SMALL_BATCH = 16, 256

Arrays = dict[str, npt.NDArray[Any]]
Batches = Iterable[dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """One line of the table: how to make an epoch of batches, and what limits it."""

    epoch: Callable[[Path], Callable[[], Batches]]
    limit: str = "copy-2"
    consume: bool = True
    cold: bool = False
    spin: bool = False  # a thread of pure Python holds the GIL as much as it can


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--frames", type=int, default=640, help="in four episodes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", nargs="*", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--one", choices=list(ROWS), help="run this row here and print its JSON")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(ROWS[arguments.one], arguments.folder)))
        return
    prepare(arguments.folder, arguments.frames)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in arguments.rows}
    for _ in range(arguments.repeats):
        for name in arguments.rows:
            command = [sys.executable, "-m", __spec__.name, str(arguments.folder), "--one", name]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            results[name].append(json.loads(output.splitlines()[-1]))
            print(f"{name}: {results[name][-1]['clips_per_second']:.1f} clips/s", file=sys.stderr)
    document = {"machine": machine(), "frames": arguments.frames, "rows": results}
    (arguments.folder / "throughput.json").write_text(json.dumps(document, indent=1) + "\n")
    print(table(results))


def measure(row: Row, folder: Path) -> dict[str, Any]:
    """The timing loop: clips a second of an epoch, its median over epochs after the first."""
    importlib.import_module("seqrecord.pipes")  # torch takes seconds, whoever loads
    if row.cold:
        drop_page_cache(folder)
    if row.spin:
        threading.Thread(target=spin, daemon=True).start()
    begin = time.perf_counter()
    epoch = row.epoch(folder)
    rates, first = [], 0.0
    for number in range(EPOCHS):
        if row.cold:
            drop_page_cache(folder)
        clips = 0
        start = time.perf_counter()
        for batch in epoch():
            if not first:
                first = time.perf_counter() - begin
            arrays = [v for v in batch.values() if hasattr(v, "reshape") and v.ndim > 1]
            if row.consume:
                for array in arrays:
                    touch(array)
            clips += len(arrays[0])
            del batch, arrays
        if number or row.cold:
            rates.append(clips / (time.perf_counter() - start))
    stats = epoch.stats() if isinstance(epoch, Streaming) else {}
    return {
        "clips_per_second": statistics.median(rates),
        "first_batch_seconds": first,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **{name: value for name, value in stats.items() if isinstance(value, (int, float, str))},
    }


def spin() -> None:
    while True:
        pass


def touch(array: Any) -> int:
    """Read one byte of every page of a tensor or array."""
    flat = np.asarray(array).reshape(-1).view(np.uint8)
    return int(flat[::PAGE].max())


def copying(threads: int) -> Callable[[Path], Callable[[], Batches]]:
    """All frames resident; `threads` fill reused batches with shuffled clips."""

    def make(folder: Path) -> Callable[[], Batches]:
        dataset = seqrecord.open(folder / "raw")
        episodes: list[Arrays] = []
        for episode in dataset.episodes.values():
            read = episode.read(range(len(episode) - 1))
            episodes.append({name: np.asarray(array) for name, array in read.items()})
        clips = [
            (number, start)
            for number, episode in enumerate(episodes)
            for start in range(len(episode["flow"]) - CLIP_LEN + 1)
        ]
        order = np.random.default_rng(0).permutation(len(clips))
        batches = [
            [clips[i] for i in order[at : at + BATCH_SIZE]]
            for at in range(0, len(clips) - BATCH_SIZE + 1, BATCH_SIZE)
        ]
        shapes = {name: (array.shape[1:], array.dtype) for name, array in episodes[0].items()}
        buffers = [
            {name: np.zeros((BATCH_SIZE, CLIP_LEN, *s), d) for name, (s, d) in shapes.items()}
            for _ in range(threads + 2)
        ]

        def fill(number: int) -> Arrays:
            buffer = buffers[number % len(buffers)]
            for place, (episode, start) in enumerate(batches[number]):
                for name, array in episodes[episode].items():
                    np.copyto(buffer[name][place], array[start : start + CLIP_LEN])
            return buffer

        def epoch() -> Iterator[Arrays]:
            if threads == 1:
                yield from map(fill, range(len(batches)))
                return
            with ThreadPoolExecutor(threads) as pool:
                ahead: list[Future[Arrays]] = []
                for number in range(len(batches)):
                    ahead.append(pool.submit(fill, number))
                    if len(ahead) > threads:
                        yield ahead.pop(0).result()
                for future in ahead:
                    yield future.result()

        return epoch

    return make


def streaming(records: str, **settings: Any) -> Callable[[Path], Callable[[], Batches]]:
    """`SeqRecordPipe` over one of the packed datasets."""

    def make(folder: Path) -> Callable[[], Batches]:
        arguments = {"clip_len": CLIP_LEN, "batch_size": BATCH_SIZE, "memory_limit": MEMORY_LIMIT}
        return Streaming(seqrecord.SeqRecordPipe(folder / records, **{**arguments, **settings}))

    return make


class Streaming:
    """A pipe as something that makes an epoch when called."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    def __call__(self) -> Batches:
        batches: Batches = iter(self._pipe)
        return batches

    def stats(self) -> dict[str, Any]:
        pipe, stats = self._pipe, self._pipe.stats()
        index = pipe.dataset.index
        columns = [index.schema.position(name) for name in pipe.dataset.features]
        needed = int(index.page_length[:, columns].sum(dtype=np.int64))
        return {
            **stats,
            "bytes_ratio": stats["bytes_read"] / needed,
            "frames_ratio": stats["frames_decoded"] / pipe.dataset.num_frames,
        }


def small_copying(_folder: Path) -> Callable[[], Batches]:
    """The copy limit of small frames: two threads gather rows of one resident array."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 255, (20_000, 84, 84, 3), np.uint8)
    actions = rng.normal(size=(20_000, 32)).astype("f4")
    starts = rng.permutation(20_000 - SMALL_CLIPS)
    buffers = [
        (
            np.zeros((SMALL_BATCH, SMALL_CLIPS, 84, 84, 3), np.uint8),
            np.zeros((SMALL_BATCH, SMALL_CLIPS, 32), "f4"),
        )
        for _ in range(4)
    ]

    def fill(number: int) -> Arrays:
        images, vectors = buffers[number % len(buffers)]
        chosen = starts[number * SMALL_BATCH : (number + 1) * SMALL_BATCH]
        for place, start in enumerate(chosen):
            np.copyto(images[place], image[start : start + SMALL_CLIPS])
            np.copyto(vectors[place], actions[start : start + SMALL_CLIPS])
        return {"image": images, "actions": vectors}

    def epoch() -> Iterator[Arrays]:
        with ThreadPoolExecutor(2) as pool:
            ahead: list[Future[Arrays]] = []
            for number in range(len(starts) // SMALL_BATCH):
                ahead.append(pool.submit(fill, number))
                if len(ahead) > 2:
                    yield ahead.pop(0).result()
            for future in ahead:
                yield future.result()

    return epoch


ROWS = {
    "copy-2": Row(copying(2)),
    "copy-1": Row(copying(1), consume=False),
    "raw": Row(streaming("raw")),
    "balanced": Row(streaming("balanced")),
    "fast": Row(streaming("fast")),
    "small": Row(streaming("small")),
    "raw-2GiB": Row(streaming("raw", memory_limit="2GiB")),
    "raw-spinning": Row(streaming("raw"), spin=True),
    "raw-unshuffled": Row(streaming("raw", shuffle=False)),
    "raw-cold": Row(streaming("raw"), cold=True),
    "balanced-cold": Row(streaming("balanced"), cold=True),
    "one-feature": Row(streaming("balanced", features=["depth_left"])),
    "stride-16": Row(streaming("raw", stride=16)),
    "small-copy-2": Row(small_copying),
    "small-frames": Row(
        streaming("small-frames", batch_size=SMALL_BATCH, clip_len=SMALL_CLIPS),
        limit="small-copy-2",
    ),
}


def prepare(folder: Path, frames: int) -> None:
    """Render and pack what is not there yet."""
    tree = folder / "tree"
    if not tree.exists():
        print("rendering", file=sys.stderr)
        generate(tree, episodes=[frames // 4] * 4)
    for codec in ("raw", "fast", "balanced", "small"):
        if not (folder / codec / "manifest.json").exists():
            print(f"packing {codec}", file=sys.stderr)
            source = open_source(tree, features=FEATURES, cameras=["left"])
            seqrecord.convert(source, folder / codec, codecs=codec)
    if not (folder / "small-frames" / "manifest.json").exists():
        rng = np.random.default_rng(0)
        with seqrecord.SeqRecordWriter(folder / "small-frames", codecs="raw") as writer:
            for number in range(40):
                with writer.episode(f"episode-{number:03d}") as episode:
                    for _ in range(500):
                        episode.append(
                            {
                                "image": rng.integers(0, 255, (84, 84, 3), np.uint8),
                                "actions": rng.normal(size=32).astype("f4"),
                            }
                        )


def drop_page_cache(folder: Path) -> None:
    """Ask the kernel to forget the record files."""
    for path in folder.rglob("*.seqrec"):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Medians over the repeats, and each row's share of its limits."""
    rate = {n: statistics.median(r["clips_per_second"] for r in rs) for n, rs in results.items()}
    columns = [
        "row",
        "clips/s",
        "of copy limit",
        "of one-thread copy",
        "bytes read",
        "frames decoded",
        "first batch s",
        "peak MB",
    ]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, runs in results.items():
        last = runs[-1]
        limit = rate.get(ROWS[name].limit)
        one = rate.get("copy-1") if ROWS[name].limit == "copy-2" else None
        lines.append(
            f"| {name} | {rate[name]:.1f} "
            f"| {share(rate[name], limit)} | {share(rate[name], one)} "
            f"| {ratio(last, 'bytes_ratio')} | {ratio(last, 'frames_ratio')} "
            f"| {statistics.median(r['first_batch_seconds'] for r in runs):.2f} "
            f"| {statistics.median(r['peak_memory_bytes'] for r in runs) / 1e6:.0f} |"
        )
    return "\n".join(lines)


def share(value: float, limit: float | None) -> str:
    return f"{value / limit:.2f}" if limit else ""


def ratio(result: dict[str, Any], key: str) -> str:
    return f"{result[key]:.3f}" if key in result else ""


if __name__ == "__main__":
    main()
