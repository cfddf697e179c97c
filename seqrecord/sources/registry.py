"""The kinds of original data that are known, and which of them lies at a path."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from seqrecord.errors import SeqRecordError, SourceError
from seqrecord.sources.base import FoundSource, Source, SourceFormat
from seqrecord.sources.common.file_types import file_type
from seqrecord.sources.common.files import find_original, is_file, list_folder
from seqrecord.sources.common.nested import check_nested
from seqrecord.sources.common.originals import first_files
from seqrecord.sources.common.remote import is_url, open_remote, remote_files
from seqrecord.storage import StorageLike
from seqrecord.text import repr_of

DATASET = "seqrecord"
"""The format of datasets of this package, which are looked for first, and on any storage."""


BUILT_IN: Mapping[str, str] = {
    "tartanair": "tartanair.source",
    "lerobot": "lerobot.source",
    "mcap": "mcap.source",
    "rlds": "rlds.source",
    "hdf5": "hdf5.source",
    "zarr": "zarr.source",
    "tum": "tum",
    "euroc": "euroc",
    "kitti": "kitti",
    "videos": "video.source",
    "webdataset": "webdataset.source",
    "folders": "folders.source",  # the last one: errors list formats in this order
}
"""The formats of this package by name: the modules below `seqrecord.sources` that read them,
imported at first use."""

ENTRY_POINTS = "seqrecord.sources"
"""The group of entry points by which other packages add formats."""

_LOOKED_AT = 100  # files whose type is looked at where nothing fits
_SHOWN = 6  # names of what lies in a folder that nothing fits


class OptionError(SourceError):
    """An option that the format of what lies there does not take."""


def open_original(
    path: StorageLike,
    *,
    format: str | None = None,  # noqa: A002 - the option's name on the command line
    features: Sequence[str] | None = None,
    keep_encoded: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    options: Mapping[str, Any],
) -> Source:
    """See `open_source`, for originals only."""

    def found(original: Path) -> Source:
        opening = _Opening(original, features, keep_encoded, dict(options))
        return opening.find() if format is None else opening.named(format)

    if isinstance(path, (str, os.PathLike)) and not is_url(path):
        return found(find_original(path))
    return open_remote(path, storage_options, found)


def format_names() -> list[str]:
    """The names of all formats, those of this package first."""
    return [DATASET, *BUILT_IN, *sorted(point.name for point in _points())]


@dataclass
class _Opening:
    """One call of `open_source`; `tried` is what came of each format, in words."""

    path: Path
    features: Sequence[str] | None
    keep_encoded: bool
    options: dict[str, Any]
    tried: list[str] = field(default_factory=lambda: [f"{DATASET} (manifest.json of a dataset)"])

    def named(self, name: str) -> Source:
        wanted = _format(name)
        self._check_options(wanted)
        source = self._try(wanted)
        if source is None:
            raise SourceError(
                f"nothing here of the format {name}",
                file=str(self.path),
                expected=wanted.layout,
                got="; ".join([_contents(self.path), *_types(self.path)]),
            )
        return source

    def find(self) -> Source:
        formats = [*map(_built_in, BUILT_IN), *self._added()]
        for is_fallback in (False, True):
            if is_fallback:
                check_nested(self.path, only_lerobot=True)
            candidates = [each for each in formats if each.is_fallback == is_fallback]
            found = [(each, source) for each in candidates if (source := self._try(each))]
            if len(found) > 1:
                names = ", ".join(each.name for each, _ in found)
                raise SourceError(
                    "more than one format fits: choose one by --format NAME, or format=",
                    file=str(self.path),
                    expected="; ".join(f"{each.name} ({each.layout})" for each, _ in found),
                    got=f"{names} of {', '.join(each.name for each in formats)}",
                )
            for each, source in found:
                self._check_options(each)
                return source
        check_nested(self.path, only_lerobot=False)
        problem, tried = "nothing here that can be packed", "; ".join(self.tried)
        if types := _types(self.path):
            problem, tried = f"{problem}: {'; '.join(types)}", ", ".join(format_names())
        raise SourceError(
            problem,
            file=str(self.path),
            expected=f"one of these formats: {tried}",
            got=_contents(self.path),
        )

    def _try(self, wanted: SourceFormat) -> FoundSource | None:
        """The source, if there is one of this format."""
        self.tried.append(f"{wanted.name} ({wanted.layout})")
        if is_file(self.path) and not wanted.takes_files:
            return None
        if remote_files(self.path) is not None and not wanted.takes_urls:
            return None
        options = {k: v for k, v in self.options.items() if k in wanted.options}
        options |= {"features": self.features, "keep_encoded": self.keep_encoded}
        source = wanted.make(self.path, **options)
        return source if source.exists() else None

    def _added(self) -> list[SourceFormat]:
        """The formats of other packages; one that cannot be loaded has been tried, no more."""
        found = []
        for point in _points():
            try:
                found.append(_loaded(point))
            except SourceError as error:
                self.tried.append(f"{point.name} ({error.message}: {error.got})")
        return found

    def _check_options(self, chosen: SourceFormat) -> None:
        for name in self.options:
            if name not in chosen.options:
                raise OptionError(
                    f"{name} cannot be chosen for the format {chosen.name}: leave it out",
                    file=str(self.path),
                    expected=", ".join(chosen.options) or "no options",
                    got=name,
                )


def _format(name: str) -> SourceFormat:
    if name in BUILT_IN:
        return _built_in(name)
    points = [point for point in _points() if point.name == name]
    if len(points) > 1:
        raise SourceError(
            f"two packages add a format named {name}", got=", ".join(p.value for p in points)
        )
    for point in points:
        return _loaded(point)
    raise SourceError("no such format", expected=f"one of {', '.join(format_names())}", got=name)


def _points() -> list[EntryPoint]:
    """Those of other packages: a name of this package's own formats cannot be taken."""
    own = (DATASET, *BUILT_IN)
    return [point for point in entry_points(group=ENTRY_POINTS) if point.name not in own]


def _built_in(name: str) -> SourceFormat:
    module = importlib.import_module(f"seqrecord.sources.{BUILT_IN[name]}")
    found: SourceFormat = module.FORMAT
    return found


def _loaded(point: EntryPoint) -> SourceFormat:
    refused = SourceError(
        f"the format {point.name} of another package cannot be loaded", file=point.value
    )
    try:
        loaded = point.load()
    except Exception as error:  # importing another package raises anything
        text = error.message if isinstance(error, SeqRecordError) else str(error)
        raise refused.located(got=f"{type(error).__name__}: {text}"[:200]) from error
    if not isinstance(loaded, SourceFormat) or loaded.name != point.name:
        wanted = f"a SourceFormat named {point.name}"
        raise refused.located(expected=wanted, got=repr_of(loaded))
    return loaded


def _contents(path: Path) -> str:
    """What lies at a path that no format fits, in words."""
    if is_file(path):
        return "a file"
    entries = sorted(list_folder(path))
    names = [f"{name}/" if is_folder else name for name, is_folder in entries]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}" if names else "an empty folder"


def _types(path: Path) -> list[str]:
    """Files that must be unpacked, fetched or converted first: the first of each type, in words."""
    types: dict[str, str] = {}
    for file in [path] if is_file(path) else first_files(path, _LOOKED_AT):
        if (kind := file_type(file)) is not None:
            types.setdefault(kind.replace(file.name, "FILE"), f"{file.name} is {kind}")
    return [*types.values()][:_SHOWN]
