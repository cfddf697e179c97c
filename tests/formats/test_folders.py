"""Generic folders of images and npy files, by frame and by episode."""

from __future__ import annotations

import functools
import json
import os
import re
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
from seqrecord import open_source
from seqrecord.errors import MissingPackageError, SourceError
from seqrecord.sources import FolderSource, Source
from tests.kit.datasets import encoded
from tests.kit.source_faults import check_faults, cut, fault, remove, save, write
from tests.kit.trees import write_junk

Array = npt.NDArray[Any]


def _images(seed: int, *shape: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


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
        "rgb": _images(0, 3, 4, 5, 3),
        "rgba": _images(1, 3, 4, 5, 4),
        "gray": _images(2, 3, 4, 5),
        "depth16": rng.integers(0, 65536, (3, 4, 5), np.uint16),
        "points": rng.normal(size=(3, 7, 3)),
        "big": rng.normal(size=(3, 4, 5)),
        "labels": _images(3, 3, 4, 5) % 3,  # indices, not colours
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
        _save(tmp_path / path / "rgb", _images(0, 2, 4, 5, 3))
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
            Image.fromarray(_images(index, 4, 5, 3)).save(folder / name)


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
        np.testing.assert_array_equal(frame["rgb"], _images(3 * index, 4, 5, 3))
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
    _save(tmp_path / "run" / "rgb", _images(0, 5, 4, 5, 3), stems)
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
    mask, shapes = _images(0, 5, 9) > 100, [(4, 5, 3), (4, 7, 3), (6, 5, 3)]
    colours = np.random.default_rng(0).integers(0, 65536, (4, 5, 3), np.uint16)
    for name, shape in zip("abc", shapes, strict=True):
        _save(tmp_path / "src" / name / "rgb", _images(0, 2, *shape))
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
    _save(tmp_path / "run" / "rgb", _images(0, 4, 2, 2, 3))
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
    fault(write("rgb/1.png", encoded(_images(0, 4, 4, 3))), "rgb/1.png", "differs", **_SIZE),
    fault(
        write("rgb/0.png", encoded(np.zeros((4, 5), "u2"))), "rgb/0.png", "differs", got="uint16"
    ),
    fault(cut(JPEG, 700), JPEG, "cannot decode", feature="photo", frame=1),
    fault(write(JPEG, encoded(_images(0, 16, 16, 3))), JPEG, "file name", got="png"),
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
        _save(tmp_path / name / "photo", _images(0, 3, 16, 16, 3), stems, "jpg")
        _save(tmp_path / name / "rgb", _images(1, 3, 4, 5, 3), stems)
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
            Image.fromarray(_images(number, 4, 5, 3)).save(path.with_suffix(".jpg"))
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
    _save(tmp_path / "name" / "run" / "left camera", _images(0, 2, 4, 5))
    (tmp_path / "text" / "run").mkdir(parents=True)
    np.save(tmp_path / "text" / "run" / "words.npy", np.array(["a", "b"]))
    _save(tmp_path / "link" / "run" / "rgb", _images(0, 1, 4, 5))
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
