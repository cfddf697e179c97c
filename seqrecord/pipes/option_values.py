"""Values of the loaders' arguments, each checked when it is created."""

from __future__ import annotations

import os
from dataclasses import dataclass
from os import PathLike

from seqrecord.pipes.checks import check, raise_if
from seqrecord.reading.frames import FrameFunction
from seqrecord.storage import local_path
from seqrecord.storage.base import MIN_CACHE_BYTES
from seqrecord.units import check_size, format_size, parse_size

_CACHE = "SEQRECORD_FRAME_CACHE"  # environment variable


@dataclass(frozen=True)
class FrameCache:
    """Folder for decoded frames on a local disk, and its greatest size: `frame_cache` of loaders.

    Example:
        cache = seqrecord.FrameCache("frames/", "200GiB")
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, batch_size=2, frame_cache=cache)

    Args:
        folder: local path; created if it is missing.
        limit: bytes, or text such as "200GiB", at least 1 MiB. Frames of other trainings that were
            not used since the loader was created make room.
    """

    folder: str | PathLike[str]
    limit: int | str

    def __post_init__(self) -> None:
        """Raise `ClipError` for an invalid limit, `LocationError` for a URL."""
        local_path(self.folder, "folder of a FrameCache")
        limit = parse_size(check_size("limit of a FrameCache", self.limit))
        expected = f"at least {format_size(MIN_CACHE_BYTES)}"
        raise_if(
            limit < MIN_CACHE_BYTES, "limit of a FrameCache is too small", expected, self.limit
        )

    @classmethod
    def from_environment(cls) -> FrameCache | None:
        """The cache of `SEQRECORD_FRAME_CACHE` and `SEQRECORD_FRAME_CACHE_LIMIT`, if both are set.

        Raises `ClipError` if only one is.
        """
        folder, limit = os.environ.get(_CACHE), os.environ.get(f"{_CACHE}_LIMIT")
        problem = f"only one of {_CACHE} and {_CACHE}_LIMIT is set"
        raise_if(bool(folder) != bool(limit), problem, "both, or none", folder or limit)
        return cls(folder, limit) if folder and limit else None


@dataclass(frozen=True)
class FrameTransform:
    """A function of frames and its properties: `frame_transform` of loaders.

    Example:
        half = seqrecord.FrameTransform(
            lambda frame: {"image": frame["image"][::2, ::2]}, deterministic=True
        )
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, batch_size=2, frame_transform=half)

    Args:
        function: a function from the dict of a frame's values to those of clips.
        deterministic: declares that the result for a frame is always the same. Results may then
            stay in memory across epochs.
        cache_key: text that identifies the function, for example `"undistort-2"`: results of a
            deterministic function are then kept in the `frame_cache`. Change it with the function.
    """

    function: FrameFunction
    deterministic: bool = False
    cache_key: str | None = None

    def __post_init__(self) -> None:
        """Raise `ClipError` for an invalid value."""
        check("function of a FrameTransform", self.function, callable(self.function), "a function")
        is_flag = isinstance(self.deterministic, bool)
        check("deterministic of a FrameTransform", self.deterministic, is_flag, "True or False")
        key: object = self.cache_key
        is_key = key is None or (isinstance(key, str) and key != "" and self.deterministic)
        expected = "a text, and deterministic=True"
        check("cache_key of a FrameTransform", key, is_key, expected)
