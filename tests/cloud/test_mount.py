"""Mounts: a real one through FUSE, and a plain folder opened as one."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqrecord import errors
from seqrecord.cloud.mounts import HandlePool, MountStorage
from seqrecord.store.storage.base import Storage, StorageWrapper
from seqrecord.store.storage.opening import open_storage
from tests.kit.faults import fail_calls
from tests.kit.processes import in_fork, wait_for
from tests.kit.services import Azurite, Mount, need_mount
from tests.store.storage_contract import DATA, PATH, StorageContract, get, put

MakeMount = Callable[..., Mount]


class TestAFolderOpenedAsAMount(StorageContract):
    make = staticmethod(MountStorage)


class TestFewHandles(StorageContract):
    make = staticmethod(partial(MountStorage, max_handles=1))


@pytest.fixture(scope="module")
def folders(azurite: Azurite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[Path]]:
    """New folders of one mount."""
    need_mount()
    folder = tmp_path_factory.mktemp("mount")
    mounted = Mount(azurite, azurite.new_container(), folder, writable=True)
    yield (mounted.path / f"{number}" / "dataset" for number in itertools.count())
    mounted.close()


@pytest.mark.service
class TestAWritableMount(StorageContract):
    has_gaps = True  # rclone's rename

    @pytest.fixture
    def storage(self, folders: Iterator[Path]) -> Iterator[Storage]:
        storage = MountStorage(next(folders))
        yield storage
        storage.close()


# Handles


class Opened:
    """The handle of a file."""

    fd = 3

    def close(self) -> None:
        self.fd = -1


class RecordedHandles:
    """Opens any file, and records the reads of each handle."""

    def __init__(self) -> None:
        self.reads: dict[Any, list[tuple[int, int]]] = {}

    def read(self, streams: HandlePool, path: str, start: int, stop: int) -> None:
        with streams.take(path, start, stop, self.open) as handle:
            self.reads[handle].append((start, stop))

    def open(self) -> Any:
        handle = Opened()
        self.reads[handle] = []
        return handle


@pytest.mark.parametrize("threads", [1, 8])
def test_each_handle_is_read_front_to_back(threads: int) -> None:
    opened, streams = RecordedHandles(), HandlePool(limit=100)
    cursors = [(f"file {i % 3}", i * 1000 << 20) for i in range(12)]
    barrier = threading.Barrier(threads)

    def walk(mine: list[tuple[str, int]]) -> None:
        barrier.wait()
        for step in range(50):
            for path, first in mine:
                start = first + (step * 4 << 20)
                opened.read(streams, path, start, start + (3 << 20))  # one feature of several

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(walk, [cursors[i::threads] for i in range(threads)]))
    assert len(opened.reads) == len(cursors)
    for reads in opened.reads.values():
        assert [start for start, _ in reads] == [
            reads[0][0] + (step * 4 << 20) for step in range(50)
        ]
    streams.drop()


def test_reads_of_one_handle_run_in_order() -> None:
    streams, opened = HandlePool(limit=10), RecordedHandles()
    inside, may_continue = threading.Event(), threading.Event()
    order = []

    def first() -> None:
        with streams.take("a", 0, 10, opened.open):
            inside.set()
            may_continue.wait()
            order.append(0)

    def later(number: int) -> None:
        with streams.take("a", number * 10, number * 10 + 10, opened.open):
            order.append(number)

    threads = [threading.Thread(target=first)]
    threads[0].start()
    inside.wait()
    for number in (1, 2, 3):
        threads.append(threading.Thread(target=later, args=(number,)))
        threads[-1].start()
        wait_for(lambda n=number: streams.places == [("a", n * 10 + 10)])  # type: ignore[misc]
    with streams.take("a", 5, 6, opened.open):  # before them: a separate handle
        assert order == []
    may_continue.set()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3]
    assert len(opened.reads) == 2
    streams.drop()


def test_the_least_recently_used_handle_is_closed() -> None:
    streams, opened = HandlePool(limit=2), RecordedHandles()
    for path in ("a", "b", "a", "c"):
        opened.read(streams, path, 0 if path != "a" else len(opened.reads), 1)
    assert streams.places == [("a", 1), ("c", 1)]
    streams.drop("a")
    assert streams.places == [("c", 1)]
    streams.drop()


def _open_below(folder: Path) -> list[str]:
    names = [os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()]
    return [name for name in names if name.startswith(str(folder))]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_close_closes_handles_and_a_forked_child_opens_its_own(tmp_path: Path) -> None:
    storage = MountStorage(tmp_path, max_handles=3)
    for number in range(5):
        put(storage, f"records/{number}", DATA)
        get(storage, f"records/{number}", 0, 10)
    assert len(_open_below(tmp_path)) == 3

    def opens_one() -> bool:
        get(storage, "records/4", 10, 20)
        return len(_open_below(tmp_path)) == 4

    assert in_fork(opens_one)
    storage.close()
    assert _open_below(tmp_path) == []


# Faults


def test_after_a_transient_error_the_file_is_reopened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = MountStorage(tmp_path)
    put(storage, PATH, DATA)
    for number in (errno.EIO, errno.ESTALE, errno.ENOTCONN):
        get(storage, PATH, 0, 10)
        with monkeypatch.context() as broken:
            fail_calls(broken, os, "preadv", number)
            with pytest.raises(errors.TransientError, match=os.strerror(number)) as caught:
                get(storage, PATH, 10, 20)
        assert PATH in str(caught.value)
        assert caught.value.__cause__ is None
        assert _open_below(tmp_path) == []
        assert get(storage, PATH, 10, 20) == DATA[10:20]
        storage.close()
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    with pytest.raises(errors.TransientError, match="early"):
        get(storage, PATH, 10, 20)
    with pytest.raises(errors.StorageError) as beyond:
        get(storage, PATH, len(DATA), len(DATA) + 1)
    assert not isinstance(beyond.value, errors.TransientError)
    storage.close()


def test_errors_of_lists_and_unfinished_uploads_are_transient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = MountStorage(tmp_path)
    storage.create(PATH).checkpoint(b"note")
    [found] = storage.unfinished("records")
    for call in (partial(storage.files, "records"), found.checkpoints, found.remove):
        with monkeypatch.context() as broken:
            for module, name in ((os, "open"), (os, "scandir"), (os, "unlink"), (Path, "unlink")):
                fail_calls(broken, module, name, errno.ESTALE)
            with pytest.raises(errors.TransientError, match="records"):
                call()
    assert found.checkpoints() == [(0, b"note")]


@pytest.mark.parametrize("closing_fails", [False, True])
def test_a_mount_without_write_cache_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closing_fails: bool
) -> None:
    storage = MountStorage(tmp_path / "dataset")

    def ftruncate(fd: int, length: int) -> None:
        if closing_fails:
            os.close(fd)
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "ftruncate", ftruncate)
    with pytest.raises(errors.DestinationError, match=r"Operation not permitted.*write cache"):
        storage.create(PATH)
    assert list((tmp_path / "dataset").rglob("*")) == []


# A real mount


@pytest.fixture
def stored(azurite: Azurite, container: str) -> str:
    """A container with `DATA`."""
    azurite.put(container, f"dataset/{PATH}", DATA)
    return container


def test_a_mount_is_found_and_read_and_errors_suggest_a_url(
    azurite: Azurite, stored: str, mount: MakeMount
) -> None:
    mounted = mount(azurite, stored)
    found = open_storage(mounted.path / "dataset")
    assert isinstance(found, StorageWrapper)  # it retries requests
    assert isinstance(found.inner, MountStorage)
    storage = MountStorage(mounted.path / "dataset")
    assert get(storage, PATH) == DATA
    assert storage.local_path(PATH) is None
    for begin in (
        lambda: storage.create("records/new"),
        lambda: storage.put("manifest.json", b"{}", expected=None),
    ):
        with pytest.raises(errors.DestinationError, match=r"Read-only file system.*URL"):
            begin()
    assert storage.unfinished("records") == []
    storage.close()
    mounted = mount(azurite, stored, writable=True, options=("--vfs-cache-mode", "off"))
    with pytest.raises(errors.DestinationError, match=r"write cache.*URL"):
        MountStorage(mounted.path / "dataset").create("records/new")


def test_written_files_reach_the_container(
    azurite: Azurite, container: str, mount: MakeMount
) -> None:
    mounted = mount(azurite, container, writable=True)
    storage = MountStorage(mounted.path / "dataset")
    put(storage, PATH, DATA)
    storage.put("manifest.json", b"first", expected=None)
    _, tag = storage.read_whole("manifest.json", 100)
    storage.put("manifest.json", b"second", expected=tag)
    with pytest.raises(errors.ConflictError):
        storage.put("manifest.json", b"third", expected=tag)
    storage.close()

    from azure.core.exceptions import ResourceNotFoundError

    def stored() -> dict[str, bytes]:
        with azurite.client() as client:
            names = list(client.get_container_client(container).list_blob_names())
        found = {}
        for name in names:
            with contextlib.suppress(ResourceNotFoundError):  # renamed meanwhile
                found[name] = azurite.get(container, name)
        return found

    expected = {f"dataset/{PATH}": DATA, "dataset/manifest.json": b"second"}
    wait_for(lambda: stored() == expected)


LONG = np.random.default_rng(1).bytes(3_000_000)  # more than the kernel reads ahead


def test_errors_of_a_dead_mount_are_transient_until_its_restart(
    azurite: Azurite, container: str, mount: MakeMount
) -> None:
    azurite.put(container, PATH, LONG)
    mounted = mount(azurite, container)
    storage = MountStorage(mounted.path)
    assert get(storage, PATH, 0, 10) == LONG[:10]
    mounted.kill()
    with pytest.raises(errors.TransientError, match=r"00000-ab.*") as caught:
        get(storage, PATH, 2_000_000, 2_000_010)
    assert os.strerror(errno.ENOTCONN) in str(caught.value)
    with pytest.raises(errors.TransientError):
        storage.files("records")
    mounted.close()
    for action in (
        lambda: get(storage, PATH, 10, 20),
        lambda: storage.files("records"),  # not an empty list
        lambda: storage.unfinished("records"),
        lambda: storage.read_whole("manifest.json", 1000),
    ):
        with pytest.raises(errors.TransientError, match="mount is gone"):
            action()
    mounted.restart()
    assert get(storage, PATH, 2_000_000, 2_000_010) == LONG[2_000_000:2_000_010]
    storage.close()
