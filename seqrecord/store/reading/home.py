"""The folder `SEQRECORD_HOME`: indexes of originals, and trusted lists of external files.

Users may share it, but never read files that another user could have written. A folder in it is
used only if it belongs to this user or root and nobody else can write it. Otherwise each user gets
a folder of their own: `NAME/UID`, else `NAME-UID`, else one in the user's cache folder or the
folder for temporary files.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from seqrecord.store.storage.local_upload import local_errors

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_logged: set[Path] = set()
_logger = logging.getLogger("seqrecord")


def home() -> Path:
    """Return this user's folder for indexes of originals and trusted lists.

    `SEQRECORD_HOME`, or `seqrecord` in the platform's cache folder.
    """
    folder = os.environ.get("SEQRECORD_HOME")
    return Path(folder).absolute() if folder else _user_cache()


def _user_cache() -> Path:
    import platformdirs  # optional for datasets of record files

    return Path(platformdirs.user_cache_dir("seqrecord", appauthor=False)).absolute()


def is_private(path: Path) -> bool:
    """Return whether a path exists, is this user's or root's, and only its owner can write it."""
    try:
        return not path.stat().st_mode & _OTHERS_WRITE and _is_own(path)
    except OSError:
        return False


def make_private(path: Path) -> None:
    """Remove other users' write permission from a file, or from a folder and all its files."""
    for file in (path, *path.rglob("*")):
        file.chmod(stat.S_IMODE(file.stat().st_mode) & ~_OTHERS_WRITE)


@contextmanager
def private_folder(name: str, prefix: str | None = None) -> Iterator[Path]:
    """Provide a private folder in `home`, created on demand. `OSError` becomes `StorageError`.

    With `prefix`, its files and folders with this prefix are private too.
    """
    with local_errors(str(home() / name), writing=True):
        yield _find_folder(name, prefix)


@contextmanager
def file_lock(path: Path, waiting: str) -> Iterator[None]:
    """Hold the lock of a file, which is created; logs `waiting` if another process has the lock."""
    with open(path, "a", opener=partial(os.open, mode=0o600)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _logger.warning("%s; waiting", waiting)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def trust(list_id: str) -> None:
    """Mark a list of external files as made by this user, so that its files may be opened."""
    if not is_trusted(list_id):
        with private_folder("trusted") as folder:
            (folder / list_id).unlink(missing_ok=True)  # may belong to another user
            (folder / list_id).touch(mode=0o600)


def is_trusted(list_id: str) -> bool:
    """Return whether this user, or root, has made the list."""
    return bool(_marks(list_id))


def is_settled(list_id: str) -> bool:
    """Return whether `settle` was called for a list that this user, or root, has made."""
    return any(mark.stat().st_size for mark in _marks(list_id))


def settle(list_id: str) -> None:
    """Note that a list's new files have been compared after they were no longer new."""
    for mark in _marks(list_id):
        with suppress(OSError):  # not writable: they are compared again
            mark.write_text("settled")


def _marks(list_id: str) -> list[Path]:
    folders = (home() / "trusted", *_user_folders("trusted"))
    return [
        folder / list_id for folder in folders if is_private(folder) and _is_own(folder / list_id)
    ]


def _is_own(path: Path) -> bool:
    try:
        return {path.stat().st_uid, path.lstat().st_uid} <= {os.geteuid(), 0}
    except OSError:
        return False


def _find_folder(name: str, prefix: str | None) -> Path:
    shared = home() / name
    try:
        _make(shared)
        if _is_usable(shared, prefix):
            return shared
    except PermissionError:
        pass
    for folder in _user_folders(name):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except PermissionError:
            continue
        if _is_usable(folder, None):
            if folder not in _logged:
                _logged.add(folder)
                _logger.warning("%s: other users can write it; using %s", shared, folder)
            return folder
    raise PermissionError(13, "cannot create a private folder here", str(shared))


def _user_folders(name: str) -> list[Path]:
    base, uid = home(), str(os.geteuid())
    temporary = Path(tempfile.gettempdir()) / f"seqrecord-{uid}"
    return [base / name / uid, base / f"{name}-{uid}", _user_cache() / name, temporary / name]


def _make(folder: Path) -> None:
    """Create a folder. It is writable by others if its parent is, with the sticky bit."""
    above = folder.parent
    if not above.is_dir():
        above.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not folder.is_dir():
        folder.mkdir(mode=0o700, exist_ok=True)
        mode = stat.S_IMODE(above.stat().st_mode)
        if mode & _OTHERS_WRITE:
            folder.chmod(mode | stat.S_ISVTX)


def _is_usable(folder: Path, prefix: str | None) -> bool:
    return (
        is_private(folder)
        and os.access(folder, os.W_OK | os.X_OK, effective_ids=True)
        and (prefix is None or all(map(is_private, folder.glob(f"{prefix}[.-]*"))))
    )
