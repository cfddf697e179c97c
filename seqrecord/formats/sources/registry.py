"""Registry of source formats, and detection of the format at a path."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from seqrecord.errors import SeqRecordError, SourceError
from seqrecord.formats.sources.common.images import IMAGE_ENDINGS
from seqrecord.formats.sources.common.nested import check_nested
from seqrecord.formats.sources.common.originals import first_files
from seqrecord.in_place.boundary import boundary
from seqrecord.in_place.file_types import file_type
from seqrecord.in_place.files import NoOriginalError, find_original, is_file, list_folder
from seqrecord.in_place.remote import is_url, remote_files
from seqrecord.in_place.remote_source import open_remote
from seqrecord.store.areas import DATASET, FORMATS, load_entry
from seqrecord.store.originals.protocol import FoundSource, Source, SourceFormat
from seqrecord.store.storage.opening import StorageLike
from seqrecord.store.text import counted, repr_of

ENTRY_POINTS = "seqrecord.sources"
"""Entry point group for formats of other packages."""

_TYPED_FILES = 100  # files whose type is detected if no format matches
_SHOWN = 6  # folder entries in the error if no format matches


class OptionError(SourceError):
    """The detected format does not support an option."""


def open_original(
    path: StorageLike,
    *,
    format: str | None = None,  # noqa: A002 - the option's name on the command line
    features: Sequence[str] | None = None,
    keep_encoded: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    options: Mapping[str, Any],
) -> Source:
    """Open a foreign dataset; see `open_source`."""

    def open_path(original: Path) -> Source:
        opening = _Opening(original, features, keep_encoded, dict(options))
        return opening.find() if format is None else opening.open_named(format)

    if isinstance(path, (str, os.PathLike)) and not is_url(path):
        return open_path(find_original(path))
    return open_remote(path, storage_options, open_path)


def format_names() -> list[str]:
    """Return the names of all formats, built-in ones first.

    Example:
        from seqrecord.sources import format_names

        print(format_names())
    """
    return [DATASET, *FORMATS, *sorted(point.name for point in _points())]


@dataclass
class _Opening:
    """One call of `open_source`. `attempts` describes the formats tried so far, for errors."""

    path: Path
    features: Sequence[str] | None
    keep_encoded: bool
    options: dict[str, Any]
    attempts: list[str] = field(default_factory=lambda: [f"{DATASET} (manifest.json of a dataset)"])

    def open_named(self, name: str) -> Source:
        source_format = _format(name)
        self._check_options(source_format)
        source = self._try(source_format)
        if source is None:
            raise SourceError(
                f"no data in the format {name}",
                file=str(self.path),
                expected=source_format.layout,
                got="; ".join([_contents(self.path), *_types(self.path)]),
            )
        return source

    def find(self) -> Source:
        formats = [*map(_built_in, FORMATS), *self._external_formats()]
        for is_fallback in (False, True):
            if is_fallback:
                check_nested(self.path, only_lerobot=True)
            candidates = [
                candidate for candidate in formats if candidate.is_fallback == is_fallback
            ]
            matches = [
                (candidate, source) for candidate in candidates if (source := self._try(candidate))
            ]
            if len(matches) > 1:
                names = ", ".join(match.name for match, _ in matches)
                raise NoOriginalError(
                    "several formats match; choose one (--format NAME or format=)",
                    file=str(self.path),
                    expected="; ".join(f"{match.name} ({match.layout})" for match, _ in matches),
                    got=f"{names} of {', '.join(source_format.name for source_format in formats)}",
                )
            for match, source in matches:
                self._check_options(match)
                return source
        check_nested(self.path, only_lerobot=False)
        if images := _flat_images(self.path):
            raise NoOriginalError(
                "images without a folder of their feature; move them into a subfolder, which names "
                f"it: `mkdir image; mv *{Path(images[0]).suffix} image/`",
                file=str(self.path),
                expected="EPISODE/FEATURE/000000.png; EPISODE may be this folder",
                got=f"{counted(len(images), 'image')} such as {images[0]}",
            )
        problem, attempts = "no supported dataset found", "; ".join(self.attempts)
        if types := _types(self.path):
            problem, attempts = f"{problem}: {'; '.join(types)}", ", ".join(format_names())
        raise NoOriginalError(
            problem,
            file=str(self.path),
            expected=f"a supported format: {attempts}",
            got=_contents(self.path),
        )

    def _try(self, source_format: SourceFormat) -> FoundSource | None:
        """Return the source if the path contains this format."""
        self.attempts.append(f"{source_format.name} ({source_format.layout})")
        if is_file(self.path) and not source_format.takes_files:
            return None
        if remote_files(self.path) is not None and not source_format.takes_urls:
            return None
        options = {k: v for k, v in self.options.items() if k in source_format.options}
        options |= {"features": self.features, "keep_encoded": self.keep_encoded}
        with boundary(file=str(self.path)):
            source = source_format.make(self.path, **options)
            return source if source.exists() else None

    def _external_formats(self) -> list[SourceFormat]:
        """Return the formats of other packages. One that fails to load is in `attempts`."""
        formats = []
        for point in _points():
            try:
                formats.append(_load(point))
            except SourceError as error:
                self.attempts.append(f"{point.name} ({error.message}: {error.got})")
        return formats

    def _check_options(self, source_format: SourceFormat) -> None:
        for name in self.options:
            if name not in source_format.options:
                raise OptionError(
                    f"the format {source_format.name} has no option {name}; remove it",
                    file=str(self.path),
                    expected=", ".join(source_format.options) or "no options",
                    got=name,
                )


def _format(name: str) -> SourceFormat:
    if name in FORMATS:
        return _built_in(name)
    points = [point for point in _points() if point.name == name]
    if len(points) > 1:
        raise SourceError(
            f"two packages add a format named {name}", got=", ".join(p.value for p in points)
        )
    for point in points:
        return _load(point)
    raise SourceError("unknown format", expected=f"one of {', '.join(format_names())}", got=name)


def _points() -> list[EntryPoint]:
    """Return other packages' entry points. Names of built-in formats are ignored."""
    changes = []
    for folder in sys.path:
        with contextlib.suppress(OSError):
            changes.append((folder, Path(folder).stat().st_mtime_ns))
    return _entry_points(tuple(changes))


@functools.lru_cache(maxsize=1)
def _entry_points(_changes: tuple[tuple[str, int], ...]) -> list[EntryPoint]:
    """Read the entry points; cached until `sys.path` or one of its folders changes."""
    built_in_names = (DATASET, *FORMATS)
    return [point for point in entry_points(group=ENTRY_POINTS) if point.name not in built_in_names]


def _built_in(name: str) -> SourceFormat:
    source_format: SourceFormat = load_entry(f"seqrecord.formats.sources.{FORMATS[name]}:FORMAT")
    return source_format


def _load(point: EntryPoint) -> SourceFormat:
    refusal = SourceError(
        f"cannot load the format {point.name} of another package", file=point.value
    )
    try:
        source_format = point.load()
    except Exception as error:  # importing another package raises anything
        text = error.message if isinstance(error, SeqRecordError) else str(error)
        raise refusal.located(got=f"{type(error).__name__}: {text}"[:200]) from error
    if not isinstance(source_format, SourceFormat) or source_format.name != point.name:
        expected = f"a SourceFormat named {point.name}"
        raise refusal.located(expected=expected, got=repr_of(source_format))
    return source_format


def _contents(path: Path) -> str:
    """Describe a path's entries, for errors."""
    if is_file(path):
        return "a file"
    entries = sorted(list_folder(path))
    names = [f"{name}/" if is_folder else name for name, is_folder in entries]
    suffix = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{suffix}" if names else "an empty folder"


def _flat_images(path: Path) -> list[str]:
    """Return the images of a folder if they are most of its entries."""
    names = [] if is_file(path) else sorted(name for name, _ in list_folder(path))
    images = [name for name in names if Path(name).suffix.lower() in IMAGE_ENDINGS]
    return images if 2 * len(images) > len(names) else []


def _types(path: Path) -> list[str]:
    """Describe files to unpack, download or convert first: one per type."""
    types: dict[str, str] = {}
    for file in [path] if is_file(path) else first_files(path, _TYPED_FILES):
        if (kind := file_type(file)) is not None:
            types.setdefault(kind.replace(file.name, "FILE"), f"{file.name} is {kind}")
    return [*types.values()][:_SHOWN]
