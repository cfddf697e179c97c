"""Loader arguments of `bench`, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from seqrecord.pipes.options import LoaderOptions
from seqrecord.text import repr_of

_CLIP_LEN, _BATCH_SIZE = 16, 4
_REPORTED = (
    *("clip_len", "dilation", "features", "order", "shuffle", "seed", "batch_size"),
    *("split", "pad", "drop_last", "rotate_phase", "memory_limit"),
)


@dataclass(frozen=True, kw_only=True)
class ToolOptions(LoaderOptions):
    """`clip_len` defaults to 16 without `windows` and frame lists, and `batch_size` to 4 without
    `frames_per_batch`.
    """

    batch_size: int | None = _BATCH_SIZE

    def __post_init__(self) -> None:
        if self.frames_per_batch is not None and self.batch_size == _BATCH_SIZE:
            object.__setattr__(self, "batch_size", None)
        if self.clip_len is None and self.windows is None and not self.lists_frames:
            object.__setattr__(self, "clip_len", _CLIP_LEN)
        super().__post_init__()

    def settings(self, *names: str) -> dict[str, Any]:
        """The arguments shown in a report: common ones, `names`, and others as text if given."""
        keys, common = self.episodes, (*_REPORTED, *names, "stride", "episodes")
        others = [item for item in fields(LoaderOptions) if item.name not in common]
        given = {item.name: (getattr(self, item.name), item.default) for item in others}
        return {
            **{
                name: repr_of(value) for name, (value, usual) in given.items() if value is not usual
            },
            **{name: getattr(self, name) for name in (*_REPORTED, *names)},
            "stride": self.spec.stride,
            "episode_filter": keys if isinstance(keys, str | None) else repr_of(keys),
        }
