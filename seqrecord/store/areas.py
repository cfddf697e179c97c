"""Entry points of areas. The core imports no area; it loads these when a call needs them.

Areas are source formats, indexes of originals read in place, LeRobot, and tools. Other packages add
formats by entry points of their own, see `seqrecord.sources.SourceFormat`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

DATASET = "seqrecord"
"""Format name of seqrecord datasets, which are detected first, on any storage."""

FORMATS: Mapping[str, str] = {
    "tartanair": "tartanair.source",
    "lerobot": "lerobot.source",
    "mcap": "mcap.source",
    "rlds": "rlds.source",
    "hdf5": "hdf5.source",
    "zarr": "zarr.source",
    "tum": "tum",
    "euroc": "euroc",
    "kitti": "kitti",
    "scenes": "scenes.source",
    "videos": "video.source",
    "webdataset": "webdataset.source",
    "folders": "folders.source",  # the last one: errors list formats in this order
}
"""Built-in formats: name to module below `seqrecord.sources`, whose `FORMAT` describes it."""

IN_PLACE = "seqrecord.formats.indexing.originals:find_index"
"""Function that indexes an original, to read it in place."""

IS_ORIGINAL = "seqrecord.formats.indexing.originals:is_original"
"""Function that returns whether a location is an original."""


def load_entry(entry_point: str) -> Any:
    """Import the object at `module:name`."""
    module, _, name = entry_point.partition(":")
    return getattr(importlib.import_module(module), name)
