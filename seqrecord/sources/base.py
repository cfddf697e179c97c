"""The Source protocol: where episodes come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from seqrecord.codecs import EncodedImage
from seqrecord.schema import Schema

__all__ = ["EpisodeInfo", "Source", "SourceFrame"]

SourceFrame = Mapping[str, "npt.NDArray[Any] | EncodedImage"]
"""One frame as a source yields it: arrays, or images that stay encoded as they are."""


@dataclass(frozen=True)
class EpisodeInfo:
    """What is known of an episode before its frames are read.

    `key` is unique in the source and in the dataset. `num_frames` comes from a listing.
    `metadata` is JSON: text, numbers, booleans, `None`, lists and dicts of them.
    """

    key: str
    num_frames: int
    metadata: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Source(Protocol):
    """Episodes to be packed. A source is picklable: `convert` sends it to its workers.

    `schema()` looks at as few files as it can; its codecs are empty except for features that
    stay encoded, since codecs are the writer's choice.
    `episodes()` lists all episodes in their final order, a function of the source alone.
    `frames(info)` reads one episode's frames in order, one at a time.

    Errors with an original file are `SourceError`s that name the file, the episode and what was
    expected; `frames` raises them, and `episodes` raises only what concerns the source as a whole.
    """

    def schema(self) -> Schema: ...

    def episodes(self) -> Sequence[EpisodeInfo]: ...

    def frames(self, info: EpisodeInfo) -> Iterator[SourceFrame]: ...
