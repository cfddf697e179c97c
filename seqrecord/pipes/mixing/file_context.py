"""A mix file being loaded: its path, the settings for all sources, and places for errors."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqrecord.errors import ClipError, SeqRecordError
from seqrecord.pipes.mixing.file_values import check_keys
from seqrecord.reading.dataset import Dataset
from seqrecord.reading.resizing import images_of
from seqrecord.storage.url import local_path, parse_location

_RANGE = re.compile(r"range\((?:(-?\d+), )?(-?\d+)(?:, (-?\d+))?\)")
_BY_FEATURE = ("windows", "resize", "ragged", "clip_transform")

_FIRST = ("rename", "features", "frame_transform")  # others depend on them


@dataclass
class Default:
    """A top-level key that applies to all sources without a value of their own.

    Features that a source lacks are ignored in it. `unused` are features of no source so far,
    `seen` the features of all sources.
    """

    key: str
    value: Any
    where: str
    is_applied: bool = False
    unused: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        by_name = self.key in (*_BY_FEATURE, "rename") and isinstance(self.value, Mapping)
        if by_name or (self.key == "features" and isinstance(self.value, (list, tuple))):
            self.unused = set(self.value)

    def see(self, names: Iterable[str]) -> None:
        """Note the features of a source."""
        self.seen.update(names)
        self.unused -= self.seen

    def value_for(self, options: Mapping[str, Any], dataset: Dataset) -> Any:
        """The value for a source with these options: its features only."""
        self.is_applied = True
        if self.key in _BY_FEATURE and options.get("frame_transform") is not None:
            self.see(self.unused)  # they may be arrays that it returns
            return self.value
        stored = [*dataset.schema]
        if self.key == "rename" and isinstance(self.value, Mapping):
            self.see(stored)
            return {old: new for old, new in self.value.items() if old in stored}
        rename, chosen = options.get("rename") or {}, options.get("features")
        names = {rename.get(name, name): name for name in stored}
        if self.key == "features" and isinstance(self.value, Sequence):
            self.see(names)
            if found := [names[name] for name in self.value if name in names]:
                return found
            problem, expected = "the source has none of the mix's features", ", ".join(names)
            raise ClipError(problem, expected=expected, got=", ".join(self.value))
        taken = [new for new, old in names.items() if chosen is None or old in chosen]
        if self.key not in _BY_FEATURE or not isinstance(self.value, Mapping):
            is_for_all = self.key != "resize" or images_of(dataset.select(chosen).features)
            return self.value if is_for_all else {}
        self.see(taken)
        return {name: one for name, one in self.value.items() if name in taken}


@dataclass(frozen=True)
class Context:
    """A mix file being loaded.

    Attributes:
        make: class of the mix.
        split: the split to take, whatever the file has.
        defaults: keys for sources without their own, by name, of this file and of outer ones.
        files: this file is the last, nested in the others.
        fallbacks: `clip_len` and `batch_size` if there are none.
        names: of the sources of all files so far.
    """

    make: Callable[..., Any]
    split: str | None
    defaults: Mapping[str, Default]
    files: tuple[Path, ...]
    fallbacks: Mapping[str, Any] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """The file."""
        return self.files[-1]

    def resolved(self, location: str) -> str:
        """A path relative to the file's folder; URLs are unchanged."""
        if "://" in location or parse_location(location).protocol != "file":
            return location
        return os.path.normpath(self.path.parent / Path(location).expanduser())

    def add_defaults(self, options: dict[str, Any], dataset: Dataset) -> None:
        """Add the defaults to a source's options."""
        for key in dict.fromkeys((*_FIRST, *self.defaults)):
            if key not in self.defaults or key in options or key == "split":
                continue
            if key == "episodes" and "split" in options:
                continue
            value = self.defaults[key].value_for(options, dataset)
            if value or not isinstance(value, dict):
                options[key] = value
        if not {"windows", "clip_len", "samples"} & options.keys():
            # A frame alone, if the source has no feature with a window.
            length = 1 if "windows" in self.defaults else self.fallbacks.get("clip_len")
            options |= {} if length is None else {"clip_len": length}

    def check_used(self, defaults: Collection[Default]) -> None:
        """Raise `ClipError` if a default has a feature that no source has."""
        for default in defaults:
            if default.is_applied and default.unused:
                with self.naming(default.where):
                    check_keys(
                        "no source of the mix has this feature", default.unused, default.seen
                    )

    @contextmanager
    def naming(self, what: str, lines: Mapping[str, str] | None = None) -> Iterator[None]:
        """Add a place in the file to errors raised in the block.

        `lines` has places of keys: an error whose message begins with a key gets its place too.
        """
        try:
            yield
        except SeqRecordError as error:
            for name in ("expected", "got"):
                if isinstance(text := getattr(error, name), str):
                    setattr(error, name, _RANGE.sub(_as_yaml, text))
            key = error.message.split(maxsplit=1)[0].split(".")[0].rstrip(":")
            place = (lines or {}).get(key)
            file = None if error.file in (None, str(self.path)) else str(self.path)
            where = ", ".join(one for one in (file, place, what) if one)
            if where:
                error.message = f"{where}: {error.message}"
                error.args = (error.message,)
            raise error.located(file=str(self.path)) from error.__cause__


def absolute(path: str | os.PathLike[str]) -> Path:
    """The absolute path of a mix file. Raises `LocationError` for a URL."""
    return Path(os.path.abspath(local_path(path, "mix file")))  # noqa: PTH100 - links stay


def _as_yaml(found: re.Match[str]) -> str:
    """Return a range of Python in the form of the file."""
    start, stop, step = found.groups()
    parts = {"start": start or "0", "stop": stop, "step": step}
    return "{" + ", ".join(f"{name}: {part}" for name, part in parts.items() if part) + "}"
