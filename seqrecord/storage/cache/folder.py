"""The folder of a cache: what is in it, who may touch it when, and how it is put right.

::

    CACHEDIR.TAG        tells backup programs, and us, what the folder is
    lock                held by whoever reads the index (shared) or changes it (alone)
    index.sqlite        what is held and when it was used
    entries/<random>    a byte range of a stored file with its checksums
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from seqrecord.errors import LocationError
from seqrecord.storage.cache.index import CacheIndex

__all__ = ["CacheFolder", "check_folder"]

_TAG = "CACHEDIR.TAG"
_TAG_TEXT = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"  # https://bford.info/cachedir/
    "# This folder is a cache of seqrecord: `seqrecord cache clear` empties it.\n"
)
_LOCK, _INDEX, _ENTRIES = "lock", "index.sqlite", "entries"
_JOURNAL = f"{_INDEX}-journal"

# One for all, so that a fork can wait until no thread holds it: no connection of SQLite, and no
# lock of a file, may be carried into a child. Reentrant, since garbage that is collected while it
# is held may close a folder.
_lock = threading.RLock()
_opened: weakref.WeakSet[CacheFolder] = weakref.WeakSet()


def _before_fork() -> None:
    _lock.acquire()
    for folder in list(_opened):
        folder.close()


os.register_at_fork(
    before=_before_fork, after_in_parent=_lock.release, after_in_child=_lock.release
)


class CacheFolder:
    """The cache in folder `path`, which is made when it is first used.

    Safe to use from many threads, processes, and after a fork. Methods raise `OSError` and
    `sqlite3.Error` when the disk fails. An index that is damaged is replaced by an empty one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._index: CacheIndex | None = None
        self._lock_fd = -1
        self._inodes = (0, 0)  # of the lock and the index that are open

    def __del__(self) -> None:
        self.close()

    @contextlib.contextmanager
    def session(self, *, exclusive: bool) -> Iterator[CacheIndex]:
        """The index, under the lock of the cache: shared for reading, exclusive for a change."""
        with _lock:
            index = self._locked(exclusive)
            try:
                yield index
            except sqlite3.DatabaseError as error:
                if _is_damage(error):
                    self._replace_index()
                else:  # it is full, or the disk fails
                    self.close()
                raise
            finally:
                if self._lock_fd >= 0:
                    fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def try_session(self) -> Iterator[CacheIndex | None]:
        """As `session(exclusive=True)`, but `None` where the cache is not open or not free."""
        with _lock:
            index = self._index
            if index is not None:
                try:
                    fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    index = None
            try:
                yield index
            finally:
                if index is not None:
                    fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    def clear(self) -> None:
        """Remove everything that is held."""
        with self.session(exclusive=True):
            self._rebuild()

    def create(self) -> tuple[str, int]:
        """A new file for an entry, as its name and a descriptor. Within an exclusive session.

        Its writer's lock on it tells others that it is being written; it ends with the descriptor.
        """
        name = secrets.token_hex(12)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._file(name), flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        return name, fd

    def open_entry(self, name: str) -> int:
        """A descriptor to read an entry's file with. `FileNotFoundError` if it has gone."""
        return os.open(self._file(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def unlink(self, name: str) -> None:
        """Remove an entry's file, if it is there."""
        self._file(name).unlink(missing_ok=True)

    def is_abandoned(self, name: str) -> bool:
        """Whether the process that wrote an entry has ended. Within an exclusive session."""
        try:
            fd = self.open_entry(name)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        return True

    def own_bytes(self) -> int:
        """Bytes on disk of all that is no entry. Within a session."""
        assert self._index is not None
        # A change may copy all of the index to its journal.
        return 2 * self._index.own_bytes() + (self.path / _ENTRIES).stat().st_blocks * 512

    def close(self) -> None:
        """Close the index; it is opened again when it is needed."""
        with _lock:
            index, self._index = self._index, None
            fd, self._lock_fd = self._lock_fd, -1
            if index is not None:
                with contextlib.suppress(sqlite3.Error):
                    index.close()
            if fd >= 0:
                os.close(fd)  # and with it the lock

    def _locked(self, exclusive: bool) -> CacheIndex:
        while True:
            index = self._index or self._open()
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            if self._is_current():
                return index
            self.close()  # somebody has removed the cache, or made the index anew

    def _open(self) -> CacheIndex:
        check_folder(self.path)
        for folder in (self.path, self.path / _ENTRIES):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._lock_fd = os.open(self.path / _LOCK, flags, 0o600)
        _opened.add(self)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
            if not (self.path / _TAG).exists():
                (self.path / _TAG).write_text(_TAG_TEXT, "ascii")
            self._index = self._open_index()
            self._clean(self._index)
        except BaseException:
            self.close()
            raise
        return self._index

    def _open_index(self) -> CacheIndex:
        path = self.path / _INDEX
        path.touch(mode=0o600)
        try:
            index = CacheIndex(path)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            self._delete_all()
            path.touch(mode=0o600)
            index = CacheIndex(path)
        self._inodes = (os.fstat(self._lock_fd).st_ino, path.stat().st_ino)
        return index

    def _is_current(self) -> bool:
        try:
            there = ((self.path / _LOCK).stat().st_ino, (self.path / _INDEX).stat().st_ino)
        except OSError:
            return False
        return there == self._inodes

    def _replace_index(self) -> None:
        """Put an empty index in the place of a damaged one; failing that, close it."""
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
            if self._is_current():  # and not replaced by another process already
                self._rebuild()
        except (OSError, sqlite3.Error):
            self.close()

    def _rebuild(self) -> None:
        index, self._index = self._index, None
        if index is not None:
            index.close()
        self._delete_all()
        self._index = self._open_index()

    def _delete_all(self) -> None:
        for name in (_INDEX, _JOURNAL):
            (self.path / name).unlink(missing_ok=True)
        for name in _names(self.path / _ENTRIES):
            self.unlink(name)

    def _clean(self, index: CacheIndex) -> None:
        """Drop what a kill or a crash has left: entries without a file, and the other way round."""
        there = _names(self.path / _ENTRIES)
        known = index.names()
        with index.transaction():
            index.remove(known[name] for name in known.keys() - there)
            left = [entry for entry in index.being_written() if self.is_abandoned(entry.name)]
            for entry in left:
                self.unlink(entry.name)
            index.remove(entry.id for entry in left)
            index.forget_files()
        for name in there - known.keys():
            if self.is_abandoned(name):
                self.unlink(name)

    def _file(self, name: str) -> Path:
        return self.path / _ENTRIES / name


def check_folder(path: Path) -> bool:
    """Whether a folder is a cache; `LocationError` if it is neither that nor empty."""
    try:
        names = _names(path)
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        raise LocationError("the cache's folder is a file", file=str(path)) from None
    except OSError:
        return False  # found out, and counted, when it is used
    # `lost+found` is what a disk brings with it.
    other = names - {_TAG, _LOCK, _INDEX, _JOURNAL, _ENTRIES, "lost+found"}
    is_cache = {_TAG, _LOCK, _INDEX} <= names
    if other and not is_cache:
        raise LocationError(
            "not a folder for a cache: something else is in it",
            file=str(path),
            expected="an empty folder, or one that is not there yet",
            got=repr(min(other))[:200],
        )
    return is_cache


def _is_damage(error: sqlite3.Error) -> bool:
    """Whether an error says that the index is damaged, and not that something else failed."""
    return type(error) is sqlite3.DatabaseError


def _names(path: Path) -> set[str]:
    with os.scandir(path) as entries:
        return {entry.name for entry in entries}
