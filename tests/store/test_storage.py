from __future__ import annotations

import errno
import fcntl
import gc
import os
import pickle
import random
import stat
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.utils import infer_storage_options

from seqrecord import errors
from seqrecord.cloud.remote import FsspecStorage
from seqrecord.store.processes.system import reserve, sync
from seqrecord.store.storage.base import Storage, entries_of
from seqrecord.store.storage.folder import in_folder
from seqrecord.store.storage.local import LocalStorage, find_remote_mount
from seqrecord.store.storage.opening import open_storage
from seqrecord.store.storage.ranges import ByteRange
from tests.kit.faults import CountingStorage
from tests.kit.processes import busy_threads, in_fork
from tests.store.storage_contract import DATA, PATH, StorageContract, get, names, put

# Some tests fork a process with threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture
def memory() -> Iterator[FsspecStorage]:
    storage = open_storage("memory://bucket/dataset")
    assert isinstance(storage, FsspecStorage)
    yield storage
    storage.close()
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


def _open_fds() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


class TestLocalStorage(StorageContract):
    make = staticmethod(LocalStorage)


class TestFolderOfALocalStorage(StorageContract):
    @staticmethod
    def make(folder: Path) -> Storage:
        return in_folder(LocalStorage(folder), "dictionaries/a")


class TestFolder(StorageContract):
    """Its files are those of the storage that it is in."""

    @staticmethod
    def make(folder: Path) -> Storage:
        return in_folder(CountingStorage(LocalStorage(folder)), "dictionaries/a")


class TestMemoryStorage(StorageContract):
    is_atomic = is_shared = False

    @pytest.fixture
    def storage(self, memory: FsspecStorage) -> Storage:
        return memory


class TestFsspecOverLocalFiles(StorageContract):
    is_atomic = False

    @staticmethod
    def make(folder: Path) -> Storage:
        return FsspecStorage("local", str(folder), shown="local://dataset")


def test_open_storage_accepts_storages(tmp_path: Path, memory: FsspecStorage) -> None:
    wrapped = CountingStorage(LocalStorage(tmp_path))
    for storage in (LocalStorage(tmp_path), memory, wrapped):
        assert isinstance(storage, Storage)
        assert open_storage(storage) is storage
    with pytest.raises(errors.LocationError, match="storage_options"):
        open_storage(wrapped, {"key": "x"})


# Local


def test_consecutive_ranges(tmp_path: Path) -> None:
    """Of any length, also empty, and more than one system call can read."""
    rng = random.Random(0)
    data = rng.randbytes(4000)
    (tmp_path / "file").write_bytes(data)
    storage = LocalStorage(tmp_path)
    for number in range(4):
        cuts = sorted(rng.choices(range(4001), k=2500))
        ranges = [ByteRange(*pair) for pair in pairwise(cuts)]
        for at in sorted(rng.sample(range(len(ranges)), 3 * number), reverse=True):
            del ranges[at]
        if number == 3:
            rng.shuffle(ranges)
        buffers = [memoryview(bytearray(item.length)) for item in ranges]
        storage.read_ranges("file", ranges, buffers)
        assert [bytes(b) for b in buffers] == [data[item.start : item.stop] for item in ranges]
    beyond = [ByteRange(3000, 3500), ByteRange(3500, 3990), ByteRange(3990, 4001)]
    with pytest.raises(errors.StorageError, match="ended early") as caught:
        storage.read_ranges("file", beyond, [memoryview(bytearray(i.length)) for i in beyond])
    assert caught.value.offset == 3990


def test_no_descriptor_leaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _open_fds()
    storage = LocalStorage(tmp_path)
    put(storage, PATH, DATA)
    get(storage, PATH)
    upload = storage.create("records/left")
    upload.write(b"x")
    del storage, upload
    assert _open_fds() == before, "collected storages"
    storage = LocalStorage(tmp_path)
    upload = storage.create("records/stays")
    (tmp_path / "records/stays.notes").mkdir()
    with pytest.raises(errors.StorageError, match="Is a directory"):
        upload.abort()
    assert _open_fds() == before, "an upload that cannot be removed"
    close = os.close
    upload = storage.create("records/synced")
    upload.write(DATA)

    def failing(fd: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        close(fd)
        if not is_folder:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "close", failing)
        upload.commit()
    assert get(storage, "records/synced") == DATA, "a synced file is committed"


def test_a_relative_path_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = LocalStorage("dataset")
    put(storage, PATH, DATA)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for each in (storage, pickle.loads(pickle.dumps(storage))):
        assert get(each, PATH) == DATA
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_storage("~/dataset").url == str(tmp_path / "dataset")


def test_a_forked_child_reads_with_the_handles_of_its_parent(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    put(storage, PATH, DATA)
    get(storage, PATH)
    with busy_threads(lambda: storage.size(PATH)):
        assert all(in_fork(lambda: get(storage, PATH, 5, 50) == DATA[5:50]) for _ in range(10))


# Local: hostile folders


def test_links_that_lead_out_or_nowhere(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "outside").mkdir()
    storage, folder = LocalStorage(tmp_path / "dataset"), tmp_path / "dataset"
    put(storage, "records/ok", b"ok")
    (folder / "records/link").symlink_to(tmp_path / "secret")
    (folder / "index").symlink_to(tmp_path / "outside")
    for use in (
        lambda: storage.size("records/link"),
        lambda: storage.local_path("records/link"),
        lambda: get(storage, "records/link", 0, 4),
        lambda: storage.create("index/x.arrow"),
    ):
        with pytest.raises(errors.StorageError, match="leads out"):
            use()
    (folder / "manifest.json.partial").symlink_to(tmp_path / "secret")
    with pytest.raises(errors.StorageError):
        storage.create("manifest.json")
    assert (tmp_path / "secret").read_bytes() == b"secret"
    assert list((tmp_path / "outside").iterdir()) == []
    # The error of a symlink loop has its path.
    storage = LocalStorage(tmp_path)
    put(storage, PATH, DATA)
    (tmp_path / "records" / "gone.seqrec").symlink_to("nowhere")
    assert names(storage, "records") == [PATH]
    loop = tmp_path / "records" / "loop.seqrec"
    loop.symlink_to(loop.name)
    with pytest.raises(errors.StorageError) as caught:
        storage.files("records")
    assert caught.value.file == str(loop)


# Local: disturbed uploads


def test_a_name_is_written_by_one_upload(tmp_path: Path) -> None:
    storage, other = LocalStorage(tmp_path), LocalStorage(tmp_path)
    upload = storage.create(PATH)
    upload.write(b"mine")
    with pytest.raises(errors.DestinationError, match="another writer has begun"):
        other.create(PATH)
    upload.write(b"!")
    upload.commit()
    assert get(other, PATH) == b"mine!"


def test_notes_left_by_a_kill_after_the_rename_are_deleted(tmp_path: Path) -> None:
    storage, path = LocalStorage(tmp_path), f"records/00000-{'ab' * 16}.seqrec"
    put(storage, path, DATA)
    (tmp_path / f"{path}.notes").write_text('{"size": 1, "note": ""}\n')
    cut = storage.create("records/cut")
    cut.checkpoint(b"note")
    assert [each.path for each in storage.unfinished("records")] == ["records/cut"]
    assert (tmp_path / f"{path}.notes").exists()  # reading changes nothing
    storage.put("manifest.json", b"{}", expected=None)
    expected = ["cut.notes", "cut.partial", Path(path).name]
    assert sorted(path.name for path in (tmp_path / "records").iterdir()) == sorted(expected)
    assert get(storage, path) == DATA
    cut.abort()
    (tmp_path / "records/a.notes").mkdir(parents=True)  # a failed clean-up fails no put
    storage.put("other.json", b"{}", expected=None)


@pytest.mark.parametrize(
    ("module", "name", "code"),
    [(os, "write", errno.ENOSPC), (os, "fsync", errno.EIO), (Path, "replace", errno.EDQUOT)],
)
def test_disk_errors_name_the_file_and_a_short_write_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, code: int
) -> None:
    storage = LocalStorage(tmp_path)
    put(storage, "records/before", b"x")
    before = _open_fds()

    def fail(*args: Any, **options: Any) -> Any:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as broken:
        broken.setattr(module, name, fail)
        with pytest.raises(errors.StorageError, match="00000-ab") as caught:
            put(storage, PATH, DATA)
    assert os.strerror(code) in str(caught.value)
    storage.close()
    del caught
    assert _open_fds() <= before
    assert names(storage, "records") == ["records/before"]
    storage.remove(PATH)
    assert storage.unfinished("records") == []
    # A short write continues.
    whole = os.write
    storage = LocalStorage(tmp_path)
    with monkeypatch.context() as short:
        short.setattr(os, "write", lambda fd, data: whole(fd, data[:7]))
        put(storage, PATH, DATA[:1000])
    assert get(storage, PATH) == DATA[:1000]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_checkpoint_on_a_full_disk_keeps_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path)
    upload = storage.create(PATH)
    upload.write(b"1234")
    upload.checkpoint(b"one")
    notes = tmp_path / f"{PATH}.notes"
    whole = notes.read_bytes()
    notes.rename(tmp_path / "kept")
    notes.symlink_to("/dev/full")
    with pytest.raises(errors.StorageError, match="notes"):
        upload.checkpoint(b"two")
    notes.unlink()
    notes.write_bytes(whole)
    upload.checkpoint(b"three")
    storage.close()
    [found] = storage.unfinished("records")
    assert [note for _, note in found.checkpoints()] == [b"one", b"three"]


# fsspec


def test_a_collected_upload_leaves_no_file(tmp_path: Path) -> None:
    storage = FsspecStorage("local", str(tmp_path), shown="local://x")
    upload = storage.create("records/a")
    upload.write(b"half")
    del upload
    gc.collect()
    assert storage.files("records") == []
    storage.close()
    gc.collect()
    assert list(tmp_path.rglob("*")) == []


class _Broken(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Fails with a secret in all messages."""

    protocol = "broken"
    cachable = False

    def __init__(self, secret: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.secret = secret

    def _fail(self, *args: Any, **options: Any) -> Any:
        try:
            raise PermissionError(13, f"denied: sig={self.secret}")
        except PermissionError as error:
            raise RuntimeError(f"GET https://host/?sig={self.secret}") from error

    info = ls = cat_file = _open = exists = rm_file = makedirs = size = cat_ranges = _fail


def test_errors_contain_no_text_of_the_client() -> None:
    fsspec.register_implementation("broken", _Broken, clobber=True)
    storage = open_storage("broken://bucket/dataset", {"secret": "S3CRET"})
    for action in (
        lambda: storage.size("a"),
        lambda: get(storage, "a", 0, 1),
        lambda: put(storage, "a", b"x"),
        lambda: storage.put("a", b"x", expected=None),
        lambda: storage.files("a"),
        lambda: storage.remove("a"),
    ):
        with pytest.raises(errors.StorageError, match="RuntimeError") as caught:
            action()
        assert caught.value.__cause__ is caught.value.__context__ is None
        assert "S3CRET" not in repr(caught.value) + str(caught.value)
    assert "S3CRET" not in repr(storage) + storage.url


class _OnAHost(MemoryFileSystem):  # type: ignore[misc]
    """Has its host as an option and not in its paths, like FTP and GitHub."""

    protocol = "onahost"
    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    hosts: ClassVar[set[str]] = set()

    def __init__(self, host: str, **options: Any) -> None:
        super().__init__(**options)
        self.hosts.add(host)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        inside = infer_storage_options(path)["path"].strip("/")
        return f"/{inside}" if inside else ""

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        return {"host": infer_storage_options(path)["host"]}


def test_a_url_is_parsed_by_its_filesystem() -> None:
    fsspec.register_implementation("onahost", _OnAHost, clobber=True)
    for folder in ("/a/b", "/", ""):
        _OnAHost.store.clear()
        _OnAHost.pseudo_dirs[:] = [""]
        _OnAHost.hosts.clear()
        storage = open_storage(f"onahost://server{folder}")
        storage.put("manifest.json", b"{}", expected=None)
        put(storage, PATH, DATA)
        assert get(storage, PATH) == DATA
        assert names(storage, "records") == [PATH]
        assert [each.name for each in entries_of(storage, "")] == ["manifest.json", "records"]
        assert set(_OnAHost.store) == {f"{folder.rstrip('/')}/{p}" for p in ("manifest.json", PATH)}
        assert _OnAHost.hosts == {"server"}
        other = open_storage(f"onahost://other{folder}", {"host": "elsewhere"})
        assert get(other, PATH) == DATA
        assert storage.place != other.place
        assert _OnAHost.hosts == {"server", "elsewhere"}
        storage.close()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.LocationError, match="unsupported URL scheme"):
        open_storage("nosuchthing://a")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for table in ("_registry", "registry"):  # of classes imported before
        monkeypatch.setattr(sys.modules["fsspec.registry"], table, {})
    with pytest.raises(errors.LocationError, match=r"missing.*huggingface_hub") as caught:
        open_storage("hf://datasets/a/b").files("records")
    assert caught.value.__cause__ is None


def test_a_root_link_is_followed_once(tmp_path: Path) -> None:
    """A link that is changed later does not mix the files of two folders."""
    for name in ("old", "new"):
        (tmp_path / name / "data").mkdir(parents=True)
        (tmp_path / name / "data/x").write_bytes(name.encode())
    link = tmp_path / "link"
    link.symlink_to("old")
    storage = LocalStorage(link)
    link.unlink()
    link.symlink_to("new")
    assert storage.read_whole("data/x", 10)[0] == b"old"
    assert [entry.name for entry in storage.entries("")] == ["data"]
    storage.put("data/y", b"y", expected=None)
    storage.remove("data/x")
    assert [*(tmp_path / "old/data").iterdir()] == [tmp_path / "old/data/y"]
    assert [*(tmp_path / "new/data").iterdir()] == [tmp_path / "new/data/x"]


# The table of mounts

TABLE = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /mnt/blob rw,nosuid,nodev - fuse blobfuse2 rw,user_id=0,group_id=0
31 22 0:41 / /mnt/rclone rw - fuse.rclone azure:container rw
32 22 0:42 / /mnt/usb rw - fuseblk /dev/sdb1 rw
33 22 0:43 / /mnt/ntfs rw - fuse.ntfs-3g /dev/sdc1 rw
34 22 0:44 / /mnt/layers rw - fuse.fuse-overlayfs fuse-overlayfs rw
35 22 0:45 / /mnt/with\040space rw - nfs4 server:/export rw
36 30 8:2 / /mnt/blob/local rw - ext4 /dev/sdd1 rw
37 22 0:46 / /mnt/twice rw - nfs server:/a rw
38 37 8:3 / /mnt/twice rw - xfs /dev/sde1 rw
39 22 0:47 / /mnt/pool rw - fuse /usr/bin/mergerfs rw
40 22 0:48 / /mnt/gcs rw master:2 - fuse.gcsfuse bucket rw
a line that is none
"""


def test_mounts_are_found_in_the_kernels_table(tmp_path: Path) -> None:
    for path, expected in {
        **dict.fromkeys(("/", "/home/data", "/mnt/blob2", "/mnt/blob/local/a", "/mnt/usb/a")),
        **dict.fromkeys(("/mnt/ntfs/a", "/mnt/layers/a", "/mnt/twice/a", "/mnt/pool/a")),
        **dict.fromkeys(("/mnt/blob", "/mnt/blob/a/b"), "/mnt/blob"),
        "/mnt/rclone/x/../y": "/mnt/rclone",
        "/mnt/with space/a": "/mnt/with space",
        "/mnt/gcs": "/mnt/gcs",
    }.items():
        assert find_remote_mount(path, table=TABLE) == expected, path
    table = "41 22 0:49 / /mnt/next\x85line rw - nfs4 server:/export rw\n"
    assert find_remote_mount("/mnt/next\x85line/a", table=table) == "/mnt/next\x85line"
    remote = "lustre ceph gpfs beegfs 9p virtiofs afs wekafs pvfs2 panfs cifs smb3 nfs4 vboxsf"
    remote += " fuse.glusterfs fuse.ceph-fuse fuse.s3fs fuse.juicefs fuse.sshfs fuse.rclone"
    local = "ext4 xfs btrfs zfs overlay tmpfs fuse.gocryptfs fuse.ntfs-3g fuseblk"
    for kind in f"{remote} {local}".split():
        table = f"30 22 0:40 / /mnt/data rw,relatime shared:1 - {kind} from rw"
        found = find_remote_mount("/mnt/data/set", table=table)
        assert found == ("/mnt/data" if kind in remote.split() else None), kind
    assert find_remote_mount(tmp_path) is None  # by this machine's table
    assert find_remote_mount("/proc/self") is None


# Calls of other systems


def test_reserved_space_is_zeros_after_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (2 << 20) + 3
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    with (tmp_path / "file").open("w+b") as file:
        file.write(b"header")
        file.flush()
        reserve(file.fileno(), size)
        assert os.fstat(file.fileno()).st_blocks * 512 >= size
    assert (tmp_path / "file").read_bytes() == b"header".ljust(size, b"\0")


@pytest.mark.parametrize("is_supported", [True, False])
def test_sync_empties_the_cache_of_the_drive(
    is_supported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By F_FULLFSYNC of macOS; by `fsync` on file systems without it."""
    calls: list[str] = []

    def control(fd: int, command: int) -> None:
        assert (fd, command) == (file.fileno(), 51)
        calls.append("full")
        if not is_supported:
            raise OSError(45, "not supported")

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", control)
    monkeypatch.setattr(os, "fsync", lambda _: calls.append("fsync"))
    with (tmp_path / "file").open("wb") as file:
        sync(file.fileno())
    assert calls == ["full"] if is_supported else ["full", "fsync"]
