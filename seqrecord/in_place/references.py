"""External files for references: their location, size and identity."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from seqrecord.errors import LocationError, NotFoundError, SourceError, located
from seqrecord.in_place.boundary import skipping_unreadable
from seqrecord.in_place.files import is_readable, list_folder, opened
from seqrecord.in_place.remote import RemoteFiles, remote_files
from seqrecord.store.checksum import crc32c
from seqrecord.store.format.page_kinds import page_kind
from seqrecord.store.format.references import (
    SAMPLED_FILES,
    ExternalFile,
    FolderFile,
    sampled_ranges,
)
from seqrecord.store.originals.inventory import format_of
from seqrecord.store.schema import FeatureSpec, Schema
from seqrecord.store.storage.base import (
    LINKED,
    Storage,
    check_path,
    fixed_url_of,
    identity_of,
    reads_commit,
)
from seqrecord.store.storage.local import LocalStorage, follow_links, modified_ns, new_since
from seqrecord.store.storage.parallel import identities_of, map_files

_BLOCK = 1 << 20
_FRAME_ENDINGS = (".png", ".jpg", ".jpeg", ".npy")


def reference_source(source: Any) -> Any:
    """Return the source that references its files instead of copying from them.

    Raises `SourceError` for a source that cannot.
    """
    if not hasattr(source, "referring"):
        raise SourceError(
            "originals of this format cannot be read in place; `seqrecord write --src` converts "
            "them",
            expected="a format in docs/in-place.md",
            got=format_of(source),
        )
    return source.referring()


def external_files(root: Path, paths: Iterable[Path]) -> dict[str, ExternalFile]:
    """Return references' external files of an original at `root`, by path text.

    Paths are kept unchanged, and links in them are followed at each reading: they may lead to
    another file later, which then has another identity. Missing and empty files are left out:
    reading their episodes raises.
    """
    remote, unique_paths = remote_files(root), list(dict.fromkeys(paths))
    if remote is not None:
        storage = remote.storage
        names = {str(path): remote.name_of(path) for path in unique_paths}
    else:
        folder = root if root.is_dir() else root.parent
        storage = _original_folder(folder)
        above = f"{folder}/".replace("//", "/")
        names = {str(path): str(path).removeprefix(above) for path in unique_paths}  # fast
    identities, url = _identities(storage, names.values(), remote), fixed_url_of(storage)
    return {
        path: ExternalFile(url, name, *identity)
        for path, name in names.items()
        if (identity := identities.get(name)) and identity[0]
    }


def copied_files(source: Any) -> dict[str, ExternalFile]:
    """Return the files from which an index copies values, like `external_files`.

    Without a method `copied_files`, a source copies from the files that it references.
    """
    copied = getattr(source, "copied_files", None)
    files: dict[str, ExternalFile] = source.external_files() if copied is None else copied()
    return {name: file for name, file in files.items() if file.size and is_readable(Path(name))}


def samples_of(files: Mapping[str, ExternalFile]) -> dict[str, list[tuple[str, int, int]]]:
    """Return samples of files for change detection: name in the folder, size and CRC32C.

    At most `SAMPLED_FILES` files per root, evenly spaced, by the source's names of files and
    folders. Files of a Hub commit need none.
    """
    by_root: dict[str, list[str]] = {}
    for name, file in files.items():
        by_root.setdefault(file.root, []).append(name)
    samples: dict[str, list[tuple[str, int, int]]] = {}
    for names in by_root.values():
        remote = remote_files(Path(names[0]))
        if remote is not None and reads_commit(remote.storage):
            continue
        sampled_names = _spaced(names, SAMPLED_FILES)
        for name in sampled_names:
            inner_names: Sequence[str] = [""]
            if not files[name].size:
                inner_names = _spaced(
                    _frames_in(Path(name)), -(-SAMPLED_FILES // len(sampled_names))
                )
            samples[name] = []
            for inner_name in inner_names:
                with skipping_unreadable():  # raised by reading
                    samples[name].append(_sample(Path(name), inner_name))
    return samples


def checksums_of_new(files: Mapping[str, ExternalFile]) -> dict[str, int]:
    """Return the CRC32C of files that are new by `new_since`, by name; others need none."""
    clock, checksums = cache(new_since), dict[str, int]()
    for name, file in files.items():
        modified = modified_ns(file.identity)
        if modified is not None and modified >= clock(file.root):
            with skipping_unreadable():  # raised by reading
                checksums[name] = checksum_of_files([name])
    return checksums


def link_out(files: Mapping[str, ExternalFile]) -> tuple[str, str] | None:
    """Return the first link out of an original's folder that leads to these files, and its target.

    Also looks for links inside of folders; not on remote stores.
    """
    for name, file in files.items():
        is_folder = "://" not in file.root and os.path.isdir(name)  # noqa: PTH112 - never raises
        if not is_folder and LINKED not in (file.identity or ""):
            continue
        paths = [name]
        if is_folder:
            with suppress(OSError), os.scandir(name) as entries:
                paths += [entry.path for entry in entries if entry.is_symlink()]
        root = os.path.realpath(file.root)
        for path in paths:
            real = os.path.realpath(path)
            if os.path.commonpath([real, root]) != root:
                return path, real
    return None


def _spaced(names: Sequence[str], count: int) -> Sequence[str]:
    """Return at most `count` names, evenly spaced."""
    count = min(count, len(names))
    return [names[len(names) * i // count] for i in range(count)]


def _frames_in(folder: Path) -> list[str]:
    """Return the names of a folder's images and arrays, sorted; none if it cannot be listed."""
    file_names: list[str] = []
    with skipping_unreadable():  # raised by reading
        file_names += (name for name, is_folder in list_folder(folder) if not is_folder)
    return sorted(n for n in file_names if Path(n).suffix.lower() in _FRAME_ENDINGS)


def _sample(path: Path, inner_name: str) -> tuple[str, int, int]:
    with opened(path / inner_name) as stream:
        size, checksum = stream.seek(0, os.SEEK_END), 0
        for start, stop in sampled_ranges(size):
            stream.seek(start)
            checksum = crc32c(stream.read(stop - start), start=checksum)
    return inner_name, size, checksum


def external_folders(root: Path, folders: Iterable[Path]) -> dict[str, ExternalFile]:
    """Return references' external folders of an original at `root`, by path text.

    Missing local folders, which lists may name, are left out: reading their episodes raises.
    """
    remote = remote_files(root)
    url = str(root) if remote is None else fixed_url_of(remote.storage)
    names = {
        str(path): remote.name_of(path) if remote else path.relative_to(root).as_posix()
        for path in folders
        if remote or os.path.isdir(path)  # noqa: PTH112 - never raises
    }
    return {path: ExternalFile(url, "" if n == "." else n, 0) for path, n in names.items()}


def parts_of(folder: str, names: Sequence[str]) -> tuple[list[int], list[FolderFile]]:
    """Return sizes of files in a folder, and their entries in pages.

    Raises `SourceError` for missing and for empty files, and for names that no index can have.
    """
    remote = remote_files(Path(folder))
    above = "" if remote is None else f"{remote.name_of(Path(folder))}/".lstrip("/")
    paths = [above + name for name in names]
    try:
        storage = _original_folder(folder) if remote is None else remote.storage
        # Local folders are not listed again for each chunk.
        identities = {} if remote is None else _identities(storage, paths, remote)
        unlisted_paths = [name for name in paths if name not in identities]
        identities |= map_files(storage, partial(identity_of, storage), unlisted_paths)
    except (NotFoundError, LocationError) as error:
        raise SourceError(error.message, **{"file": folder, **error.context()}) from error
    for path, (size, _) in identities.items():
        if not size:
            raise SourceError("empty file", file=f"{storage.url}/{path}")
    sizes = [identities[above + name][0] for name in names]
    return sizes, [FolderFile(name, identities[above + name][1]) for name in names]


def referring_schema(schema: Schema) -> Schema:
    """Return the schema for referenced images: each in its own group, all other features in one.

    Only chunks of a single feature can refer to files. Arrays of variable shape are copied.
    """
    variable = [s for s in schema.variable if s.codec]
    copied = [s.name for s in variable if s.codec[0].get("format") == "npy"]
    schema = Schema([replace(s, codec=()) if s.name in copied else s for s in schema.values()])
    referable = referable_features(schema)
    owners = [name if name in referable else "" for name in schema]
    numbers = {owner: number for number, owner in enumerate(dict.fromkeys(owners))}
    groups = zip(schema.values(), owners, strict=True)
    return Schema([replace(spec, group=numbers[owner]) for spec, owner in groups])


def referable_features(schema: Mapping[str, FeatureSpec]) -> list[str]:
    """Return the names of the features whose pages may refer to original files."""
    return [name for name, spec in schema.items() if page_kind(spec).may_refer(spec)]


def _original_folder(folder: str | Path) -> LocalStorage:
    storage = LocalStorage(folder)
    follow_links(storage)
    return storage


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


def checksum_of_files(files: Iterable[str]) -> int:
    """Return the CRC32C of concatenated files."""
    checksum = 0
    for file in files:
        with opened(Path(file)) as stream:
            while data := stream.read(_BLOCK):
                checksum = crc32c(data, start=checksum)
    return checksum


def checksum_of_range(file: str, start: int, stop: int) -> int:
    """Return the CRC32C of a file's bytes `[start, stop)`. Raises `SourceError` if some lack."""
    checksum = 0
    with opened(Path(file)) as stream:
        stream.seek(start)
        for begin in range(start, stop, _BLOCK):
            size = min(_BLOCK, stop - begin)
            if len(data := stream.read(size)) != size:
                expected = f"{stop - start} bytes"
                raise SourceError("truncated file", offset=start, expected=expected)
            checksum = crc32c(data, start=checksum)
    return checksum


def _identities(
    storage: Storage, names: Iterable[str], remote: RemoteFiles | None = None
) -> dict[str, tuple[int, str | None]]:
    """Like `identities_of`, with cached listings of `remote`.

    A listing older than a file is safe: readers then refuse the file.
    """
    unique_names = dict.fromkeys(names)
    with located(LocationError, file=storage.url):
        for name in unique_names:
            check_path(name)
    if remote is None:
        return identities_of(storage, unique_names)
    return identities_of(storage, unique_names, lambda f: remote.listing(remote.root / f).values())
