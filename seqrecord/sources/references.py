"""Files of originals to which pages of a dataset may refer: where they lie, what they are now."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from seqrecord.checksum import crc32c
from seqrecord.errors import SourceError
from seqrecord.format.references import ExternalFile
from seqrecord.sources.files import opened
from seqrecord.sources.remote import remote_files
from seqrecord.storage import LocalStorage, Storage, fixed_url_of, identity_of, map_files

__all__ = ["checksum_of", "external_files", "identity_of_files"]


def external_files(root: Path, paths: Iterable[Path]) -> dict[str, ExternalFile]:
    """What a page needs to refer to these files of an original at `root`, by the text of a path.

    A link is followed: then the file is one below the folder that it leads to. So are the files of
    the Hub's local snapshots. Raises `NotFoundError` for a file that is not there.
    """
    wanted = list(dict.fromkeys(paths))
    remote = remote_files(root)
    if remote is not None:
        return _listed(remote.storage, {str(path): remote.name_of(path) for path in wanted})
    real_root = os.path.realpath(root if root.is_dir() else root.parent)
    by_root: dict[str, dict[str, str]] = {}
    for path in wanted:
        real = os.path.realpath(path)
        inside = os.path.commonpath([real, real_root]) == real_root
        folder = real_root if inside else os.path.dirname(real)  # noqa: PTH120 - resolved above
        by_root.setdefault(folder, {})[str(path)] = os.path.relpath(real, folder)
    found: dict[str, ExternalFile] = {}
    for folder, names in by_root.items():
        found |= _listed(LocalStorage(folder), names)
    return found


def identity_of_files(root: Path, paths: Iterable[Path]) -> str:
    """Text that changes when one of these files does, or is not among them any more; and with the
    commit, of what lies on the Hub."""
    files = external_files(root, paths)
    facts = sorted((p, file.root, file.size, file.identity or "") for p, file in files.items())
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def checksum_of(file: str, start: int, stop: int) -> int:
    """The CRC32C of the bytes `[start, stop)` of a file; 1 in place of 0, which stands for none.

    Raises `SourceError` for a file that is shorter.
    """
    with opened(Path(file)) as stream:
        stream.seek(start)
        data = stream.read(stop - start)
        if len(data) != stop - start:
            expected = f"{stop - start} bytes"
            raise SourceError("a file that is cut short", offset=start, expected=expected)
    return crc32c(data) or 1


def _listed(storage: Storage, names: dict[str, str]) -> dict[str, ExternalFile]:
    told = map_files(storage, lambda name: identity_of(storage, name), set(names.values()))
    root = fixed_url_of(storage)
    return {path: ExternalFile(root, name, *told[name]) for path, name in names.items()}
