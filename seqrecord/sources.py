"""Sources: read episodes from datasets in other formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqrecord.store.lazy import lazy

if TYPE_CHECKING:
    from seqrecord.formats.sources.euroc import EurocSource as EurocSource
    from seqrecord.formats.sources.folders.source import FolderSource as FolderSource
    from seqrecord.formats.sources.hdf5.source import Hdf5Source as Hdf5Source
    from seqrecord.formats.sources.inventory import unread_files as unread_files
    from seqrecord.formats.sources.kitti import KittiSource as KittiSource
    from seqrecord.formats.sources.lerobot.source import LeRobotSource as LeRobotSource
    from seqrecord.formats.sources.mcap.source import McapSource as McapSource
    from seqrecord.formats.sources.registry import format_names as format_names
    from seqrecord.formats.sources.rlds.source import RldsSource as RldsSource
    from seqrecord.formats.sources.scenes.source import SceneSource as SceneSource
    from seqrecord.formats.sources.tartanair.source import TartanAirSource as TartanAirSource
    from seqrecord.formats.sources.tum import TumSource as TumSource
    from seqrecord.formats.sources.undistorting import undistorted as undistorted
    from seqrecord.formats.sources.video.source import VideoSource as VideoSource
    from seqrecord.formats.sources.webdataset.source import WebDatasetSource as WebDatasetSource
    from seqrecord.formats.sources.zarr.source import ZarrSource as ZarrSource
    from seqrecord.store.format.inventory import Inventory as Inventory
    from seqrecord.store.format.inventory import LeftOut as LeftOut
    from seqrecord.store.originals.inventory import Account as Account
    from seqrecord.store.originals.inventory import inventory_of as inventory_of
    from seqrecord.store.originals.protocol import EpisodeInfo as EpisodeInfo
    from seqrecord.store.originals.protocol import FoundSource as FoundSource
    from seqrecord.store.originals.protocol import Source as Source
    from seqrecord.store.originals.protocol import SourceFormat as SourceFormat
    from seqrecord.video.decoding import describe_video as describe_video
    from seqrecord.video.depth import DepthScale as DepthScale
    from seqrecord.video.gops import Gop as Gop

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = lazy(__name__)
