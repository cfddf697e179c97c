"""An epoch as integers: which chunks to load, which clips to emit, which frames to free."""

from seqrecord.sampling.bounds import ClipStats, PlanSettings, resident_bounds
from seqrecord.sampling.epoch import EpochPlan, check_drop_last
from seqrecord.sampling.fixed_shards import Intervals, ShuffledPlan, shard_frames
from seqrecord.sampling.plan import Clips, Frees, GroupPlan, GroupRound, Loads, Plan, Round
from seqrecord.sampling.random_order import Phases
from seqrecord.sampling.runs import Shard, Window
from seqrecord.sampling.sequences import SequencePlan, count_unused_frames
from seqrecord.sampling.shard_batches import BatchDraws, DrawsByPlace, ShardBatches

__all__ = [
    "BatchDraws",
    "ClipStats",
    "Clips",
    "DrawsByPlace",
    "EpochPlan",
    "Frees",
    "GroupPlan",
    "GroupRound",
    "Intervals",
    "Loads",
    "Phases",
    "Plan",
    "PlanSettings",
    "Round",
    "SequencePlan",
    "Shard",
    "ShardBatches",
    "ShuffledPlan",
    "Window",
    "check_drop_last",
    "count_unused_frames",
    "resident_bounds",
    "shard_frames",
]
