from __future__ import annotations

import errno
import gc
import os
import pickle
import random
import stat
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.utils import infer_storage_options

from seqrecord import errors
from seqrecord.cloud.clients import Clients
from seqrecord.cloud.retrying import Retrier
from seqrecord.cloud.whole import Pieces
from seqrecord.storage import FsspecStorage, LocalStorage, Storage, entries_of, open_storage
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


class _LosesAnAnswer(FsspecStorage):
    """The response to the first upload of a file is lost; `stored` is the file's content."""

    stored: bytes | None = None

    def upload(self, path: str, pieces: Pieces) -> None:
        b"".join(pieces)
        if self.stored is not None:
            super().upload(path, Pieces(path, _Bytes(self.stored), 1 << 20, 100))
        self.stored = None
        raise errors.TransientError("the connection was reset", file=path)


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def read(self, start: int, stop: int) -> bytes:
        return self.data[start:stop]


def test_another_file_of_the_same_length_is_a_conflict() -> None:
    """An upload with a lost response, and another file of the same name and length."""
    root = f"lost-{uuid.uuid4().hex}"
    quick = Retrier(sleep=lambda _: None)
    storage = _LosesAnAnswer("memory", root, shown=f"memory://{root}", retrier=quick)
    for size, at in ((1, 0), (64, -1), (3 << 20, 5)):
        data = random.Random(1).randbytes(size)
        other = bytearray(data)
        other[at] ^= 1
        for path, stored in ((f"records/a{size}", data), (f"records/b{size}", bytes(other))):
            storage.stored = stored
            upload = storage.create(path)
            upload.write(data)
            if stored == data:
                upload.commit()
            else:
                with pytest.raises((errors.DestinationError, errors.TransientError)):
                    upload.commit()
                upload.abort()
            assert get(storage, path) == stored
    storage.close()


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


def test_a_forked_child_makes_its_own_client(memory: FsspecStorage) -> None:
    put(memory, PATH, DATA)
    clients = Clients(object, is_reread=False)
    mine = clients.ask("file", lambda client: client)
    assert clients.ask("file", lambda client: client) is mine
    assert in_fork(lambda: clients.ask("file", lambda client: client) is not mine)
    assert in_fork(lambda: get(memory, PATH, 0, 9) == DATA[:9])


def test_clients_of_different_locations_are_made_one_at_a_time() -> None:
    """Making a client imports packages, and a thread may see an incomplete import."""
    making, most = 0, 0

    def make() -> object:
        nonlocal making, most
        making += 1
        most = max(most, making)
        time.sleep(0.02)
        making -= 1
        return object()

    every = [Clients(make, is_reread=False) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda clients: clients.ask("file", lambda c: c), every * 2))
    assert most == 1
    assert found[:4] == found[4:]


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
