"""RESULTS.md: the published tables with ours beside them, and its plots."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.tartanair.compare import plots
from benchmarks.tartanair.compare.cell import Cell
from benchmarks.tartanair.compare.grid import grid
from benchmarks.tartanair.compare.plots import CAPTIONS, draw_all
from benchmarks.tartanair.compare.published import (
    TABLES,
    batch_sizes,
    published_grid,
    scaled_minutes,
    table_text,
)
from benchmarks.tartanair.compare.report import describe, write_all
from benchmarks.tartanair.compare.results import write
from benchmarks.tartanair.compare.workloads import AUDIO, RGBD
from benchmarks.tartanair.loaders.base import Settings
from benchmarks.tartanair.loaders.registry import all_loaders
from benchmarks.tests import compare_rows
from seqrecord.writing.stored_schema import DEFAULT_CODEC

BASE = Settings()
ABOUT = {
    "machine": "a machine of the test",
    "cores": 2,
    "max_seconds": 10.0,
    "features": list(BASE.features),
    "frame_bytes": 5_000_000,
    "episodes": [100, 120],
}
needs_matplotlib = pytest.mark.skipif(
    find_spec("matplotlib") is None, reason="no package matplotlib: make install-bench"
)
LIMITS = {"copy": 10e9, "disk": 1e9, "range-mount": None}


def row(cell: Cell, rate: float = 10.0, **more: Any) -> dict[str, Any]:
    usual = {"steps": [rate, rate / 2, rate], "needed_bytes": 1e6}
    return compare_rows.row(cell, rate, **{**usual, **more})


def by_key(*rows: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["key"]: row for row in rows}


def lines_of(text: str, loader: str) -> list[list[str]]:
    """The cells of ours, line by line."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines()]
    return [[cell.strip() for cell in line] for line in lines if line[0].startswith(f"`{loader}`")]


def test_published_cells_are_of_loaders_that_can_run_them() -> None:
    loaders = all_loaders()
    cells = published_grid(loaders, BASE)
    assert len({cell.key for cell in cells}) == len(cells)
    for cell in cells:
        assert loaders[cell.loader].refuses(cell.settings) is None, cell.title
    assert {cell.loader for cell in cells} == {
        part.loader for table in TABLES for row in table.rows for part in row.beside
    }


def test_minutes_are_those_of_the_published_epoch() -> None:
    assert scaled_minutes({"clips_per_second": 15_488 / 60}) == pytest.approx(1.0)
    assert scaled_minutes({"clips_per_second": 15_488 / 60 / 44}) == pytest.approx(44.0)


def test_a_table_has_ours_beside_the_published_row() -> None:
    settings = replace(BASE, workers=4, shuffle="full", prefetch=1)
    rows = by_key(
        row(Cell("original", settings), 15_488 / 60 / 30),
        row(Cell("original", replace(settings, storage="cold")), 15_488 / 60 / 40),
    )
    text = table_text(TABLES[0], rows, BASE)
    assert "| **original loader** | **50** |  |  |  |  | 32 | 4 | full | 1 |" in text
    in_order, shuffled = lines_of(text, "original")
    assert in_order[2:5] == ["not run"] * 3
    assert shuffled[2:] == ["30", "40", "not run", "its own", "4", "4", "full", "1"]


def test_ours_have_the_packages_defaults_and_say_so() -> None:
    ours = [
        (part, cell)
        for table in TABLES
        for published in table.rows
        for part in published.beside
        for storage in table.storages
        for cell in part.cells(BASE, storage)
        if part.loader.startswith("seqrecord")
    ]
    assert {cell.settings.codec for _, cell in ours} == {DEFAULT_CODEC}
    meant = [cell.settings for part, cell in ours if "meant" in part.note]
    assert {(cell.shuffle_buffer, cell.workers) for cell in meant} == {(None, 0)}
    rows = by_key(*[row(cell) for _, cell in ours])
    for table in TABLES:
        lines = lines_of(table_text(table, rows, BASE), "seqrecord")
        assert {line[-5] for line in lines} == {DEFAULT_CODEC}
        assert {line[-2] for line in lines if "meant" in line[0]} <= {"default"}


def test_the_largest_batch_that_ran_is_shown() -> None:
    meant = next(part for part in TABLES[0].rows[0].beside if "meant" in part.note)
    large, small = meant.cells(BASE, "local")
    assert (large.settings.batch_size, small.settings.batch_size) == (32, 4)
    rows = by_key(row(large, 15_488 / 60 / 2), row(small, 1.0))
    assert lines_of(table_text(TABLES[0], rows, BASE), "seqrecord")[1][2] == "2"
    assert batch_sizes(rows, BASE) == ({32: {"seqrecord"}}, set())
    refused = {**describe(large), "skipped": "batches ahead take 29 GB"}
    rows = by_key(refused, row(small, 15_488 / 60 / 3))
    assert lines_of(table_text(TABLES[0], rows, BASE), "seqrecord")[1][2] == "3"
    assert batch_sizes(rows, BASE) == ({4: {"seqrecord"}}, {"batches ahead take 29 GB"})


def run_of(folder: Path, rows: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True)
    write_all(folder, rows, LIMITS, ABOUT)
    return folder


def test_the_document(tmp_path: Path) -> None:
    shuffled = replace(BASE, shuffle="buffer")
    rgb = replace(BASE, features=("image_left",), shuffle="full")
    beside = TABLES[2].rows[0].beside[0].cells(BASE, "obstore")[1]
    rows = [
        row(Cell("seqrecord", shuffled), 123.0, bytes_per_second=9e9),
        row(Cell("webdataset", shuffled), 45.0),
        row(Cell("original", replace(BASE, shuffle="full")), 6.7),
        row(Cell("video", rgb), 321.0),
        row(Cell("seqrecord", replace(shuffled, stride=16)), 77.0),
        row(beside, 55.0),
        {**describe(Cell("dali-files", BASE)), "skipped": "no package nvidia"},
    ]
    folder = run_of(tmp_path / "run", rows)
    text = write(folder, tmp_path).read_text()
    assert "a machine of the test" in text
    assert f"`{rows[0]['commit']}`" in text
    assert "220 rendered frames" in text
    assert "2 episodes of 100 to 120 frames, 1.1 GB" in text
    assert "`seqrecord` gives 123 clips a second of raw records, 90% of what the machine" in text
    assert "`webdataset` with 45, the dataset's own loader gives 6.7" in text
    main, rest = text.split("## All loaders")[1].split("### RGB only")
    assert "| seqrecord | shuffle=buffer | 123.0 |" in main
    assert main.index("| seqrecord |") < main.index("| webdataset |")
    assert "| video |" not in main
    only, rest = rest.split("<details>", 1)
    assert "| video | features=image_left shuffle=full | 321.0 |" in only
    assert "| seqrecord | stride=16 shuffle=buffer | 77.0 |" in rest
    assert "storage=obstore" not in text  # but in minutes, beside the published row
    assert lines_of(text, "seqrecord")[-2][2:5] == ["not run", "4.7", "not run"]
    assert "| dali-files | no package nvidia | 1 |" in rest
    assert "$" not in text


def test_a_plot_of_other_rows_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()
    for name in ("cloud", "audio", "rgbd"):
        (tmp_path / "plots" / f"{name}.png").write_bytes(b"of an earlier run")
    text = write(run_of(tmp_path / "run", [row(Cell("seqrecord", BASE))]), tmp_path).read_text()
    assert "(plots/" not in text


def part_of(text: str, heading: str) -> str:
    """What RESULTS.md has below a heading, up to the next."""
    return text.split(f"### {heading}\n", 1)[1].split("\n### ")[0]


AUDIO_SHUFFLED = replace(AUDIO.base, shuffle="buffer")
RGBD_SHUFFLED = replace(RGBD.base, shuffle="buffer")
RGBD_ROWS = {
    "original": row(Cell("original", replace(RGBD.base, shuffle="full", workers=2)), 13.0),
    "seqrecord": row(Cell("seqrecord", RGBD_SHUFFLED), 347.0),
    "seqrecord-encoded": row(Cell("seqrecord-encoded", RGBD_SHUFFLED), 194.0),
    "seqrecord-per-clip": row(Cell("seqrecord-per-clip", RGBD_SHUFFLED), 34.0),
    "memmap": row(Cell("memmap", replace(RGBD.base, shuffle="full")), 35.2),
    "webdataset": row(Cell("webdataset", RGBD_SHUFFLED), 104.0),
}


def written(tmp_path: Path, **others: list[dict[str, Any]]) -> str:
    """RESULTS.md of one row of TartanAir and these of other workloads."""
    folder = run_of(tmp_path / "run", [row(Cell("seqrecord", BASE))])
    for name, rows in others.items():
        run_of(folder / name, rows)
    return write(folder, tmp_path).read_text()


def test_a_workload_has_its_sentence_and_its_rows(tmp_path: Path) -> None:
    rows = [
        row(Cell("original", replace(AUDIO.base, shuffle="full")), 16_475.0),
        row(Cell("seqrecord", AUDIO_SHUFFLED), 45_196.0),
        row(Cell("seqrecord", replace(AUDIO_SHUFFLED, workers=2)), 1_228.0),
        row(Cell("seqrecord", replace(AUDIO_SHUFFLED, clip_len=16)), 70_001.0),
        row(Cell("memmap", replace(AUDIO.base, shuffle="full")), 58_580.0),
        row(Cell("numpy-files", replace(AUDIO.base, shuffle="full")), 6_065.0),
        row(Cell("webdataset", replace(AUDIO_SHUFFLED, storage="cold")), 80_002.0),
        {**describe(Cell("dali-wav", AUDIO.base)), "skipped": "no package nvidia"},
    ]
    part = part_of(written(tmp_path, audio=rows), "Audio")
    assert part.splitlines()[1] == (
        "Sound like speech at 16 kHz in WAV files, in clips of 1 s, ten frames of 100 ms: "
        "shuffled, from a warm disk, each with its best number of workers, "
        "`memmap` gives 58,580 clips a second, `seqrecord` 45,196 and `original` 16,475."
    )
    assert "220 frames in 2 episodes of 100 to 120, 1.1 GB." in part
    assert "Batches of 32 clips of 10 frames" in part
    main, rest = part.split("<details>")
    assert "| memmap | shuffle=full | 58580.0 |" in main
    assert "| seqrecord | shuffle=buffer workers=2 | 1228.0 |" in main
    assert main.index("| 58580.0 |") < main.index("| 45196.0 |") < main.index("| 16475.0 |")
    # What differs is told from the workload's settings, not from TartanAir's.
    assert "| seqrecord | clip_len=16 shuffle=buffer | 70001.0 |" in rest
    assert "| webdataset | shuffle=buffer storage=cold | 80002.0 |" in rest
    assert "| dali-wav | no package nvidia | 1 |" in rest


def test_a_sentence_of_kinds(tmp_path: Path) -> None:
    part = part_of(written(tmp_path, rgbd=list(RGBD_ROWS.values())), "RGB-D")
    assert part.splitlines()[1].split("number of workers, ")[1] == (
        "`seqrecord` gives 347 clips a second, `seqrecord-encoded` 194 and `webdataset` 104 "
        "(each frame resized once), `memmap` 35, `seqrecord-per-clip` 34 and `original` 13 "
        "(each frame resized again for every clip that it is in)."
    )
    # Kinds and loaders are in the order of their rates, whatever these are.
    slow = {**RGBD_ROWS, "memmap": row(Cell("memmap", RGBD_SHUFFLED), 400.0)}
    folder = tmp_path / "slow"
    part = part_of(written(folder, rgbd=list(slow.values())), "RGB-D")
    assert "`memmap` gives 400 clips a second, `seqrecord-per-clip` 34 and `original` 13" in part
    assert "that it is in), `seqrecord` 347 and `seqrecord-encoded` 194 (each" in part


@needs_matplotlib
def test_the_document_shows_its_plots(tmp_path: Path) -> None:
    text = written(tmp_path, rgbd=list(RGBD_ROWS.values()))
    shown = re.findall(r"\(plots/(.+)\)", text)
    assert {path.name for path in (tmp_path / "plots").iterdir()} == set(shown)
    assert "![RGB-D: clips a second by loader, shuffled](plots/rgbd.png)" in part_of(text, "RGB-D")
    assert "(plots/" not in part_of(text, "Audio")


def test_a_workload_that_was_not_run(tmp_path: Path) -> None:
    part = part_of(written(tmp_path), "RGB-D")
    assert part.rstrip().endswith("resized to 192x256: not run.")
    broken = {**describe(Cell("memmap", AUDIO_SHUFFLED)), "error": "it broke"}
    part = part_of(written(tmp_path / "broken", audio=[broken]), "Audio")
    assert "no row ran shuffled and from a warm disk." in part
    assert "| memmap | it broke | 1 |" in part
    assert "(plots/" not in part
    # One loader is no comparison to draw.
    part = part_of(written(tmp_path / "one", audio=[row(Cell("memmap", AUDIO_SHUFFLED))]), "Audio")
    assert "`memmap` gives 10 clips a second." in part
    assert "(plots/" not in part


def test_a_document_of_nothing_that_ran(tmp_path: Path) -> None:
    rows = [{**describe(Cell("hdf5", BASE)), "error": "it broke"}]
    text = write(run_of(tmp_path / "run", rows), tmp_path).read_text()
    assert "Too few loaders ran" in text
    assert "| hdf5 | it broke | 1 |" in text
    assert "(plots/" not in text


@needs_matplotlib
def test_every_plot_is_drawn_from_the_grid(tmp_path: Path) -> None:
    cells = grid(all_loaders(), BASE)
    rows = [row(cell, 1.0 + number) for number, cell in enumerate(cells)]
    written = draw_all(tmp_path, rows)
    assert [path.stem for path in written] == list(CAPTIONS)
    for path in written:
        with Image.open(path) as image:
            assert min(image.size) >= 300
            assert len(image.convert("RGB").getcolors() or []) > 4  # something is drawn
        assert path.stat().st_size < 100_000


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `draw_all` draws, by name."""
    pytest.importorskip("matplotlib")
    drawn: dict[str, Any] = {}

    def keep(figure: Any, path: Path) -> Path:
        drawn[path.stem] = figure
        return path

    monkeypatch.setattr(plots, "save", keep)
    return drawn


def texts(axes: Any) -> list[str]:
    return [text.get_text().strip() for text in axes.texts]


def test_bars_show_the_best_of_each_loader(tmp_path: Path, figures: dict[str, Any]) -> None:
    shuffled = replace(BASE, shuffle="buffer")
    rows = [
        row(Cell("seqrecord", shuffled), 100.0),
        row(Cell("seqrecord", replace(shuffled, workers=2)), 90.0),
        row(Cell("webdataset", replace(shuffled, workers=2)), 7.25),
        row(Cell("webdataset", replace(shuffled, codec="small")), 1000.0),
    ]
    draw_all(tmp_path, rows)
    axes = figures["loaders-shuffled"].axes[0]
    assert texts(axes) == ["7.2, buffer, 2 workers", "100, buffer"]
    assert [bar.get_width() for bar in axes.patches] == [7.25, 100.0]


def test_kinds_have_a_panel_each(tmp_path: Path, figures: dict[str, Any]) -> None:
    slower = row(Cell("original", replace(RGBD.base, shuffle="full")), 7.9)
    in_order = row(Cell("memmap", RGBD.base), 999.0)
    written(tmp_path, rgbd=[*RGBD_ROWS.values(), slower, in_order])
    once, per_clip = figures["rgbd"].axes
    assert once.get_title(loc="left") == "RGB-D, shuffled: each frame resized once"
    assert per_clip.get_title(loc="left").endswith("resized again for every clip that it is in")
    assert [label.get_text() for label in per_clip.get_yticklabels()] == [
        "original",
        "seqrecord-per-clip",
        "memmap",
    ]
    assert texts(per_clip) == ["13, full, 2 workers", "34, buffer", "35, full"]
    assert [bar.get_width() for bar in once.patches] == [104.0, 194.0, 347.0]
    assert once.get_xlim() == per_clip.get_xlim()  # bars of both can be compared
    thick = [axes.patches[0].get_window_extent().height for axes in (once, per_clip)]
    assert thick[0] == pytest.approx(thick[1], rel=0.02)


def test_storages_are_beside_each_other(tmp_path: Path, figures: dict[str, Any]) -> None:
    shuffled = replace(BASE, shuffle="buffer")
    full = replace(BASE, shuffle="full")
    rows = [
        row(Cell("seqrecord", shuffled), 258.0),
        row(Cell("seqrecord", replace(shuffled, storage="obstore")), 40.0),
        row(Cell("seqrecord", replace(shuffled, storage="adlfs")), 25.8),
        row(Cell("original", full), 8.0),
        row(Cell("original", replace(full, storage="mount")), 2.58),
    ]
    draw_all(tmp_path, rows)
    panels = {axes.get_title(loc="left"): texts(axes) for axes in figures["storage"].axes}
    assert panels == {
        "disk, warm": ["8.0", "258"],
        "FUSE mount": ["2.6", "-"],
        "Azure, best client": ["-", "40"],
    }
    axes = figures["cloud"].axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    minutes = dict(zip(names, texts(axes), strict=True))
    assert minutes["seqrecord: Azure, adlfs"] == "10 min"
    assert minutes["original: FUSE mount"] == "100 min"


def test_an_epoch_is_batches_over_seconds(tmp_path: Path, figures: dict[str, Any]) -> None:
    rows = [
        row(Cell("seqrecord", replace(BASE, shuffle="buffer")), steps=[4.0, 8.0, 8.0]),
        row(Cell("original", replace(BASE, shuffle="full")), steps=[2.0, 2.0], complete=0.0),
    ]
    draw_all(tmp_path, rows)
    axes = figures["epoch"].axes[0]
    steps = axes.patches[0].get_data()
    assert steps.values.tolist() == [1.0, 2.0, 2.0]
    assert steps.edges.tolist() == [0.0, 1.0, 1.5, 2.0]
    assert texts(axes) == ["seqrecord", "original …"]


def test_labels_do_not_overlap(tmp_path: Path, figures: dict[str, Any]) -> None:
    rows = [
        row(Cell(name, replace(BASE, shuffle="full")), steps=[rate, rate])
        for name, rate in {"seqrecord": 4.0, "memmap": 4.1, "original": 4.2}.items()
    ]
    draw_all(tmp_path, rows)
    labels = figures["epoch"].axes[0].texts
    boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: box.y0)
    assert len(boxes) == 3
    assert all(lower.y1 <= upper.y0 for lower, upper in pairwise(boxes))
