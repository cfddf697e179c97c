"""Export of episodes as files for other tools.

::

    DESTINATION/KEY/FEATURE/000000.png    images: uint8 [H, W], [H, W, 3], [H, W, 4], uint16 [H, W]
    DESTINATION/KEY/FEATURE/000000.npy    other arrays; the number of the frame in the episode
    DESTINATION/KEY/FEATURE.npy           scalars and vectors, all frames in one array [T, …]
    DESTINATION/KEY/metadata.json
    DESTINATION/KEY/seqrecord.json        the features; `formats.sources.folders.exported`

`seqrecord.sources.FolderSource` packs the files to the same episodes again. A vector is written to
a file per frame if a frame lacks it. If a feature's name is taken by another file, a number is
appended: `FEATURE~1`.
"""

from __future__ import annotations

import errno
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.format import open_memmap
from PIL import Image

from seqrecord.errors import ClipError, DestinationError, SchemaError, SeqRecordError
from seqrecord.formats.converting.convert_jobs import Meter
from seqrecord.formats.converting.dataset_source import DatasetSource
from seqrecord.formats.sources.common.originals import MAX_DEPTH
from seqrecord.formats.sources.folders.exported import (
    DESCRIPTION,
    ExportedEpisode,
    ExportedFeature,
    encode_description,
    frame_stem,
)
from seqrecord.formats.sources.folders.tree import MAX_METADATA_BYTES, METADATA
from seqrecord.in_place.files import JUNK, is_junk
from seqrecord.store.bfloat16 import BFLOAT16
from seqrecord.store.codecs.images import image_format
from seqrecord.store.format.text import check_key
from seqrecord.store.processes.system import reserve
from seqrecord.store.reading.dataset import Dataset, DatasetLike
from seqrecord.store.reading.filters import EpisodeFilter
from seqrecord.store.reading.opening import opened
from seqrecord.store.schema import EncodedImage, FeatureSpec
from seqrecord.store.storage.url import local_path
from seqrecord.store.units import Progress

_logger = logging.getLogger("seqrecord")

_ENDINGS = {"png": "png", "jpeg": "jpg"}
_PREFIX = ".seqrecord-export-"
_UNFINISHED = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}")
_MAX_PIXELS = 1 << 26  # Pillow warns of larger images


def to_files(
    dataset: DatasetLike,
    episodes: EpisodeFilter,
    destination: str | PathLike[str],
    *,
    features: Sequence[str] | None = None,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write the frames of episodes as files; returns the episodes' folders, sorted.

    Images become PNG, which is lossless; encoded images are written as they are stored; texts
    become UTF-8 files. Missing features and empty frames are left out. `seqrecord write`, or
    `convert`, packs the files to the same episodes again. Memory: one chunk of each group.

    Args:
        dataset: local path or URL, or an open dataset.
        episodes: a key, several, a glob, or a predicate on metadata; `None` for all.
        destination: a local folder; each episode gets a folder below it, named by its key.
        features: names of the features, all by default.
        progress: called from this thread, several times per second.
        storage_options: for the filesystem that serves the dataset's URL.

    Raises `ClipError` for an unknown episode and for an empty selection, `SchemaError` for values
    of texts and for bfloat16, which NumPy's files lack, and `DestinationError` if an episode's
    folder is not empty or cannot be written.

    Example:
        from seqrecord import export

        folders = export.to_files("records/", None, "files/", features=["image"])
    """
    with opened(dataset, storage_options=storage_options) as reader:
        if isinstance(episodes, str) and episodes in reader.episodes:
            episodes = [episodes]  # a key may look like a glob
        numbers = reader.contents.find_episodes(episodes)
        selection = exported_features(reader, features)
        keys = selection.contents.index.keys_of(numbers)
        root = local_path(destination, "destination")
        total = int(selection.contents.index.num_frames[numbers].sum())
        meter = Meter(total, selection.features.frame_nbytes, progress)
        folders = []
        for key in sorted(keys):  # parent folders first
            description = _describe(selection, key)
            with disk_errors("the episode's files", root, key):
                folders.append(_episode_folder(root, key))
                with new_folder(folders[-1], "the episode's folder", DESCRIPTION, key) as target:
                    target.mkdir()
                    _write_episode(selection, key, target, description, meter)
        meter.report()
        return folders


def exported_features(dataset: Dataset, features: Sequence[str] | None) -> Dataset:
    """Select the features of an export. Values of texts are left out, with a warning.

    Raises `SchemaError` for those in `features`, and for unknown features.
    """
    names = [place.name for place in dataset.contents.dictionaries]
    if requested := [name for name in names if features is not None and name in features]:
        raise SchemaError(
            "values of texts are stored once per text, and exports have values per frame; leave "
            "them out, and read them from Dataset.dictionaries",
            file=dataset.url,
            feature=requested[0],
            expected=f"some of {', '.join(dataset.features)}",
        )
    if names and features is None:
        _logger.warning("%s: exported without values of texts: %s", dataset.url, ", ".join(names))
    return dataset.select(features)


def _describe(dataset: Dataset, key: str) -> ExportedEpisode:
    """Description of an episode's files: features, paths, frames.

    No two paths are the same, even on a filesystem that ignores case.
    """
    episode = dataset.episodes[key]
    used_paths = {name.casefold() for name in (*JUNK, METADATA, DESCRIPTION)}
    numbers = np.flatnonzero(np.any([episode.present(name) for name in dataset.features], axis=0))
    if not len(numbers):
        raise ClipError("none of the frames has any of the features", episode=key)
    features = []
    for name, spec in dataset.features.items():
        if spec.dtype == BFLOAT16:
            raise SchemaError(
                "NumPy's files have no bfloat16; choose other features (--features), or add it as "
                "float32: seqrecord.edit.add_feature",
                file=dataset.url,
                feature=name,
                expected="a dtype of NumPy",
                got=str(spec).partition(": ")[2],
            )
        present = episode.present(name)[numbers]
        is_array = spec.is_fixed and len(spec.shape) <= 1 and bool(present.all())
        ending = ".npy" if is_array else ""
        path, number = f"{name}{ending}", 0
        while path.casefold() in used_paths:
            number += 1
            path = f"{name}~{number}{ending}"
        used_paths.add(path.casefold())
        plain = replace(spec, codec=(), group=0)
        features.append(ExportedFeature(plain, path, is_array, int(present.sum())))
    index = dataset.contents.index
    split = index.split_of(index.positions[key], dataset.contents.manifest.splits)
    return ExportedEpisode(tuple(numbers.tolist()), tuple(features), episode.fps, split)


def _write_episode(
    dataset: Dataset, key: str, folder: Path, description: ExportedEpisode, meter: Meter
) -> None:
    """Write an episode's files, frame by frame."""
    (folder / DESCRIPTION).write_text(encode_description(description), encoding="utf-8")
    metadata = dataset.episodes[key].metadata
    text = json.dumps(metadata, indent=1, ensure_ascii=False, sort_keys=True)
    if len(text.encode()) >= MAX_METADATA_BYTES:
        text = json.dumps(metadata, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
    (folder / METADATA).write_text(f"{text}\n", encoding="utf-8")
    features = dataset.features
    paths = {f.spec.name: folder / f.path for f in description.features}
    arrays = {
        f.spec.name: _open_array(paths[f.spec.name], f.spec, len(description.frames))
        for f in description.features
        if f.is_array
    }
    source = DatasetSource(dataset, frozenset(n for n, s in features.items() if _is_decoded(s)))
    place = 0  # among the frames that are not empty
    for number, frame in enumerate(source.frames_of(key)):
        for name, value in frame.items():
            if name in arrays:
                arrays[name][place] = value
            else:
                _write_frame(paths[name] / frame_stem(number), value, features[name])
        place += bool(frame)
        meter.add(1)


def _open_array(path: Path, spec: FeatureSpec, num_frames: int) -> npt.NDArray[Any]:
    shape = (num_frames, *(n or 0 for n in spec.shape))
    array: npt.NDArray[Any] = open_memmap(path, "w+", spec.dtype, shape)
    with path.open("r+b") as file:  # else a full disk raises a signal, not an error
        reserve(file.fileno(), path.stat().st_size)
    return array


def _write_frame(stem: Path, value: Any, spec: FeatureSpec) -> None:
    stem.parent.mkdir(exist_ok=True)
    if isinstance(value, EncodedImage):
        stem.with_suffix(f".{_ENDINGS[image_format(value.data)]}").write_bytes(value.data)
    elif (ending := spec.value_kind.file_ending) is not None:
        data = spec.value_kind.stored_array(spec.name, value).tobytes()
        stem.with_suffix(ending).write_bytes(data)
    elif _is_image(value):
        # Level 1 of 9: twice as fast as Pillow's default, a few percent larger.
        Image.fromarray(value).save(stem.with_suffix(".png"), compress_level=1)
    else:
        np.save(stem.with_suffix(".npy"), value, allow_pickle=False)


def _is_decoded(spec: FeatureSpec) -> bool:
    """Whether frames are decoded for the export: all but encoded images."""
    return not any(config.get("format") in ("png", "jpeg", "any") for config in spec.codec)


def _is_image(array: npt.NDArray[Any]) -> bool:
    """Whether PNG and `FolderSource` support the array; empty and huge images are excluded."""
    if array.ndim not in (2, 3) or not 0 < array.shape[0] * array.shape[1] <= _MAX_PIXELS:
        return False
    if array.dtype == np.uint16:
        return array.ndim == 2
    return array.dtype == np.uint8 and array.shape[2:] in ((), (3,), (4,))


def _episode_folder(destination: Path, key: str) -> Path:
    """The episode's folder; keys and symbolic links cannot leave the root."""
    root = destination.resolve()
    names = check_key(key).split("/")
    if len(names) >= MAX_DEPTH:
        raise DestinationError(
            "episode key has too many levels for a folder; shorten it (`seqrecord edit rename`)",
            file=str(root),
            episode=key,
            expected=f"fewer than {MAX_DEPTH} levels",
            got=len(names),
        )
    if hidden_names := [name for name in names if is_junk(name)]:
        raise DestinationError(
            "episode folder would be hidden, and sources would skip it; rename the episode "
            "(`seqrecord edit rename`)",
            file=str(root),
            episode=key,
            expected=f"no leading dot, and none of {', '.join(JUNK)}",
            got=hidden_names[0],
        )
    folder = root.joinpath(*names)
    if not folder.resolve().is_relative_to(root) or folder.resolve() == root:
        raise DestinationError(
            "episode folder is not inside the destination",
            file=str(folder),
            episode=key,
            expected=f"inside {root}",
            got=str(folder.resolve()),
        )
    return folder


@contextmanager
def disk_errors(subject: str, root: Path, episode: str | None = None) -> Iterator[None]:
    """Raise the system's errors as `DestinationError`: `subject` cannot be written.

    This package's own errors pass unchanged: they are about the dataset.
    """
    try:
        yield
    except SeqRecordError:
        raise
    except OSError as error:
        is_long = episode is not None and error.errno == errno.ENAMETOOLONG
        remedy = "; shorten the episode key (`seqrecord edit rename`)" if is_long else ""
        raise DestinationError(
            f"{subject} cannot be written: {error.strerror or error}{remedy}",
            file=str(error.filename or root),
            episode=episode,
        ) from error


@contextmanager
def new_folder(
    folder: Path, subject: str, first_name: str, episode: str | None = None
) -> Iterator[Path]:
    """Provide a path for the content of an empty or new folder; the block creates it.

    The path is in a hidden folder inside `folder`. An error removes the hidden folder; after a
    kill, the next export does. At the end of the block the content moves to `folder`, `first_name`
    at first: if a kill interrupts the move, readers of that file find others missing. Raises
    `DestinationError` if the folder is not empty.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remnants = [*folder.iterdir()]
    if not all(_UNFINISHED.fullmatch(path.name) for path in remnants):
        raise DestinationError(
            f"{subject} is not empty; choose another place, or remove its content",
            file=str(folder),
            episode=episode,
        )
    for path in remnants:
        shutil.rmtree(path)
    with TemporaryDirectory(prefix=_PREFIX, dir=folder) as temporary:
        target = Path(temporary) / folder.name
        yield target
        for path in sorted(target.iterdir(), key=lambda path: path.name != first_name):
            path.rename(folder / path.name)
