"""Writes datasets in formats of others: files of an episode, LeRobot, MCAP recordings of ROS 2."""

from typing import TYPE_CHECKING

from seqrecord.lazy import lazy

if TYPE_CHECKING:
    from seqrecord.export.files import to_files
    from seqrecord.export.lerobot import to_lerobot
    from seqrecord.export.mcap import to_mcap

__all__ = ["to_files", "to_lerobot", "to_mcap"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(
        __name__, {"to_files": "files", "to_lerobot": "lerobot", "to_mcap": "mcap"}
    )
