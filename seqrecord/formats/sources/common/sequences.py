"""Base class of sources for SLAM sequences: each feature is a column of files or values."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import reduce
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.common.array_files import array_header, read_array
from seqrecord.formats.sources.common.embedded import embedded_value
from seqrecord.formats.sources.common.images import (
    IMAGE_ENDINGS,
    image_header,
    passthrough_codec,
    read_image,
    referable_codec,
)
from seqrecord.formats.sources.common.orientation import shape_of
from seqrecord.formats.sources.common.originals import (
    Scan,
    ScannedInPlace,
    by_key,
    find_folders,
    has_folder,
    key_of,
)
from seqrecord.formats.sources.common.palettes import form_of
from seqrecord.formats.sources.common.specs import check_spec, feature_spec, merge_specs, text_spec
from seqrecord.formats.sources.inventory import (
    NO_READER,
    Account,
    group_names,
    not_selected,
    unread_paths,
)
from seqrecord.in_place.boundary import skipping_unreadable
from seqrecord.in_place.files import check_array
from seqrecord.in_place.references import external_files, external_folders, referable_features
from seqrecord.store.feature_kinds import size_in
from seqrecord.store.format.page_kinds import page_kind
from seqrecord.store.format.references import ExternalFile, ReferencedFile
from seqrecord.store.originals.protocol import EpisodeInfo
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.schema import FeatureSpec, Frame
from seqrecord.store.text import counted

_WITHOUT_PARTNER = re.compile("_(without|before|after)_")


@dataclass(frozen=True)
class DecodedFile:
    """A frame that `read` decodes from a file into an array, where a plain reader does not suffice.

    `read` gets the source's `exif`. `shape` returns the shape without decoding; variable dimensions
    are `None`.
    """

    path: Path
    dtype: npt.DTypeLike
    shape: Callable[[], Sequence[int | None]]
    read: Callable[[str | None], npt.NDArray[Any]]


@dataclass(frozen=True)
class Images:
    """One file per frame: an image, an npy array, or a `DecodedFile`; `None` for no file.

    `samples` are files whose shapes differ, the first file by default. `form` is the required dtype
    and channels. `sizes` are the required heights and widths of files, `None` for any.
    """

    items: Sequence[Path | DecodedFile | None]
    kind: str | None = "image"
    unit: str | None = None
    samples: Sequence[Path | DecodedFile] = ()
    form: tuple[npt.DTypeLike, tuple[int, ...]] | None = None
    sizes: Sequence[tuple[int, int] | None] = ()

    @property
    def paths(self) -> list[Path]:
        """All files."""
        return [path_of(item) for item in self.items if item is not None]

    def spec(self, name: str, source: SequenceSource) -> FeatureSpec:
        """Return the feature's spec, from the headers of the samples."""
        samples = self.samples or [item for item in self.items if item is not None][:1]
        endings = {path.suffix.lower() for path in self.paths if source.keep_encoded}
        return reduce(merge_specs, [self._spec(name, item, endings, source) for item in samples])

    def _spec(
        self, name: str, item: Path | DecodedFile, endings: set[str], source: SequenceSource
    ) -> FeatureSpec:
        meaning, path, exif = {"kind": self.kind, "unit": self.unit}, path_of(item), source.exif
        if isinstance(item, DecodedFile):
            return feature_spec(name, np.dtype(item.dtype), item.shape(), path, **meaning)
        codec = referable_codec(path, endings, exif) if source.in_place else ()
        if path.suffix.lower() not in IMAGE_ENDINGS:
            array = array_header(path)
            dtype, shape = array.dtype, array.shape
        else:
            header = form_of(image_header(path), name, self.kind, path, source.palettes)
            if endings and not source.in_place:
                codec = passthrough_codec(header, endings, exif=exif)
            dtype, shape = header.dtype, shape_of(header, exif, is_kept=bool(codec))
        if self.form is not None:
            with located(SourceError, feature=name):
                required_dtype, channels = self.form
                check_array(
                    dtype.newbyteorder("<"), shape, required_dtype, (*shape[:2], *channels), path
                )
        is_scaled = self.kind == "depth" and self.unit is not None
        if is_scaled and (dtype == np.uint8 or len(shape) != 2):
            raise SourceError(
                f"not a depth image in {self.unit}",
                file=str(path),
                feature=name,
                expected="one channel, of 16 bits or floats",
                got=f"{dtype} {list(shape)}",
            )
        return feature_spec(name, dtype, shape, path, codec=codec, **meaning)

    def read(self, frame: int, spec: FeatureSpec, source: SequenceSource) -> Any:
        """Read and check a frame's value; `None` if the frame has none."""
        if (item := self.items[frame]) is None:
            return None
        path = path_of(item)
        if self.sizes and None in spec.shape[:2]:  # fixed sizes are checked with the values
            self._check_size(item, self.sizes[frame], source.exif)
        if source.in_place and page_kind(spec).may_refer(spec):
            return ReferencedFile(str(path))
        if isinstance(item, Path) and path.suffix.lower() in IMAGE_ENDINGS:
            return embedded_value(read_image(path), spec, path, source.exif)
        with located(SourceError, file=str(path)):
            array = read_array(path) if isinstance(item, Path) else item.read(source.exif)
        check_spec(array.dtype, array.shape, spec, path)
        return array

    def _check_size(
        self, item: Path | DecodedFile, required: tuple[int, int] | None, exif: str | None
    ) -> None:
        size = image_size(item, exif)
        if required is not None and size != required:
            raise SourceError(
                "the image has another size than the first image of its camera; resize it, or "
                "give it intrinsics of its own",
                file=str(path_of(item)),
                expected=f"height {required[0]}, width {required[1]}",
                got=f"height {size[0]}, width {size[1]}",
            )


def path_of(item: Path | DecodedFile) -> Path:
    """Return the file of a frame."""
    return item if isinstance(item, Path) else item.path


def image_size(item: Path | DecodedFile, exif: str | None) -> tuple[int, int]:
    """Return (height, width) of the frame that an image or array becomes, from its header."""
    if isinstance(item, DecodedFile):
        shape: Sequence[int | None] = item.shape()
    elif item.suffix.lower() in IMAGE_ENDINGS:
        # Kept images are never turned; those with an orientation are refused when they are read.
        shape = shape_of(image_header(item), exif, is_kept=False)
    else:
        shape = array_header(item).shape
    return shape[0] or 0, shape[1] or 0


@dataclass(frozen=True)
class Values:
    """One array, or one text, per frame, [T, …]. Frames where `has_value` is false have no value.

    With `bounds` [T + 1], frame t has the rows `bounds[t]` to `bounds[t + 1]` (exclusive).
    """

    array: npt.NDArray[Any]
    kind: str | None = None
    unit: str | None = None
    has_value: npt.NDArray[np.bool_] | None = None
    bounds: npt.NDArray[np.int64] | None = None

    def spec(self, name: str, _: SequenceSource) -> FeatureSpec:
        """Return the feature's spec."""
        if self.array.dtype.kind == "U":
            return replace(text_spec(name, Path()), kind=self.kind)
        shape = self.array.shape[1:] if self.bounds is None else (None, *self.array.shape[1:])
        return FeatureSpec(name, self.array.dtype, shape, kind=self.kind, unit=self.unit)

    def read(self, frame: int, spec: FeatureSpec, _: SequenceSource) -> Any:
        """Return a frame's value; `None` if the frame has none."""
        if self.has_value is not None and not self.has_value[frame]:
            return None
        place: Any = frame
        if self.bounds is not None:
            place = slice(self.bounds[frame], self.bounds[frame + 1])
        return spec.value_kind.of_foreign(self.array[place], spec.dtype)


Column: TypeAlias = Images | Values
"""A feature of a sequence."""


@dataclass
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
        clock: times of the frames, also if the feature `timestamp` is not selected; `None` if the
            sequence has none.
    """

    num_frames: int = 0
    columns: dict[str, Column] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    fps: float | None = None
    notes: list[str] = field(default_factory=list)
    split: str | None = None
    clock: Values | None = None


@dataclass(frozen=True)
class SequenceSource(ScannedInPlace):
    """Base class of sources for a tree of sequences, one folder each.

    Args:
        root: a folder of sequences at any depth, or one sequence.
        features: names to read, in that order; all by default.
        keep_encoded: keep RGB images as PNG or JPEG.
        in_place: reference images instead of copying them.
    """

    expected: ClassVar[str]
    """Description of a sequence's files, for errors."""

    selected_also_by: ClassVar[str] = ""
    """Text of further arguments that select features, for the inventory: ` or cameras=`."""

    @abstractmethod
    def is_sequence(self, folder: Path, names: set[str]) -> bool:
        """Return whether a folder, which has these entry names, contains sequences."""

    @abstractmethod
    def open(self, folder: Path) -> SequenceFrames:
        """Read and check the lists of a sequence, before any image."""

    def sequences(self, folder: Path) -> Mapping[str, Path]:
        """Return the sequences in a folder: key to the argument of `open`, the folder itself."""
        return {self.key(folder): folder}

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

    def external_files(self) -> dict[str, ExternalFile]:
        """Return the folders of files that frames may reference, see `external_folders`."""
        folders = {path.parent for path in self._files(are_referred_to=True)}
        return external_folders(self.path, sorted(folders))

    def copied_files(self) -> dict[str, ExternalFile]:
        """Return all other files that are read: an index copies values from them.

        Files outside of `root` have their folder as root.
        """
        roots: dict[Path, list[Path]] = {}
        for path in self._files(are_referred_to=False):
            root = self.path if path.is_relative_to(self.path) else path.parent
            roots.setdefault(root, []).append(path)
        files: dict[str, ExternalFile] = {}
        for root, paths in roots.items():
            files |= external_files(root, paths)
        return files

    def _files(self, *, are_referred_to: bool) -> Iterator[Path]:
        names = referable_features(self.schema())
        for place in self._places.values():
            with skipping_unreadable():  # raised by reading
                sequence = self.open(place)
                columns = (column for n, column in sequence.columns.items() if n in names)
                images = (column.paths for column in columns if isinstance(column, Images))
                referred_files = {path for paths in images for path in paths}
                yield from referred_files if are_referred_to else {*sequence.files} - referred_files

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        with located(SourceError, episode=info.key):
            if info.key not in self._places:
                raise SourceError("no such episode", file=str(self.root))
            folder = self._places[info.key]
            sequence = self.open(folder)
            columns = {
                name: (sequence.columns[name], spec)
                for name, spec in self.schema().items()
                if name in sequence.columns
            }
            if not columns or not sequence.num_frames:
                raise SourceError("no frames of the selected features", file=str(folder))
            for name, (column, spec) in columns.items():
                if isinstance(column, Values) and spec.value == "array":
                    with located(SourceError, feature=name):
                        path = folder / sequence.places.get(name, "")
                        check_array(column.array.dtype, (), spec.dtype, (), path)
            for number in range(sequence.num_frames):
                frame: dict[str, Any] = {}
                for name, (column, spec) in columns.items():
                    with located(SourceError, feature=name, frame=number):
                        value = column.read(number, spec, self)
                    if value is not None:
                        frame[name] = value
                yield frame

    def timestamps(self, info: EpisodeInfo) -> npt.NDArray[np.float64]:
        """Return the frames' times in seconds since the first frame, float64 [T]."""
        with located(SourceError, episode=info.key):
            clock = self.open(self._places[info.key]).clock
            if clock is None:  # a steady rate
                if info.fps is None:
                    raise SourceError(
                        "the sequence has neither timestamps nor a frame rate; omit split_at_gaps "
                        "(--split-at-gaps)",
                        file=str(self._places[info.key]),
                    )
                return np.arange(info.num_frames) / info.fps
            elapsed = clock.array - clock.array[0]
            return np.asarray(elapsed * (size_in(clock.unit, "s") or 1.0), np.float64)

    @cached_property
    def _folders(self) -> dict[Path, Mapping[str, Path]]:
        """Sequences by folder."""
        folders = find_folders(self.path, self.is_sequence)
        return {folder: self.sequences(folder) for folder in folders}

    @cached_property
    def _places(self) -> dict[str, Path]:
        """Arguments of `open` by key."""
        return by_key(pair for sequences in self._folders.values() for pair in sequences.items())

    def scan(self, scan: Scan) -> None:
        if not self._places:
            raise SourceError("no sequence found", file=str(self.root), expected=self.expected)
        for key, folder in self._places.items():
            with scan.unless_broken(EpisodeInfo(key, 0)):
                sequence = self.open(folder)
                scan.specs += [
                    sequence.columns[name].spec(name, self)
                    for name in (sequence.columns if self.features is None else self.features)
                    if name in sequence.columns
                ]
                scan.offered |= dict.fromkeys(sequence.places)
                facts = (sequence.metadata, sequence.fps, sequence.split)
                scan.episodes.append(EpisodeInfo(key, sequence.num_frames, *facts))

    def account(self) -> Account:
        """Report all sequences. Reads their lists again; broken sequences are skipped."""
        places: dict[str, str] = {}
        counts, notes, unselected = (Counter[str]() for _ in range(3))
        unread: list[Path] = []
        for folder, sequences in self._folders.items():
            known_files, hidden_patterns = set[Path](), set[str]()
            for place in sequences.values():
                with skipping_unreadable():
                    sequence = self.open(place)
                    places |= sequence.places
                    facts = sequence.metadata.items()
                    counts.update({name: n for name, n in facts if _WITHOUT_PARTNER.search(name)})
                    notes.update(sequence.notes)
                    excluded = {n: p for n, p in sequence.places.items() if not self.wants(n)}
                    unselected.update([*excluded])
                    hidden_patterns.update(excluded.values())
                    known_files.update(sequence.files)
            if known_files or not sequences:
                unread += unread_paths(folder, _taker(folder, known_files, hidden_patterns))
        unread += unread_paths(
            self.path,
            lambda path: path.parent in self._folders or self.is_beside(path),
            lambda folder, names: not self.is_sequence(folder, {*names}),
        )
        total = counted(len(self._places), "sequence")
        left_out = group_names(unread, self.path, NO_READER)
        left_out += [
            not_selected(f"feature {name}", count, "sequences", also=self.selected_also_by)
            for name, count in unselected.items()
        ]
        lines = [f"{n:,} {name.replace('_', ' ')}" for name, n in counts.items() if n]
        lines += [f"{note} ({count} of {total})" for note, count in notes.items()]
        return Account(f"{total}: {self.expected}", places, tuple(left_out), tuple(lines))


def _taker(
    folder: Path, known_files: Collection[Path], hidden_patterns: Collection[str]
) -> Callable[[Path], bool]:
    """Return a filter for files that are read or belong to features not selected."""

    def is_taken(path: Path) -> bool:
        return path in known_files or any(
            fnmatchcase(path.relative_to(folder).as_posix(), pattern) for pattern in hidden_patterns
        )

    return is_taken
