"""Originals: what sources of folders and files have in common, and finding files in a tree."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from seqrecord.errors import SourceError, located
from seqrecord.processes.forks import cached_property
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.sources.base import EpisodeInfo
from seqrecord.sources.common.files import (
    find_original,
    find_root,
    is_directory,
    is_file,
    link_loop,
    list_folder,
)
from seqrecord.sources.common.orientation import check_exif
from seqrecord.sources.common.specs import chosen_schema

if TYPE_CHECKING:
    from typing_extensions import Self

MAX_DEPTH = 32  # a link that leads back up would never end
_DIGITS = re.compile(r"(\d+)", re.ASCII)
_MOST_ENTRIES = 10_000  # entries that are looked at to see which format fits
_MOST_OF_FOLDER = 1000  # of them in one folder


@dataclass(frozen=True)
class Originals:
    """Originals at `root`, a folder or, where `takes_files`, a file.

    `features` are the names to read, in that order, by default all. With `keep_encoded` images stay
    encoded, where the format has any. `exif` (`apply` or `ignore`) is how images are read that EXIF
    turns, see `Orientation`. Pickles hold nothing of what is named in `unpickled`.
    """

    root: str | os.PathLike[str]
    features: Sequence[str] | None = None
    keep_encoded: bool = False
    exif: str | None = field(default=None, kw_only=True)

    takes_files: ClassVar[bool] = False
    unpickled: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        find = find_original if self.takes_files else find_root
        object.__setattr__(self, "root", find(self.root))
        check_exif(self.exif)
        if self.features is not None:
            object.__setattr__(self, "features", tuple(self.features))

    @property
    def path(self) -> Path:
        """`root`, as a path."""
        assert isinstance(self.root, Path)
        return self.root

    def __getstate__(self) -> dict[str, Any]:
        return {name: v for name, v in self.__dict__.items() if name not in self.unpickled}


@dataclass(frozen=True)
class NumberedFrames(Originals):
    """Originals of which a frame is files of one number or name, and some of them may be missing.

    With `in_place` images stay where they are. See `FolderSource`.
    """

    sparse: Sequence[str] = ()
    allow_gaps: bool = False
    in_place: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        sparse = self.sparse.split(",") if isinstance(self.sparse, str) else self.sparse
        object.__setattr__(self, "sparse", tuple(sparse))

    def referring(self) -> Self:
        """The same source, whose images stay where they are."""
        return replace(self, keep_encoded=True, in_place=True)


class FirstError:
    """The first error of several originals, of which the broken ones must not hide the others.

    ::

        errors = FirstError()
        for path in paths:
            with errors.skipped(file=str(path)):
                return read(path)
        raise errors.first or SourceError("no file")
    """

    def __init__(self) -> None:
        self.first: SourceError | None = None

    @contextmanager
    def skipped(self, then: Callable[[], None] = lambda: None, **facts: Any) -> Iterator[None]:
        """Ends the block at a `SourceError`, which gets the facts that it does not know yet, and
        calls `then`."""
        try:
            with located(SourceError, **facts):
                yield
        except SourceError as error:
            self.first = self.first or error
            then()


@dataclass
class Scan:
    """What is found in originals: features, the names of all that there are, and episodes.

    For the inventory: the number of values by feature, the places of features, numbers of files by
    pattern that have no reader, notes, and `details` of the source's own.
    """

    specs: list[FeatureSpec] = field(default_factory=list)
    offered: dict[str, None] = field(default_factory=dict)
    episodes: list[EpisodeInfo] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    places: dict[str, str] = field(default_factory=dict)
    unread: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    details: Any = None
    errors: FirstError = field(default_factory=FirstError)

    def unless_broken(self, info: EpisodeInfo) -> AbstractContextManager[None]:
        """An error of the block makes the episode `info`, whose frames say what is wrong."""
        return self.errors.skipped(lambda: self.episodes.append(info), episode=info.key)


@dataclass(frozen=True)
class ScannedSource(Originals, ABC):
    """A source that opens each original once to know features and episodes.

    It is a snapshot: its schema is worked out once and travels with it when it is pickled.
    """

    @abstractmethod
    def scan(self, found: Scan) -> None:
        """Fill in what there is. Of the features, only those to read count."""

    def schema(self) -> Schema:
        return self._scanned[0]

    def episodes(self) -> Sequence[EpisodeInfo]:
        return self._scanned[1]

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("scan_result", None)
        if "_scanned" in state:
            state["_scanned"] = (self.schema(), ())  # a worker gets its episodes one by one
        return state

    @cached_property
    def scan_result(self) -> Scan:
        """Raises the first error if no original can be read."""
        found = Scan()
        self.scan(found)
        if not found.specs and found.errors.first:
            raise found.errors.first
        return found

    @cached_property
    def _scanned(self) -> tuple[Schema, Sequence[EpisodeInfo]]:
        found = self.scan_result
        return chosen_schema(found.specs, self.features, self.path, found.offered), found.episodes


def has_file(root: Path, fits: Callable[[Path], bool]) -> bool:
    """Whether a file that `fits` is `root`, or is among the first entries of the tree below it.

    Of a folder the first thousand entries are looked at, and of the tree ten thousand, depth first:
    whether a format fits must not take a walk over millions of files.
    """
    if is_file(root):
        return fits(root)
    return any(
        fits(folder / name)
        for folder, names in _first_entries(root)
        for name, is_folder in names.items()
        if not is_folder
    )


def has_folder(root: Path, fits: Callable[[set[str]], bool]) -> bool:
    """As `has_file`, of a folder whose names of files and folders fit."""
    return is_directory(root) and any(fits(set(names)) for _, names in _first_entries(root))


def first_files(root: Path, most: int) -> list[Path]:
    """At most so many files among the first entries of the tree below a folder."""
    files = (
        folder / name
        for folder, names in _first_entries(root)
        for name, is_folder in names.items()
        if not is_folder
    )
    return sorted(islice(files, most))


def find_folders(root: Path, fits: Callable[[set[str]], bool]) -> list[Path]:
    """All folders from `root` down whose names of files and folders fit, in the order of paths.

    Nothing is looked for inside of those.
    """
    found = walk(root, lambda names: not fits(set(names)))
    return _in_order(folder for folder, names in found if fits(set(names)))


def find_files(root: Path, fits: Callable[[Path], bool]) -> list[Path]:
    """All files that fit below `root`, or itself, in the order of their paths and numbers."""
    if is_file(root):
        return [root] if fits(root) else []
    found = walk(root) if is_directory(root) else ()
    return _in_order(
        folder / name
        for folder, names in found
        for name, is_folder in names.items()
        if not is_folder and fits(folder / name)
    )


def by_key(found: Iterable[tuple[str, Path]]) -> dict[str, Path]:
    """Places of episodes by key; raises `SourceError` for two of one key."""
    places: dict[str, Path] = {}
    for key, path in found:
        if (other := places.setdefault(key, path)) is not path:
            raise SourceError(
                "two episodes of one key", file=str(other), episode=key, got=str(path)
            )
    return places


def key_of(path: Path, root: Path, *, ending: bool = False) -> str:
    """An episode's key: its path below `root`, without the file's ending unless it is asked for."""
    named = path if ending or not path.suffix else path.with_suffix("")
    return named.relative_to(root if root != path else root.parent).as_posix()


def natural_order(name: str) -> tuple[list[tuple[int, str]], str]:
    """Sorts `frame_2` before `frame_10`, and is a total order."""
    parts = _DIGITS.split(name)
    return [(int(part), "") if i % 2 else (0, part) for i, part in enumerate(parts)], name


def _first_entries(root: Path) -> Iterator[tuple[Path, dict[str, bool]]]:
    """Folders, each with names of what it holds and whether that is a folder, the first of all."""
    looked = 0
    waiting = [(root, 0)]
    while waiting and looked < _MOST_ENTRIES:
        folder, depth = waiting.pop()
        names = dict(islice(list_folder(folder), _MOST_OF_FOLDER))
        looked += len(names)
        yield folder, names
        if depth < MAX_DEPTH:
            waiting.extend((folder / n, depth + 1) for n, is_folder in names.items() if is_folder)


def walk(
    root: Path, goes_down: Callable[[dict[str, bool]], bool] = lambda _: True
) -> Iterator[tuple[Path, dict[str, bool]]]:
    """All folders from `root` down, each with its entries: name to whether it is a folder.

    `goes_down` decides by the entries whether the folders in a folder are visited.
    """
    waiting = [(root, 0)]
    while waiting:
        folder, depth = waiting.pop()
        check_depth(folder, depth)
        names = dict(list_folder(folder))
        yield folder, names
        if goes_down(names):
            waiting.extend((folder / n, depth + 1) for n, is_folder in names.items() if is_folder)


def _in_order(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: [natural_order(part) for part in path.parts])


def check_depth(folder: Path, depth: int) -> None:
    """Raises `SourceError` for a folder too far below the first one."""
    if depth > MAX_DEPTH:
        raise link_loop(folder) or SourceError(
            "folders nested too deeply", file=str(folder), expected=f"at most {MAX_DEPTH} levels"
        )
