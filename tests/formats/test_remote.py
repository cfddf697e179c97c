"""Originals at a URL: equal to those on a disk, in bounded memory, without shown credentials."""

from __future__ import annotations

import gc
import io
import shutil
import tarfile
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any
from urllib.parse import quote

import fsspec
import h5py
import numpy as np
import pytest

import seqrecord
from seqrecord import convert, open_source
from seqrecord.errors import AccessError, SourceError, StorageError
from seqrecord.store.storage.opening import open_storage
from tests.formats.all_cases import made
from tests.formats.cases import upload
from tests.formats.format_cases.mcap import recording
from tests.formats.format_cases.replay_buffers import write_buffer
from tests.formats.in_place_cases import assert_same, frames_of
from tests.formats.test_source_contract import everything
from tests.golden.make_replay_buffer import FILE
from tests.kit.bags import write_bag, write_ros1
from tests.kit.command_line import run
from tests.kit.faults import CountingStorage, FaultyStorage
from tests.kit.lerobot_video_data import unpack
from tests.kit.services.azurite import Azurite
from tests.kit.services.web_server import WebFolder


def test_images_of_openexr_are_copied(tmp_path: Path, memory_url: str) -> None:
    pytest.importorskip("OpenEXR")
    from tests.formats.test_image_files import write_tree

    write_tree(tmp_path / "set" / "scene")
    wanted = everything(open_source(tmp_path / "set"))
    assert everything(open_source(upload(tmp_path / "set", memory_url))) == wanted


def test_rows_come_many_at_a_time_from_a_url_too(tmp_path: Path, memory_url: str) -> None:
    root = unpack(tmp_path, "lerobot_video_v3")
    for place in (root, upload(root, memory_url)):
        source: Any = open_source(place)
        [info, *_] = source.episodes()
        assert [block.num_frames for block in source.blocks(info)] == [info.num_frames]


@pytest.mark.parametrize("name", ["robomimic", "droid"])
def test_a_url_of_one_file(tmp_path: Path, memory_url: str, name: str) -> None:
    root = made(tmp_path / "set", name)
    path = next(each for each in root.rglob("*") if each.suffix in (".hdf5", ".h5"))
    url = f"{upload(root, memory_url)}/{path.relative_to(root).as_posix()}"
    assert everything(open_source(url)) == everything(open_source(path))


def big_tar(first: int) -> bytes:
    """34 MB: more than a reader asks for ahead."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for n in range(6):
            part = io.BytesIO()
            np.save(part, np.full((1400, 1000), first + n, np.float32))
            entry = tarfile.TarInfo(f"{n:06d}.depth.npy")
            entry.size = part.tell()
            part.seek(0)
            tar.addfile(entry, part)
    return stream.getvalue()


@pytest.mark.parametrize("if_match", [True, False])
@pytest.mark.parametrize("is_read", [True, False])
def test_a_file_of_a_web_server_that_is_replaced(
    tmp_path: Path, is_read: bool, if_match: bool
) -> None:
    """After its listing, or while it is read: values are of one version."""
    tar = tmp_path / "a.tar"
    tar.write_bytes(big_tar(0))
    with WebFolder(tmp_path, if_match=if_match) as server:
        source = open_source(f"{server.endpoint}/a.tar")
        frames: Any = source.frames(source.episodes()[0])
        if is_read:
            assert not np.any(next(frames)["depth"])
        tar.write_bytes(big_tar(10))
        values = []
        with pytest.raises(StorageError, match="was replaced"):
            values += [np.max(frame["depth"]) for frame in frames]
        assert max(values, default=0) < 6


def test_a_file_that_is_replaced_behind_a_cut_answer(tmp_path: Path) -> None:
    """The request for the rest does not accept the other version."""
    tar, values = tmp_path / "a.tar", []
    tar.write_bytes(big_tar(0))
    with WebFolder(tmp_path) as server:
        source = open_source(f"{server.endpoint}/a.tar")
        frames: Any = source.frames(source.episodes()[0])
        assert not np.any(next(frames)["depth"])
        sizes = list[int]()
        server.cut = lambda: sizes.append(tar.write_bytes(big_tar(10)))
        with pytest.raises(StorageError, match="was replaced"):
            values += [np.max(frame["depth"]) for frame in frames]
        assert len(sizes) == 1
    assert max(values, default=0) < 6


def test_a_file_of_a_web_server(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    made(tmp_path, "robomimic")
    paths = [Path(shutil.copy(FILE, tmp_path)), tmp_path / "demos.hdf5"]
    paths.append(write_bag(tmp_path / "run", recording(), sqlite=True))
    paths.append(write_ros1(tmp_path / "run.bag", recording()))
    with WebFolder(tmp_path) as server:
        for path in paths:
            url = f"{server.endpoint}/{path.relative_to(tmp_path).as_posix()}"
            assert everything(open_source(url)) == everything(open_source(path))
        with pytest.raises(SourceError, match="nothing at the URL"):
            open_source(f"{server.endpoint}/gone.hdf5")
        odd = tmp_path / "my run" / "50 % ä#1.hdf5"
        odd.parent.mkdir()
        shutil.copy(paths[1], odd)
        url = f"{server.endpoint}/{quote(odd.relative_to(tmp_path).as_posix())}"
        assert everything(open_source(url)) == everything(open_source(odd))


def test_bags_are_copied_one_at_a_time(
    tmp_path: Path, memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(made(tmp_path / "set", "rosbag2 of sqlite"), memory_url)
    copies = tmp_path / "tmp"
    copies.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    source = open_source(memory_url)
    for info in source.episodes():
        for frame in source.frames(info):
            assert frame
            assert len([*copies.iterdir()]) == 1
    del source
    gc.collect()
    assert [*copies.iterdir()] == []
    usage = shutil.disk_usage(copies)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100))
    with pytest.raises(StorageError, match=r"TMPDIR.* got: 100 bytes free") as caught:
        convert(open_source(memory_url), tmp_path / "records", skip_bad_episodes=True, workers=1)
    assert caught.value.file == str(copies)
    assert [*copies.iterdir()] == []


def test_empty_urls_and_formats_without_url_support(memory_url: str) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"{memory_url}/other/notes.txt", b"nothing")
    memory.pipe_file(f"{memory_url}/bag/run.db3", b"SQLite format 3\0")
    for name, file, match in (
        ("gone", "gone", "nothing at the URL"),
        ("other", "other", "no supported dataset found"),
        ("bag", "bag/run.db3", "damaged"),
    ):
        with pytest.raises(SourceError, match=match) as caught:
            open_source(f"{memory_url}/{name}").schema()
        assert caught.value.file == f"{memory_url}/{file}"
    with pytest.raises(SourceError, match="apply to URLs only"):
        open_source("/", storage_options={"deadline": 3})


def test_a_broken_file_is_named_by_its_url(tmp_path: Path, memory_url: str) -> None:
    made(tmp_path / "set", "aloha")
    (tmp_path / "set" / "episode_0.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n broken")
    source = open_source(upload(tmp_path / "set", memory_url))
    report = convert(source, tmp_path / "records", skip_bad_episodes=True, workers=1)
    assert [each.key for each in report.bad] == ["episode_0"]
    assert f"{memory_url}/episode_0.hdf5" in report.bad[0].error
    assert report.written == ("episode_1", "episode_2")


@pytest.mark.parametrize("kind", ["aloha", "zarr"])
def test_a_request_that_fails_is_no_bad_episode(tmp_path: Path, memory_url: str, kind: str) -> None:
    # h5py turns errors of the file into `OSError`, as for a damaged file. zarr makes a request for
    # each chunk.
    if kind == "zarr":
        pytest.importorskip("zarr")
        write_buffer(tmp_path / "set" / "pusht.zarr")
    else:
        made(tmp_path / "set", kind)
    upload(tmp_path / "set", memory_url)
    fails = False

    def fault(operation: str, path: str, _: int) -> Exception | None:
        concerned = operation == "read" if kind == "aloha" else "/img/" in path
        return StorageError("the network", file=path) if fails and concerned else None

    source = open_source(FaultyStorage(open_storage(memory_url), fault))
    assert len(source.episodes()) == 3
    fails = True
    with pytest.raises(StorageError, match="the network"):
        convert(source, tmp_path / "records", skip_bad_episodes=True, workers=1)
    fails = False
    assert len(convert(source, tmp_path / "records", mode="resume", workers=1).written) == 3


def test_memory_of_a_file_is_bounded_and_reads_are_large(tmp_path: Path, memory_url: str) -> None:
    """A file of 20 blocks of 4 MiB, of which 8 are kept."""
    block, images = 4 << 20, np.zeros((80, 1024, 1024, 1), np.uint8)
    images[:, 0, 0, 0] = np.arange(80)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["action"] = file["observations/qpos"] = np.zeros((80, 7), np.float32)
        file.create_dataset("observations/images/top", data=images, chunks=(1, 1024, 1024, 1))
    storage = CountingStorage(open_storage(upload(tmp_path, memory_url)))
    source: Any = open_source(storage, features=["observations.images.top"])
    [info] = source.episodes()
    tracemalloc.start()
    seen = [int(frame["observations.images.top"][0, 0, 0]) for frame in source.frames(info)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen == [*range(80)]
    assert peak < 24 * block
    *ranges, last = sorted(storage.ranges["a.hdf5"], key=lambda item: item.length, reverse=True)
    assert {item.length for item in ranges} == {block}
    assert last.length <= block
    assert len(ranges) < 40


@pytest.mark.parametrize(
    "name", ["lerobot with video", "tartanair", "robomimic", "zarr", "rosbag2 of sqlite"]
)
def test_packed_from_azure_on_the_command_line(
    tmp_path: Path, azurite: Azurite, container: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder, records = made(tmp_path / "set", name), tmp_path / "records"
    for path in filter(Path.is_file, sorted(folder.rglob("*"))):
        file = path.relative_to(folder).as_posix()
        azurite.put(container, f"originals/{file}", path.read_bytes())
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)
    url = f"az://{container}/originals"
    run("write", "--src", url, "--dst", records, "--workers", "2", "--quiet")
    convert(open_source(folder), tmp_path / "wanted", workers=1)
    with seqrecord.open(records) as found, seqrecord.open(tmp_path / "wanted") as wanted:
        assert_same(frames_of(found), frames_of(wanted))


def test_a_refused_signature_is_not_shown(azurite: Azurite, container: str) -> None:
    azurite.put(container, "set/demos.hdf5", b"x")
    expired = azurite.sas(container, minutes=-1)
    options = {"endpoint": azurite.endpoint, "account_name": azurite.account, "sas_token": expired}
    with pytest.raises(AccessError) as caught:
        open_source(f"az://{container}/set", storage_options=options)
    assert "sig=" not in str(caught.value)
    assert f"az://{container}/set" in str(caught.value)
