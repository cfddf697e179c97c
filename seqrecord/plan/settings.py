"""What a plan is made for: the walk through an epoch, and the part of it."""

from __future__ import annotations

from dataclasses import dataclass

from seqrecord.errors import ClipError

__all__ = ["PlanSettings", "Split"]


@dataclass(frozen=True)
class Split:
    """Part `index` of `count` disjoint parts of an epoch, one for each rank and worker."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ClipError(
                "not a split of an epoch",
                expected="0 <= index < count",
                got=f"index {self.index} of {self.count}",
            )


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """How an epoch is walked; `budget.default_settings` chooses the last four.

    `open_episodes` cursors advance by blocks of about `block_frames` frames a round (see
    `widths.Widths`), in runs of about `run_frames` frames (`None`: as long as can be). A cursor's
    blocks begin with `first_block_frames` and at most double from one to the next. Without
    `shuffle` there is one cursor, nothing is cut and clips come in canonical order.

    With `equal` all splits have equally many clips; without it every clip is in exactly one.
    `rotate_phase` says that the clip tables of other epochs have other phases (see
    `phases.Phases`).
    """

    shuffle: bool = True
    seed: int = 0
    batch_size: int | None = None
    drop_last: bool = False
    equal: bool = True
    rotate_phase: bool = False
    open_episodes: int = 32
    block_frames: int = 8
    run_frames: int | None = 512
    first_block_frames: int = 8

    def __post_init__(self) -> None:
        for name in (
            "batch_size",
            "open_episodes",
            "block_frames",
            "run_frames",
            "first_block_frames",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ClipError(f"{name} is too small", expected="at least 1", got=value)
