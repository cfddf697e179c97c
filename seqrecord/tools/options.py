"""A loader's arguments as `plan` and `bench` take them: usual ones where they are left out."""

from __future__ import annotations

from dataclasses import dataclass

from seqrecord.pipes.options import LoaderOptions
from seqrecord.text import repr_of

_CLIP_LEN = 16


@dataclass(frozen=True, kw_only=True)
class ToolOptions(LoaderOptions):
    """`clip_len` is 16 where neither `windows` nor lists of frames say which frames a clip has."""

    batch_size: int | None = 4

    def __post_init__(self) -> None:
        if self.clip_len is None and self.windows is None and not self.lists_frames:
            object.__setattr__(self, "clip_len", _CLIP_LEN)
        super().__post_init__()

    @property
    def episode_filter(self) -> str | None:
        """What `episodes` was given, as a report names it."""
        return self.episodes if isinstance(self.episodes, str | None) else repr_of(self.episodes)
