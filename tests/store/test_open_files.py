"""Open files: few at a time, whatever the limit on descriptors and the number of datasets."""

from __future__ import annotations

import gc
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import SeqRecordIterableDataset, SeqRecordMix
from seqrecord.cloud.cache import CachedStorage
from seqrecord.errors import StorageError
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.local import LocalStorage
from tests.kit.datasets import columns, write_dataset
from tests.kit.processes import in_fork
from tests.kit.video_file_data import pictures, write_video
from tests.store.storage_contract import get, mounted


@contextmanager
def limit(descriptors: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def few_free(descriptors: int) -> Iterator[None]:
    """Leaves this many descriptors free."""
    with ExitStack() as stack:
        stack.enter_context(limit(512))
        used: list[Any] = []
        with suppress(OSError):
            while True:
                used.append(stack.enter_context(open(os.devnull, "rb")))  # noqa: PTH123
        for file in used[-descriptors:]:
            file.close()
        yield


def open_below(folder: Path) -> list[str]:
    gc.collect()
    links = [os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()]
    return [link for link in links if link.startswith(str(folder))]


def limit_with_headroom(descriptors: int) -> int:
    """A limit with this many descriptors, at least, for a cache that may open half of the limit.

    Earlier tests of this process leave descriptors open: the cache opens fewer files if others use
    most of the limit.
    """
    return descriptors + 4 * len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, list[str]]:
    """A folder of files, more than any limit here allows, each with its number as text."""
    (tmp_path / "files").mkdir()
    names = [f"{number:04}" for number in range(limit_with_headroom(400))]
    for name in names:
        (tmp_path / "files" / name).write_text(name)
    return tmp_path / "files", names


def check_all(storage: Storage, names: list[str]) -> None:
    assert [get(storage, name, 0, 4) for name in names] == [name.encode() for name in names]


def packed(folder: Path) -> Path:
    frames = columns(image=[np.full((8, 8, 3), step, np.uint8) for step in range(6)])
    episodes = dict.fromkeys(map(str, range(30)), frames)
    write_dataset(folder, episodes, max_file_size="1KiB", chunk_frames=6)
    return folder


def in_place(folder: Path) -> Path:
    folder.mkdir(parents=True)
    first = write_video(folder / "first.mp4", pictures(6))
    for number in range(12):
        (folder / f"{number:02}.mp4").write_bytes(first.read_bytes())
    return folder


@pytest.mark.parametrize(("make", "is_mount"), [(packed, False), (packed, True), (in_place, False)])
def test_a_mix_has_fewer_open_files_than_its_sources(
    make: Callable[[Path], Path], is_mount: bool, tmp_path: Path, home: Path
) -> None:
    options: dict[str, Any] = {"storage_options": {"mount": True}} if is_mount else {}
    made = make(tmp_path / "data/0")
    copies = [shutil.copytree(made, tmp_path / f"data/{i}") for i in range(1, 4)]
    datasets = [seqrecord.open(folder, **options) for folder in (made, *copies)]
    sources = {
        str(i): SeqRecordIterableDataset(data, clip_len=2) for i, data in enumerate(datasets)
    }
    mix = SeqRecordMix(sources, batch_size=4)
    most = 80 + len(list(Path("/proc/self/fd").iterdir()))  # files open from earlier tests
    with limit(most):
        for epoch in range(2):
            mix.set_epoch(epoch)
            assert len(list(mix)) > 10
            assert len(open_below(tmp_path / "data")) <= most // 2


STORAGES: list[Callable[[Path], Storage]] = [LocalStorage, mounted]


@pytest.mark.parametrize("make", STORAGES)
def test_few_files_are_open(make: Callable[[Path], Storage], files: tuple[Path, list[str]]) -> None:
    folder, names = files
    most, fewer = limit_with_headroom(100), limit_with_headroom(60)
    storages = [make(folder) for _ in range(3)]
    with limit(most):  # of all storages together
        for storage in storages:
            check_all(storage, names)
        assert 10 < len(open_below(folder)) <= most // 2
    with limit(fewer):  # a changed limit applies from the next open
        check_all(storages[0], names[:1])
        assert len(open_below(folder)) <= fewer // 2
        if make is LocalStorage:  # a mount reopens a file to read its start again
            (folder / "0000").unlink()
        for name in names[1:]:  # the least recently used file is closed
            check_all(storages[0], ["0000", name])
        assert str(folder / "0001") not in open_below(folder)
    for storage in storages:
        storage.close()
    assert open_below(folder) == []
    dropped = make(folder)
    with few_free(20):  # other code uses the rest; the limit is far away
        check_all(dropped, names[1:])
    assert open_below(folder) != []
    del dropped, storage
    storages.clear()
    assert open_below(folder) == []


def test_a_garbage_collection_closes_files_while_others_are_closed(
    files: tuple[Path, list[str]],
) -> None:
    """A storage in a reference cycle, at each allocation during the close (Python 3.10, 3.11)."""
    folder, names = files
    before = gc.get_threshold()
    for allocations in range(1, 9):
        dropped, storage = LocalStorage(folder), LocalStorage(folder)
        for each in (dropped, storage):
            check_all(each, names[:20])
        gc.collect()  # so that only young objects count
        cycle: list[Any] = [dropped]
        cycle.append(cycle)
        del dropped, each, cycle
        gc.set_threshold(allocations)
        try:
            storage.close()
        finally:
            gc.set_threshold(*before)
    assert open_below(folder) == []


def test_descriptors_for_others(files: tuple[Path, list[str]]) -> None:
    """Imports, sockets and workers' shared memory cannot request descriptors back."""
    folder, names = files
    storage = LocalStorage(folder)
    for free in (80, 200):
        with few_free(free), ExitStack() as others:
            check_all(storage, names)
            for _ in range(min(free - 2, 120)):
                others.enter_context((folder / "0000").open("rb"))
    storage.close()
    with few_free(1):
        taken = os.open(os.devnull, os.O_RDONLY)
        with pytest.raises(StorageError, match=r"too many open files.*ulimit -n.*0001"):
            get(storage, "0001", 0, 4)
        os.close(taken)
        check_all(storage, ["0001"])


def test_other_opens_get_the_descriptors_of_open_files(
    files: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, names = files
    storage, other = LocalStorage(folder), LocalStorage(tmp_path / "other")
    with few_free(8):
        check_all(storage, names)
        other.put("small", b"data", expected=None)
        check_all(storage, names)
        upload = other.create("records/large")
        check_all(storage, names)
        upload.write(b"bytes")
        upload.commit()
        check_all(storage, names)
        assert [each.path for each in other.files("records")] == ["records/large"]
        check_all(storage, names)
        cached = CachedStorage(storage, tmp_path / "cache", "2MiB")
        for _ in range(2):
            check_all(cached, names)
        dataset = seqrecord.open(packed(tmp_path / "packed"))
        check_all(storage, names)
        assert dataset.episodes["7"][5]["image"][0, 0, 0] == 5
    for each in (storage, other, dataset):
        each.close()
    assert open_below(tmp_path) == []


def test_a_file_is_not_closed_under_a_reader(files: tuple[Path, list[str]]) -> None:
    folder, names = files
    storage = LocalStorage(folder)
    with limit(limit_with_headroom(70)), ThreadPoolExecutor(4) as pool:
        shares = [names[i::4] * 2 for i in range(4)] * 5
        for future in [pool.submit(check_all, storage, mine) for mine in shares]:
            future.result()
    storage.close()
    assert open_below(folder) == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_closes_only_its_own(files: tuple[Path, list[str]]) -> None:
    folder, names = files
    storage = LocalStorage(folder)
    check_all(storage, names[:20])
    before = sorted(open_below(folder))

    def open_after_close() -> list[str]:
        with limit(limit_with_headroom(40)):
            check_all(storage, names)
            storage.close()
            return open_below(folder)

    assert in_fork(open_after_close) == []
    assert sorted(open_below(folder)) == before
    check_all(storage, names[:20])
    storage.close()
