"""The object store benchmark, on very little data; its figures mean nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest

import seqrecord
from benchmarks.tartanair.cloud import figures, page
from benchmarks.tartanair.cloud_line import Line
from benchmarks.tartanair.cloud_rows import epoch
from benchmarks.tartanair.cloud_services import READERS, SERVICES, make_index
from tests.kit.datasets import write_dataset
from tests.kit.services import need_azurite, need_mount
from tests.kit.services.web_server import WebFolder


def test_generated_index_opens(tmp_path: Path) -> None:
    make_index(tmp_path, 10_000)
    dataset = seqrecord.open(tmp_path)
    assert dataset.num_frames == 10_240
    assert list(dataset.features) == list("abcde")


def runs(**values: list[float]) -> list[dict[str, float]]:
    rows = zip(*values.values(), strict=True)
    return [{"others": 0.0} | dict(zip(values, row, strict=True)) for row in rows]


RESULTS = {
    "seqrecord/local/epoch": runs(seconds=[9.0, 10.0, 30.0]),
    "seqrecord/moto/epoch": runs(seconds=[10.0, 11.5, 12.0], first_batch_seconds=[0.5, 0.9, 2.0]),
    "seqrecord/moto/narrow": runs(bytes_per_second=[96.0]),
    "client/moto/narrow": runs(bytes_per_second=[100.0]),
    "seqrecord/moto/count": runs(counted=[50.0], bytes=[float(1 << 29)]),
    "seqrecord/moto/open": runs(seconds=[1.5], peak_memory_bytes=[250e6], others=[0.07]),
}


def test_figures_are_ratios_of_medians_of_rows() -> None:
    found = {
        figure.name: (figure.values["moto"], figure.is_reached("moto"))
        for figure in figures(RESULTS)
    }
    assert found == {
        "behind 1 Gbit/s: bytes/s of the loader / of the client alone": (0.96, True),
        "epoch / epoch from local disk": (1.15, False),
        "first batch, s": (0.9, True),
        "requests / GiB": (100.0, True),
        "large index opened, s": (1.5, True),
        "large index opened, peak MB": (250.0, False),
    }


def test_late_first_batches_have_a_reason() -> None:
    settings: dict[str, Any] = {"clip_len": 16, "batch_size": 4, "memory_limit": "2GiB"}
    settings |= {"consumer_seconds": 0.05, "frames": 640, "index_frames": 1000}
    settings |= {"write_frames": {"raw": 1}, "cores": {"rows": 1, "services": 1}}
    settings |= {"services": {"azurite": "3", "moto": "5"}}
    first: dict[str, Any] = {"first_batch_bytes": 300e6, "opening_seconds": 0.25, "others": 0.0}
    rows = {
        "seqrecord/mount/epoch": [{"first_batch_seconds": 1.0004, **first}],
        "seqrecord/mount/stream": [{"bytes_per_second": 400e6}],
        "seqrecord/adlfs/epoch": [{"first_batch_seconds": 0.9996, **first}],
        "seqrecord/adlfs/stream": [{"bytes_per_second": 400e6}],
    }
    document: dict[str, Any] = {"settings": settings, "rows": rows, "commit": "abc"}
    text = page(document | {"machine": "a machine", "minutes": {"rows": 1.0}, "method": 2})
    first_line = next(line for line in text.splitlines() if line.startswith("| first batch, s"))
    assert first_line == "| first batch, s | <= 1 | **1.000** | 1.000 |"
    reason = "Azurite by rclone's mount: 0.25 s to open, 300 MB, which take 0.75 s at the rate of"
    assert reason in text
    assert "Azurite by adlfs: 0.25 s" not in text


def test_the_measured_epoch_reads_all_frames(tmp_path: Path) -> None:
    """Although all fit into memory."""
    write_dataset(tmp_path / "records", {"a": 30, "b": 20})
    settings: dict[str, Any] = {"clip_len": 4, "batch_size": 2, "memory_limit": "1GiB"}
    row = epoch(str(tmp_path / "records"), None, **settings)
    assert row["frames"] == "decoded once an epoch"
    assert row["bytes"] > 0
    assert row["cpu_seconds"] <= row["num_cores"] * row["seconds"] + 0.1


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[WebFolder]:
    """A web server with a file of 1 MB and range requests."""
    (tmp_path / "data").write_bytes(bytes(range(250)) * 4000)
    with WebFolder(tmp_path) as server:
        yield server


def fetch(host: str, count: int = 1) -> float:
    """Seconds to download the file `count` times in parallel."""

    def one(_: int) -> None:
        with urlopen(f"http://{host}/data") as answer:
            assert answer.read() == bytes(range(250)) * 4000

    begin = time.monotonic()
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(one, range(count)))
    return time.monotonic() - begin


def test_line_delays_and_limits_rates(folder: WebFolder) -> None:
    """Forwards bytes with a delay, at a rate shared by connections or per connection."""
    sent = np.zeros(1, np.int64)
    with Line(folder.host, counter=sent) as line:
        fetch(line.host, 4)
    assert 4_000_000 < sent[0] < 4_010_000
    with Line(folder.host, seconds_away=0.2) as line:
        assert fetch(line.host) >= 0.4  # the connection, then the answer
    with Line(folder.host, bytes_per_second=5e6) as line:
        assert fetch(line.host, 3) >= 0.6
    with Line(folder.host, seconds_away=0.5, connection_bytes_per_second=1.0) as line:
        # One piece of 256 KiB is in flight at a time; each of four takes a quarter of a second.
        assert fetch(line.host) >= 0.5 + 0.5 + 3 * 0.25


@pytest.mark.service
@pytest.mark.timeout(400)
def test_rows_run_and_are_reported(tmp_path: Path) -> None:
    need_azurite()
    need_mount()
    command = [sys.executable, "-m", "benchmarks.tartanair.cloud", str(tmp_path / "bench")]
    command += ["--frames", "80", "--repeats", "1", "--index-frames", "100000"]
    command += ["--write-frames", "8", "--draft", "--to", str(tmp_path / "published"), "--rows"]
    chosen = ["seqrecord/*/epoch", "seqrecord/moto/count", "client/moto/stream"]
    chosen += ["seqrecord/adlfs/count", "seqrecord/blobfile/open", "seqrecord/azurite/write-raw"]
    done = subprocess.run([*command, *chosen], check=True, stdout=subprocess.PIPE, text=True)
    document = json.loads((tmp_path / "published" / "cloud.json").read_text())
    last = {name: runs[-1] for name, runs in document["rows"].items()}
    assert not [name for name, run in last.items() if "error" in run]
    places = ("local", *SERVICES, *READERS)
    epochs = [last[f"seqrecord/{place}/epoch"] for place in places]
    assert len({row["bytes"] for row in epochs}) == 1
    for row in epochs:
        assert 0 < row["first_batch_bytes"] <= row["bytes"]
        assert 0 < row["opening_seconds"] < row["first_batch_seconds"]
    assert last["client/moto/stream"]["bytes"] > 0
    assert min(last[f"seqrecord/{place}/count"]["counted"] for place in ("moto", "adlfs")) > 2
    assert last["seqrecord/blobfile/open"]["frames"] == 102_400
    assert last["seqrecord/azurite/write-raw"]["bytes_per_second"] > 0
    assert done.stdout == (tmp_path / "published" / "CLOUD.md").read_text() + "\n"
    assert "| epoch / epoch from local disk | <= 1.1 |" in done.stdout
    assert not (tmp_path / "bench" / "services").exists()
