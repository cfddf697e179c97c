"""Generic folders of images and npy files, by frame and by episode."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import seqrecord
from seqrecord import convert, open_source
from seqrecord.errors import MissingPackageError, SourceError
from seqrecord.sources import FolderSource, Source, inventory_of
from tests.kit.datasets import encoded, noise
from tests.kit.source_faults import check_faults, cut, fault, frames_of, remove, save, write
from tests.kit.trees import write_junk

Array = npt.NDArray[Any]


def _save(folder: Path, array: Array, names: list[str] | None = None, ending: str = "png") -> None:
    """Save one file per entry of the first axis."""
    folder.mkdir(parents=True)
    for index, value in enumerate(array):
        name = names[index] if names else f"{index:06d}"
        if ending == "npy":
            np.save(folder / f"{name}.npy", value)
        else:
            Image.fromarray(value).save(folder / f"{name}.{ending}")


def _read(source: Source, episode: int = 0) -> list[dict[str, Array]]:
    """Frames, checked against the schema."""
    frames, schema = [], source.schema()
    for frame in source.frames(source.episodes()[episode]):
        assert list(frame) == [name for name in schema if name in frame]
        for name, value in frame.items():
            if schema[name].value == "text":
                assert isinstance(value, str)
                continue
            assert isinstance(value, np.ndarray)
            assert value.flags.c_contiguous
            assert value.dtype == schema[name].dtype
            assert schema[name].accepts(value.shape)
        frames.append({name: np.asarray(value) for name, value in frame.items()})
    assert len(frames) == source.episodes()[episode].num_frames
    return frames


def test_features_of_every_kind(tmp_path: Path) -> None:
    rng, run = np.random.default_rng(0), tmp_path / "run"
    features: dict[str, Array] = {
        "rgb": noise(3, 4, 5, 3),
        "rgba": noise(3, 4, 5, 4, seed=1),
        "gray": noise(3, 4, 5, seed=2),
        "depth16": rng.integers(0, 65536, (3, 4, 5), np.uint16),
        "points": rng.normal(size=(3, 7, 3)),
        "big": rng.normal(size=(3, 4, 5)),
        "labels": noise(3, 4, 5, seed=3) % 3,  # indices, not colours
        "actions": rng.normal(size=(3, 32)).astype(np.float32),
        "reward": rng.normal(size=3),
        "whole": rng.normal(size=(3, 4, 5)).astype("f4"),
    }
    for name in ("rgb", "rgba", "gray", "depth16", "labels"):
        _save(run / name, features[name])
    for number, labels in enumerate(features["labels"]):
        image = Image.fromarray(labels).convert("P")
        image.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
        image.save(run / "labels" / f"{number:06d}.png")
    _save(run / "points", features["points"], ending="npy")
    _save(run / "big", features["big"].astype(">f8"), ending="npy")
    for name in ("actions", "reward"):
        np.save(run / f"{name}.npy", features[name])
    np.save(run / "whole.npy", np.asfortranarray(features["whole"].astype(">f4")))
    metadata = {"task": "pick", "nested": {"different frames": [1, 2.5, None, True, "ü"]}}
    (run / "metadata.json").write_text(json.dumps(metadata))
    write_junk(tmp_path)
    source = FolderSource(tmp_path)
    [info] = source.episodes()
    names = ("big", "depth16", "gray", "labels", "points", "rgb", "rgba")
    files = {n: f"{n}/{{:06d}}.{'npy' if n in ('big', 'points') else 'png'}" for n in names}
    assert (info.key, info.num_frames) == ("run", 3)
    assert info.metadata == {**metadata, "files": files}
    assert [*source.schema()] == sorted([*features, "frame_number"])
    for name, array in features.items():
        assert source.schema()[name].shape == array.shape[1:]
    for index, frame in enumerate(_read(source)):
        for name, array in features.items():
            np.testing.assert_array_equal(frame[name], array[index], strict=True)


def test_keys_are_paths_at_any_depth(tmp_path: Path) -> None:
    for path in ("b/2020/run1", "b/2020/run10", "a", "b/x"):
        _save(tmp_path / path / "rgb", noise(2, 4, 5, 3))
    np.save(tmp_path / "b" / "x" / "actions.npy", np.zeros((2, 3)))
    (tmp_path / "b" / "notes").mkdir()
    source = FolderSource(tmp_path)
    assert [i.key for i in source.episodes()] == ["a", "b/2020/run1", "b/2020/run10", "b/x"]
    assert [list(frame) for frame in _read(source, 0)] == [["frame_number", "rgb"]] * 2
    assert [list(frame) for frame in _read(source, 3)] == [["actions", "frame_number", "rgb"]] * 2
    one = FolderSource(tmp_path / "b" / "x")
    assert [info.key for info in one.episodes()] == ["x"]
    assert len(_read(one)) == 2


def _touch(folder: Path, *names: str) -> None:
    """Save one file per name: images, and arrays of one number."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, name in enumerate(names):
        if name.endswith(".npy"):
            np.save(folder / name, np.float32(index))
        else:
            Image.fromarray(noise(4, 6, 3, seed=index)).save(folder / name)


def test_a_gap_in_frame_numbers_is_an_error_unless_allowed(tmp_path: Path) -> None:
    gaps = [(4, 90), (3, 4, 90), (0, 1, 3, 4), (0, 20, 60)]
    for run, numbers in enumerate(gaps):
        _touch(tmp_path / f"{run}" / "rgb", *(f"{number:05d}.png" for number in numbers))
    source, allowing = open_source(tmp_path), open_source(tmp_path, allow_gaps=True)
    for run, numbers in enumerate(gaps):
        with pytest.raises(SourceError, match="allow_gaps=true") as caught:
            list(source.frames(source.episodes()[run]))
        assert (caught.value.episode, caught.value.file) == (f"{run}", str(tmp_path / f"{run}"))
        assert [int(frame["frame_number"]) for frame in _read(allowing, run)] == [*numbers]


def test_file_names_follow_from_a_batch(tmp_path: Path) -> None:
    """From the frame's number and the episode's metadata, or from the frame's name."""
    for key, names in {**dict(zip("abcdef", NAMES, strict=True)), **UNNUMBERED}.items():
        _touch(tmp_path / "src" / key / "rgb", *names)
    source = FolderSource(tmp_path / "src")
    seqrecord.convert(source, tmp_path / "records", workers=1)
    options: dict[str, Any] = {"clip_len": 1, "batch_size": 1, "metadata": ["files"]}
    options["features"] = ["rgb", "frame_number"]
    options |= {"episodes": [*"abcdef"], "shuffle": False}
    pipe = seqrecord.SeqRecordPipe(tmp_path / "records", **options)
    found = [b["files"][0]["rgb"].format(b["frame_number"][0].item()) for b in pipe]
    assert found == [f"rgb/{name}" for names in NAMES for name in names]
    infos = {info.key: info for info in source.episodes()}
    for key, names in UNNUMBERED.items():
        frames: list[Any] = list(source.frames(infos[key]))
        assert sorted(f"{frame['frame_name']}.png" for frame in frames) == sorted(names)
        first = 7 if key == "pairs" else 0
        assert [int(f["frame_number"]) for f in frames] == [*range(first, first + len(names))]
        assert "files" not in infos[key].metadata


NAMES = [
    ("0000.png", "0020.png", "0040.png"),
    ("1403636579763555584.png", "1403636579813555584.png", "1403636580213555584.png"),
    ("8.png", "9.png", "10.png"),
    ("take 1-007 {a}.png", "take 1-008 {a}.png"),
    ("cam0_7_left.jpg", "cam0_8_left.jpg"),
    ("IMG0007.png", "IMG0008.png"),
]


UNNUMBERED: dict[str, tuple[str, ...]] = {  # not given by one number
    "sides": ("left.png", "right.png"),
    "times": ("1305031102.075304.png", "1305031102.175304.png", "1305031103.0.png"),
    "pairs": ("000007_000008_flow.png", "000008_000009_flow.png"),
    "both numbers": ("9_1.png", "9_2.png", "10_2.png"),
    "large": (f"{1 << 63}.png", f"{(1 << 63) + 1}.png"),
}


def test_features_in_one_folder_by_words_in_file_names(tmp_path: Path) -> None:
    for name in ("a", "b"):
        files = [
            f"{i:04d}_{kind}" for i in range(3) for kind in ("rgb.png", "depth.npy", "seg.png")
        ]
        _touch(tmp_path / name, *files, "preview.png")
    _touch(tmp_path / "c", "0000_rgb.png", "0001_rgb.png")  # an episode without the other features
    (tmp_path / "a" / "metadata.json").write_text('{"task": "pick"}')
    source = FolderSource(tmp_path)
    assert [info.key for info in source.episodes()] == ["a", "b", "c"]
    assert list(source.schema()) == ["depth", "frame_number", "rgb", "seg"]
    paths = {"depth": "{:04d}_depth.npy", "rgb": "{:04d}_rgb.png", "seg": "{:04d}_seg.png"}
    assert source.episodes()[0].metadata == {"task": "pick", "files": paths}
    for index, frame in enumerate(_read(source)):
        assert frame["depth"] == 3 * index + 1
        np.testing.assert_array_equal(frame["rgb"], noise(4, 6, 3, seed=3 * index))
    assert [list(frame) for frame in _read(source, 2)] == [["frame_number", "rgb"]] * 2
    assert [info.key for info in FolderSource(tmp_path / "a").episodes()] == ["a"]
    (tmp_path / "b" / "0001_rgb.png").unlink()
    with pytest.raises(SourceError, match="different frames") as caught:
        list(source.frames(source.episodes()[1]))
    assert caught.value.feature == "rgb"


def test_names_of_features(tmp_path: Path) -> None:
    cases = {
        "rgb/0.png cam/0_l.png cam/0_r.png cam/0.png": "cam cam.l cam.r rgb",
        "rgb_0.png depth_0.png arm.npy": "arm depth rgb",
        "0.png 0_depth.png": "depth frame",
        "img_0.png arm.npy": "arm img",
        "plot.png arm.npy": "arm",
        "rgb/0_rgb.png depth/00_depth.png": "depth rgb",
        "0.rgb.png 0.depth.png 1.rgb.png 1.depth.png": "depth rgb",
    }
    for number, (files, features) in enumerate(cases.items()):
        run = tmp_path / f"{number}" / "run"
        for file in files.split():
            _touch((run / file).parent, Path(file).name)
        if "arm.npy" in files:
            np.save(run / "arm.npy", np.zeros((1, 2)))
        source = FolderSource(run.parent)
        assert [info.key for info in source.episodes()] == ["run"], files
        names = [name for name in source.schema() if not name.startswith("frame_")]
        assert names == features.split(), files
        assert {*_read(source)[0]} >= {*names}, files


def test_sparse_features(tmp_path: Path) -> None:
    stems = [f"{number:03d}" for number in range(5, 10)]
    _save(tmp_path / "run" / "rgb", noise(5, 4, 5, 3), stems)
    _save(tmp_path / "run" / "depth", np.arange(2.0), ["006", "009"], "npy")
    np.save(tmp_path / "run" / "arm.npy", np.zeros((5, 2)))
    source: Source = FolderSource(tmp_path)
    with pytest.raises(SourceError, match="different frames") as caught:
        list(source.frames(source.episodes()[0]))
    assert "sparse=" in str(caught.value.expected)
    frames: list[dict[str, Array]] = []
    for features in (None, ["depth"], ["arm", "depth", "frame_number"]):
        source = open_source(tmp_path, sparse="depth", features=features)
        assert source.episodes()[0].metadata["frames_without_depth"] == 3
        frames = _read(source)
        assert ["depth" in frame for frame in frames] == [False, True, False, False, True]
        assert [frame["depth"] for frame in frames if "depth" in frame] == [0, 1]
    assert [frame["frame_number"] for frame in frames] == [5, 6, 7, 8, 9]
    seqrecord.convert(source, tmp_path / "records", workers=1)
    with seqrecord.open(tmp_path / "records") as dataset:
        present = dataset.episodes["run"].present("depth")
        assert present.tolist() == [False, True, False, False, True]
    _touch(tmp_path / "run" / "depth", "010.npy")
    with pytest.raises(SourceError) as caught:
        list(source.frames(source.episodes()[0]))
    assert (caught.value.feature, caught.value.got) == ("depth", "10")


def test_varying_shapes_one_bit_masks_and_16_bit_colours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask, shapes = noise(5, 9) > 100, [(4, 5, 3), (4, 7, 3), (6, 5, 3)]
    colours = np.random.default_rng(0).integers(0, 65536, (4, 5, 3), np.uint16)
    for name, shape in zip("abc", shapes, strict=True):
        _save(tmp_path / "src" / name / "rgb", noise(2, *shape))
        _save(tmp_path / "src" / name / "mask", np.stack([mask, ~mask]))
        (tmp_path / "src" / name / "normals").mkdir()
        for number in range(2):
            path = tmp_path / "src" / name / "normals" / f"{number:06d}.png"
            path.write_bytes(imagecodecs.png_encode(colours))
    with Image.open(tmp_path / "src" / "a" / "mask" / "000000.png") as image:
        assert image.mode == "1"
    source = FolderSource(tmp_path / "src")
    assert source.schema()["rgb"].shape == (None, None, 3)
    assert [_read(source, i)[1]["rgb"].shape for i in range(3)] == shapes
    np.testing.assert_array_equal(_read(source)[0]["normals"], colours, strict=True)
    read = [frame["mask"].view(np.uint8) for frame in _read(source)]
    np.testing.assert_array_equal(read, [mask, ~mask])
    seqrecord.convert(source, tmp_path / "records", workers=1)
    with seqrecord.open(tmp_path / "records") as dataset:
        np.testing.assert_array_equal(dataset.episodes["a"][:]["mask"], [mask, ~mask])
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    with pytest.raises(MissingPackageError, match=r"pip install imagecodecs.*--features.*normals"):
        FolderSource(tmp_path / "src").schema()


@pytest.mark.parametrize("ending", ["npy", "npz", "txt"])
def test_values_of_varying_length_are_ragged(tmp_path: Path, ending: str) -> None:
    rows = [np.arange(3.0 * n).reshape(n, 3) for n in (1, 2, 5, 0)]
    folder = tmp_path / "run" / "points"
    folder.mkdir(parents=True)
    _save(tmp_path / "run" / "rgb", noise(4, 2, 2, 3))
    for number, array in enumerate(rows):
        path = folder / f"{number:06d}.{ending}"
        if ending == "txt":
            np.savetxt(path, array)
        elif len(array):
            (np.save if ending == "npy" else np.savez)(path, array)
        else:
            (np.save if ending == "npy" else np.savez)(path, np.array([]))  # columns unknown
    source = FolderSource(tmp_path)
    assert source.schema()["points"].shape == (None, 3)
    for frame, array in zip(_read(source), rows, strict=True):
        np.testing.assert_array_equal(frame["points"], array)


# --- broken folders --------------------------------------------------------------------------


_FEWER = {"feature": "rgb", "expected": "3 frames, as in photo/", "got": "2 frames"}
_NAMED = {"feature": "rgb", "expected": "2, as in photo/", "got": "3"}
_SIZE = {"got": "uint8 [4, 4, 3]", "feature": "rgb", "frame": 1}
ARRAY, JPEG, JSON = "actions.npy", "photo/1.jpg", "metadata.json"
BROKEN = [
    fault(remove("rgb/2.png"), "rgb", "different frames", **_FEWER),
    fault(lambda b: (b / "rgb/2.png").rename(b / "rgb/3.png"), "rgb", "different", **_NAMED),
    fault(save(ARRAY, np.zeros((4, 6))), ARRAY, "different frames", got="4 frames"),
    fault(save(ARRAY, 1.0), ARRAY, "without a time axis"),
    fault(save(ARRAY, np.zeros((3, 6, 1))), ARRAY, "shape", expected=[6], got=[6, 1]),
    fault(save(ARRAY, np.zeros((3, 6), "i8")), ARRAY, "dtype", got="int64"),
    fault(save(ARRAY, [{}] * 3), ARRAY, "pickled"),
    fault(cut(ARRAY, 200), ARRAY, "size", got="200 bytes"),
    fault(save("rgb.npy", np.zeros((3, 4, 5, 3), "u1")), ".", "duplicate feature", got="rgb.npy"),
    fault(write("rgb/2.jpg", b""), "rgb/2.*", "two files have the same frame number"),
    fault(write("rgb/1.png", encoded(noise(4, 4, 3))), "rgb/1.png", "differs", **_SIZE),
    fault(
        write("rgb/0.png", encoded(np.zeros((4, 5), "u2"))), "rgb/0.png", "differs", got="uint16"
    ),
    fault(cut(JPEG, 700), JPEG, "cannot decode", feature="photo", frame=1),
    fault(write(JPEG, encoded(noise(16, 16, 3))), JPEG, "file name", got="png"),
    fault(write(JSON, b"{"), JSON, "invalid JSON"),
    fault(write(JSON, b'{"a": "\xff"}'), JSON, "invalid JSON"),
    fault(write(JSON, b'{"a": NaN}'), JSON, "invalid JSON", got="NaN is not a JSON number"),
    fault(write(JSON, b"[]"), JSON, "JSON object", got="[]"),
    fault(write(JSON, b"[" * 200_000), JSON, "invalid JSON"),  # too deep
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        stems = ["0", "1", "2"]
        _save(tmp_path / name / "photo", noise(3, 16, 16, 3), stems, "jpg")
        _save(tmp_path / name / "rgb", noise(3, 4, 5, 3, seed=1), stems)
        np.save(tmp_path / name / "actions.npy", np.zeros((3, 6)))
    return tmp_path


@pytest.mark.parametrize("keep_encoded", [False, True])
def test_broken(tree: Path, keep_encoded: bool) -> None:
    opened = functools.partial(FolderSource, keep_encoded=keep_encoded)
    check_faults(BROKEN, tree / "a", tree / "broken", opened)


@pytest.mark.parametrize("episodes", ["a", "ab"], ids=["in one episode", "in two"])
def test_jpegs_and_pngs_of_one_feature_are_kept_encoded(
    tree: Path, tmp_path_factory: pytest.TempPathFactory, episodes: str
) -> None:
    """Unchanged by conversion, reconversion and export; arrays become PNGs."""
    for episode in episodes:
        for number in (1, 2) if episode == "a" else (0, 1, 2):
            path = tree / episode / "rgb" / f"{number}.png"
            path.unlink()
            Image.fromarray(noise(4, 5, 3, seed=number)).save(path.with_suffix(".jpg"))
    source = FolderSource(tree, keep_encoded=True)
    codec = {"id": "seqrecord.image", "format": "any"}
    assert source.schema()["rgb"].codec == (codec,)
    expected = [_read(FolderSource(tree), i) for i in range(2)]
    out = tmp_path_factory.mktemp("out")
    records = out / "records"
    seqrecord.convert(source, records, workers=1)
    seqrecord.convert(open_source(records), out / "again", workers=1)
    for place in (records, out / "again"):
        with seqrecord.open(place) as dataset:
            assert dataset.features["rgb"].codec == (codec,)
            for key, frames in zip("ab", expected, strict=True):
                got = dataset.episodes[key][:]["rgb"]
                np.testing.assert_array_equal(got, [frame["rgb"] for frame in frames])
                seqrecord.export.to_files(dataset, key, out / f"{place.name}-files")
                for path in (tree / key / "rgb").iterdir():
                    copy = out / f"{place.name}-files" / key / "rgb"
                    assert (copy / f"00000{path.name}").read_bytes() == path.read_bytes()


def test_unsupported_folders_are_errors(tmp_path: Path) -> None:
    (tmp_path / "empty" / "run" / "rgb").mkdir(parents=True)
    _save(tmp_path / "name" / "run" / "left camera", noise(2, 4, 5))
    (tmp_path / "text" / "run").mkdir(parents=True)
    np.save(tmp_path / "text" / "run" / "words.npy", np.array(["a", "b"]))
    _save(tmp_path / "link" / "run" / "rgb", noise(1, 4, 5))
    (tmp_path / "link" / "run" / "again").symlink_to(tmp_path / "link")
    for name, match in (
        ("empty", "no episode found"),
        ("name", "not a feature name; .*episode: run"),
        ("text", r"a dtype that cannot be stored; file: .*words.npy"),
        ("link", "leads to a folder above"),
    ):
        with pytest.raises(SourceError, match=match):
            FolderSource(tmp_path / name).schema()


def _truncate_while_reading(array: Path) -> None:
    source = FolderSource(array.parents[1])
    frames = source.frames(source.episodes()[0])
    for _ in range(3):
        next(frames)
    os.truncate(array, 4096)
    with pytest.raises(SourceError, match="truncated while it was read") as caught:
        list(frames)
    assert (caught.value.file, caught.value.frame) == (str(array), 3)


def test_truncation_of_an_array_during_reading_is_an_error(tmp_path: Path) -> None:
    """In a fork, since a failure is a SIGBUS."""
    (tmp_path / "run").mkdir()
    array = tmp_path / "run" / "actions.npy"
    np.save(array, np.zeros((100, 1024)))
    process = get_context("fork").Process(target=_truncate_while_reading, args=(array,))
    process.start()
    process.join(100)
    assert process.exitcode == 0


# --- points and events -------------------------------------------------------------------------


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


XYZ = np.array([[0.5, 1.0, -2.0], [3.25, np.nan, 7.0], [8.0, 9.0, 1e-3]], "<f4")
COLOURS = np.array([[1, 2, 3], [254, 255, 0], [7, 8, 9]], np.uint8)
RINGS = np.array([5, 65535, 0], "<u2")
TEXT = "\n".join(
    f"{x} {y} {z} {ring} {r} {g} {b}"
    for (x, y, z), ring, (r, g, b) in zip(
        XYZ.tolist(), RINGS.tolist(), COLOURS.tolist(), strict=True
    )
)


def _packed(order: str, padding: int = 0) -> bytes:
    """Coordinates, ring, padding and colours of each point."""
    every = zip(XYZ.astype(f"{order}f4"), RINGS.astype(f"{order}u2")[:, None], COLOURS, strict=True)
    return b"".join(a.tobytes() + b.tobytes() + bytes(padding) + c.tobytes() for a, b, c in every)


def _ply(kind: str, body: bytes, more: str = "") -> bytes:
    names = "float x,float y,float32 z,ushort ring,uchar red,uchar green,uint8 blue"
    properties = "".join(f"property {name}\n" for name in names.split(","))
    head = f"ply\nformat {kind} 1.0\ncomment made by hand\nelement vertex 3\n{properties}{more}"
    return f"{head}end_header\n".encode() + body


def _pcd(kind: str, body: bytes, padding: int = 0) -> bytes:
    skip = ("_ ", "1 ", "U ", f"{padding} ") if padding else ("",) * 4
    return (
        f"# .PCD v0.7\nVERSION 0.7\nFIELDS x y z ring {skip[0]}bgr\nSIZE 4 4 4 2 {skip[1]}1\n"
        f"TYPE F F F U {skip[2]}U\nCOUNT 1 1 1 1 {skip[3]}3\nWIDTH 3\nHEIGHT 1\n"
        f"VIEWPOINT 0 0 0 1 0 0 0\nPOINTS 3\nDATA {kind}\n"
    ).encode() + body


POINTS = {
    "text.ply": _ply("ascii", TEXT.encode()),
    "little.ply": _ply("binary_little_endian", _packed("<"), "element face 0\n"),
    "big.ply": _ply("binary_big_endian", _packed(">")),
    "windows.ply": _ply("ascii", TEXT.encode()).replace(b"\n", b"\r\n"),
    "text.pcd": _pcd("ascii", TEXT.encode()),
    "binary.pcd": _pcd("binary", _packed("<")),
    "padded.pcd": _pcd("binary", _packed("<", 5), 5),
    "page.pcd": _pcd("binary", _packed("<") + bytes(4000)),  # as PCL writes
}


@pytest.mark.parametrize("name", POINTS)
def test_points_per_frame(tmp_path: Path, name: str) -> None:
    data = POINTS[name]
    head = re.match(rb"(?s).*?(end_header|DATA \w+)\r?\n", data)
    assert head
    nothing = head[0].replace(b"vertex 3", b"vertex 0").replace(b"WIDTH 3", b"WIDTH 0")
    for number, content in enumerate((data, nothing, data)):
        _put(tmp_path / "run" / "lidar" / f"00000{number}{Path(name).suffix}", content)
    source = FolderSource(tmp_path)
    schema = {each.name: (str(each), each.kind) for each in source.schema().values()}
    assert schema == {
        "frame_number": ("frame_number: int64 []", "frame_number"),
        "lidar": ("lidar: float32 [?, 3]", "points"),
        "lidar.ring": ("lidar.ring: uint16 [?]", "points"),
        "lidar.uint8": ("lidar.uint8: uint8 [?, 3]", "points"),
    }
    for frame, count in zip(_read(source), (3, 0, 3), strict=True):
        np.testing.assert_array_equal(frame["lidar"], XYZ[:count])
        np.testing.assert_array_equal(frame["lidar.ring"], RINGS[:count])
        np.testing.assert_array_equal(frame["lidar.uint8"], COLOURS[:count])
    columns = source.episodes()[0].metadata["columns"]
    assert columns["lidar"] == ["x", "y", "z"]
    colours = ["bgr_0", "bgr_1", "bgr_2"] if name.endswith(".pcd") else ["red", "green", "blue"]
    assert columns["lidar.uint8"] == colours


def test_scans_without_a_header(tmp_path: Path) -> None:
    """Columns by KITTI's layout, or by the option; never by a guess."""
    rows = np.arange(20, dtype="<f4").reshape(4, 5)
    for folder, columns in (("velodyne_points", 4), ("scan", 5)):
        for i in range(2):
            data = rows[: i + 1, :columns].tobytes()
            _put(tmp_path / folder / "run" / folder / f"{i:06d}.bin", data)
    known = FolderSource(tmp_path / "velodyne_points")
    assert [frame["velodyne_points"].shape for frame in _read(known)] == [(1, 4), (2, 4)]
    assert known.episodes()[0].metadata["columns"]["velodyne_points"][3] == "reflectance"
    with pytest.raises(SourceError, match=r"unknown columns; name .*columns=x,y,z,intensity"):
        FolderSource(tmp_path / "scan").schema()
    named = FolderSource(tmp_path / "scan", columns="x,y,z,intensity,ring")
    np.testing.assert_array_equal(_read(named)[1]["scan"], rows[:2])
    with pytest.raises(SourceError, match=r"truncated scan, or other columns; .*multiple of 16"):
        _read(FolderSource(tmp_path / "scan", columns=["x", "y", "z", "i"]))


def test_points_that_are_refused(tmp_path: Path) -> None:
    text, binary = POINTS["text.ply"], POINTS["binary.pcd"]
    face = "element face 1\nproperty list uchar int vertex_indices\n"
    cases = [
        ("ply", text[:-9], r"invalid PLY file; .*17 numbers, expected 3 points of 7"),
        ("ply", b"playing", "no header of PLY"),
        ("ply", _ply("ascii", TEXT.encode(), face), r"PLY of more than points; .*got: .*face list"),
        ("ply", text.replace(b"254", b"256"), "invalid PLY file"),
        ("ply", text.replace(b"vertex 3", b"vertex 99999999999"), "expected 99999999999 points"),
        ("pcd", binary + b"\1", r"invalid PCD file; .*52 bytes, expected 3 points of 17"),
        ("pcd", binary[:-1], r"invalid PCD file; .*50 bytes, expected 3 points of 17"),
        ("pcd", binary.replace(b"WIDTH 3", b"WIDTH x"), "invalid PCD file"),
        ("pcd", binary.replace(b"DATA binary", b"DATA binary_compressed"), "compressed PCD; conv"),
        ("pcd", binary.replace(b"COUNT 1", b"COUNT 999999999"), "invalid PCD file"),
    ]  # fmt: skip
    for number, (ending, data, message) in enumerate(cases):
        _put(tmp_path / f"{number}" / "run" / "points" / f"000000.{ending}", data)
        with pytest.raises(SourceError, match=message):
            FolderSource(tmp_path / f"{number}").schema()
    for number, data in enumerate((text, text.replace(b"float x,float y", b"float y,float x"))):
        swapped = data if not number else data.replace(b" x\n", b" q\n")
        _put(tmp_path / "others" / "run" / "points" / f"00000{number}.ply", swapped)
    with pytest.raises(SourceError, match=r"points with other columns than the first.*q, y, z"):
        _read(FolderSource(tmp_path / "others"))


def test_events_in_npz_files(tmp_path: Path) -> None:
    (tmp_path / "run" / "events").mkdir(parents=True)
    for i, count in enumerate((3, 0, 5)):
        x, t = np.arange(count, dtype="<u2"), np.arange(count, dtype="<i8") + 100 * i
        events = {"x": x, "y": x + 1, "t": t, "p": x % 2 == 0}
        np.savez(tmp_path / "run" / "events" / f"{i:06d}.npz", **events)
    source = FolderSource(tmp_path)
    assert {str(source.schema()[n]) for n in "xytp"} == {
        "x: uint16 [?]", "y: uint16 [?]", "t: int64 [?]", "p: bool [?]",
    }  # fmt: skip
    assert [frame["t"].tolist() for frame in _read(source)] == [
        [0, 1, 2], [], [200, 201, 202, 203, 204],
    ]  # fmt: skip


# Text files beside images, camera files, unrelated file names


RNG = np.random.default_rng(0)
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


def numbered(count: int, ending: str = ".png") -> list[str]:
    return [f"{number:06d}{ending}" for number in range(count)]


def texts(folder: Path, **contents: str) -> None:
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())


def refused(source: FolderSource, episode: int, match: str) -> SourceError:
    with pytest.raises(SourceError, match=match) as caught:
        frames_of(source, episode)
    return caught.value


def features(source: FolderSource) -> dict[str, str]:
    added = ("frame_number", "frame_name")
    return {n: f"{s.dtype} {list(s.shape)}" for n, s in source.schema().items() if n not in added}


def test_7_scenes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A text file with a 4x4 matrix per image, columns separated by tabs and spaces."""
    poses = RNG.normal(size=(2, 3, 4, 4)).astype(np.float32).astype(np.float64)
    for sequence in range(2):
        folder = tmp_path / "chess" / f"seq-0{sequence + 1}"
        _touch(folder, *(f"frame-{i:06d}.color.png" for i in range(3)))
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
        for frame, pose in zip(frames_of(source, episode), poses[episode], strict=True):
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
    _touch(tmp_path / "scene" / "color", *(f"{i}.jpg" for i in range(12)))
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
    read = frames_of(source)
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
    _touch(run / "rgb", *numbered(3))
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
    for i, frame in enumerate(frames_of(source)):
        for n, base in bases.items():
            assert int(frame[f"times_{n}"]) == int(frame[f"poses_{n}.time"]) == base + i
            assert frame[f"poses_{n}"].tolist() == [i + 0.5, 2]
        for letter in "abcdefg":
            assert frame[f"motion_{letter}"].tolist() == [0.5, 1, -2000], letter
    named = {"motion_f": ["x", "y", "z"], **{f"poses_{n}": ["x", "y"] for n in bases}}
    assert source.episodes()[0].metadata["columns"] == named


def test_columns_without_a_name_of_their_own(tmp_path: Path) -> None:
    """Also those of two tables with one name."""
    run, base = tmp_path / "run", 1403636579763555585
    _touch(run / "rgb", *numbered(3))
    rows = "".join(f"{base + i},{i}.5,{base - i}\n" for i in range(3))
    texts(run, **{"imu.csv": f",x,t\n{rows}", "imu.tsv": f",x,t\n{rows}"})
    texts(run, **{"twice.csv": f"t,x,t\n{rows}", "plain.csv": ",x\n1,2\n3,4\n5,6\n"})
    source = FolderSource(tmp_path)
    exact = {"imu": ("timestamp", "t"), "imu.tsv": ("timestamp", "t"), "twice": ("t", "c2")}
    names = [f"{table}.{part}" for table, parts in exact.items() for part in parts]
    expected = {**dict.fromkeys(exact, "float64 [1]"), **dict.fromkeys(names, "int64 []")}
    assert features(source) == {**expected, "plain": "float64 [2]", "rgb": "uint8 [4, 6, 3]"}
    frame = frames_of(source)[1]
    for table, (first, last) in exact.items():
        values = frame[f"{table}.{first}"], frame[table][0], frame[f"{table}.{last}"]
        assert values == (base + 1, 1.5, base - 1)
    columns = source.episodes()[0].metadata["columns"]
    assert columns == {**{table: ["x"] for table in exact}, "plain": ["", "x"]}


def test_names_between_tabs_with_blanks(tmp_path: Path) -> None:
    run = tmp_path / "run"
    _touch(run / "rgb", *numbered(3))
    rows = "0\t1.5\n2\t3.5\n4\t5.5\n"
    texts(run, **{"force.tsv": f'force x\t"force y"\n{rows}', "mixed.tsv": f"x y\n{rows}"})
    source = FolderSource(tmp_path)
    assert [frame["force"].tolist() for frame in frames_of(source)] == [
        [0, 1.5],
        [2, 3.5],
        [4, 5.5],
    ]
    columns = source.episodes()[0].metadata["columns"]
    assert columns == {"force": ["force x", "force y"], "mixed": ["x", "y"]}


OTHER_TEXTS = [  # no features
    *("1 2\n3 4\n", "1 2\n3 4\n5 6\n7 8\n9 10\n", "1 2\n3\n4 5\n"),
    *("1,5 2,5\n1,5 2,5\n1,5 2,5\n", "a\nb\nc\n", "1_0\n2\n3_0\n", ""),
]


def test_text_files_without_images_are_no_episode(tmp_path: Path) -> None:
    """As KITTI's poses outside of its sequences."""
    for name in ("00", "01"):
        _touch(tmp_path / "sequences" / name / "left", *numbered(3))
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
        _touch(tmp_path / f"{number}" / "rgb", *numbered(5))
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
        _touch(tmp_path / f"{number}" / "rgb", *names)
    flat = [f"{i}_{name}.png" for i in range(3) for name in ("rgb", "depth")]
    _touch(tmp_path / "copy", *flat, "1_rgb (1).png")
    _touch(tmp_path / "sound" / "rgb", *numbered(3))
    # Equal numbers mark separate features: cam0_0007.png and cam1_0007.png
    _touch(tmp_path / "two", *(f"a_{i}.png" for i in range(5)), *(f"b_{i}.png" for i in range(3)))
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
    assert len(frames_of(source, keys.index("sound"))) == 3


MINUS = {
    "a": ("{}.png", range(-5, 6)),
    "b": ("frame-{}.png", range(4)),  # a hyphen, not a minus
    "c": ("frame_{}.png", range(-2, 1)),
}


def test_a_minus_is_part_of_the_frame_number(tmp_path: Path) -> None:
    for run, (name, found) in MINUS.items():
        _touch(tmp_path / run / "rgb", *(name.format(number) for number in found))
    source = FolderSource(tmp_path)
    for episode, (_, found) in enumerate(MINUS.values()):
        assert [int(frame["frame_number"]) for frame in frames_of(source, episode)] == [*found]
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
        _touch(tmp_path / run / "rgb", *(f"{stem}.png" for stem in stems[:count][::-1]))
    source = FolderSource(tmp_path)
    notes, found = inventory_of(source).notes, frames_of(source)
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


@pytest.mark.parametrize("features", [None, ["timestamp"]])
def test_times_alone_and_gaps_in_them(tmp_path: Path, features: list[str] | None) -> None:
    times = (1_700_000_000_000_000_000 + tenths * 10**8 for tenths in (0, 1, 2, 15, 16))
    _touch(tmp_path / "in" / "run" / "rgb", *(f"{time}.png" for time in times))
    source = open_source(tmp_path / "in", features=features)
    convert(source, tmp_path / "r", split_at_gaps=0.5, workers=1)
    dataset = seqrecord.open(tmp_path / "r")
    assert [len(episode) for episode in dataset.episodes.values()] == [3, 2]
    assert {*dataset.features} >= {*(features or ["rgb", "timestamp"])}
    names = [features or ["frame_number"], None]
    named, whole = (frames_of(open_source(tmp_path / "in", features=n)) for n in names)
    assert named == [{name: frame[name] for name in named[0]} for frame in whole]


def test_times_of_several_units_in_names_are_refused(tmp_path: Path) -> None:
    _touch(tmp_path / "run" / "rgb", "1341847980.722988.png", "1403636579763555584.png")
    with pytest.raises(SourceError, match="several units") as caught:
        frames_of(FolderSource(tmp_path))
    assert "1341847980.722988 (s)" in str(caught.value.got)
    assert "1403636579763555584 (ns)" in str(caught.value.got)


# --- the inventory -----------------------------------------------------------------------------


def left_out_of(source: Any) -> dict[str, tuple[int, str]]:
    return {each.pattern: (each.count, each.reason) for each in inventory_of(source).left_out}


def test_the_inventory(tmp_path: Path) -> None:
    for name, rows in (("a", 1200), ("b", 1201)):
        run = tmp_path / name
        _touch(run / "rgb", *numbered(4))
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
    _touch(flat, *(f"{i}_{name}.png" for i in range(3) for name in ("rgb", "depth")))
    texts(flat, **{"poses.txt": "0 0\n" * 3, "K.txt": CAMERAS["K.txt"]})
    texts(flat, **{f"{i}_pose.txt": "1 0\n0 1\n" for i in range(3)})
    source = FolderSource(flat)
    assert left_out_of(source) == {}
    with pytest.raises(SourceError, match="no such feature"):
        FolderSource(flat, features=["imu"]).schema()
    seqrecord.convert(source, tmp_path / "records", workers=1, strict=True)
    _touch(flat, "preview.png")
    reason = "an image that belongs to no feature"
    assert left_out_of(FolderSource(flat)) == {"preview.png": (1, reason)}
    run = tmp_path / "run"  # the folder of one recording itself
    _touch(run, *numbered(5))
    texts(run, **{"poses.txt": "0 0\n" * 5})
    source = FolderSource(run)
    assert [info.key for info in source.episodes()] == ["run"]
    assert features(source) == {"frame": "uint8 [4, 6, 3]", "poses": "float64 [2]"}
    assert len(frames_of(source)) == 5
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
        _touch(src / name / "rgb", *numbered(5))
        np.save(src / name / "actions.npy", np.zeros((5, 2)))
        texts(src / name, **{"poses.txt": "0 0\n" * 5, "K.txt": CAMERAS["K.txt"]})
    texts(src, **{"a/rgb/000000.png": "cut", "d/actions.npy": "cut"})
    texts(src, **{"b/poses.txt": "1 2\n" * 4 + "1 2 3\n"})
    texts(src, **{"b/camera.json": CAMERAS["camera.json"].replace("5.5", "9" * 400)})
    report = seqrecord.convert(
        FolderSource(src), tmp_path / "records", workers=1, skip_bad_episodes=True
    )
    with seqrecord.open(tmp_path / "records") as dataset:
        assert sorted(dataset.episodes.keys()) == ["b", "c"]
        assert all(episode.metadata["camera"] == CAMERA for episode in dataset.episodes.values())
    left_out = {each.pattern: each.reason for each in report.inventory.left_out}
    reason = "not a table of numbers: rows of different numbers of columns"
    assert left_out["*/poses.txt"] == reason
    assert left_out["*/camera.json"] == "camera file: not fx, fy, cx, cy or a camera matrix"


def test_no_note_about_a_unit_passed_as_argument(tmp_path: Path) -> None:
    _touch(tmp_path / "in" / "run" / "rgb", *numbered(2))
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
        _touch(drive / sensor / "data", *(f"{i:010d}.png" for i in range(3)))
        texts(drive / sensor, **{"timestamps.txt": times})
    texts(drive / "oxts", **{f"data/{i:010d}.txt": "1.5 2.5 3" for i in range(3)})
    texts(drive / "oxts", **{"timestamps.txt": times})
    for root, key in ((tmp_path, "2011_09_26/drive_0001"), (drive, "drive_0001")):
        source = FolderSource(root)
        assert [info.key for info in source.episodes()] == [key]
        image = "uint8 [4, 6, 3]"
        assert features(source) == {"image_02": image, "image_03": image, "oxts": "float64 [3]"}
        assert [frame["oxts"].tolist() for frame in frames_of(source)] == [[1.5, 2.5, 3]] * 3
        assert set(left_out_of(source)) == {
            (drive / name).relative_to(root).as_posix()
            for name in ("*/timestamps.txt", "oxts/timestamps.txt")
        }
    _touch(tmp_path / "runs" / "a" / "data", *numbered(2))  # without times: two recordings
    _touch(tmp_path / "runs" / "b" / "data", *numbered(2))
    assert [info.key for info in FolderSource(tmp_path / "runs").episodes()] == ["a", "b"]


def test_the_inventory_explains_invalid_tables(tmp_path: Path) -> None:
    _touch(tmp_path / "run" / "rgb", *numbered(2))
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
