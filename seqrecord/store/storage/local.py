"""Storage on local disks, and detection of remote mounts."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from seqrecord.errors import LocationError, NotFoundError, StorageError
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.storage.base import (
    LINKED,
    Entry,
    FileInfo,
    Storage,
    Unfinished,
    Upload,
    check_buffers,
    check_path,
    innermost,
)
from seqrecord.store.storage.local_replacing import put_file, read_file
from seqrecord.store.storage.local_upload import (
    NOTES,
    PARTIAL,
    LocalUpload,
    local_errors,
    make_folder,
    read_notes,
    with_suffix,
)
from seqrecord.store.storage.open_files import Handle, OpenFiles, with_descriptor
from seqrecord.store.storage.ranges import ByteRange
from seqrecord.store.text import repr_of

_MODIFIED = "mtime "
_NEW_NS = 2 * 10**9
_UPLOADED = re.compile(r"[0-9a-f]{16}.*\.(seqrec|arrow|json|left|clock)$")  # with a random id
_NO_FILE = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP}  # of names under which no file can be
_MAX_PARTS = 512  # buffers per read; the limit of Linux is 1,024


class LocalStorage:
    """Storage in a local folder.

    Files are read with `preadv` and kept open, see `open_files`. They are written under a temporary
    name, then synced and renamed. Links that point outside of the folder are not followed, and only
    regular files are opened. A root that is a link is followed once, at opening. See `follow_links`
    for original files.
    """

    has_conditions = True
    follows_links = False
    _shared = False  # whether other machines may write too

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()
        try:
            self._real_root = Path(os.path.realpath(self.root))
        except ValueError as error:
            raise LocationError(f"not a path: {error}", got=repr_of(str(root))) from error
        self._open_files = OpenFiles()
        self._uploads: weakref.WeakSet[LocalUpload] = weakref.WeakSet()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self.root),)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.root)!r})"

    @cached_property
    def url(self) -> str:
        return str(self.root)

    @property
    def place(self) -> str:
        return str(self.root)

    def size(self, path: str) -> int:
        return self._look(path)[1].st_size

    def identity(self, path: str) -> tuple[int, str | None]:
        """Size and modification time, and a hash of a linked file's place; see `identity_of`."""
        target, status = self._look(path)
        return status.st_size, self._identity(path, target, status)

    def entries(self, folder: str) -> list[Entry]:
        """See `Browsable`; without links, which may point outside of the folder."""
        listing = []
        try:
            target = self._resolve_path(folder) if folder else self._real_root
            with self._errors(folder), with_descriptor(lambda: os.scandir(target)) as children:
                for entry in children:
                    if entry.is_dir(follow_symlinks=False):
                        listing.append(Entry(entry.name, is_folder=True))
                    elif entry.is_file(follow_symlinks=False):
                        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                            status = entry.stat()
                            path = f"{folder}/{entry.name}".lstrip("/")
                            identity = self._identity(path, target / entry.name, status)
                            listing.append(Entry(entry.name, False, status.st_size, identity))
        except NotFoundError:
            return []
        return sorted(listing, key=lambda entry: entry.name)

    def _look(self, path: str) -> tuple[Path, os.stat_result]:
        self._drop(path)  # later reads must return this version or a newer one
        with self._errors(path):
            target = self._resolve_path(path)
            try:
                status = target.stat()
            except OSError as error:
                if error.errno in _NO_FILE:
                    problem = f"no such file: {error.strerror}"
                    raise NotFoundError(problem, file=self._url_of(path)) from error
                raise
            if not stat.S_ISREG(status.st_mode):
                raise LocationError("not a regular file", file=self._url_of(path))
            return target, status

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        check_buffers(ranges, buffers)
        with self._errors(path):
            handle = self._open_files.get(path, lambda: Handle(self._resolve_path(path)))
            fd, preadv, begin = handle.fd, os.preadv, 0
            while begin < len(ranges):
                # One call for adjacent ranges. Avoid further work: this runs for every few
                # kilobytes of a batch.
                start, stop = ranges[begin]
                end = begin + 1
                while end < len(ranges) and ranges[end][0] == stop and end - begin < _MAX_PARTS:
                    stop = ranges[end][1]
                    end += 1
                if preadv(fd, buffers[begin:end], start) != stop - start:
                    for item, buffer in zip(ranges[begin:end], buffers[begin:end], strict=True):
                        handle.read(item, buffer.cast("B"), self._url_of(path))
                begin = end

    def read_whole(self, path: str, limit: int) -> tuple[bytes, str]:
        with self._errors(path):
            return read_file(self._resolve_path(path), limit)

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        with self._errors(path, writing=True):
            target = self._resolve_path(path)
            make_folder(target.parent)
            put_file(target, data, expected, shared=self._shared)
        self._drop(path)
        with contextlib.suppress(OSError):  # the file was written
            self._tidy()

    def files(self, folder: str) -> list[FileInfo]:
        return self._infos(folder, lambda name: not name.endswith((PARTIAL, NOTES)))

    def unfinished(self, folder: str) -> list[Unfinished]:
        infos = self._infos(folder, lambda name: name.endswith(PARTIAL))
        return [_Unfinished(self, info.path.removesuffix(PARTIAL), info.modified) for info in infos]

    def create(self, path: str) -> Upload:
        with self._errors(path, writing=True):
            target = self._resolve_path(path)
            make_folder(target.parent)
            upload = LocalUpload(path, target)
        self._uploads.add(upload)
        return upload

    def remove(self, path: str) -> None:
        target = self._real_root / check_path(path)
        self._drop(path)
        with self._errors(path):
            for name in (with_suffix(target, NOTES), with_suffix(target, PARTIAL), target):
                name.unlink(missing_ok=True)

    def _tidy(self) -> None:
        """Remove notes that remain if a kill hits between the rename and their removal."""
        for notes in self._real_root.glob(f"[!.]*/*{NOTES}"):
            file = notes.with_suffix("")
            # A writer creates the notes after the partial file; a power loss may lose only that.
            if _UPLOADED.search(file.name) and not with_suffix(file, PARTIAL).exists():
                notes.unlink(missing_ok=True)

    def local_path(self, path: str) -> str | None:
        return str(self._resolve_path(path))

    def mapped_path(self, path: str) -> str | None:
        """See `mapped_path_of`."""
        # A subclass that counts, delays or decrypts reads must see each.
        reads_as_this = getattr(self.read_ranges, "__func__", None) is LocalStorage.read_ranges
        return self.local_path(path) if reads_as_this else None

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self._open_files.close()
        for upload in list(self._uploads):
            upload.abandon()

    def _infos(self, folder: str, is_included: Callable[[str], bool]) -> list[FileInfo]:
        infos = []
        try:
            target = self._resolve_path(folder)
            with self._errors(folder), with_descriptor(lambda: os.scandir(target)) as entries:
                for entry in entries:
                    if not entry.name.startswith(".") and is_included(entry.name):
                        path = f"{folder}/{entry.name}"
                        with contextlib.suppress(NotFoundError):  # removed meanwhile
                            with self._errors(path):
                                status = entry.stat()
                            if stat.S_ISREG(status.st_mode):
                                infos.append(FileInfo(path, status.st_size, status.st_mtime))
        except NotFoundError:
            return []
        return sorted(infos, key=lambda info: info.path)

    def _errors(
        self, path: str, *, writing: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Context manager: OS errors become errors of this package about `path`."""
        return local_errors(self._url_of(path), writing=writing)

    def _url_of(self, path: str) -> str:
        return f"{self.root}/{path}"

    def _drop(self, path: str) -> None:
        self._open_files.close(path)

    def _resolve_path(self, path: str) -> Path:
        """Local path of a file; the real path if `follows_links`.

        Without it, raises `StorageError` for a path outside of the root.
        """
        target = self._real_root
        for name in check_path(path).split("/"):
            target /= name
            # `Path.is_symlink` would raise here for a name longer than the file system takes.
            if os.path.islink(target):  # noqa: PTH114
                real = os.path.realpath(target)
                if self.follows_links:
                    target = Path(real)
                elif not Path(real).is_relative_to(self._real_root):
                    raise StorageError(
                        "a link leads out of the folder; copy the file in its place",
                        file=str(self.root / path),
                        expected=f"inside {self._real_root}",
                        got=real,
                    )
        return target

    def _identity(self, path: str, real: Path, status: os.stat_result) -> str:
        modified = f"{_MODIFIED}{status.st_mtime_ns}"
        if not self.follows_links or str(real) == f"{self.root}/{path}":
            return modified
        return f"{modified}{LINKED}{hashlib.sha256(os.fsencode(real)).hexdigest()[:16]}"


class _Unfinished:
    """An unfinished local upload; see `Unfinished`. Reads go through its storage."""

    def __init__(self, storage: LocalStorage, path: str, modified: float) -> None:
        self.path, self.modified = path, modified
        self._storage = storage
        self._notes, self._partial = (storage._real_root / (path + end) for end in (NOTES, PARTIAL))

    def checkpoints(self) -> list[tuple[int, bytes]]:
        # Notes first, because bytes are written before their note: a size from before could be
        # too small for it.
        with self._storage._errors(self.path + NOTES):
            notes = read_notes(self._notes)
        size = self._storage.size(self.path + PARTIAL)
        # After a machine crash, a note may refer to bytes that were not on disk yet.
        return [(end, note) for end, note in notes if end <= size]

    def read_ranges(self, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]) -> None:
        self._storage.read_ranges(self.path + PARTIAL, ranges, buffers)

    def remove(self) -> None:
        with self._storage._errors(self.path):
            self._notes.unlink(missing_ok=True)
            self._partial.unlink(missing_ok=True)


def modified_ns(identity: str | None) -> int | None:
    """Modification time of a local file in ns, by its identity; `None` for other storages."""
    if identity is None or not identity.startswith(_MODIFIED):
        return None
    return int(identity.split()[1])


def new_since(folder: str | os.PathLike[str]) -> int:
    """Modification time in ns from which files of a folder's disk are new.

    Another write to a new file may keep its modification time: disks round it. As in git, files are
    new for two seconds, by the clock of the disk, or of this machine if the disk cannot be written.
    """
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600)  # without a name
    except (AttributeError, OSError):  # not on Linux; a read-only disk
        return time.time_ns() - _NEW_NS
    try:
        return os.fstat(descriptor).st_mtime_ns - _NEW_NS
    finally:
        os.close(descriptor)


def follow_links(storage: Storage) -> None:
    """Follow links out of a local storage's folder, which then are part of files' identities.

    For originals that this user has indexed: trees of links (git-annex, DVC, the Hub's cache).
    """
    if isinstance(local := innermost(storage), LocalStorage):
        local.follows_links = True


def missing_folders(storage: Storage, folder: str) -> list[Path]:
    """Missing folders among `folder`, the storage's root and its parents, innermost first.

    Empty for a storage that is not local.
    """
    if (root := local_root(storage)) is None:
        return []
    return [p for p in (root / check_path(folder), root, *root.parents) if not p.exists()]


def local_root(storage: Storage) -> Path | None:
    """Folder of a local storage, inside any wrappers; else `None`."""
    local = innermost(storage)
    return local.root if isinstance(local, LocalStorage) else None


def remove_empty_folders(folders: Sequence[Path]) -> None:
    """Remove empty folders, innermost first; skips others."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


_TABLE = Path("/proc/self/mountinfo")

# Kernel filesystems served by another machine, or on a disk shared with one: their files may shrink
# or vanish without an action of this machine. Folders of a virtual machine's host are 9p (also in
# sandboxes), prl_fs, vboxsf, virtiofs and vmhgfs. cvfs is StorNext, dvs Cray, fhgfs the former name
# of beegfs, pvfs2 that of orangefs.
_NETWORK = """
    9p acfs afs auristorfs beegfs ceph cifs coda cvfs dvs fhgfs gfs2 glusterfs gpfs lustre ncp ncpfs
    nfs nfs4 ocfs2 orangefs panfs prl_fs pvfs2 smb3 smbfs vboxsf virtiofs vmhgfs wekafs
"""

# FUSE filesystems on local disks; any other FUSE filesystem counts as remote.
_LOCAL_FUSE = """
    archivemount bindfs cryfs encfs exfat ext2 fuse-ext2 fuse-overlayfs gocryptfs lxcfs mergerfs
    ntfs ntfs-3g portal securefs squashfuse unionfs unionfs-fuse zfs
"""


def find_remote_mount(path: str | os.PathLike[str], *, table: str | None = None) -> str | None:
    """Mount point of the remote filesystem that contains `path`; `None` if it is local.

    Network and cluster filesystems, folders of a virtual machine's host, and FUSE filesystems count
    as remote, except FUSE filesystems known to be on local disks. Returns `None` if the OS has no
    mount table. `path` need not exist. `table` replaces the text of /proc/self/mountinfo, see
    proc(5).
    """
    if table is None:
        try:
            table = _TABLE.read_text("utf-8", "surrogateescape")
        except OSError:
            return None
    real = os.path.realpath(path)
    mount_point, is_remote = "", False
    for line in table.split("\n"):  # not `splitlines`: names may contain other line ends
        mount, _, filesystem = line.partition(" - ")
        columns, kinds = mount.split(" "), filesystem.split(" ")
        if len(columns) < 5:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), columns[4])
        is_below = real == point or real.startswith(point.rstrip("/") + "/")
        # The later mount at the same point hides the earlier one.
        if is_below and len(point) >= len(mount_point):
            mount_point, is_remote = point, _is_remote(*kinds[:2])
    return mount_point if is_remote else None


def _is_remote(kind: str, source: str = "") -> bool:
    family, _, name = kind.partition(".")
    if family == "fuse":
        program = source.rpartition("/")[2].partition("#")[0]  # if the type has no name
        return not {name, program}.intersection(_LOCAL_FUSE.split())
    return kind in _NETWORK.split()
