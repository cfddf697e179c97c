"""Base classes of sources, and search for files in a folder tree."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.common.orientation import check_exif
from seqrecord.formats.sources.common.specs import UnsupportedError, select_schema
from seqrecord.in_place.boundary import guard_methods, reader_boundary
from seqrecord.in_place.files import (
    find_original,
    is_directory,
    is_file,
    link_loop,
    list_folder,
)
from seqrecord.in_place.references import referring_schema
from seqrecord.store.originals.protocol import EpisodeInfo
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.schema import FeatureSpec, Schema
from seqrecord.store.text import repr_of
from seqrecord.store.units import parse_flag

if TYPE_CHECKING:
    from typing_extensions import Self

_Stored = TypeVar("_Stored")
MAX_DEPTH = 32
_DIGITS = re.compile(r"(\d+)", re.ASCII)
# Detection of a format must not list a tree of millions of files: tests/formats/test_hdf5.py has
# test_the_quick_look_is_bounded.
_MOST_ENTRIES = 10_000  # entries read to detect a format
_MOST_OF_FOLDER = 1000  # of one folder


@dataclass(frozen=True)
class Originals:
    """Base class of sources over a folder, or a file if `takes_files`.

    The methods of `Source` are boundaries: unexpected errors become `SourceError`.

    Args:
        root: path of the original.
        features: names to read, in that order; all by default.
        keep_encoded: keep images encoded if the format has images.
        exif: `apply` or `ignore` the EXIF orientation of images.

    Pickles omit the attributes named in `unpickled`.
    """

    root: str | os.PathLike[str]
    features: Sequence[str] | None = None
    keep_encoded: bool = False
    exif: str | None = field(default=None, kw_only=True)

    takes_files: ClassVar[bool] = False
    unpickled: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        guard_methods(cls)

    def __post_init__(self) -> None:
        root = find_original(self.root, takes_files=self.takes_files)
        object.__setattr__(self, "root", root)
        check_exif(self.exif)
        for option in fields(self):
            if option.type in ("bool", bool):
                flag = _flag(option.name, getattr(self, option.name))
                object.__setattr__(self, option.name, flag)
        if self.features is not None:
            object.__setattr__(self, "features", tuple(self.features))
        if self.features == ():
            raise SourceError(
                "no feature is selected",
                file=str(root),
                expected="1 or more names, or no features= for all",
                got="an empty list",
            )

    @property
    def path(self) -> Path:
        """`root` as a `Path`."""
        assert isinstance(self.root, Path)
        return self.root

    @cached_property
    def unreadable(self) -> dict[str, SourceError]:
        """Features that `schema` leaves out because their types cannot be read, with the errors."""
        return {}

    @cached_property
    def palettes(self) -> dict[str, bool]:
        """Features whose images have a palette: whether its indices are read, or else colours."""
        return {}

    @contextmanager
    def unless_unreadable(self, feature: str) -> Iterator[None]:
        """Record an `UnsupportedError` of the block in `unreadable`; raise it with `features`.

        Other errors, such as those of damaged files, concern episodes.
        """
        try:
            with located(SourceError, feature=feature[:100]):
                yield
        except UnsupportedError as error:
            if self.features is not None:
                raise
            self.unreadable.setdefault(feature, error)

    def specs_of(
        self, offered: Mapping[str, _Stored], spec_of: Callable[[str, _Stored], FeatureSpec]
    ) -> list[FeatureSpec]:
        """Return the specs of selected features, without `unreadable` ones."""
        specs = []
        for name, original_feature in offered.items():
            if self.features is None or name in self.features:
                with self.unless_unreadable(name):
                    specs.append(spec_of(name, original_feature))
        return specs

    def check_any(self, readable_features: Sized) -> None:
        """Raise the first error in `unreadable` if no readable feature was found."""
        for error in () if len(readable_features) else self.unreadable.values():
            raise error

    def leaving_out(self, unreadable: Mapping[str, SourceError]) -> Self:
        """Return a copy without these features."""
        remaining_features = [name for name in self.schema() if name not in unreadable]  # type: ignore[attr-defined]
        copy = replace(self, features=remaining_features)
        copy.unreadable.update({**self.unreadable, **unreadable})
        return copy

    def __getstate__(self) -> dict[str, Any]:
        return {name: v for name, v in self.__dict__.items() if name not in self.unpickled}


@dataclass(frozen=True)
class InPlace(Originals):
    """Base class of sources whose frames can refer to files, with `in_place`."""

    in_place: bool = field(default=False, kw_only=True)

    keeps_in_place: ClassVar[bool | None] = True
    """`keep_encoded` of a source that references data; `None`: as given."""

    def referring(self) -> Self:
        """Return a copy of the source that references data instead of copying it."""
        keeps_encoded = self.keep_encoded if self.keeps_in_place is None else self.keeps_in_place
        return self if self.in_place else replace(self, keep_encoded=keeps_encoded, in_place=True)


@dataclass(frozen=True)
class NumberedFrames(Originals):
    """Base class of sources with numbered or named files per frame; features may lack frames.

    See `FolderSource`.
    """

    sparse: Sequence[str] = ()
    allow_gaps: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        sparse = self.sparse.split(",") if isinstance(self.sparse, str) else self.sparse
        object.__setattr__(self, "sparse", tuple(sparse))


class FirstError:
    """Collect the first error over several originals, so that broken ones do not hide the others.

    ::

        errors = FirstError()
        for path in paths:
            with errors.skipped(file=str(path)):
                return read(path)
        raise errors.first or SourceError("no file")
    """

    def __init__(self) -> None:
        self.first: SourceError | None = None
        self.count = 0

    @contextmanager
    def skipped(self, then: Callable[[], None] = lambda: None, **facts: Any) -> Iterator[None]:
        """Suppress an error of the block: add missing facts, record it and call `then`."""
        try:
            with reader_boundary(), located(SourceError, **facts):
                yield
        except SourceError as error:
            self.first = self.first or error
            self.count += 1
            then()


@dataclass
class Scan:
    """Result of a scan: feature specs, names of all features, and episodes.

    For the inventory: value counts per feature, places of features, counts of unread files by
    pattern, notes, and format-specific `details`.
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
        """Record an error of the block, and add `info` as an episode whose reading raises again."""
        return self.errors.skipped(lambda: self.episodes.append(info), episode=info.key)


@dataclass(frozen=True)
class ScannedSource(Originals, ABC):
    """Base class of sources that open each original once to determine features and episodes.

    The source is a snapshot: schema and episodes are determined once. Pickles contain the schema.
    """

    @abstractmethod
    def scan(self, found: Scan) -> None:
        """Fill `found`. Specs of features that are not selected may be omitted."""

    def schema(self) -> Schema:
        return self._scanned[0]

    def episodes(self) -> Sequence[EpisodeInfo]:
        return self._scanned[1]

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("scan_result", None)
        if "_scanned" in state:
            state["_scanned"] = (self._scanned[0], ())  # a worker gets its episodes one by one
        return state

    @cached_property
    def scan_result(self) -> Scan:
        """Scan once. Raises the first error if no original is readable."""
        scan = Scan()
        self.scan(scan)
        if not scan.specs and scan.errors.first:
            raise scan.errors.first
        for spec in scan.specs:  # readable in another episode
            self.unreadable.pop(spec.name, None)
        self.check_any(scan.specs)
        return scan

    @cached_property
    def _scanned(self) -> tuple[Schema, Sequence[EpisodeInfo]]:
        scan = self.scan_result
        return select_schema(scan.specs, self.features, self.path, scan.offered), scan.episodes


@dataclass(frozen=True)
class ScannedInPlace(InPlace, ScannedSource):
    """Base class of scanned sources whose frames can refer to files."""

    def schema(self) -> Schema:
        schema = super().schema()
        return referring_schema(schema) if self.in_place else schema


def has_file(root: Path, fits: Callable[[Path], bool]) -> bool:
    """Return whether `root`, or a file among the first entries of its tree, satisfies `fits`.

    Reads at most 1,000 entries per folder and about 10,000 in total, depth first: detection must
    not walk millions of files.
    """
    return fits(root) if is_file(root) else any(map(fits, _first_files(root)))


def has_folder(root: Path, fits: Callable[[Path, set[str]], bool]) -> bool:
    """Like `has_file`, for a folder that satisfies `fits`, called with its entry names."""
    return is_directory(root) and any(
        fits(folder, {*names}) for folder, names in _first_entries(root)
    )


def first_files(root: Path, max_files: int) -> list[Path]:
    """Return at most `max_files` files among the first entries of a folder tree, sorted."""
    return sorted(islice(_first_files(root), max_files))


def find_folders(root: Path, fits: Callable[[Path, set[str]], bool]) -> list[Path]:
    """Return all folders from `root` down that satisfy `fits`, in path order.

    `fits` gets a folder and its entry names. Matching folders are not searched further.
    """
    matches: list[Path] = []

    def goes_down(folder: Path, names: dict[str, bool]) -> bool:
        if not fits(folder, {*names}):
            return True
        matches.append(folder)
        return False

    deque(walk(root, goes_down), 0)
    return _sort_paths(matches)


def find_files(root: Path, fits: Callable[[Path], bool]) -> list[Path]:
    """Return `root` or all files below it that satisfy `fits`, in natural path order."""
    if is_file(root):
        return [root] if fits(root) else []
    return _sort_paths(filter(fits, files_below(root)))


def files_below(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder, in any order; nothing if the folder is missing."""
    for parent, names in walk(folder) if is_directory(folder) else ():
        yield from (parent / name for name, is_folder in names.items() if not is_folder)


def by_key(keyed_paths: Iterable[tuple[str, Path]]) -> dict[str, Path]:
    """Map episode keys to paths. Raises `SourceError` for duplicate keys."""
    places: dict[str, Path] = {}
    for key, path in keyed_paths:
        if (earlier_path := places.setdefault(key, path)) is not path:
            raise SourceError(
                "duplicate episode key", file=str(earlier_path), episode=key, got=str(path)
            )
    return places


def key_of(path: Path, root: Path, *, ending: bool = False) -> str:
    """Return an episode's key: its path below `root`, with the file ending only if `ending`."""
    key_path = path if ending or not path.suffix else path.with_suffix("")
    return key_path.relative_to(root if root != path else root.parent).as_posix()


def natural_order(name: str) -> tuple[list[tuple[int, str]], str]:
    """Sort key with `frame_2` before `frame_10`; a total order."""
    parts = _DIGITS.split(name)
    # Numbers by their digits: Python converts no text of more than 4,300.
    digits = [part.lstrip("0") if i % 2 else part for i, part in enumerate(parts)]
    return [(len(part) if i % 2 else 0, part) for i, part in enumerate(digits)], name


def _flag(name: str, value: object) -> bool:
    # A text that is not JSON stays one in `--source-option`, and `no` would be true.
    try:
        return parse_flag(value)
    except ValueError as error:
        got = repr_of(value, 50)
        raise SourceError(f"invalid option {name}", expected="true or false", got=got) from error


def _first_files(root: Path) -> Iterator[Path]:
    for folder, names in _first_entries(root):
        yield from (folder / name for name, is_folder in names.items() if not is_folder)


def _first_entries(root: Path) -> Iterator[tuple[Path, dict[str, bool]]]:
    """Yield the first folders of a tree, each with entry names and whether they are folders."""
    num_entries = 0
    queue = [(root, 0)]
    while queue and num_entries < _MOST_ENTRIES:
        folder, depth = queue.pop()
        names = dict(islice(list_folder(folder), _MOST_OF_FOLDER))
        num_entries += len(names)
        yield folder, names
        if depth < MAX_DEPTH:
            queue.extend((folder / n, depth + 1) for n, is_folder in names.items() if is_folder)


def walk(
    root: Path, goes_down: Callable[[Path, dict[str, bool]], bool] = lambda *_: True
) -> Iterator[tuple[Path, dict[str, bool]]]:
    """Yield all folders from `root` down, each with its entries: name to whether it is a folder.

    `goes_down` gets folder and entries, and decides whether to visit the subfolders.
    """
    queue = [(root, 0)]
    while queue:
        folder, depth = queue.pop()
        check_depth(folder, depth)
        names = dict(list_folder(folder))
        yield folder, names
        if goes_down(folder, names):
            queue.extend((folder / n, depth + 1) for n, is_folder in names.items() if is_folder)


def _sort_paths(paths: Iterable[Path]) -> list[Path]:
    folders = lru_cache(maxsize=1024)(lambda folder: [*map(natural_order, folder.parts)])
    return sorted(paths, key=lambda path: [*folders(path.parent), natural_order(path.name)])


def check_depth(folder: Path, depth: int) -> None:
    """Raise `SourceError` for a folder nested more than `MAX_DEPTH` levels deep."""
    if depth > MAX_DEPTH:
        raise link_loop(folder) or SourceError(
            "folders nested too deeply", file=str(folder), expected=f"at most {MAX_DEPTH} levels"
        )
