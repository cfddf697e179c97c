"""Workers that are forked from a process that made the pipe read as fast as a forkserver's."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqrecord import SeqRecordWriter
from tests.services import Moto

EPOCHS = (5, 15)  # of each kind, in turn; more where other processes disturb the first
FRAMES = 24  # of an episode

PROGRAM = """
import json, sys, time
import seqrecord
from torch.utils.data import DataLoader

if __name__ == "__main__":
    url, options, epochs = json.loads(sys.argv[1])
    pipe = seqrecord.SeqRecordIterableDataset(
        seqrecord.open(url, storage_options=options),
        clip_len=8, stride=8, batch_size=4, memory_limit="128MiB",
    )
    assert len(pipe) > 0 and "obstore" not in sys.modules
    loaders = {
        kind: DataLoader(
            pipe, batch_size=None, num_workers=2, persistent_workers=True,
            multiprocessing_context=kind,
        )
        for kind in ("fork", "forkserver")
    }

    def rate(kind):
        start = time.perf_counter()
        clips = sum(len(batch["start"]) for batch in loaders[kind])
        return clips / (time.perf_counter() - start)

    rates = {kind: [] for kind in loaders}
    for kind in loaders:
        rate(kind)  # starts the workers
    for _ in range(epochs):
        for kind in loaders:
            rates[kind].append(rate(kind))
    print(json.dumps(rates))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 MiB of frames that no codec shortens, in record files of 16 MiB, for moto's sake."""
    folder = tmp_path_factory.mktemp("rates") / "records"
    rng = np.random.default_rng(0)
    with SeqRecordWriter(folder, codecs="raw", max_file_size=16 << 20) as writer:
        for number in range(16):
            with writer.episode(f"e{number}") as episode:
                frames = rng.integers(0, 256, (FRAMES, 256, 341, 3), np.uint8)
                for frame in frames:
                    episode.append({"image": frame})
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_forked_workers_are_as_fast_as_a_forkservers(folder: Path, moto: Moto) -> None:
    url, options = _uploaded(folder, moto)
    ratios: list[float] = []
    for epochs in EPOCHS:
        ratios += _ratios(url, options, epochs)
        if statistics.median(ratios) >= 0.9:
            return
    # Ratios of a machine that does other things vary; adlfs in place of obstore reaches half.
    assert statistics.median(ratios) >= 0.75, sorted(ratios)


def _ratios(url: str, options: dict[str, Any], epochs: int) -> list[float]:
    """Rates by fork over those by forkserver, of epochs that follow each other."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps([url, options, epochs])],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "reading without obstore" not in done.stderr
    rates = json.loads(done.stdout)
    return [fork / other for fork, other in zip(rates["fork"], rates["forkserver"], strict=True)]


def _uploaded(folder: Path, moto: Moto) -> tuple[str, dict[str, Any]]:
    bucket = moto.new_bucket()
    for path in (path for path in folder.rglob("*") if path.is_file()):
        moto.put(bucket, f"set/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return f"s3://{bucket}/set", moto.options()
