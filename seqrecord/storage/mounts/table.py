"""Which folders are mounts of remote storage: the kernel's table of mounts, read."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["find_remote_mount"]

_TABLE = Path("/proc/self/mountinfo")

# Filesystems of the kernel that another machine serves, or shares the disk with: what they hold
# may shrink or go without this machine's doing. Folders of a virtual machine's host are 9p (in
# sandboxes too), prl_fs, vboxsf, virtiofs and vmhgfs; cvfs is StorNext's, dvs Cray's, fhgfs was
# BeeGFS's, pvfs2 OrangeFS's.
_NETWORK = """
    9p acfs afs auristorfs beegfs ceph cifs coda cvfs dvs fhgfs gfs2 glusterfs gpfs lustre ncp ncpfs
    nfs nfs4 ocfs2 orangefs panfs prl_fs pvfs2 smb3 smbfs vboxsf virtiofs vmhgfs wekafs
"""

# FUSE filesystems over local disks; any other one is taken for remote.
_LOCAL_FUSE = """
    archivemount bindfs cryfs encfs exfat ext2 fuse-ext2 fuse-overlayfs gocryptfs lxcfs mergerfs
    ntfs ntfs-3g portal securefs squashfuse unionfs unionfs-fuse zfs
"""


def find_remote_mount(path: str | os.PathLike[str], *, table: str | None = None) -> str | None:
    """The mount point above `path` of a filesystem that is likely to fetch what it is asked for.

    Such are network and cluster filesystems, folders of a virtual machine's host, and FUSE
    filesystems, but for those that are known to be over a local disk.
    `None` for any other, and where the system has no such table. `path` need not exist. `table` is
    the text to look in, as proc(5) has it under mountinfo, by itself the one of this process.
    """
    if table is None:
        try:
            table = _TABLE.read_text("utf-8", "surrogateescape")
        except OSError:
            return None
    real = os.path.realpath(path)
    found, is_remote = "", False
    for line in table.split("\n"):  # other ends of lines may be in names
        left, _, right = line.partition(" - ")
        columns, kinds = left.split(" "), right.split(" ")
        if len(columns) < 5:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), columns[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        # Of two mounts at one place the later is what one sees.
        if inside and len(point) >= len(found):
            found, is_remote = point, _is_remote(*kinds[:2])
    return found if is_remote else None


def _is_remote(kind: str, source: str = "") -> bool:
    family, _, name = kind.partition(".")
    if family == "fuse":
        program = source.rpartition("/")[2].partition("#")[0]  # where the type has no name
        return not {name, program}.intersection(_LOCAL_FUSE.split())
    return kind in _NETWORK.split()
