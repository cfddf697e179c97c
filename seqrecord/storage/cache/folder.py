"""The folder of a cache: what is in it, who may touch it when, and how it is put right.

::

    CACHEDIR.TAG        tells backup programs, and us, what the folder is
    lock                held by whoever reads the index (shared) or changes it (alone)
    index.sqlite        what is held and when it was used
    entries/<random>    a byte range of a stored file with its checksums
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from seqrecord.errors import LocationError
from seqrecord.storage.cache import forks
from seqrecord.storage.cache.index import CacheIndex

__all__ = ["CacheBusyError", "CacheFolder", "check_folder"]

_TAG = "CACHEDIR.TAG"
_TAG_TEXT = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"  # https://bford.info/cachedir/
    "# This folder is a cache of seqrecord: `seqrecord cache clear` empties it.\n"
)
_LOCK, _INDEX, _ENTRIES = "lock", "index.sqlite", "entries"
_JOURNAL = f"{_INDEX}-journal"
_NO_WAIT = fcntl.LOCK_NB

_PATIENCE_SECONDS = 2.0  # for a lock that another holds; all of them are held briefly
_FIRST_WAIT, _LONGEST_WAIT = 0.0005, 0.02
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


class CacheBusyError(OSError):
    """Somebody has held the cache for too long: it is passed by."""


class CacheFolder:
    """The cache in folder `path`, which is made when it is first used.

    Whoever wants the lock of the cache asks for it again and again, for `patience` seconds, and
    holds nothing meanwhile: a process that was stopped while it had the lock stops nobody else.

    Where the disk is read-only, so is the cache: what it holds can be read.

    Safe to use from many threads, processes, and after a fork. Methods raise `OSError` and
    `sqlite3.Error` when the disk fails, and `CacheBusyError`. An index that is damaged is replaced
    by an empty one.
    """

    def __init__(self, path: Path, *, patience: float | None = None) -> None:
        self.path = path
        self._patience = _PATIENCE_SECONDS if patience is None else patience
        self._index: CacheIndex | None = None
        self._lock_fd = -1
        self._inodes = (0, 0)  # of the lock and the index that are open
        self._is_clean = False
        self.is_read_only = False
        """Whether the cache, when it was opened last, could only be read."""
        # Of the threads of this process. Held while something is done, never while somebody waits;
        # reentrant, since garbage that is collected meanwhile may close the folder.
        self._threads = threading.RLock()
        forks.join(self)

    def __del__(self) -> None:
        self.close()

    @contextlib.contextmanager
    def session(self, *, exclusive: bool, patience: float | None = None) -> Iterator[CacheIndex]:
        """The index, under the lock of the cache: shared for reading, exclusive for a change.

        Raises `CacheBusyError` where the lock is not free for `patience` seconds, by itself the
        folder's, and `OSError` for a change of a cache that can only be read.
        """
        index = self._entered(exclusive, self._patience if patience is None else patience)
        with self._inside():
            yield index

    @contextlib.contextmanager
    def try_session(self) -> Iterator[CacheIndex | None]:
        """As `session(exclusive=True)`, but `None` where the cache is not open or not free."""
        index = None
        if self._index is not None and not self.is_read_only:
            with contextlib.suppress(CacheBusyError):
                index = self._entered(exclusive=True, patience=0)
        with self._inside() if index is not None else contextlib.nullcontext():
            yield index

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
        with self._threads:
            index, self._index = self._index, None
            fd, self._lock_fd = self._lock_fd, -1
            if index is not None:
                with contextlib.suppress(sqlite3.Error):
                    index.close()
            if fd >= 0:
                os.close(fd)  # and with it the lock

    # What a fork does with it; see `forks`.

    def hold(self, patience: float) -> bool:
        """Close the index and let no thread use it until `release`; false if it is in use."""
        if not self._threads.acquire(timeout=patience):
            return False
        self.close()
        return True

    def release(self) -> None:
        self._threads.release()

    def abandon(self) -> CacheIndex | None:
        """In a forked child: forget what the parent has open, and return it, not to be closed."""
        index, self._index = self._index, None
        fd, self._lock_fd = self._lock_fd, -1
        self._threads = threading.RLock()
        if fd >= 0:
            os.close(fd)  # the parent's lock stays
        return index

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        """Ends what `_entered` has begun."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if _is_damage(error):
                self._replace_index()
            else:  # it is full, or the disk fails
                self.close()
            raise
        finally:
            try:
                if self._lock_fd >= 0:
                    fcntl.flock(self._lock_fd, fcntl.LOCK_UN)
            finally:
                self._threads.release()

    def _entered(self, exclusive: bool, patience: float) -> CacheIndex:
        """The index, with its lock and that of the threads; waits for both without either."""
        end, wait = time.monotonic() + patience, _FIRST_WAIT
        while True:
            if self._threads.acquire(timeout=max(0.0, end - time.monotonic())):
                try:
                    index = self._try_locked(exclusive)
                except BaseException:
                    self._threads.release()
                    raise
                if index is not None:
                    return index
                self._threads.release()
            if time.monotonic() >= end:
                raise CacheBusyError(
                    errno.EWOULDBLOCK, "another process or thread holds its lock", str(self.path)
                )
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    def _try_locked(self, exclusive: bool) -> CacheIndex | None:
        """The index with its lock, or `None` where another has it."""
        index = self._index or self._try_open(exclusive)
        if index is None:
            return None
        self._check_writable(exclusive)
        if not self._try_lock(exclusive):
            return None
        if not self._is_current():
            self.close()  # somebody has removed the cache, or made the index anew
            return None
        if exclusive and not self._is_clean:
            self._clean(index)
        return index

    def _check_writable(self, exclusive: bool) -> None:
        if exclusive and self.is_read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self.path))

    def _try_lock(self, exclusive: bool) -> bool:
        try:
            fcntl.flock(self._lock_fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | _NO_WAIT)
        except BlockingIOError:
            return False
        return True

    def _try_open(self, exclusive: bool) -> CacheIndex | None:
        """Open the index, if its lock is free: that of others' reading, where there is a cache."""
        is_cache = check_folder(self.path)
        try:
            if not is_cache:
                for folder in (self.path, self.path / _ENTRIES):
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._lock_fd = os.open(self.path / _LOCK, flags, 0o600)
            self.is_read_only = False
        except OSError as error:
            if not is_cache or error.errno not in _READ_ONLY:
                raise
            self._lock_fd = os.open(self.path / _LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            self.is_read_only = True
        try:
            self._check_writable(exclusive)
            if not self.is_read_only and self._try_lock(exclusive=True):
                if not (self.path / _TAG).exists():
                    (self.path / _TAG).write_text(_TAG_TEXT, "ascii")
                self._index = self._open_index()
                self._clean(self._index)
            elif is_cache and not exclusive and self._try_lock(exclusive=False):
                self._is_clean = False
                self._index = self._connected()
        finally:
            if self._index is None:
                self.close()
        return self._index

    def _open_index(self) -> CacheIndex:
        """The index, or an empty one for one that is damaged. Under the exclusive lock."""
        (self.path / _INDEX).touch(mode=0o600)
        try:
            return self._connected()
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
        self._delete_all()
        (self.path / _INDEX).touch(mode=0o600)
        return self._connected()

    def _connected(self) -> CacheIndex:
        path = self.path / _INDEX
        index = CacheIndex(path, read_only=self.is_read_only)
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
            # If it is not replaced by another process already.
            if not self.is_read_only and self._try_lock(exclusive=True) and self._is_current():
                self._rebuild()
                return
        except (OSError, sqlite3.Error):
            pass
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
        self._is_clean = True

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
