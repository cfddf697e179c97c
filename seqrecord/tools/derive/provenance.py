"""The frames and arguments from which a derived dataset was computed, kept in its metadata.

Each episode's metadata has an entry `derived_from`::

    key, num_frames, frames, groups, uid, pages         see `episode_identity`
    per                                                 "frame" or "sample"
    function, version, arguments, features, keep        of `derive`
    clips                                               arguments that choose and prepare clips
    rows                                                digest of the samples, if `per` is "sample"
    normalized                                          digest of offsets and scales, if any
    packages                                            versions, for information
    derived_from                                        the source's own entry, if it has one
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from seqrecord.companions.episode_identity import episode_identity, match_identity
from seqrecord.errors import ClipError, FormatError, located
from seqrecord.store.reading.dataset import Dataset
from seqrecord.version import __version__

_PACKAGES = ("torch", "numpy", "diffusers", "transformers")
_MAX_TEXT = 200  # of an argument
_NO_VALUES = ("samples", "frame_cache", "memory_limit", "engine", "episodes", "split", "device")
"""Arguments that change no value, or which rows there are: these are in a digest."""


def _text_of(value: object) -> str:
    """Describe an argument: equal in each process, and a digest of a long text."""
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    return text if len(text) <= _MAX_TEXT else hashlib.sha256(text.encode()).hexdigest()


def function_name(function: Callable[..., Any]) -> str:
    """Return `module:name` of a function, or of an object's class."""
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{kind.__module__}:{kind.__qualname__}"


@cache
def package_versions() -> dict[str, str]:
    """Return the versions of this package, and of others on which values may depend."""
    versions = {"seqrecord": __version__}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def is_per_frame(clips: Mapping[str, Any]) -> bool:
    """Whether arguments ask for a frame per frame of the source, else per sample."""
    return all(clips.get(name) is None for name in ("samples", "windows", "clip_len"))


@dataclass(frozen=True)
class Settings:
    """The arguments of `derive` that decide values: JSON values."""

    values: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        version: str,
        arguments: Mapping[str, Any] | None,
        keep: Sequence[str],
        clips: Mapping[str, Any],
    ) -> Settings:
        """Describe the arguments of `derive`. Raises `ClipError` for arguments that are no JSON."""
        try:
            plain = json.loads(json.dumps(dict(arguments or {}), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ClipError(
                "arguments are no JSON", expected="numbers, texts, lists, dicts", got=str(error)
            ) from error
        return cls(
            {
                "per": "frame" if is_per_frame(clips) else "sample",
                "function": function_name(function),
                "version": version,
                "arguments": plain,
                "keep": [*keep],
                "clips": {
                    name: _text_of(value)
                    for name, value in sorted(clips.items())
                    if name not in _NO_VALUES and value is not None
                },
            }
        )

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Keyword arguments of the function."""
        arguments: Mapping[str, Any] = self.values["arguments"]
        return arguments

    @property
    def is_per_frame(self) -> bool:
        """Whether values are per frame of the source, else per sample."""
        return bool(self.values["per"] == "frame")


@dataclass(frozen=True)
class Derivation:
    """State of a derived dataset, with keys of its episodes.

    `current` have the values of the source as it is; `changed` were computed from other frames or
    samples, or with another function, version or arguments; `new` episodes of the source have no
    values, and `gone` ones are not in the source any more. `renamed` has old and new keys of
    episodes whose frames are the same. `new_texts` are texts without a value, by the name of the
    values.
    """

    current: tuple[str, ...]
    changed: tuple[str, ...]
    new: tuple[str, ...]
    gone: tuple[str, ...]
    renamed: Mapping[str, str]
    new_texts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def is_current(self) -> bool:
        """Whether nothing is to be computed, renamed or deleted."""
        return not (self.changed or self.new or self.gone or self.renamed or self.new_texts)


def entry_of(inputs: Dataset, number: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return an episode's entry; `inputs` are the source's features that values depend on.

    `facts` is the result of `compared`.
    """
    return {**episode_identity(inputs, number), **facts, "packages": package_versions()}


def compared(
    settings: Settings, features: Sequence[str], rows: str | None, normalized: str | None
) -> dict[str, Any]:
    """Return the part of an entry that must be equal for values to be current.

    `rows` is a digest of the episode's samples, if values are per sample; `normalized` of the
    offsets and scales of features, if there are any.
    """
    facts = {**settings.values, "features": [*features], "rows": rows}
    return facts if normalized is None else {**facts, "normalized": normalized}


def has_equal_frames(entry: Mapping[str, Any], inputs: Dataset, number: int, url: str) -> bool:
    """Whether the episode of `inputs` has exactly the frames that values were computed from.

    `url` is the derived dataset's.
    """
    num_frames = int(inputs.contents.index.num_frames[number])
    with located(FormatError, file=url):
        match = match_identity(entry, inputs, number)
    return match == range(num_frames) and entry.get("num_frames") == num_frames
