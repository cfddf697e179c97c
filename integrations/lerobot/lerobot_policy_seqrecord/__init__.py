"""Lets `lerobot-train` read by seqrecord: `SEQRECORD_LEROBOT=1 lerobot-train …`.

LeRobot imports this package when one of its commands starts. Without the variable that changes
nothing. With it, in the training command, `seqrecord.lerobot.LeRobotDataset` takes the place of
their class, and `PlannedSampler` that of their sampler. With `SEQRECORD_LEROBOT=class` the sampler
stays theirs: the same batches, in the same order. With `SEQRECORD_LEROBOT_MIX=mix.yaml` it trains
on the datasets of a mix file.

A LeRobot that takes readers of datasets, as its main branch does, is told of ours.
"""

from __future__ import annotations

from lerobot_policy_seqrecord.training import installed, registered

__all__ = ["installed", "registered"]

# First, because LeRobot only logs an error of the other.
installed()
registered()
