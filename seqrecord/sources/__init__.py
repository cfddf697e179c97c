"""Where episodes come from: original datasets behind one protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqrecord.lazy import lazy
from seqrecord.sources.base import EpisodeInfo, FoundSource, Source, SourceFormat

if TYPE_CHECKING:
    from seqrecord.codecs.video.decoding import describe as describe_video
    from seqrecord.codecs.video.gops import Gop
    from seqrecord.sources.euroc import Euroc
    from seqrecord.sources.folders import Folders
    from seqrecord.sources.hdf5 import Hdf5
    from seqrecord.sources.inventory import (
        Account,
        Inventory,
        LeftOut,
        inventory_of,
        unread_files,
    )
    from seqrecord.sources.kitti import Kitti
    from seqrecord.sources.lerobot import LeRobot
    from seqrecord.sources.lerobot_videos import DepthScale
    from seqrecord.sources.mcap import Mcap
    from seqrecord.sources.registry import format_names, open_source
    from seqrecord.sources.rlds import Rlds
    from seqrecord.sources.tartanair import TartanAir
    from seqrecord.sources.tum import Tum
    from seqrecord.sources.videos import Videos
    from seqrecord.sources.webdataset import WebDataset
    from seqrecord.sources.zarr_buffers import ZarrBuffers

__all__ = [
    "Account",
    "DepthScale",
    "EpisodeInfo",
    "Euroc",
    "Folders",
    "FoundSource",
    "Gop",
    "Hdf5",
    "Inventory",
    "Kitti",
    "LeRobot",
    "LeftOut",
    "Mcap",
    "Rlds",
    "Source",
    "SourceFormat",
    "TartanAir",
    "Tum",
    "Videos",
    "WebDataset",
    "ZarrBuffers",
    "describe_video",
    "format_names",
    "inventory_of",
    "open_source",
    "unread_files",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "Account": "inventory",
            "DepthScale": "lerobot_videos",
            "Euroc": "euroc",
            "Folders": "folders",
            "Gop": "seqrecord.codecs.video.gops",
            "Hdf5": "hdf5",
            "Inventory": "inventory",
            "Kitti": "kitti",
            "LeRobot": "lerobot",
            "LeftOut": "inventory",
            "Mcap": "mcap",
            "Rlds": "rlds",
            "TartanAir": "tartanair",
            "Tum": "tum",
            "Videos": "videos",
            "WebDataset": "webdataset",
            "ZarrBuffers": "zarr_buffers",
            "describe_video": "seqrecord.codecs.video.decoding:describe",
            "format_names": "registry",
            "inventory_of": "inventory",
            "open_source": "registry",
            "unread_files": "inventory",
        },
    )
