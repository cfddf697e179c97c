"""The benchmark of storages, on so little data that its figures mean nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import seqrecord
from benchmarks.tartanair.cloud import ROWS
from benchmarks.tartanair.cloud_services import Line, make_index
from benchmarks.tartanair.cloud_table import figures, tables
from seqrecord.ranges import ByteRange
from seqrecord.storage import LocalStorage
from tests.services import need_azurite, need_mount

ROWS_RUN = ["local", "mount", "far-obstore", "raw-obstore", "count-obstore", "dd-mount"]
ROWS_RUN += ["stream-narrow-local", "raw-narrow-local", "open-obstore"]


def test_rows_are_named_after_places() -> None:
    places = ("local", "mount", "obstore", "adlfs", "blobfile")
    assert {name.rpartition("-")[2] for name in ROWS} == set(places)
    assert set(places) < set(ROWS)


def test_the_made_index_opens(tmp_path: Path) -> None:
    make_index(tmp_path, 10_000)
    dataset = seqrecord.open(tmp_path)
    assert dataset.num_frames == 10_240
    assert list(dataset.features) == list("abcde")


def test_figures_are_ratios_of_medians_of_rows() -> None:
    def runs(**values: list[float]) -> list[dict[str, float]]:
        return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]

    results = {
        "local": runs(seconds=[9.0, 10.0, 30.0], first_batch_seconds=[0.1] * 3),
        "obstore": runs(seconds=[10.0, 11.5, 12.0], first_batch_seconds=[0.5, 0.9, 2.0]),
        "stream-obstore": runs(bytes_per_second=[90.0]),
        "raw-obstore": runs(bytes_per_second=[100.0]),
        "count-obstore": runs(counted=[50.0], bytes=[float(1 << 29)]),
        "open-obstore": runs(seconds=[1.5], peak_memory_bytes=[250e6]),
    }
    found = {figure.what: (figure.value, figure.is_reached) for figure in figures(results)}
    assert found == {
        "obstore: bytes/s while streaming / fetching alone": (0.9, True),
        "obstore: epoch / from local disk": (1.15, False),
        "obstore: requests / GiB": (100.0, True),
        "obstore: first batch, cold, s": (0.9, True),
        "obstore: large index opened, s": (1.5, True),
        "obstore: large index opened, peak MB": (250.0, False),
    }
    text = tables({"machine": "a machine", "rows": results})
    assert "machine a machine" in text
    assert "| obstore: epoch / from local disk | 1.15 | <= 1.1 | NO |" in text


def test_a_line_is_shared(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(1000))
    line = Line(LocalStorage(tmp_path), bytes_per_second=10_000)
    begin = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        buffers = [bytearray(1000) for _ in range(3)]
        item = ByteRange(0, 1000)
        list(pool.map(lambda b: line.read_ranges("data", [item], [memoryview(b)]), buffers))
    assert time.monotonic() - begin >= 0.3


@pytest.mark.service
def test_rows_run_and_are_reported(tmp_path: Path) -> None:
    need_azurite()
    need_mount()
    rng = np.random.default_rng(0)
    with seqrecord.SeqRecordWriter(tmp_path / "made", record_bytes=1_000_000) as writer:
        for number in range(2):
            with writer.episode(f"episode {number}") as episode:
                for _ in range(40):
                    episode.append({"image": rng.integers(0, 255, (64, 64, 3), np.uint8)})
    command = [sys.executable, "-m", "benchmarks.tartanair.cloud", str(tmp_path)]
    command += ["--records", "made", "--repeats", "1", "--index-frames", "100000", "--rows"]
    done = subprocess.run([*command, *ROWS_RUN], check=True, stdout=subprocess.PIPE, text=True)
    document = json.loads((tmp_path / "cloud.json").read_text())
    assert list(document["rows"]) == ROWS_RUN
    last = {name: runs[-1] for name, runs in document["rows"].items()}
    bytes_of = {name: run["bytes"] for name, run in last.items() if "bytes" in run}
    assert bytes_of["mount"] == bytes_of["local"] == bytes_of["far-obstore"]
    assert 0.9 < bytes_of["raw-obstore"] / bytes_of["local"] < 1.2
    assert last["count-obstore"]["counted"] > 2
    assert last["far-obstore"]["seconds"] > last["local"]["seconds"]
    assert last["open-obstore"]["frames"] == 102_400
    assert "mount: epoch / from local disk" in done.stdout
    assert not (tmp_path / "services").exists()
    assert not (tmp_path / "cloud-places.json").exists()
