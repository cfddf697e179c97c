"""External files for references: their location, size and identity."""

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
from seqrecord.errors import LocationError, NotFoundError, SourceError, located
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
"""Maximum bytes of a frame's feature that an index copies instead of referencing."""


def external_files(root: Path, paths: Iterable[Path]) -> dict[str, ExternalFile]:
    """Return references' external files of an original at `root`, by path text.

    Symbolic links are resolved: the file then belongs to the link target's folder, as in local
    snapshots of the Hugging Face Hub. Missing files are left out: reading their episodes raises.
    """
    wanted = list(dict.fromkeys(paths))
    remote = remote_files(root)
    if remote is not None:
        named = {str(path): remote.name_of(path) for path in wanted}
        known = _identities(remote.storage, named.values(), remote)
        url = fixed_url_of(remote.storage)
        return {p: ExternalFile(url, n, *known[n]) for p, n in named.items() if n in known}
    real_root = os.path.realpath(root if root.is_dir() else root.parent)
    root_of = lru_cache(maxsize=None)(partial(_root_of, real_root))
    by_root: dict[str, dict[str, str]] = {}
    for path in wanted:
        real = Path(os.path.realpath(path)) if path.is_symlink() else path
        folder, above = root_of(real.parent)
        by_root.setdefault(folder, {})[str(path)] = above + real.name
    found: dict[str, ExternalFile] = {}
    for folder, names in by_root.items():
        known = _identities(LocalStorage(folder), names.values())
        found |= {p: ExternalFile(folder, n, *known[n]) for p, n in names.items() if n in known}
    return found


def copied_files(source: Any) -> dict[str, ExternalFile]:
    """Return the files from which an index copies values, like `external_files`.

    Without a method `copied_files`, a source copies from the files that it references.
    """
    copied = getattr(source, "copied_files", None)
    files: dict[str, ExternalFile] = source.external_files() if copied is None else copied()
    return {name: file for name, file in files.items() if file.size}


def samples_of(files: Mapping[str, ExternalFile]) -> dict[str, list[tuple[str, int, int]]]:
    """Return samples of files for change detection: name in the folder, size and CRC32C.

    At most `SAMPLED_FILES` files per root, evenly spaced, by the source's names of files and
    folders. Files of a Hub commit need none.
    """
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
    """Return at most `count` names, evenly spaced."""
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
    """Return references' external folders of an original at `root`, by the names of `place_of`.

    Folders that symbolic links among the files lead to are included.
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
    """Return the external file or folder of a frame, and the file's name in a folder."""
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
    """Return sizes of files in a folder from `place_of`, and their entries in pages.

    Raises `NotFoundError` for missing files and `SourceError` for empty ones.
    """
    remote = remote_files(Path(folder))
    above = "" if remote is None else f"{remote.name_of(Path(folder))}/".lstrip("/")
    wanted = [above + name for name in names]
    storage = LocalStorage(folder) if remote is None else remote.storage
    # Local folders are not listed again for each chunk.
    known = {} if remote is None else _identities(storage, wanted, remote)
    known |= _stat(storage, [name for name in wanted if name not in known])
    for path, (size, _) in known.items():
        if not size:
            raise SourceError("empty file", file=f"{storage.url}/{path}")
    sizes = [known[above + name][0] for name in names]
    return sizes, [FolderFile(name, known[above + name][1]) for name in names]


def referring_schema(schema: Schema) -> Schema:
    """Return the schema for referenced images: each in its own group, all other features in one.

    Only chunks of a single feature can refer to files.
    """
    numbers: dict[str, int] = {}
    for spec in schema.values():
        numbers.setdefault(spec.name if spec.may_be_referred_to else "", len(numbers))

    def group(spec: FeatureSpec) -> int:
        return numbers[spec.name if spec.may_be_referred_to else ""]

    return Schema([replace(spec, group=group(spec)) for spec in schema.values()])


def _root_of(real_root: str, folder: Path) -> tuple[str, str]:
    """Return the root for files in a folder, and the prefix of their names below it.

    A folder outside of `real_root` is its own root.
    """
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
    """Return a hash that changes if a file changes, appears or disappears.

    For the Hub it depends on the commit only; nothing is listed.
    """
    remote = remote_files(root)
    if remote is not None and reads_commit(remote.storage):
        return hashlib.sha256(fixed_url_of(remote.storage).encode()).hexdigest()
    paths = list(paths)
    files = external_files(root, paths)
    facts: list[Any] = [str(path) for path in paths if str(path) not in files]
    facts += [(p, f.root, f.path, f.size, f.identity) for p, f in files.items()]
    facts.sort(key=repr)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def checksum_of(file: str, start: int, stop: int) -> int:
    """Return the CRC32C of bytes `[start, stop)` of a file; 1 in place of 0, which means none.

    Raises `SourceError` for shorter files.
    """
    with opened(Path(file)) as stream:
        stream.seek(start)
        data = stream.read(stop - start)
        if len(data) != stop - start:
            expected = f"{stop - start} bytes"
            raise SourceError("truncated file", offset=start, expected=expected)
    return crc32c(data) or 1


def checksum_of_files(files: Iterable[ReferencedFile]) -> int:
    """Like `checksum_of`, for concatenated frames."""
    value = 0
    for file in files:
        with opened(Path(file.file)) as stream:
            stream.seek(file.start)
            value = crc32c(
                stream.read(-1 if file.stop is None else file.stop - file.start), start=value
            )
    return value or 1


def _identities(
    storage: Storage, names: Iterable[str], remote: RemoteFiles | None = None
) -> dict[str, tuple[int, str | None]]:
    """Return size and identity of files that exist, see `identity_of`.

    Uses one listing per folder, cached ones of `remote` first, and one request per file otherwise.
    A listing older than a file is safe: readers then refuse the file.
    """
    wanted = dict.fromkeys(names)
    with located(LocationError, file=storage.url):
        for name in wanted:
            check_path(name)
    known: dict[str, tuple[int, str | None]] = {}
    with suppress(LocationError):  # listing is not supported
        for folder in dict.fromkeys(name.rpartition("/")[0] for name in wanted):
            above = f"{folder}/" if folder else ""
            if remote is None:
                found = entries_of(storage, folder)
            else:
                found = [*remote.listing(remote.root / folder).values()]
            for entry in found:
                if entry.identity is not None and (name := above + entry.name) in wanted:
                    known[name] = entry.size, entry.identity

    def look(name: str) -> tuple[int, str | None] | None:
        with suppress(NotFoundError):
            return identity_of(storage, name)
        return None

    others = map_files(storage, look, [name for name in wanted if name not in known])
    return known | {name: found for name, found in others.items() if found is not None}


def _stat(storage: Storage, names: Iterable[str]) -> dict[str, tuple[int, str | None]]:
    return map_files(storage, lambda name: identity_of(storage, name), names)
