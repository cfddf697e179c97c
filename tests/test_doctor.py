"""`seqrecord doctor`: every way for a LeRobot dataset to be broken; a sound one has no finding."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqrecord.errors import AccessError, SourceError
from seqrecord.indexing.doctor import examine
from seqrecord.indexing.doctor_report import DoctorReport
from seqrecord.storage import open_storage
from tests.command_line import run
from tests.lerobot_data import FPS, episodes
from tests.lerobot_video_data import CAMERAS, with_video
from tests.lerobot_video_data import unpack as unpack_video
from tests.storage_doubles import Failure, FaultyStorage, Operation
from tests.test_source_contract import upload
from tests.test_sources_lerobot import LISTED, ROWS, at, column, edit_info, rewrite, unpack
from tests.video_file_data import HEIGHT, WIDTH, pictures, write_video

CAMERA = CAMERAS[0]
PICTURE = {"mean": [0.5] * 3, "std": [0.3] * 3, "min": [0.0] * 3, "max": [1.0] * 3}
LENGTHS = [len(frames) for frames in episodes()]  # 5, 3, 7
VIDEO = f"videos/{CAMERA}/chunk-000/file-000.mp4"
BEGIN = f"videos/{CAMERA}/from_timestamp"


def made(folder: Path, version: str = "v3", **options: Any) -> Path:
    """A sound dataset, whose statistics are those of its rows."""
    root = unpack(folder, version)
    with_video(root, LENGTHS, **options)
    tables = pa.concat_tables(map(pq.read_table, sorted(root.glob("data/*/*.parquet"))))
    stats: dict[str, Any] = dict.fromkeys((CAMERA, "observation.image"), PICTURE)
    for name in set(tables.column_names) - {"observation.image", "note"}:
        values = np.array(tables[name].to_pylist(), np.float64).reshape(len(tables), -1)
        stats[name] = {k: getattr(values, k)(0).tolist() for k in ("min", "max", "mean", "std")}
        stats[name]["count"] = [len(tables)]
    (root / "meta/stats.json").write_text(json.dumps(stats))
    return root


def kinds(report: DoctorReport) -> list[str]:
    assert report.counts == {k: [f.kind for f in report.findings].count(k) for k in report.counts}
    return sorted(finding.kind for finding in report.findings)


@pytest.mark.parametrize("options", [{}, {"options": {"g": "4", "bf": "0"}}], ids=["b", "no b"])
@pytest.mark.parametrize("version", ["v3", "v21", "v20"])
def test_a_sound_set(tmp_path: Path, version: str, options: dict[str, Any]) -> None:
    root = made(tmp_path, "v3" if version == "v3" else "v21", **options)
    if version == "v20":
        edit_info(root, codebase_version="v2.0")
    report = examine(root)
    assert report.findings == ()
    assert report.ok
    assert (report.num_episodes, report.num_frames, report.num_rows) == (3, 15, 15)
    assert report.version == version.replace("v2", "v2.").replace("v3", "v3.0")
    [camera] = report.cameras
    assert (camera.name, camera.frames, camera.longest_distance) == (CAMERA, 15, 4)
    assert camera.files == report.num_tables == (1 if version == "v3" else 3)


def test_a_set_that_lerobot_wrote(tmp_path: Path) -> None:
    assert examine(unpack_video(tmp_path, "lerobot_video_v21")).findings == ()


def listed(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    return lambda root: rewrite(root / LISTED, change)


def rows(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    return lambda root: rewrite(root / ROWS, change)


def filmed(images: Any, **options: Any) -> Callable[[Path], None]:
    """The one video of all episodes, anew."""

    def change(root: Path) -> None:
        options_ = {"options": {"g": "4"}, "key_frames": [0, 5, 8], **options}
        write_video(root / VIDEO, images, rate=FPS, **options_)

    return change


def stats(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def changed(root: Path) -> None:
        path = root / "meta/stats.json"
        found = json.loads(path.read_text())
        change(found)
        path.write_text(json.dumps(found))

    return changed


def same_as(one: int, other: int) -> Callable[[list[Any]], list[Any]]:
    return lambda values: at(one, values[other])(values)


def cut_short(path: Path) -> None:
    """Tables first, as of a download that has ended early: the last packets are missing."""
    whole = path.rename(path.with_suffix(".whole"))
    flags = {"movflags": "faststart"}
    with av.open(str(whole)) as source, av.open(str(path), "w", options=flags) as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            if packet.size:
                packet.stream = stream
                target.mux(packet)
    path.write_bytes(path.read_bytes()[:-100])


E0, E1, E2 = (f"episode_{i:06d}" for i in range(3))
STILL = np.repeat(pictures(1), 15, 0)
BROKEN: dict[str, tuple[Callable[[Path], Any], list[str], dict[str, Any]]] = {
    "fewer rows than listed": (
        listed(column("length", at(2, 8))),
        ["metadata", "outside_file", "row_count", "row_range"],
        {"kind": "row_count", "file": ROWS, "episode": E2, "expected": 8, "got": 7},
    ),
    "rows of no episode": (
        listed(lambda t: t.slice(1)),
        ["metadata", "metadata", "unnamed_frames", "unnamed_rows"],
        {"kind": "unnamed_rows", "severity": "warning", "file": ROWS, "expected": "10 rows"},
    ),
    "frames of no episode": (
        filmed(pictures(20)),
        ["unnamed_frames"],
        {"file": VIDEO, "feature": CAMERA, "expected": "15 frames", "got": "20 frames"},
    ),
    "an episode listed twice": (
        listed(column("episode_index", at(2, 1))),
        [*["metadata"] * 3, "row_range", "unnamed_frames", "unnamed_rows"],
        {"kind": "unnamed_rows", "got": "15 rows; the first other row belongs to episode 2"},
    ),
    "an episode that is listed wrong": (
        listed(column(BEGIN, at(1, -1.0))),
        ["metadata", "metadata", "unnamed_frames", "unnamed_rows"],
        {"kind": "unnamed_frames", "expected": "12 frames", "got": "15 frames"},
    ),
    "other totals": (
        lambda root: edit_info(root, total_frames=99),
        ["metadata"],
        {"file": "meta/info.json", "expected": 15, "got": "99"},
    ),
    "no table": (
        lambda root: (root / ROWS).unlink(),
        ["missing_file"],
        {"file": ROWS, "severity": "error", "expected": "15 frames of 3 episodes"},
    ),
    "no video": (
        lambda root: (root / VIDEO).unlink(),
        ["missing_file"],
        {"file": VIDEO, "feature": CAMERA},
    ),
    "a video of no bytes": (
        lambda root: (root / VIDEO).write_bytes(b""),
        ["empty_file"],
        {"file": VIDEO, "severity": "error"},
    ),
    "a table without rows": (
        rows(lambda t: t.slice(0, 0)),
        ["empty_file", "row_count", "row_count", "row_count"],
        {"kind": "empty_file", "file": ROWS},
    ),
    "a video nobody names": (
        lambda root: shutil.copy(root / VIDEO, root / VIDEO.replace("file-000", "file-001")),
        ["unnamed_file"],
        {"file": VIDEO.replace("file-000", "file-001"), "severity": "warning"},
    ),
    "damaged video": (
        lambda root: (root / VIDEO).write_bytes((root / VIDEO).read_bytes()[:999]),
        ["unreadable"],
        {"file": VIDEO, "feature": CAMERA},
    ),
    "a damaged table": (
        lambda root: (root / ROWS).write_bytes(b"PAR1" * 99),
        ["unreadable"],
        {"file": ROWS},
    ),
    "another size": (
        filmed(pictures(15)[:, : HEIGHT // 2]),
        ["stream"],
        {"expected": [HEIGHT, WIDTH, 3], "got": [HEIGHT // 2, WIDTH]},
    ),
    "a jump": (
        rows(column("timestamp", lambda times: [t + (i > 11) for i, t in enumerate(times)])),
        ["outside_file", "statistics", "time_jump"],
        {"kind": "time_jump", "episode": E2, "frame": 4, "got": "1.400000 s"},
    ),
    "times that go back": (
        rows(column("timestamp", at(6, -0.1))),
        ["statistics", "time_jump"],
        {"kind": "time_jump", "episode": E1, "frame": 1},
    ),
    "another rate": (
        rows(column("timestamp", lambda times: [1.02 * t for t in times])),
        ["no_frame", "no_frame", "no_frame", "statistics", *["time_drift"] * 3],
        {"kind": "no_frame", "episode": E0, "frame": 1},
    ),
    "rows out of order": (
        rows(column("frame_index", at(9, 6))),
        ["row_order", "statistics"],
        {
            "kind": "row_order",
            "file": ROWS,
            "episode": E2,
            "frame": 1,
            "expected": "frame_index 1",
            "got": "6",
        },
    ),
    "rows among those of another": (
        rows(lambda t: t.take([0, 1, 5, 2, 3, 4, *range(6, 15)])),
        ["row_order", "row_order", "row_range"],
        {"got": "others between them", "episode": E0},
    ),
    "an episode outside of its file": (
        listed(column(BEGIN, at(2, 1.0))),
        ["outside_file", "unnamed_frames"],
        {"kind": "outside_file", "episode": E2, "feature": CAMERA, "frame": 5},
    ),
    "frames between rows": (
        listed(column(BEGIN, at(1, 0.53))),
        ["no_frame"],
        {"episode": E1, "frame": 0, "got": "0.500000 s"},
    ),
    "frames of two episodes": (
        listed(column(BEGIN, same_as(1, 0))),
        ["shared_frames", "unnamed_frames"],
        {"kind": "shared_frames", "episode": E1, "got": "3 of 15 frames"},
    ),
    "keyframes far apart": (
        filmed(pictures(100), options={"g": "250", "sc_threshold": "0"}, key_frames=[]),
        ["keyframes", "unnamed_frames"],
        {"kind": "keyframes", "severity": "warning", "feature": CAMERA, "file": VIDEO},
    ),
    "a black camera": (filmed(0 * STILL), ["black"], {"file": VIDEO, "frame": 0}),
    "a frozen camera": (filmed(STILL), ["frozen"], {"got": "1.2 s later", "feature": CAMERA}),
    "a column that is missing": (
        rows(lambda t: t.drop_columns("action")),
        ["column"],
        {"feature": "action", "file": ROWS},
    ),
    "a column of another kind": (
        rows(lambda t: t.drop_columns("action").append_column("action", [[[0.5] * 3] * 15])),
        ["column"],
        {"feature": "action", "got": "double [3]"},
    ),
    "a number that is none": (
        rows(column("action", at(3, [1.0, float("nan")]))),
        ["not_finite"],
        {"feature": "action", "got": "1 of 15 rows", "severity": "error"},
    ),
    "another mean": (
        stats(lambda found: found["action"].update(mean=[9, 9])),
        ["statistics"],
        {"file": "meta/stats.json", "feature": "action", "got": "mean of element 0: 9"},
    ),
    "extremes of other data": (
        stats(lambda found: found["tactile"]["max"].__setitem__(3, 1e6)),
        ["statistics"],
        {"feature": "tactile", "got": "max of element 3: 1e+06"},
    ),
    "statistics of fewer rows": (
        stats(lambda found: found["action"].update(count=[9])),
        ["statistics"],
        {"expected": "15 rows", "got": "9 rows"},
    ),
    "statistics that are missing": (
        stats(lambda found: found.pop("action")),
        ["statistics"],
        {"feature": "action"},
    ),
    "statistics that are none": (
        stats(lambda found: found.update(action={"mean": "much"})),
        ["statistics"],
        {"feature": "action", "message": "invalid statistics"},
    ),
    "statistics of several lengths": (
        stats(lambda found: found["action"].update(mean=[0.0])),
        ["statistics"],
        {"feature": "action", "message": "invalid statistics"},
    ),
    "statistics that are not finite": (
        stats(lambda found: found["action"]["min"].__setitem__(0, float("nan"))),
        ["statistics"],
        {"feature": "action", "got": "empty or non-finite numbers"},
    ),
    "statistics of pictures up to 255": (
        stats(lambda found: found[CAMERA].update(max=[255] * 3)),
        ["statistics"],
        {"feature": CAMERA, "message": "statistics of images are outside 0 to 1"},
    ),
    "a task without a text": (
        rows(column("task_index", at(0, 9))),
        ["column", "statistics"],
        {"kind": "column", "feature": "task_index", "got": "task_index 9"},
    ),
    "rows that are elsewhere": (
        listed(column("dataset_from_index", at(1, 4))),
        ["row_range"],
        {"episode": E1, "expected": "5 to 8", "got": "4 to 8"},
    ),
    "truncated video": (
        lambda root: cut_short(root / VIDEO),
        ["unreadable"],
        {"message": "truncated video", "file": VIDEO},
    ),
    "no statistics": (
        lambda root: (root / "meta/stats.json").unlink(),
        ["statistics"],
        {"file": "meta/stats.json", "severity": "warning"},
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken(tmp_path: Path, name: str) -> None:
    change, expected, facts = BROKEN[name]
    root = made(tmp_path)
    change(root)
    report = examine(root)
    assert kinds(report) == expected
    found = [each for each in report.findings if each.kind == facts.get("kind", each.kind)]
    assert {k: getattr(found[0], k) for k in facts} == facts
    assert str(root) not in "".join(map(str, report.findings))


def test_all_that_is_broken_in_one_pass(tmp_path: Path) -> None:
    """Of a set with a file for each episode, three are broken, in three ways."""
    root = made(tmp_path, "v21")
    video = root / f"videos/chunk-000/{CAMERA}"
    (video / "episode_000000.mp4").write_bytes(b"nothing")
    write_video(video / "episode_000001.mp4", pictures(2), rate=FPS)
    (root / "data/chunk-000/episode_000002.parquet").unlink()
    shutil.copy(root / "data/chunk-000/episode_000001.parquet", root / "data/chunk-000/x.parquet")
    report = examine(root)
    found = {(each.kind, each.episode, Path(each.file or "").name) for each in report.findings}
    assert found >= {
        ("unreadable", None, "episode_000000.mp4"),
        ("outside_file", E1, "episode_000001.mp4"),
        ("missing_file", E2, "episode_000002.parquet"),
        ("unnamed_file", None, "x.parquet"),
    }
    assert (report.num_frames, report.num_rows, report.cameras[0].frames) == (15, 11, 9)


def test_many_findings_of_a_kind_are_counted_but_not_kept(tmp_path: Path) -> None:
    root = made(tmp_path)
    for number in range(1100):
        (root / f"data/chunk-000/x{number}.parquet").touch()
    report = examine(root)
    assert report.counts == {"unnamed_file": 1100, "unreadable": 1100}
    assert len(report.findings) == 2000
    assert len(str(report).splitlines()) < 22


def test_the_command(tmp_path: Path) -> None:
    root = made(tmp_path)
    text = run("doctor", root, "--quiet").stdout
    assert "no problem found" in text
    assert "not checked: decoded frames" in text
    (root / VIDEO).unlink()
    text = run("doctor", root, "--quiet", code=1).stdout
    assert "error: missing_file: a file is missing" in text
    told = json.loads(run("doctor", root, "--quiet", "--json", code=1).stdout)
    assert told["ok"] is False
    assert len(told["skipped"]) == 2
    assert told["counts"] == {"missing_file": 1}
    assert told["findings"][0]["file"] == VIDEO
    assert told["cameras"][0]["frames"] == 0
    run("doctor", tmp_path / "none", code=1)


def test_statistics_of_index_columns_are_warnings(tmp_path: Path) -> None:
    """LeRobot's delete_episodes and aggregate_datasets leave them behind."""
    root = made(tmp_path)
    stats = json.loads((root / "meta/stats.json").read_text())
    for name in ("index", "frame_index", "episode_index", "timestamp"):
        stats[name]["max"] = [stats[name]["max"][0] + 7]
    del stats["task_index"]
    (root / "meta/stats.json").write_text(json.dumps(stats))
    text = run("doctor", root, "--quiet").stdout  # exits with 0
    assert text.count("warning: statistics: ") == 5
    assert "error" not in text
    stats["action"]["max"] = [1000.0] * len(stats["action"]["max"])
    (root / "meta/stats.json").write_text(json.dumps(stats))
    assert "error: statistics: " in run("doctor", root, "--quiet", code=1).stdout


def test_what_is_no_data_set_and_a_part_of_one(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        examine(tmp_path)
    assert caught.value.expected == "meta/info.json"
    (tmp_path / "x.hdf5").touch()
    with pytest.raises(SourceError, match="not a LeRobot dataset"):
        examine(tmp_path / "x.hdf5")
    root = made(tmp_path)
    with pytest.raises(SourceError, match=r"contains 1 dataset \(lerobot\)"):
        examine(root.parent)
    with pytest.raises(SourceError, match="part of a LeRobot dataset"):
        examine(root / "data")


def test_a_url(tmp_path: Path, memory_url: str) -> None:
    root = made(tmp_path)
    (root / VIDEO).write_bytes(b"nothing")
    here, there = examine(root), examine(upload(root, memory_url))
    assert there.findings == here.findings
    assert (there.num_rows, there.location) == (15, memory_url)


def test_a_store_that_fails_is_no_finding(tmp_path: Path, memory_url: str) -> None:
    upload(made(tmp_path), memory_url)
    refused = AccessError("refused")

    def fault(operation: Operation, path: str, _: int) -> Failure:
        return refused if operation == "read" and path == VIDEO else None

    with pytest.raises(AccessError) as caught:
        examine(FaultyStorage(open_storage(memory_url), fault))
    assert caught.value is refused
