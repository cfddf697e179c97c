"""Generic folders of images and npy files, by frame and by episode."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import seqrecord
from seqrecord import EncodedImage, open_source
from seqrecord.errors import SourceError
from seqrecord.sources import FolderSource, Source
from tests.source_faults import check_fault, cut, encoded, fault, remove, save, write
from tests.trees import write_junk

Array = npt.NDArray[Any]


def _images(seed: int, *shape: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def _save(folder: Path, array: Array, names: list[str] | None = None, ending: str = "png") -> None:
    """One file for each entry along the first axis."""
    folder.mkdir(parents=True)
    for index, value in enumerate(array):
        name = names[index] if names else f"{index:06d}"
        if ending == "npy":
            np.save(folder / f"{name}.npy", value)
        else:
            Image.fromarray(value).save(folder / f"{name}.{ending}")


def _read(source: Source, episode: int = 0) -> list[dict[str, Array]]:
    frames = []
    for frame in source.frames(source.episodes()[episode]):
        assert list(frame) == [name for name in source.schema() if name in frame]
        for name, value in frame.items():
            if source.schema()[name].value == "text":
                assert isinstance(value, str)
                continue
            assert isinstance(value, np.ndarray)
            assert value.flags.c_contiguous
            assert value.dtype == source.schema()[name].dtype
            assert source.schema()[name].accepts(value.shape)
        frames.append({name: np.asarray(value) for name, value in frame.items()})
    assert len(frames) == source.episodes()[episode].num_frames
    return frames


def test_an_episode_of_every_kind(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    features: dict[str, Array] = {
        "rgb": _images(0, 3, 4, 5, 3),
        "rgba": _images(1, 3, 4, 5, 4),
        "gray": _images(2, 3, 4, 5),
        "depth16": rng.integers(0, 65536, (3, 4, 5), np.uint16),
        "points": rng.normal(size=(3, 7, 3)),
        "actions": rng.normal(size=(3, 32)).astype(np.float32),
        "reward": rng.normal(size=3),
    }
    for name, array in features.items():
        if name in ("actions", "reward"):
            np.save(tmp_path / "run" / f"{name}.npy", array)
        else:
            _save(tmp_path / "run" / name, array, ending="npy" if name == "points" else "png")
    palette = features["labels"] = _images(3, 3, 4, 5) % 3
    for number, labels in enumerate(palette):  # which are the indices
        image = Image.fromarray(labels).convert("P")
        image.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
        (tmp_path / "run" / "labels").mkdir(exist_ok=True)
        image.save(tmp_path / "run" / "labels" / f"{number:06d}.png")
    big = features["big"] = rng.normal(size=(3, 4, 5))
    _save(tmp_path / "run" / "big", big.astype(">f8"), ending="npy")
    whole = features["whole"] = rng.normal(size=(3, 4, 5)).astype("f4")
    np.save(tmp_path / "run" / "whole.npy", np.asfortranarray(whole.astype(">f4")))
    metadata = {"task": "pick", "nested": {"different frames": [1, 2.5, None, True, "ü"]}}
    (tmp_path / "run" / "metadata.json").write_text(json.dumps(metadata))
    write_junk(tmp_path)
    source = FolderSource(tmp_path)
    [info] = source.episodes()
    names = ("big", "depth16", "gray", "labels", "points", "rgb", "rgba")
    files = {n: f"{n}/{{:06d}}.{'npy' if n in ('big', 'points') else 'png'}" for n in names}
    assert (info.key, info.num_frames) == ("run", 3)
    assert info.metadata == {**metadata, "files": files}
    assert [str(spec) for spec in source.schema().values()] == [
        "actions: float32 [32]",
        "big: float64 [4, 5]",
        "depth16: uint16 [4, 5]",
        "frame_number: int64 []",
        "gray: uint8 [4, 5]",
        "labels: uint8 [4, 5]",
        "points: float64 [7, 3]",
        "reward: float64 []",
        "rgb: uint8 [4, 5, 3]",
        "rgba: uint8 [4, 5, 4]",
        "whole: float32 [4, 5]",
    ]
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
    """One file for each name: images, and arrays of one number."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, name in enumerate(names):
        if name.endswith(".npy"):
            np.save(folder / name, np.float32(index))
        else:
            Image.fromarray(_images(index, 4, 5, 3)).save(folder / name)


def test_a_gap_in_the_numbers_is_an_error_unless_it_is_allowed(tmp_path: Path) -> None:
    gaps = [(4, 90), (3, 4, 90), (0, 1, 3, 4), (0, 20, 60)]
    for run, numbers in enumerate(gaps):
        _touch(tmp_path / f"{run}" / "rgb", *(f"{number:05d}.png" for number in numbers))
    source, allowing = open_source(tmp_path), open_source(tmp_path, allow_gaps=True)
    for run, numbers in enumerate(gaps):
        with pytest.raises(SourceError, match="allow_gaps=true") as caught:
            list(source.frames(source.episodes()[run]))
        assert (caught.value.episode, caught.value.file) == (f"{run}", str(tmp_path / f"{run}"))
        assert [int(frame["frame_number"]) for frame in _read(allowing, run)] == [*numbers]


NAMES = [
    ("0000.png", "0020.png", "0040.png"),
    ("1403636579763555584.png", "1403636579813555584.png", "1403636580213555584.png"),
    ("8.png", "9.png", "10.png"),
    ("take 1-007 {a}.png", "take 1-008 {a}.png"),
    ("cam0_7_left.jpg", "cam0_8_left.jpg"),
    ("IMG0007.png", "IMG0008.png"),
]


def test_a_batch_leads_back_to_its_files(tmp_path: Path) -> None:
    for number, names in enumerate(NAMES):
        _touch(tmp_path / "src" / f"{number}" / "rgb", *names)
    seqrecord.convert(FolderSource(tmp_path / "src"), tmp_path / "records", workers=1)
    options: dict[str, Any] = {"clip_len": 1, "batch_size": 1, "metadata": ["files"]}
    for number, names in enumerate(NAMES):
        pipe = seqrecord.SeqRecordPipe(
            tmp_path / "records", episodes=[f"{number}"], shuffle=False, **options
        )
        found = [b["files"][0]["rgb"].format(b["frame_number"][0].item()) for b in pipe]
        assert found == [f"rgb/{name}" for name in names]


UNTOLD: dict[tuple[str, ...], list[int]] = {
    ("left.png", "right.png"): [0, 1],
    ("1305031102.075304.png", "1305031102.175304.png", "1305031103.0.png"): [0, 1, 2],
    ("000007_000008_flow.png", "000008_000009_flow.png"): [7, 8],
    ("9_1.png", "9_2.png", "10_2.png"): [0, 1, 2],
    (f"{1 << 63}.png", f"{(1 << 63) + 1}.png"): [0, 1],
}


def test_names_that_numbers_do_not_tell_are_kept(tmp_path: Path) -> None:
    for episode, names in enumerate(UNTOLD):
        _touch(tmp_path / f"{episode}" / "rgb", *names)
    source = FolderSource(tmp_path)
    for episode, (names, numbers) in enumerate(UNTOLD.items()):
        found = {str(f["frame_name"]): int(f["frame_number"]) for f in _read(source, episode)}
        assert found == {name[:-4]: n for name, n in zip(names, numbers, strict=True)}
        assert "files" not in source.episodes()[episode].metadata


def test_features_in_one_folder_by_the_words_of_names(tmp_path: Path) -> None:
    for name in ("a", "b"):
        files = [
            f"{i:04d}_{kind}" for i in range(3) for kind in ("rgb.png", "depth.npy", "seg.png")
        ]
        _touch(tmp_path / name, *files, "preview.png")
    _touch(tmp_path / "c", "0000_rgb.png", "0001_rgb.png")  # an episode that lacks the others
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


@pytest.mark.parametrize(
    ("files", "features"),
    [
        (["rgb/0.png", "cam/0_l.png", "cam/0_r.png", "cam/0.png"], "cam cam.l cam.r rgb"),
        (["rgb_0.png", "depth_0.png", "arm.npy"], "arm depth rgb"),
        (["0.png", "0_depth.png"], "depth frame"),
        (["img_0.png", "arm.npy"], "arm img"),
        (["plot.png", "arm.npy"], "arm"),
        (["rgb/0_rgb.png", "depth/00_depth.png"], "depth rgb"),
        (["0.rgb.png", "0.depth.png", "1.rgb.png", "1.depth.png"], "depth rgb"),
    ],
    ids=str,
)
def test_names_of_features(tmp_path: Path, files: list[str], features: str) -> None:
    for file in files:
        _touch((tmp_path / "run" / file).parent, Path(file).name)
    if "arm.npy" in files:
        np.save(tmp_path / "run" / "arm.npy", np.zeros((1, 2)))
    source = FolderSource(tmp_path)
    [info] = source.episodes()
    assert info.key == "run"
    names = [name for name in source.schema() if not name.startswith("frame_")]
    assert names == features.split()
    assert {*_read(FolderSource(tmp_path))[0]} >= {*names}


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
        there = dataset.episodes["run"].present("depth")
        assert there.tolist() == [False, True, False, False, True]
    _touch(tmp_path / "run" / "depth", "010.npy")
    with pytest.raises(SourceError) as caught:
        list(source.frames(source.episodes()[0]))
    assert (caught.value.feature, caught.value.got) == ("depth", "10")


def test_dimensions_that_differ_between_episodes_are_variable(tmp_path: Path) -> None:
    _save(tmp_path / "a" / "rgb", _images(0, 2, 4, 5, 3))
    _save(tmp_path / "b" / "rgb", _images(1, 2, 4, 7, 3))
    _save(tmp_path / "c" / "rgb", _images(2, 2, 6, 5, 3))
    source = FolderSource(tmp_path)
    assert source.schema()["rgb"].shape == (None, None, 3)
    assert [_read(source, i)[1]["rgb"].shape for i in range(3)] == [(4, 5, 3), (4, 7, 3), (6, 5, 3)]


def test_masks_of_one_bit(tmp_path: Path) -> None:
    mask = _images(0, 5, 9) > 100
    _save(tmp_path / "run" / "mask", np.stack([mask, ~mask]))
    with Image.open(tmp_path / "run" / "mask" / "000000.png") as image:
        assert image.mode == "1"
    read = [frame["mask"] for frame in _read(FolderSource(tmp_path))]
    np.testing.assert_array_equal([np.asarray(each).view(np.uint8) for each in read], [mask, ~mask])
    seqrecord.convert(FolderSource(tmp_path), tmp_path / "records", workers=1)
    with seqrecord.open(tmp_path / "records") as dataset:
        np.testing.assert_array_equal(dataset.episodes["run"][:]["mask"], [mask, ~mask])


def test_16_bit_colour_keeps_its_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rgb = np.random.default_rng(0).integers(0, 65536, (4, 5, 3), np.uint16)
    (tmp_path / "run" / "normals").mkdir(parents=True)
    path = tmp_path / "run" / "normals" / "0.png"
    path.write_bytes(imagecodecs.png_encode(rgb))
    np.testing.assert_array_equal(_read(FolderSource(tmp_path))[0]["normals"], rgb, strict=True)
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    with pytest.raises(SourceError, match="pip install imagecodecs"):
        FolderSource(tmp_path).schema()


def test_kept_images(tmp_path: Path) -> None:
    _save(tmp_path / "run" / "photo", _images(0, 2, 16, 16, 3), ending="jpg")
    _save(tmp_path / "run" / "render", _images(1, 2, 4, 5, 3))
    _save(tmp_path / "run" / "labels", _images(2, 2, 4, 5))
    source = FolderSource(tmp_path, keep_encoded=True)
    codecs = {name: spec.codec for name, spec in source.schema().items()}
    assert codecs == {
        "frame_number": (),
        "labels": (),
        "photo": ({"id": "seqrecord.image", "format": "jpeg"},),
        "render": ({"id": "seqrecord.image", "format": "png"},),
    }
    second = list(source.frames(source.episodes()[0]))[1]
    for name, file in (("photo", "000001.jpg"), ("render", "000001.png")):
        assert second[name] == EncodedImage((tmp_path / "run" / name / file).read_bytes())
    assert isinstance(second["labels"], np.ndarray)


# --- ways to be broken -----------------------------------------------------------------------


BROKEN = {
    "one frame fewer": fault(
        *(remove("rgb/2.png"), "rgb", "different frames"),
        feature="rgb",
        expected="3 frames, as in photo/",
        got="2 frames",
    ),
    "another name": fault(
        lambda folder: (folder / "rgb/2.png").rename(folder / "rgb/3.png"),
        *("rgb", "different frames"),
        feature="rgb",
        expected="2, as in photo/",
        got="3",
    ),
    "array of another length": fault(
        save("actions.npy", np.zeros((4, 6))), "actions.npy", "different frames", got="4 frames"
    ),
    "array without time": fault(save("actions.npy", 1.0), "actions.npy", "without a time axis"),
    "array of another shape": fault(
        save("actions.npy", np.zeros((3, 6, 1))), "actions.npy", "shape", expected=[6], got=[6, 1]
    ),
    "array of another dtype": fault(
        save("actions.npy", np.zeros((3, 6), "i8")), "actions.npy", "dtype", got="int64"
    ),
    "array of objects": fault(save("actions.npy", [{}] * 3), "actions.npy", "pickled"),
    "truncated array": fault(cut("actions.npy", 200), "actions.npy", "size", got="200 bytes"),
    "a feature twice": fault(
        save("rgb.npy", np.zeros((3, 4, 5, 3), "u1")), ".", "twice", got="rgb/ and rgb.npy"
    ),
    "a frame twice": fault(
        write("rgb/2.jpg", b""), "rgb/2.*", "two files have the same frame number"
    ),
    "image of another size": fault(
        *(write("rgb/1.png", encoded(_images(0, 4, 4, 3))), "rgb/1.png", "differs"),
        got="uint8 [4, 4, 3]",
        feature="rgb",
        frame=1,
    ),
    "image of another depth": fault(
        *(write("rgb/0.png", encoded(np.zeros((4, 5), "u2"))), "rgb/0.png", "differs"),
        got="uint16 [4, 5]",
    ),
    "truncated JPEG": fault(
        cut("photo/1.jpg", 700), "photo/1.jpg", "cannot decode", feature="photo", frame=1
    ),
    "PNG named JPEG": fault(
        write("photo/1.jpg", encoded(_images(0, 16, 16, 3))), "photo/1.jpg", "file name", got="png"
    ),
    "metadata that is no JSON": fault(
        write("metadata.json", b"{"), "metadata.json", "invalid JSON"
    ),
    "metadata that is no UTF-8": fault(
        write("metadata.json", b'{"a": "\xff"}'), "metadata.json", "invalid JSON"
    ),
    "metadata with NaN": fault(
        write("metadata.json", b'{"a": NaN}'),
        "metadata.json",
        "invalid JSON",
        got="NaN is not a JSON number",
    ),
    "metadata that is a list": fault(
        write("metadata.json", b"[]"), "metadata.json", "JSON object", got="[]"
    ),
    "metadata nested too deeply": fault(
        write("metadata.json", b"[" * 200_000), "metadata.json", "invalid JSON"
    ),
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        stems = ["0", "1", "2"]
        _save(tmp_path / name / "photo", _images(0, 3, 16, 16, 3), stems, "jpg")
        _save(tmp_path / name / "rgb", _images(1, 3, 4, 5, 3), stems)
        np.save(tmp_path / name / "actions.npy", np.zeros((3, 6)))
    return tmp_path


@pytest.mark.parametrize("keep_encoded", [False, True])
@pytest.mark.parametrize("name", BROKEN)
def test_broken(tree: Path, name: str, keep_encoded: bool) -> None:
    BROKEN[name].damage(tree / "b")
    check_fault(BROKEN[name], FolderSource(tree, keep_encoded=keep_encoded), "b", tree / "b")


@pytest.mark.parametrize("episodes", ["a", "ab"], ids=["in one episode", "in two"])
def test_jpegs_and_pngs_are_kept_side_by_side(
    tree: Path, tmp_path_factory: pytest.TempPathFactory, episodes: str
) -> None:
    """As they are, on each way from files to files and batches; arrays become PNGs."""
    for episode in episodes:
        for number in (1, 2) if episode == "a" else (0, 1, 2):
            path = tree / episode / "rgb" / f"{number}.png"
            path.unlink()
            Image.fromarray(_images(number, 4, 5, 3)).save(path.with_suffix(".jpg"))
    source = FolderSource(tree, keep_encoded=True)
    codec = {"id": "seqrecord.image", "format": "any"}
    assert source.schema()["rgb"].codec == (codec,)
    wanted = [_read(FolderSource(tree), i) for i in range(2)]
    out = tmp_path_factory.mktemp("out")
    records = out / "records"
    seqrecord.convert(source, records, workers=1)
    seqrecord.convert(open_source(records), out / "again", workers=1)
    for place in (records, out / "again"):
        with seqrecord.open(place) as dataset:
            assert dataset.features["rgb"].codec == (codec,)
            for key, frames in zip("ab", wanted, strict=True):
                got = dataset.episodes[key][:]["rgb"]
                np.testing.assert_array_equal(got, [frame["rgb"] for frame in frames])
                seqrecord.export.to_files(dataset, key, out / f"{place.name}-files")
                for path in (tree / key / "rgb").iterdir():
                    copy = out / f"{place.name}-files" / key / "rgb"
                    assert (copy / f"00000{path.name}").read_bytes() == path.read_bytes()


def test_what_cannot_be_packed(tmp_path: Path) -> None:
    (tmp_path / "empty" / "run" / "rgb").mkdir(parents=True)
    with pytest.raises(SourceError, match="no episode found"):
        FolderSource(tmp_path / "empty").episodes()
    _save(tmp_path / "name" / "run" / "left camera", _images(0, 2, 4, 5))
    with pytest.raises(SourceError, match="not a feature name") as caught:
        FolderSource(tmp_path / "name").schema()
    assert caught.value.episode == "run"
    (tmp_path / "text" / "run").mkdir(parents=True)
    np.save(tmp_path / "text" / "run" / "words.npy", np.array(["a", "b"]))
    with pytest.raises(SourceError, match=r"a dtype that cannot be stored; file: .*words.npy"):
        FolderSource(tmp_path / "text").schema()


def test_a_link_that_leads_back_up(tmp_path: Path) -> None:
    _save(tmp_path / "run" / "rgb", _images(0, 1, 4, 5))
    (tmp_path / "run" / "again").symlink_to(tmp_path)
    with pytest.raises(SourceError, match="leads to a folder above"):
        FolderSource(tmp_path).episodes()


_CUT = """
import os, sys
from pathlib import Path
from seqrecord.errors import SourceError
from seqrecord import open_source
from seqrecord.sources import FolderSource, Source

source = FolderSource(sys.argv[1])
frames = source.frames(source.episodes()[0])
for _ in range(3):
    next(frames)
os.truncate(Path(sys.argv[1], "run", "actions.npy"), 4096)
try:
    print(len(list(frames)))
except SourceError as error:
    print(error)
"""


def test_an_array_that_is_cut_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    np.save(tmp_path / "run" / "actions.npy", np.zeros((100, 1024)))
    command = [sys.executable, "-c", _CUT, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr  # -7 is SIGBUS
    assert ran.stdout.startswith("the npy file was truncated while it was read; file: ")
    assert "actions.npy; " in ran.stdout
    assert "frame: 3; " in ran.stdout
