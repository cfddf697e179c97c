"""Files of originals to which pages of a dataset may refer: where they lie, what they are now."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from seqrecord.checksum import crc32c
from seqrecord.errors import LocationError, SourceError, located
from seqrecord.format.references import ExternalFile, PartOfFolder, ReferencedFile
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.sources.files import opened
from seqrecord.sources.remote import remote_files
from seqrecord.storage import LocalStorage, Storage, fixed_url_of, identity_of, map_files

__all__ = [
    "checksum_of",
    "checksum_of_files",
    "external_files",
    "external_folders",
    "identity_of_files",
    "parts_of",
    "place_of",
    "referring_schema",
]


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
        folder = real_root if _is_inside(real, real_root) else str(Path(real).parent)
        by_root.setdefault(folder, {})[str(path)] = os.path.relpath(real, folder)
    found: dict[str, ExternalFile] = {}
    for folder, names in by_root.items():
        found |= _listed(LocalStorage(folder), names)
    return found


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


def parts_of(folder: str, names: Sequence[str]) -> tuple[list[int], list[PartOfFolder]]:
    """The sizes of files in a folder that `place_of` gave, and what pages say of them.

    Raises `NotFoundError` for a file that is not there, and `SourceError` for an empty one.
    """
    remote = remote_files(Path(folder))
    storage = LocalStorage(folder) if remote is None else remote.storage
    above = "" if remote is None else f"{remote.name_of(Path(folder))}/".lstrip("/")
    told = map_files(storage, lambda path: identity_of(storage, path), [above + n for n in names])
    for path, (size, _) in told.items():
        if not size:
            raise SourceError("an empty file", file=f"{storage.url}/{path}")
    sizes = [told[above + name][0] for name in names]
    return sizes, [PartOfFolder(name, told[above + name][1]) for name in names]


def referring_schema(schema: Schema) -> Schema:
    """The schema of a source whose kept images stay where they are: each in a group of its own, so
    that its chunks can refer to files, and all other features in one."""
    numbers: dict[str, int] = {}
    for spec in schema.values():
        numbers.setdefault(spec.name if spec.may_be_referred_to else "", len(numbers))

    def group(spec: FeatureSpec) -> int:
        return numbers[spec.name if spec.may_be_referred_to else ""]

    return Schema([replace(spec, group=group(spec)) for spec in schema.values()])


@lru_cache(maxsize=64)
def _real_folder(path: str) -> str:
    return os.path.realpath(path)


def _is_inside(real: str, root: str) -> bool:
    return os.path.commonpath([real, root]) == root


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


def _listed(storage: Storage, names: dict[str, str]) -> dict[str, ExternalFile]:
    with located(LocationError, file=storage.url):
        told = map_files(storage, lambda name: identity_of(storage, name), set(names.values()))
    root = fixed_url_of(storage)
    return {path: ExternalFile(root, name, *told[name]) for path, name in names.items()}
