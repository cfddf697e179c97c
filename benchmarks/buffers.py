"""Fill rates of buffers by page size and alignment: `python -m benchmarks.buffers [--mib 64]`.

One thread fills buffers on huge and small pages that start at a page boundary, 64 bytes after it,
or 16 bytes after it like large NumPy arrays; and new memory, as a loader does that allocates each
batch. Fills are rows copied in random order, as in the
gather of clips, and a file read from the page cache. Prints medians in GB/s; buffers alternate.
"""

from __future__ import annotations

import argparse
import itertools
import mmap
import os
import statistics
import tempfile
import time

import numpy as np
import numpy.typing as npt

from benchmarks.timing import machine, markdown

HUGE = 2 << 20
ROWS = 64
REPEATS = 30

Bytes = npt.NDArray[np.uint8]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--mib", type=int, default=64)
    nbytes = parser.parse_args().mib << 20
    kinds = list(itertools.product((True, False), (0, 64, 16)))
    buffers = {kind: memory(nbytes, *kind) for kind in kinds}
    source, rows = memory(nbytes, True, 0), np.random.default_rng(0).permutation(ROWS)
    times: dict[tuple[bool, int] | None, list[tuple[float, float]]]
    times = {kind: [] for kind in (*kinds, None)}
    with tempfile.TemporaryFile() as file:
        file.write(source.data)
        file.flush()
        for _ in range(REPEATS):
            for kind in times:
                begin = time.perf_counter()
                buffer = buffers[kind] if kind in buffers else np.empty(nbytes, np.uint8)
                out = buffer.reshape(ROWS, -1)
                np.take(source.reshape(ROWS, -1), rows, axis=0, out=out, mode="clip")
                if kind is None:
                    buffer = np.empty(nbytes, np.uint8)
                middle = time.perf_counter()
                os.preadv(file.fileno(), [buffer.data], 0)
                times[kind].append((middle - begin, time.perf_counter() - middle))
    lines = []
    for kind, pairs in times.items():
        rates = [
            f"{nbytes / statistics.median(each) / 1e9:.1f}" for each in zip(*pairs, strict=True)
        ]
        if kind is None:
            lines.append(["new memory", "", *rates])
        else:
            lines.append(["2 MiB" if kind[0] else "4 KiB", f"{kind[1]}", *rates])
    print(machine())
    print(markdown(["pages", "bytes past a page", "rows copied, GB/s", "file read, GB/s"], lines))


def memory(nbytes: int, huge: bool, offset: int) -> Bytes:
    """Touched memory that starts `offset` bytes after a page boundary."""
    whole = mmap.mmap(-1, nbytes + 2 * HUGE)
    whole.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    array = np.frombuffer(whole, np.uint8)
    begin = -array.ctypes.data % HUGE + offset
    part = array[begin : begin + nbytes]
    part[:] = 1
    return part


if __name__ == "__main__":
    main()
