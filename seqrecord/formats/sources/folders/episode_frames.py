"""Read the frames of one episode folder."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import CodecError, SourceError, located
from seqrecord.formats.sources.common.array_files import NO_ROWS, NpyFile, read_array
from seqrecord.formats.sources.common.embedded import embedded_value
from seqrecord.formats.sources.common.frame_names import (
    FRAME_NAME,
    FRAME_NUMBER,
    TIMESTAMP,
    FrameFiles,
    check_numbers,
    frame_files,
)
from seqrecord.formats.sources.common.images import IMAGE_ENDINGS, read_image
from seqrecord.formats.sources.common.point_files import POINT_ENDINGS, read_points
from seqrecord.formats.sources.common.points import check_columns
from seqrecord.formats.sources.common.specs import check_spec
from seqrecord.formats.sources.common.tables import TEXT_ENDINGS, is_blank, read_numbers
from seqrecord.formats.sources.folders.exported import (
    DESCRIPTION,
    ExportedEpisode,
    read_description,
)
from seqrecord.formats.sources.folders.rows import RowFiles, find_rows
from seqrecord.formats.sources.folders.tree import (
    METADATA,
    FeatureFolder,
    Listing,
    is_frame,
    look,
    look_inside,
    name_features,
    read_metadata,
)
from seqrecord.in_place.files import list_folder, read_bytes
from seqrecord.store.format.page_kinds import page_kind
from seqrecord.store.format.references import ReferencedFile
from seqrecord.store.format.time_spans import clock_of, seconds_since_first
from seqrecord.store.schema import FeatureSpec, Frame, Schema


def read_frames(
    path: Path,
    schema: Schema,
    *,
    sparse: Collection[str],
    allow_gaps: bool,
    in_place: bool = False,
    exif: str | None = None,
    columns: Sequence[str] | None = None,
    described: Collection[str] = (),
) -> Iterator[Frame]:
    """Yield the features of `schema` frame by frame; frames may lack `sparse` ones.

    With `in_place`, kept images are a `ReferencedFile`. Raises `SourceError` before the first frame
    if lengths or frame names of features disagree, and for a gap in the frame numbers. `columns`
    name the columns of `.bin` files. `described` are the features of all exported episodes: there,
    frames without one get no value from the names of files, which the export has made.
    """
    reader = _FrameReader(in_place, exif, columns)
    listing = look(path)
    if METADATA in listing.names:
        read_metadata(path / METADATA)
    recorded: Collection[str] = ()
    if DESCRIPTION in listing.names:
        recorded = described
        episode_data = _find_exported(path, schema, read_description(path))
    else:
        episode_data = _find_features(path, listing, schema, sparse)
        if not allow_gaps:
            check_numbers(list(episode_data.order), path)
    for index, (key, file) in enumerate(episode_data.order.items()):
        name_values: dict[str, Any] = {
            FRAME_NUMBER: np.array(key if isinstance(key, int) else index, np.int64),
            FRAME_NAME: Path(file or str(key)).stem,
        }
        if episode_data.times:
            name_values[TIMESTAMP] = np.array(episode_data.times[index], np.int64)
        frame: dict[str, Any] = {}
        for name, spec in schema.items():
            if name in episode_data.arrays:
                frame[name] = np.array(episode_data.arrays[name][index], spec.dtype, order="C")
            elif name in episode_data.files:
                feature = episode_data.files[name]
                if key not in feature.files.names:
                    continue
                frame_path = path / feature.folder / feature.files.names[key]
                with located(SourceError, feature=name, frame=index):
                    frame[name] = reader.read(frame_path, spec, feature.member)
            elif spec.kind in name_values and name not in recorded:
                frame[name] = name_values[spec.kind]
        yield frame


def read_times(
    path: Path, schema: Schema, sparse: Collection[str]
) -> npt.NDArray[np.float64] | None:
    """Return the times of the frames that `read_frames` yields, in seconds since the first one.

    They are in the names of the files, or a feature of an exported episode, in `schema` or not:
    float64 [T], NaN for frames without a time. `None` if the episode has no times.
    """
    listing = look(path)
    if DESCRIPTION in listing.names:
        return _exported_times(path, read_description(path))
    features, _ = name_features(path, listing, look_inside(path, listing.subfolders), sparse)
    for name in _dense_names(features, schema, sparse)[:1]:
        files = features[name].files
        files.check(path / features[name].folder, name)
        if files.times:
            return seconds_since_first(np.array(files.time_values, np.int64), "ns")
    return None


def _exported_times(path: Path, episode: ExportedEpisode) -> npt.NDArray[np.float64] | None:
    schema = Schema([feature.spec for feature in episode.features])
    clock = clock_of(schema)
    if clock is None:
        return None
    frames = read_frames(path, Schema([schema[clock]]), sparse=(), allow_gaps=True)
    values = {number: frame[clock] for number, frame in enumerate(frames) if clock in frame}
    times = np.array([np.asarray(value).item() for value in values.values()], schema[clock].dtype)
    since_first = seconds_since_first(times, schema[clock].unit)
    if since_first is None:
        return None
    seconds = np.full(len(episode.frames), np.nan)
    seconds[[*values]] = since_first
    return seconds


@dataclass(frozen=True)
class _FrameReader:
    """Reads the files of an episode with one frame each; arguments as for `read_frames`."""

    in_place: bool
    exif: str | None
    columns: Sequence[str] | None
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)  # columns of points

    def read(self, path: Path, spec: FeatureSpec, member: str | None) -> Any:
        """Return the value of a feature in a file, or the reference to it."""
        if self.in_place and page_kind(spec).may_refer(spec):
            return ReferencedFile(str(path))
        are_points = path.suffix.lower() in POINT_ENDINGS and not spec.codec
        if are_points and spec.value == "array":
            points = read_points(path, self.columns).get(member or "")
            return check_columns(self.labels, points, spec, path)
        return _read_frame(path, spec, self.exif, member)


@dataclass(frozen=True)
class _EpisodeData:
    """The data of an episode. `order` maps frame numbers or names to a file of the frame.

    Each feature is an array over all frames, or files in a folder.
    """

    order: Mapping[int | str, str]
    arrays: Mapping[str, NpyFile | npt.NDArray[Any]]
    files: Mapping[str, FeatureFolder]
    times: Sequence[int] = ()  # of the file names, in nanoseconds


def _find_features(
    path: Path, listing: Listing, schema: Schema, sparse: Collection[str]
) -> _EpisodeData:
    """Find the features of an episode by its files and folders."""
    is_selected = schema.__contains__
    arrays = {
        name: _open_array(path / listing.arrays[name], schema[name])
        for name in filter(is_selected, listing.arrays)
    }
    all_features, row_files = name_features(
        path, listing, look_inside(path, listing.subfolders), sparse
    )
    files = {name: all_features[name] for name in filter(is_selected, all_features)}
    dense = _dense_names(all_features, schema, sparse)
    for name in {**dict.fromkeys(dense), **files}:
        all_features[name].files.check(path / all_features[name].folder, name)
    _check_lengths(path, arrays, {name: all_features[name] for name in (*dense, *files)}, dense)
    order: Mapping[int | str, str] | None
    times: Sequence[int] = ()
    if dense:
        first_files = all_features[dense[0]].files
        order, times = first_files.names, first_files.time_values
    else:
        order = _order_of_arrays(path, listing, arrays)
    used_names = {*all_features, *listing.arrays}
    rows = find_rows(path, row_files, used_names, None if order is None else len(order))
    row_arrays = _load_rows(path, rows, schema)
    order = order or dict.fromkeys(range(rows.num_frames), "")
    all_arrays: dict[str, NpyFile | npt.NDArray[Any]] = {**arrays, **row_arrays}
    are_named = any(  # numbers, names and times of files are values, too
        spec.kind in (FRAME_NUMBER, FRAME_NAME) or (spec.kind == TIMESTAMP and times)
        for name, spec in schema.items()
        if name not in used_names and name not in rows.features
    )
    if not order or not (all_arrays or files or are_named):
        raise SourceError(
            "the episode has no frames of the selected features",
            file=str(path),
            expected=f"files of {', '.join(schema)}",
            got=rows.unused_files,
        )
    return _EpisodeData(order, all_arrays, files, times)


def _dense_names(
    features: Mapping[str, FeatureFolder], schema: Schema, sparse: Collection[str]
) -> list[str]:
    """Return the features that have a file for each frame: the selected ones, or else the first.

    The frames must not depend on the selected features.
    """
    names = [name for name in features if name not in sparse]
    return [name for name in names if name in schema] or names[:1]


def _order_of_arrays(
    path: Path, listing: Listing, arrays: Mapping[str, NpyFile]
) -> Mapping[int | str, str] | None:
    """Return the frames of whole-episode arrays; `None` without such arrays."""
    if not listing.arrays:
        return None
    # The frames must not depend on the selected features: else the first array is opened for them.
    first_array = next(iter(arrays.values()), None)
    first_array = first_array or NpyFile(path / next(iter(listing.arrays.values())))
    check_time_axis(first_array.shape, path)
    return dict.fromkeys(range(len(first_array)), "")


def _load_rows(path: Path, rows: RowFiles, schema: Schema) -> dict[str, npt.NDArray[Any]]:
    """Return the selected features of row files, whose headers are checked before any is read."""
    row_features = {name: rows.features[name] for name in rows.features if name in schema}
    for name, row_feature in row_features.items():
        check_spec(row_feature.dtype, row_feature.shape, schema[name], path / row_feature.file)
    return {name: row_feature.load(path) for name, row_feature in row_features.items()}


def files_of(path: Path, names: Collection[str], sparse: Collection[str]) -> Iterator[Path]:
    """Yield the files of these features in an episode's folder, if they have one file per frame."""
    listing = look(path)
    features, _ = name_features(path, listing, look_inside(path, listing.subfolders), sparse)
    for name in features.keys() & names:
        yield from (
            path / features[name].folder / file for file in features[name].files.names.values()
        )


def _find_exported(path: Path, schema: Schema, episode: ExportedEpisode) -> _EpisodeData:
    """Find the features of an exported episode by its description."""
    order: dict[int | str, str] = dict.fromkeys(episode.frames, "")
    arrays: dict[str, NpyFile] = {}
    files: dict[str, FeatureFolder] = {}
    features = [feature for feature in episode.features if feature.spec.name in schema]
    if not features:
        raise SourceError("the episode has no frames of the selected features", file=str(path))
    for feature in features:
        name, place = feature.spec.name, path / feature.path
        if feature.is_array:
            arrays[name] = _open_array(place, schema[name])
            if len(arrays[name]) != len(order):
                expected_frames = f"{len(order)} frames, as in {DESCRIPTION}"
                raise _frames_error(place, name, expected_frames, f"{len(arrays[name])} frames")
        elif feature.num_frames:
            exported_files = _exported_frames(place, schema[name])
            files[name] = FeatureFolder(feature.path, exported_files)
            if (
                len(exported_files.names) != feature.num_frames
                or not exported_files.names.keys() <= order.keys()
            ):
                raise SourceError(
                    "exported files are missing, or files were added",
                    file=str(place),
                    feature=name,
                    expected=f"{feature.num_frames} of the frames in {DESCRIPTION}",
                    got=f"{len(exported_files.names)} files",
                )
    return _EpisodeData(order, arrays, files)


def check_time_axis(shape: tuple[int, ...], path: Path) -> None:
    """Raise `SourceError` unless `shape` is [T, ...]."""
    if not shape:
        raise SourceError(
            "array without a time axis", file=str(path), expected="[T, ...]", got="a scalar"
        )


def _open_array(path: Path, spec: FeatureSpec) -> NpyFile:
    array = NpyFile(path)
    check_time_axis(array.shape, path)
    check_spec(array.dtype, array.shape[1:], spec, path)
    return array


def _check_lengths(
    path: Path,
    arrays: Mapping[str, NpyFile],
    files: Mapping[str, FeatureFolder],
    dense: Collection[str],
) -> None:
    """Raise `SourceError` unless all `dense` features have the same frames.

    Other files may lack frames, but must not have additional ones.
    """
    duplicates = arrays.keys() & files.keys()
    if duplicates:
        name = min(duplicates)
        raise SourceError(
            "duplicate feature; remove the folder or the file",
            file=str(path),
            feature=name,
            got=f"{name}/ and {name}.npy",
        )
    places = {name: path / f"{name}.npy" for name in arrays}
    places |= {name: path / folder.folder for name, folder in files.items()}
    lengths = {name: files[name].files.num_frames for name in dense}
    lengths |= {name: len(array) for name, array in arrays.items()}
    if not any(lengths.values()):
        return
    first_name, num_frames = next(iter(lengths.items()))
    origin, frames = f"as in {first_name}.npy", {*range(num_frames)}
    if dense:
        origin, frames = f"as in {first_name}/", {*files[first_name].files.names}
    for name, length in lengths.items():
        if length != num_frames:
            expected = f"{num_frames} frames, {origin}"
            shorter_name = name if length < num_frames else first_name
            if {first_name, name} <= files.keys() and places[first_name] == places[name]:
                file_names = f"{files[first_name].files.first} and {files[name].files.first}"
                expected += (
                    f"; if {file_names} belong to two recordings, move one to another folder"
                )
            raise _frames_error(places[name], name, expected, f"{length} frames", shorter_name)
    for name, folder in files.items():
        if extra_frames := folder.files.names.keys() - frames:
            expected = f"{_first_frame(frames - folder.files.names.keys())}, {origin}"
            raise _frames_error(places[name], name, expected, _first_frame(extra_frames))


def _frames_error(
    path: Path, feature: str, expected: str, got: str, shorter_name: str = ""
) -> SourceError:
    hint = (
        f"; to let frames lack {shorter_name}, set sparse={shorter_name} (--source-option)"
        if shorter_name
        else ""
    )
    return SourceError(
        "the features have different frames",
        file=str(path),
        feature=feature,
        expected=expected + hint,
        got=got,
    )


def _first_frame(frames: Collection[int | str]) -> str:
    return str(min(frames, key=str, default="none"))


def _exported_frames(folder: Path, spec: FeatureSpec) -> FrameFiles:
    ending = spec.value_kind.file_ending
    return frame_files(
        name
        for name, is_folder in list_folder(folder)
        if not is_folder and (is_frame(name) if ending is None else name.endswith(ending))
    )


def _read_frame(path: Path, spec: FeatureSpec, exif: str | None, member: str | None = None) -> Any:
    if spec.value_kind.file_ending is not None:
        try:
            return spec.value_kind.user_value(np.frombuffer(read_bytes(path), np.uint8))
        except CodecError as error:
            got = str(error.__cause__)[:200]
            raise SourceError("text is not UTF-8", file=str(path), got=got) from error
    ending = path.suffix.lower()
    if ending not in IMAGE_ENDINGS:
        if spec.codec:
            raise SourceError(f"a {ending} file among encoded images", file=str(path))
        if ending not in TEXT_ENDINGS:
            array = read_array(path, member=member)
            if array.shape == NO_ROWS and spec.shape[:1] == (None,):
                array = np.empty((0, *(size or 0 for size in spec.shape[1:])), spec.dtype)
        elif spec.shape[:1] != (None,):
            array = np.asarray(read_numbers(path).matrix())
        else:
            values = np.empty(0) if is_blank(path) else read_numbers(path).matrix()
            array = np.atleast_2d(values) if values.size else values.reshape(0, *spec.shape[1:])
        check_spec(array.dtype, array.shape, spec, path)
        return array
    return embedded_value(read_image(path), spec, path, exif)
