"""Base class of sources for SLAM sequences: each feature is a column of files or values."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.feature_kinds import size_in
from seqrecord.originals.files import read_bytes
from seqrecord.originals.protocol import EpisodeInfo
from seqrecord.processes.forks import cached_property
from seqrecord.schema import EncodedImage, FeatureSpec, Frame
from seqrecord.sources.common.embedded import embedded_value
from seqrecord.sources.common.images import image_header, passthrough_codec
from seqrecord.sources.common.number_files import table_lines
from seqrecord.sources.common.orientation import Orientation, shape_of
from seqrecord.sources.common.originals import (
    Scan,
    ScannedSource,
    by_key,
    find_folders,
    has_folder,
    key_of,
)
from seqrecord.sources.common.specs import feature_spec
from seqrecord.sources.common.text_tables import MAX_TABLE_BYTES
from seqrecord.sources.inventory import (
    NO_READER,
    Account,
    LeftOut,
    group_names,
    not_selected,
    unread_paths,
)
from seqrecord.text import counted

_WITHOUT_PARTNER = re.compile("_(without|before|after)_")


class Column(Protocol):
    """A feature of a sequence."""

    def spec(self, name: str, *, keep_encoded: bool) -> FeatureSpec:
        """Return the feature's spec, from the cheapest evidence."""
        ...

    def read(self, frame: int, spec: FeatureSpec) -> npt.NDArray[Any] | EncodedImage | None:
        """Read and check a frame's value; `None` if the frame has none."""
        ...


@dataclass(frozen=True)
class Images(Column):
    """One image file per frame; `None` for frames without one."""

    paths: Sequence[Path | None]
    kind: str = "image"
    unit: str | None = None
    exif: str | None = None

    def spec(self, name: str, *, keep_encoded: bool) -> FeatureSpec:
        path = next(path for path in self.paths if path is not None)
        header = image_header(path)
        codec = passthrough_codec(header, exif=self.exif) if keep_encoded else ()
        shape = shape_of(header, self.exif, is_kept=bool(codec))
        meaning = {"codec": codec, "kind": self.kind, "unit": self.unit}
        return feature_spec(name, header.dtype, shape, path, **meaning)

    def read(self, frame: int, spec: FeatureSpec) -> npt.NDArray[Any] | EncodedImage | None:
        path = self.paths[frame]
        if path is None:
            return None
        # The camera's calibration refers to the stored pixels.
        orientation = Orientation(self.exif, lambda: False)
        return embedded_value(read_bytes(path), spec, path, orientation)


@dataclass(frozen=True)
class Values(Column):
    """One array per frame, [T, …]. Frames where `there` is false have no value.

    With `bounds` [T + 1], frame t has the rows `bounds[t]` to `bounds[t + 1]` (exclusive).
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
    """A sequence with checked lists.

    Args:
        num_frames: number of frames.
        columns: column of each selected feature.
        places: path of each feature below the sequence's folder, selected or not.
        files: files that were read, and images in lists.
        metadata: the episode's metadata. `X_without_Y`, `X_before_Y` and `X_after_Y` count
            unmatched rows and images; the inventory sums them.
        notes: assumptions, and lines of the inventory about empty tables.
    """

    num_frames: int
    columns: Mapping[str, Column]
    places: Mapping[str, str]
    files: Collection[Path]
    metadata: dict[str, Any] = field(default_factory=dict)
    fps: float | None = None
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class SequenceSource(ScannedSource):
    """Base class of sources for a tree of sequences, one folder each.

    Args:
        root: a folder of sequences at any depth, or one sequence.
        features: names to read, in that order; all by default.
        keep_encoded: keep RGB images as PNG or JPEG.
    """

    expected: ClassVar[str]
    """Description of a sequence's files, for errors."""

    @staticmethod
    @abstractmethod
    def is_sequence(names: set[str]) -> bool:
        """Return whether a folder with these entry names is a sequence."""

    @abstractmethod
    def open(self, folder: Path) -> SequenceFrames:
        """Read and check the sequence's lists, before any image."""

    def unread_tables(self, folder: Path) -> Mapping[str, Path]:  # noqa: ARG002
        """Return tables without a reader, by their names in the inventory."""
        return {}

    def is_beside(self, path: Path) -> bool:  # noqa: ARG002
        """Return whether a file outside of all sequences belongs to one of them."""
        return False

    def wants(self, *names: str) -> bool:
        """Return whether any of these features is selected."""
        return self.features is None or not {*self.features}.isdisjoint(names)

    def key(self, folder: Path) -> str:
        """Return a sequence's key: its path below `root`, or the name of `root` itself."""
        return key_of(folder, self.path, ending=True)

    def exists(self) -> bool:
        """Return whether the first entries of the tree contain a sequence."""
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
                raise SourceError("no frames of the selected features", file=str(folder))
            for number in range(sequence.num_frames):
                frame: dict[str, npt.NDArray[Any] | EncodedImage] = {}
                for name, (column, spec) in columns.items():
                    with located(SourceError, feature=name, frame=number):
                        value = column.read(number, spec)
                    if value is not None:
                        frame[name] = value
                yield frame

    def timestamps(self, info: EpisodeInfo) -> npt.NDArray[np.float64]:
        """Return the frames' times in seconds since the first frame, float64 [T]."""
        with located(SourceError, episode=info.key):
            column = self.open(self._folders[info.key]).columns["timestamp"]
            assert isinstance(column, Values)
            since = column.array - column.array[0]
            return np.asarray(since * (size_in(column.unit, "s") or 1.0), np.float64)

    def _opened(self, folder: Path) -> SequenceFrames:
        """Open the sequence with the source's `exif` for its images."""
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
                found.offered |= dict.fromkeys(sequence.places)
                info = EpisodeInfo(key, sequence.num_frames, sequence.metadata, sequence.fps)
                found.episodes.append(info)

    def account(self) -> Account:
        """Report all sequences. Reads their lists again; broken sequences are skipped."""
        places: dict[str, str] = {}
        counts, notes, rows, unselected = (Counter[str]() for _ in range(4))
        unread: list[Path] = []
        folders = set(self._folders.values())
        for folder in self._folders.values():
            with suppress(SourceError):
                sequence = self.open(folder)
                places |= sequence.places
                facts = sequence.metadata.items()
                counts.update({name: n for name, n in facts if _WITHOUT_PARTNER.search(name)})
                notes.update(sequence.notes)
                unselected.update(name for name in sequence.places if not self.wants(name))
                hidden = [sequence.places[name] for name in unselected if name in sequence.places]
                tables = self.unread_tables(folder)
                above = folder.relative_to(self.path)
                where = Path(*"*" * len(above.parts)) if len(folders) > 1 else above
                for path in tables.values():
                    name = (where / path.relative_to(folder)).as_posix()
                    rows[name] += len(table_lines(path, MAX_TABLE_BYTES))
                known = {*sequence.files, *tables.values()}
                unread += unread_paths(folder, _taker(folder, known, hidden))
        unread += unread_paths(
            self.path,
            lambda path: path.parent in folders or self.is_beside(path),
            lambda names: not self.is_sequence({*names}),
        )
        total = counted(len(folders), "sequence")
        left_out = [LeftOut(name, count, "no reader", "rows") for name, count in rows.items()]
        left_out += group_names(unread, self.path, NO_READER)
        left_out += [
            not_selected(f"feature {name}", count, "sequences")
            for name, count in unselected.items()
        ]
        lines = [f"{n:,} {name.replace('_', ' ')}" for name, n in counts.items() if n]
        lines += [f"{note} ({count} of {total})" for note, count in notes.items()]
        return Account(f"{total}: {self.expected}", places, tuple(left_out), tuple(lines))


def _taker(folder: Path, known: Collection[Path], hidden: Sequence[str]) -> Callable[[Path], bool]:
    """Return a filter for files that are read or belong to features not selected."""

    def is_taken(path: Path) -> bool:
        return path in known or any(
            fnmatchcase(path.relative_to(folder).as_posix(), pattern) for pattern in hidden
        )

    return is_taken
