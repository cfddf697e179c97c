"""A memory limit is kept where shapes vary and frames are much larger than they are stored."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqrecord import FeatureSpec, Schema, SeqRecordPipe, SeqRecordWriter
from seqrecord.errors import MemoryLimitError
from tests.clip_data import least_memory
from tests.torch_process import run_code

_MIB = 1 << 20
_LARGEST = 24_000 * 12  # bytes of a frame of `points`; on the disk it takes about 60

# The process has loaded all code, and a first epoch's threads have been there, when the peak begins
# to count. What it takes beyond the limit is not of frames: stacks of threads, and the allocator's,
# which else keeps up to 2 MiB of what was given back to it.
_MEASURE = """
import ctypes, json, sys
import seqrecord

ctypes.CDLL(None).mallopt(-3, 64 << 10)  # M_MMAP_THRESHOLD: larger blocks go back to the system

def status(name):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024

root, options = sys.argv[1], json.loads(sys.argv[2])
for batch in seqrecord.SeqRecordPipe(root, **options | {"features": ["step"]}):
    pass
if options.get("ragged") == "nested":  # the first one loads much code
    import torch
    from seqrecord.engine.arena import nested
    nested([torch.zeros(2, 3), torch.zeros(1, 3)])
pipe = seqrecord.SeqRecordPipe(root, **options)
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
count = 0
for epoch in range(2):
    for batch in pipe:
        count += 1
stats = pipe.stats()
print(json.dumps([status("VmHWM") - before, stats["peak_buffer_bytes"], count]))
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five episodes of 60 frames of 8,000 to 24,000 points, all of them alike."""
    path = tmp_path_factory.mktemp("variable") / "records"
    rng = np.random.default_rng(0)
    schema = Schema(
        [
            FeatureSpec("points", np.dtype("<f4"), (None, 3)),
            FeatureSpec("step", np.dtype("<i8"), ()),
        ]
    )
    together = {"step": {"group": 0}}
    with SeqRecordWriter(
        path, schema=schema, features=together, codecs="small", chunk_frames=16
    ) as writer:
        for number in range(5):
            with writer.episode(f"e{number}") as episode:
                for step in range(60):
                    count = 24_000 if step == 30 else int(rng.integers(8_000, 24_000))
                    points = np.full((count, 3), step, "<f4")
                    episode.append({"points": points, "step": np.array(step)})
    assert sum(file.stat().st_size for file in path.rglob("*.seqrec")) < 300_000
    return path


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4, "clip_len": 2},
        pytest.param({"batch_size": None, "clip_len": 4, "stride": 4}, marks=pytest.mark.slow),
        pytest.param({"batch_size": 2, "clip_len": 3, "shuffle": False}, marks=pytest.mark.slow),
        pytest.param({"batch_size": 3, "clip_len": 2, "ragged": "pad"}, marks=pytest.mark.slow),
        pytest.param({"batch_size": 4, "clip_len": 2, "ragged": "nested"}, marks=pytest.mark.slow),
    ],
    ids=lambda options: " ".join(f"{name}={value}" for name, value in options.items()),
)
def test_what_is_taken_stays_within_the_limit(root: Path, options: dict[str, Any]) -> None:
    limit = 16 * _MIB
    ran = run_code(_MEASURE, root, json.dumps({**options, "memory_limit": limit}))
    assert ran.returncode == 0, ran.stderr
    taken, resident, count = json.loads(ran.stdout)
    assert count > 10
    assert taken <= limit + 4 * _MIB, f"{taken / _MIB:.1f} MiB taken of 16 MiB"
    assert 10 * _LARGEST <= resident <= limit


def test_the_least_counts_what_frames_decode_to(root: Path, tmp_path: Path) -> None:
    with pytest.raises(MemoryLimitError, match="at least"):
        SeqRecordPipe(root, clip_len=4, batch_size=4, memory_limit=16 * _LARGEST)
    # The largest frame is that of the selected episodes.
    with SeqRecordWriter(
        tmp_path / "x", schema=Schema([FeatureSpec("a", np.dtype("u1"), (None,))])
    ) as writer:
        for key, count in (("small", 10), ("large", 100_000)):
            with writer.episode(key) as episode:
                for _ in range(4):
                    episode.append({"a": np.zeros(count, "u1")})
    for episodes, expected in (("small", 10), ("large", 100_000), ("*", 100_000)):
        least = least_memory(partial(SeqRecordPipe, tmp_path / "x", clip_len=2, episodes=episodes))
        assert 8 * expected <= least <= 20 * expected + 10_000  # 3 clips of 2, and 2 or more frames
