"""Trees of files that are read where they lie: every frame equals that of the packed dataset."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import seqrecord
from seqrecord import open_source
from seqrecord.codecs import FrameCodec
from seqrecord.errors import (
    ChecksumError,
    CodecError,
    FormatError,
    NotFoundError,
    SourceError,
    StorageError,
)
from seqrecord.format.references import ExternalFile, ExternalList, list_path
from seqrecord.indexing.originals import index_source
from seqrecord.reading.dataset import open_packed
from seqrecord.reading.externals import ExternalFiles, trust
from seqrecord.schema import EncodedImage
from seqrecord.sources.common.references import external_files
from seqrecord.storage import LocalStorage
from tests.command_line import main
from tests.gcs_stub import GcsStub
from tests.places import CLOUDS, Place
from tests.test_references import OF_FOLDER
from tests.test_source_contract import upload

_RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def _image(path: Path, shape: tuple[int, ...] = (8, 12, 3)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(_RNG.integers(0, 256, shape, np.uint8)).save(path)


def _array(path: Path, *shape: int, dtype: Any = np.float32) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, (_RNG.random(shape) * 9).astype(dtype))


def tartanair(root: Path, num_frames: int = 5) -> Path:
    for name in ("P000", "P001"):
        folder = root / "office" / "Easy" / name
        for number in range(num_frames):
            for side in ("left", "right"):
                _image(folder / f"image_{side}" / f"{number:06d}_{side}.png")
            _array(folder / "depth_left" / f"{number:06d}_left_depth.npy", 8, 12)
            if number < num_frames - 1:
                name = f"{number:06d}_{number + 1:06d}"
                _array(folder / "flow" / f"{name}_flow.npy", 8, 12, 2)
                _array(folder / "flow" / f"{name}_mask.npy", 8, 12, dtype=np.uint8)
        np.savetxt(folder / "pose_left.txt", _RNG.random((num_frames, 7)))
    return root


def folders(root: Path, num_frames: int = 5) -> Path:
    for number in range(num_frames):
        for name in ("a", "b"):
            _image(root / name / "rgb" / f"{number}.jpg")
            if number != 2:  # which lacks it
                _image(root / name / "mask" / f"{number}.png", (8, 12))
            _array(root / name / "depth" / f"{number}.npy", 40, 50, dtype=">f4")
            _array(root / name / "state" / f"{number}.npy", 3)  # so small that it is copied
    for name in ("a", "b"):
        np.save(root / name / "action.npy", _RNG.random((num_frames, 3), np.float32))
    return root


def webdataset(root: Path, num_frames: int = 5) -> Path:
    """Two shards, each an episode."""
    folders(root / "loose", num_frames)
    for shard in "ab":
        with tarfile.open(root / f"{shard}.tar", "w") as tar:
            for number in range(num_frames):
                for path in sorted((root / "loose" / shard).rglob(f"{number}.*")):
                    tar.add(path, f"{number:04d}.{path.parent.name}{path.suffix}")
    shutil.rmtree(root / "loose")
    return root


_TREES: dict[str, tuple[Callable[[Path], Path], dict[str, Any]]] = {
    "tartanair": (tartanair, {}),
    "folders": (folders, {"sparse": "mask"}),
    "webdataset": (webdataset, {"sparse": "mask"}),
}


_REFERRED = {
    "tartanair": {
        "image_left": "png",
        "image_right": "png",
        "depth_left": "npy",
        "flow": "npy",
        "mask": "npy",
    },
    "folders": {"depth": "npy", "mask": "png", "rgb": "jpeg"},
    "webdataset": {"depth": "npy", "mask": "png", "rgb": "jpeg"},
}


def _bytes_of(root: Path, *endings: str) -> int:
    """Of the files with these endings, in tar files too, that are not copied."""
    sizes = {path: path.stat().st_size for path in root.rglob("*.*")}
    for path in root.glob("*.tar"):
        with tarfile.open(path) as tar:
            sizes |= {path / member.name: member.size for member in tar.getmembers()}
    wanted = (path for path in sizes if path.suffix in endings and path.stem != "action")
    return sum(sizes[path] for path in wanted if "state" not in f"{path.parent.name}.{path.stem}")


def _frames(dataset: seqrecord.Dataset) -> dict[str, Any]:
    """All frames, one by one and all together."""
    found: dict[str, Any] = {}
    for key, episode in dataset.episodes.items():
        each = [{n: np.asarray(v) for n, v in episode[i].items()} for i in range(len(episode))]
        found[key] = episode.metadata, each
    return found


def _packed(root: Path, to: Path, **options: Any) -> Any:
    source = open_source(root, keep_encoded=True, **options)
    seqrecord.convert(source, to, workers=1, statistics=False)
    with seqrecord.open(to) as dataset:
        return _frames(dataset)


def _index(root: Any, to: Path, storage_options: Any = None, **options: Any) -> Path:
    index_source(open_source(root, storage_options=storage_options, **options), to, workers=1)
    return to


@pytest.mark.parametrize("name", _TREES)
def test_a_tree_is_read_where_it_lies(name: str, tmp_path: Path) -> None:
    make, options = _TREES[name]
    root = make(tmp_path / "tree")
    expected = _packed(root, tmp_path / "packed", **options)
    index = _index(root, tmp_path / "index", **options)
    for verify in (True, False):
        with seqrecord.open(index, verify=verify) as dataset:
            np.testing.assert_equal(_frames(dataset), expected)
    assert seqrecord.verify(index, deep=True).ok
    with seqrecord.open(index) as dataset:
        specs = dataset.features.values()
        kept = {spec.name: spec.codec[0]["format"] for spec in specs if spec.may_be_referred_to}
    assert kept == _REFERRED[name]
    summary = seqrecord.summarize(index)
    assert summary.external_bytes == _bytes_of(root, ".png", ".jpg", ".npy")
    assert summary.originals == (str(root),)
    with pytest.raises(NotFoundError) as info:
        seqrecord.open(root)
    assert "`seqrecord index SRC -o DST`" in info.value.message


def test_loaders_give_the_same_batches(tmp_path: Path) -> None:
    root = tartanair(tmp_path / "tree", 40)
    _packed(root, tmp_path / "packed")
    places = _index(root, tmp_path / "index"), tmp_path / "packed"

    def batches(place: Path) -> Iterator[Any]:
        options: Any = {"clip_len": 2, "batch_size": 4, "seed": 3, "memory_limit": "64MiB"}
        for batch in seqrecord.SeqRecordPipe(place, **options):
            yield {name: np.asarray(value) for name, value in batch.items()}

    names = ("image_left", "depth_left", "flow")
    found, expected = (
        {
            (key, start): [batch[name][i].tobytes() for name in names]
            for batch in batches(place)
            for i, (key, start) in enumerate(
                zip(batch["episode"].tolist(), batch["start"].tolist(), strict=True)
            )
        }
        for place in places
    )
    assert len(found) == 76
    assert found == expected


@pytest.mark.parametrize("name", _TREES)
def test_a_tree_on_a_url(name: str, tmp_path: Path, memory_url: str) -> None:
    make, options = _TREES[name]
    root = make(tmp_path / "tree")
    index = _index(upload(root, memory_url), tmp_path / "index", **options)
    with seqrecord.open(index) as dataset:
        np.testing.assert_equal(_frames(dataset), _packed(root, tmp_path / "packed", **options))


def _npy(array: Any, **changes: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array, **changes), allow_pickle=True)
    return file.getvalue()


def test_arrays_that_are_kept_as_files() -> None:
    values = np.arange(6, dtype="<f4").reshape(2, 3)
    codec = FrameCodec(({"id": "seqrecord.image", "format": "npy"},), "<f4", (2, 3))
    good = _npy(values)
    for data in (good, _npy(values, dtype=">f4"), _npy(values, order="F"), codec.encode(values)):
        out = np.zeros((2, 3), "<f4")
        codec.decode_into(codec.encode(EncodedImage(data)), out)
        assert np.array_equal(out, values)
    wrong = {
        "no npy": b"x" * 40,
        "cut header": good[:20],
        "cut": good[:-1],
        "more": good + b"x",
        "dtype": _npy(values, dtype="<f8"),
        "shape": _npy(values[:1]),
        "pickle": _npy([[object()] * 3] * 2, dtype=object),
        "version 3": good[:6] + b"\x03" + good[7:],
        "a literal that is none": good.replace(b"False", b"exec("),
        "absurd": good.replace(b"(2, 3)", b"(2,-3)"),
    }
    for name, data in wrong.items():
        with pytest.raises(CodecError) as info:
            codec.decode_into(data, np.zeros((2, 3), "<f4"))
        assert info.value.got, name
    any_image = FrameCodec(({"id": "seqrecord.image", "format": "any"},), "|u1", (2, 3))
    with pytest.raises(CodecError):
        any_image.encode(EncodedImage(_npy(values, dtype="u1")))


@pytest.mark.parametrize("place", CLOUDS, indirect=True)
def test_a_tree_of_a_bucket(tmp_path: Path, place: Place) -> None:
    root = tartanair(tmp_path / "tree")
    place.copy(root)
    index = _index(place.url, tmp_path / "index", place.options)
    name = "office/Easy/P000/image_left/000003_left.png"
    options = {"storage_options": place.options}
    with open_packed(index, external_options=options) as dataset:
        np.testing.assert_equal(_frames(dataset), _packed(root, tmp_path / "packed"))
        _image(root / name)
        place.put(name, (root / name).read_bytes())
        with pytest.raises(StorageError) as info:
            dataset.episodes["office/Easy/P000"][:4]
        assert str(info.value.file).endswith(name)


def test_files_of_a_bucket_are_listed_and_not_looked_at_one_by_one(
    tmp_path: Path, gcs: GcsStub
) -> None:
    pytest.importorskip("obstore", reason="pip install obstore")
    bucket, options = gcs.new_bucket(), gcs.options()
    looks = {f"HEAD /{bucket}/{name}/manifest.json" for name in ("tree", "clips")}  # for a dataset
    for path in (root := tartanair(tmp_path / "tree")).rglob("*.*"):
        gcs.put(bucket, f"tree/{path.relative_to(root).as_posix()}", path.read_bytes())
    _index(f"gs://{bucket}/tree", tmp_path / "index", options)
    assert {each for each in gcs.asked if each.startswith("HEAD")} <= looks

    for number in range(60):
        gcs.put(bucket, f"clips/{number:03d}.mp4", b"x" * (number + 1))

    def identity() -> str:
        source: Any = open_source(f"gs://{bucket}/clips", storage_options=options)
        return str(source.identity())

    gcs.asked.clear()
    first = identity()
    assert len(gcs.asked) < 30, "to find out what lies there, too"
    assert {each for each in gcs.asked if each.startswith("HEAD")} <= looks
    assert identity() == first
    gcs.put(bucket, "clips/007.mp4", b"y" * 8)  # which has as many bytes
    assert identity() != first


def test_files_of_a_disk_are_what_they_are_one_by_one(tmp_path: Path) -> None:
    """Links and folders that are links too."""
    for name in ("a/0.mp4", "a/1.mp4", "b/2.mp4", "other/3.mp4", "more/c/4.mp4"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode() * len(name))
    root = tmp_path / "clips"
    root.mkdir()
    (tmp_path / "a").rename(root / "a")
    (tmp_path / "b").rename(root / "b")
    (root / "a" / "3.mp4").symlink_to(tmp_path / "other" / "3.mp4")
    (root / "b" / "5.mp4").symlink_to(root / "a" / "0.mp4")
    (root / "c").symlink_to(tmp_path / "more" / "c")
    paths = sorted(path for name in "abc" for path in (root / name).iterdir())
    found = external_files(root, paths)
    assert set(found) == {str(path) for path in paths}
    for path, file in found.items():
        real = Path(path).resolve()
        assert Path(file.root, file.path) == real
        inside = real.is_relative_to(root)
        assert file.root == str(root if inside else real.parent)
        about = real.stat()
        assert (file.size, file.identity) == (about.st_size, f"mtime {about.st_mtime_ns}")
    with pytest.raises(NotFoundError):
        external_files(root, [*paths, root / "a" / "9.mp4"])


@pytest.mark.parametrize("what", ["changed", "shrunk", "gone", "touched"])
def test_files_that_are_not_opened(what: str, tmp_path: Path) -> None:
    root = tartanair(tmp_path / "tree")
    index = _index(root, tmp_path / "index")
    path = root / "office/Easy/P000/image_left/000003_left.png"
    if what == "gone":
        path.unlink()
    elif what == "shrunk":
        os.truncate(path, path.stat().st_size - 1)
    elif what == "changed":
        path.write_bytes(path.read_bytes() + b"x")
    else:
        os.utime(path, ns=(7, 7))
    with pytest.raises(NotFoundError if what == "gone" else StorageError) as info:
        seqrecord.open(index).episodes["office/Easy/P000"][:4]
    assert info.value.file == str(path)
    assert len(seqrecord.verify(index).problems) == 1


def test_a_tar_file_that_has_changed(tmp_path: Path) -> None:
    root = webdataset(tmp_path / "tree")
    index = _index(root, tmp_path / "index", sparse="mask")
    path = root / "a.tar"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(StorageError) as info:  # its values were copied, too
        seqrecord.open(index)
    assert info.value.file == str(path)


def test_checksums_notice_what_size_and_time_do_not_tell(tmp_path: Path) -> None:
    root = tartanair(tmp_path / "tree")
    path = root / "office/Easy/P000/image_left/000003_left.png"
    words = ["index", str(root), "-o", str(tmp_path / "i")]
    assert CliRunner().invoke(main, [*words, "--checksums"]).exit_code == 0
    assert seqrecord.verify(tmp_path / "i").ok
    before, data = path.stat(), bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ChecksumError) as info:
        seqrecord.open(tmp_path / "i").episodes["office/Easy/P000"][:4]
    assert str(path.parent) in str(info.value.file)


def test_a_file_that_is_another_image(tmp_path: Path) -> None:
    """Files are not decoded while they are indexed: what they are is checked when they are read."""
    root = tartanair(tmp_path / "tree")
    path = root / "office/Easy/P000/image_left/000003_left.png"
    Image.fromarray(np.zeros((9, 12, 3), np.uint8)).save(path)
    index = _index(root, tmp_path / "index")
    with pytest.raises(CodecError) as info:
        seqrecord.open(index).episodes["office/Easy/P000"][:4]
    assert str(info.value.episode).startswith("office/Easy/P000")
    assert (info.value.feature, info.value.file, info.value.offset) == ("image_left", str(path), 0)
    path.write_bytes(b"")
    with pytest.raises(SourceError) as empty:
        _index(root, tmp_path / "another")
    assert empty.value.file == str(path)


def test_only_what_this_user_has_indexed_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tartanair(tmp_path / "tree")
    index = _index(root, tmp_path / "index")
    with seqrecord.open(index) as dataset:
        expected = _frames(dataset)
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "another"))
    with pytest.raises(StorageError) as info:
        seqrecord.open(index).episodes["office/Easy/P000"][:4]
    assert info.value.got == str(root)
    moved = shutil.copytree(root, tmp_path / "moved")
    with seqrecord.open(index, originals=moved) as dataset:
        np.testing.assert_equal(_frames(dataset), expected)


def test_links_are_followed_while_indexing(tmp_path: Path) -> None:
    """The Hub's local snapshots consist of links into another folder."""
    root = tartanair(tmp_path / "tree")
    expected = _packed(root, tmp_path / "packed")
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for number, path in enumerate(sorted(root.rglob("*.png"))):
        path.rename(blobs / str(number))
        path.symlink_to(blobs / str(number))
    index = _index(root, tmp_path / "index")
    with seqrecord.open(index) as dataset:
        np.testing.assert_equal(_frames(dataset), expected)


def test_edits_and_packing(tmp_path: Path) -> None:
    root = tartanair(tmp_path / "tree")
    index = _index(root, tmp_path / "index")
    expected = _frames(seqrecord.open(index))
    del expected["office/Easy/P000"]
    seqrecord.edit.delete_episodes(index, ["office/Easy/P000"])
    seqrecord.edit.rewrite_files(index)
    with seqrecord.open(index) as dataset:
        np.testing.assert_equal(_frames(dataset), expected)
    tartanair(root / "more")
    words = ["write", "--src", str(index), "--dst", str(tmp_path / "packed"), "--quiet"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    root.rename(tmp_path / "away")
    with seqrecord.open(tmp_path / "packed") as packed:
        np.testing.assert_equal(_frames(packed), expected)
        assert packed.features["image_left"].codec == ({"id": "seqrecord.image", "format": "png"},)
    assert seqrecord.reindex(index).num_episodes == 1


def test_an_index_gets_the_episodes_that_have_come_since(tmp_path: Path) -> None:
    root = tartanair(tmp_path / "tree")
    words = ["index", str(root), "-o", str(tmp_path / "index")]
    assert CliRunner().invoke(main, words).exit_code == 0
    shutil.copytree(root / "office", root / "shop")
    assert CliRunner().invoke(main, [*words, "--append"]).exit_code == 0
    with seqrecord.open(tmp_path / "index") as dataset:
        np.testing.assert_equal(_frames(dataset), _packed(root, tmp_path / "packed"))


def test_a_page_that_refers_to_files_of_a_file(tmp_path: Path) -> None:
    """What a list calls a file is no folder, whatever a page says."""
    made = ExternalList((ExternalFile(str(tmp_path), "a", 5),))
    path = tmp_path / list_path(made.id)
    path.parent.mkdir()
    path.write_bytes(made.encode())
    trust(made.id)
    with pytest.raises(FormatError):
        ExternalFiles(LocalStorage(tmp_path)).read(replace(OF_FOLDER, list_id=made.id, file=0))
