"""LeRobot's dataset and sampler, read by seqrecord; see docs/from-lerobot.md."""

from __future__ import annotations

from seqrecord.robots.lerobot.dataset import LeRobotDataset
from seqrecord.robots.lerobot.form import to_lerobot
from seqrecord.robots.lerobot.marking import mark_dataset
from seqrecord.robots.lerobot.mix import LeRobotMixDataset
from seqrecord.robots.lerobot.sampler import PlannedSampler

__all__ = ["LeRobotDataset", "LeRobotMixDataset", "PlannedSampler", "mark_dataset", "to_lerobot"]
