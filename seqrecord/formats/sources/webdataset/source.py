"""Source for WebDataset: tar files with samples `KEY.FIELD`. A folder's samples are an episode.

https://github.com/webdataset/webdataset#the-webdataset-format
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.common.array_files import decode_array
from seqrecord.formats.sources.common.embedded import embedded_spec, embedded_value
from seqrecord.formats.sources.common.frame_names import (
    FRAME_NAME,
    FRAME_NUMBER,
    check_numbers,
    escaped,
    frame_files,
    name_specs,
    name_times,
    number_of,
)
from seqrecord.formats.sources.common.images import IMAGE_ENDINGS
from seqrecord.formats.sources.common.originals import (
    NumberedFrames,
    Scan,
    ScannedSource,
    find_files,
    has_file,
    key_of,
)
from seqrecord.formats.sources.common.specs import (
    check_spec,
    feature_name,
    feature_spec,
    kind_of,
    text_spec,
)
from seqrecord.formats.sources.inventory import Account, LeftOut, not_selected, unread_files
from seqrecord.formats.sources.webdataset.tar_files import (
    Member,
    members,
    missing_shards,
    read_member,
    seconds_of,
    split_name,
)
from seqrecord.in_place.files import is_file, is_junk, opened
from seqrecord.store.format.time_spans import seconds_since_first
from seqrecord.store.originals.protocol import EpisodeInfo, SourceFormat
from seqrecord.store.schema import FeatureSpec, Frame
from seqrecord.store.text import counted

_logger = logging.getLogger("seqrecord")

_MOST_NOTES = 5  # on keys
_EARLIER_FILE = "earlier_file"  # of an episode that cannot be read: that of its first samples
_ARRAYS = (".npy", ".flo", ".pfm")
_TEXTS = (".txt", ".text", ".transcript", ".json", ".jsn")
_NUMBERS = (".cls", ".cls2", ".class", ".count", ".index", ".inx", ".id")
_READ = frozenset((*IMAGE_ENDINGS, *_ARRAYS, *_TEXTS, *_NUMBERS))


@dataclass(frozen=True)
class WebDatasetSource(NumberedFrames, ScannedSource):
    """WebDataset's tar files: a folder of them, at any depth, or one file.

    ::

        ROOT/…/NAME.tar    000000.rgb.png, 000000.depth.npy, 000000.json, 000001.rgb.png, …
        ROOT/…/NAME.tar    run_1/000000.jpg, run_1/000001.jpg, …, run_2/000000.jpg, …

    A sample is a frame: consecutive files with the same name up to the first dot. The dot of a time
    belongs to the name: `1305031102.175304.png` is the sample `1305031102.175304`. An episode is a
    tar file, `NAME`, or a folder in it, `NAME/run_1`. Frames are in the order of the samples. All
    samples of an episode have the same fields, except `sparse` ones. `frame_number` is as in
    `FolderSource`. Times in names are no feature; an fps is compared with them, and `split_at_gaps`
    uses them.

    Features are named by the fields, without the ending if a name is left: `rgb`, `depth`, `json`.
    Images and arrays (`npy`, `flo`, `pfm`) are as in `FolderSource`; `json` and `txt` are texts;
    `cls`, `index`, `id` and similar are int64. Other fields are not packed; the inventory and a
    warning list them. Nothing is unpickled. A field that is a short number, as in
    `000012.5.png`, may be a part of a time: select it by `features` or `sparse`.

    A tar file is read sequentially, once for names and positions and once for frames. Reading an
    episode whose samples are not consecutive raises `SourceError`.

    Args:
        root: a folder or a file.
        features: names to read, in that order; all by default.
        keep_encoded: keep RGB images as PNG or JPEG.
        sparse: features that may lack frames.
        allow_gaps: accept gaps in the numbers of samples, and unordered times.
        exif: `apply` or `ignore` the EXIF orientation of images.

    Raises `SourceError` with file and episode for inconsistent or unreadable data.
    """

    takes_files = True

    def exists(self) -> bool:
        """Return whether there is a file with the ending `.tar`."""
        return has_file(self.path, _is_tar)

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        with located(SourceError, episode=info.key):
            path = self._path_of(info)
            with opened(path) as stream:
                yield from self._frames(stream, path, info)

    def timestamps(self, info: EpisodeInfo) -> npt.NDArray[np.float64] | None:
        """Return the times in the samples' names in seconds since the first one, float64 [T].

        `None` if the names are no times.
        """
        with located(SourceError, episode=info.key):
            path = self._path_of(info)
            with opened(path) as stream:
                samples = self._samples_of(stream, path, info)
                times = name_times(sample.key for sample in samples)
        if times is None or times.unit is None:
            return None
        return seconds_since_first(np.array(times.values, np.int64), "ns")

    def scan(self, scan: Scan) -> None:
        paths = find_files(self.path, _is_tar)
        if not paths:
            raise SourceError("no tar file found", file=str(self.root), expected="*.tar")
        places: dict[str, EpisodeInfo] = {}
        repeated_places: dict[str, EpisodeInfo] = {}
        are_named = False
        names_by_folder: defaultdict[Path, list[str]] = defaultdict(list)
        for path in paths:
            names_by_folder[path.parent].append(path.name)
            num_before = len(scan.episodes)
            with scan.unless_broken(self._place(path, "", 0)), opened(path) as stream:
                all_samples = _samples(stream, path, skipped_names=scan.unread)
                for folder, samples in groupby(all_samples, lambda sample: sample.folder):
                    first_sample = next(samples)
                    place = self._place(path, folder, first_sample.offset)
                    if places.setdefault(place.key, place) is not place:
                        repeated_places.setdefault(place.key, place)
                        continue
                    with scan.unless_broken(place):
                        episode = _Episode(stream, path)
                        for sample in chain([first_sample], samples):
                            episode.add(sample)
                        are_named |= self._scan_episode(scan, place, episode) is None
                if len(scan.episodes) == num_before:
                    scan.notes.append(f"{path.name} has no samples")
        scan.episodes = [info for info in scan.episodes if info.key not in repeated_places]
        for key, place in repeated_places.items():
            metadata = {**place.metadata, _EARLIER_FILE: places[key].metadata["file"]}
            info = replace(place, metadata=metadata)
            with scan.unless_broken(info):
                deque(self.frames(info), 0)  # raises
        if scan.offered:
            extra_specs = name_specs(self.path, are_named=are_named)
            scan.specs += [spec for spec in extra_specs if spec.name not in scan.offered]
        if scan.unread:
            _logger.warning(
                "%s: fields not read (pickles never are): %s",
                self.path,
                ", ".join(sorted(pattern.removeprefix("*.") for pattern in scan.unread)),
            )
        for shard_folder, names in names_by_folder.items():
            if missing_names := missing_shards(names):
                shown = ", ".join(missing_names[:5])
                note = f"{counted(len(missing_names), 'shard')} missing: {shown}"
                scan.notes.append(note)
                _logger.warning("%s: %s", shard_folder, note)

    def _scan_episode(self, scan: Scan, place: EpisodeInfo, episode: _Episode) -> str | None:
        """Add an episode and its features; returns the pattern of its samples' names."""
        self._check_fields(episode, episode.path)
        files = frame_files(episode.keys)
        if files.unlike and len(scan.notes) < _MOST_NOTES:
            unlike_names = " and ".join(files.unlike)
            note = f"names differ by more than a number ({unlike_names})"
            scan.notes.append(f"{place.key}: {note}, maybe two recordings")
            _logger.warning("%s: %s", self.path, scan.notes[-1])
        # The numbers of times are not enough.
        pattern = None if any("." in key for key in episode.keys) else files.pattern
        specs = self.specs_of(episode.fields, partial(self._spec, tar=episode.path))
        scan.episodes.append(self._info(place, episode, pattern))
        scan.specs += specs
        for name, values in episode.fields.items():
            scan.counts[name] += values.count
            scan.places[name] = f"*.tar/*.{split_name(values.first.name)[2]}"
        scan.offered |= dict.fromkeys(episode.fields)
        return pattern

    def account(self) -> Account:
        scan, paths = self.scan_result, find_files(self.path, _is_tar)
        left_out = [
            LeftOut(f"*.tar/{pattern}", count, "no reader")
            for pattern, count in scan.unread.most_common()
        ]
        left_out += unread_files(self.path, _is_tar)
        left_out += [
            not_selected(f"field {name}", count, "files")
            for name, count in scan.counts.items()
            if name not in self.schema()
        ]
        reason = counted(len(paths), "tar file") + " of samples KEY.FIELD"
        return Account(reason, scan.places, tuple(left_out), tuple(scan.notes))

    def _check_fields(self, episode: _Episode, path: Path) -> None:
        """Raise `SourceError` for fields with numeric names, unless they are selected."""
        numbers = [name for name in episode.fields if name.partition(".")[0].isdecimal()]
        if self.features is None and not {*numbers} <= {*self.sparse}:
            raise SourceError(
                "numeric field names may be parts of times; rename the files, or select "
                f"the features (--features {','.join(numbers)})"[:300],
                file=str(path / episode.folder),
                expected="KEY.FIELD.png, or times with 9 digits before or 4 after the dot",
                got=", ".join(episode.fields[name].first.name for name in numbers[:3]),
            )

    @property
    def _folder(self) -> Path:
        return self.path.parent if is_file(self.path) else self.path

    def _place(self, path: Path, folder: str, offset: int) -> EpisodeInfo:
        """Return an episode's key, and the metadata by which `frames` finds it."""
        key = "/".join(filter(None, (key_of(path, self.path), folder)))
        file = path.relative_to(self._folder).as_posix()
        return EpisodeInfo(key, 0, {"file": file, "offset": offset})

    def _info(self, place: EpisodeInfo, episode: _Episode, pattern: str | None) -> EpisodeInfo:
        metadata = dict(place.metadata)
        fields = (
            episode.fields if self.features is None else episode.fields.keys() & {*self.features}
        )
        selected_fields = {name: episode.fields[name] for name in sorted(fields)}
        if pattern is not None:
            folder = escaped(f"{episode.folder}/" if episode.folder else "")
            metadata["files"] = {
                name: folder + pattern + escaped(f".{split_name(field.first.name)[2]}")
                for name, field in (selected_fields or episode.fields).items()
            }
        for name in self.sparse:
            if name in selected_fields:
                metadata[f"frames_without_{name}"] = len(episode.keys) - selected_fields[name].count
        return replace(place, num_frames=len(episode.keys), metadata=metadata)

    def _spec(self, name: str, field: _Field, tar: Path) -> FeatureSpec:
        """Return the feature's spec from its first value."""
        path = tar / field.first.name
        ending = _ending(path.name)
        if ending in _TEXTS:
            return text_spec(name, path)
        if ending in _NUMBERS:
            return feature_spec(name, np.dtype("<i8"), (), path)
        if ending in _ARRAYS:
            array = decode_array(field.data, path)
            kind = kind_of(name, array.dtype, array.shape)
            return feature_spec(name, array.dtype, array.shape, path, kind=kind)
        return embedded_spec(
            *(name, field.data, path),
            keep_encoded=self.keep_encoded,
            endings=field.endings,
            exif=self.exif,
            palettes=self.palettes,
        )

    def _path_of(self, info: EpisodeInfo) -> Path:
        """Return an episode's tar file. Raises `SourceError` if its samples are not consecutive."""
        file, offset = info.metadata.get("file"), info.metadata.get("offset")
        path = self._folder / str(file)
        if not isinstance(offset, int) or ".." in path.parts or not _is_tar(path):
            raise SourceError("no such episode", file=str(self.root))
        if (earlier_file := info.metadata.get(_EARLIER_FILE)) is not None:
            raise SourceError(
                "the samples of an episode are not consecutive; repack them with `tar --sort=name`",
                file=str(path),
                offset=offset,
                expected="one sequence of samples in one tar file",
                got=f"earlier samples in {earlier_file}",
            )
        return path

    def _samples_of(self, stream: BinaryIO, path: Path, info: EpisodeInfo) -> Iterator[_Sample]:
        """Return an episode's samples; none if others are at its place."""
        all_samples = _samples(stream, path, info.metadata["offset"])
        by_folder = groupby(all_samples, lambda sample: sample.folder)
        folder, samples = next(by_folder, ("", iter(())))
        return samples if self._place(path, folder, 0).key == info.key else iter(())

    def _frames(self, stream: BinaryIO, path: Path, info: EpisodeInfo) -> Iterator[Frame]:
        schema, files = self.schema(), info.metadata.get("files", {})
        pattern = next((split_name(file_pattern)[1] for file_pattern in files.values()), None)
        numbers: list[int | str] = []
        fields: set[str] | None = None
        time: float | None = None
        for index, sample in enumerate(self._samples_of(stream, path, info)):
            sample.check()
            dense_names = (sample.fields.keys() & schema.keys()) - {*self.sparse}
            fields = dense_names if fields is None else fields
            if dense_names != fields:
                name = min(dense_names ^ fields)
                raise SourceError(
                    "the samples have different fields",
                    file=str(path / sample.folder / sample.key),
                    frame=index,
                    expected=f"{', '.join(sorted(fields))}; to let frames lack {name}, set "
                    f"sparse={name} (--source-option)",
                    got=", ".join(sorted(dense_names)),
                )
            frame_number: int | str = sample.key
            name_values: dict[str | None, Any] = {
                FRAME_NUMBER: np.array(index, np.int64),
                FRAME_NAME: sample.key,
            }
            if pattern is not None:
                frame_number = sample.number(pattern, path)
                name_values[FRAME_NUMBER] = np.array(frame_number, np.int64)
            numbers.append(frame_number)
            if not self.allow_gaps:
                check_numbers(numbers[-3:], path, num_frames=info.num_frames)
                time = sample.check_time(time, path, index)
            frame: dict[str, Any] = {}
            for name, spec in schema.items():
                if (member := sample.fields.get(name)) is None:
                    if spec.kind in name_values:
                        frame[name] = name_values[spec.kind]
                else:
                    with located(SourceError, feature=name, frame=index):
                        data = read_member(stream, member, path)
                        frame[name] = _value(data, spec, path / member.name, self.exif)
            yield frame
        if not numbers:
            raise SourceError("no such episode", file=str(path))


FORMAT = SourceFormat(
    "webdataset",
    "*.tar of samples KEY.FIELD, as 000000.png and 000000.json",
    WebDatasetSource,
    options=("sparse", "allow_gaps", "exif"),
    takes_files=True,
    is_fallback=True,
    takes_urls=True,
)


@dataclass
class _Sample:
    """Consecutive files with the same name up to the first dot, by feature.

    `error` was raised by its files, or before the next sample: more of them may follow.
    """

    folder: str
    key: str
    offset: int
    fields: dict[str, Member] = field(default_factory=dict)
    error: Exception | None = None

    def check(self) -> None:
        """Raise `error`, if any."""
        if self.error is not None:
            raise self.error

    def number(self, pattern: str, path: Path) -> int:
        """Return the number in its name. Raises `SourceError` for a name of another pattern."""
        try:
            return number_of(pattern, self.key)
        except ValueError as error:
            raise SourceError(
                "the tar file was changed after it was listed",
                file=str(path),
                offset=self.offset,
                expected=pattern,
                got=self.key,
            ) from error

    def check_time(self, previous_time: float | None, path: Path, frame: int) -> float | None:
        """Return the time in its name, if any. Raises `SourceError` for an earlier time."""
        time = seconds_of(self.key)
        if previous_time is not None and time is not None and time < previous_time:
            raise SourceError(
                "timestamps are not ascending; to accept any order, set allow_gaps=true "
                "(--source-option)",
                file=str(path),
                frame=frame,
                expected=f"{previous_time} or later",
                got=self.key,
            )
        return time


@dataclass
class _Field:
    """A feature of an episode: first file with content, all endings, number of files."""

    first: Member
    data: bytes
    endings: set[str] = field(default_factory=set)
    count: int = 0


@dataclass
class _Episode:
    """An episode's keys and fields, collected from its samples."""

    stream: BinaryIO
    path: Path
    keys: list[str] = field(default_factory=list)
    folder: str = ""
    fields: dict[str, _Field] = field(default_factory=dict)

    def add(self, sample: _Sample) -> None:
        sample.check()
        self.folder = sample.folder
        self.keys.append(sample.key)
        for name, member in sample.fields.items():
            if (episode_field := self.fields.get(name)) is None:
                data = read_member(self.stream, member, self.path)
                episode_field = self.fields[name] = _Field(member, data)
            episode_field.endings.add(_ending(member.name))
            episode_field.count += 1


def _samples(
    stream: BinaryIO, path: Path, offset: int = 0, *, skipped_names: Counter[str] | None = None
) -> Iterator[_Sample]:
    """Yield the samples with supported fields; `skipped_names` counts the names of other files.

    An error belongs to the last sample before it, and so to the folder that it may cut.
    """
    sample = None
    try:
        for member in members(stream, path, offset):
            folder, key, ending = split_name(member.name)
            if any(map(is_junk, member.name.split("/"))):
                continue
            if _ending(ending) not in _READ:
                if skipped_names is not None:
                    skipped_names[f"*.{ending}" if ending else key] += 1
                continue
            if sample is None or (folder, key) != (sample.folder, sample.key):
                if sample is not None:
                    yield sample
                sample = _Sample(folder, key, member.offset)
            name = feature_name(ending.rpartition(".")[0] or ending)
            if (earlier_member := sample.fields.setdefault(name, member)) is not member:
                sample.error = sample.error or SourceError(
                    "two files have the same frame number",
                    file=str(path / member.name),
                    feature=name,
                    got=f"{earlier_member.name} and {member.name}",
                )
    except (SourceError, OSError) as error:
        if sample is None:
            raise
        sample.error = sample.error or error
    if sample is not None:
        yield sample


def _ending(name: str) -> str:
    return f".{name.rpartition('.')[2].lower()}"


def _is_tar(path: Path) -> bool:
    return _ending(path.name) == ".tar"


def _value(data: bytes, spec: FeatureSpec, path: Path, exif: str | None) -> Any:
    ending = _ending(path.name)
    if (ending in _TEXTS) != (spec.value == "text"):
        raise SourceError("the field is text in some samples only", file=str(path))
    try:
        if ending in _TEXTS:
            return data.decode()
        if ending in _NUMBERS:
            return np.array(int(data), spec.dtype)
    except (ValueError, OverflowError) as error:
        expected = "UTF-8" if ending in _TEXTS else "a 64-bit integer"
        raise SourceError(
            "cannot read the field", file=str(path), expected=expected, got=repr(data[:80])
        ) from error
    if ending in IMAGE_ENDINGS:
        return embedded_value(data, spec, path, exif)
    if spec.codec:
        raise SourceError(f"a {ending} file among encoded images", file=str(path))
    array = decode_array(data, path)
    check_spec(array.dtype, array.shape, spec, path)
    return array
