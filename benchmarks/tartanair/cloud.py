"""How fast batches of clips come from Azure and from a mount, beside local disk and raw rates.

    python -m benchmarks.tartanair.cloud FOLDER [--frames 640] [--repeats 3] [--rows local …]

Renders a tree and packs it where FOLDER lacks them, starts Azurite and a FUSE mount of it, and runs
each row in a process of its own, all rows once before any of them twice. All rows have the same
data and settings. Prints medians and ratios in Markdown; raw results go to FOLDER/cloud.json.

A row's name is what it reads from, `local`, `mount` or a client for Azure, after what it does:
nothing for an epoch with a consumer that takes 25 ms a batch, `far-` for the same as if 60 ms away
with 80 MB/s a stream, `stream-` for an epoch with a consumer that only looks, `raw-` for the ranges
of that epoch fetched by as many threads as is best and nothing else, `stream-narrow-` and
`raw-narrow-` for these two behind a line of 1 Gbit/s, `count-` for an epoch through a proxy that
counts requests, `open-` to open a large index. `dd-mount` reads the record files through the mount
with dd. `--records raw` leaves the decoding out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import seqrecord
from benchmarks.tartanair.cloud_services import INDEX, Places, bare, make_index, serve
from benchmarks.tartanair.cloud_table import AZURE, NARROW, PLACES, tables
from benchmarks.tartanair.throughput import BATCH_SIZE, CLIP_LEN, prepare
from benchmarks.tartanair.timing import machine, run_rows, touch
from seqrecord.ranges import ByteRange
from seqrecord.storage import Storage, StorageWrapper
from seqrecord.storage.requests import plan

EPOCHS = 2  # the first of them warms up, and is counted for its first batch only
CONSUMER_SECONDS = 0.025
MEMORY_LIMIT = "2GiB"
THREADS = (1, 2, 4, 8, 16)  # that a raw row tries
NARROW_THREADS = (2, 8)
DD_AT_ONCE = (1, 2, 4)

Call = tuple[str, list[ByteRange]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--records", default="balanced", help="the packed data set in FOLDER")
    parser.add_argument("--frames", type=int, default=640, help="in four episodes, if rendered")
    parser.add_argument("--index-frames", type=int, default=100_000_000, help="of the large index")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", nargs="*", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--one", choices=list(ROWS), help="run this row here and print its JSON")
    arguments = parser.parse_args()
    folder = arguments.folder
    if arguments.one:
        print(json.dumps(ROWS[arguments.one](Places.load(folder))))
        return
    records, index = folder / arguments.records, folder / f"index-{arguments.index_frames}"
    if not (records / "manifest.json").exists():
        prepare(folder, arguments.frames, [arguments.records])
    if not (index / "manifest.json").exists():
        make_index(index, arguments.index_frames)
    with serve(folder, records, index) as proxy:
        results = run_rows(
            __spec__.name,
            [str(folder)],
            arguments.rows,
            arguments.repeats,
            shown="seconds",
            count=lambda: proxy.requests,
        )
    document = {
        "machine": machine(),
        "num_frames": seqrecord.open(records).num_frames,
        "index_frames": seqrecord.open(index).num_frames,
        "clip_len": CLIP_LEN,
        "batch_size": BATCH_SIZE,
        "memory_limit": MEMORY_LIMIT,
        "consumer_seconds": CONSUMER_SECONDS,
        "rows": results,
    }
    (folder / "cloud.json").write_text(json.dumps(document, indent=1) + "\n")
    print(tables(document))


def epoch(
    place: str,
    *,
    consumer: float,
    stride: int = 1,
    far: bool = False,
    narrow: bool = False,
    counted: bool = False,
) -> Callable[[Places], dict[str, Any]]:
    """An epoch, and the first batch of the one before it, which nothing had read before."""

    def measure(places: Places) -> dict[str, Any]:
        importlib.import_module("seqrecord.pipes")  # torch takes seconds, whatever is read
        begin = time.perf_counter()
        storage = places.open(place, far=far, narrow=narrow, counted=counted)
        places.forget(place)
        pipe = seqrecord.SeqRecordPipe(
            seqrecord.open(storage),
            clip_len=CLIP_LEN,
            stride=stride,
            batch_size=BATCH_SIZE,
            memory_limit=MEMORY_LIMIT,
        )
        first, clips, seconds, busy = 0.0, 0, 0.0, 0.0
        for number in range(1 if counted else EPOCHS):
            if number:
                places.forget(place)
            clips, start, before = 0, time.perf_counter(), psutil.cpu_times()
            for batch in pipe:
                first = first or time.perf_counter() - begin
                arrays = [v for v in batch.values() if hasattr(v, "reshape") and v.ndim > 1]
                for array in arrays:
                    touch(array)
                clips += len(arrays[0])
                del batch, arrays
                time.sleep(consumer)
            seconds = time.perf_counter() - start
            busy = _busy(before, psutil.cpu_times())
        stats = pipe.stats()  # of this epoch
        nbytes = stats["bytes_read"]
        return {
            "seconds": seconds,
            "clips_per_second": clips / seconds,
            "bytes": nbytes,
            "bytes_per_second": nbytes / seconds,
            "requests": stats.get("requests", 0),
            "retries": stats.get("retries", 0),
            "first_batch_seconds": first,
            "busy": busy,
            "peak_memory_bytes": _peak_memory(),
            "bottleneck": stats["bottleneck"],
        }

    return measure


def raw(place: str, *, narrow: bool = False) -> Callable[[Places], dict[str, Any]]:
    """The ranges of an epoch, fetched by the client alone; the best of several thread counts."""

    def measure(places: Places) -> dict[str, Any]:
        calls = _calls_of_an_epoch(places)
        storage = places.open(place, narrow=narrow)
        storage = storage if narrow else bare(storage)
        parts = calls if place == "mount" else [part for call in calls for part in _parts(call)]
        nbytes = sum(item.length for _, ranges in parts for item in ranges)
        longest = max(sum(item.length for item in ranges) for _, ranges in parts)
        rates = {}
        for threads in NARROW_THREADS if narrow else THREADS:
            places.forget(place)
            buffers = [np.zeros(longest, np.uint8) for _ in range(threads)]
            storage.size(parts[0][0])  # its client is made

            def fetch(part: Call, buffers: list[Any] = buffers) -> None:
                path, ranges = part
                buffer = buffers.pop()
                views, used = [], 0
                for item in ranges:
                    views.append(buffer[used : used + item.length].data)
                    used += item.length
                storage.read_ranges(path, ranges, views)
                buffers.append(buffer)

            start = time.perf_counter()
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(fetch, parts))
            rates[threads] = nbytes / (time.perf_counter() - start)
        storage.close()
        best = max(rates, key=lambda threads: rates[threads])
        return {
            "seconds": nbytes / rates[best],
            "bytes": nbytes,
            "bytes_per_second": rates[best],
            "threads": best,
            "rates": rates,
        }

    return measure


def dd(places: Places) -> dict[str, Any]:
    """The record files through the mount with dd; the best of several at once."""
    paths = sorted(Path(places.mount).rglob("*.seqrec"))
    nbytes = sum(path.stat().st_size for path in paths)

    def copy(path: Path) -> None:
        command = ["dd", f"if={path}", "of=/dev/null", "bs=8M", "status=none"]
        subprocess.run(command, check=True)

    rates = {}
    for at_once in DD_AT_ONCE:
        places.forget("mount")
        start = time.perf_counter()
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(copy, paths))
        rates[at_once] = nbytes / (time.perf_counter() - start)
    best = max(rates, key=lambda at_once: rates[at_once])
    return {
        "seconds": nbytes / rates[best],
        "bytes": nbytes,
        "bytes_per_second": rates[best],
        "threads": best,
        "rates": rates,
    }


def opening(place: str) -> Callable[[Places], dict[str, Any]]:
    """A large index opened, in a process that does nothing else: time and peak memory."""

    def measure(places: Places) -> dict[str, Any]:
        location, options = places.location(place, INDEX)
        command = [sys.executable, "-c", _OPEN, json.dumps([location, options])]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        opened: dict[str, Any] = json.loads(output)
        return opened

    return measure


_OPEN = """
import json, sys, time
import seqrecord

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))

location, options = json.loads(sys.argv[1])
before, start = peak(), time.perf_counter()
frames = seqrecord.open(location, storage_options=options).num_frames
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "frames": frames, "peak_memory_bytes": peak(),
                  "memory_before_bytes": before}))
"""


def _pipe(storage: Storage) -> seqrecord.SeqRecordPipe:
    return seqrecord.SeqRecordPipe(
        seqrecord.open(storage),
        clip_len=CLIP_LEN,
        batch_size=BATCH_SIZE,
        memory_limit=MEMORY_LIMIT,
    )


class _Recorder(StorageWrapper):
    """Keeps the calls that read record files, in order."""

    def __init__(self, places: Places) -> None:
        super().__init__(places.open("local"))
        self.calls: list[Call] = []

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        if path.endswith(".seqrec"):
            self.calls.append((path, list(ranges)))
        super().read_ranges(path, ranges, buffers)


def _calls_of_an_epoch(places: Places) -> list[Call]:
    recorder = _Recorder(places)
    pipe = seqrecord.SeqRecordPipe(
        seqrecord.open(recorder),
        clip_len=CLIP_LEN,
        batch_size=BATCH_SIZE,
        memory_limit=MEMORY_LIMIT,
    )
    for batch in pipe:
        del batch
    return recorder.calls


def _parts(call: Call) -> list[Call]:
    """The requests that a call is cut into."""
    path, ranges = call
    buffers = [memoryview(bytearray(item.length)) for item in ranges]
    return [(path, part) for part, _ in plan(ranges, buffers)]


def _busy(before: Any, after: Any) -> float:
    """The share of all processors' time that anything on this machine has taken."""
    spent = {name: getattr(after, name) - getattr(before, name) for name in after._fields}
    # Linux counts a guest's time as its user's too.
    total = sum(seconds for name, seconds in spent.items() if not name.startswith("guest"))
    return float(1 - (spent["idle"] + spent.get("iowait", 0.0)) / total)


def _peak_memory() -> int:
    """Of this process. What getrusage says may be its parent's."""
    status = Path("/proc/self/status").read_text()
    return next(int(x.split()[1]) << 10 for x in status.splitlines() if x.startswith("VmHWM"))


def _rows() -> dict[str, Callable[[Places], dict[str, Any]]]:
    waiting = partial(epoch, consumer=CONSUMER_SECONDS)
    rows = {place: waiting(place) for place in PLACES}
    rows |= {f"far-{place}": waiting(place, far=True) for place in AZURE}
    rows |= {f"stream-{place}": epoch(place, consumer=0.0) for place in PLACES}
    apart = partial(epoch, consumer=0.0, stride=CLIP_LEN)  # nothing is copied sixteen times
    rows |= {f"stream-apart-{place}": apart(place) for place in PLACES}
    rows |= {f"raw-{place}": raw(place) for place in PLACES}
    rows |= {f"stream-narrow-{p}": epoch(p, consumer=0.0, narrow=True) for p in NARROW}
    rows |= {f"raw-narrow-{p}": raw(p, narrow=True) for p in NARROW}
    rows |= {"dd-mount": dd}
    rows |= {f"count-{place}": epoch(place, consumer=0.0, counted=True) for place in AZURE}
    rows |= {f"open-{place}": opening(place) for place in PLACES}
    return rows


ROWS = _rows()

if __name__ == "__main__":
    main()
