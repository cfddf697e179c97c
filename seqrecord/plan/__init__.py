"""An epoch as integers: which chunks to load, which clips to emit, which frames to free."""

from seqrecord.plan.epoch import (
    Clips,
    EpochPlan,
    Frees,
    Loads,
    PlanSettings,
    Round,
    Split,
    cursor_bound,
    resident_bound,
)

__all__ = [
    "Clips",
    "EpochPlan",
    "Frees",
    "Loads",
    "PlanSettings",
    "Round",
    "Split",
    "cursor_bound",
    "resident_bound",
]
