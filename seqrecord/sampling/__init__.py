"""An epoch as integers: which chunks to load, which clips to emit, which frames to free."""

from seqrecord.sampling.blocks import ClipFacts, resident_bound
from seqrecord.sampling.epoch import EpochPlan, check_drop_last
from seqrecord.sampling.parts import Part
from seqrecord.sampling.phases import Phases
from seqrecord.sampling.rounds import Clips, Frees, Loads, Round
from seqrecord.sampling.settings import PlanSettings

__all__ = [
    "ClipFacts",
    "Clips",
    "EpochPlan",
    "Frees",
    "Loads",
    "Part",
    "Phases",
    "PlanSettings",
    "Round",
    "check_drop_last",
    "resident_bound",
]
