"""Trainings with each loader, on very little data; the figures mean nothing."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import seqrecord
from benchmarks.checks import faults
from benchmarks.suite import Suite
from benchmarks.tartanair.generate import generate
from benchmarks.timing import LEAST, SKIPPED
from benchmarks.training import decoded_once
from benchmarks.training.__main__ import Runner, main, names, page, parse
from benchmarks.training.loaders import LOADERS, Source
from benchmarks.training.networks import floats
from benchmarks.training.row import STEPS, Job, limit, measure
from benchmarks.training.trainings import TRAININGS, arguments_of, cut, prepare, write_arrays
from tests.kit.lerobot_video_data import CAMERAS, unpack, with_video

ROOT = Path(__file__).parents[2]
PAIRS = 120  # of two episodes: fifteen batches


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small trees in place of the command's large ones."""
    folder = tmp_path_factory.mktemp("training")
    modalities = ("image", "depth", "pose")
    generate(folder / "tree", episodes=[61, 61], height=16, width=24, modalities=modalities)
    (folder / "small").symlink_to(folder / "tree")
    return folder


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> argparse.Namespace:
    """The command's options, with a LeRobot dataset of two cameras and 15 frames."""
    root = unpack(tmp_path_factory.mktemp("lerobot"), "lerobot_v3")
    for name in CAMERAS:
        with_video(root, (5, 3, 7), name)
    return argparse.Namespace(root=root, lerobot=Path("none"), frames=8)


def job(found: dict[str, Path], loader: str, **changes: Any) -> Job:
    places = {name: str(found[name]) for name in ("example", "originals")}
    values: dict[str, Any] = {**places, "folder": str(found[LOADERS[loader].form])}
    values |= {"loader": loader, "place": "warm", "seconds": 0.5, "workers": 0}
    return Job(**values | changes)


@pytest.mark.parametrize("training", TRAININGS)
def test_every_training_trains(training: str, folder: Path, options: argparse.Namespace) -> None:
    found = prepare(training, folder, options)
    row = measure(job(found, "seqrecord", training=training))
    assert row["steps"] > 0
    assert row["samples"] == row["steps"] * TRAININGS[training].batch
    assert 0 < row["waiting"] < 1
    assert row["slower"] == pytest.approx(row["beside"] / row["alone"])
    assert 1 - row["waiting"] == pytest.approx(row["steps_per_second"] * row["beside"])
    assert row["first_batch_seconds"] > 0
    assert row["cores"] > 0
    assert row["steps"] >= LEAST
    assert 0 < row["cpu_seconds"] <= row["num_cores"] * row["seconds"] + 0.1
    assert row["share"] == pytest.approx(row["steps_per_second"] * row["alone"])
    assert row["frames"] == "resident", "an epoch after the first, in memory"
    assert row["first_frames"] == "decoded once an epoch"
    assert ("first_steps_per_second" in row) == (row["first_steps"] > 0)
    stages = {"reading", "decoding", "copying clips into batches"}
    others = {"the training", "cores", "the training, slowed"}
    assert row["limit"] in (stages if row["waiting"] > 0.5 else stages | others)
    # The network accepts LeRobot's batches.
    batch = torch.load(found["example"], weights_only=True)
    network = TRAININGS[training].network(batch)
    as_floats = {n: floats(v) if v.dtype == torch.uint8 else v for n, v in batch.items()}
    assert any(v.shape != as_floats[n].shape for n, v in batch.items())
    assert torch.allclose(network(batch), network(as_floats))


ALL = os.cpu_count() or 1
DECODES = "decoding: a faster codec would help"
WAITS = "the consumer: batches wait for it"


LIMITS: list[tuple[str, float, float, float, float, str]] = [
    ("the training", 0.04, 1.05, 1.0, ALL, DECODES),
    ("decoding", 0.06, 1.05, 1.0, ALL, DECODES),
    ("decoding", 0.0, 1.2, 1.0, ALL, DECODES),
    ("the training", 0.06, 1.0, 0.0, 0.1, WAITS),
    ("cores", 0.06, 1.4, 0.0, ALL, WAITS),
    ("the training, slowed", 0.06, 1.4, 0.0, 0.8 * ALL, WAITS),
    ("the line", 0.9, 1.0, 0.9, ALL, ""),
    ("cores", 0.9, 1.0, 0.8, ALL, ""),
    ("the loader", 0.9, 1.0, 0.8, 0.8 * ALL, ""),
]


def test_limit_of_a_row() -> None:
    for expected, waiting, slower, line, cores, bottleneck in LIMITS:
        figures = {"waiting": waiting, "slower": slower, "line": line, "cores": cores}
        assert limit(figures, bottleneck) == expected


def test_bytes_and_steps_of_a_row(folder: Path, options: argparse.Namespace) -> None:
    found = prepare("odometry", folder, options)
    row = measure(job(found, "original", training="odometry", calls=100))
    assert row["first_steps"] == PAIRS // 8 - SKIPPED
    assert row["steps"] >= LEAST
    assert row["steps"] % (PAIRS // 8) == 0, "whole epochs"
    sizes = [p.stat().st_size for p in found["originals"].rglob("*_left.png")]
    # Each sample reads the files of two frames. Reads of /proc by the meter are counted too.
    assert 2 * min(sizes) <= row["bytes_per_sample"] <= 4 * max(sizes) + 10_000
    assert 0 < row["step_cpu"] < 2 * row["beside"]
    assert row["queued"] >= 0
    assert row["p95"] > 0


@pytest.mark.filterwarnings("ignore")  # WebDataset leaves files open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("loader", ["original", "webdataset", "by hand", "seqrecord"])
def test_loaders_yield_the_same_samples(
    loader: str, folder: Path, options: argparse.Namespace
) -> None:
    if package := LOADERS[loader].package:
        pytest.importorskip(package)
    found, training = prepare("odometry", folder, options), TRAININGS["odometry"]
    if LOADERS[loader].form == "cut":
        cut("odometry", found)
    elif LOADERS[loader].form == "arrays":
        write_arrays("odometry", found)
    open_loader = LOADERS[loader].open
    assert open_loader is not None
    source = Source(found["originals"], found[LOADERS[loader].form])

    def samples(batches: Any) -> Counter[tuple[bytes, bytes]]:
        return Counter(
            (image.numpy().tobytes(), pose.numpy().tobytes())
            for batch in batches
            for image, pose in zip(batch["image_left"], batch["pose_left"], strict=True)
        )

    ours = LOADERS["seqrecord"].open
    assert ours is not None
    expected = samples(ours(training, Source(found["originals"], found["records"]), 0))
    assert expected.total() == PAIRS
    assert samples(open_loader(training, source, 0)) == expected


def test_samples_by_hand_of_act(options: argparse.Namespace, folder: Path) -> None:
    found, training = prepare("act", folder, options), TRAININGS["act"]
    write_arrays("act", found)
    loaders = [LOADERS[name] for name in ("by hand", "seqrecord")]
    sums = []
    for loader in loaders:
        assert loader.open is not None
        source = Source(found["originals"], found[loader.form])
        [batch] = loader.open(training, source, 0)
        sums.append({name: tuple(v.shape[1:]) for name, v in batch.items() if name in CAMERAS})
        assert batch["action"].shape[1] == 50
    assert sums[0] == sums[1]
    by_hand = LOADERS["by hand"].open
    assert by_hand is not None
    source = Source(found["originals"], found["arrays"])
    ours = seqrecord.SeqRecordMapDataset(found["records"], **arguments_of(training, options.root))
    samples = (ours[number] for number in range(len(ours)))
    rows = Counter(sample["action"].numpy().tobytes() for sample in samples)
    for _ in range(2):
        [batch] = by_hand(training, source, 1)
        seen = Counter(action.numpy().tobytes() for action in batch["action"])
        assert seen <= rows
        assert seen.total() == training.batch


def test_rows_combine_trainings_with_their_loaders() -> None:
    found = list(names())
    assert {step for _, step, _, _ in found} == set(STEPS)
    of_act = {loader for training, _, loader, _ in found if training == "act"}
    assert of_act == {*LOADERS} - {"original"}
    assert "lerobot" not in {loader for training, _, loader, _ in found if training != "act"}
    assert {place for _, _, loader, place in found if loader == "no loader"} == {"warm"}
    assert {step for _, step, _, place in found if place != "warm"} == {"8 ms"}


def command(folder: Path, *rows: str) -> list[str]:
    arguments = [str(folder), "--seconds", "0.2", "--repeats", "1", "--workers", "1"]
    return [*arguments, "--lerobot", "none", "--draft", "--to", str(folder / "to"), "--rows", *rows]


@pytest.mark.timeout(400)
def test_one_command_writes_rows_and_page(folder: Path, options: argparse.Namespace) -> None:
    rows = ("odometry/8 ms/[!wb]*/warm", "odometry/8 ms/original/s3", "act/8 ms/lerobot/warm")
    arguments = [sys.executable, "-m", "benchmarks.training", *command(folder, *rows)]
    done = subprocess.run(arguments, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    text = (folder / "to" / "RESULTS.md").read_text()
    assert done.stdout == f"{text}\n"
    document = json.loads((folder / "to" / "results.json").read_text())
    assert text == page(document)
    found: dict[str, list[dict[str, Any]]] = document["rows"]
    assert [fault for fault in faults(document) if "CPU" in fault] == []
    measured = ["no loader", "original"]
    measured += ["seqrecord", "seqrecord, resident", "seqrecord, one worker"]
    for loader in measured:
        [run] = found.pop(f"odometry/8 ms/{loader}/warm")
        assert run.get("steps"), run
        assert run["peak_memory_bytes"] > 10e6
        assert f"| 8 ms | warm | {loader} | " in text
    assert found == {
        "odometry/8 ms/original/s3": [{"skipped": "reads local files only"}],
        "act/8 ms/lerobot/warm": [{"skipped": "no LeRobot dataset: make lerobot-env, or --root"}],
    }
    assert "- `odometry/8 ms/original/s3`: reads local files only" in text


def test_numbers_of_workers_are_tried(folder: Path, options: argparse.Namespace) -> None:
    arguments = [*command(folder, "odometry/8 ms/by hand/warm"), "--workers", "1", "2"]
    suite = Suite(parse(arguments), {})
    rows = [row for row in names() if row[0] == "odometry"]
    with ExitStack() as stack:
        runner = Runner(suite, dict.fromkeys(STEPS, 10), stack)
        trials = [f"try/odometry/by hand/{count}" for count in (0, 1, 2)]
        assert [name for name, _ in runner.trials(rows)] == trials
        for name, rate in zip(trials, (2.0, 9.0, 3.0), strict=True):
            suite.rows[name] = [{"steps_per_second": rate}]
        [(name, run)] = runner.jobs(rows)
    assert name == "odometry/8 ms/by hand/warm"
    assert isinstance(run, partial)
    assert run.args[1]["workers"] == 1
    assert (folder / "arrays-odometry" / "ends.npy").exists()


def test_a_run_is_continued(folder: Path, options: argparse.Namespace) -> None:
    main(command(folder, "odometry/8 ms/no loader/warm"))
    first = json.loads((folder / "results.json").read_text())
    assert list(first["rows"]) == ["odometry/8 ms/no loader/warm"]
    main([*command(folder, "odometry/network/no loader/warm"), "--resume"])
    both = json.loads((folder / "results.json").read_text())
    assert both["calls"] == first["calls"]
    assert first["rows"].items() <= both["rows"].items()
    assert "odometry/network/no loader/warm" in both["rows"]


@pytest.mark.service
@pytest.mark.timeout(400)
def test_rows_from_s3(
    folder: Path, options: argparse.Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    main(command(folder, "odometry/8 ms/seqrecord*/s3", "odometry/8 ms/webdataset/s3"))
    document = json.loads((folder / "to" / "results.json").read_text())
    assert (folder / "records-s3-tree" / "manifest.json").exists()
    assert page(document) in capsys.readouterr().out
    assert len(document["rows"]) == 2
    for [run] in document["rows"].values():
        if "skipped" in run:
            assert run["skipped"] == "no package webdataset: make install-bench"
        else:
            assert run.get("steps"), run
            # Read-ahead may finish this little data before the measurement.
            assert run["bytes_per_sample"] >= 0


@pytest.mark.timeout(400)
def test_frames_decoded_by_epoch(tmp_path: Path, options: argparse.Namespace) -> None:
    """Without LeRobot, with an existing dataset of it."""
    for case in ("96x128", "480x640"):
        (tmp_path / f"lerobot-{case}").symlink_to(options.root)
    arguments = [str(tmp_path), "--lerobot", "none", "--epochs", "3", "--workers", "1"]
    arguments += ["--repeats", "2", "--draft"]
    decoded_once.main([*arguments, "--to", str(tmp_path / "to")])
    document = json.loads((tmp_path / "to" / "decoded_once.json").read_text())
    text = (tmp_path / "to" / "DECODED_ONCE.md").read_text()
    for case in decoded_once.CASES:
        ours, again = document["rows"][f"{case}/seqrecord"]
        assert ours["epochs"][0]["actions"] == pytest.approx(again["epochs"][0]["actions"])
        assert [epoch["decoded"] for epoch in ours["epochs"]] == [30, 0, 0]
        assert all(epoch["samples"] == 15 for epoch in ours["epochs"])
        others = document["rows"][f"{case}/webdataset"][-1]
        if "skipped" not in others:
            assert [epoch["decoded"] for epoch in others["epochs"]] == [30, 30, 30]
        assert document["rows"][f"{case}/lerobot"] == [{"skipped": "no package lerobot"}]
        assert f"| {case} | seqrecord | 30 | 0 | 0 | " in text
    for name, most in {"arrays": 30, "memmap": 0, "packed": 0, "fills": 30, "warm": 0, "cold": 0,
                       "larger": 0}.items():  # fmt: skip
        run = document["rows"][f"480x640 at 224/{name}"][-1]
        first, *others = [epoch["decoded"] for epoch in run["epochs"]]
        # Both cameras have equal videos, which share entries of the cache: while it fills, the
        # second one's frames may be read from there.
        assert (most // 2 if name == "fills" else most) <= first <= most, name
        assert others == [0, 0], name
    assert "- `96x128/lerobot`: no package lerobot" in text
