"""Originals on a URL give what they give on a disk, in bounded memory, and name no credential."""

from __future__ import annotations

import gc
import io
import shutil
import tempfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import seqrecord
from seqrecord import convert, open_source
from seqrecord.errors import AccessError, SourceError, StorageError
from seqrecord.sources.base import blocks_of
from seqrecord.sources.common.remote import BLOCK_BYTES, MAX_BLOCKS, RemoteFile, RemoteFiles
from seqrecord.storage import open_storage
from tests.bags import write_bag
from tests.command_line import main
from tests.golden.make_replay_buffer import FILE
from tests.lerobot_video_data import unpack
from tests.services.azurite import Azurite
from tests.source_writers import write_buffer
from tests.storage_doubles import CountingStorage, FaultyStorage
from tests.test_source_contract import SETS, everything, upload
from tests.test_sources_mcap import recording
from tests.web_server import WebFolder


def made(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    SETS[name].write(folder)
    return folder


def test_images_of_openexr_are_copied(tmp_path: Path, memory_url: str) -> None:
    pytest.importorskip("OpenEXR")
    from tests.test_image_files import write_tree

    write_tree(tmp_path / "set" / "scene")
    wanted = everything(open_source(tmp_path / "set"))
    assert everything(open_source(upload(tmp_path / "set", memory_url))) == wanted


def test_rows_come_many_at_a_time_from_a_url_too(tmp_path: Path, memory_url: str) -> None:
    root = unpack(tmp_path, "lerobot_video_v3")
    for source in (open_source(root), open_source(upload(root, memory_url))):
        counts = [block.num_frames for block in blocks_of(source, source.episodes()[0])]
        assert counts == [source.episodes()[0].num_frames]


@pytest.mark.parametrize("name", ["robomimic", "droid"])
def test_a_url_of_one_file(tmp_path: Path, memory_url: str, name: str) -> None:
    made(tmp_path / "set", name)
    path = next(each for each in (tmp_path / "set").rglob("*") if each.suffix in (".hdf5", ".h5"))
    upload(tmp_path / "set", memory_url)
    url = f"{memory_url}/{path.relative_to(tmp_path / 'set').as_posix()}"
    assert everything(open_source(url)) == everything(open_source(path))


def test_a_file_of_a_web_server(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    made(tmp_path, "robomimic")
    paths = [Path(shutil.copy(FILE, tmp_path)), tmp_path / "demos.hdf5"]
    paths.append(write_bag(tmp_path / "run", recording(), sqlite=True))
    with WebFolder(tmp_path) as server:
        for path in paths:
            url = f"{server.endpoint}/{path.relative_to(tmp_path).as_posix()}"
            assert everything(open_source(url)) == everything(open_source(path))
        with pytest.raises(SourceError, match="nothing at the URL"):
            open_source(f"{server.endpoint}/gone.hdf5")


def test_parts_of_zarr_values_and_values_that_are_not_there(
    tmp_path: Path, memory_url: str
) -> None:
    zarr = pytest.importorskip("zarr")
    array = np.arange(64, dtype="<i4")
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=3)
    # Of a sharded array a part of each file is read; of chunks 32 to 63 there is none.
    sharded = group.create_array("x", shape=(128,), dtype="i4", chunks=(8,), shards=(32,))
    sharded[:32], sharded[96:] = array[:32], array[32:]
    files = RemoteFiles(open_storage(upload(tmp_path, memory_url)))
    from seqrecord.sources.zarr.stores import RemoteStore

    store = RemoteStore(files, files.root / "a.zarr")
    found = zarr.open_group(store, mode="r")
    assert list(found.array_keys()) == ["x"]
    wanted = np.concatenate([array[:32], np.zeros(64, "<i4"), array[32:]])
    np.testing.assert_array_equal(found["x"][:], wanted)
    np.testing.assert_array_equal(found["x"][13:17], wanted[13:17])
    local = zarr.storage.LocalStore(tmp_path / "a.zarr", read_only=True)
    assert _keys(store) == _keys(local)
    with pytest.raises(ValueError, match="read-only"):
        found["x"][:] = 0


def _keys(store: Any) -> list[str]:
    from zarr.core.sync import sync

    async def listed() -> list[str]:
        return [key async for key in store.list()]

    return sorted(sync(listed()))


def test_bags_are_copied_one_at_a_time(
    tmp_path: Path, memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "set", "rosbag2 of sqlite")
    upload(tmp_path / "set", memory_url)
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


def test_nothing_there_and_what_does_not_take_urls(memory_url: str) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"{memory_url}/other/notes.txt", b"nothing")
    with pytest.raises(SourceError, match="nothing at the URL") as caught:
        open_source(f"{memory_url}/gone")
    assert caught.value.file == f"{memory_url}/gone"
    with pytest.raises(SourceError, match="no supported dataset found") as caught:
        open_source(f"{memory_url}/other")
    assert caught.value.file == f"{memory_url}/other"
    memory.pipe_file(f"{memory_url}/bag/run.db3", b"SQLite format 3\0")
    with pytest.raises(SourceError, match="damaged") as caught:
        open_source(f"{memory_url}/bag").schema()
    assert caught.value.file == f"{memory_url}/bag/run.db3"
    with pytest.raises(SourceError, match="apply to URLs only"):
        open_source("/", storage_options={"deadline": 3})


def test_a_broken_file_is_named_by_its_url(tmp_path: Path, memory_url: str) -> None:
    made(tmp_path / "set", "aloha")
    (tmp_path / "set" / "episode_0.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n broken")
    source = open_source(upload(tmp_path / "set", memory_url))
    with pytest.raises(SourceError) as caught:
        list(source.frames(source.episodes()[0]))
    assert caught.value.file == f"{memory_url}/episode_0.hdf5"
    report = convert(source, tmp_path / "records", skip_bad_episodes=True, workers=1)
    assert [each.key for each in report.bad] == ["episode_0"]
    assert report.written == ("episode_1", "episode_2")


@pytest.mark.parametrize("kind", ["aloha", "zarr"])
def test_a_request_that_fails_is_no_bad_episode(tmp_path: Path, memory_url: str, kind: str) -> None:
    # h5py makes an `OSError` of what the file raises, which would say that the file is damaged, and
    # zarr has a request for each chunk.
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


def test_memory_of_a_file_is_bounded_and_reads_are_large(memory_url: str) -> None:
    data = np.random.default_rng(0).bytes(11 * BLOCK_BYTES + 5)
    fsspec.filesystem("memory").pipe_file(f"{memory_url}/file", data)
    storage = CountingStorage(open_storage(memory_url))
    files = RemoteFiles(storage)
    with files.open(files.root / "file") as file:
        assert isinstance(file, RemoteFile)
        assert io.BufferedReader(file).read() == data
        # One block first, for who looks at a file's beginning alone; then four at a time.
        assert len(storage.ranges["file"]) == 12
        assert file.cached_bytes <= MAX_BLOCKS * BLOCK_BYTES
    storage.reset()
    rng = np.random.default_rng(1)
    with files.open(files.root / "file") as file:
        for place in rng.integers(0, len(data), 40):
            file.seek(int(place))
            assert file.read(1000) == data[place : place + 1000]
            assert file.cached_bytes <= MAX_BLOCKS * BLOCK_BYTES
        assert file.seek(-5, io.SEEK_END) == 11 * BLOCK_BYTES
        assert file.read(100) == data[-5:]
        assert file.read(1) == b""
    assert {item.length for item in storage.ranges["file"]} <= {BLOCK_BYTES, 5}


def test_two_accounts_with_one_url_do_not_meet() -> None:
    options = {"account_key": "eA==", "backend": "obstore"}
    one = RemoteFiles(open_storage("az://container/set", {"account_name": "one", **options}))
    two = RemoteFiles(open_storage("az://container/set", {"account_name": "two", **options}))
    assert one.storage.url == two.storage.url
    assert one.root != two.root


@pytest.mark.parametrize(
    "name", ["lerobot with video", "tartanair", "robomimic", "zarr", "rosbag2 of sqlite"]
)
def test_packed_from_azure_on_the_command_line(
    tmp_path: Path,
    azurite: Azurite,
    container: str,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    folder = made(tmp_path / "set", name)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            azurite.put(container, f"originals/{name}", path.read_bytes())
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)
    url, destination = f"az://{container}/originals", tmp_path / "records"
    arguments = ["write", "--src", url, "--dst", str(destination), "--workers", "2", "--quiet"]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    convert(open_source(folder), tmp_path / "wanted", workers=1)
    with seqrecord.open(destination) as found, seqrecord.open(tmp_path / "wanted") as wanted:
        assert list(found.episodes.keys()) == list(wanted.episodes.keys())
        for key in wanted.episodes:
            assert len(found.episodes[key]) == len(wanted.episodes[key])
            for i in range(len(wanted.episodes[key])):
                np.testing.assert_equal(found.episodes[key][i], wanted.episodes[key][i])


def test_a_refused_signature_is_not_shown(azurite: Azurite, container: str) -> None:
    azurite.put(container, "set/demos.hdf5", b"x")
    expired = azurite.sas(container, minutes=-1)
    options = {"endpoint": azurite.endpoint, "account_name": azurite.account, "sas_token": expired}
    with pytest.raises(AccessError) as caught:
        open_source(f"az://{container}/set", storage_options=options)
    assert "sig=" not in str(caught.value)
    assert f"az://{container}/set" in str(caught.value)
