"""An exported episode is the episode, in files that anything opens and `write` packs again."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo

import seqrecord
from seqrecord import ClipError, Dataset, EncodedImage, FeatureSpec, Schema, convert, open_source
from seqrecord.edit import split_episodes
from seqrecord.errors import DestinationError, NotFoundError, SchemaError, SourceError
from seqrecord.export import to_files, to_lerobot
from seqrecord.sources import FolderSource
from seqrecord.types import Progress
from tests.kit.datasets import columns, small_frames, write_dataset, write_small
from tests.kit.source_faults import remove, save, write
from tests.kit.tiny import same_frames

KEY = "alpha/Easy/P000"

DTYPES = [*("|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8"), "<f2", "<f4", "<f8"]
NAMES = [
    *("image", "Image", "depth.left", "a", "a.npy", "metadata.json", "Metadata.JSON"),
    *("seqrecord.json", "__MACOSX", "joint_1", "000000", "x.png", "pose_left.txt"),
]
KEYS = ["k", "k/other", "env/Easy/P000", "a b/ü", "env/Data_easy/P001"]
IMAGES = [("|u1", (5, 4)), ("|u1", (5, 4, 3)), ("|u1", (5, 4, 4)), ("<u2", (5, 4))]
SIZES = st.one_of(st.none(), st.integers(1, 3))
SPECS = st.one_of(
    st.tuples(st.sampled_from([*DTYPES, "<c8", "<c16"]), st.lists(SIZES, max_size=3).map(tuple)),
    st.sampled_from(IMAGES),
    st.sampled_from([("|u1", (None, None, 3)), ("<u2", (None, 4)), ("|u1", (5, 4, 3))]),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5))
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@st.composite
def datasets(draw: st.DrawFn) -> tuple[Schema, dict[str, Any]]:
    """A schema, and for each key its metadata and frames, in which anything may be missing."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    specs = [
        FeatureSpec(name, np.dtype(dtype), shape)
        for name, (dtype, shape) in zip(
            names, draw(st.lists(SPECS, min_size=len(names), max_size=len(names))), strict=True
        )
    ]
    kept = draw(st.sampled_from([None, "png", "jpeg"]))
    specs = [_kept(spec, kept) for spec in specs]
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    episodes = {}
    for key in draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=2, unique=True)):
        present = draw(st.sampled_from([1.0, 0.7]))
        frames = [
            {
                spec.name: _item(rng, spec)
                for place, spec in enumerate(specs)
                if rng.random() < present or place == number % len(specs)
            }
            for number in range(draw(st.integers(1, 5)))
        ]
        episodes[key] = (draw(st.dictionaries(st.text(max_size=5), JSON, max_size=3)), frames)
    return Schema(specs), episodes


def _kept(spec: FeatureSpec, name: str | None) -> FeatureSpec:
    if name is None or spec.dtype != np.uint8 or len(spec.shape) != 3 or spec.shape[2] != 3:
        return spec
    return replace(spec, codec=({"id": "seqrecord.image", "format": name},))


def _item(rng: np.random.Generator, spec: FeatureSpec) -> npt.NDArray[Any] | EncodedImage:
    least = 1 if spec.codec else 0
    shape = tuple(int(rng.integers(least, 4)) if n is None else n for n in spec.shape)
    if spec.codec:
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(file, spec.codec[0]["format"])
        return EncodedImage(file.getvalue())
    if spec.dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    raw = rng.bytes(spec.dtype.itemsize * int(np.prod(shape)))  # every bit pattern, NaNs among them
    return np.frombuffer(raw, spec.dtype).reshape(shape)


def _write(root: Path, schema: Schema, episodes: dict[str, Any]) -> Dataset:
    frames = {key: each for key, (_, each) in episodes.items()}
    metadata = {key: entries for key, (entries, _) in episodes.items()}
    write_dataset(root, frames, metadata=metadata, schema=schema, chunk_frames=2)
    return seqrecord.open(root)


def frames_of(dataset: Dataset) -> dict[str, Any]:
    """Metadata and frames of all episodes, with dtypes and shapes."""

    def plain(value: Any) -> Any:
        return (
            value
            if isinstance(value, (str, bytes))
            else (value.dtype.str, value.shape, value.tobytes())
        )

    return {
        key: (
            episode.metadata,
            episode.fps,
            [{n: plain(v) for n, v in episode[i].items()} for i in range(len(episode))],
        )
        for key, episode in dataset.episodes.items()
    }


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def same(again: Dataset, dataset: Dataset) -> bool:
    specs = [[str(spec) for spec in each.features.values()] for each in (again, dataset)]
    return frames_of(again) == frames_of(dataset) and specs[0] == specs[1]


@given(made=datasets(), keep_encoded=st.booleans(), codec=st.sampled_from(["balanced", "raw"]))
def test_any_episode(made: tuple[Schema, dict[str, Any]], keep_encoded: bool, codec: str) -> None:
    schema, episodes = made
    with TemporaryDirectory() as folder:
        root = Path(folder)
        with _write(root / "records", schema, episodes) as dataset:
            for key in sorted(episodes):
                assert to_files(dataset, key, root / "tree") == [(root / "tree" / key).resolve()]
            to_files(dataset, list(reversed(episodes)), root / "all")
            assert files_in(root / "all") == files_in(root / "tree")
            source = open_source(root / "all", keep_encoded=keep_encoded)
            convert(source, root / "again", codecs=codec, workers=1)
            with seqrecord.open(root / "again") as again:
                assert same(again, dataset)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    write_small(tmp_path / "records")
    return seqrecord.open(tmp_path / "records")


def test_a_dataset_of_every_kind(dataset: Dataset, tmp_path: Path) -> None:
    seen: list[Progress] = []
    folders = to_files(dataset, None, tmp_path / "tree", progress=seen.append)
    assert folders == [tmp_path / "tree" / key for key in dataset.episodes]
    assert (seen[-1].done, seen[-1].total) == (dataset.num_frames, dataset.num_frames)
    convert(open_source(tmp_path / "tree"), tmp_path / "again", workers=2)
    with seqrecord.open(tmp_path / "again") as again:
        assert same(again, dataset)
    folder, frames = tmp_path / "tree" / KEY, small_frames(0, 11)
    expected = {"metadata.json", "seqrecord.json", "pose.npy", "step.npy"}
    for i, frame in enumerate(frames):
        for name in frame.keys() - {"pose", "step"}:
            ending = "png" if name in ("image_left", "mask", "range", "photo") else "npy"
            expected.add(path := f"{name}/{i:06d}.{ending}")
            _assert_file(folder / path, frame[name])
    assert {*files_in(folder)} == expected
    for name in ("pose", "step"):
        stacked = np.load(folder / f"{name}.npy", allow_pickle=False)
        np.testing.assert_array_equal(stacked, np.stack([frame[name] for frame in frames]))
    metadata = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    assert metadata == {"difficulty": "Easy", "number": 0, "place": "Ürümqi"}


def test_splits_are_kept(dataset: Dataset, tmp_path: Path) -> None:
    split_episodes(dataset.url, [KEY], "val")
    to_files(dataset.url, None, tmp_path / "tree")
    convert(open_source(tmp_path / "tree"), tmp_path / "again", workers=1)
    with seqrecord.open(tmp_path / "again") as again:
        assert again.splits == {"val": [KEY]}


def test_some_features(dataset: Dataset, tmp_path: Path) -> None:
    names, tree = ["note", "step", "mask", "depth_left"], tmp_path / "tree"
    seen: list[Progress] = []
    [folder] = to_files(dataset, KEY, tree, features=names, progress=seen.append)
    assert (seen[-1].done, seen[-1].total) == (11, 11)
    numbered = {f"depth_left/{n:06d}.npy" for n in range(11)}
    assert {*files_in(folder)} > {*numbered, "step.npy", "note/000006.npy"}
    assert np.load(folder / "step.npy").tolist() == [*range(11)]
    convert(FolderSource(tree), tmp_path / "again", workers=1)
    read, episode = seqrecord.open(tmp_path / "again").episodes[KEY], dataset.episodes[KEY]
    assert len(read) == 11
    for number in range(11):
        got, whole = read[number], episode[number]
        assert got.keys() == whole.keys() & {*names}
        assert same_frames({KEY: [got]}, {KEY: [{name: whole[name] for name in got}]})
    # Frames with none of the features are left out.
    to_files(dataset, KEY, tmp_path / "few", features=["flow", "mask"])
    assert FolderSource(tmp_path / "few").episodes()[0].num_frames == 10
    numbers = [{"a": np.int64(n), "b": np.int64(n)} for n in range(4)]
    del numbers[1]["a"]
    write_dataset(tmp_path / "gap", {"k": numbers})
    [folder] = to_files(tmp_path / "gap", "k", tmp_path / "numbers", features=["a"])
    assert np.load(folder / "a.npy").tolist() == [0, 2, 3]


X = Schema([FeatureSpec("x", np.dtype("<i8"), ())])
ONE = [{"x": np.int64(1)}]


def test_metadata_that_indents_to_more_than_is_read(tmp_path: Path) -> None:
    deep: Any = [0] * 70_000  # 4 MiB with the indentation
    for _ in range(60):
        deep = [deep]
    metadata = {"deep": deep, "long": "ü" * 150_000}
    to_files(_write(tmp_path / "records", X, {"a": (metadata, ONE)}), "a", tmp_path / "tree")
    assert FolderSource(tmp_path / "tree").episodes()[0].metadata == metadata


def _assert_file(path: Path, array: npt.NDArray[Any]) -> None:
    if path.suffix == ".png":
        with Image.open(path) as image:
            read = np.asarray(image)
    else:
        read = np.load(path, allow_pickle=False)
    assert read.shape == array.shape
    assert read.tobytes() == array.astype(read.dtype).tobytes()  # NaN and -0.0 too
    # Pillow before 11 reads 16 bits into 32.
    assert read.dtype.itemsize == array.dtype.itemsize or read.dtype == np.int32


def test_names_of_files(tmp_path: Path) -> None:
    """Of images that are kept as they are, and of vectors that a frame lacks; none collide."""
    info = PngInfo()
    info.add_text("Comment", "original")  # which this writer would not produce
    Image.new("RGB", (9, 7), "red").save(tmp_path / "one.png", pnginfo=info)
    Image.new("RGB", (9, 7), "red").save(tmp_path / "one.jpg", quality=3)
    original = {e: (tmp_path / f"one.{e}").read_bytes() for e in ("png", "jpg")}
    images = {e: EncodedImage(data) for e, data in original.items()}
    first = {"joint_1": np.zeros(2), "action": np.ones(3), **images}
    write_dataset(tmp_path / "records", {"a": [first, {"joint_1": np.zeros(2)}]})
    [folder] = to_files(tmp_path / "records", "a", tmp_path / "out")
    for ending, data in original.items():
        assert (folder / ending / f"000000.{ending}").read_bytes() == data
    assert files_in(folder) == [
        *("action/000000.npy", "joint_1.npy", "jpg/000000.jpg"),
        *("metadata.json", "png/000000.png", "seqrecord.json"),
    ]
    names = ["metadata.json", "seqrecord.json", "a", "a.npy", "A"]
    frame: dict[str, Any] = {name: np.full((2, 2), i, np.int16) for i, name in enumerate(names)}
    frame["a"] = frame["A"] = np.arange(2)
    schema = Schema([FeatureSpec(name, a.dtype, a.shape) for name, a in frame.items()])
    dataset = _write(tmp_path / "others", schema, {"k": ({"m": 1}, [frame])})
    assert files_in(*to_files(dataset, "k", tmp_path / "tree")) == [
        *("A~1.npy", "a.npy", "a.npy~1/000000.npy", "metadata.json"),
        *("metadata.json~1/000000.npy", "seqrecord.json", "seqrecord.json~1/000000.npy"),
    ]


def test_missing_episodes_and_existing_files_are_refused(dataset: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for key in ("alpha/Easy", "../records", "/etc", ""):
        with pytest.raises(ClipError, match="unknown episode"):
            to_files(dataset, key, out)
    with pytest.raises(SchemaError, match="no such feature"):
        to_files(dataset, KEY, out, features=["nothing"])
    assert not out.exists()
    (out / KEY).mkdir(parents=True)
    (out / KEY / "mine.txt").write_text("precious")
    with pytest.raises(DestinationError, match="not empty"):
        to_files(dataset, KEY, out)
    assert [path.name for path in (out / KEY).iterdir()] == ["mine.txt"]
    (out / "alpha").rename(tmp_path / "elsewhere")
    (out / "alpha").symlink_to(tmp_path / "elsewhere")  # a link that leads out
    (tmp_path / "elsewhere/Easy/P000/mine.txt").unlink()
    with pytest.raises(DestinationError, match="not inside the destination"):
        to_files(dataset, KEY, out)
    assert not any((tmp_path / "elsewhere/Easy/P000").iterdir())


# --- where an episode cannot go, and files that are not as they were written -------------------


def test_keys_that_cannot_be_folders(tmp_path: Path) -> None:
    cases = [
        *((key, "would be hidden") for key in (".hidden/a", "a/.b", "__MACOSX/a")),
        ("/".join("a" * 40), "too many levels.*seqrecord edit rename.*got: 40"),
        ("a" * 300, "too long; .*seqrecord edit rename"),
        *((key, "cannot be written") for key in ("a/x.npy/b", "a/metadata.json")),
    ]
    episodes: dict[str, Any] = {key: ({}, ONE) for key in ("a", *dict(cases))}
    dataset = _write(tmp_path / "records", X, episodes)
    before = files_in(*to_files(dataset, "a", tmp_path / "tree"))
    for key, match in cases:
        with pytest.raises(DestinationError, match=match) as caught:
            to_files(dataset, key, tmp_path / "tree")
        assert caught.value.episode == key
    assert files_in(tmp_path / "tree" / "a") == before
    assert len(list(tmp_path.glob("tree/**/*.npy"))) == 1


def test_a_full_disk(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        assert length > 11 * 7 * 8  # the pose of all frames
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DestinationError, match="cannot be written: No space left") as caught:
        to_files(dataset, "alpha/Easy/P000", tmp_path / "tree", features=["pose", "flow"])
    assert caught.value.episode == "alpha/Easy/P000"
    source = FolderSource(tmp_path / "tree")  # half an episode is not packed
    with pytest.raises(SourceError):
        list(source.frames(source.episodes()[0]))


Damage = Callable[[Path], object]


def _json(change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(folder: Path) -> None:
        value = json.loads((folder / "seqrecord.json").read_text())
        change(value)
        (folder / "seqrecord.json").write_text(json.dumps(value))

    return damage


def _note(**facts: Any) -> Damage:
    """Other facts of the feature `note`."""
    return _json(
        lambda value: next(f for f in value["features"] if f["name"] == "note").update(facts)
    )


NOTE = "note/000003.npy"
NOTES: list[dict[str, Any]] = [{"path": path} for path in ("../x", "..", "\ud800", 3)]
NOTES += [{"dtype": "|O"}, {"shape": [0]}, {"num_frames": 99}, {"layout": "file"}]
BROKEN: list[tuple[Damage, str, str]] = [
    (remove(NOTE), "exported files are missing", "note"),
    (lambda f: (f / NOTE).rename(f / "note/000099.npy"), "exported files are missing", "note"),
    (lambda f: shutil.rmtree(f / "mask"), "cannot list the folder", "mask"),
    (remove("step.npy"), "cannot read the file", "step"),
    (save("step.npy", np.arange(3)), "the features have different frames", "step"),
    (save("step.npy", np.arange(11.0)), "wrong dtype", "step"),
    (save(NOTE, np.zeros((2, 2), np.uint8)), "wrong shape", "note"),
    *(
        (write("seqrecord.json", data), "invalid description", "json")
        for data in (b"{", b"\xff", b"[" * 200_000, b"[]")
    ),
    *(
        (_json(change), "invalid description", "json")
        for change in (
            lambda v: v.update(version=2),
            lambda v: v.pop("frames"),
            lambda v: v.update(frames=[1, 0]),
            lambda v: v.update(frames=[0, True]),
            lambda v: v.update(frames=[-1]),
            lambda v: v["features"].append(v["features"][0]),
        )
    ),
    *((_note(**facts), "invalid description", "json") for facts in NOTES),
]


def test_broken(dataset: Dataset, tmp_path: Path) -> None:
    keys = list(dataset.episodes)[:2]
    to_files(dataset, keys, tmp_path / "good", features=["note", "step", "mask"])
    for number, (damage, message, file) in enumerate(BROKEN):
        root = shutil.copytree(tmp_path / "good", tmp_path / f"{number}")
        damage(root / KEY)
        source = open_source(root)
        bad, good = source.episodes()
        assert [bad.key, good.key] == keys
        assert len(list(source.frames(good))) == 5
        with pytest.raises(SourceError, match=f"^{message}") as caught:
            list(source.frames(bad))
        assert caught.value.episode == bad.key
        assert file in str(caught.value.file)


def test_text_bytes_kinds_and_frames_a_second(tmp_path: Path) -> None:
    values = [("ä\r\n\0", b"\0\r\n\x1a"), ("", b""), (None, b"x" * 5000), ("end", None)]
    features = {"note": {"kind": "text"}, "x": {"kind": "state", "unit": "rad"}}
    notes, blobs = zip(*values, strict=True)
    frames = columns(x=np.arange(len(values), dtype=np.float32), note=notes, blob=blobs)
    write_dataset(tmp_path / "records", {"k/é": frames}, features=features, fps=12.5)
    with seqrecord.open(tmp_path / "records") as dataset:
        [folder] = to_files(dataset, "k/é", tmp_path / "tree")
        names = {"note/000000.txt", "note/000003.txt", "blob/000002.bin", "x.npy"}
        assert names <= {*files_in(folder)}
        convert(open_source(tmp_path / "tree"), tmp_path / "again", workers=1)
        with seqrecord.open(tmp_path / "again") as again:
            assert again.features == dataset.features
            assert frames_of(again) == frames_of(dataset)
            assert again.contents.index.fps.tolist() == [12.5]
    (folder / "note/000000.txt").write_bytes(b"\xff")
    with pytest.raises(SourceError, match="not UTF-8") as caught:
        convert(open_source(tmp_path / "tree"), tmp_path / "broken", workers=1)
    assert (caught.value.feature, caught.value.frame) == ("note", 0)


@pytest.mark.parametrize("workers", [1, 2])
def test_frames_without_a_number_or_a_name_stay_without(tmp_path: Path, workers: int) -> None:
    names = ("frame_number", "frame_name")
    numbers, texts = [100, None, 102], [None, "b", "c"]
    episodes = {
        "a": columns(x=np.arange(3), frame_number=map(_int64, numbers), frame_name=texts),
        "b": columns(x=np.arange(3)),
    }
    features = {name: {"kind": name} for name in names}
    write_dataset(tmp_path / "records", episodes, features=features)
    with seqrecord.open(tmp_path / "records") as dataset:
        to_files(dataset, None, tmp_path / "both")
        to_files(dataset, "a", tmp_path / "apart")
        to_files(dataset, "b", tmp_path / "apart", features=["x"])
        for name in ("both", "apart"):
            again = tmp_path / f"{name}-again"
            convert(open_source(tmp_path / name), again, workers=workers)
            assert frames_of(seqrecord.open(again)) == frames_of(dataset)
    # Beside other episodes, files have numbers that no export has described.
    to_files(tmp_path / "records", "b", tmp_path / "mixed", features=["x"])
    (tmp_path / "mixed" / "c").mkdir()
    np.save(tmp_path / "mixed" / "c" / "x.npy", np.arange(2))
    source = FolderSource(tmp_path / "mixed")
    for info in source.episodes():
        found = [int(np.asarray(frame["frame_number"])) for frame in source.frames(info)]
        assert found == [*range(info.num_frames)]


def _int64(number: int | None) -> Any:
    return None if number is None else np.int64(number)


def test_the_fps_argument_is_for_episodes_without_fps(tmp_path: Path) -> None:
    episodes = {"e0": [{"x": 0}], "e1": [{"x": 1}]}
    write_dataset(tmp_path / "records", episodes, rates={"e0": 12.5})
    to_files(tmp_path / "records", None, tmp_path / "tree")
    report = convert(open_source(tmp_path / "tree"), tmp_path / "all", workers=1, fps=25)
    assert report.written == ("e0", "e1")
    with seqrecord.open(tmp_path / "all") as dataset:
        assert dataset.contents.index.fps.tolist() == [12.5, 25]
    for fps in (0, float("nan")):
        with pytest.raises(SchemaError, match="frames per second"):
            convert(open_source(tmp_path / "tree"), tmp_path / "none", fps=fps)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("way", ["files", "lerobot"])
def test_a_failed_or_killed_export_can_be_repeated(tmp_path: Path, way: str) -> None:
    """A missing record file is no error of the destination, which is empty afterwards."""
    path, out = tmp_path / "records", tmp_path / "out"
    write_dataset(path, {"a": [{"x": np.int64(0)}]}, fps=10)
    [file] = (path / "records").iterdir()
    file.rename(path / "away")
    ways: dict[str, Callable[[], object]] = {
        "files": lambda: to_files(path, "a", out),
        "lerobot": lambda: to_lerobot(path, out),
    }
    folder = out if way == "lerobot" else out / "a"
    for _ in range(2):
        with pytest.raises(NotFoundError, match=r"^no such file; file: .*seqrec"):
            ways[way]()
        assert list(folder.iterdir()) == []
        (folder / ".seqrecord-export-0a1_b2c3" / folder.name / "meta").mkdir(parents=True)  # a kill
    (path / "away").rename(file)
    ways[way]()
    assert not list(folder.glob(".*"))
    for own in (".seqrecord-export-of-mine", ".hidden"):
        shutil.rmtree(folder)
        (folder / own).mkdir(parents=True)
        with pytest.raises(DestinationError, match="is not empty"):
            ways[way]()
        assert (folder / own).exists()
