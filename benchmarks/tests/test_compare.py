"""The comparison's harness: its grid, its rows in processes of their own, what it writes."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from benchmarks.tartanair.compare.cell import Cell
from benchmarks.tartanair.compare.children import run_task
from benchmarks.tartanair.compare.grid import grid, product_grid, refuses
from benchmarks.tartanair.compare.limits import bound, copy_rate
from benchmarks.tartanair.compare.measure import Times, figures, measure
from benchmarks.tartanair.compare.meters import memory, usage
from benchmarks.tartanair.compare.published import published_grid
from benchmarks.tartanair.compare.recordings import Clip
from benchmarks.tartanair.compare.report import about, describe, medians, write_all, wrong_table
from benchmarks.tartanair.compare.row import Task
from benchmarks.tartanair.compare.tree import Tree
from benchmarks.tartanair.compare.workloads import AUDIO, RGBD, WORKLOADS, Workload
from benchmarks.tartanair.generate import generate
from benchmarks.tartanair.loaders.base import USUAL, Batch, Loader, Settings
from benchmarks.tartanair.loaders.registry import all_loaders
from benchmarks.tests.compare_rows import row
from tests.services.process import wait_for

BASE = Settings(clip_len=3, batch_size=2)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    generate(folder / "tree", episodes=[6, 5], height=16, width=24)
    return folder


@pytest.fixture(scope="module")
def tree(work: Path) -> Tree:
    return Tree.open(work / "tree", BASE.features, work)


def task(tree: Tree, work: Path, do: str = "measure", **changes: Any) -> Task:
    made = Task(
        do=do,
        loader="memmap",
        settings=BASE,
        root=str(tree.root),
        features=tuple(tree.features),
        work=str(work),
    )
    return replace(made, **changes)


def test_a_tree_is_listed_once(tree: Tree, work: Path) -> None:
    assert [episode.num_frames for episode in tree.episodes] == [5, 4]  # the last has no flow
    assert Tree.open(tree.root, BASE.features, work) == tree
    assert [(c.start, c.stop, c.row) for c in tree.clips(3, 2)] == [(0, 3, 0), (2, 5, 2), (0, 3, 5)]
    assert sum(1 for _ in tree.rows()) == tree.num_frames == 9


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda workload: workload.name)
def test_the_grid_has_every_loader_that_can_run_it(workload: Workload) -> None:
    loaders, base = workload.loaders(), workload.base
    cells = grid(loaders, base)
    assert len({cell.key for cell in cells}) == len(cells)
    assert {cell.loader for cell in cells} == set(loaders)
    for cell in cells:
        assert loaders[cell.loader].refuses(cell.settings) is None, cell.title
    for loader in loaders.values():
        shuffled = replace(base, shuffle=loader.shuffles[-1])
        own = {cell.settings for cell in cells if cell.loader == loader.name}
        every = {
            shuffled,
            replace(shuffled, workers=2),
            replace(shuffled, storage="cold"),
            replace(shuffled, stride=base.clip_len),
        }
        if loader.precut:
            assert own == {replace(shuffled, stride=base.clip_len)}
        elif loader.only_features:
            assert own == {replace(shuffled, features=tuple(loader.only_features))}
        else:
            assert every <= own
    ours = [cell.settings for cell in cells if cell.loader == "seqrecord"]
    assert {s.codec for s in ours} == {"raw", "fast", "balanced", "small"}
    storages = {"local", "cold", "mount", "adlfs", "obstore", "blobfile"}
    assert {s.storage for s in ours} == storages


def test_of_tartanair_some_run_elsewhere_too() -> None:
    cells = grid(all_loaders(), USUAL)
    assert set(published_grid(all_loaders(), USUAL)) <= set(cells)
    for storage, names in {"mount": ("original", "webdataset"), "own": ("litdata",)}.items():
        assert {cell.loader for cell in cells if cell.settings.storage == storage} >= {*names}
    one = {cell.loader for cell in cells if cell.settings.features == ("image_left",)}
    assert one == {"video", "video-torchcodec", "original", "seqrecord", "memmap"}
    # Another workload has neither.
    for workload in (AUDIO, RGBD):
        cells = grid(workload.loaders(), workload.base)
        assert {cell.loader for cell in cells if cell.settings.storage == "mount"} == {"seqrecord"}
        assert {cell.settings.workers for cell in cells} == {0, 2}


def test_a_product_of_axes() -> None:
    cells = product_grid(["memmap"], BASE, {"workers": (0, 2), "storage": ("local", "cold")})
    assert [(cell.settings.workers, cell.settings.storage) for cell in cells] == [
        (0, "local"),
        (0, "cold"),
        (2, "local"),
        (2, "cold"),
    ]


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (Cell("webdataset", replace(BASE, shuffle="full")), "cannot shuffle: full"),
        (Cell("memmap", replace(BASE, storage="adlfs")), "cannot read from adlfs"),
        (Cell("memmap", replace(BASE, codec="small")), "has no codec small"),
        (Cell("memmap", replace(BASE, clip_len=99)), "no episode has 99 frames"),
        (Cell("memmap", replace(BASE, batch_size=10**9)), "batches ahead take"),
    ],
)
def test_what_a_loader_cannot_do_is_said(tree: Tree, cell: Cell, reason: str) -> None:
    loader = replace(all_loaders()[cell.loader], needs=())
    assert (refuses(cell, loader, tree) or "").startswith(reason)


def test_a_package_that_is_not_there(tree: Tree) -> None:
    loader = replace(all_loaders()["memmap"], needs=("no_such_package.at_all",))
    said = "no package no_such_package.at_all: make install-bench"
    assert refuses(Cell("memmap", BASE), loader, tree) == said


def test_a_row(tree: Tree, work: Path) -> None:
    assert "error" not in run_task(task(tree, work, "prepare"), 60)
    result = run_task(task(tree, work), 60)
    assert result["problems"] == []
    assert result["clips"] == len(tree.clips(3, 1)) == 5
    assert len(result["epochs"]) == 2
    assert len(result["steps"]) == 3
    assert result["peak_memory_bytes"] > 10e6
    assert result["first_batch_seconds"] > 0


def test_a_row_that_hangs_is_stopped_with_its_children(
    tree: Tree, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = work / "pids"
    code = f"""
import os, time
if child := os.fork():
    open({str(pids)!r} + ".new", "w").write(str(child))
    os.rename({str(pids)!r} + ".new", {str(pids)!r})
time.sleep(100)
"""
    started = subprocess.Popen

    def popen(_command: list[str], **settings: Any) -> Any:
        process = started([sys.executable, "-c", code], **settings)
        wait_for(pids.exists)  # its second begins when it has a child
        return process

    monkeypatch.setattr(subprocess, "Popen", popen)
    assert run_task(task(tree, work), 1) == {"error": "not done after 1 s"}
    deadline = time.monotonic() + 30
    with contextlib.suppress(psutil.NoSuchProcess):
        child = psutil.Process(int(pids.read_text()))
        while child.status() != psutil.STATUS_ZOMBIE:  # which nobody has waited for yet
            assert time.monotonic() < deadline, "it is still there"
            time.sleep(0.01)


def test_a_row_that_fails_says_why(tree: Tree, work: Path) -> None:
    result = run_task(task(tree, work, loader="hdf5x"), 60)
    assert result == {"error": "KeyError: 'hdf5x'"}


def test_a_task_keeps_its_types(tree: Tree, work: Path) -> None:
    sent = task(tree, work, options={"backend": "adlfs"})
    assert Task.loads(sent.dumps()) == sent


def test_what_is_scaled_begins_with_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]  # which stands still but for the loader, however busy the machine is

    class Slow:
        """Long to begin, as loaders with a buffer to fill are, and then a batch every 0.05 s."""

        def __iter__(self) -> Iterator[Batch]:
            for number in range(100):
                clock[0] += 0.05 if number else 0.5
                yield {"x": torch.zeros(1, 1), "episode": ["a"], "start": torch.tensor([number])}

    clips = [Clip("a", start, start + 1, start) for start in range(100)]
    timer = SimpleNamespace(perf_counter=lambda: clock[0])
    monkeypatch.setattr(sys.modules[measure.__module__], "time", timer)
    row = measure(Slow(), clips, epochs=1, max_seconds=0.32, began=0.0)
    assert row["complete"] == 0
    assert row["clips"] == 8  # the first, and seven until 0.35 s have passed
    assert row["clips_per_second"] == pytest.approx(100 / (0.5 + 99 * 0.05))


def test_meters() -> None:
    before = usage(os.getpid())
    block = np.ones(64 << 20, np.uint8)
    assert memory(os.getpid()).own > block.nbytes
    Path(__file__).read_bytes()
    taken = usage(os.getpid()).since(before)
    assert taken["bytes_requested"] >= Path(__file__).stat().st_size
    assert taken["cpu_seconds"] >= 0


def test_figures_of_half_an_epoch() -> None:
    times = Times([1.0, 0.5], [0.3, 0.3], [2, 2], [], complete=False, nbytes=400)
    found = figures(times, {"cpu_seconds": 3.0}, 8)
    assert found["epoch_seconds"] == pytest.approx(1.3 + 0.8 * 6 / 2)
    assert found["clips_per_second"] == pytest.approx(8 / 3.7)
    assert found["bytes_per_second"] == pytest.approx(800 / 3.7)
    assert found["cpu_seconds"] == 6
    assert found["busy"] == pytest.approx(0.6 / 2.1)


def test_the_limit_that_binds() -> None:
    result = {"epoch_seconds": 10.0, "bytes_per_second": 1e9}
    limits = {"copy": 10e9, "disk": 1e9}
    assert bound(result, limits, "local", 5e9) == ("copy", 0.1)
    assert bound(result, limits, "cold", 5e9) == ("disk", 0.5)


def test_copy_rate() -> None:
    assert copy_rate(1 << 20, threads=1, seconds=0.05, source_nbytes=1 << 24) > 1e8


def test_medians_leave_out_what_failed() -> None:
    cell = Cell("memmap", BASE)
    rows = [row(cell, 1), row(cell, 5), {**describe(cell), "error": "it broke"}, row(cell, 3)]
    [merged] = medians(rows)
    assert (merged["clips_per_second"], merged["repeats"]) == (3, 3)


def test_what_is_written(tmp_path: Path) -> None:
    fast, slow = Cell("memmap", BASE), Cell("hdf5", BASE)
    rows = [row(fast, 4), {**describe(slow), "skipped": "no package h5py"}]
    said = {"machine": "a machine", "episodes": [5, 4]}
    text = write_all(tmp_path, rows, {"copy": 10e9, "disk": None}, said)
    assert "Machine: a machine" in text
    assert text == (tmp_path / "results.md").read_text()
    assert "| memmap | clip_len=3 batch_size=2 | 4.0 |" in text
    assert "| hdf5 | no package h5py | 1 |" in text
    saved = json.loads((tmp_path / "results.json").read_text())
    assert len(saved["rows"]) == 2
    assert saved["episodes"] == [5, 4]
    assert len(saved["rows"][0]["commit"]) >= 7
    with (tmp_path / "results.csv").open() as file:
        read = list(csv.DictReader(file))
    assert [(r["loader"], r["clips_per_second"]) for r in read] == [("memmap", "4"), ("hdf5", "")]


def test_what_is_said_of_a_run(tree: Tree) -> None:
    said = about(tree, 10.0)
    assert said["episodes"] == [5, 4]
    assert said["frame_bytes"] == 16 * 24 * (3 + 4 + 8 + 1 + 1)
    assert said["features"] == list(BASE.features)
    assert said["max_seconds"] == 10.0


def test_wrong_clips_are_shown() -> None:
    wrong = row(Cell("memmap", BASE), 4, problems=["1 clips lacking"], bound="copy", share=0.5)
    assert "| memmap clip_len=3 batch_size=2 | 1 clips lacking |" in wrong_table([wrong])


def test_resume_runs_only_what_is_left(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.tartanair.compare import __main__ as command

    ran: list[str] = []
    broken = {"hdf5"}

    def run(what: Task, _limit: float) -> dict[str, Any]:
        if what.do == "prepare":
            return {}
        ran.append(what.loader)
        if what.loader in broken:
            return {"error": "it broke"}
        return row(Cell(what.loader, what.settings), 2)

    monkeypatch.setattr(Loader, "missing", lambda _loader: None)
    monkeypatch.setattr(command, "run_task", run)
    monkeypatch.setattr(command, "copy_rate", lambda *_args, **_named: 1e9)
    arguments = [str(work), "--clip-len", "3", "--loaders"]
    command.main([*arguments, "memmap", "hdf5"])
    broken.clear()
    command.main([*arguments, "memmap", "hdf5", "original", "--resume"])
    assert ran == ["memmap", "hdf5", "hdf5", "original"]
    assert "| original | clip_len=3 | 2.0 |" in capsys.readouterr().out
    command.main([*arguments, "memmap", "lmdb", "--report"])
    assert len(ran) == 4
    said = capsys.readouterr().out
    assert "| memmap | clip_len=3 | 2.0 |" in said
    assert "| lmdb | not run yet | 1 |" in said
    command.main([*arguments, "memmap", "--resume"])
    assert len(ran) == 4  # nor has it lost anything
