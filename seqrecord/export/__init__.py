"""Gives datasets to others: as files, LeRobot datasets, MCAP recordings of ROS 2; on the Hub."""

from typing import TYPE_CHECKING

from seqrecord.lazy import lazy

if TYPE_CHECKING:
    from seqrecord.export.files import to_files
    from seqrecord.export.hub import HubPush, to_hub
    from seqrecord.export.lerobot import to_lerobot
    from seqrecord.export.mcap import to_mcap

__all__ = ["HubPush", "to_files", "to_hub", "to_lerobot", "to_mcap"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "HubPush": "hub",
            "to_files": "files",
            "to_hub": "hub",
            "to_lerobot": "lerobot",
            "to_mcap": "mcap",
        },
    )
