"""Values of a new feature: those of another dataset, or of NumPy files."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.codecs.images import IMAGE
from seqrecord.errors import ClipError, FormatError, NotFoundError, SchemaError
from seqrecord.reading.episode import Episode, values_in_order
from seqrecord.reading.reader import SeqRecordReader
from seqrecord.schema import FeatureSpec
from seqrecord.writing.features import Values

__all__ = ["loses_data", "spec_of_dataset", "values_of_dataset", "values_of_files"]


def spec_of_dataset(dataset: SeqRecordReader, feature: str) -> FeatureSpec:
    """The feature of another dataset, to be stored as it is there.

    Raises `SchemaError` for one that is not there, and for one whose codec loses data: encoding its
    frames once more would lose more, so a codec must be named.
    """
    spec = dataset.features.select([feature])[feature]
    if loses_data(spec):
        raise SchemaError(
            "the other dataset stores the feature with a codec that loses data; name the codec to "
            "encode its frames with, such as balanced, which loses nothing more",
            file=dataset.url,
            feature=feature,
            got=spec.codec[0],
        )
    return spec


def loses_data(spec: FeatureSpec) -> bool:
    """Whether frames of a feature are not what they were before they were encoded."""
    config = spec.codec[0] if spec.codec else {"id": "none"}
    return (config["id"] == "video" and config.get("codec") != "ffv1") or (
        config["id"] == IMAGE and config.get("format") != "png"
    )


def values_of_dataset(dataset: SeqRecordReader, feature: str) -> Values:
    """The values of a feature of another dataset, of episodes with the same keys and lengths.

    Frames that lack the feature there lack it. The function raises `NotFoundError` for an episode
    that the other dataset does not have, and `ClipError` for one of another length there.
    """

    def values(episode: Episode) -> Iterator[Any]:
        if episode.key not in dataset.episodes:
            raise NotFoundError(
                "the other dataset lacks an episode", file=dataset.url, episode=episode.key
            )
        other = dataset.episodes[episode.key]
        if len(other) != len(episode):
            raise ClipError(
                "the episode has another number of frames in the other dataset",
                file=dataset.url,
                episode=episode.key,
                expected=len(episode),
                got=len(other),
            )
        return values_in_order(other, feature, range(len(other)))

    return values


def values_of_files(path: str | PathLike[str], name: str) -> Values:
    """The arrays [frames, …] of NumPy files: of a folder of `KEY.npy` or `KEY.npz`, or of one .npz.

    A file `KEY.npz` has one array, or one of the feature's `name`; a single `.npz` file has an
    array for each key of an episode. Nothing in the files is run. The function raises
    `NotFoundError` for an episode without an array, and `FormatError` for a file that has none.
    """
    root = Path(path)
    if not root.exists():
        raise NotFoundError("no such file or folder", file=str(root))

    def values(episode: Episode) -> npt.NDArray[Any]:
        if not root.is_dir():
            return _array(root, episode.key, episode.key)
        for suffix in (".npy", ".npz"):
            if (file := root / f"{episode.key}{suffix}").is_file():
                return _array(file, name, episode.key)
        raise NotFoundError(
            "no array for an episode",
            file=str(root),
            episode=episode.key,
            expected=f"{episode.key}.npy or {episode.key}.npz",
        )

    return values


def _array(file: Path, name: str, key: str) -> npt.NDArray[Any]:
    try:
        if file.suffix == ".npy":
            found: npt.NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
            return found
        with np.load(file, allow_pickle=False) as arrays:
            only = len(arrays.files) == 1 and name != key
            if name not in arrays.files and not only:
                raise NotFoundError(
                    "the file lacks an array",
                    file=str(file),
                    episode=key,
                    expected=name,
                    got=", ".join(arrays.files)[:200],
                )
            array: npt.NDArray[Any] = arrays[arrays.files[0] if only else name]
            return array
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        if isinstance(error, NotFoundError):
            raise
        raise FormatError(
            f"not a NumPy file that can be read: {error}", file=str(file), episode=key
        ) from error
