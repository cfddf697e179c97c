"""How fast batches of clips come, as shares of what this machine's memory can copy.

    python -m benchmarks.tartanair.throughput FOLDER [--frames 640] [--repeats 3] [--rows raw …]

Renders a tree and packs it where FOLDER lacks them, then runs each row in a process of its own,
all rows once before any of them twice, and prints medians and ratios; where the machine has two
levels of speed, of each (see `scaling`). One timing loop serves all rows; the consumer reads one
byte of every page of memory that it is given. Raw results go to FOLDER/throughput.json.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import seqrecord
from benchmarks.tartanair.generate import generate
from benchmarks.tartanair.scaling import Scaling, level
from benchmarks.tartanair.timing import (
    Results,
    drop_page_cache,
    machine,
    markdown,
    run_rows,
    touch,
)
from seqrecord.sources import open_source
from seqrecord.storage import LocalStorage

CLIP_LEN = 16
BATCH_SIZE = 4
EPOCHS = 5  # the first of them warms up and is not counted
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
    make_small_frames(arguments.folder)
    results = run_rows(
        __spec__.name,
        [str(arguments.folder)],
        arguments.rows,
        arguments.repeats,
        shown="clips_per_second",
    )
    document = {"machine": machine(), "frames": arguments.frames, "rows": results}
    (arguments.folder / "throughput.json").write_text(json.dumps(document, indent=1) + "\n")
    print(table(results))


def measure(row: Row, folder: Path) -> dict[str, Any]:
    """The timing loop: clips a second of each epoch after the first, and their median.

    `epochs` are rates, each with what `Scaling` said before and after.
    """
    importlib.import_module("seqrecord.pipes.loaders")  # torch takes seconds, whoever loads
    if row.cold:
        drop_page_cache(folder.rglob("*.seqrec"))
    with Scaling.start() as scaling:
        scaling.now()
        if row.spin:
            threading.Thread(target=spin, daemon=True).start()
        begin = time.perf_counter()
        epoch = row.epoch(folder)
        first, read = 0.0, 0
        epochs: list[tuple[float, float, float]] = []
        for number in range(EPOCHS):
            if row.cold:
                drop_page_cache(folder.rglob("*.seqrec"))
            # Nothing can be asked beside a thread that takes a core.
            before = 0.0 if row.spin or not number else scaling.now()
            clips, read = 0, bytes_by_system_calls()
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
            rate = clips / (time.perf_counter() - start)
            read = bytes_by_system_calls() - read
            if number:
                epochs.append((rate, before, 0.0 if row.spin else scaling.now()))
    stats = epoch.stats() if isinstance(epoch, Streaming) else {}
    if stats:
        stats["system_ratio"] = read / stats["bytes_read"]
    return {
        "clips_per_second": statistics.median(rate for rate, _, _ in epochs),
        "epochs": epochs,
        "first_batch_seconds": first,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        **{name: value for name, value in stats.items() if isinstance(value, (int, float, str))},
    }


def bytes_by_system_calls() -> int:
    """What this process has read from files so far, as the kernel counts it."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def spin() -> None:
    while True:
        pass


def copying(threads: int, stride: int = 1) -> Callable[[Path], Callable[[], Batches]]:
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
            for start in range(0, len(episode["flow"]) - CLIP_LEN + 1, stride)
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
        storage = LocalStorage(folder / records)
        return Streaming(
            seqrecord.SeqRecordPipe(seqrecord.open(storage), **{**arguments, **settings})
        )

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
        needed = int(index.groups[0].page_length[:, columns].sum(dtype=np.int64))
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
    "copy-2-stride-16": Row(copying(2, stride=16)),
    "stride-16": Row(streaming("raw", stride=16)),
    "stride-16-balanced": Row(streaming("balanced", stride=16)),
    "small-copy-2": Row(small_copying, limit="small-copy-2"),
    "small-frames": Row(
        streaming("small-frames", batch_size=SMALL_BATCH, clip_len=SMALL_CLIPS),
        limit="small-copy-2",
    ),
}


def prepare(
    folder: Path, frames: int, codecs: Sequence[str] = ("raw", "fast", "balanced", "small")
) -> None:
    """Render and pack what is not there yet."""
    tree = folder / "tree"
    if not tree.exists():
        print("rendering", file=sys.stderr)
        generate(tree, episodes=[frames // 4] * 4)
    for codec in codecs:
        if not (folder / codec / "manifest.json").exists():
            print(f"packing {codec}", file=sys.stderr)
            source = open_source(tree, features=FEATURES, cameras=["left"])
            seqrecord.convert(source, folder / codec, codecs=codec)


def make_small_frames(folder: Path) -> None:
    """Small frames, where they are not there yet."""
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


def table(results: Results) -> str:
    """Medians over epochs, and each row's share of its limits: at both levels of the machine, and
    their mean."""
    columns = [
        "row",
        "clips/s",
        "of copy limit",
        "slow level",
        "fast level",
        "of one-thread copy",
        "bytes read",
        "by the kernel",
        "frames decoded",
        "first batch s",
        "peak MB",
    ]
    lines = []
    for name, runs in results.items():
        last, limit = runs[-1], ROWS[name].limit
        shares = [share_of(results, name, limit, at) for at in ("slow", "fast")]
        ones = [share_of(results, name, "copy-1", at) for at in ("slow", "fast")]
        rates = [rate for run in runs for rate, _, _ in run["epochs"]]
        lines.append(
            [
                name,
                f"{statistics.median(rates):.1f}",
                *map(shown, [mean(shares), *shares]),
                shown(mean(ones)) if limit == "copy-2" else "",
                ratio(last, "bytes_ratio"),
                ratio(last, "system_ratio"),
                ratio(last, "frames_ratio"),
                f"{statistics.median(r['first_batch_seconds'] for r in runs):.2f}",
                f"{statistics.median(r['peak_memory_bytes'] for r in runs) / 1e6:.0f}",
            ]
        )
    return markdown(columns, lines)


def share_of(results: Results, name: str, limit: str, at: str) -> float | None:
    """A row's median rate by its limit's, of the epochs at one level of the machine."""
    medians = []
    for row in (name, limit):
        rates = [
            rate
            for run in results.get(row, [])
            for rate, before, after in run["epochs"]
            if level(before, after) == at
        ]
        if not rates:
            return None
        medians.append(statistics.median(rates))
    return float(medians[0] / medians[1])


def mean(shares: Sequence[float | None]) -> float | None:
    known = [value for value in shares if value is not None]
    return statistics.mean(known) if known else None


def shown(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def ratio(result: dict[str, Any], key: str) -> str:
    return f"{result[key]:.3f}" if key in result else ""


if __name__ == "__main__":
    main()
