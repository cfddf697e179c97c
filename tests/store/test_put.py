"""Small files of a local folder or mount, replaced atomically and conditionally."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from seqrecord.errors import ConflictError, NotFoundError, StorageError, TransientError
from seqrecord.store.storage.local import LocalStorage
from seqrecord.store.storage.local_replacing import put_file
from tests.kit.faults import fail_calls
from tests.kit.power_loss import Disk, Record
from tests.kit.processes import Fork, killed_at
from tests.store.storage_contract import StorageContract, mounted

PATH = "manifest.json"
OLD, NEW = b'{"old": 1}', b'{"new": 22}'

# Many of these tests fork.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_calls(monkeypatch, fcntl, "flock", errno.ENOLCK)


@pytest.fixture(params=["locks", "no locks"])
def disk(request: pytest.FixtureRequest) -> str:
    """Whether the disk supports locks."""
    if request.param == "no locks":
        request.getfixturevalue("no_locks")
    return str(request.param)


@pytest.fixture(params=[LocalStorage, mounted])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalStorage]:
    storage = request.param(tmp_path / "set")
    yield storage
    storage.close()


def content(storage: LocalStorage) -> bytes | None:
    return found(storage)[0]


def tag(storage: LocalStorage) -> str | None:
    return found(storage)[1]


def found(storage: LocalStorage) -> tuple[bytes, str] | tuple[None, None]:
    try:
        return storage.read_whole(PATH, 1000)
    except NotFoundError:
        return None, None


def names(storage: LocalStorage) -> list[str]:
    return sorted(path.name for path in storage.root.iterdir())


@pytest.mark.usefixtures("no_locks")
class TestWithoutLocks(StorageContract):
    make = staticmethod(LocalStorage)


@pytest.mark.slow
@pytest.mark.usefixtures("no_locks")
class TestMountWithoutLocks(StorageContract):
    make = staticmethod(mounted)


def test_a_put_succeeds_while_another_writer_checks_its_file(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer locks the file briefly to check whether it is abandoned."""
    storage.put(PATH, OLD, expected=None)
    real, checks = fcntl.flock, 0

    def flock(fd: int, operation: int) -> None:
        nonlocal checks
        name = Path(f"/proc/self/fd/{fd}").readlink().name
        if name.endswith(".next") and operation & fcntl.LOCK_EX and not checks:
            checks += 1
            raise BlockingIOError(errno.EWOULDBLOCK, "locked")
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    storage.put(PATH, NEW, expected=tag(storage))
    assert checks == 1
    assert content(storage) == NEW
    assert names(storage) == [PATH]


# Kills and power losses

CALLS = (
    *((os, name) for name in ("open", "write", "fsync", "listdir", "unlink", "close")),
    *((Path, name) for name in ("mkdir", "replace", "unlink", "rmdir")),
    (fcntl, "flock"),
)


def age(storage: LocalStorage) -> None:
    """Make the files beside the manifest an hour older."""
    for path in storage.root.iterdir():
        if path.name != PATH:
            os.utime(path, (path.stat().st_mtime - 3600,) * 2)


def detects_kills(storage: LocalStorage, disk: str) -> bool:
    """Whether killed and slow writers can be distinguished at once, not only after a minute."""
    return type(storage) is LocalStorage and disk == "locks"


@pytest.mark.parametrize("is_new", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_kill_leaves_the_old_or_the_new_file(
    storage: LocalStorage, disk: str, is_new: bool, thorough: bool
) -> None:
    seen, waits = set(), 0
    storage.root.mkdir()
    for number in range(0, 100, 1 if thorough else 5):
        storage.remove(PATH)
        if not is_new:
            storage.put(PATH, OLD, expected=None)
        expected = tag(storage)
        if not killed_at(number, partial(storage.put, PATH, NEW, expected=expected), CALLS):
            break
        seen.add(content(storage))
        if not detects_kills(storage, disk):
            try:
                put_file(storage.root / PATH, b"next", tag(storage), shared=True, patience=0.01)
            except TransientError:
                waits += 1
            age(storage)
        storage.put(PATH, b"last", expected=tag(storage))
        assert content(storage) == b"last"
        assert names(storage) == [PATH]
    assert number > 10
    assert seen == {None if is_new else OLD, NEW}
    assert (waits > 0) == (not detects_kills(storage, disk))


def test_a_stopped_writer_overwrites_nothing(
    storage: LocalStorage, disk: str, thorough: bool
) -> None:
    """Another writer waits for a while, or regards it as dead and continues."""
    waits = wins = 0
    storage.put(PATH, OLD, expected=None)
    for number in range(0, 100, 1 if thorough else 5):
        expected, mine = tag(storage), b"mine %d" % number
        put = partial(storage.put, PATH, NEW, expected=expected)
        writer = Fork(put, sign=signal.SIGSTOP, at=number, calls=CALLS)
        if not writer.is_stopped():
            break
        before = content(storage)
        if not detects_kills(storage, disk):
            age(storage)
        shared = type(storage) is not LocalStorage
        try:
            put_file(storage.root / PATH, mine, expected, shared=shared, patience=0.05)
            wins += 1
        except ConflictError:
            assert before == NEW
        except TransientError:
            waits += 1
        won = content(storage) == mine
        assert writer.proceed() == (1 if won else 0)
        assert content(storage) == (mine if won else NEW)
        storage.put(PATH, OLD, expected=tag(storage))
        assert names(storage) == [PATH]
    assert number > 10
    assert wins > 0
    assert (waits > 0) == (disk == "locks")


def test_at_most_one_of_two_stopped_writers_succeeds(
    tmp_path: Path, disk: str, thorough: bool
) -> None:
    """The second one regards the first as dead, if it can, and is stopped itself."""
    storage, stopped = LocalStorage(tmp_path), [0, 0]
    storage.put(PATH, OLD, expected=None)
    # The first stops before it opens its folder, creates its file, checks for others, or renames.
    seconds = range(12, 26, 1 if thorough else 5)
    firsts = (7, 9, 13, 16) if thorough else (9, 16)
    for first, second in itertools.product(firsts, seconds):
        writers, codes, expected = [], {}, tag(storage)
        for place, number in enumerate((first, second)):
            put = partial(
                put_file, tmp_path / PATH, b"%d" % place, expected, shared=False, patience=0.02
            )
            writers.append(Fork(put, sign=signal.SIGSTOP, at=number, calls=CALLS))
            if writers[-1].is_stopped():
                stopped[place] += 1
            else:
                codes[place] = writers[-1].wait()
            if disk == "no locks":
                age(storage)
        for place in {0, 1} - codes.keys():
            codes[place] = writers[place].proceed()
        won = [place for place, code in codes.items() if code == 0]
        assert len(won) < 2, (first, second)
        assert content(storage) == (b"%d" % won[0] if won else OLD), (first, second)
        storage.put(PATH, OLD, expected=tag(storage))
        assert names(storage) == [PATH]
    assert min(stopped) > (30 if thorough else 3)


@pytest.mark.usefixtures("disk")
@pytest.mark.parametrize("is_new", [True, False])
def test_a_power_loss_leaves_the_old_or_the_new_file(tmp_path: Path, is_new: bool) -> None:
    record, storage = Record(tmp_path), LocalStorage(tmp_path)
    with record.recording():
        if not is_new:
            storage.put(PATH, OLD, expected=None)
        begin = len(record.calls)
        storage.put(PATH, NEW, expected=tag(storage))
    for number, state in Disk.losses(record.calls, repeats=3):
        if number >= begin:
            valid = [NEW] if number == len(record.calls) else [None if is_new else OLD, NEW]
            assert state.get(PATH) in valid


# Disk errors


FAULTS: list[tuple[Any, str, int]] = [
    (os, "write", errno.ENOSPC),
    (os, "write", errno.EDQUOT),
    (os, "fsync", errno.EIO),
    (Path, "mkdir", errno.EDQUOT),
    (Path, "replace", errno.EIO),
    (os, "open", errno.EROFS),
]


@pytest.mark.usefixtures("disk")
def test_a_failed_put_leaves_the_old_file(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.root.mkdir()
    for (module, name, code), is_new in itertools.product(FAULTS, (True, False)):
        storage.remove(PATH)
        if not is_new:
            storage.put(PATH, OLD, expected=None)
        before, expected = found(storage)
        with monkeypatch.context() as patch:
            fail_calls(patch, module, name, code, flags=os.O_CREAT if name == "open" else 0)
            with pytest.raises(StorageError, match=r"manifest\.json") as caught:
                storage.put(PATH, NEW, expected=expected)
        assert os.strerror(code) in str(caught.value)
        assert not isinstance(caught.value, ConflictError)
        assert content(storage) == before
        assert names(storage) == ([] if is_new else [PATH])
        storage.put(PATH, NEW, expected=expected)
        assert content(storage) == NEW


@pytest.mark.parametrize("is_new", [True, False])
def test_a_folder_sync_that_fails(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """An error before any change, unless only the last sync fails."""
    storage.root.mkdir()
    if not is_new:
        storage.put(PATH, OLD, expected=None)
    (before, expected), real = found(storage), os.fsync
    for failing in (1, 2):
        syncs = 0

        def fsync(fd: int, failing: int = failing) -> None:
            nonlocal syncs
            syncs += Path(f"/proc/self/fd/{fd}").is_dir()
            if syncs >= failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(fd)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            with pytest.raises(StorageError, match=r"manifest\.json"):
                storage.put(PATH, NEW, expected=expected)
        assert content(storage) == (before if failing == 1 else NEW)
        assert names(storage) == ([PATH] if content(storage) else [])


# Hostile folders


def test_only_regular_files_are_read_or_replaced(storage: LocalStorage) -> None:
    storage.root.mkdir()
    (storage.root / "secret").write_bytes(b"secret")
    inside = type(storage)(storage.root / "inside")
    inside.root.mkdir()
    target = inside.root / PATH
    makes: list[Callable[[], object]] = [
        target.mkdir,
        lambda: os.mkfifo(target),
        lambda: target.symlink_to(storage.root / "secret"),
        lambda: target.symlink_to(storage.root / "nothing"),
    ]
    for make in makes:
        make()
        for use in (found, lambda inside: inside.put(PATH, NEW, expected=None)):
            with pytest.raises(StorageError, match=r"not a regular file|leads out"):
                use(inside)
        assert names(inside) == [PATH]
        target.rmdir() if target.is_dir() else target.unlink()
    assert (storage.root / "secret").read_bytes() == b"secret"
    inside.close()
    # Links in place of leftover files are not followed.
    storage.put(PATH, OLD, expected=None)
    expected = tag(storage)
    secret = storage.root.parent / "secret"
    secret.write_bytes(b"secret")
    (storage.root / f".{PATH}.abc.next").symlink_to(secret)
    (storage.root / f".{PATH}.{str(expected)[:16]}.next").symlink_to(secret)
    with pytest.raises(StorageError, match=r"manifest\.json"):
        storage.put(PATH, NEW, expected=expected)
    assert content(storage) == OLD
    assert secret.read_bytes() == b"secret"
    # Nor are folders of other programs removed.
    (storage.root / f".{PATH}.{str(expected)[:16]}.next").unlink()
    notes = [storage.root / f".{PATH}.{name}.next/plan.txt" for name in ("abcd", "0" * 16)]
    for each in notes:
        each.parent.mkdir()
        each.write_text("x")
        os.utime(each.parent, (0, 0))
    storage.put(PATH, NEW, expected=expected)
    assert [each.read_text() for each in notes] == ["x", "x"]
