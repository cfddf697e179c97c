"""Files of originals to which pages of a dataset may refer: where they lie, what they are now."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from seqrecord.checksum import crc32c
from seqrecord.errors import LocationError, SourceError, located
from seqrecord.format.references import (
    SAMPLED_FILES,
    ExternalFile,
    FolderFile,
    ReferencedFile,
    sampled_ranges,
)
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.sources.common.files import list_folder, opened
from seqrecord.sources.common.remote import RemoteFiles, remote_files
from seqrecord.storage import (
    LocalStorage,
    Storage,
    entries_of,
    fixed_url_of,
    identity_of,
    map_files,
    reads_commit,
)
from seqrecord.storage.base import check_path

_FRAME_ENDINGS = (".png", ".jpg", ".jpeg", ".npy")

MOST_COPIED = 64 << 10
"""Bytes of a frame of one feature that an index copies."""


def external_files(root: Path, paths: Iterable[Path]) -> dict[str, ExternalFile]:
    """What a page needs to refer to these files of an original at `root`, by the text of a path.

    A link is followed: then the file is one below the folder that it leads to. So are the files of
    the Hub's local snapshots. Raises `NotFoundError` for a file that is not there.
    """
    wanted = list(dict.fromkeys(paths))
    remote = remote_files(root)
    if remote is not None:
        named = {str(path): remote.name_of(path) for path in wanted}
        told, url = _told(remote.storage, named.values(), remote), fixed_url_of(remote.storage)
        return {path: ExternalFile(url, name, *told[name]) for path, name in named.items()}
    real_root = os.path.realpath(root if root.is_dir() else root.parent)
    root_of = lru_cache(maxsize=None)(partial(_root_of, real_root))
    by_root: dict[str, dict[str, str]] = {}
    for path in wanted:
        real = Path(os.path.realpath(path)) if path.is_symlink() else path
        folder, above = root_of(real.parent)
        by_root.setdefault(folder, {})[str(path)] = above + real.name
    found: dict[str, ExternalFile] = {}
    for folder, names in by_root.items():
        told = _told(LocalStorage(folder), names.values())
        found |= {path: ExternalFile(folder, name, *told[name]) for path, name in names.items()}
    return found


def copied_files(source: Any) -> dict[str, ExternalFile]:
    """The files from which an index of a source copies values, as `external_files` gives them.

    A source without a method `copied_files` copies from the files that it refers to.
    """
    copied = getattr(source, "copied_files", None)
    files: dict[str, ExternalFile] = source.external_files() if copied is None else copied()
    return {name: file for name, file in files.items() if file.size}


def samples_of(files: Mapping[str, ExternalFile]) -> dict[str, list[tuple[str, int, int]]]:
    """Samples of `SAMPLED_FILES` files of each root, or of all, evenly spaced: the name of a file
    in a folder, size and CRC32C, by the names that a source has for files and folders. Files of the
    Hub need none."""
    by_root: dict[str, list[str]] = {}
    for name, file in files.items():
        by_root.setdefault(file.root, []).append(name)
    found: dict[str, list[tuple[str, int, int]]] = {}
    for names in by_root.values():
        remote = remote_files(Path(names[0]))
        if remote is not None and reads_commit(remote.storage):
            continue
        some = _spaced(names, SAMPLED_FILES)
        for name in some:
            inside: Sequence[str] = [""]
            if not files[name].size:
                every = sorted(n for n, is_folder in list_folder(Path(name)) if not is_folder)
                frames = [n for n in every if Path(n).suffix.lower() in _FRAME_ENDINGS]
                inside = _spaced(frames, -(-SAMPLED_FILES // len(some)))
            found[name] = [_sample(Path(name), each) for each in inside]
    return found


def _spaced(names: Sequence[str], count: int) -> Sequence[str]:
    """At most so many names, evenly spaced."""
    count = min(count, len(names))
    return [names[len(names) * i // count] for i in range(count)]


def _sample(path: Path, inside: str) -> tuple[str, int, int]:
    with opened(path / inside) as stream:
        size, value = stream.seek(0, os.SEEK_END), 0
        for start, stop in sampled_ranges(size):
            stream.seek(start)
            value = crc32c(stream.read(stop - start), start=value)
    return inside, size, value


def external_folders(root: Path, folders: Iterable[Path]) -> dict[str, ExternalFile]:
    """What a page needs to refer to whole files in these folders of an original at `root`, by the
    names that `place_of` gives folders.

    Links among the files are followed: the folders that they lead to are there too.
    """
    remote = remote_files(root)
    if remote is not None:
        named = {str(path): remote.name_of(path) for path in folders}
        url = fixed_url_of(remote.storage)
        return {path: ExternalFile(url, name, 0) for path, name in named.items()}
    real_root = os.path.realpath(root)
    found: dict[str, ExternalFile] = {}
    for path in folders:
        with os.scandir(path) as entries:
            links = [entry.path for entry in entries if entry.is_symlink()]
        reals = (
            os.path.realpath(path),
            *(str(Path(os.path.realpath(each)).parent) for each in links),
        )
        for real in reals:
            if real == real_root or not _is_inside(real, real_root):
                found[real] = ExternalFile(real, "", 0)
            else:
                found[real] = ExternalFile(real_root, os.path.relpath(real, real_root), 0)
    return found


def place_of(file: ReferencedFile) -> tuple[str, str]:
    """The external file or folder that a frame lies in, and its name in a folder."""
    if file.stop is not None:
        return file.file, ""
    path = Path(file.file)
    if remote_files(path) is not None:
        return str(path.parent), path.name
    if path.is_symlink():
        path = Path(os.path.realpath(path))
        return str(path.parent), path.name
    return _real_folder(str(path.parent)), path.name


def parts_of(folder: str, names: Sequence[str]) -> tuple[list[int], list[FolderFile]]:
    """The sizes of files in a folder that `place_of` gave, and what pages say of them.

    Raises `NotFoundError` for a file that is not there, and `SourceError` for an empty one.
    """
    remote = remote_files(Path(folder))
    above = "" if remote is None else f"{remote.name_of(Path(folder))}/".lstrip("/")
    wanted = [above + name for name in names]
    storage = LocalStorage(folder) if remote is None else remote.storage
    # A folder of a disk is not listed for each chunk of it.
    told = _looked_at(storage, wanted) if remote is None else _told(storage, wanted, remote)
    for path, (size, _) in told.items():
        if not size:
            raise SourceError("an empty file", file=f"{storage.url}/{path}")
    sizes = [told[above + name][0] for name in names]
    return sizes, [FolderFile(name, told[above + name][1]) for name in names]


def referring_schema(schema: Schema) -> Schema:
    """The schema of a source whose kept images stay where they are: each in a group of its own, so
    that its chunks can refer to files, and all other features in one."""
    numbers: dict[str, int] = {}
    for spec in schema.values():
        numbers.setdefault(spec.name if spec.may_be_referred_to else "", len(numbers))

    def group(spec: FeatureSpec) -> int:
        return numbers[spec.name if spec.may_be_referred_to else ""]

    return Schema([replace(spec, group=group(spec)) for spec in schema.values()])


def _root_of(real_root: str, folder: Path) -> tuple[str, str]:
    """The root of files in a folder, and what is in front of their names: of a folder that is not
    below `real_root` it is that folder."""
    real = os.path.realpath(folder)
    if not _is_inside(real, real_root):
        return real, ""
    inside = os.path.relpath(real, real_root)
    return real_root, "" if inside == "." else f"{inside}/"


@lru_cache(maxsize=64)
def _real_folder(path: str) -> str:
    return os.path.realpath(path)


def _is_inside(real: str, root: str) -> bool:
    return os.path.commonpath([real, root]) == root


def identity_of_files(root: Path, paths: Iterable[Path]) -> str:
    """Text that changes when one of these files does, or is not among them any more. On the Hub it
    changes with the commit alone, and nothing is listed."""
    remote = remote_files(root)
    if remote is not None and reads_commit(remote.storage):
        return hashlib.sha256(fixed_url_of(remote.storage).encode()).hexdigest()
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


def checksum_of_files(files: Iterable[ReferencedFile]) -> int:
    """As `checksum_of`, of frames one behind the other."""
    value = 0
    for file in files:
        with opened(Path(file.file)) as stream:
            stream.seek(file.start)
            value = crc32c(
                stream.read(-1 if file.stop is None else file.stop - file.start), start=value
            )
    return value or 1


def _told(
    storage: Storage, names: Iterable[str], remote: RemoteFiles | None = None
) -> dict[str, tuple[int, str | None]]:
    """Sizes and identities of files, see `identity_of`: by a listing of each folder, those that
    `remote` has already, and else of each file alone.

    A listing that is older than a file makes readers refuse that file; a later one would not.
    """
    wanted = dict.fromkeys(names)
    with located(LocationError, file=storage.url):
        for name in wanted:
            check_path(name)
    told: dict[str, tuple[int, str | None]] = {}
    with suppress(LocationError):  # nothing can be listed
        for folder in dict.fromkeys(name.rpartition("/")[0] for name in wanted):
            above = f"{folder}/" if folder else ""
            if remote is None:
                found = entries_of(storage, folder)
            else:
                found = [*remote.listing(remote.root / folder).values()]
            for entry in found:
                if entry.identity is not None and (name := above + entry.name) in wanted:
                    told[name] = entry.size, entry.identity
    return told | _looked_at(storage, [name for name in wanted if name not in told])


def _looked_at(storage: Storage, names: Iterable[str]) -> dict[str, tuple[int, str | None]]:
    return map_files(storage, lambda name: identity_of(storage, name), names)
