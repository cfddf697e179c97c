"""What sources of SLAM sequences share: features as columns of files or values, frame by frame."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.processes.forks import cached_property
from seqrecord.schema import EncodedImage, FeatureSpec, Frame, Schema
from seqrecord.sources.base import EpisodeInfo
from seqrecord.sources.embedded import embedded_value
from seqrecord.sources.images import image_header, passthrough_codec, read_image_file
from seqrecord.sources.originals import Originals, find_folders, has_folder
from seqrecord.sources.specs import chosen_schema, feature_spec

__all__ = ["Column", "Images", "Samples", "SequenceFrames", "SequenceSource", "Values"]


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

    def spec(self, name: str, *, keep_encoded: bool) -> FeatureSpec:
        path = next(path for path in self.paths if path is not None)
        header = image_header(path)
        codec = passthrough_codec(header) if keep_encoded else ()
        said = {"codec": codec, "kind": self.kind, "unit": self.unit}
        return feature_spec(name, header.dtype, header.shape, path, **said)

    def read(self, frame: int, spec: FeatureSpec) -> npt.NDArray[Any] | EncodedImage | None:
        path = self.paths[frame]
        if path is None:
            return None
        return embedded_value(read_image_file(path), spec, path)


@dataclass(frozen=True)
class Values(Column):
    """An array for each frame: [T, …]; frames where it is not `there` have none."""

    array: npt.NDArray[Any]
    kind: str | None = None
    unit: str | None = None
    there: npt.NDArray[np.bool_] | None = None

    def spec(self, name: str, *, keep_encoded: bool) -> FeatureSpec:  # noqa: ARG002 - no image
        shape = self.array.shape[1:]
        return FeatureSpec(name, self.array.dtype, shape, kind=self.kind, unit=self.unit)

    def read(self, frame: int, spec: FeatureSpec) -> npt.NDArray[Any] | None:
        if self.there is not None and not self.there[frame]:
            return None
        return np.asarray(self.array[frame], spec.dtype)


@dataclass(frozen=True)
class Samples(Column):
    """Any number of rows for each frame: those from `bounds[t]` up to `bounds[t + 1]`."""

    rows: npt.NDArray[Any]
    bounds: npt.NDArray[np.int64]
    kind: str | None = None
    unit: str | None = None

    def spec(self, name: str, *, keep_encoded: bool) -> FeatureSpec:  # noqa: ARG002 - no image
        shape = (None, *self.rows.shape[1:])
        return FeatureSpec(name, self.rows.dtype, shape, kind=self.kind, unit=self.unit)

    def read(self, frame: int, spec: FeatureSpec) -> npt.NDArray[Any]:
        return np.asarray(self.rows[self.bounds[frame] : self.bounds[frame + 1]], spec.dtype)


@dataclass(frozen=True)
class SequenceFrames:
    """A sequence: how many frames it has, and each feature's column."""

    num_frames: int
    columns: Mapping[str, Column]
    metadata: dict[str, Any] = field(default_factory=dict)
    fps: float | None = None


@dataclass(frozen=True)
class SequenceSource(Originals, ABC):
    """A tree of sequences, each a folder, as a source; the formats are derived from it.

    `root` is a folder of sequences at any depth, or one sequence. `features` are the names to read,
    in that order, by default all. With `keep_encoded` RGB images stay PNG or JPEG.

    A source is a snapshot: its schema is worked out once and travels with it when it is pickled.
    """

    expected: ClassVar[str]
    """What a sequence looks like, in words."""

    @staticmethod
    @abstractmethod
    def is_sequence(names: set[str]) -> bool:
        """Whether a folder with files and folders of these names is a sequence."""

    @abstractmethod
    def key(self, folder: Path) -> str:
        """A sequence's key."""

    @abstractmethod
    def open(self, folder: Path) -> SequenceFrames:
        """The sequence, its lists checked, before any image is read."""

    def exists(self) -> bool:
        """Whether there is a sequence among the first entries of the tree."""
        return has_folder(self.path, self.is_sequence)

    def schema(self) -> Schema:
        return self._probed[0]

    def episodes(self) -> Sequence[EpisodeInfo]:
        return self._probed[1]

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        with located(SourceError, episode=info.key):
            folder = self._folder(info.key)
            sequence = self.open(folder)
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

    def relative_key(self, folder: Path) -> str:
        """The path below `root`, or the folder's name if it is `root`."""
        root = self.path
        return folder.name if folder == root else folder.relative_to(root).as_posix()

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if "_probed" in state:
            schema, _, folders = state["_probed"]
            state["_probed"] = (schema, (), folders)  # a worker gets its episodes one by one
        return state

    def _folder(self, key: str) -> Path:
        folders = self._probed[2]
        if key not in folders:
            raise SourceError("no such episode", file=str(self.root))
        return folders[key]

    @cached_property
    def _probed(self) -> tuple[Schema, Sequence[EpisodeInfo], Mapping[str, Path]]:
        root = self.path
        found: list[FeatureSpec] = []
        offered: dict[str, None] = {}
        episodes: list[EpisodeInfo] = []
        folders: dict[str, Path] = {}
        first_error: SourceError | None = None
        for folder in find_folders(root, self.is_sequence):
            key = self.key(folder)
            folders[key] = folder
            try:
                sequence = self.open(folder)
                chosen = sequence.columns if self.features is None else self.features
                specs = [
                    sequence.columns[name].spec(name, keep_encoded=self.keep_encoded)
                    for name in chosen
                    if name in sequence.columns
                ]
            except SourceError as error:  # `frames` says what is wrong
                error.located(episode=key)
                first_error = first_error or error
                episodes.append(EpisodeInfo(key, 0))
            else:
                found.extend(specs)
                offered |= dict.fromkeys(sequence.columns)
                episodes.append(
                    EpisodeInfo(key, sequence.num_frames, sequence.metadata, sequence.fps)
                )
        if not episodes:
            raise SourceError("no sequence found", file=str(root), expected=self.expected)
        if not found and first_error:
            raise first_error
        return chosen_schema(found, self.features, root, offered), episodes, folders
