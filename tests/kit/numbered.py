"""Small datasets with values that identify episode and frame."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import seqrecord
from seqrecord import SeqRecordRecorder, SeqRecordWriter
from seqrecord.errors import NotFoundError
from seqrecord.format.manifest import read_manifest
from seqrecord.storage import LocalStorage
from tests.kit.abandoned import abandonable
from tests.kit.own_threads import own_threads

__all__ = [
    "LENGTHS",
    "contents",
    "frame",
    "join_commits",
    "keys_of",
    "lengths_of",
    "record_files",
    "small_writer",
    "write_episodes",
]

LENGTHS: Mapping[str, int] = {key: 1 + number % 7 for number, key in enumerate("abcdefghijkl")}
"""Number of frames by episode."""


def frame(key: str, number: int) -> dict[str, Any]:
    """Frame `number` of an episode: 50 bytes, all equal."""
    return {"x": np.full(50, (zlib.crc32(key.encode()) + number) % 256, np.uint8)}


def small_writer(where: Any, mode: Any = "create", **options: Any) -> SeqRecordWriter:
    """A writer with short chunks and files, for `abandon`."""
    defaults = {"codecs": "raw", "chunk_frames": 2, "max_file_size": 700}
    return abandonable(where, mode=mode, **(defaults | options))


def write_episodes(
    writer: SeqRecordWriter | SeqRecordRecorder, episodes: Iterable[str] | Mapping[str, int]
) -> None:
    """Write episodes with the given lengths, by default from `LENGTHS`."""
    lengths = episodes if isinstance(episodes, Mapping) else {key: LENGTHS[key] for key in episodes}
    for key, length in lengths.items():
        with writer.episode(key) as episode:
            for number in range(length):
                episode.append(frame(key, number))


def lengths_of(where: Any) -> dict[str, int]:
    """Number of frames by episode, in order; asserts all values. Empty without a dataset."""
    try:
        dataset = seqrecord.open(where)
    except NotFoundError:
        return {}
    with dataset:
        for key, episode in dataset.episodes.items():
            want = [frame(key, number)["x"] for number in range(len(episode))]
            np.testing.assert_array_equal(episode[:]["x"], want)
        return {key: len(episode) for key, episode in dataset.episodes.items()}


def keys_of(folder: Path, *, verify: bool = True) -> str:
    """Keys of `LENGTHS` in order; asserts all values and, with `verify`, a sound dataset."""
    found = lengths_of(folder)
    assert found == {key: LENGTHS[key] for key in found}
    assert not (found and verify) or seqrecord.verify(folder).problems == ()
    return "".join(found)


def contents(folder: Path) -> dict[str, bytes]:
    """Contents of all files below a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def record_files(folder: Path) -> list[Path]:
    """Record files in the manifest."""
    return [folder / file.path for file in read_manifest(LocalStorage(folder)).record_files]


def join_commits() -> None:
    """Wait until no record file is being committed."""
    for thread in own_threads("seqrecord-commit"):
        thread.join()
