"""An epoch as integers: which chunks to load, which clips to emit, which frames to free."""

from seqrecord.plan.epoch import EpochPlan, check_drop_last, resident_bound
from seqrecord.plan.phases import Phases
from seqrecord.plan.settings import PlanSettings, Split
from seqrecord.plan.steps import Clips, Frees, Loads, Round
from seqrecord.plan.widths import cursor_bound

__all__ = [
    "Clips",
    "EpochPlan",
    "Frees",
    "Loads",
    "Phases",
    "PlanSettings",
    "Round",
    "Split",
    "check_drop_last",
    "cursor_bound",
    "resident_bound",
]
