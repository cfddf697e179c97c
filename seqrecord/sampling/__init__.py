"""An epoch as integers: which chunks to load, which clips to emit, which frames to free."""

from seqrecord.sampling.bounds import resident_bounds
from seqrecord.sampling.epoch import EpochPlan, check_drop_last
from seqrecord.sampling.facts import ClipFacts
from seqrecord.sampling.parts import Part
from seqrecord.sampling.phases import Phases
from seqrecord.sampling.plan import Clips, Frees, GroupPlan, GroupRound, Loads, Plan, Round
from seqrecord.sampling.sequences import SequencePlan, frames_left_out
from seqrecord.sampling.settings import PlanSettings
from seqrecord.sampling.windows import Window

__all__ = [
    "ClipFacts",
    "Clips",
    "EpochPlan",
    "Frees",
    "GroupPlan",
    "GroupRound",
    "Loads",
    "Part",
    "Phases",
    "Plan",
    "PlanSettings",
    "Round",
    "SequencePlan",
    "Window",
    "check_drop_last",
    "frames_left_out",
    "resident_bounds",
]
