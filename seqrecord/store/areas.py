"""Entry points of parts, loaded by name when a call needs them.

A part imports only the parts of docs/architecture.md's table; this registry, the only one, has the
names of what it loads from others. Other packages add formats by entry points of their own, see
`seqrecord.sources.SourceFormat`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqrecord.store.lazy import import_part

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

TABLES = "seqrecord.formats.indexing.tables:joined_table"
"""Function that provides a user's table for `join=`, see `companions.joined_tables`."""

COMPANIONS = "seqrecord.companions.opening:open_with_companions"
"""Function that joins a dataset with others, see `store.reading.opening.open_joined`."""

DICTIONARY = "seqrecord.companions.dictionaries:StoredDictionary"
"""Class of a dataset's dictionaries, a `store.reading.text_dictionaries.TextDictionary`."""

IS_ORIGINAL = "seqrecord.formats.indexing.originals:is_original"
"""Function that returns whether a location is an original."""

DEVICE = "seqrecord.cuda.devices:StreamDevice"
"""Class of devices for batches, a `seqrecord.loader.engine.devices.Device`."""

FRAME_CACHE = "seqrecord.frame_cache.frames:FrameFolder"
"""Class of folders with decoded frames, a `seqrecord.loader.engine.frame_readers.FrameReader`."""

EXTERNAL_FILES = "seqrecord.in_place.original_checks:OriginalFiles"
"""Class of a dataset's external files, see `store.reading.external_files.ExternalFiles`."""

STORAGES: Mapping[str, str] = {
    "file": "seqrecord.cloud.services:open_path",  # in a mount, or with options
    "*": "seqrecord.cloud.services:open_url",
}
"""Functions `open(location, options)` that open storages other than local disks, by URL scheme.

`*` is any scheme without an entry of its own.
"""

CACHE = "seqrecord.cloud.cache:CachedStorage"
"""Class that caches a storage on a local disk."""

PAGE_KINDS: Mapping[str, str] = {
    "raw": "seqrecord.store.format.raw_pages:RAW",
    "encoded": "seqrecord.store.format.encoded_pages:ENCODED",
    "video": "seqrecord.video.page_kind:VIDEO",
    "reference": "seqrecord.in_place.page_kind:REFERENCE",
}
"""Page kinds by name, see `store.format.page_kinds`."""

CLIPS = "seqrecord.loader.clips.layouts:find_clips"
"""Function that enumerates the clips of a dataset, for summaries."""

STATISTICS = "seqrecord.loader.frames.compute_statistics:compute_statistics"
"""Function that computes statistics of frames, see `Dataset.compute_statistics`."""

MIX_FILE = "seqrecord.recipes.mix_file:load_mix"
"""Function that makes a mix of a file, see `SeqRecordMix.from_file`."""

MIX_SUMMARY = "seqrecord.recipes.summary:MixSummary"
"""Class that describes a mix, see `SeqRecordMix.summarize`."""

COLUMNS: Mapping[str, str] = {"camera": "seqrecord.camera.maker:CAMERA"}
"""Makers of columns by argument of the loaders, see `loader.pipes.registered_columns`."""

TEXT_VALUES = "seqrecord.tools.derive.text_values:TextValues"
"""Class of values of texts in batches, a `seqrecord.loader.pipes.text_columns.TextColumns`."""

MIXED_TEXT_VALUES = "seqrecord.tools.derive.mixed_text_values:MixedValues"
"""The same in batches of mixes, a `MixedTextColumns`."""

ORDERS: Mapping[str, str] = {
    "clips": "seqrecord.loader.sampling.clip_order:CLIPS",
    "sequences": "seqrecord.loader.sampling.sequences:SEQUENCES",
}
"""Orders of epochs by name, see `loader.sampling.orders`."""

CODEC_KINDS: Mapping[str, str] = {"video": "video"}
"""Page kind by the id of a feature's codec. With other codecs, pages are `encoded`."""

CODEC_CHECKS: Mapping[str, str] = {"video": "seqrecord.video.config:video_config"}
"""Functions of the codecs in `CODEC_KINDS` that check a chain: `(configs, dtype, shape)`."""

NAMED_CODECS: Mapping[str, str] = dict.fromkeys(
    ("h264", "hevc", "av1", "vp9", "ffv1"), "seqrecord.video.config:named_video"
)
"""Functions that make a chain of a codec's name: `(text, dtype, shape)`; see `codecs.presets`."""


def load_entry(entry_point: str) -> Any:
    """Import the object at `module:name`."""
    module, _, name = entry_point.partition(":")
    return getattr(import_part(module), name)
