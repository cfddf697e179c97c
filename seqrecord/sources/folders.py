"""Any folder of per-episode folders of images and npy files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.errors import SchemaError, SourceError
from seqrecord.schema import CodecConfig, FeatureSpec, Schema
from seqrecord.sources.arrays import npy_header
from seqrecord.sources.base import EpisodeInfo, SourceFrame
from seqrecord.sources.files import local_root
from seqrecord.sources.folders_frames import check_time_axis, read_frames
from seqrecord.sources.folders_tree import METADATA, EpisodeFolder, find_episodes, read_metadata
from seqrecord.sources.images import image_header, load_imagecodecs

__all__ = ["Folders"]


@dataclass(frozen=True)
class Folders:
    """A tree of episode folders as a source.

    ::

        ROOT/…/EPISODE/FEATURE/000000.png     one file a frame: png, jpg or npy
        ROOT/…/EPISODE/FEATURE.npy            the whole episode, time first: float32 [T, 32]
        ROOT/…/EPISODE/metadata.json          a JSON object, if there is one

    Episodes lie at any depth and are named by their path below `root`. Frames are in the order of
    the numbers in their names, and all feature folders of an episode hold the same names. An npy
    file beside the feature folders holds a whole episode unless its name has a number of its own.

    Images give uint8 or uint16 [H, W] (grayscale, or the indices of a palette), [H, W, 3] RGB or
    [H, W, 4] RGBA. dtype comes from the first episode that has the feature; a dimension in which
    the first frames of two episodes differ is variable. `features` are the names to read, in that
    order, by default all. With `keep_encoded` RGB images stay PNG or JPEG.

    A source is a snapshot: its schema is worked out once and travels with it when it is pickled.
    """

    root: str | os.PathLike[str]
    features: Sequence[str] | None = None
    keep_encoded: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", local_root(self.root))
        if self.features is not None:
            object.__setattr__(self, "features", tuple(self.features))

    def schema(self) -> Schema:
        return self._schema

    def episodes(self) -> Sequence[EpisodeInfo]:
        return [self._info(episode) for episode in self._episodes]

    def frames(self, info: EpisodeInfo) -> Iterator[SourceFrame]:
        try:
            yield from read_frames(self._folder(info.key), self.schema())
        except SourceError as error:
            error.located(episode=info.key)
            raise

    def exists(self) -> bool:
        """Whether there is an episode below `root`."""
        return bool(self._found)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_found"}

    @cached_property
    def _found(self) -> list[EpisodeFolder]:
        return find_episodes(Path(self.root))

    @property
    def _episodes(self) -> list[EpisodeFolder]:
        if not self.exists():
            raise SourceError(
                "no episode found",
                file=str(self.root),
                expected="folders with FEATURE/000000.png (or jpg, npy), or with FEATURE.npy",
            )
        return self._found

    @cached_property
    def _schema(self) -> Schema:
        specs: dict[str, FeatureSpec] = {}
        errors: dict[str, SourceError] = {}
        for episode in self._episodes:
            for name in sorted({*episode.folders, *episode.arrays}):
                if self.features is None or name in self.features:
                    try:
                        spec = self._probe(episode, name)
                    except SourceError as error:
                        error.located(episode=self._key(episode.path), feature=name)
                        errors.setdefault(name, error)
                    else:
                        specs[name] = _widened(specs.get(name, spec), spec)
        for name in errors.keys() - specs.keys():  # no episode has a sound first file
            raise errors[name]
        names = sorted(specs) if self.features is None else self.features
        unknown = [name for name in names if name not in specs]
        if unknown or not names:
            offered = {n for episode in self._episodes for n in (*episode.folders, *episode.arrays)}
            raise SourceError(
                "no such feature in this tree",
                file=str(self.root),
                expected=f"some of {', '.join(sorted(offered))}",
                got=", ".join(unknown) or None,
            )
        return Schema([specs[name] for name in names])

    def _probe(self, episode: EpisodeFolder, name: str) -> FeatureSpec:
        """The feature as the header of this episode's first file declares it."""
        codec: tuple[CodecConfig, ...] = ()
        if name in episode.folders:
            path = episode.path / name / episode.folders[name].first
        else:
            path = episode.path / episode.arrays[name]
        if path.suffix.lower() == ".npy":
            npy = npy_header(path)
            dtype, shape = npy.dtype, npy.shape
            if name in episode.arrays:
                check_time_axis(shape, path)
                shape = shape[1:]
        else:
            image = image_header(path)
            dtype, shape = image.dtype, image.shape
            if image.mode == "RGB" and dtype == np.uint8 and self.keep_encoded:
                codec = ({"id": "seqrecord.image", "format": image.format},)
            if dtype == np.uint16 and len(shape) == 3:
                load_imagecodecs(path)
        try:
            return FeatureSpec(name, dtype, shape, codec)
        except SchemaError as error:
            raise SourceError(
                error.message, file=str(path), expected=error.expected, got=error.got
            ) from error

    def _key(self, path: Path) -> str:
        relative = path.relative_to(self.root).as_posix()
        return path.name if relative == "." else relative

    def _folder(self, key: str) -> Path:
        root = Path(self.root)
        if not {"", "..", "/"}.intersection((key, *Path(key).parts)):
            for path in (root / key, root):
                if path.is_dir() and self._key(path) == key:
                    return path
        raise SourceError("no such episode", file=str(root))

    def _info(self, episode: EpisodeFolder) -> EpisodeInfo:
        metadata: dict[str, Any] = {}
        num_frames = 0
        try:
            num_frames = _num_frames(episode)
            if episode.has_metadata:
                metadata = read_metadata(episode.path / METADATA)
        except SourceError:
            pass  # `frames` says what is wrong
        return EpisodeInfo(self._key(episode.path), num_frames, metadata)


def _num_frames(episode: EpisodeFolder) -> int:
    """From the first feature: `frames` checks that the others have as many."""
    for folder in episode.folders.values():
        return folder.num_frames
    path = episode.path / next(iter(episode.arrays.values()))
    shape = npy_header(path).shape
    check_time_axis(shape, path)
    return shape[0]


def _widened(known: FeatureSpec, other: FeatureSpec) -> FeatureSpec:
    """`known` with the dimensions in which `other` differs made variable.

    Another dtype, number of dimensions or codec stays unseen here: that episode's frames say so.
    """
    if known.dtype != other.dtype or len(known.shape) != len(other.shape):
        return known
    shape = tuple(
        one if one == two else None for one, two in zip(known.shape, other.shape, strict=True)
    )
    return FeatureSpec(known.name, known.dtype, shape, known.codec)
