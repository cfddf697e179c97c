"""What sources of SLAM sequences share: features as columns of files or values, frame by frame."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.processes.forks import cached_property
from seqrecord.schema import EncodedImage, FeatureSpec, Frame
from seqrecord.sources.base import EpisodeInfo
from seqrecord.sources.embedded import embedded_value
from seqrecord.sources.files import read_bytes
from seqrecord.sources.images import image_header, passthrough_codec
from seqrecord.sources.orientation import Orientation, shape_of
from seqrecord.sources.originals import (
    Scan,
    ScannedSource,
    by_key,
    find_folders,
    has_folder,
    key_of,
)
from seqrecord.sources.specs import feature_spec


class Column(Protocol):
    """A feature of a sequence, frame by frame."""

    def spec(self, name: str, *, keep_encoded: bool) -> FeatureSpec:
        """The feature, from what is read fastest."""
        ...

    def read(self, frame: int, spec: FeatureSpec) -> npt.NDArray[Any] | EncodedImage | None:
        """The value, checked; `None` where the frame has none."""
        ...


@dataclass(frozen=True)
class Images(Column):
    """An image file for each frame; `None` where a frame has none."""

    paths: Sequence[Path | None]
    kind: str = "image"
    unit: str | None = None
    exif: str | None = None

    def spec(self, name: str, *, keep_encoded: bool) -> FeatureSpec:
        path = next(path for path in self.paths if path is not None)
        header = image_header(path)
        codec = passthrough_codec(header, exif=self.exif) if keep_encoded else ()
        shape = shape_of(header, self.exif, is_kept=bool(codec))
        said = {"codec": codec, "kind": self.kind, "unit": self.unit}
        return feature_spec(name, header.dtype, shape, path, **said)

    def read(self, frame: int, spec: FeatureSpec) -> npt.NDArray[Any] | EncodedImage | None:
        path = self.paths[frame]
        if path is None:
            return None
        # A sequence is of a camera, whose calibration belongs to the stored pixels.
        orientation = Orientation(self.exif, lambda: False)
        return embedded_value(read_bytes(path), spec, path, orientation)


@dataclass(frozen=True)
class Values(Column):
    """An array for each frame, [T, …]; frames where it is not `there` have none.

    With `bounds` any number of rows for each: those from `bounds[t]` up to `bounds[t + 1]`.
    """

    array: npt.NDArray[Any]
    kind: str | None = None
    unit: str | None = None
    there: npt.NDArray[np.bool_] | None = None
    bounds: npt.NDArray[np.int64] | None = None

    def spec(self, name: str, *, keep_encoded: bool) -> FeatureSpec:  # noqa: ARG002 - no image
        shape = self.array.shape[1:] if self.bounds is None else (None, *self.array.shape[1:])
        return FeatureSpec(name, self.array.dtype, shape, kind=self.kind, unit=self.unit)

    def read(self, frame: int, spec: FeatureSpec) -> npt.NDArray[Any] | None:
        if self.there is not None and not self.there[frame]:
            return None
        if self.bounds is None:
            return np.asarray(self.array[frame], spec.dtype, order="C")
        return np.asarray(self.array[self.bounds[frame] : self.bounds[frame + 1]], spec.dtype)


@dataclass(frozen=True)
class SequenceFrames:
    """A sequence: how many frames it has, and each feature's column."""

    num_frames: int
    columns: Mapping[str, Column]
    metadata: dict[str, Any] = field(default_factory=dict)
    fps: float | None = None


@dataclass(frozen=True)
class SequenceSource(ScannedSource):
    """A tree of sequences, each a folder, as a source; the formats are derived from it.

    `root` is a folder of sequences at any depth, or one sequence. `features` are the names to read,
    in that order, by default all. With `keep_encoded` RGB images stay PNG or JPEG.
    """

    expected: ClassVar[str]
    """What a sequence looks like, in words."""

    @staticmethod
    @abstractmethod
    def is_sequence(names: set[str]) -> bool:
        """Whether a folder with files and folders of these names is a sequence."""

    @abstractmethod
    def open(self, folder: Path) -> SequenceFrames:
        """The sequence, its lists checked, before any image is read."""

    def key(self, folder: Path) -> str:
        """A sequence's key: the path below `root`, or the folder's name if it is `root`."""
        return key_of(folder, self.path, ending=True)

    def exists(self) -> bool:
        """Whether there is a sequence among the first entries of the tree."""
        return has_folder(self.path, self.is_sequence)

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        with located(SourceError, episode=info.key):
            if info.key not in self._folders:
                raise SourceError("no such episode", file=str(self.root))
            folder = self._folders[info.key]
            sequence = self._opened(folder)
            columns = {
                name: (sequence.columns[name], spec)
                for name, spec in self.schema().items()
                if name in sequence.columns
            }
            if not columns or not sequence.num_frames:
                raise SourceError("a sequence without frames of the features", file=str(folder))
            for number in range(sequence.num_frames):
                frame: dict[str, npt.NDArray[Any] | EncodedImage] = {}
                for name, (column, spec) in columns.items():
                    with located(SourceError, feature=name, frame=number):
                        value = column.read(number, spec)
                    if value is not None:
                        frame[name] = value
                yield frame

    def _opened(self, folder: Path) -> SequenceFrames:
        """The sequence, whose images are read as `exif` says."""
        sequence = self.open(folder)
        columns = {
            name: replace(column, exif=self.exif) if isinstance(column, Images) else column
            for name, column in sequence.columns.items()
        }
        return replace(sequence, columns=columns)

    @cached_property
    def _folders(self) -> dict[str, Path]:
        folders = find_folders(self.path, self.is_sequence)
        return by_key((self.key(folder), folder) for folder in folders)

    def scan(self, found: Scan) -> None:
        if not self._folders:
            raise SourceError("no sequence found", file=str(self.root), expected=self.expected)
        for key, folder in self._folders.items():
            with found.unless_broken(EpisodeInfo(key, 0)):
                sequence = self._opened(folder)
                found.specs += [
                    sequence.columns[name].spec(name, keep_encoded=self.keep_encoded)
                    for name in (sequence.columns if self.features is None else self.features)
                    if name in sequence.columns
                ]
                found.offered |= dict.fromkeys(sequence.columns)
                info = EpisodeInfo(key, sequence.num_frames, sequence.metadata, sequence.fps)
                found.episodes.append(info)
