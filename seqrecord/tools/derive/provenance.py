"""The frames and arguments from which a derived dataset was computed, kept in its metadata.

Each episode's metadata has an entry `derived_from`::

    key, num_frames, frames, groups, uid, pages         see `episode_identity`
    per                                                 "frame" or "sample"
    function, version, arguments, features, keep        of `derive`
    clips                                               arguments that choose and prepare clips
    rows                                                digest of the samples, if `per` is "sample"
    normalized                                          digest of offsets and scales, if any
    windows                                             digest of each input and kept feature in the
                                                        samples: its frames, and its form
    forms                                               digest of the form of each input: arguments,
                                                        shape, kind, unit, normalization
    columns                                             features beside the function's results
    labels                                              digest of the split and metadata
    packages                                            versions, for information
    derived_from                                        the source's own entry, if it has one

The results of a function depend on a part of them: the function, its version and arguments, and the
pages and windows of its inputs. Where this part is equal, results are reused. Entries of earlier
versions of this package lack `windows`, `columns` and `labels`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
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

_OF_FRAMES = ("windows", "clip_len", "stride", "dilation", "pad")
"""Arguments that decide which frames samples have: these are in the digests of windows."""

_OF_RESULTS = ("per", "function", "version", "arguments", "features")
"""Facts on which the results of a function depend, beside the frames of its inputs."""


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
    """The arguments of `derive` that decide values: JSON values.

    `clips` are the arguments that choose and prepare clips, as given.
    """

    values: Mapping[str, Any]
    clips: Mapping[str, Any]

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
            },
            clips,
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

    def form_of(self, feature: str) -> dict[str, str]:
        """Describe the arguments that decide the form of a feature's values: JSON values."""
        values = {name: self.clips[name] for name in sorted(self.clips)}
        for name, value in values.items():
            if isinstance(value, Mapping):
                values[name] = value.get(feature)
        ignored = (*_NO_VALUES, *_OF_FRAMES)
        return {
            name: _text_of(value)
            for name, value in values.items()
            if name not in ignored and value is not None
        }


@dataclass(frozen=True)
class Derivation:
    """State of a derived dataset, with keys of its episodes.

    `current` have the values of the source as it is; `changed` were computed from other frames or
    samples, or with another function, version or arguments, or have copies of other features,
    windows, metadata or splits; `new` episodes of the source have no values, and `gone` ones are
    not in the source any more. `renamed` has old and new keys of episodes whose frames are the
    same. `new_texts` are texts without a value, by the name of the values.
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


def entry_of(
    inputs: Dataset, number: int, facts: Mapping[str, Any], columns: Sequence[str]
) -> dict[str, Any]:
    """Return an episode's entry; `inputs` are the source's features that values depend on.

    `facts` is the result of `compared`, `columns` are the features beside the function's results.
    """
    identity = episode_identity(inputs, number)
    return {**identity, **facts, "columns": [*columns], "packages": package_versions()}


def compared(
    settings: Settings,
    features: Sequence[str],
    rows: str | None,
    normalized: str | None,
    windows: Mapping[str, str],
    forms: Mapping[str, str],
) -> dict[str, Any]:
    """Return the part of an entry that must be equal for values to be current.

    `rows` is a digest of the episode's samples, if values are per sample; `normalized` of the
    offsets and scales of features, if there are any; `windows` of each feature in the samples, and
    `forms` of each input without its frames.
    """
    facts = {**settings.values, "features": [*features], "rows": rows, "windows": windows}
    facts["forms"] = forms
    return facts if normalized is None else {**facts, "normalized": normalized}


def columns_in(
    entry: Mapping[str, Any], columns: Sequence[str], stored: Collection[str]
) -> list[str]:
    """Return the features beside the results of a stored episode.

    Earlier versions of this package did not list them: then those of the present `columns` that the
    derived dataset has, `stored`, which are all if nothing but masks is new.
    """
    listed = entry.get("columns")
    return listed if isinstance(listed, list) else [n for n in columns if n in stored]


def has_equal_facts(entry: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """Whether an entry has these facts. Windows count if the entry has any."""
    compared_facts = {name: value for name, value in facts.items() if name != "forms"}
    if "windows" not in entry:
        del compared_facts["windows"]
    return all(entry.get(name) == value for name, value in compared_facts.items())


def has_equal_results(
    entry: Mapping[str, Any],
    facts: Mapping[str, Any],
    features: Sequence[str],
    digests: str = "windows",
) -> bool:
    """Whether the facts on which results depend are equal, beside the pages of the inputs.

    `digests` are "windows", or "forms" if frames do not count.
    """
    known = entry.get(digests)
    if not isinstance(known, dict) or not isinstance(entry.get("columns"), list):
        return False  # of an earlier version of this package, which did not tell them apart
    return all(entry.get(name) == facts[name] for name in _OF_RESULTS) and all(
        known.get(name) == facts[digests][name] for name in features
    )


def has_equal_frames(entry: Mapping[str, Any], inputs: Dataset, number: int, url: str) -> bool:
    """Whether the episode of `inputs` has exactly the frames that values were computed from.

    `url` is the derived dataset's.
    """
    num_frames = int(inputs.contents.index.num_frames[number])
    with located(FormatError, file=url):
        match = match_identity(entry, inputs, number)
    return match == range(num_frames) and entry.get("num_frames") == num_frames
