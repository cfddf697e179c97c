"""Sources: read episodes from datasets in other formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqrecord.lazy import lazy

if TYPE_CHECKING:
    from seqrecord.codecs.video.decoding import describe_video as describe_video
    from seqrecord.codecs.video.depth import DepthScale as DepthScale
    from seqrecord.codecs.video.gops import Gop as Gop
    from seqrecord.format.inventory import Inventory as Inventory
    from seqrecord.format.inventory import LeftOut as LeftOut
    from seqrecord.originals.inventory import Account as Account
    from seqrecord.originals.inventory import inventory_of as inventory_of
    from seqrecord.originals.protocol import EpisodeInfo as EpisodeInfo
    from seqrecord.originals.protocol import FoundSource as FoundSource
    from seqrecord.originals.protocol import Source as Source
    from seqrecord.originals.protocol import SourceFormat as SourceFormat
    from seqrecord.sources.euroc import EurocSource as EurocSource
    from seqrecord.sources.folders.source import FolderSource as FolderSource
    from seqrecord.sources.hdf5.source import Hdf5Source as Hdf5Source
    from seqrecord.sources.inventory import unread_files as unread_files
    from seqrecord.sources.kitti import KittiSource as KittiSource
    from seqrecord.sources.lerobot.source import LeRobotSource as LeRobotSource
    from seqrecord.sources.mcap.source import McapSource as McapSource
    from seqrecord.sources.registry import format_names as format_names
    from seqrecord.sources.rlds.source import RldsSource as RldsSource
    from seqrecord.sources.scenes.source import SceneSource as SceneSource
    from seqrecord.sources.tartanair.source import TartanAirSource as TartanAirSource
    from seqrecord.sources.tum import TumSource as TumSource
    from seqrecord.sources.undistorting import undistorted as undistorted
    from seqrecord.sources.video.source import VideoSource as VideoSource
    from seqrecord.sources.webdataset.source import WebDatasetSource as WebDatasetSource
    from seqrecord.sources.zarr.source import ZarrSource as ZarrSource

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = lazy(__name__)
