"""The schema of a tree of episode folders, from descriptions and the headers of first files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from seqrecord.errors import SourceError
from seqrecord.schema import CodecConfig, FeatureSpec, Schema
from seqrecord.sources.array_files import array_header
from seqrecord.sources.exported import ExportedFeature, read_description
from seqrecord.sources.folders_frames import check_time_axis
from seqrecord.sources.folders_tree import EpisodeFolder
from seqrecord.sources.images import IMAGE_FORMATS, image_header, kept_codec, load_imagecodecs
from seqrecord.sources.specs import feature_spec, widened

__all__ = ["find_schema"]

_Codec: TypeAlias = tuple[CodecConfig, ...]
_Probe: TypeAlias = Callable[[], tuple[FeatureSpec, "_Codec | None"]]
"""A feature as an episode has it, and the codec that keeps its images encoded.

That is empty if they cannot be kept, and `None` if the episode has none of them.
"""


def find_schema(
    root: Path,
    episodes: Mapping[str, EpisodeFolder],
    features: Sequence[str] | None,
    *,
    keep_encoded: bool,
) -> Schema:
    """The features of the episodes, by key: those asked for in that order, by default all.

    dtype comes from the first episode that has the feature; a dimension in which two episodes
    differ is variable. Exported features come first, in their order, then others by name. Raises
    `SourceError` for a feature that no episode has, or of which no first file is sound.
    """
    specs: dict[str, FeatureSpec] = {}
    codecs: dict[str, _Codec] = {}
    errors: dict[str, SourceError] = {}
    exported: dict[str, None] = {}
    offered: set[str] = set()
    for key, episode in episodes.items():
        try:
            probes = _exported(episode, keep_encoded) if episode.is_exported else _plain(episode)
        except SourceError as error:
            error.located(episode=key)
            errors.setdefault("", error)
            continue
        offered |= probes.keys()
        exported |= dict.fromkeys(probes if episode.is_exported else ())
        for name in probes if features is None else probes.keys() & set(features):
            try:
                spec, codec = probes[name]()
            except SourceError as error:
                error.located(episode=key, feature=name)
                errors.setdefault(name, error)
                continue
            specs[name] = widened(specs.get(name, spec), spec)
            if codec is not None:
                # Of an exported feature all files are known: one that is no image is enough.
                gives_up = episode.is_exported and not codec
                codecs[name] = () if gives_up else codecs.get(name, codec)
    for name in errors.keys() - specs.keys():
        if name or not specs:
            raise errors[name]
    names = list(features) if features is not None else [*exported, *sorted(offered - {*exported})]
    unknown = [name for name in names if name not in specs]
    if unknown or not names:
        raise SourceError(
            "no such feature in this tree",
            file=str(root),
            expected=f"some of {', '.join(sorted(offered))}",
            got=", ".join(unknown) or None,
        )
    if not keep_encoded:
        return Schema([specs[name] for name in names])
    return Schema([replace(specs[name], codec=codecs.get(name, ())) for name in names])


def _plain(episode: EpisodeFolder) -> dict[str, _Probe]:
    return {
        name: partial(_from_first_file, episode, name)
        for name in sorted({*episode.folders, *episode.arrays})
    }


def _exported(episode: EpisodeFolder, keep_encoded: bool) -> dict[str, _Probe]:
    return {
        feature.spec.name: partial(_as_exported, episode, feature, keep_encoded)
        for feature in read_description(episode.path).features
    }


def _as_exported(
    episode: EpisodeFolder, feature: ExportedFeature, keep_encoded: bool
) -> tuple[FeatureSpec, _Codec | None]:
    folder = episode.folders.get(feature.path)
    if folder is None or not keep_encoded:
        return feature.spec, None
    if not folder.all_images:
        return feature.spec, ()
    return feature.spec, kept_codec(image_header(episode.path / feature.path / folder.first))


def _from_first_file(episode: EpisodeFolder, name: str) -> tuple[FeatureSpec, _Codec]:
    """The feature as the header of this episode's first file declares it."""
    if name in episode.folders:
        path = episode.path / name / episode.folders[name].first
    else:
        path = episode.path / episode.arrays[name]
    if path.suffix.lower() in IMAGE_FORMATS:
        image = image_header(path)
        if image.dtype == np.uint16 and len(image.shape) == 3:
            load_imagecodecs(path)
        return feature_spec(name, image.dtype, image.shape, path), kept_codec(image)
    header = array_header(path)
    shape = header.shape
    if name in episode.arrays:
        check_time_axis(shape, path)
        shape = shape[1:]
    said = {"kind": "flow", "unit": "px"} if path.suffix.lower() == ".flo" else {}
    return feature_spec(name, header.dtype, shape, path, **said), ()
