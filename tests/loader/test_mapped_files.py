"""Files mapped side by side in one range of addresses."""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from seqrecord.errors import NotFoundError, StorageError
from seqrecord.loader.reading.mapped_files import (
    MAX_VERSION,
    MappedFiles,
    can_map,
    num_reserved_maps,
)
from tests.kit.processes import in_fork

SIZES = (10_000, 0, 4096, 123)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Files of random bytes."""
    paths = [tmp_path / str(number) for number in range(len(SIZES))]
    for number, (path, size) in enumerate(zip(paths, SIZES, strict=True)):
        path.write_bytes(np.random.default_rng(number).bytes(size))
    return paths


def mapped(paths: list[Path]) -> MappedFiles:
    files = MappedFiles.reserve([path.stat().st_size for path in paths], zero_bytes=5000)
    assert files is not None
    for number, path in enumerate(paths):
        files.map(number, path)
    return files


def content(files: MappedFiles, number: int, size: int) -> bytes:
    files.touch(number, 0, size)
    files.check(number, np.zeros(3, np.int64))
    place = int(files.places[number])
    return files.memory[place : place + size].tobytes()


def maps_of(folder: Path) -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text().count(str(folder))


def test_bytes_zeros_and_places(paths: list[Path]) -> None:
    files = mapped(paths)
    for number, path in enumerate(paths):
        assert content(files, number, SIZES[number]) == path.read_bytes()
    assert not files.memory[:5000].any()
    assert not files.memory.flags.writeable
    assert (files.places % 4096 == 0).all()


def test_no_descriptor_and_no_map_remains(paths: list[Path]) -> None:
    others = num_reserved_maps()
    before = len(list(Path("/proc/self/fd").iterdir()))
    files = mapped(paths)
    view = files.memory[int(files.places[0]) :][:100]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    del files
    assert maps_of(paths[0].parent) == 3  # of a view
    assert view.tobytes() == paths[0].read_bytes()[:100]
    del view
    assert maps_of(paths[0].parent) == 0
    assert num_reserved_maps() == others


def test_a_file_that_is_shorter(paths: list[Path]) -> None:
    files = MappedFiles.reserve([20_000, 0, 0, 0])
    assert files is not None
    with pytest.raises(StorageError, match=r"ended early.*20000 bytes.*got: 10000"):
        files.map(0, paths[0])
    assert not files.is_mapped(0)
    with pytest.raises(NotFoundError):
        files.map(0, paths[0].with_name("none"))


def test_a_file_that_becomes_shorter(paths: list[Path]) -> None:
    files, state = mapped(paths), np.zeros(3, np.int64)
    files.touch(0, 0, 10_000)
    os.truncate(paths[0], 5000)
    with pytest.raises(StorageError, match=r"ended early.*got: 5000"):
        files.check(0, state)
    files.check(2, state)
    with pytest.raises(StorageError, match="ended early"):
        files.touch(0, 8192, 10_000)
    assert content(files, 2, 4096) == paths[2].read_bytes()


def test_a_file_that_is_replaced_or_deleted_stays(paths: list[Path], tmp_path: Path) -> None:
    files = mapped(paths)
    old = [path.read_bytes() for path in paths]
    (tmp_path / "new").write_bytes(b"x")
    (tmp_path / "new").replace(paths[0])
    paths[2].unlink()
    state = np.zeros(3, np.int64)
    for number in (0, 2):
        # Nobody can ask these files any more.
        assert len({files.check(number, state) for _ in range(3)}) == 3
        assert content(files, number, SIZES[number]) == old[number]
    (tmp_path / "new").write_bytes(bytes(10_000))
    files.map(0, tmp_path / "new")  # a new version at the same place
    assert content(files, 0, 10_000) == bytes(10_000)


def write_in_place(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.write(data)


CHANGES: dict[str, Callable[[Path], object]] = {
    "written": lambda path: write_in_place(path, b"abc"),
    "written again": lambda path: path.write_bytes(path.read_bytes()),
    "linked": lambda path: path.with_name("link").hardlink_to(path),
    "permissions": lambda path: path.chmod(0o400),
    "an older time": lambda path: os.utime(path, ns=(1, 1)),
    "renamed": lambda path: path.rename(path.with_name("other")),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_may_have_been_written_to_has_a_new_version(
    paths: list[Path], name: str
) -> None:
    """Also one whose size and time of modification are kept, as `cp -p` and `rsync` do."""
    files, state, other = mapped(paths), np.zeros(3, np.int64), np.zeros(3, np.int64)
    before, status = files.check(0, state), paths[0].stat()
    assert before == files.check(0, state) == 1
    time.sleep(0.02)  # times have the resolution of the kernel's clock
    CHANGES[name](paths[0])
    if paths[0].exists():
        os.utime(paths[0], ns=(status.st_atime_ns, status.st_mtime_ns))
    assert files.check(0, state) == 2
    assert (files.check(0, state) == 2) == paths[0].exists()
    assert files.check(2, other) == files.check(2, other) == 1
    if name == "written":
        assert content(files, 0, 3) == b"abc"


def test_versions_of_a_file_never_end(paths: list[Path]) -> None:
    """A mount without stable times has a new one at each call; 0 is no version."""
    files, state = mapped(paths), np.zeros(3, np.int64)
    for _ in range(3):
        state[:] = 1, 1, MAX_VERSION - 1
        assert files.check(0, state) == MAX_VERSION
        state[0] = 1
        assert files.check(0, state) == 1


def test_unmapped_and_mapped_again(paths: list[Path]) -> None:
    files = mapped(paths)
    files.unmap(0)
    files.unmap(1)
    assert not files.is_mapped(0)
    assert maps_of(paths[0].parent) == 2
    files.map(0, paths[0])
    assert content(files, 0, 10_000) == paths[0].read_bytes()


def test_the_number_of_maps_is_limited(paths: list[Path]) -> None:
    limit = num_reserved_maps() + 10
    files = mapped(paths)  # at most ten
    assert MappedFiles.reserve([1], max_maps=limit) is None
    del files
    gc.collect()
    assert MappedFiles.reserve([1], max_maps=limit) is not None


def test_no_addresses() -> None:
    assert MappedFiles.reserve([1 << 62]) is None


def test_a_fork_has_maps_of_its_own(paths: list[Path]) -> None:
    files = mapped(paths)

    def child() -> bytes:
        data = content(files, 0, 10_000)
        files.unmap(0)
        return data

    assert in_fork(child) == paths[0].read_bytes()
    assert content(files, 0, 10_000) == paths[0].read_bytes()


def test_other_file_systems_are_not_mapped(paths: list[Path]) -> None:
    assert can_map(paths[0])
    assert can_map(paths[0].parent)
    assert not can_map(paths[0].with_name("none"))
    for kind, source in (("nfs4", "server:/"), ("fuse.sshfs", "host:"), ("9p", "host")):
        assert not can_map(paths[0], table=f"1 0 0:1 / / rw - {kind} {source} rw")
    assert can_map(paths[0], table="1 0 0:1 / / rw - ext4 /dev/sda rw")


def test_without_populate(paths: list[Path]) -> None:
    """Linux before 5.14: bytes are read, so that errors are raised."""
    files = MappedFiles.reserve(SIZES, populate=4242)
    assert files is not None
    files.map(0, paths[0])
    assert content(files, 0, 10_000) == paths[0].read_bytes()
    os.truncate(paths[0], 5000)
    with pytest.raises(StorageError, match="ended early"):
        files.touch(0, 0, 10_000)


def test_not_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    files = MappedFiles.reserve([1])
    assert files is not None
    with pytest.raises(StorageError, match="regular file"):
        files.map(0, tmp_path / "pipe")
    shutil.rmtree(tmp_path)
