"""LeRobot's dataset and sampler, read by seqrecord; see docs/from-lerobot.md."""

from __future__ import annotations

from seqrecord.lerobot.dataset import LeRobotDataset
from seqrecord.lerobot.form import to_lerobot
from seqrecord.lerobot.marking import mark_dataset
from seqrecord.lerobot.mix import LeRobotMixDataset
from seqrecord.lerobot.sampler import PlannedSampler

__all__ = ["LeRobotDataset", "LeRobotMixDataset", "PlannedSampler", "mark_dataset", "to_lerobot"]
