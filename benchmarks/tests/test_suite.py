"""Commands of benchmarks: row processes, meters, kept results, and published pages."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
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
from benchmarks.checks import faults
from benchmarks.lerobot import __main__ as lerobot
from benchmarks.pages import PAGES, Page, changes
from benchmarks.prose import replaced
from benchmarks.robots import SIZES, VECTORS, sentence
from benchmarks.robots import measure as measure_robots
from benchmarks.robots import write as write_robot
from benchmarks.suite import Suite, make_parser
from benchmarks.tartanair.compare import __main__ as compare
from benchmarks.tartanair.compare import results
from benchmarks.tartanair.compare.grid import Cell, Choice, others, sections
from benchmarks.tartanair.compare.recordings import Clip
from benchmarks.tartanair.compare.row import measure
from benchmarks.tartanair.compare.workloads import AUDIO, RGBD, TARTANAIR, WORKLOADS, Workload
from benchmarks.tartanair.generate import generate
from benchmarks.tartanair.loaders.base import USUAL
from benchmarks.timing import (
    METHOD,
    REPEATS,
    MemoryWatch,
    digests,
    relation,
    run_job,
    source_of,
    usage,
)
from benchmarks.training import __main__ as training

ROOT = Path(__file__).parents[2]
ROW = "benchmarks.tartanair.compare.row"


@pytest.mark.page
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.file)
def test_published_pages_match_their_results(page: Page) -> None:
    assert page.path.read_text() == page.render()


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
        *("mount", "adlfs", "our client", "blobfile", "video, RGB alone", "seqrecord, RGB alone"),
    ],
    "Audio": [
        "DataLoader, torchaudio",
        "DataLoader, soundfile",
        "DALI, WAV files",
        "DALI, numbered NumPy files",
        "DALI, external source",
        "by hand",
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
        *("original files", "by hand", "LRU cache", "memmap", "LMDB", "WebDataset"),
        *("seqrecord", "seqrecord, encoded", "seqrecord, per clip"),
    ],
}
"""Every system of the published comparisons, by heading of tartanair/RESULTS.md."""


@pytest.mark.page
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


@pytest.mark.page
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.file)
def test_published_rows_pass_the_checks(page: Page) -> None:
    for document in page.documents():
        assert faults(document) == []
        assert not page.is_timed or document["repeats"] >= REPEATS


DEFAULTS: dict[str, Callable[[list[str]], Any]] = {
    "tartanair/RESULTS.md": compare.parse,
    "training/RESULTS.md": training.parse,
    "lerobot/RESULTS.md": lerobot.parse,
}


@pytest.mark.page
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.file)
def test_commands_measure_what_is_committed(page: Page) -> None:
    """The settings of published figures are the defaults of their command."""
    if page.file not in DEFAULTS:
        pytest.skip("without such settings")
    options = vars(DEFAULTS[page.file](["folder"]))
    for document in page.documents():
        settings = document["settings"] | {"repeats": document["repeats"]}
        shared = settings.keys() & options.keys() - {"workload"}  # a document is of one
        assert {name: settings[name] for name in shared} == {name: options[name] for name in shared}


def test_pages_whose_code_has_changed() -> None:
    page, old = PAGES[0], {"commit": "0" * 12, "rows": {}}
    assert changes(page, old) == "unknown: its commit is not in this clone"
    code = digests(page.code)
    assert changes(page, old | {"code": code}) == ""
    assert changes(page, old | {"code": code | {"seqrecord/loader": "x"}}) == "seqrecord/loader"
    for page in PAGES:
        assert all((ROOT / path).exists() for path in page.code)


def test_digests_follow_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.timing.ROOT", tmp_path)
    (tmp_path / "part" / "tests").mkdir(parents=True)
    file = tmp_path / "part" / "module.py"
    file.write_text("a = 1")
    first = digests(["part"])
    (tmp_path / "part" / "tests" / "test_module.py").write_text("")
    (tmp_path / "part" / "page.md").write_text("text")
    assert digests(["part"]) == first
    file.write_text("a = 2")
    assert digests(["part"]) != first


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


def test_grids_have_supported_settings_of_every_loader() -> None:
    for workload in WORKLOADS.values():
        tables = sections(workload)
        cells = dict.fromkeys(
            c for table in tables.values() for choice in table for c in choice.cells
        )
        assert len({cell.title(workload.base) for cell in cells}) == len(cells)
        assert {cell.loader for cell in cells} == set(workload.loaders)
        for cell in cells:
            assert workload.loaders[cell.loader].refuses(cell.settings) == ""
    for name in ("memmap", "lmdb", "hdf5", "litdata", "mosaic", "tensordict"):
        grid = TARTANAIR.loaders[name].grid
        assert any(cell.get("reused") and cell.get("threads") for cell in grid), name
        assert any(cell.get("workers") for cell in grid), name
    assert len({cell.get("threads") for cell in TARTANAIR.loaders["grain"].grid}) > 3
    memmap = TARTANAIR.loaders["memmap"]
    assert memmap.refuses(replace(USUAL, codec="small")) == "has no codec small"
    assert memmap.refuses(replace(USUAL, shuffle="buffer")) == "cannot shuffle: buffer"
    assert (
        TARTANAIR.loaders["grain"].refuses(replace(USUAL, reused=True)) == "makes new batches only"
    )
    missing = replace(memmap, needs=("no_such_package.at_all",)).missing()
    assert missing == "no package no_such_package.at_all: make install-bench"


def test_best_settings_are_measured_in_turn() -> None:
    choices = {choice.label: choice for choice in sections(TARTANAIR)["loaders"]}
    choice = choices["memmap"]
    titles = [cell.title(USUAL) for cell in choice.cells]
    rows: dict[str, list[dict[str, Any]]] = {
        f"try/{title}": [{"clips_per_second": rate}]
        for title, rate in zip(titles, (3.0, 9.0, 2.0), strict=False)
    }
    rows[f"try/{titles[3]}"] = [{"error": "did not run"}]
    best = compare.best_cells([choice, choices["hdf5"]], rows, TARTANAIR)
    assert best == {"memmap": choice.cells[1], "hdf5": choices["hdf5"].cells[0]}
    cold = [c.cells[0] for c in others(TARTANAIR, {"memmap": best["memmap"]})]
    assert cold == [Cell("memmap", replace(choice.cells[1].settings, storage="cold"))]


def test_times_of_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
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
    row = measure(Slow(), clips, epochs=2, began=-1.0)
    assert row["clips"] == row["batches"] == 100
    assert row["first_batch_seconds"] == pytest.approx(1.5)  # with a second of opening
    assert row["opening_seconds"] == 1.0
    assert row["clips_per_second"] == pytest.approx(100 / (0.5 + 99 * 0.05))
    assert row["problems"] == []
    assert row["cpu_seconds_per_batch"] == row["cpu_seconds"] / 100
    assert row["epochs"] == 2
    # A trial's epoch that is long enough is the last one.
    assert measure(Slow(), clips, epochs=2, began=0.0, enough=6.0)["epochs"] == 2
    trial = measure(Slow(), clips, epochs=2, began=0.0, enough=5.0)
    assert trial["epochs"] == 1
    assert trial["clips_per_second"] == trial["first_clips_per_second"]


def test_unpublishable_documents() -> None:
    def document(*runs: dict[str, Any], **changes: Any) -> dict[str, Any]:
        made = {"method": METHOD, "commit": "abc", "repeats": 2, "rows": {"a": [*runs]}}
        return made | changes

    good: dict[str, Any] = {"seconds": 2.0, "num_cores": 2, "cpu_seconds": 3.9, "share": 0.9}
    good["commit"] = "abc"
    short: dict[str, Any] = {"whole": False, "batches": 29}
    assert faults(document(good, good)) == []
    assert faults(document({"skipped": "no package"})) == []
    change: dict[str, Any]
    for change, fault in (
        ({"cpu_seconds": 5.0}, "a: 5.0 s of CPU in 4.0 s of all cores"),
        ({"share": 1.04}, "a: 1.04 of its ceiling"),
        (short, "a: a window of 29 batches"),
        ({"commit": "def"}, "rows of several commits: abc, def"),
    ):
        assert fault in faults(document(good | change, good | change)), fault
    assert faults(document(good)) == ["a: 1 of 2 repeats"]
    failed = {"error": "StorageError: …", "commit": "abc"}
    assert faults(document(good, failed)) == ["a: 1 of 2 repeats"]
    assert faults(document(method=1)) == ["measured by method 1, not 2"]
    dirty = document({"commit": "abc-dirty"}, {"commit": "abc-dirty"}, commit="abc-dirty")
    assert faults(dirty) == ["not one committed tree: abc-dirty"]


def test_failed_rows_are_run_once_and_again_by_resume(tmp_path: Path) -> None:
    calls: list[str] = []

    def fail(name: str) -> dict[str, Any]:
        calls.append(name)
        return {"error": "no memory"}

    jobs: dict[str, Any] = {"a": partial(fail, "a"), "b": "no package"}
    suite_in(tmp_path).take_turns(jobs, 3)
    assert calls == ["a"]
    suite = suite_in(tmp_path, "--resume")
    suite.take_turns({"c": dict}, 1)  # of another table
    assert suite.rows["a"][0]["error"] == "no memory"
    assert suite.rows["b"] == [{"skipped": "no package"}]
    suite.take_turns(jobs, 3)
    assert calls == ["a", "a"]
    assert len(suite.rows["a"]) == 1


def test_ceilings_alternate_with_rows(tmp_path: Path) -> None:
    calls: list[str] = []

    def ceiling() -> dict[str, float]:
        calls.append("ceiling")
        return {"copy": float(len(calls))}

    suite = suite_in(tmp_path, "--repeats", "2")

    def run(name: str) -> dict[str, Any]:
        calls.append(name)
        return {}

    suite.take_turns({name: partial(run, name) for name in "ab"}, ceiling=ceiling, part="table")
    assert calls == ["ceiling", "a", "ceiling", "b", "ceiling", "a", "ceiling", "b", "ceiling"]
    assert [run["ceiling"]["copy"] for run in suite.rows["a"]] == [3.0, 7.0]
    assert suite.document["minutes"].keys() == {"table"}


def test_results_of_other_commits_are_refused(tmp_path: Path) -> None:
    suite = suite_in(tmp_path)
    suite.document["commit"] = "another"
    suite.take("a", dict)
    with pytest.raises(SystemExit, match="results are of commit another, not of "):
        suite_in(tmp_path, "--resume")
    suite = suite_in(tmp_path / "new", "--to", str(tmp_path / "to"))
    suite.document["commit"] = "abc-dirty"
    with pytest.raises(SystemExit, match="not published: not one committed tree: abc-dirty"):
        suite.publish(str)
    assert not (tmp_path / "to").exists()


def test_source_of_frames() -> None:
    stats = {"frames_decoded": 9, "frames_from_cache": 0, "features_resident": ["image"]}
    assert source_of(stats, is_raw=False) == "decoded once an epoch"
    assert source_of(stats, is_raw=True) == "read once an epoch"
    assert source_of(stats | {"frames_decoded": 0}, is_raw=False) == "resident"
    both = stats | {"features_redecoded": ["depth"]}
    assert source_of(both, is_raw=False) == "resident in part, decoded once an epoch"
    cached = stats | {"frames_decoded": 0, "frames_from_cache": 9}
    assert source_of(cached, is_raw=False) == "cached"
    assert source_of(cached | {"frames_mapped": 9}, is_raw=True) == "cached, mapped"


def test_relation_of_rows() -> None:
    def of(*rates: float) -> list[dict[str, Any]]:
        return [{"rate": rate} for rate in rates]

    for ours, theirs, expected in (
        (of(3.0, 3.2), of(2.0, 2.9), "ahead"),
        (of(2.0, 2.9), of(3.0, 3.2), "behind"),
        (of(2.0, 3.1), of(3.0, 3.2), "level"),
        (of(3.2), of(3.0), "level"),  # of single runs
        (of(3.2), of(2.8), "ahead"),
    ):
        assert relation(ours, theirs, "rate") == expected


@pytest.mark.timeout(600)  # 10 processes that import torch, some of them Lightning
def test_comparison_is_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, their table, and their published page."""
    folder, to = tmp_path / "run", tmp_path / "to"
    to.mkdir()
    generate(folder / "tree", episodes=[20, 20], height=16, width=24)
    rgbd.generate(folder / RGBD.name / "tree", [20, 20], height=16, width=24)
    AUDIO.generate(folder / AUDIO.name / "tree", [8, 8])

    def small(workload: Workload) -> dict[str, list[Choice]]:
        """Two cells of ours are tried, and a single other cell."""
        return {
            section: [Choice(c.label, c.cells[: 1 + (c.label == "seqrecord")]) for c in table]
            for section, table in sections(workload).items()
        }

    monkeypatch.setattr(compare, "sections", small)
    arguments = [str(folder), "--repeats", "2", "--workload"]
    rows = ["by-hand", "seqrecord", "seqrecord * storage=cold"]
    compare.main([*arguments, "tartanair", "--section", "loaders", "other", "--rows", *rows])
    assert "| by-hand | " in capsys.readouterr().out
    arguments[2] = "1"
    compare.main([*arguments, "audio", "rgbd", "--rows", "NumPy memmap", "memmap"])
    document = json.loads((folder / "results.json").read_text())
    measured = results.measured(document)
    assert Counter(row["loader"] for row in measured) == {"by-hand": 1, "seqrecord": 2}
    assert [row["problems"] for row in measured] == [[], [], []]
    assert [row["clips"] for row in measured] == [8] * 3  # a whole epoch: the last frame lacks flow
    trials = [runs for title, runs in document["rows"].items() if title.startswith("try/")]
    assert [len(runs) for runs in trials] == [1, 1]
    for row in measured:
        assert len(row["runs"]) == 2
        assert 0 < row["cpu_seconds"] <= row["num_cores"] * row["seconds"] + 0.1
        assert row["ceiling"]["copy"] > 0
        assert row["bound"] in ("copy", "disk")
    assert {*document["minutes"]} == {"loaders, trials", "loaders", "other"}
    assert {row["frames"] for row in measured if row["loader"] == "by-hand"} == {"mapped"}
    changed = document | {"commit": "abc-dirty"}
    (folder / "results.json").write_text(json.dumps(changed))
    with pytest.raises(SystemExit, match=r"not published: .*not one committed tree: abc-dirty"):
        results.write(folder, to)
    (folder / "results.json").write_text(json.dumps(document))
    text = results.write(folder, to, is_draft=True).read_text()
    assert "`seqrecord` gives " in text
    assert "38 rendered frames with image_left, " in text
    assert re.search(r"\n\| by-hand \| .*reused=True.* \| mapped \| .* to .*\) \|", text)
    assert re.search(r"\n\| seqrecord \| .*storage=cold \| ", text.split("<details>")[1])
    assert re.search(r"\n\| NumPy memmap \| mapped \| \d+\.\d \| .*%", text)  # trained by Lightning
    assert re.search(r"\n\| memmap \| .* \| \d+\.\d \| .*%.*\| raw frames \|", text)
    assert "NumPy memmap" in (to / "audio.svg").read_text()
    published = json.loads((to / "results.json").read_text())
    assert published[TARTANAIR.name] == document
    assert published.keys() == WORKLOADS.keys()


def test_workloads_that_were_not_measured_are_kept(tmp_path: Path) -> None:
    """With `--keep`, if they are of the same commit; otherwise the page has no figures of them."""
    folder, to = tmp_path / "run", tmp_path / "to"
    to.mkdir()
    old = json.loads((ROOT / "benchmarks" / "tartanair" / "results.json").read_text())
    (to / "results.json").write_text(json.dumps(old))
    (folder / AUDIO.name).mkdir(parents=True)
    audio = old[AUDIO.name] | {"machine": "another machine"}
    (folder / AUDIO.name / "results.json").write_text(json.dumps(audio))
    text = results.write(folder, to, keeps_others=True).read_text()
    assert "not measured" not in text.lower()
    kept = json.loads((to / "results.json").read_text())
    assert kept == old | {AUDIO.name: audio}
    rows = {
        title: [run | {"commit": "0123456789ab"} for run in runs if "commit" in run] or runs
        for title, runs in audio["rows"].items()
    }
    later = audio | {"commit": "0123456789ab", "rows": rows}
    (folder / AUDIO.name / "results.json").write_text(json.dumps(later))
    with pytest.raises(SystemExit, match=r"^not published: workloads of several commits$"):
        results.write(folder, to, keeps_others=True)


def test_summary_and_reasons() -> None:
    def row_of(loader: str, rate: float, shuffle: str) -> dict[str, Any]:
        figures = dict.fromkeys(("bytes_per_second", "first_batch_seconds", "cpu_seconds"), 1.0)
        run = {"loader": loader, "settings": asdict(replace(USUAL, shuffle=shuffle)), **figures}
        run |= {"waiting": 0.9, "share": 0.25, "bound": "copy", "frames": "mapped"}
        run |= {"peak_memory_bytes": 1e8, "problems": [], "commit": "abc"}
        runs = [run | {"clips_per_second": rate * factor} for factor in (0.9, 1.0, 1.1)]
        return {f"{loader} {rate}": runs}

    rows = row_of("seqrecord", 123.0, "buffer") | row_of("webdataset", 45.0, "buffer")
    rows |= row_of("original", 5.3, "full") | {
        "try/ffcv shuffle=full": [{"skipped": "no package ffcv"}]
    }
    settings: dict[str, Any] = {"episodes": [100, 120], "frame_bytes": 5_000_000}
    settings["memory_bytes"] = 25e9
    settings |= {"cores": 2, "workload": "tartanair", "features": ["image_left"]}
    document: dict[str, Any] = {"machine": "a machine", "commit": "abc", "settings": settings}
    document |= {"rows": rows, "method": METHOD, "repeats": 3, "minutes": {"loaders": 31.0}}
    text = results.page({"tartanair": document})
    assert "`seqrecord` gives 123 clips a second of raw records, 25% of the machine's copy" in text
    assert (
        "The best of the others is `webdataset` with 45. The dataset's own loader gives 5.3."
        in text
    )
    assert "loaders 31; 31 in all." in text
    document["rows"] = rows | row_of("by-hand", 200.0, "full") | row_of("memmap", 120.0, "full")
    text = results.page({"tartanair": document})
    assert "Ahead of it: `by-hand` (200). Level with it: `memmap` (120). The best of " in text
    assert "| ffcv | no package ffcv | 1 |" in text
    assert "220 rendered frames with image_left, in 2 episodes of 100 to 120 frames" in text


def test_robots_are_measured_on_both_sides(tmp_path: Path) -> None:
    for name, size in SIZES.items():
        write_robot(tmp_path / name, size, episodes=2, length=40)
    found = measure_robots(tmp_path, [*VECTORS], repeats=1)
    assert found.keys() == {"arguments", "clip_transform"}
    assert all(cpu > 0 and wall > 0 for cpu, wall in found.values())
    text = (ROOT / "docs" / "mixing.md").read_text()
    assert sentence(found)[:60] in replaced(text, "vectors", sentence(found))
