"""Lists of scenes that are nearly in a format: each line is a row, a comment, blank or an error."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import open_source
from seqrecord.errors import SourceError
from seqrecord.sources import SceneSource, inventory_of
from tests.formats.cases import upload
from tests.formats.format_cases.scenes import (
    write_arkitscenes,
    write_co3d,
    write_nerfstudio,
    write_realestate10k,
)
from tests.formats.format_cases.sequences import write_euroc, write_kitti, write_tum
from tests.kit.datasets import encoded
from tests.kit.source_faults import check_refused
from tests.kit.trees import make_frames, write_v1, write_v2

IMAGE = encoded(np.zeros((12, 16, 3), np.uint8))
COLMAP_IMAGES = "sparse/0/images.txt"


def write_images(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(IMAGE)


def write_colmap(scene: Path, lines: str, cameras: str = "1 PINHOLE 16 12 9 9 8 6\n") -> None:
    write_images(scene / "images", *(f"im{number}.png" for number in range(1, 5)))
    (scene / "sparse/0").mkdir(parents=True)
    (scene / "sparse/0/cameras.txt").write_text(cameras)
    (scene / COLMAP_IMAGES).write_text(lines)


def row(number: int, name: str = "") -> str:
    return f"{number} 1 0 0 0 {number} 0 0 1 {name or f'im{number}.png'}\n"


POINTS = "1.5 2.5 -1 10 11 4\n"
COLMAP: dict[str, tuple[str, int]] = {
    "points": (row(1) + POINTS + row(2) + POINTS, 2),
    "no points": (row(1) + "\n" + row(2) + "\n", 2),
    "the last line is missing": (row(1) + "\n" + row(2), 2),
    "the last line is an image's, without a newline": (row(1) + "\n" + row(2)[:-1], 2),
    "comments and blank lines": ("# a\n\n  # b\n" + row(1) + POINTS + "\n\n# c\n" + row(2), 2),
    "a byte order mark": ("\ufeff" + row(1) + "\n", 1),
    "carriage returns": ((row(1) + POINTS + row(2) + "\n").replace("\n", "\r\n"), 2),
    "a name with blanks": (row(1, "a  b.png") + "\n", 1),
}
BAD_COLMAP: dict[str, tuple[str, int]] = {
    "a line per image": ("# x\n" + row(1) + row(2) + row(3) + row(4), 3),
    "names of three words": (row(1, "a b c.png") + row(2, "a b c.png"), 2),
    "points of four numbers": (row(1) + "1.5 2.5 -1 4.5\n" + row(2) + "\n", 2),
    "points of words": (row(1) + "TODO\n", 2),
    "identifiers of points that are no integers": (row(1) + "1 2 3.5\n", 2),
    "a comment in place of points": (row(1) + "# none\n" + row(2) + "\n", 2),
    "a quaternion of three numbers": (row(1) + "\n" + "2 1 0 0 3 0 0 1 im2.png\n\n", 3),
    "a cut last row": (row(1) + "\n" + row(2)[:14], 3),
    "cut points": (row(1) + "\n" + row(2) + "1.5 2.5 -1 7.5", 4),
    "numbers of Python": (row(1).replace(" 0 0 1 ", " 0 1_0 1 "), 1),
}


@pytest.mark.parametrize("case", COLMAP)
def test_lines_of_colmap(tmp_path: Path, case: str) -> None:
    lines, count = COLMAP[case]
    write_colmap(tmp_path / "scene", lines)
    write_images(tmp_path / "scene/images", "a  b.png")
    source = open_source(tmp_path / "scene")
    [info] = source.episodes()
    frames = list(source.frames(info))
    assert [np.asarray(frame["pose"])[0, 3] for frame in frames] == [
        -number for number in range(1, count + 1)
    ]


@pytest.mark.parametrize("case", BAD_COLMAP)
def test_other_lines_of_colmap(tmp_path: Path, case: str) -> None:
    lines, number = BAD_COLMAP[case]
    write_colmap(tmp_path / "good" / "scene", row(1) + "\n")
    write_colmap(tmp_path / "bad" / "scene", lines)
    check_refused(
        open_source(tmp_path),
        ["bad/scene"],
        rf"invalid row in line {number};",
        file=tmp_path / "bad" / "scene" / COLMAP_IMAGES,
    )


def test_a_cut_camera_of_colmap(tmp_path: Path) -> None:
    write_colmap(tmp_path / "b", row(1), "# c\n1 PINHOLE 16 12 9 9 8 6\n\n2 PINHOLE 16")
    write_colmap(tmp_path / "a", row(1))
    check_refused(open_source(tmp_path), ["b"], "invalid row in line 4")


@pytest.mark.parametrize(
    ("images", "cameras", "note"),
    [
        (2, 1, ""),
        (4, 1, "images.txt: 2 images, but its head declares 4; truncated, or edited by hand"),
        (1, 1, "images.txt: 2 images, but its head declares 1; truncated, or edited by hand"),
        (2, 3, "cameras.txt: 1 camera, but its head declares 3; truncated, or edited by hand"),
    ],
)
def test_declared_numbers_of_colmap(tmp_path: Path, images: int, cameras: int, note: str) -> None:
    """A list cut between two entries is like one edited by hand: not an error."""
    head = "# Image list with two lines of data per image:\n"
    head += f"# Number of images: {images}, mean observations per image: 2\n"
    rows = row(1) + POINTS + row(2) + POINTS
    camera = f"# Number of cameras: {cameras}\n1 PINHOLE 16 12 9 9 8 6\n"
    write_colmap(tmp_path / "scene", head + rows, camera)
    source = open_source(tmp_path / "scene")
    [info] = source.episodes()
    assert len(list(source.frames(info))) == 2
    notes = [text for text in inventory_of(source).notes if "declares" in text]
    assert notes == ([f"{note} (1 of 1 sequence)"] if note else [])


def test_folders_of_rigs_are_no_euroc(tmp_path: Path) -> None:
    names = [f"cam{number % 2}/{number}.png" for number in range(4)]
    write_images(tmp_path / "scene/images", *names)
    lines = "".join(row(number + 1, name) + "\n" for number, name in enumerate(names))
    write_colmap(tmp_path / "scene", lines)
    source = open_source(tmp_path / "scene")
    assert isinstance(source, SceneSource)
    assert source.episodes()[0].num_frames == 4


def test_two_cameras_of_one_id(tmp_path: Path) -> None:
    write_colmap(tmp_path / "b", row(1), "1 PINHOLE 16 12 9 9 8 6\n1 PINHOLE 16 12 5 5 8 6\n")
    write_colmap(tmp_path / "a", row(1))
    check_refused(open_source(tmp_path), ["b"], "two cameras have the same ID")


@pytest.mark.parametrize("parameters", ["9 9 8", "9 9 8 6 0.1"])
def test_parameters_of_a_camera(tmp_path: Path, parameters: str) -> None:
    write_colmap(tmp_path / "b", row(1), f"# c\n1 PINHOLE 16 12 {parameters}\n")
    write_colmap(tmp_path / "a", row(1))
    check_refused(open_source(tmp_path), ["b"], "invalid row in line 2")


Edit = Callable[[list[str]], list[str]]
CLIPS: dict[str, Edit] = {
    "without the line of the URL": lambda lines: lines[1:],
    "an empty line first": lambda lines: ["", *lines[1:]],
    "blank lines": lambda lines: [*lines[:2], "", *lines[2:], ""],
    "blank lines and comments first": lambda lines: ["", "# a", "", "# b", *lines],
}
BAD_CLIPS: dict[str, tuple[Edit, str]] = {
    "empty": (lambda _: [], "without frames"),
    "the URL alone": (lambda lines: lines[:1], "without frames"),
    "a comment alone": (lambda _: ["# x"], "without frames"),
    "a cut last line": (lambda lines: [*lines[:-1], lines[-1][:60]], "line 7;"),
    "two URLs": (lambda lines: [lines[0], *lines], "line 2;"),
    "18 numbers and no URL": (lambda lines: [lines[1].rpartition(" ")[0], *lines[2:]], "line 1;"),
    "a time of 1.5": (lambda lines: [*lines[:2], lines[1].replace(" ", ".5 ", 1)], "line 3;"),
    "a time beyond int64": (lambda lines: [*lines, "9" + lines[1].replace(" ", "9" * 9 + " ", 1)],
                            "line 8;"),
    "a word in the first row, no URL": (
        lambda lines: [lines[1].replace(" 0", " o", 1), *lines[2:]], "line 1;"),
    "a time of 1.5 in the first row, no URL": (
        lambda lines: [lines[1].replace(" ", ".5 ", 1), *lines[2:]], "line 1;"),
    "infinity": (lambda lines: [lines[0], lines[1].rpartition(" ")[0] + " inf"], "line 2;"),
}  # fmt: skip


def edit_clip(folder: Path, edit: Edit, name: str = "") -> None:
    [path] = folder.glob("*.txt")
    path.write_text("\n".join(edit(path.read_text().split("\n"))))
    if name:
        path.with_suffix("").rename(folder / name)
        path.rename(folder / f"{name}.txt")


@pytest.mark.parametrize("name", ["", "kitchen_01"])
@pytest.mark.parametrize("case", CLIPS)
def test_lines_of_realestate10k(tmp_path: Path, case: str, name: str) -> None:
    write_realestate10k(tmp_path / "original")
    [truth] = open_source(tmp_path / "original").episodes()
    expected = list(open_source(tmp_path / "original").frames(truth))
    edit_clip(tmp_path / "original", CLIPS[case], name)
    source = open_source(tmp_path / "original")
    assert isinstance(source, SceneSource)
    [info] = source.episodes()
    assert info.key.endswith(name)
    for frame, known in zip(source.frames(info), expected, strict=True):
        np.testing.assert_array_equal(frame["pose"], known["pose"])
        assert frame["timestamp"] == known["timestamp"]


def _break_first_row(lines: list[str]) -> list[str]:
    return [lines[0], lines[1].replace(" ", " x", 1), *lines[2:]]


def test_a_broken_first_row_of_a_clip_of_another_name(tmp_path: Path) -> None:
    """It is an error, not a folder without poses."""
    write_realestate10k(tmp_path / "good", seed=1)
    write_realestate10k(tmp_path / "bad")
    edit_clip(tmp_path / "bad", _break_first_row, "kitchen")
    check_refused(open_source(tmp_path), ["bad/kitchen"], "line 2;")


@pytest.mark.parametrize("case", BAD_CLIPS)
def test_other_lines_of_realestate10k(tmp_path: Path, case: str) -> None:
    edit, match = BAD_CLIPS[case]
    write_realestate10k(tmp_path / "good", seed=1)
    write_realestate10k(tmp_path / "bad")
    edit_clip(tmp_path / "bad", edit)
    check_refused(open_source(tmp_path), [f"bad/{0:016x}"], match)


def test_clips_of_any_name_beside_an_empty_list(tmp_path: Path) -> None:
    """The empty list is an error, not data left out; other pairs of names are none."""
    for number, name in enumerate(("kitchen", "hall")):
        write_realestate10k(tmp_path / name, seed=number)
        edit_clip(tmp_path / name, lambda lines: lines, name)
        for path in (tmp_path / name / name, tmp_path / name / f"{name}.txt"):
            (tmp_path / "x").mkdir(exist_ok=True)
            path.rename(tmp_path / "x" / path.name)
    (tmp_path / "x" / "hall.txt").write_text("")
    (tmp_path / "x" / "notes.txt").write_text("about\n")
    (tmp_path / "x" / "notes").mkdir()
    source = open_source(tmp_path / "x")
    assert [info.key for info in source.episodes()] == ["x/hall", "x/kitchen"]
    check_refused(source, ["x/hall"], "without frames")


def test_a_folder_beside_its_notes_hides_no_scene(tmp_path: Path) -> None:
    write_nerfstudio(tmp_path / "scenes" / "a")
    (tmp_path / "scenes.txt").write_text("all\n")
    assert [info.key for info in open_source(tmp_path).episodes()] == ["scenes/a"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_translations_that_are_not_finite_are_missing_poses(tmp_path: Path, value: float) -> None:
    write_nerfstudio(tmp_path / "nerf")
    path = tmp_path / "nerf" / "transforms.json"
    whole = json.loads(path.read_text())
    whole["frames"][1]["transform_matrix"][2][3] = value
    path.write_text(json.dumps(whole))
    write_colmap(tmp_path / "colmap", row(1) + "\n" + row(2).replace(" 2 ", f" {value} ", 1))
    write_co3d(tmp_path / "co3d")
    edit_co3d(tmp_path / "co3d", lambda all_: all_[1]["viewpoint"]["T"].__setitem__(0, value))
    found: dict[str, list[Any]] = {}
    source = open_source(tmp_path, features=["image", "pose"])
    for info in source.episodes():
        frames = list(source.frames(info))
        found.setdefault(info.key.split("/")[0], []).extend(frames)
        assert all(
            np.isfinite(np.asarray(frame["pose"])).all() for frame in frames if "pose" in frame
        )
    assert {key: sum("pose" not in frame for frame in each) for key, each in found.items()} == {
        "nerf": 1,
        "colmap": 1,
        "co3d": 1,
    }
    assert "3 frames without pose" in inventory_of(source).notes


def edit_co3d(folder: Path, change: Callable[[Any], object]) -> None:
    [path] = folder.rglob("frame_annotations.jgz")
    annotations = json.loads(gzip.decompress(path.read_bytes()))
    change(annotations)
    path.write_bytes(gzip.compress(json.dumps(annotations).encode()))


def zipped(text: str) -> bytes:
    return gzip.compress(text.encode(), 9)


BOMB = "[" + "[]," * (20 << 20) + "[]]"
ANNOTATIONS: dict[str, tuple[Callable[[], bytes], str]] = {
    "no gzip": (lambda: b"[]", "not a gzip file"),
    "cut": (lambda: zipped("[" + "{}," * 999)[:-9], "not a gzip file"),
    "damaged": (lambda: zipped("[1, 2]")[:12] + b"\xff" * 9, "not a gzip file"),
    "lists alone": (lambda: zipped("[" + "[]," * 99 + "[]]"), "missing or wrong value"),
    "a bomb": (lambda: zipped(BOMB), "annotations too large"),
    "nesting": (lambda: zipped("[" * 100_000), "missing or wrong value"),
    "a large object": (lambda: zipped('[{"a": "%s"}]' % ("x" * 70_000)), "missing or wrong value"),
    "text after the list": (lambda: zipped("[] []"), "missing or wrong value"),
    "a comma after the last frame": (
        lambda: zipped('[{"sequence_name": "a"}, ]'),
        "missing or wrong value",
    ),
    "no list": (lambda: zipped("{}"), "missing or wrong value"),
    "not UTF-8": (lambda: gzip.compress(b"[\xff]"), "missing or wrong value"),
    "a path outside": (lambda: zipped('[{"sequence_name": "../../x"}]'), "name of a folder"),
    "an absolute path": (lambda: zipped('[{"sequence_name": "/x"}]'), "name of a folder"),
    "the folder above": (lambda: zipped('[{"sequence_name": ".."}]'), "name of a folder"),
    "a number": (lambda: zipped('[{"sequence_name": 3}]'), "name of a folder"),
}


@pytest.mark.parametrize("case", ANNOTATIONS)
def test_damaged_annotations_of_a_category_of_co3d(tmp_path: Path, case: str) -> None:
    """Other categories are packed."""
    write, match = ANNOTATIONS[case]
    write_co3d(tmp_path / "good")
    bad = tmp_path / "bad" / "apple" / "frame_annotations.jgz"
    bad.parent.mkdir(parents=True)
    bad.write_bytes(write())
    source = open_source(tmp_path)
    good = [info.key for info in source.episodes() if info.key.startswith("good")]
    assert len(good) == 2
    check_refused(source, ["bad/apple"], match, file=bad)
    with pytest.raises(SourceError) as refused:
        seqrecord.convert(source, tmp_path / "all", workers=1)
    assert "unpack it" not in str(refused.value)
    report = seqrecord.convert(source, tmp_path / "r", workers=1, skip_bad_episodes=True)
    assert (*report.written,) == (*good,)


@pytest.mark.parametrize("is_remote", [False, True])
def test_annotations_that_were_replaced_are_read_again(
    tmp_path: Path, memory_url: str, is_remote: bool
) -> None:
    """Also by sources of one process, and with as many bytes and times as before."""
    folder, keys = tmp_path / "co3d", []
    write_co3d(folder)
    for shift in (0.0, 0.0, 1.0):

        def move(annotations: Any, shift: float = shift) -> None:
            annotations[0]["viewpoint"]["T"][0] = shift

        edit_co3d(folder, move)
        place = upload(folder, memory_url) if is_remote else folder
        source = open_source(place, features=["image", "pose"])
        info = source.episodes()[0]
        keys.append(np.asarray(next(iter(source.frames(info)))["pose"]).tolist())
    assert keys[0] == keys[1] != keys[2]


def test_folders_with_strange_names_are_no_models(tmp_path: Path) -> None:
    write_colmap(tmp_path / "scene", row(1))
    (tmp_path / "scene/sparse/0").rename(tmp_path / "scene/sparse/²")
    with pytest.raises(SourceError, match="no data in the format scenes"):
        open_source(tmp_path, format="scenes")


@pytest.mark.parametrize("text", ['{"frames": [{}]}', '{"frames": [{"file_path": null}]}'])
def test_frames_without_an_image(tmp_path: Path, text: str) -> None:
    write_nerfstudio(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "transforms.json").write_text(text)
    check_refused(open_source(tmp_path), ["b"], "frame without an image", frame=0)


@pytest.mark.parametrize(
    ("frames", "problem"),
    [
        ({}, "missing or wrong value"),
        ({"a": {}}, "missing or wrong value"),
        ("frames", "missing or wrong value"),
        (None, "missing or wrong value"),
        ([], "a list of images without images"),
    ],
)
def test_scenes_without_frames(tmp_path: Path, frames: Any, problem: str) -> None:
    write_nerfstudio(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "transforms.json").write_text(json.dumps({"frames": frames}))
    check_refused(open_source(tmp_path), ["b"], problem)


def test_huge_numbers_of_a_scene(tmp_path: Path) -> None:
    write_nerfstudio(tmp_path / "a")
    huge = "1" + "0" * 400
    for key, pattern, value in (
        ("b", r'"fl_x": [0-9.]+', f'"fl_x": {huge}'),
        ("c", r'"fl_x": [0-9.]+', '"camera_angle_x": 0'),
        ("d", r'"transform_matrix": \[\[[^,]*', f'"transform_matrix": [[{huge}'),
        ("e", r'"fl_x"', f'"deep": {"[" * 900}{"]" * 900}, "fl_x"'),
    ):
        write_nerfstudio(tmp_path / key)
        path = tmp_path / key / "transforms.json"
        path.write_text(re.sub(pattern, value, path.read_text()))
    check_refused(open_source(tmp_path), ["b", "c", "d"], "missing or wrong value|not a rigid pose")


# Tables of other formats


Write = Callable[[Path], Any]
TABLES: dict[str, tuple[Write, str, str]] = {
    "TUM, images": (write_tum, "rgb.txt", "#"),
    "TUM, poses": (write_tum, "groundtruth.txt", "#"),
    "TUM, acceleration": (write_tum, "accelerometer.txt", "#"),
    "EuRoC, images": (write_euroc, "cam0/data.csv", "#"),
    "EuRoC, samples": (write_euroc, "imu0/data.csv", "#"),
    "EuRoC, poses": (write_euroc, "state_groundtruth_estimate0/data.csv", "#"),
    "KITTI, poses": (write_kitti, "poses/*.txt", "#"),
    "KITTI, calibration": (write_kitti, "calib.txt", "#"),
    "ARKitScenes": (write_arkitscenes, "lowres_wide.traj", "#"),
    "TartanAir": (lambda folder: write_v1(folder, make_frames(0, 4)), "pose_left.txt", "#"),
}


def table_of(root: Path, name: str) -> Path:
    return sorted(root.rglob(name))[0]


def edited(root: Path, name: str, change: Callable[[str], str]) -> int:
    """Change a table; returns its number of lines."""
    path = table_of(root, name)
    text = change(path.read_text())
    path.write_text(text)
    return len(text.splitlines())


def cut_last(text: str) -> str:
    """The last line without three quarters, and without a newline."""
    head, _, last = text.rstrip("\n").rpartition("\n")
    return f"{head}\n{last[: len(last) // 4]}"


@pytest.mark.parametrize("case", TABLES)
def test_lines_that_are_no_rows(tmp_path: Path, case: str) -> None:
    write, name, mark = TABLES[case]
    write(tmp_path / "a" / "x")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    whole = open_source(tmp_path / "a")
    counts = [info.num_frames for info in whole.episodes()]
    # Comments, blank lines and a last line without a newline change nothing.
    edited(tmp_path / "b", name, lambda text: f"{mark} more\n\n{text.rstrip()}")
    same = open_source(tmp_path / "b")
    assert [info.num_frames for info in same.episodes()] == counts
    assert sum(1 for info in same.episodes() for _ in same.frames(info)) == sum(counts)
    shutil.rmtree(tmp_path / "b")
    for change in (
        cut_last,
        lambda text: f"{text.rstrip()}\n// more",
        lambda text: f"{text.rstrip()}\n% more",
    ):
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        line = edited(tmp_path / "b", name, change)
        source = open_source(tmp_path)
        bad = [info.key for info in source.episodes() if info.num_frames == 0]
        assert len(bad) == 1
        check_refused(source, bad, f"invalid row in line {line};")
        shutil.rmtree(tmp_path / "b")


def test_imu_of_another_length_is_noted(tmp_path: Path) -> None:
    """The note has both lengths."""
    write_v2(tmp_path / "P000", make_frames(0, 3, v2=True))
    path = tmp_path / "P000" / "imu" / "acc.npy"
    np.save(path, np.load(path)[:-1])
    source = open_source(tmp_path / "P000")
    assert "imu_acc" not in source.schema()
    assert "imu_gyro" in source.schema()
    [note] = [note for note in inventory_of(source).notes if "acc.npy" in note]
    assert "[19, 3], expected [20, 3] or [30, 3]" in note
