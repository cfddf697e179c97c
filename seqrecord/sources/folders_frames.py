"""Reading the frames of one episode folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.errors import SourceError, located
from seqrecord.schema import MAX_FRAME_BYTES, FeatureSpec, Frame, Schema
from seqrecord.sources.array_files import NpyFile, read_array
from seqrecord.sources.embedded import embedded_value
from seqrecord.sources.exported import (
    DESCRIPTION,
    ENDINGS,
    ExportedEpisode,
    frame_stem,
    read_description,
)
from seqrecord.sources.files import list_folder, read_bytes
from seqrecord.sources.folders_tree import METADATA, list_stems, read_metadata
from seqrecord.sources.images import IMAGE_FORMATS, read_image_file
from seqrecord.sources.specs import check_spec

__all__ = ["check_time_axis", "read_frames"]


def read_frames(path: Path, schema: Schema) -> Iterator[Frame]:
    """The features of `schema` frame by frame.

    Raises `SourceError` before the first frame if the features' lengths or frame names disagree.
    """
    entries = sorted(list_folder(path))
    if (METADATA, False) in entries:
        read_metadata(path / METADATA)
    if (DESCRIPTION, False) in entries:
        found = _find_exported(path, schema, read_description(path))
    else:
        files = [name for name, is_folder in entries if not is_folder]
        folders = [name for name, is_folder in entries if is_folder]
        found = _find(path, files, folders, schema)
    for index, stem in enumerate(found.order):
        frame: dict[str, Any] = {}
        for name, spec in schema.items():
            if name in found.arrays:
                frame[name] = np.array(found.arrays[name][index], spec.dtype, order="C")
            elif stem in found.names.get(name, {}):
                with located(SourceError, feature=name, frame=index):
                    frame[name] = _read_frame(found.folders[name] / found.names[name][stem], spec)
        yield frame


@dataclass(frozen=True)
class _Found:
    """Where an episode's frames are: `order` holds the frames' names, without ending.

    By feature: the arrays of all frames, or the folder and in it the file by the frame's name.
    """

    order: Sequence[str]
    arrays: Mapping[str, NpyFile]
    folders: Mapping[str, Path]
    names: Mapping[str, Mapping[str, str]]


def _find(path: Path, files: Sequence[str], folders: Sequence[str], schema: Schema) -> _Found:
    """The features of an episode that are called as their files and folders."""
    arrays = _open_arrays(path, files, schema)
    names = {name: _list_frames(path / name, schema[name]) for name in folders if name in schema}
    num_frames = _check_lengths(path, arrays, names)
    order = list(next(iter(names.values()))) if names else [""] * num_frames
    return _Found(order, arrays, {name: path / name for name in names}, names)


def _find_exported(path: Path, schema: Schema, episode: ExportedEpisode) -> _Found:
    """The features of an episode that says what it holds."""
    order = list(map(frame_stem, episode.frames))
    arrays: dict[str, NpyFile] = {}
    folders: dict[str, Path] = {}
    names: dict[str, dict[str, str]] = {}
    chosen = [feature for feature in episode.features if feature.spec.name in schema]
    if not chosen:
        raise SourceError("an episode without frames of the features", file=str(path))
    for feature in chosen:
        name, place = feature.spec.name, path / feature.path
        if feature.is_array:
            arrays[name] = _open_array(place, schema[name])
            if len(arrays[name]) != len(order):
                wanted = f"{len(order)} frames, as in {DESCRIPTION}"
                raise _disagrees(place, name, wanted, f"{len(arrays[name])} frames")
        elif feature.num_frames:
            folders[name], names[name] = place, _list_frames(place, schema[name])
            if len(names[name]) != feature.num_frames or not names[name].keys() <= set(order):
                raise SourceError(
                    "files of frames that are missing, or that were not exported",
                    file=str(place),
                    feature=name,
                    expected=f"{feature.num_frames} of the frames in {DESCRIPTION}",
                    got=f"{len(names[name])} files",
                )
    return _Found(order, arrays, folders, names)


def check_time_axis(shape: tuple[int, ...], path: Path) -> None:
    """Raises `SourceError` unless `shape` is [T, ...]."""
    if not shape:
        raise SourceError(
            "an array without a time axis", file=str(path), expected="[T, ...]", got="a scalar"
        )


def _open_arrays(path: Path, files: Sequence[str], schema: Schema) -> dict[str, NpyFile]:
    """The per-episode arrays, checked."""
    return {
        name: _open_array(path / file, schema[name])
        for file in files
        if (name := Path(file).stem) in schema and Path(file).suffix.lower() == ".npy"
    }


def _open_array(path: Path, spec: FeatureSpec) -> NpyFile:
    array = NpyFile(path)
    check_time_axis(array.shape, path)
    check_spec(array.dtype, array.shape[1:], spec, path)
    return array


def _check_lengths(
    path: Path, arrays: Mapping[str, NpyFile], stems: Mapping[str, dict[str, str]]
) -> int:
    """The number of frames, which all features must have; and the same names in all folders."""
    both = arrays.keys() & stems.keys()
    if both:
        name = min(both)
        raise SourceError(
            "a feature that is there twice",
            file=str(path),
            feature=name,
            got=f"{name}/ and {name}.npy",
        )
    lengths = {f"{name}/": len(names) for name, names in stems.items()}
    lengths |= {f"{name}.npy": len(array) for name, array in arrays.items()}
    if not any(lengths.values()):
        raise SourceError("an episode without frames of the features", file=str(path))
    first, num_frames = next(iter(lengths.items()))
    for name, length in lengths.items():
        if length != num_frames:
            wanted = f"{num_frames} frames, as in {first}"
            raise _disagrees(path / name, Path(name).stem, wanted, f"{length} frames")
    for name, names in stems.items():
        one = next(iter(stems.values()))
        if names.keys() != one.keys():
            wanted = f"{min(one.keys() - names.keys())}, as in {first}"
            raise _disagrees(path / name, name, wanted, min(names.keys() - one.keys()))
    return num_frames


def _disagrees(path: Path, feature: str, expected: str, got: str) -> SourceError:
    return SourceError(
        "a frame list that disagrees with the others",
        file=str(path),
        feature=feature,
        expected=expected,
        got=got,
    )


def _list_frames(folder: Path, spec: FeatureSpec) -> dict[str, str]:
    return list_stems(folder, ENDINGS.get(spec.value))


def _read_frame(path: Path, spec: FeatureSpec) -> Any:
    if spec.value != "array":
        data = read_bytes(path, MAX_FRAME_BYTES)
        if spec.value == "bytes":
            return data
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise SourceError(
                "text that is not UTF-8", file=str(path), got=str(error)[:200]
            ) from error
    ending = path.suffix.lower()
    if ending not in IMAGE_FORMATS:
        if spec.codec:
            raise SourceError(f"a {ending} file among kept images", file=str(path))
        array = read_array(path)
        check_spec(array.dtype, array.shape, spec, path)
        return array
    return embedded_value(read_image_file(path), spec, path)
