"""Originals that are read where they lie: every frame equals that of the packed dataset."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import seqrecord
from seqrecord import open_source
from seqrecord.errors import (
    ChecksumError,
    ClipError,
    NotFoundError,
    SeqRecordError,
    SourceError,
    StorageError,
)
from seqrecord.sources import VideoSource
from seqrecord.sources.video.files import VideoFile
from seqrecord.sources.video.tables import read_table
from tests.command_line import main
from tests.lerobot_video_data import CAMERAS, unpack, with_video
from tests.places import CLOUDS, Place
from tests.test_source_contract import upload
from tests.video_file_data import HAS_TABLES, in_fragments, pictures, write_video


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def _frames(dataset: seqrecord.Dataset) -> dict[str, list[Any]]:
    return {
        key: [{n: np.asarray(v) for n, v in episode[i].items()} for i in range(len(episode))]
        for key, episode in dataset.episodes.items()
    }


def _assert_same(one: seqrecord.Dataset, other: seqrecord.Dataset) -> None:
    first, second = _frames(one), _frames(other)
    np.testing.assert_equal(first, second)
    assert [e.metadata for e in one.episodes.values()] == [
        e.metadata for e in other.episodes.values()
    ]


def _packed(root: Path, to: Path) -> seqrecord.Dataset:
    seqrecord.convert(open_source(root), to, workers=1, statistics=False)
    return seqrecord.open(to)


@pytest.mark.parametrize("name", ["lerobot_video_v3", "lerobot_video_v21"])
def test_lerobot_is_read_where_it_lies(name: str, tmp_path: Path, home: Path) -> None:
    root = unpack(tmp_path, name)
    with seqrecord.open(root) as dataset, _packed(root, tmp_path / "packed") as packed:
        _assert_same(dataset, packed)
        indexes = sorted(home.glob("indexes/*"))
    assert seqrecord.verify(root, deep=True).ok
    assert sorted(home.glob("indexes/*")) == indexes, "it is found again"
    video = sum(path.stat().st_size for path in root.rglob("*.mp4"))
    summary = seqrecord.summarize(root)
    assert 0 < summary.external_bytes <= video
    assert summary.originals == (str(root),)


@pytest.mark.parametrize("codec", ["libx264", "libx265", "libsvtav1", "libvpx-vp9"])
@pytest.mark.parametrize("ending", ["mp4", "mov", "mkv"])
def test_every_codec_and_container(codec: str, ending: str, tmp_path: Path) -> None:
    """With B-frames and without, tables in front or behind, and the file in fragments."""
    if (codec, ending) in {("libvpx-vp9", "mov"), ("libsvtav1", "mov")}:
        pytest.skip("no such file")
    folder = tmp_path / "videos"
    folder.mkdir()
    options = {"g": "4"} | ({"x265-params": "log-level=none:pools=none"} if "265" in codec else {})
    write_video(folder / f"a.{ending}", pictures(11), codec, options=options)
    write_video(folder / f"b.{ending}", pictures(6, 20), codec, options={**options, "bf": "0"})
    with seqrecord.open(folder) as dataset, _packed(folder, tmp_path / "packed") as packed:
        _assert_same(dataset, packed)
        assert dataset.contents.index.groups[0].external.all()


def test_the_tables_of_a_container_and_its_packets_say_the_same(tmp_path: Path) -> None:
    """PyAV before 17 has no tables: then each packet is read once."""
    path = write_video(tmp_path / "a.mp4", pictures(12), options={"g": "4", "bf": "0"})
    in_fragments(path, tmp_path / "b.mp4")
    tables = []
    for name in ("a.mp4", "b.mp4"):
        with VideoFile(tmp_path / name) as file:
            table = read_table(file)
            assert bool(file.entries()) == (HAS_TABLES and name == "a.mp4")
            data = (tmp_path / name).read_bytes()
            places = zip(table.starts.tolist(), table.sizes.tolist(), strict=True)
            times = (table.ticks * file.tick).round(9)
            facts = (times, table.is_shown, table.is_key, table.is_cut)
            tables.append([data[a : a + n] for a, n in places])
            tables.append([array.tolist() for array in facts])
    assert tables[:2] == tables[2:]


def _batches(location: Any, **options: Any) -> list[dict[str, Any]]:
    pipe = seqrecord.SeqRecordPipe(
        location, clip_len=2, batch_size=4, seed=3, memory_limit="64MiB", **options
    )
    return list(pipe)


def test_loaders_give_the_same_batches(tmp_path: Path) -> None:
    root = unpack(tmp_path, "lerobot_video_v3")
    with _packed(root, tmp_path / "packed") as packed:
        for one, other in zip(_batches(root), _batches(packed), strict=True):
            assert one.keys() == other.keys()
            for name in one:
                same = one[name] == other[name]
                assert same.all() if torch.is_tensor(same) else same, name
    clips = seqrecord.SeqRecordMapDataset(root, clip_len=2)
    packed_clips = seqrecord.SeqRecordMapDataset(tmp_path / "packed", clip_len=2)
    assert torch.equal(clips[5][CAMERAS[0]], packed_clips[5][CAMERAS[0]])
    sources = {
        name: seqrecord.SeqRecordPipe(location, clip_len=2)
        for name, location in (("lying", root), ("packed", tmp_path / "packed"))
    }
    mix = seqrecord.SeqRecordMix(sources, batch_size=4, stopping_strategy="all_exhausted")
    assert {name for batch in mix for name in batch["dataset"]} == {"lying", "packed"}
    workers = torch.utils.data.DataLoader(
        seqrecord.SeqRecordIterableDataset(root, clip_len=2, batch_size=4),
        batch_size=None,
        num_workers=2,
    )
    found = {clip for b in workers for clip in zip(b["episode"], b["start"].tolist(), strict=True)}
    assert len(found) == len(clips)


def test_an_original_on_a_url(tmp_path: Path, memory_url: str, home: Path) -> None:
    root = unpack(tmp_path, "lerobot_video_v3")
    url = upload(root, memory_url)
    with seqrecord.open(url) as dataset, _packed(root, tmp_path / "packed") as packed:
        _assert_same(dataset, packed)
        assert dataset.url.startswith(str(home))
    assert seqrecord.summarize(url).originals == (url,)


def test_packets_that_are_elsewhere_are_read_ahead(tmp_path: Path, memory_url: str) -> None:
    """As those of a packed dataset there, though the index lies on a disk."""
    root = unpack(tmp_path, "lerobot_video_v3")
    loaders = []
    for location in (root, upload(root, memory_url)):
        pipe = seqrecord.SeqRecordPipe(
            location,
            clip_len=2,
            memory_limit="64MiB",
            engine=seqrecord.EngineOptions(num_threads=1),
        )
        next(iter(pipe))
        loaders.append(pipe.stats()["num_loaders"])
    assert loaders[0] == 1 < loaders[1]


@pytest.mark.parametrize("place", CLOUDS, indirect=True)
def test_an_original_of_a_bucket(tmp_path: Path, place: Place, home: Path) -> None:
    """Its credential goes with the call, and is in no file; a file that is replaced is noticed."""
    root = unpack(tmp_path, "lerobot_video_v3")
    place.copy(root)
    with (
        seqrecord.open(place.url, storage_options=place.options) as dataset,
        _packed(root, tmp_path / "packed") as packed,
    ):
        _assert_same(dataset, packed)
    for path in home.rglob("*"):
        if path.is_file():
            assert not any(str(v).encode() in path.read_bytes() for v in secrets(place.options))
    [video] = [path for path in root.rglob("*.mp4") if CAMERAS[0] in str(path)]
    data = bytearray(video.read_bytes())
    data[-1] ^= 1
    place.put(video.relative_to(root).as_posix(), bytes(data))
    with (
        seqrecord.open(place.url, storage_options=place.options) as dataset,
        pytest.raises(StorageError),
    ):
        dataset.episodes["episode_000000"][:]


def secrets(options: dict[str, Any]) -> list[Any]:
    names = ("key", "secret", "token", "connection_string")
    return [value for name, value in options.items() if any(part in name for part in names)]


def test_an_original_that_grows_and_one_that_changes(tmp_path: Path, home: Path) -> None:
    root = tmp_path / "videos"
    root.mkdir()
    write_video(root / "a.mp4", pictures(6))
    with seqrecord.open(root) as dataset:
        assert list(dataset.episodes) == ["a"]
        write_video(root / "b.mp4", pictures(5, 30))
        [index] = home.glob("indexes/*-*")
        with seqrecord.open(root) as grown:
            assert list(grown.episodes) == ["a", "b"]
            assert grown.url == str(index), "episodes were added to the same index"
            assert len(grown.episodes["b"][:]["image"]) == 5
        write_video(root / "a.mp4", pictures(9, 50))
        with seqrecord.open(root) as new:
            assert len(new.episodes["a"]) == 9
            assert new.url != str(index)
        with pytest.raises(SeqRecordError):
            dataset.episodes["a"][:]


@pytest.mark.parametrize("what", ["changed", "shrunk", "gone", "touched"])
def test_files_that_are_not_opened(what: str, tmp_path: Path) -> None:
    root = tmp_path / "a.mp4"
    write_video(root, pictures(6))
    seqrecord.convert(VideoSource(root), tmp_path / "index", workers=1, in_place=True)
    if what == "gone":
        root.unlink()
    elif what == "shrunk":
        os.truncate(root, root.stat().st_size - 1)
    elif what == "changed":
        root.write_bytes(root.read_bytes() + b"x")
    else:
        os.utime(root, ns=(7, 7))
    with pytest.raises(NotFoundError if what == "gone" else StorageError) as info:
        seqrecord.open(tmp_path / "index").episodes["a"][:]
    assert info.value.file == str(root)
    assert len(seqrecord.verify(tmp_path / "index").problems) == 1


def test_only_what_this_user_has_indexed_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "videos"
    root.mkdir()
    write_video(root / "a.mp4", pictures(6))
    seqrecord.convert(VideoSource(root), tmp_path / "index", workers=1, in_place=True)
    frames = seqrecord.open(tmp_path / "index").episodes["a"][:]["image"]
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "another"))
    with pytest.raises(StorageError) as info:
        seqrecord.open(tmp_path / "index").episodes["a"][:]
    assert info.value.got == str(root)
    moved = shutil.copytree(root, tmp_path / "moved")
    with seqrecord.open(tmp_path / "index", originals=moved) as dataset:
        assert np.array_equal(dataset.episodes["a"][:]["image"], frames)


def test_checksums_notice_what_size_and_time_do_not_tell(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", pictures(6))
    done = CliRunner().invoke(main, ["index", str(path), "-o", str(tmp_path / "i"), "--checksums"])
    assert done.exit_code == 0, done.output
    with seqrecord.open(tmp_path / "i") as dataset:
        before, frames = path.stat(), dataset.episodes["a"][:]["image"]
        assert frames.shape[0] == 6
    data = bytearray(path.read_bytes())
    at = data.index(b"mdat") + 200
    data[at] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ChecksumError) as info:
        seqrecord.open(tmp_path / "i").episodes["a"][:]
    assert info.value.file == str(path)


def test_links_are_followed_while_indexing(tmp_path: Path) -> None:
    """The Hub's local snapshots consist of links into another folder."""
    root = unpack(tmp_path, "lerobot_video_v3")
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for number, path in enumerate(sorted(path for path in root.rglob("*") if path.is_file())):
        path.rename(blobs / str(number))
        path.symlink_to(blobs / str(number))
    assert seqrecord.verify(root, deep=True).ok
    assert seqrecord.summarize(root).originals == (str(blobs),)


def test_what_is_not_indexed(tmp_path: Path) -> None:
    images = unpack(tmp_path, "lerobot_v3")  # images in tables
    with pytest.raises(SourceError) as info:
        seqrecord.open(images)
    assert "seqrecord write" in info.value.message
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    write_video(mixed / "a.mp4", pictures(3))
    (mixed / "notes.txt").write_text("x")
    with pytest.raises(NotFoundError):
        seqrecord.open(mixed)
    done = CliRunner().invoke(main, ["index", str(mixed)])
    assert done.exit_code == 1
    assert CliRunner().invoke(main, ["index", str(mixed), "-o", str(tmp_path / "i")]).exit_code == 0
    assert list(seqrecord.open(tmp_path / "i").episodes) == ["a"]
    with pytest.raises(SourceError):
        seqrecord.convert(open_source(tmp_path / "i"), tmp_path / "j", in_place=True)


@pytest.mark.parametrize("is_remote", [False, True])
def test_an_argument_that_an_original_does_not_take(
    tmp_path: Path, memory_url: str, *, is_remote: bool
) -> None:
    folder = tmp_path / "videos"
    folder.mkdir()
    write_video(folder / "a.mp4", pictures(3))
    root = upload(folder, memory_url) if is_remote else folder
    with pytest.raises(
        SourceError, match=r"tolerance cannot be chosen for .* videos: leave it out"
    ):
        seqrecord.open(root, tolerance=0.01)
    with pytest.raises(ClipError, match="originals does not go with an original"):
        seqrecord.open(root, originals=tmp_path)
    with pytest.raises(NotFoundError):
        seqrecord.open(tmp_path / "gone", tolerance=0.01, originals=tmp_path)


def test_video_that_must_be_encoded_anew_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "videos"
    root.mkdir()
    write_video(root / "a.mp4", pictures(300), options={"g": "300", "sc_threshold": "0"})
    with pytest.raises(SourceError) as info:
        seqrecord.open(root)
    assert info.value.file == str(root / "a.mp4")
    assert not list((tmp_path / "home").glob("indexes/*-*")), "nothing is left of it"


def test_edits_export_and_packing(tmp_path: Path) -> None:
    root = unpack(tmp_path, "lerobot_video_v3")
    index = tmp_path / "index"
    seqrecord.convert(open_source(root), index, workers=1, in_place=True)
    frames = _frames(seqrecord.open(index))
    seqrecord.edit.delete_episodes(index, ["episode_000001"])
    seqrecord.edit.rewrite_files(index)
    with seqrecord.open(index) as dataset:
        assert list(dataset.episodes) == ["episode_000000", "episode_000002"]
        np.testing.assert_equal(_frames(dataset), {k: frames[k] for k in dataset.episodes})
    seqrecord.convert(open_source(index), tmp_path / "packed", workers=1)
    root.rename(tmp_path / "away")
    with seqrecord.open(tmp_path / "packed") as packed:
        np.testing.assert_equal(_frames(packed), {k: frames[k] for k in packed.episodes})
    assert seqrecord.reindex(index).num_episodes == 2


@pytest.mark.parametrize("note", ["", "[]", '{"original": 1, "identity": 2, "folder": 3}'])
def test_a_damaged_note_of_an_index_is_no_note(tmp_path: Path, home: Path, note: str) -> None:
    root = unpack(tmp_path, "lerobot_video_v3")
    seqrecord.open(root).close()
    [path] = home.glob("indexes/*.json")
    path.write_text(note)
    assert len(seqrecord.open(root).episodes) == 3
    assert len(list(home.glob("indexes/*-*"))) == 1, "the old index is gone"


def test_two_processes_index_once(tmp_path: Path, home: Path) -> None:
    root = unpack(tmp_path, "lerobot_video_v3")
    code = f"import seqrecord; print(seqrecord.open({str(root)!r}).url)"
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert len({process.communicate()[0] for process in running}) == 1
    assert len(list(home.glob("indexes/*-*"))) == 1


def _cameras(root: Path) -> Iterator[Path]:
    yield from sorted(root.rglob("*.mp4"))


@pytest.mark.skipif(not HAS_TABLES, reason="PyAV before 17 has no tables")
def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    """Headers say where the packets lie: a video of which all packets are damaged is indexed."""
    root = unpack(tmp_path, "lerobot_v3")
    with_video(root, (5, 3, 7), options={"g": "2", "bf": "0"})
    shutil.rmtree(root / "data" / "none", ignore_errors=True)
    [path] = _cameras(root)
    data = bytearray(path.read_bytes())
    at = data.index(b"mdat") + 4
    size = int.from_bytes(data[at - 8 : at - 4], "big") - 8
    source = open_source(root, features=[CAMERAS[0], "timestamp"])
    seqrecord.convert(source, tmp_path / "a", workers=1, in_place=True)
    middle = slice(at + size // 2, at + size)
    data[middle] = bytes(len(data[middle]))
    path.write_bytes(data)
    seqrecord.convert(source, tmp_path / "b", workers=1, in_place=True)
    one, other = (seqrecord.open(tmp_path / name).contents.index for name in "ab")
    assert np.array_equal(one.groups[0].external, other.groups[0].external)


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of docs/in-place.md."""
    text = (Path(__file__).parents[1] / "docs" / "in-place.md").read_text()
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
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
    moved = Path("my-lerobot-dataset").rename("elsewhere")
    code = text[text.index("seqrecord.open(") :].partition("`")[0].replace('"/data/my', '"my')
    there["seqrecord"] = seqrecord
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "another"))
    with eval(code.replace("my-lerobot-dataset/", str(moved)), there) as dataset:
        assert len(dataset.episodes["episode_000000"][:]["timestamp"]) == 5
        assert len(dataset.episodes["episode_000000"][:][CAMERAS[0]]) == 5
