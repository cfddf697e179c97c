"""Folders that are still there after a loss of power: a name is safe when its folder is synced."""

from __future__ import annotations

import errno
import os
from pathlib import Path

__all__ = ["make_folder", "sync_folder"]


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are not there; their names are on disk then."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some mounts cannot sync a folder; they make renames durable on their own.
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(fd)
