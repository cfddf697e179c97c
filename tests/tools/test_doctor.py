"""`seqrecord doctor` reports each kind of damage to a LeRobot dataset, and none in a valid one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqrecord
from seqrecord.errors import AccessError, SourceError
from seqrecord.store.storage.opening import open_storage
from seqrecord.tools.doctor.doctor import examine
from seqrecord.tools.doctor.doctor_report import DoctorReport, Findings
from tests.formats.cases import upload
from tests.kit.command_line import run
from tests.kit.datasets import columns, write_dataset
from tests.kit.faults import Failure, FaultyStorage, Operation
from tests.kit.lerobot_data import FPS, LISTED, ROWS, at, column, edit_info, episodes, rewrite
from tests.kit.lerobot_video_data import CAMERAS, unpack, with_video
from tests.kit.video_file_data import copy_packets, pictures, write_video

CAMERA = CAMERAS[0]
PICTURE = {"mean": [0.5] * 3, "std": [0.3] * 3, "min": [0.0] * 3, "max": [1.0] * 3}
LENGTHS = [len(frames) for frames in episodes()]  # 5, 3, 7
VIDEO = f"videos/{CAMERA}/chunk-000/file-000.mp4"
BEGIN = f"videos/{CAMERA}/from_timestamp"


def made(folder: Path, version: str = "v3", **options: Any) -> Path:
    """A valid dataset with statistics computed from its rows."""
    root = unpack(folder, f"lerobot_{version}")
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


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("doctor"))


@pytest.fixture
def root(valid: Path, tmp_path: Path) -> Path:
    return shutil.copytree(valid, tmp_path / "lerobot")


@pytest.mark.parametrize("version", ["v3", "v21", "v20"])
def test_a_valid_dataset_has_no_finding(tmp_path: Path, version: str) -> None:
    """With B-frames, and without if each episode has its own files."""
    options = {} if version == "v3" else {"options": {"g": "4", "bf": "0"}}
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


def test_a_dataset_written_by_lerobot_has_no_finding(tmp_path: Path) -> None:
    assert examine(unpack(tmp_path, "lerobot_video_v21")).findings == ()


def listed(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    return lambda root: rewrite(root / LISTED, change)


def rows(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    return lambda root: rewrite(root / ROWS, change)


def filmed(images: Any, **options: Any) -> Callable[[Path], None]:
    """Replace the video of all episodes."""

    def change(root: Path) -> None:
        options_ = {"options": {"g": "4"}, "key_frames": [0, 5, 8], **options}
        write_video(root / VIDEO, images, rate=FPS, **options_)

    return change


def same_as(one: int, other: int) -> Callable[[list[Any]], list[Any]]:
    return lambda values: at(one, values[other])(values)


def cut_short(path: Path) -> None:
    """Index first, as in an incomplete download: the last packets are missing."""
    copy_packets(path.rename(path.with_suffix(".whole")), path, {"movflags": "faststart"})
    path.write_bytes(path.read_bytes()[:-100])


def replaced(file: str, data: bytes | None) -> Callable[[Path], None]:
    """Replace a file's bytes, or remove the file."""

    def change(root: Path) -> None:
        (root / file).unlink()
        if data is not None:
            (root / file).write_bytes(data)

    return change


def broken(kinds: str, change: Callable[[Path], Any], message: str) -> Any:
    """Expected kinds, the change to a valid dataset, and a part of the first kind's message."""
    return pytest.param(change, kinds.split(), message, id=kinds.partition(" ")[0])


E1, E2 = "episode_000001", "episode_000002"
STILL = np.repeat(pictures(1), 15, 0)
OTHER = VIDEO.replace("file-000", "file-001")
CAMERA_OF = f"{VIDEO}; feature: {CAMERA}"
NAN = float("nan")
BROKEN = [
    # Inconsistent rows, frames and episodes
    broken(
        "row_count metadata outside_file row_range",
        listed(column("length", at(2, 8))),
        f"{ROWS}; episode: {E2}; expected: 8; got: 7",
    ),
    broken(
        "unnamed_rows metadata metadata unnamed_frames",
        listed(lambda t: t.slice(1)),
        "15 rows; the first other row belongs to episode 0",
    ),
    broken(
        "unnamed_rows metadata metadata metadata metadata row_range unnamed_frames",
        listed(column("episode_index", at(2, 1))),
        "first other row belongs to episode 2",
    ),
    broken(
        "unnamed_frames metadata unnamed_rows",
        listed(column(BEGIN, at(1, -1.0))),
        "expected: 12 frames; got: 15 frames",
    ),
    broken(
        "unnamed_frames", filmed(pictures(20)), f"{CAMERA_OF}; expected: 15 frames; got: 20 frames"
    ),
    broken(
        "metadata",
        lambda r: edit_info(r, total_frames=99),
        "file: meta/info.json; expected: total_frames 99; got: 15",
    ),
    broken(
        "row_range",
        listed(column("dataset_from_index", at(1, 4))),
        "expected: 5 to 8; got: 4 to 8",
    ),
    broken(
        "row_order statistics",
        rows(column("frame_index", at(9, 6))),
        "frame: 1; expected: frame_index 1; got: 6",
    ),
    broken(
        "row_order row_order row_range",
        rows(lambda t: t.take([0, 1, 5, 2, 3, 4, *range(6, 15)])),
        "others between them",
    ),
    broken("outside_file unnamed_frames", listed(column(BEGIN, at(2, 1.0))), "0.000 to 1.400 s"),
    broken("no_frame", listed(column(BEGIN, at(1, 0.53))), "of 0.530000 s; got: 0.500000 s"),
    broken(
        "shared_frames unnamed_frames", listed(column(BEGIN, same_as(1, 0))), "got: 3 of 15 frames"
    ),
    # Files
    broken("missing_file", replaced(ROWS, None), "expected: 15 frames of 3 episodes"),
    broken("missing_file", replaced(VIDEO, None), "expected: 15 frames of 3 episodes"),
    broken("empty_file", replaced(VIDEO, b""), f"feature: {CAMERA}"),
    broken("empty_file row_count row_count row_count", rows(lambda t: t.slice(0, 0)), ROWS),
    broken("unnamed_file", lambda root: shutil.copy(root / VIDEO, root / OTHER), OTHER),
    broken("unreadable", lambda root: os.truncate(root / VIDEO, 999), CAMERA_OF),
    broken("unreadable", replaced(ROWS, b"PAR1" * 99), ROWS),
    broken(
        "unreadable",
        lambda r: cut_short(r / VIDEO),
        "truncated video: the file ends inside of a chunk of samples; copy its readable part",
    ),
    # Times and pictures
    broken(
        "time_jump outside_file statistics",
        rows(column("timestamp", lambda times: [t + (i > 11) for i, t in enumerate(times)])),
        f"episode: {E2}; frame: 4; expected: 0.400000 s; got: 1.400000 s",
    ),
    broken("time_jump statistics", rows(column("timestamp", at(6, -0.1))), "got: -0.100000 s"),
    broken(
        "no_frame no_frame no_frame statistics time_drift time_drift time_drift",
        rows(column("timestamp", lambda times: [1.02 * t for t in times])),
        "frame: 1; expected: a frame within 0.0001 s of 0.102000 s; got: 0.100000 s",
    ),
    broken(
        "time_jitter time_jitter time_jitter statistics",
        rows(
            column("timestamp", lambda times: [t + 2e-3 * (i % 3 > 1) for i, t in enumerate(times)])
        ),
        "by up to 2.0 ms; each row has the frame of its number; lerobot-train needs --tolerance_s",
    ),
    broken("stream", filmed(pictures(15)[:, :24]), "expected: [48, 64, 3]; got: [24, 64]"),
    broken(
        "keyframes unnamed_frames",
        filmed(pictures(100), options={"g": "250", "sc_threshold": "0"}, key_frames=[]),
        "got: 50 frames; up to 100 from one keyframe to the next",
    ),
    broken("black", filmed(0 * STILL), f"{CAMERA_OF}; frame: 0"),
    broken("frozen", filmed(STILL), f"{CAMERA_OF}; frame: 12; got: 1.2 s later"),
    # Columns
    broken("column", rows(lambda t: t.drop_columns("action")), "action; expected: action"),
    broken(
        "column",
        rows(lambda t: t.drop_columns("action").append_column("action", [[[0.5] * 3] * 15])),
        "feature: action; expected: action: float64 [2]; got: double [3]",
    ),
    broken("column statistics", rows(column("task_index", at(0, 9))), "got: task_index 9"),
    broken(
        "not_finite",
        rows(column("action", at(3, [1.0, NAN]))),
        "episode: episode_000000; feature: action; frame: 3; got: 1 of 15 rows",
    ),
]
WARNINGS = [
    "unnamed_rows",
    "unnamed_frames",
    "unnamed_file",
    "keyframes",
    "black",
    "frozen",
    "time_jitter",
]
STATISTICS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda found: found["action"].update(mean=[9, 9]), "got: mean of element 0: 9"),
    (lambda found: found["action"].update(count=[9]), "expected: 15 rows; got: 9 rows"),
    (lambda found: found.pop("action"), "file: meta/stats.json; feature: action"),
    (lambda found: found.update(action={"mean": "much"}), "invalid statistics"),
    (lambda found: found["action"].update(mean=[0.0]), "invalid statistics"),
    (lambda found: found["action"]["min"].__setitem__(0, NAN), "empty or non-finite numbers"),
    (lambda found: found["tactile"]["max"].__setitem__(3, 1e6), "max of element 3: 1e+06"),
    (lambda found: found[CAMERA].update(max=[255] * 3), "images are outside 0 to 1"),
]


@pytest.mark.parametrize(("change", "expected", "message"), BROKEN)
def test_damage_is_found(root: Path, change: Any, expected: list[str], message: str) -> None:
    change(root)
    report = examine(root)
    assert kinds(report) == sorted(expected)
    found = [each for each in report.findings if each.kind == expected[0]]
    assert message in str(found[0])
    assert (found[0].severity == "warning") == (expected[0] in WARNINGS)
    assert str(root) not in "".join(map(str, report.findings))


def test_statistics_that_differ_from_the_rows(root: Path) -> None:
    path = root / "meta/stats.json"
    good = path.read_text()
    for change, message in STATISTICS:
        found = json.loads(good)
        change(found)
        path.write_text(json.dumps(found))
        [finding] = examine(root).findings
        assert finding.kind == "statistics"
        assert message in str(finding)
        of_policies = not message.startswith("max of element 3")  # tactile
        assert finding.severity == ("error" if of_policies else "warning")
    # LeRobot's delete_episodes and aggregate_datasets do not update statistics of index columns.
    found = json.loads(good)
    for name in ("index", "frame_index", "episode_index", "timestamp"):
        found[name]["max"] = [found[name]["max"][0] + 7]
    del found["task_index"]
    path.write_text(json.dumps(found))
    text = run("doctor", root, "--quiet").stdout  # exits with 0
    assert text.count("warning: statistics: ") == 5
    assert "error" not in text
    found["action"]["max"] = [1000.0] * len(found["action"]["max"])
    path.write_text(json.dumps(found))
    assert "error: statistics: " in run("doctor", root, "--quiet", code=1).stdout
    path.unlink()
    [finding] = examine(root).findings
    assert (finding.kind, finding.severity) == ("statistics", "warning")
    assert finding.file == "meta/stats.json"


def test_features_that_no_policy_normalises_need_no_statistics(root: Path) -> None:
    """LeRobot's add_features computes none; policies see `observation…`, `action…` and images."""
    path = root / "meta/stats.json"
    good = path.read_text()
    names = {"tactile", "next.reward", "action", "observation.state", "observation.image", CAMERA}
    warned = {"tactile", "next.reward"}
    assert names <= json.loads(good).keys()
    for name in sorted(names):
        for value in (None, {"mean": "much"}):
            found = json.loads(good)
            found[name] = value
            path.write_text(json.dumps(found))
            [finding] = examine(root).findings
            assert (finding.kind, finding.feature) == ("statistics", name)
            assert finding.severity == ("warning" if name in warned else "error")
            run("doctor", root, "--quiet", code=name not in warned)


def test_several_broken_files_are_found_in_one_run(tmp_path: Path) -> None:
    """Three broken files in a dataset with a file per episode."""
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


def test_only_the_first_findings_of_a_kind_are_kept(root: Path) -> None:
    for number in range(1100):
        (root / f"data/chunk-000/x{number}.parquet").touch()
    report = examine(root)
    assert report.counts == {"unnamed_file": 1100, "unreadable": 1100}
    assert len(report.findings) == 2000
    assert len(str(report).splitlines()) < 22


def test_an_error_behind_many_warnings_of_its_kind_counts(tmp_path: Path) -> None:
    findings = Findings(tmp_path)
    for _ in range(1100):
        findings.add("stream", "another codec", severity="warning")
    findings.add("stream", "another size")
    report = DoctorReport(
        location="lerobot",
        num_episodes=1,
        num_frames=1,
        findings=tuple(findings.kept),
        counts=dict(findings.counts),
        version="v3.0",
        fps=10.0,
        num_tables=1,
        num_rows=1,
        cameras=(),
    )
    assert not report.ok
    assert (report.counts, len(report.findings)) == ({"stream": 1101}, 1001)
    assert "error: stream: another size" in str(report)


def test_the_command(root: Path, tmp_path: Path) -> None:
    text = run("doctor", root, "--quiet").stdout
    assert "no problem found" in text
    assert "not checked: decoded frames" in text
    (root / VIDEO).unlink()
    text = run("doctor", root, "--quiet", code=1).stdout
    assert "error: missing_file: a file is missing" in text
    report = json.loads(run("doctor", root, "--quiet", "--json", code=1).stdout)
    assert (report["ok"], len(report["skipped"])) == (False, 2)
    assert report["counts"] == {"missing_file": 1}
    assert report["findings"][0]["file"] == VIDEO
    assert report["cameras"][0]["frames"] == 0
    run("doctor", tmp_path / "none", code=1)


def test_other_folders_and_parts_of_a_dataset_are_errors(valid: Path, tmp_path: Path) -> None:
    (tmp_path / "x.hdf5").touch()
    for place, message in (
        (tmp_path / "x.hdf5", "not a LeRobot dataset.*--quality"),
        (valid.parent, r"contains 1 dataset \(lerobot\)"),
        (valid / "data", "part of a LeRobot dataset"),
    ):
        with pytest.raises(SourceError, match=message):
            examine(place)


def test_a_url_and_a_failing_storage(root: Path, memory_url: str) -> None:
    (root / VIDEO).write_bytes(b"nothing")
    local, remote = examine(root), examine(upload(root, memory_url))
    assert remote.findings == local.findings
    assert (remote.num_rows, remote.location) == (15, memory_url)
    refused = AccessError("refused")

    def fault(operation: Operation, path: str, _: int) -> Failure:
        return refused if operation == "read" and path == VIDEO else None

    with pytest.raises(AccessError) as caught:
        examine(FaultyStorage(open_storage(memory_url), fault))
    assert caught.value is refused, "not a finding"


# ---- quality of demonstrations


def demonstrations(folder: Path) -> tuple[Path, dict[str, dict[str, Any]]]:
    """Six recordings, four of which deviate: still, jerky, ends elsewhere, with a gap and NaN."""
    rng = np.random.default_rng(0)
    recorded: dict[str, dict[str, Any]] = {}
    for name in ("one", "two", "still", "jerky", "elsewhere", "gap"):
        state = np.linspace([0, 1, 5], [1, 0, 5], 30) + rng.normal(0, 0.001, (30, 3)) * [1, 1, 0]
        time, action = np.arange(30) / 10, rng.normal(size=(30, 2)).clip(-2, 2)
        if name == "still":
            state[5:25] = state[5]
        elif name == "jerky":
            state[::2, :2] += 0.3
            action[7] = 50
        elif name == "elsewhere":
            state[:, 0] *= -2
        elif name == "gap":
            time[20:] += 3
            action[3, 1] = np.nan
        recorded[name] = {"state": state, "action": action, "time": time}
    schema = seqrecord.Schema(
        [
            seqrecord.FeatureSpec("state", np.dtype("f8"), (3,), kind="state"),
            seqrecord.FeatureSpec("action", np.dtype("f8"), (2,), kind="action"),
            seqrecord.FeatureSpec("time", np.dtype("f8"), (), kind="timestamp", unit="s"),
        ]
    )
    episodes = {name: columns(**values) for name, values in recorded.items()}
    write_dataset(folder, episodes, schema=schema)
    return folder, recorded


def test_quality_replaces_no_other_file(tmp_path: Path) -> None:
    root, _ = demonstrations(tmp_path / "records")
    mine = tmp_path / "mine.parquet"
    pq.write_table(pa.table({"episode": ["mine"]}), mine)
    before = mine.read_bytes()
    for path in (mine, tmp_path, tmp_path / "absent" / "quality.parquet"):
        assert "--quality" in run("doctor", root, "--quality", path, code=1).output
    assert mine.read_bytes() == before


def test_quality_of_times_that_are_unknown(tmp_path: Path) -> None:
    """Numbers without a unit that are no seconds, and NaN, are left out."""
    times = np.arange(30) / 10
    broken = times.copy()
    broken[[0, 7, 29]] = np.nan
    for number, (values, seconds, gap) in enumerate(
        [
            (np.int64(times * 1e9), 3.0, None),  # by the frame rate
            (times, 2.9, 0.1),
            (broken, 2.7, 0.2),
        ]
    ):
        frames = [{"t": time, "state": np.array([i], np.float32)} for i, time in enumerate(values)]
        path, table = tmp_path / f"{number}", tmp_path / f"{number}.parquet"
        features = {"t": {"kind": "timestamp"}, "state": {"kind": "state"}}
        write_dataset(path, {"a": frames}, rates={"a": 10.0}, features=features)
        text = run("doctor", path, "--quiet", "--quality", table, "--json").stdout
        assert "NaN" not in text
        [row] = json.loads(text)
        assert row["seconds"] == pytest.approx(seconds)
        assert row["gap"] == (None if gap is None else pytest.approx(gap))
        assert row["not_finite"] == (3 if number == 2 else 0)


def test_quality_of_each_episode(tmp_path: Path) -> None:
    root, recorded = demonstrations(tmp_path / "records")
    table = tmp_path / "quality.parquet"
    text = run("doctor", root, "--quiet", "--quality", table, "--json").stdout
    found = {row["episode"]: row for row in json.loads(text)}
    rows = pq.read_table(table).to_pylist()
    assert rows == [*found.values()]
    assert [row["rank"] for row in rows] == [1, 2, 3, 4, 5, 6]
    chosen = pq.read_table(table, filters=[("gap", "<", 1)])
    pipe = seqrecord.SeqRecordPipe(root, clip_len=1, samples=chosen, batch_size=150)
    [batch] = pipe
    assert batch["gap"].tolist() == [found[key]["gap"] for key in batch["episode"]]
    shown = run("doctor", root, "--quiet", "--quality", table).stdout.splitlines()
    assert [line.split()[0] for line in shown] == ["episode", *found]
    every = {n: np.concatenate([one[n] for one in recorded.values()]) for n in ("state", "action")}
    mean, std = ({n: f(v, axis=0) for n, v in every.items()} for f in (np.nanmean, np.nanstd))
    std["state"][2] = 1  # constant
    scaled = {
        name: {n: (one[n] - mean[n]) / std[n] for n in every} for name, one in recorded.items()
    }
    middle = np.median([one["state"][-1] for one in scaled.values()], axis=0)
    for name, one in scaled.items():
        steps = abs(np.diff(one["state"], axis=0)).max(1)
        expected = {
            "num_frames": 30,
            "seconds": recorded[name]["time"][-1],
            "still": (steps <= 0.01).mean(),
            "jerk": np.sqrt((np.diff(one["state"], 3, axis=0) ** 2).mean()),
            "state_outlier": abs(one["state"]).max(),
            "action_outlier": np.nanmax(abs(one["action"])),
            "final_pose": np.sqrt(((one["state"][-1] - middle) ** 2).mean()),
            "gap": np.diff(recorded[name]["time"]).max(),
            "not_finite": int(name == "gap"),
        }
        for column_name, value in expected.items():
            assert found[name][column_name] == pytest.approx(value), (name, column_name)
    worst = {
        "still": "still", "jerk": "jerky", "action_outlier": "jerky", "final_pose": "elsewhere",
        "gap": "gap", "not_finite": "gap",
    }  # fmt: skip
    for column_name, name in worst.items():
        assert max(found, key=lambda key: found[key][column_name]) == name
    assert {found[name]["rank"] for name in ("one", "two")} == {5, 6}
