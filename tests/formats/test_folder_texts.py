"""Folders: numbers in text files beside images, camera files, and unrelated file names."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import seqrecord
from seqrecord import open_source
from seqrecord.errors import SourceError
from seqrecord.sources import FolderSource, inventory_of

Array = npt.NDArray[Any]
RNG = np.random.default_rng(0)
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


def images(folder: Path, names: list[str], size: tuple[int, int] = (4, 6)) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        pixels = RNG.integers(0, 256, (*size, 3), np.uint8)
        Image.fromarray(pixels).save(folder / name)


def frames(source: FolderSource, episode: int = 0) -> list[dict[str, Any]]:
    return [dict(frame) for frame in source.frames(source.episodes()[episode])]


def numbered(count: int, ending: str = ".png") -> list[str]:
    return [f"{number:06d}{ending}" for number in range(count)]


def texts(folder: Path, **contents: str) -> None:
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())


def refused(source: FolderSource, episode: int, match: str) -> SourceError:
    with pytest.raises(SourceError, match=match) as caught:
        frames(source, episode)
    return caught.value


def features(source: FolderSource) -> dict[str, str]:
    added = ("frame_number", "frame_name")
    return {n: f"{s.dtype} {list(s.shape)}" for n, s in source.schema().items() if n not in added}


def test_7_scenes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A text file with a 4x4 matrix per image, columns separated by tabs and spaces."""
    poses = RNG.normal(size=(2, 3, 4, 4)).astype(np.float32).astype(np.float64)
    for sequence in range(2):
        folder = tmp_path / "chess" / f"seq-0{sequence + 1}"
        images(folder, [f"frame-{i:06d}.color.png" for i in range(3)])
        for i, pose in enumerate(poses[sequence]):
            depth = RNG.integers(0, 65536, (4, 6)).astype(np.uint16)
            Image.fromarray(depth).save(folder / f"frame-{i:06d}.depth.png")
            rows = ("\t ".join(f"{x!r}" for x in row.tolist()) + "\t " for row in pose)
            texts(folder, **{f"frame-{i:06d}.pose.txt": "\r\n".join(rows) + "\r\n"})
            texts(folder, **{f"._frame-{i:06d}.pose.txt": "junk", "Thumbs.db": "junk"})
    texts(tmp_path / "chess", **{"TrainSplit.txt": "sequence1\nsequence2\n"})
    source = FolderSource(tmp_path)
    assert [info.key for info in source.episodes()] == ["chess/seq-01", "chess/seq-02"]
    assert features(source) == {
        "frame_color": "uint8 [4, 6, 3]",
        "frame_depth": "uint16 [4, 6]",
        "frame_pose": "float64 [4, 4]",
    }
    meanings = {name: (spec.kind, spec.unit) for name, spec in source.schema().items()}
    assert (meanings["frame_depth"], meanings["frame_pose"]) == (("depth", "mm"), ("pose", "m"))
    assert not caplog.records
    for episode in range(2):
        for frame, pose in zip(frames(source, episode), poses[episode], strict=True):
            np.testing.assert_array_equal(frame["frame_pose"], pose, strict=True)
    shutil.rmtree(tmp_path / "chess" / "seq-02")
    # Missing and invalid poses: no shape [None, 4], no column names, no episode without poses
    path = tmp_path / "chess" / "seq-01" / "frame-000001.pose.txt"
    path.unlink()
    assert refused(FolderSource(tmp_path), 0, "different frames").feature == "frame_pose"
    for text, message in (
        ("", "not a table of numbers; .*frame-000001.pose.txt.*got: no rows"),
        ("1 2 3\n", r"columns differs.*000001.pose.txt.*expected: 4 columns.*got: 3"),
        ("-1.#IND nan 0 0\n" + "0 0 0 1\n" * 3, "frame-000001.pose.txt.*got: '-1.#IND nan 0 0'"),
        ("lost\n", "frame-000001.pose.txt.*got: 'lost'"),
        (POINTER, "git lfs pull.*000001"),
    ):
        path.write_text(text)
        with pytest.raises(SourceError, match=message):
            seqrecord.convert(FolderSource(tmp_path), tmp_path / "out", workers=1)


def test_a_folder_of_text_files_beside_folders_of_images(tmp_path: Path) -> None:
    """As in ScanNet's export; poses may be infinite, and a frame may have 0 or more labels."""
    images(tmp_path / "scene" / "color", [f"{i}.jpg" for i in range(12)])
    for i in range(12):
        pose = "-inf -inf\n-inf -inf\n" if i == 5 else f"{i} 0.5\n0 1\n"
        labels = "".join(f"{row} 0.1 0.2 0.3 {i}\n" for row in range(i % 3))
        texts(tmp_path / "scene", **{f"pose/{i}.txt": pose, f"labels/{i}.txt": labels})
        texts(tmp_path / "scene", **{f"captions/{i}.txt": f"a cup and {i} spoons"})
    source = FolderSource(tmp_path)
    assert features(source) == {
        "color": "uint8 [4, 6, 3]",
        "labels": "float64 [None, 5]",
        "pose": "float64 [2, 2]",
    }
    read = frames(source)
    assert read[11]["pose"].tolist() == [[11, 0.5], [0, 1]]
    assert np.isneginf(read[5]["pose"]).all()
    assert [frame["labels"].shape for frame in read] == [(i % 3, 5) for i in range(12)]


TABLES: dict[str, list[str]] = {  # one row, and the column names
    "0.5 1 -2e3\n": [],
    "0.5,1,-2e3\n": [],
    "0.5, 1, -2e3\n": [],
    "0.5;1;-2e3\n": [],
    "0.5\t1\t-2e3\t\n": [],
    "0.5,1,-2e3 \n": ["x", "y", "z"],
    "\ufeff0.5,1,-2e3\r\n": [],
}


def test_tables_with_one_row_per_frame(tmp_path: Path) -> None:
    run = tmp_path / "run"
    images(run / "rgb", numbered(3))
    for letter, (line, columns) in zip("abcdefg", TABLES.items(), strict=True):
        text = f"# a comment\n{','.join(columns)}\n" if columns else ""
        text += line + line.removeprefix("\ufeff") * 2
        texts(run, **{f"motion_{letter}.csv": text})
    # Integers that float64 cannot represent
    bases = {"ns": 1403636579763555584 + 1, "few": 2**53 + 1}
    for n, base in bases.items():
        rows = "".join(f"{base + i},{i}.5,2\n" for i in range(3))
        texts(run, **{f"times_{n}.txt": "".join(f"{base + i}\n" for i in range(3))})
        texts(run, **{f"poses_{n}.csv": f"time,x,y\n{rows}"})
    # A table in its own folder, and one with the name of another feature
    texts(run, **{"pose/left_0.txt": "0 1\n" * 3, "rgb.txt": "0 1\n" * 3})
    for number, text in enumerate(OTHER_TEXTS):
        texts(run, **{f"imu_{number}.csv": text})
    source = FolderSource(tmp_path)
    found = {"rgb": "uint8 [4, 6, 3]", "rgb.txt": "float64 [2]", "pose.left_0": "float64 [2]"}
    for n in bases:
        found |= {f"poses_{n}": "float64 [2]", f"poses_{n}.time": "int64 []"}
        found[f"times_{n}"] = "int64 []"
    found |= {f"motion_{letter}": "float64 [3]" for letter in "abcdefg"}
    assert features(source) == found
    for i, frame in enumerate(frames(source)):
        for n, base in bases.items():
            assert int(frame[f"times_{n}"]) == int(frame[f"poses_{n}.time"]) == base + i
            assert frame[f"poses_{n}"].tolist() == [i + 0.5, 2]
        for letter in "abcdefg":
            assert frame[f"motion_{letter}"].tolist() == [0.5, 1, -2000], letter
    named = {"motion_f": ["x", "y", "z"], **{f"poses_{n}": ["x", "y"] for n in bases}}
    assert source.episodes()[0].metadata["columns"] == named


OTHER_TEXTS = [  # no features
    *("1 2\n3 4\n", "1 2\n3 4\n5 6\n7 8\n9 10\n", "1 2\n3\n4 5\n"),
    *("1,5 2,5\n1,5 2,5\n1,5 2,5\n", "a\nb\nc\n", "1_0\n2\n3_0\n", ""),
]


def test_text_files_without_images_are_no_episode(tmp_path: Path) -> None:
    """As KITTI's poses outside of its sequences."""
    for name in ("00", "01"):
        images(tmp_path / "sequences" / name / "left", numbered(3))
        texts(tmp_path, **{f"poses/{name}.txt": "1 2\n" * 3, "splits.txt": "1 2\n" * 3})
    source = FolderSource(tmp_path)
    assert [info.key for info in source.episodes()] == ["sequences/00", "sequences/01"]
    assert [*features(source)] == ["left"]


# --- cameras -----------------------------------------------------------------------------------

CAMERA = {"fx": 5.0, "fy": 5.5, "cx": 3.0, "cy": 2.0, "width": 6, "height": 4}
CAMERAS = {
    "K.txt": "5 0 3\n0 5.5 2\n0 0 1\n",
    "intrinsics.txt": "5.0, 5.5, 3.0, 2.0",
    "intrinsic_color.txt": "5 0 3 0\n0 5.5 2 0\n0 0 1 0\n0 0 0 1\n",
    "camera.txt": "5 0 3 0 5.5 2 0 0 1",
    "calib.txt": "# fx fy cx cy\n5 5.5 3 2",
    "camera.json": '{"fx": 5, "fy": 5.5, "cx": 3, "cy": 2}',
}


AMBIGUOUS: list[dict[str, str]] = [
    {"K_left.txt": CAMERAS["K.txt"], "K_right.txt": CAMERAS["K.txt"]},
    {"K.txt": "5 0.1 3\n0 5.5 2\n0 0 1\n"},
    {"K.txt": "5 0 9\n0 5.5 2\n0 0 1\n"},
    {"K.txt": "-5 0 3\n0 5.5 2\n0 0 1\n"},
    {"K.txt": "nan 0 3\n0 5.5 2\n0 0 1\n"},
    {"calib.yaml": "fx: 5\n"},
    {"camera.json": '{"fx": 5}'},
    {"camera.json": "[" * 100_000},
    {"intrinsics.txt": "cup"},
]


def test_cameras(tmp_path: Path) -> None:
    """One episode per case; a table is a feature, whatever its name."""
    pose = "1 0 0 0\n0 1 0 0\n0 0 1 0\n0 0 0 1\n"
    cases = [({name: text, "extrinsics.txt": pose}, CAMERA) for name, text in CAMERAS.items()]
    cases += [(files, {}) for files in AMBIGUOUS]
    cases.append(({"camera_poses.txt": "0 0 0 0 0 0 1\n" * 5}, {}))
    for number, (files, camera) in enumerate(cases):
        images(tmp_path / f"{number}" / "rgb", numbered(5))
        for name, text in files.items():
            (tmp_path / f"{number}" / name).write_text(text)
        source = FolderSource(tmp_path / f"{number}")
        assert source.episodes()[0].metadata.get("camera", {}) == camera, files
        assert [*features(source)] == [*(n[:-4] for n in files if "poses" in n), "rgb"], files


# --- names of files ----------------------------------------------------------------------------


UNRELATED = [
    (["a_0.png", "a_1.png", "a_2.png", "b_3.png", "b_4.png"], "b_3.png"),
    (["IMG_1.png", "IMG_2.png", "DSC_3.png"], "DSC_3.png"),
    ([*numbered(4), "000003 (1).png"], "000003 (1).png"),
    ([*numbered(3), "000003 (1).png"], "000003 (1).png"),
    ([*numbered(4), "000003_1.png"], "000003_1.png"),
    ([*numbered(4), "000003 - Copy.png"], "000003 - Copy.png"),
    ([*numbered(4), "000003copy.png"], "000003copy.png"),
    ([*numbered(4), "preview.png"], "preview.png"),
    (["0.5.png", "1.5.png", "2.png"], "2.png"),
]


def test_files_of_another_recording_are_errors(tmp_path: Path) -> None:
    """Only their own episode fails; also with several features in one folder."""
    for number, (names, _) in enumerate(UNRELATED):
        images(tmp_path / f"{number}" / "rgb", names)
    flat = [f"{i}_{name}.png" for i in range(3) for name in ("rgb", "depth")]
    images(tmp_path / "copy", [*flat, "1_rgb (1).png"])
    images(tmp_path / "sound" / "rgb", numbered(3))
    # Equal numbers mark separate features: cam0_0007.png and cam1_0007.png
    images(tmp_path / "two", [*(f"a_{i}.png" for i in range(5)), *(f"b_{i}.png" for i in range(3))])
    source = FolderSource(tmp_path)
    keys = [info.key for info in source.episodes()]
    for number, (names, shown) in enumerate(UNRELATED):
        error = refused(source, keys.index(f"{number}"), "differ by more than a number")
        assert (error.episode, error.feature, error.got) == (f"{number}", "rgb", shown)
        assert error.file == str(tmp_path / f"{number}" / "rgb" / shown)
        assert names[0] in str(error.expected)
    error = refused(source, keys.index("copy"), "differ by more than a number")
    assert error.got == "1_rgb (1).png"
    two = r"a_0.png and b_0.png belong to two recordings"
    assert refused(source, keys.index("two"), two).feature == "b"
    assert len(frames(source, keys.index("sound"))) == 3


MINUS = {
    "a": ("{}.png", range(-5, 6)),
    "b": ("frame-{}.png", range(4)),  # a hyphen, not a minus
    "c": ("frame_{}.png", range(-2, 1)),
}


def test_a_minus_is_part_of_the_frame_number(tmp_path: Path) -> None:
    for run, (name, found) in MINUS.items():
        images(tmp_path / run / "rgb", [name.format(number) for number in found])
    source = FolderSource(tmp_path)
    for episode, (_, found) in enumerate(MINUS.values()):
        assert [int(frame["frame_number"]) for frame in frames(source, episode)] == [*found]
    assert source.episodes()[0].metadata["files"]["rgb"] == "rgb/{:01d}.png"


NS = 10**9
TIMES: dict[str, tuple[list[str], list[int] | None]] = {  # names in order, and nanoseconds
    "decimals": (
        ["1305031102.05", "1305031102.15", "1305031102.2", "1305031102.25", "1305031103"],
        [1305031102 * NS + k * NS // 100 for k in (5, 15, 20, 25, 100)],
    ),
    "arkit": (["41069021_305.365", "41069021_305.5", "41069021_1305.1"],
              [305_365_000_000, 305_500_000_000, 1305_100_000_000]),
    "ns": (["1403636579763555584", "1403636589813555584"],
           [1403636579763555584, 1403636589813555584]),
    "us": (["cam_1700000000000033_left"], [1700000000000033 * 1000]),
    "ms": (["1700000000000", "1700000000033"], [1700000000000 * 10**6, 1700000000033 * 10**6]),
    "numbers": (["0000000001", "0000000002"], None),  # no dates
    "versions": (["v_1.0_000001", "v_1.0_000002"], None),  # not unique
}  # fmt: skip


@pytest.mark.parametrize("names", TIMES)
def test_file_names_that_are_times(tmp_path: Path, names: str) -> None:
    stems, expected = TIMES[names]
    for run, count in (("run", len(stems)), ("second", 2)):
        images(tmp_path / run / "rgb", [f"{stem}.png" for stem in stems[:count][::-1]])
    source = FolderSource(tmp_path)
    notes, found = inventory_of(source).notes, frames(source)
    unit = names if names in ("ns", "us", "ms") else "s"
    note = f"the file names are times in {unit} (2 of 2 episodes)"
    assert (note in notes) == (expected is not None)
    if expected is None:
        assert "timestamp" not in source.schema()
        return
    assert [int(frame["timestamp"]) for frame in found] == expected
    spec = source.schema()["timestamp"]
    assert (spec.dtype.name, spec.kind, spec.unit) == ("int64", "timestamp", "ns")
    if names in ("decimals", "arkit"):
        assert [frame["frame_name"] for frame in found] == stems


def test_times_of_several_units_in_names_are_refused(tmp_path: Path) -> None:
    images(tmp_path / "run" / "rgb", ["1341847980.722988.png", "1403636579763555584.png"])
    with pytest.raises(SourceError, match="several units") as caught:
        frames(FolderSource(tmp_path))
    assert "1341847980.722988 (s)" in str(caught.value.got)
    assert "1403636579763555584 (ns)" in str(caught.value.got)


# --- the inventory -----------------------------------------------------------------------------


def left_out_of(source: Any) -> dict[str, tuple[int, str]]:
    return {each.pattern: (each.count, each.reason) for each in inventory_of(source).left_out}


def test_the_inventory(tmp_path: Path) -> None:
    for name, rows in (("a", 1200), ("b", 1201)):
        run = tmp_path / name
        images(run / "rgb", numbered(4))
        for i in range(4):
            texts(run, **{f"sound/{i:06d}.wav": "RIFF", f"words/{i:06d}.txt": "a cup"})
        np.save(run / "actions.npy", np.zeros((4, 2)))
        np.savez(run / "robot.npz", state=np.zeros((4, 3)), limits=np.zeros((7, 2)), rate=30.0)
        texts(run, **{"poses.txt": "0 0 0 0 0 0 1\n" * 4, "imu.csv": "1,2\n" * rows})
        texts(run, **{"calib.yaml": "fx: 5\n", "notes.txt": "a cup\n", "README.md": "a run\n"})
        texts(run, **{"Thumbs.db": "", "._imu.csv": "", "metadata.json": '{"task": "pick"}'})
        texts(run, **{"all.rosbag": "#ROSBAG V2.0\n", "lfs.txt": POINTER, "lfs.npz": POINTER})
        texts(run, **{"lfs/0.txt": POINTER, "lfs/1.txt": POINTER})
        (run / "more.tgz").write_bytes(b"\x1f\x8b")
    found = inventory_of(open_source(tmp_path, features=["rgb", "poses", "state"]))
    assert found.format == "folders"
    assert found.reason == "2 episode folders, such as a with */actions.npy"
    assert {each.name: each.place for each in found.features} == {
        "poses": "*/poses.txt",
        "rgb": "*/rgb/*.png",
        "state": "*/robot.npz: state",
    }
    left_out = {each.pattern: (each.count, each.reason) for each in found.left_out}
    for pattern, command in {
        **dict.fromkeys(("a/lfs.txt", "b/lfs.txt", "*/lfs.npz", "*/lfs/*.txt"), "git lfs pull"),
        **dict.fromkeys(("a/all.rosbag", "b/all.rosbag"), "rename it to .bag"),
        **dict.fromkeys(("a/more.tgz", "b/more.tgz"), "tar -xzf more.tgz"),
    }.items():
        assert command in left_out.pop(pattern)[1]
    assert left_out == {
        "*/imu.csv": (2, "1,200 rows for 4 frames, …"),
        "*/robot.npz: limits": (2, "7 rows for 4 frames"),
        "*/robot.npz: rate": (2, "no time axis"),
        "*/calib.yaml": (2, "camera file: not fx, fy, cx, cy or a camera matrix"),
        "*/sound/*.wav": (8, "no reader"),
        "*/words/*.txt": (8, "no reader"),
        "a/notes.txt": (1, "no reader"),
        "b/notes.txt": (1, "no reader"),
        "feature actions": (1, "not selected by features="),
    }
    harmless = {each.pattern for each in found.left_out if not each.is_data}
    not_chosen = {"*/imu.csv", "*/robot.npz: limits", "*/robot.npz: rate"}  # by features=
    assert harmless == {"feature actions", "*/lfs.npz", *not_chosen}


def test_the_inventory_of_a_fully_read_folder_is_empty(tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    images(flat, [f"{i}_{name}.png" for i in range(3) for name in ("rgb", "depth")])
    texts(flat, **{"poses.txt": "0 0\n" * 3, "K.txt": CAMERAS["K.txt"]})
    texts(flat, **{f"{i}_pose.txt": "1 0\n0 1\n" for i in range(3)})
    source = FolderSource(flat)
    assert left_out_of(source) == {}
    with pytest.raises(SourceError, match="no such feature"):
        FolderSource(flat, features=["imu"]).schema()
    seqrecord.convert(source, tmp_path / "records", workers=1, strict=True)
    images(flat, ["preview.png"])
    reason = "an image that belongs to no feature"
    assert left_out_of(FolderSource(flat)) == {"preview.png": (1, reason)}
    run = tmp_path / "run"  # the folder of one recording itself
    images(run, numbered(5))
    texts(run, **{"poses.txt": "0 0\n" * 5})
    source = FolderSource(run)
    assert [info.key for info in source.episodes()] == ["run"]
    assert features(source) == {"frame": "uint8 [4, 6, 3]", "poses": "float64 [2]"}
    assert len(frames(source)) == 5
    texts(run, **{"imu.csv": "1,2\n" * 50})
    with pytest.raises(SourceError, match=r"imu\.csv: 1 file, 50 rows for 5 frames"):
        seqrecord.convert(FolderSource(run), tmp_path / "all", workers=1, strict=True)
    chosen = open_source(run, features=["frame"])
    report = seqrecord.convert(chosen, tmp_path / "rgb", workers=1, strict=True)
    assert {each.pattern for each in report.inventory.left_out} == {"imu.csv", "feature poses"}


def test_a_broken_episode_is_skipped(tmp_path: Path) -> None:
    """Reads for the inventory do not fail either."""
    src = tmp_path / "src"
    for name in "abc":
        images(src / name / "rgb", numbered(5))
        np.save(src / name / "actions.npy", np.zeros((5, 2)))
        texts(src / name, **{"poses.txt": "0 0\n" * 5, "K.txt": CAMERAS["K.txt"]})
    texts(src, **{"a/rgb/000000.png": "cut", "d/actions.npy": "cut"})
    texts(src, **{"b/poses.txt": "1 2\n" * 4 + "1 2 3\n"})
    report = seqrecord.convert(
        FolderSource(src), tmp_path / "records", workers=1, skip_bad_episodes=True
    )
    with seqrecord.open(tmp_path / "records") as dataset:
        assert sorted(dataset.episodes.keys()) == ["b", "c"]
        assert dataset.episodes["c"].metadata["camera"] == CAMERA
    left_out = {each.pattern: each.reason for each in report.inventory.left_out}
    reason = "not a table of numbers: rows of different numbers of columns"
    assert left_out["*/poses.txt"] == reason


def test_no_note_about_a_unit_passed_as_argument(tmp_path: Path) -> None:
    images(tmp_path / "in" / "run" / "rgb", numbered(2))
    (tmp_path / "in" / "run" / "depth").mkdir()
    for name in numbered(2):
        depth = np.full((4, 6), 700, np.uint16)
        Image.fromarray(depth).save(tmp_path / "in" / "run" / "depth" / name)
    source = FolderSource(tmp_path / "in")
    [note] = seqrecord.convert(source, tmp_path / "without_unit", workers=1).inventory.notes
    assert "without a unit" in note
    report = seqrecord.convert(source, tmp_path / "with_unit", workers=1, units={"depth": "mm"})
    assert report.inventory.notes == ()


def test_sensors_of_kitti_raw_are_features_of_one_episode(tmp_path: Path) -> None:
    drive = tmp_path / "2011_09_26" / "drive_0001"
    times = "\n".join(f"2011-09-26 13:02:25.{i}" for i in range(3))
    for sensor in ("image_02", "image_03"):
        images(drive / sensor / "data", [f"{i:010d}.png" for i in range(3)])
        texts(drive / sensor, **{"timestamps.txt": times})
    texts(drive / "oxts", **{f"data/{i:010d}.txt": "1.5 2.5 3" for i in range(3)})
    texts(drive / "oxts", **{"timestamps.txt": times})
    for root, key in ((tmp_path, "2011_09_26/drive_0001"), (drive, "drive_0001")):
        source = FolderSource(root)
        assert [info.key for info in source.episodes()] == [key]
        image = "uint8 [4, 6, 3]"
        assert features(source) == {"image_02": image, "image_03": image, "oxts": "float64 [3]"}
        assert [frame["oxts"].tolist() for frame in frames(source)] == [[1.5, 2.5, 3]] * 3
        assert set(left_out_of(source)) == {
            (drive / name).relative_to(root).as_posix()
            for name in ("*/timestamps.txt", "oxts/timestamps.txt")
        }
    images(tmp_path / "runs" / "a" / "data", numbered(2))  # without times: two recordings
    images(tmp_path / "runs" / "b" / "data", numbered(2))
    assert [info.key for info in FolderSource(tmp_path / "runs").episodes()] == ["a", "b"]


def test_the_inventory_explains_invalid_tables(tmp_path: Path) -> None:
    images(tmp_path / "run" / "rgb", numbered(2))
    commas = "decimal comma in line 1; replace commas by points, e.g. `sed -i 's/,/./g' FILE`"
    no_table = "not a table of numbers"
    tables = {
        "semicolons.csv": ("1,5;2,5\n1,5;2,5\n", f"{commas}: 1,5"),
        "blanks.txt": ("1,5 2,5\n1,5 2,5\n", f"{commas}: 1,5"),
        "dates.csv": ("2020-01-01,1\n2020-01-02,1\n", f"{no_table}: '2020-01-02,1'"),
        "notes.txt": ("a cup, 1,5 m high\n", "no reader"),
        # A first row with a broken number is no header; a header of pandas starts with a comma.
        "broken.csv": ("0,1.#QNAN\n1,2\n2,3\n", f"{no_table}: '0,1.#QNAN'"),
        "frame.csv": (",0,1\n0,5,6\n1,7,8\n", ""),
    }
    texts(tmp_path / "run", **{name: text for name, (text, _) in tables.items()})
    source = FolderSource(tmp_path)
    assert features(source)["frame"] == "float64 [3]"
    found = {Path(pattern).name: reason for pattern, (_, reason) in left_out_of(source).items()}
    assert found == {name: reason for name, (_, reason) in tables.items() if reason}
    with pytest.raises(SourceError, match=r"does not have one row per frame.*decimal comma"):
        FolderSource(tmp_path, features=["rgb", "semicolons"]).schema()
