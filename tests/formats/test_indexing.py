"""Originals of every format read in place: equal to packed datasets, and never stale."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tracemalloc
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

import seqrecord
from seqrecord import SeqRecordWriter, errors, open_source
from seqrecord.errors import (
    NotFoundError,
    SchemaError,
    SeqRecordError,
    SourceError,
    StorageError,
)
from seqrecord.store.reading.dataset import open_packed
from tests.formats.all_cases import CASES, indexed, made
from tests.formats.cases import index_source, upload
from tests.formats.format_cases.hdf5 import write_video_of_droid
from tests.formats.in_place_cases import assert_same, frames_of
from tests.kit.command_line import fail, run
from tests.kit.lerobot_video_data import CAMERAS, unpack, with_video
from tests.kit.services.gcs_stub import GcsStub
from tests.kit.services.places import CLOUDS, Place
from tests.kit.tiny import change_manifest
from tests.kit.video_file_data import HAS_TABLES, decoded, pictures, write_fragmented, write_video

pytestmark = pytest.mark.usefixtures("home")

VIDEO = CAMERAS[0]
FILES = {
    "videos": "a.mp4",
    "lerobot with video": f"videos/{VIDEO}/chunk-000/file-000.mp4",
    "tartanair": "house/Easy/P000/image_left/000001_left.png",
    "droid": "Fri/recordings/MP4/11.mp4",
}
"""A referenced file with bytes of the first episode, by case."""


def packed(root: Path, name: str, to: Path) -> Any:
    """The frames and metadata of a conversion."""
    seqrecord.convert(CASES[name].opened(root), to, workers=1, statistics=False)
    return content_of(to)


def content(dataset: seqrecord.Dataset) -> Any:
    return frames_of(dataset), {key: dict(e.metadata) for key, e in dataset.episodes.items()}


def content_of(place: Any, **options: Any) -> Any:
    with seqrecord.open(place, **options) as dataset:
        return content(dataset)


def video_folder(root: Path, count: int = 3, **options: Any) -> Path:
    """A folder of one video."""
    root.mkdir()
    write_video(root / "a.mp4", pictures(count), **options)
    return root


@pytest.mark.parametrize("name", ["videos", "tartanair", "droid"])
def test_files_that_are_not_opened(name: str, tmp_path: Path) -> None:
    root = made(tmp_path / "original", name)
    index, path = indexed(root, name, tmp_path / "index"), root / FILES[name]
    data, before = path.read_bytes(), path.stat()
    for error, change in (
        (StorageError, lambda: path.write_bytes(data + b"x")),
        (StorageError, lambda: os.truncate(path, len(data) - 1)),
        (StorageError, lambda: os.utime(path, ns=(7, 7))),
        (NotFoundError, path.unlink),
    ):
        path.write_bytes(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        change()
        with pytest.raises(error) as info:
            content_of(index)
        assert info.value.file == str(path)
        assert {problem.file for problem in seqrecord.verify(index).problems} == {str(path)}


@pytest.mark.parametrize("name", ["videos", "tartanair"])
def test_indexes_of_other_users_and_damage_of_the_same_size_and_time(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, index = made(tmp_path / "original", name), tmp_path / "index"
    for old in root.rglob("*.*"):
        os.utime(old, ns=(10**18, 10**18))
    path = root / FILES[name]
    run("index", root, "-o", index, "--checksums")
    assert seqrecord.verify(index).ok
    expected, moved = content_of(index), shutil.copytree(root, tmp_path / "moved")
    before, data = path.stat(), bytearray(path.read_bytes())
    data[data.index(b"mdat") + 200 if name == "videos" else 60] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(errors.ChecksumError) as damaged:
        content_of(index)
    assert str(damaged.value.file).startswith(str(path if name == "videos" else path.parent))
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "another"))
    with pytest.raises(StorageError) as info:
        content_of(index)
    assert info.value.got == str(root)
    assert_same(content_of(index, originals=moved), expected)


def test_links_of_files_and_folders(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = made(tmp_path / "original", "videos")
    for number, name in enumerate(("other/c.mp4", "more/in/d.mp4")):
        (tmp_path / name).parent.mkdir(parents=True)
        write_video(tmp_path / name, pictures(3, 60 + number))
    (root / "again.mp4").symlink_to(root / "a.mp4")
    seqrecord.open(root).close()
    assert "links lead out" not in caplog.text
    (root / "c.mp4").symlink_to(tmp_path / "other/c.mp4")
    (root / "in").symlink_to(tmp_path / "more/in")
    with seqrecord.open(root) as dataset:
        assert [*dataset.episodes] == ["a", "again", "b", "c", "in/d"]
        for key, episode in dataset.episodes.items():
            assert np.array_equal(episode[:]["image"], decoded(root / f"{key}.mp4")[1])
    assert f"original, for example {root}/c.mp4 to {tmp_path}/other/c.mp4" in caplog.text
    assert {*seqrecord.summarize(root).originals} == {str(root)}
    (root / "e.mp4").symlink_to(tmp_path / "none.mp4")
    with pytest.raises(SeqRecordError) as info:
        indexed(root, "videos", tmp_path / "index")
    assert info.value.file == str(root / "e.mp4")


def test_links_of_all_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The Hub's local snapshots consist of links into another folder."""
    root, blobs = made(tmp_path / "original", "tartanair"), tmp_path / "blobs"
    expected = packed(root, "tartanair", tmp_path / "packed")
    blobs.mkdir()
    for number, path in enumerate(sorted(filter(Path.is_file, root.rglob("*")))):
        path.symlink_to(path.rename(blobs / str(number)))
    index = indexed(root, "tartanair", tmp_path / "index")
    assert_same(content_of(index), expected)
    with pytest.raises(StorageError, match="a link leads out of the folder"):
        content_of(index, originals=root)  # perhaps another user's archive
    assert "links lead out of the original" in caplog.text


def test_packing_and_episodes_that_have_come_since(tmp_path: Path) -> None:
    """`test_random_originals` has the edits of indexes."""
    root, index = made(tmp_path / "original", "tartanair"), tmp_path / "index"
    run("index", root, "-o", index)
    shutil.copytree(root / "house", root / "shop")
    run("index", root, "-o", index, "--append")
    expected = packed(root, "tartanair", tmp_path / "expected")
    assert_same(content_of(index), expected)
    with pytest.raises(SourceError):
        seqrecord.convert(open_source(index), tmp_path / "j", in_place=True)
    run("write", "--src", index, "--dst", tmp_path / "packed", "--quiet")
    root.rename(tmp_path / "away")
    with seqrecord.open(tmp_path / "packed") as dataset:
        assert_same(frames_of(dataset), expected[0])
        codec = dataset.features["image_left"].codec
        assert codec == ({"id": "seqrecord.image", "format": "png"},)
    assert seqrecord.reindex(index).num_episodes == 4


@pytest.mark.parametrize("place", CLOUDS, indirect=True)
@pytest.mark.parametrize("name", ["lerobot with video", "tartanair"])
def test_an_original_of_a_bucket(name: str, tmp_path: Path, place: Place, home: Path) -> None:
    """Its credential goes with the call, and is in no file; a file that is replaced is noticed."""
    root = made(tmp_path / "original", name)
    place.copy(root)
    options: dict[str, Any] = {"storage_options": place.options}
    if name == "tartanair":
        index = indexed(place.url, name, tmp_path / "index", **options)
        opened = partial(open_packed, index, external_options=options)
    else:
        opened = partial(seqrecord.open, place.url, **options)
    with opened() as dataset:
        assert_same(content(dataset), packed(root, name, tmp_path / "packed"))
        before = dataset.url
    for path in (*home.rglob("*"), *tmp_path.glob("index/**/*")):
        if path.is_file():
            assert not any(str(v).encode() in path.read_bytes() for v in secrets(place.options))
    data = bytearray((root / FILES[name]).read_bytes())
    data[-1] ^= 1
    place.put(FILES[name], bytes(data))
    if name != "tartanair":  # indexed again
        with opened() as dataset:
            assert dataset.url != before
        return
    with opened() as dataset, pytest.raises(StorageError) as info:
        frames_of(dataset)
    assert str(info.value.file).endswith(FILES[name])


def secrets(options: dict[str, Any]) -> list[Any]:
    names = ("key", "secret", "token", "connection_string")
    return [value for name, value in options.items() if any(part in name for part in names)]


@pytest.mark.parametrize(
    ("codec", "ending"),
    [
        *(("libx264", "mp4"), ("libx265", "mkv"), ("libsvtav1", "mp4"), ("libvpx-vp9", "mkv")),
        *(("libx264", "mov"), pytest.param("libx264", "mkv", marks=pytest.mark.slow)),
        *(pytest.param("libx265", each, marks=pytest.mark.slow) for each in ("mp4", "mov")),
        pytest.param("libsvtav1", "mkv", marks=pytest.mark.slow),
        pytest.param("libvpx-vp9", "mp4", marks=pytest.mark.slow),
    ],
)
def test_every_codec_and_container(codec: str, ending: str, tmp_path: Path) -> None:
    """With B-frames and without, tables in front or behind, and the file in fragments."""
    folder = tmp_path / "videos"
    folder.mkdir()
    options = {"g": "4"} | ({"x265-params": "log-level=none:pools=none"} if "265" in codec else {})
    write_video(folder / f"a.{ending}", pictures(11), codec, options=options)
    write_video(folder / f"b.{ending}", pictures(6, 20), codec, options={**options, "bf": "0"})
    if ending == "mp4":
        write_fragmented(folder / "b.mp4", folder / "c.mp4")
    with seqrecord.open(folder) as dataset:
        assert_same(content(dataset), packed(folder, "videos", tmp_path / "packed"))
        assert dataset.contents.index.groups[0].external.all()


def test_loaders_give_the_same_clips(tmp_path: Path) -> None:
    """`test_random_originals` has a pipe's batches and their order."""
    root = made(tmp_path / "original", "lerobot with video")
    packed(root, "lerobot with video", tmp_path / "packed")
    places = {"in place": root, "packed": tmp_path / "packed"}
    one, other = (seqrecord.SeqRecordMapDataset(each, clip_len=2) for each in places.values())
    assert torch.equal(one[5][VIDEO], other[5][VIDEO])
    sources = {name: seqrecord.SeqRecordPipe(place, clip_len=2) for name, place in places.items()}
    mix = seqrecord.SeqRecordMix(sources, batch_size=4, stopping_strategy="all_exhausted")
    assert {name for batch in mix for name in batch["dataset"]} == {*places}
    stream = seqrecord.SeqRecordIterableDataset(root, clip_len=2, batch_size=4)
    workers = torch.utils.data.DataLoader(stream, batch_size=None, num_workers=2)
    found = {clip for b in workers for clip in zip(b["episode"], b["start"].tolist(), strict=True)}
    assert len(found) == len(one)


def test_packets_that_are_elsewhere_are_read_ahead(tmp_path: Path, memory_url: str) -> None:
    """Like packets of a packed dataset, although the index is on a local disk."""
    root, engine = (
        made(tmp_path / "original", "lerobot with video"),
        seqrecord.EngineOptions(num_threads=1),
    )
    loaders = []
    for location in (root, upload(root, memory_url)):
        pipe = seqrecord.SeqRecordPipe(location, clip_len=2, memory_limit="64MiB", engine=engine)
        next(iter(pipe))
        loaders.append(pipe.stats()["num_loaders"])
    assert loaders[0] == 1 < loaders[1]


def test_files_of_a_bucket_are_listed_and_not_looked_at_one_by_one(
    tmp_path: Path, gcs: GcsStub
) -> None:
    pytest.importorskip("obstore", reason="pip install obstore")
    bucket, options = gcs.new_bucket(), gcs.options()
    root = made(tmp_path / "tree", "tartanair")
    for path in root.rglob("*.*"):
        gcs.put(bucket, f"tree/{path.relative_to(root).as_posix()}", path.read_bytes())
    indexed(f"gs://{bucket}/tree", "tartanair", tmp_path / "index", storage_options=options)
    for number in range(60):
        gcs.put(bucket, f"clips/{number:03d}.mp4", b"x" * (number + 1))

    def identity() -> str:
        source: Any = open_source(f"gs://{bucket}/clips", storage_options=options)
        return str(source.identity())

    before = len(gcs.asked)
    first = identity()
    assert len(gcs.asked) - before < 30, "including the listing"
    assert identity() == first
    gcs.put(bucket, "clips/007.mp4", b"y" * 8)  # which has as many bytes
    assert identity() != first
    looks = {f"HEAD /{bucket}/{name}/manifest.json" for name in ("tree", "clips")}  # for a dataset
    assert {each for each in gcs.asked if each.startswith("HEAD")} <= looks


def test_an_original_whose_files_change_is_indexed_anew(tmp_path: Path) -> None:
    """And a new file is added to the same index."""
    root = video_folder(tmp_path / "videos", 6)
    with seqrecord.open(root) as dataset:
        write_video(root / "b.mp4", pictures(5, 30))
        with seqrecord.open(root) as grown:
            assert grown.url == dataset.url
            assert [len(episode) for episode in grown.episodes.values()] == [6, 5]
        write_video(root / "a.mp4", pictures(9, 50))
        with seqrecord.open(root) as new:
            assert new.url != dataset.url
            assert len(new.episodes["a"]) == 9
        with pytest.raises(SeqRecordError):
            dataset.episodes["a"][:]


def test_a_file_that_is_another_image(tmp_path: Path) -> None:
    """Indexing does not decode files. Reading checks their content."""
    root = made(tmp_path / "tree", "tartanair")
    path = root / FILES["tartanair"]
    Image.fromarray(np.zeros((9, 12, 3), np.uint8)).save(path)
    index = indexed(root, "tartanair", tmp_path / "index")
    with pytest.raises(errors.CodecError) as info:
        seqrecord.open(index, features=["image_left"]).episodes["house/Easy/P000"][:2]
    assert str(info.value.episode).startswith("house/Easy/P000")
    assert (info.value.feature, info.value.file, info.value.offset) == ("image_left", str(path), 0)
    path.write_bytes(b"")
    with pytest.raises(SourceError) as empty:
        indexed(root, "tartanair", tmp_path / "another")
    assert empty.value.file == str(path)


def test_originals_that_cannot_be_indexed(tmp_path: Path, home: Path) -> None:
    images = unpack(tmp_path, "lerobot_v3")  # images in tables
    with pytest.raises(SourceError, match="seqrecord write"):
        seqrecord.open(images)
    mixed = video_folder(tmp_path / "mixed")
    (mixed / "notes.txt").write_text("x")
    with pytest.raises(NotFoundError):
        seqrecord.open(mixed)
    run("index", mixed, code=1)
    run("index", mixed, "-o", tmp_path / "i")
    assert list(seqrecord.open(tmp_path / "i").episodes) == ["a"]
    one_gop = {"g": "300", "sc_threshold": "0"}  # it would be encoded anew
    root = video_folder(tmp_path / "videos", 300, options=one_gop)
    with pytest.raises(SourceError) as info:
        seqrecord.open(root)
    assert info.value.file == str(root / "a.mp4")
    assert not list(home.glob("indexes/*-*")), "nothing is left of it"


@pytest.mark.parametrize(
    "name", [n for n, c in CASES.items() if c.referred is None and "lerobot" not in n]
)
def test_formats_that_are_only_converted(name: str, tmp_path: Path) -> None:
    """The error of every way to read in place names the conversion."""
    root = made(tmp_path / "original", name)
    source, index = CASES[name].opened(root), tmp_path / "index"
    for refer in (index_source, partial(seqrecord.convert, in_place=True)):
        with pytest.raises(SourceError, match=r"cannot be read in place; `seqrecord write --src`"):
            refer(source, index, workers=1)
    assert "`seqrecord write --src`" in " ".join(fail("index", root, "-o", index).split())
    assert not index.exists()
    with pytest.raises(NotFoundError, match=r"convert them \(`seqrecord write --src SRC`"):
        seqrecord.open(root)
    assert "`seqrecord write --src" in fail("index", root)


def test_an_index_of_arrays_in_hdf5_of_an_earlier_version(tmp_path: Path) -> None:
    root, index = made(tmp_path / "original", "folders"), tmp_path / "index"
    indexed(root, "folders", index)

    def change(manifest: dict[str, Any]) -> None:
        [codec] = next(spec["codec"] for spec in manifest["schema"] if spec["name"] == "depth")
        codec["format"] = "raw"

    change_manifest(index, change)
    with pytest.raises(
        SchemaError, match=r"expected: .*converted.*: `seqrecord write --src`"
    ) as info:
        seqrecord.open(index)
    assert (info.value.file, info.value.feature) == (str(index), "depth")
    assert "no longer read in place" in info.value.message


def test_reading_in_place_reuses_memory(tmp_path: Path) -> None:
    """The first use of new memory is expensive."""
    frame = np.zeros((120, 300, 3), np.uint8)
    for number in range(88):  # more than the memory limit
        for camera in ("side", "top"):
            path = tmp_path / f"set/{number // 11}/{camera}/{number % 11}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, frame + number)
    chunk = 11 * frame.nbytes
    index_source(open_source(tmp_path / "set"), tmp_path / "index", workers=1)
    pipe = seqrecord.SeqRecordPipe(
        tmp_path / "index",
        clip_len=1,
        batch_size=1,  # smaller than a chunk: the loop sometimes keeps a few batches
        features=["side", "top"],
        memory_limit=14 * chunk,
        engine=seqrecord.EngineOptions(num_threads=1),
    )
    for _ in range(2):  # imports of the second epoch take memory, too
        list(pipe)
    tracemalloc.start()
    try:
        for _ in pipe:
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert pipe.stats()["bytes_read"] >= 16 * chunk
    assert peak < chunk


def test_a_single_file_of_droid(tmp_path: Path) -> None:
    """Its videos are beside it."""
    write_video_of_droid(tmp_path / "set", "Fri", 1, 4)
    source = open_source(tmp_path / "set/Fri/trajectory.h5")
    seqrecord.convert(source, tmp_path / "packed", workers=1, statistics=False)
    index_source(source, tmp_path / "index", workers=1)
    assert_same(content_of(tmp_path / "index"), content_of(tmp_path / "packed"))


def test_a_droid_video_with_more_frames_than_rows(tmp_path: Path) -> None:
    [path] = write_video_of_droid(tmp_path / "set", "Fri", 1, 4)
    write_video(path, pictures(5))
    with pytest.raises(SourceError, match="another number of frames"):
        index_source(open_source(tmp_path / "set"), tmp_path / "index", workers=1)


def test_invalid_bool_bytes_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "set/a/mask/0.npy"
    path.parent.mkdir(parents=True)
    np.save(path, np.ones((70, 80), bool))
    with path.open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\2")
    index_source(open_source(tmp_path / "set"), tmp_path / "index", workers=1)
    with seqrecord.open(tmp_path / "index") as dataset, pytest.raises(errors.CodecError) as info:
        dataset.episodes["a"][:]
    assert (info.value.file, info.value.offset) == (str(path), 0)


def test_an_argument_that_an_original_does_not_take(tmp_path: Path, memory_url: str) -> None:
    folder = video_folder(tmp_path / "videos")
    for root in (folder, upload(folder, memory_url)):
        with pytest.raises(SourceError, match=r"the format videos has no option tolerance"):
            seqrecord.open(root, tolerance=0.01)
        with pytest.raises(errors.ClipError, match="originals cannot be combined with an original"):
            seqrecord.open(root, originals=tmp_path)
    with pytest.raises(NotFoundError):
        seqrecord.open(tmp_path / "gone", tolerance=0.01, originals=tmp_path)


def test_invalid_options_of_an_original_are_named(tmp_path: Path) -> None:
    """An error in an option does not hide the original."""
    root = made(tmp_path / "original", "lerobot with video")
    with pytest.raises(SourceError, match="invalid tolerance"):
        seqrecord.open(root, tolerance=-1)
    for text in ("active_at(t, style=subtaks)", "actve_at(t, style=subtask)", "active_at(t)"):
        with pytest.raises(SourceError, match="not a resolver of language columns") as caught:
            seqrecord.open(root, language={"sub": text})
        assert text in str(caught.value)
    text_only: Any = "active_at(t)"
    with pytest.raises(SourceError, match=r"language is not valid.* got: 'active_at\(t\)'"):
        seqrecord.open(root, language=text_only)
    with pytest.raises(NotFoundError):
        seqrecord.open(tmp_path / "gone", language={"sub": "wrong"})


def test_an_edit_of_an_original_names_it(tmp_path: Path) -> None:
    root = made(tmp_path / "original", "lerobot with video")
    for change in (
        lambda: seqrecord.edit.delete_episodes(root, ["episode_000000"]),
        lambda: seqrecord.edit.clean(root, older_than=0),
        lambda: seqrecord.edit.rewrite_files(root),
        lambda: seqrecord.edit.merge_datasets([root], tmp_path / "merged"),
    ):
        with pytest.raises(NotFoundError, match="but an original, which is never edited"):
            change()
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match="neither a manifest"):
        seqrecord.edit.delete_episodes(tmp_path / "empty", ["episode_000000"])


def test_an_original_without_pictures_is_opened(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path / "records", fps=10) as writer, writer.episode("a") as episode:
        for i in range(6):
            episode.append({"observation.state": np.full(3, i, np.float32), "task": "push"})
    root = tmp_path / "original"
    seqrecord.export.to_lerobot(tmp_path / "records", root)
    for _ in range(2):
        with seqrecord.open(root) as dataset:
            rows = dataset.episodes["episode_000000"][:]
        np.testing.assert_array_equal(rows["observation.state"][:, 0], range(6))
        assert rows["task"] == ["push"] * 6
    assert seqrecord.verify(root).ok


def test_a_damaged_note_of_an_index_is_no_note(tmp_path: Path, home: Path) -> None:
    root = made(tmp_path / "original", "lerobot with video")
    seqrecord.open(root).close()
    for note in ("", "[]", '{"original": 1, "identity": 2, "folder": 3}'):
        [path] = home.glob("indexes/*.json")
        path.write_text(note)
        assert len(seqrecord.open(root).episodes) == 3
        assert len(list(home.glob("indexes/*-*"))) == 1, "the old index is gone"


def index_of(root: Path) -> str:
    with seqrecord.open(root) as dataset:
        return dataset.url


def test_an_index_of_another_layout_is_made_again(tmp_path: Path, home: Path) -> None:
    """It may have read the original in another way. The old index stays: a job may read it."""
    root = made(tmp_path / "original", "lerobot with video")
    url = index_of(root)
    [path] = home.glob("indexes/*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"layout": "0"}))
    new_url = index_of(root)
    assert {str(folder) for folder in home.glob("indexes/*-*")} == {url, new_url}
    assert url != new_url == index_of(root)


def test_three_processes_index_once(tmp_path: Path, home: Path) -> None:
    with get_context("fork").Pool(3) as pool:
        urls = pool.map(index_of, [made(tmp_path / "original", "lerobot with video")] * 3, 1)
    assert [{*urls}] == [{str(index) for index in home.glob("indexes/*-*")}]
    assert len({*urls}) == 1


def test_large_features_that_would_be_copied_are_listed(tmp_path: Path) -> None:
    root = made(tmp_path / "original", "folders")
    for name in ("a", "b"):
        (root / name / "flow").mkdir()
        for number in range(4):
            header = b"PIEH" + np.array([100, 100], "<i4").tobytes()
            (root / name / "flow" / f"{number}.flo").write_bytes(header + bytes(80_000))
    index = indexed(root, "folders", tmp_path / "index")
    [row] = seqrecord.open(index).inventories[0].left_out_data
    assert (row.pattern, row.reason[:27]) == ("feature flow", "more than 64 KiB a frame, a")
    with pytest.raises(SourceError, match="flow"):
        index_source(CASES["folders"].opened(root), tmp_path / "strict", workers=1, strict=True)


@pytest.mark.skipif(not HAS_TABLES, reason="PyAV before 17 has no tables")
def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    """Headers have the offsets of packets: a video with damage behind their heads is indexed."""
    root = unpack(tmp_path, "lerobot_v3")
    with_video(root, (5, 3, 7), options={"g": "2", "bf": "0"})
    shutil.rmtree(root / "data" / "none", ignore_errors=True)
    [path] = root.rglob("*.mp4")
    data = bytearray(path.read_bytes())
    with av.open(path) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux() if packet.size]
    source = open_source(root, features=[CAMERAS[0], "timestamp"])
    seqrecord.convert(source, tmp_path / "a", workers=1, in_place=True)
    for begin, size in packets[len(packets) // 2 :]:
        data[begin + 64 : begin + size] = bytes(max(0, size - 64))
    path.write_bytes(data)
    seqrecord.convert(source, tmp_path / "b", workers=1, in_place=True)
    one, other = (seqrecord.open(tmp_path / name).contents.index for name in "ab")
    assert np.array_equal(one.groups[0].external, other.groups[0].external)


@pytest.mark.slow
def test_one_file_is_read_in_part(tmp_path: Path) -> None:
    """References and timestamps are of one table. With B-frames it takes all packets, which the
    container's reader reads, and which are compared with the file's bytes. Besides, the first
    group of pictures is read, and the headers are, several times.
    """
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (60, 240, 320, 3), np.uint8)
    options = {"g": "10", "crf": "1", "preset": "ultrafast"}
    shares = []
    for number, b_frames in enumerate("002"):  # the first one imports modules
        path = tmp_path / f"{number}" / "a.mp4"
        path.parent.mkdir()
        write_video(path, noise, options={**options, "bf": b_frames})
        os.utime(path, (0, 0))  # newer files are hashed
        before = bytes_read()
        seqrecord.convert(
            open_source(path.parent), tmp_path / f"{number}.index", workers=1, in_place=True
        )
        shares.append((bytes_read() - before) / path.stat().st_size)
    assert shares[1] < (0.8 if HAS_TABLES else 3)
    assert shares[2] < 3


def bytes_read() -> int:
    """Bytes that this process has requested from files."""
    return int(re.findall(r"^rchar: (\d+)", Path("/proc/self/io").read_text(), re.M)[0])


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of docs/in-place.md."""
    text = (Path(__file__).parents[2] / "docs" / "in-place.md").read_text()
    monkeypatch.chdir(tmp_path)
    unpack(tmp_path, "lerobot_video_v21").rename("my-lerobot-dataset")
    [python] = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    there: dict[str, Any] = {}
    exec(python.replace('"action"', '"observation.state"'), there)
    assert sum(len(batch["start"]) for batch in there["pipe"]) == 16
    for line in "".join(re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)).splitlines():
        _, *words = shlex.split(line, comments=True)
        if "--checksums" in words:
            shutil.rmtree("my-index")
        run(*words)
    moved = Path("my-lerobot-dataset").rename("elsewhere")
    code = text[text.index("seqrecord.open(") :].partition("`")[0].replace('"/data/my', '"my')
    there["seqrecord"] = seqrecord
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "another"))
    with eval(code.replace("my-lerobot-dataset/", str(moved)), there) as dataset:
        assert len(dataset.episodes["episode_000000"][:]["timestamp"]) == 5
        assert len(dataset.episodes["episode_000000"][:][CAMERAS[0]]) == 5
