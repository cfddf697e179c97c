"""Any folder of per-episode folders of images and npy files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqrecord.errors import SourceError, located
from seqrecord.forks import cached_property
from seqrecord.schema import Frame, Schema
from seqrecord.sources.array_files import array_header
from seqrecord.sources.base import EpisodeInfo, SourceFormat
from seqrecord.sources.exported import read_description
from seqrecord.sources.files import is_directory
from seqrecord.sources.folders_frames import check_time_axis, read_frames
from seqrecord.sources.folders_schema import find_schema
from seqrecord.sources.folders_tree import METADATA, EpisodeFolder, find_episodes, read_metadata
from seqrecord.sources.originals import Originals

__all__ = ["FORMAT", "Folders"]


@dataclass(frozen=True)
class Folders(Originals):
    """A tree of episode folders as a source.

    ::

        ROOT/…/EPISODE/FEATURE/000000.png     one file a frame: png, jpg, npy, flo, pfm or exr
        ROOT/…/EPISODE/FEATURE.npy            the whole episode, time first: float32 [T, 32]
        ROOT/…/EPISODE/metadata.json          a JSON object, if there is one

    Episodes lie at any depth and are named by their path below `root`. Frames are in the order of
    the numbers in their names, and all feature folders of an episode hold the same names. An npy
    file beside the feature folders holds a whole episode unless its name has a number of its own.

    Images give uint8 or uint16 [H, W] (grayscale, or the indices of a palette), [H, W, 3] RGB or
    [H, W, 4] RGBA; `.flo`, PFM and OpenEXR files floating-point numbers, see
    docs/reference/sources.md. dtype comes from the first episode that has the feature; a dimension
    in which the first frames of two episodes differ is variable. `features` are the names to read,
    in that order, by default all. With `keep_encoded` RGB images stay PNG or JPEG.

    An episode that `seqrecord.export` has written says what it holds in `seqrecord.json`: its
    features may vary from frame to frame, be text or bytes and have a kind and unit, frames may
    lack some, and it may say how many frames it has a second.

    A source is a snapshot: its schema is worked out once and travels with it when it is pickled.
    """

    unpickled = ("_found",)

    def schema(self) -> Schema:
        return self._schema

    def episodes(self) -> Sequence[EpisodeInfo]:
        return [self._info(episode) for episode in self._episodes]

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        with located(SourceError, episode=info.key):
            yield from read_frames(self._folder(info.key), self.schema())

    def exists(self) -> bool:
        """Whether there is an episode below `root`."""
        return bool(self._found)

    @cached_property
    def _found(self) -> list[EpisodeFolder]:
        return find_episodes(self.path)

    @property
    def _episodes(self) -> list[EpisodeFolder]:
        if not self.exists():
            raise SourceError(
                "no episode found",
                file=str(self.root),
                expected="folders with FEATURE/000000.png (or jpg, npy, flo, pfm, exr), or "
                "with FEATURE.npy",
            )
        return self._found

    @cached_property
    def _schema(self) -> Schema:
        episodes = {self._key(episode.path): episode for episode in self._episodes}
        return find_schema(self.path, episodes, self.features, keep_encoded=self.keep_encoded)

    def _key(self, path: Path) -> str:
        relative = path.relative_to(self.root).as_posix()
        return path.name if relative == "." else relative

    def _folder(self, key: str) -> Path:
        root = self.path
        if not {"", "..", "/"}.intersection((key, *Path(key).parts)):
            for path in (root / key, root):
                if is_directory(path) and self._key(path) == key:
                    return path
        raise SourceError("no such episode", file=str(root))

    def _info(self, episode: EpisodeFolder) -> EpisodeInfo:
        metadata: dict[str, Any] = {}
        num_frames, fps = 0, None
        try:
            num_frames, fps = _length(episode)
            if episode.has_metadata:
                metadata = read_metadata(episode.path / METADATA)
        except SourceError:
            pass  # `frames` says what is wrong
        return EpisodeInfo(self._key(episode.path), num_frames, metadata, fps)


FORMAT = SourceFormat(
    "folders",
    "any EPISODE/FEATURE/000000.png (or jpg, npy, flo, pfm, exr), or EPISODE/FEATURE.npy",
    Folders,
    is_fallback=True,
    takes_urls=True,
)


def _length(episode: EpisodeFolder) -> tuple[int, float | None]:
    """Frames, and how many a second. From the first feature: `frames` checks the others."""
    if episode.is_exported:
        described = read_description(episode.path)
        return len(described.frames), described.fps
    for folder in episode.folders.values():
        return folder.num_frames, None
    path = episode.path / next(iter(episode.arrays.values()))
    shape = array_header(path).shape
    check_time_axis(shape, path)
    return shape[0], None
