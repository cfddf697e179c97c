"""LeRobot's dataset and sampler, read by seqrecord; see docs/from-lerobot.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqrecord.store.lazy import lazy

if TYPE_CHECKING:
    from seqrecord.robots.lerobot.dataset import LeRobotDataset as LeRobotDataset
    from seqrecord.robots.lerobot.marking import mark_dataset as mark_dataset
    from seqrecord.robots.lerobot.mix import LeRobotMixDataset as LeRobotMixDataset
    from seqrecord.robots.lerobot.sampler import PlannedSampler as PlannedSampler

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = lazy(__name__)
