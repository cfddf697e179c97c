"""`private_bytes` of `stats()`, beside the memory that the process has.

A process of its own iterates twice, after a first loader of the same kind, which imports what
iterations need. The difference between its memory before and during the iterations is what their
frames and batches take.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import FeatureSpec, Schema, SeqRecordIterableDataset, SeqRecordMix, SeqRecordPipe
from seqrecord.loader.engine.pools import touched_bytes
from tests.kit.datasets import columns, noise, write_dataset
from tests.kit.processes import run_code

SIDE, FRAMES = 160, 60
LARGE: dict[str, Any] = {"clip_len": 2, "batch_size": 32, "seed": 1}
SMALL_LIMIT, LARGE_LIMIT = {"memory_limit": "64MiB"}, {"memory_limit": "512MiB"}
SIZES = Schema(
    [
        FeatureSpec("image", np.dtype("uint8"), (None, SIDE, 3), codec=({"id": "lz4"},)),
        FeatureSpec("state", np.dtype("int64"), ()),
    ]
)
ENCODED: dict[str, Any] = {"codecs": {"image": "fast"}}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "mapped": ({"codecs": "raw"}, {}, LARGE),
    "copied": ({"codecs": "raw"}, {"verify": "always"}, LARGE | LARGE_LIMIT),
    "decoded": (ENCODED, {}, LARGE | SMALL_LIMIT),
    "resident": (ENCODED, {}, LARGE | LARGE_LIMIT),
    "mix": (ENCODED, {}, {"batch_size": 64, "weights": "equal"} | SMALL_LIMIT),
    "several sizes": ({"schema": SIZES}, {}, LARGE | SMALL_LIMIT),
}
"""Options of the dataset, of `open` and of the loader."""


def own_bytes() -> int:
    """Memory of this process that no file has."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous"))


def measure(small: str, path: str, case: str) -> None:
    """Print rows of `private_bytes`, `planned_bytes` and the growth of the process's memory."""
    _, opened, options = CASES[case]

    def loader(path: str) -> Any:
        dataset = seqrecord.open(path, **opened)
        if case != "mix":
            return SeqRecordPipe(dataset, **options)
        sources = {name: SeqRecordIterableDataset(dataset, clip_len=2) for name in "ab"}
        return SeqRecordMix(sources, **options)

    list(loader(small))
    pipe = loader(path)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    begin, rows = own_bytes(), []

    def note() -> None:
        own = -1
        while own != (own := own_bytes()):  # threads of the engine load ahead: until they wait
            time.sleep(0.05)
        stats = pipe.stats()
        rows.append((stats["private_bytes"], stats["planned_bytes"], own_bytes() - begin))

    for _ in range(2):
        for number, _batch in enumerate(pipe):
            if number % 8 == 7:
                note()
    note()
    json.dump(rows, sys.stdout)


def test_touched_bytes() -> None:
    array = np.empty((64, 1 << 20), np.uint8)  # so many bytes that the system gives new pages
    assert touched_bytes(array) <= 2 << 20
    array[3:5] = 1
    assert touched_bytes(array) == pytest.approx(2 << 20, abs=4 << 20)  # pages may be large
    array[:] = 1
    assert touched_bytes(array) == array.nbytes
    assert touched_bytes(array[:0]) == 0
    assert touched_bytes(array[0, :100]) == 100


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_private_bytes_are_those_of_the_process(case: str, tmp_path: Path) -> None:
    images: list[Any] = [*noise(FRAMES, SIDE, SIDE, 3)]
    if case == "several sizes":
        images = [image[: SIDE - i % 40] for i, image in enumerate(images)]
    for name, count in (("small", 2), ("large", 16)):
        episodes = {f"e{i}": columns(image=images, state=range(FRAMES)) for i in range(count)}
        write_dataset(tmp_path / name, episodes, **CASES[case][0])
    code = f"import sys; from {__name__} import measure; measure(*sys.argv[1:])"
    run = run_code(code, tmp_path / "small", tmp_path / "large", case)
    for private, planned, process in json.loads(run.stdout):
        assert private == pytest.approx(process, rel=0.1)
        assert private < 1.01 * planned or case == "mix"  # of sources, without its batches
