"""Commands of benchmarks: row processes, meters, kept results, and published pages."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import rgbd
from benchmarks.lerobot import __main__ as lerobot
from benchmarks.lerobot import in_place
from benchmarks.robots import SIZES, VECTORS
from benchmarks.robots import measure as measure_robots
from benchmarks.robots import write as write_robot
from benchmarks.suite import Suite, make_parser
from benchmarks.tartanair import cloud, order_report
from benchmarks.tartanair.compare import __main__ as compare
from benchmarks.tartanair.compare import results
from benchmarks.tartanair.compare.grid import grid
from benchmarks.tartanair.compare.recordings import Clip
from benchmarks.tartanair.compare.row import measure
from benchmarks.tartanair.compare.workloads import AUDIO, RGBD, TARTANAIR, WORKLOADS
from benchmarks.tartanair.generate import generate
from benchmarks.tartanair.loaders.base import USUAL
from benchmarks.timing import MemoryWatch, run_job, usage
from benchmarks.training import __main__ as training
from benchmarks.training import decoded_once

ROOT = Path(__file__).parents[2]
ROW = "benchmarks.tartanair.compare.row"
PAGES: dict[str, tuple[Callable[[Any], str], str]] = {
    "tartanair/RESULTS.md": (results.page, "results.json"),
    "tartanair/CLOUD.md": (cloud.page, "cloud.json"),
    "training/RESULTS.md": (training.page, "results.json"),
    "training/DECODED_ONCE.md": (decoded_once.page, "decoded_once.json"),
    "lerobot/RESULTS.md": (lerobot.page, "results.json"),
    "lerobot/IN_PLACE.md": (in_place.page, "in_place.json"),
    "tartanair/order_training.md": (order_report.page, "order_training.json"),
}


def test_published_pages_match_their_results() -> None:
    for name, (page, file) in PAGES.items():
        path = ROOT / "benchmarks" / name
        assert path.read_text() == page(json.loads(path.with_name(file).read_text())), name
    document = json.loads((ROOT / "benchmarks" / "training" / "decoded_once.json").read_text())
    assert decoded_once.headline(document) in (ROOT / "README.md").read_text()


SYSTEMS = {
    "The published table, and ours beside it": [
        "**SeqRecord (iter)**",
        "**SeqRecord (map)**",
        "**original loader**",
        "**ffcv, single frames**",
        "**ffcv, clips of 16**",
        "**SeqRecord (iter), Azure through blobfile**",
        "`microsoft-seqrecord`, the published code's last version",
        "`seqrecord`, with the same settings",
        "`seqrecord`, with its defaults",
        "`seqrecord-map`",
        "`original`",
        "`ffcv`",
        "`ffcv`, clips as indices of frames",
    ],
    "All loaders": [
        *("seqrecord", "seqrecord-map", "seqrecord-chain", "microsoft-seqrecord", "original"),
        *("ffcv", "spdl", "webdataset", "dali-files", "dali-source", "tensordict", "lmdb", "hdf5"),
        *("memmap", "zarr", "zarr-cached", "mosaic", "litdata", "grain"),
    ],
    "Storages, and video": [
        *("mount", "adlfs", "obstore", "blobfile", "video, RGB alone", "seqrecord, RGB alone"),
    ],
    "Audio": [
        "DataLoader, torchaudio",
        "DataLoader, soundfile",
        "DALI, WAV files",
        "DALI, numbered NumPy files",
        "DALI, external source",
        "NumPy memmap",
        "TensorDict memmap",
        "WebDataset, NumPy files",
        "WebDataset, read by DALI",
        "HDF5",
        "S3-compatible store, WebDataset",
        "S3-compatible store, seqrecord",
        "seqrecord",
    ],
    "RGB-D": [
        *("original files", "LRU cache", "memmap", "LMDB", "WebDataset"),
        *("seqrecord", "seqrecord, encoded", "seqrecord, per clip"),
    ],
}
"""Every system of the published comparisons, by heading of tartanair/RESULTS.md."""


@pytest.mark.parametrize("heading", SYSTEMS)
def test_every_system_keeps_its_row(heading: str) -> None:
    """With a figure, or with the reason that there is none."""
    text = (ROOT / "benchmarks" / "tartanair" / "RESULTS.md").read_text()
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    tables = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    assert "not measured" not in section
    for system in SYSTEMS[heading]:
        rows = [cells for cells in tables if cells[0] == system]
        assert rows, f"{system} has no row"
        for cells in rows:
            figures = [cell for cell in cells[1:] if re.fullmatch(r"\**\d[\d.,]*\**", cell)]
            reasons = [cell for cell in cells[1:] if len(cell) > len("not run: ")]
            assert figures or reasons, cells


def test_published_rows_are_of_one_commit() -> None:
    documents = json.loads((ROOT / "benchmarks" / "tartanair" / "results.json").read_text())
    assert documents.keys() == WORKLOADS.keys()
    rows = [run for each in documents.values() for runs in each["rows"].values() for run in runs]
    (commit,) = {run["commit"] for run in rows if "commit" in run}
    assert not commit.endswith("-dirty")


def test_timeout_and_error_of_a_process_are_reported() -> None:
    job = {"do": "measure", "workload": "", "loader": "x", "settings": {}, "root": ""}
    assert run_job(ROW, job, 0.05) == {"error": "not done after 0 s"}
    error = run_job(ROW, job, 60)["error"]
    assert error.startswith("TypeError: run() missing 1 required positional argument: 'work'")


def test_meters() -> None:
    watch, before = MemoryWatch(os.getpid()), usage()
    block = np.ones(64 << 20, np.uint8)
    watch.look()
    assert watch.peak > block.nbytes
    Path(__file__).read_bytes()
    assert usage().since(before)["bytes_requested"] >= Path(__file__).stat().st_size


def suite_in(folder: Path, *arguments: str, batch: int = 8) -> Suite:
    options = make_parser("A benchmark.").parse_args([str(folder), *arguments])
    return Suite(options, {"batch": batch})


def test_results_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken: list[str] = []

    def take(name: str) -> dict[str, Any]:
        taken.append(name)
        return {"number": len(taken)}

    jobs = {name: partial(take, name) for name in ("a/1", "a/2", "b/1")}
    suite = suite_in(tmp_path, "--rows", "a/*", "--repeats", "2")
    suite.take_turns(suite.wanted(jobs))
    assert taken == ["a/1", "a/2", "a/1", "a/2"]
    suite = suite_in(tmp_path, "--resume", "--repeats", "2")
    suite.take_turns(suite.wanted(jobs))
    assert taken[4:] == ["b/1", "b/1"]
    suite = suite_in(tmp_path, "--keep", "--rows", "b/*", "--repeats", "1", "--to", str(tmp_path))
    suite.take_turns(suite.wanted(jobs))
    assert {name: [run["number"] for run in runs] for name, runs in suite.rows.items()} == {
        "a/1": [1, 3],
        "a/2": [2, 4],
        "b/1": [7],
    }
    suite_in(tmp_path, "--report").publish(lambda document: str(list(document["rows"])))
    assert (tmp_path / "RESULTS.md").read_text() == "['a/1', 'a/2', 'b/1']"
    with pytest.raises(SystemExit, match=r"settings were \{'batch': 8\} and are \{'batch': 2\}"):
        suite_in(tmp_path, "--resume", batch=2)


def test_grid_has_supported_settings_of_every_loader() -> None:
    for workload in WORKLOADS.values():
        cells = grid(workload)
        assert len({cell.title(workload.base) for cell in cells}) == len(cells)
        assert {cell.loader for cell in cells} == set(workload.loaders)
        for cell in cells:
            assert workload.loaders[cell.loader].refuses(cell.settings) == ""
    memmap = TARTANAIR.loaders["memmap"]
    assert memmap.refuses(replace(USUAL, codec="small")) == "has no codec small"
    assert memmap.refuses(replace(USUAL, shuffle="buffer")) == "cannot shuffle: buffer"
    missing = replace(memmap, needs=("no_such_package.at_all",)).missing()
    assert missing == "no package no_such_package.at_all: make install-bench"


def test_scaled_time_starts_at_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]  # advanced by the loader only

    class Slow:
        """Slow to start, like loaders that fill a buffer, then a batch every 0.05 s."""

        def __iter__(self) -> Iterator[dict[str, Any]]:
            for number in range(100):
                clock[0] += 0.05 if number else 0.5
                yield {"x": torch.zeros(1, 1), "episode": ["a"], "start": torch.tensor([number])}

    clips = [Clip("a", start, start + 1, start) for start in range(100)]
    timer = SimpleNamespace(perf_counter=lambda: clock[0])
    monkeypatch.setattr(sys.modules[measure.__module__], "time", timer)
    row = measure(Slow(), clips, epochs=1, max_seconds=0.32, began=0.0)
    assert row["complete"] == 0
    assert row["clips"] == 8  # the first, and seven in the next 0.35 s
    assert row["clips_per_second"] == pytest.approx(100 / (0.5 + 99 * 0.05))


@pytest.mark.timeout(600)  # five processes that import torch, two of them Lightning
def test_comparison_is_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows, their table, and their published page."""
    folder, to = tmp_path / "run", tmp_path / "to"
    to.mkdir()
    generate(folder / "tree", episodes=[20, 20], height=16, width=24)
    rgbd.generate(folder / RGBD.name / "tree", [20, 20], height=16, width=24)
    AUDIO.generate(folder / AUDIO.name / "tree", [8, 8])
    rows = ["memmap shuffle=full", "original *workers=2", "seqrecord shuffle=buffer storage=cold"]
    arguments = [str(folder), "--max-seconds", "0.1", "--workload"]
    compare.main([*arguments, "tartanair", "--rows", *rows])
    assert "| memmap | shuffle=full | " in capsys.readouterr().out
    compare.main([*arguments, "audio", "rgbd", "--rows", rows[0]])
    document = json.loads((folder / "results.json").read_text())
    measured = results.measured(document)
    assert {row["title"] for row in measured} == {
        "memmap shuffle=full",
        "original shuffle=full workers=2",
        "seqrecord shuffle=buffer storage=cold",
    }
    assert [row["problems"] for row in measured] == [[], [], []]
    assert [row["clips"] for row in measured] == [8] * 3  # a whole epoch: the last frame lacks flow
    text = results.write(folder, to).read_text()
    assert "Too few loaders ran to compare them." in text
    assert "38 rendered frames with image_left, " in text
    assert "| memmap | shuffle=full | " in text.split("<details>")[0]
    assert "| seqrecord | shuffle=buffer storage=cold | " in text.split("<details>")[1]
    assert re.search(r"\n\| NumPy memmap \| \d+\.\d \| .*%", text)  # trained by Lightning
    assert re.search(r"\n\| memmap \| \d+\.\d \| .*%.*\| raw frames \|", text)
    assert "NumPy memmap" in (to / "audio.svg").read_text()
    published = json.loads((to / "results.json").read_text())
    assert published[TARTANAIR.name] == document
    assert published.keys() == WORKLOADS.keys()


def test_summary_and_reasons() -> None:
    def row_of(loader: str, rate: float, shuffle: str) -> dict[str, Any]:
        figures = dict.fromkeys(("bytes_per_second", "first_batch_seconds", "cpu_seconds"), 1.0)
        run = {"loader": loader, "settings": asdict(replace(USUAL, shuffle=shuffle)), **figures}
        run |= {"clips_per_second": rate, "epoch_seconds": 1.0, "complete": 1.0, "busy": 0.1}
        run |= {"peak_memory_bytes": 1e8, "epochs": [{}], "problems": [], "commit": "abc"}
        return {f"{loader} {rate}": [run]}

    rows = row_of("seqrecord", 123.0, "buffer") | row_of("webdataset", 45.0, "buffer")
    rows |= row_of("original", 5.3, "full") | {
        "ffcv shuffle=full": [{"skipped": "no package ffcv"}]
    }
    settings = {"episodes": [100, 120], "frame_bytes": 5_000_000, "memory_bytes": 25e9}
    settings |= {"cores": 2, "max_seconds": 10.0, "features": ["image_left"]}
    limits = {"copy": 10e9, "disk": None}
    document = {"machine": "a machine", "limits": limits, "settings": settings, "rows": rows}
    text = results.page({"tartanair": document})
    assert "`seqrecord` gives 123 clips a second of raw records, 0% of the machine's copy" in text
    assert "`webdataset` with 45, the dataset's own loader gives 5.3." in text
    assert "| ffcv | no package ffcv | 1 |" in text
    assert "220 rendered frames with image_left, in 2 episodes of 100 to 120 frames" in text


def test_robots_are_measured_on_both_sides(tmp_path: Path) -> None:
    for name, size in SIZES.items():
        write_robot(tmp_path / name, size, episodes=2, length=40)
    found = measure_robots(tmp_path, [*VECTORS], repeats=1)
    assert found.keys() == {"arguments", "clip_transform"}
    assert all(cpu > 0 and wall > 0 for cpu, wall in found.values())
