"""Broken originals with their expected errors; broken PNG and npy files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqrecord.errors import SourceError
from seqrecord.sources import EpisodeInfo, Source
from tests.kit.datasets import encoded

__all__ = [
    "Damage",
    "Fault",
    "check_faults",
    "check_frames",
    "check_refused",
    "cut",
    "edit",
    "encoded",
    "fault",
    "flipped",
    "frames_of",
    "line",
    "read_all",
    "remove",
    "save",
    "write",
]

Damage = Callable[[Path], object]


@dataclass(frozen=True)
class Fault:
    """A damage of an episode's folder, a pattern for the file in the error, a distinctive word of
    its message, and facts (attributes of the error, or parts of them)."""

    damage: Damage
    file: str
    match: str
    facts: dict[str, object]


def frames_of(source: Source, episode: int | str = 0) -> list[dict[str, Any]]:
    """Frames of an episode, by number or key."""
    infos = source.episodes()
    keys = [info.key for info in infos]
    number = keys.index(episode) if isinstance(episode, str) else episode
    return [dict(frame) for frame in source.frames(infos[number])]


def read_all(source: Source, info: EpisodeInfo) -> int:
    """Read all frames of an episode and its videos; returns the number of frames."""
    for each in source.videos(info).values() if hasattr(source, "videos") else ():
        list(each)
    return len(list(source.frames(info)))


def check_refused(
    source: Source,
    bad: Sequence[str],
    match: str = ".",
    *,
    file: Path | None = None,
    **facts: object,
) -> None:
    """Assert that the episodes `bad` raise, with this file or one below it and these facts; all
    other episodes must be readable."""
    infos = source.episodes()
    assert {*bad} <= {info.key for info in infos}
    for info in infos:
        if info.key in bad:
            _error(source, info, match, file, facts)
        else:
            assert read_all(source, info) == info.num_frames


def _error(
    source: Source, info: EpisodeInfo, match: str, file: Path | None, facts: Mapping[str, object]
) -> SourceError:
    with pytest.raises(SourceError, match=match) as caught:
        read_all(source, info)
    error = caught.value
    assert error.episode == info.key
    if file is not None:
        assert error.file is not None
        assert Path(error.file).is_relative_to(file)
    for name, value in facts.items():
        assert str(value) in str(getattr(error, name)), name
    return error


def fault(damage: Damage, file: str, match: str, **facts: object) -> Fault:
    return Fault(damage, file, match, facts)


def check_faults(
    cases: Sequence[Fault], sound: Path, root: Path, opened: Callable[[Path], Source]
) -> None:
    """Damage one copy of an episode per case, and assert each expected error.

    An undamaged first copy must be readable.
    """
    for number in range(len(cases) + 1):
        folder = shutil.copytree(sound, root / f"P{number:03d}")
        if number:
            cases[number - 1].damage(folder)
    source = opened(root)
    first, *others = source.episodes()
    assert read_all(source, first) == first.num_frames
    for number, (case, info) in enumerate(zip(cases, others, strict=True), 1):
        folder = root / f"P{number:03d}"
        error = _error(source, info, case.match, folder, case.facts)
        assert Path(str(error.file)).match(str(folder / case.file))


def check_frames(source: Source, number: int, want: Sequence[Mapping[str, Any]]) -> None:
    """Assert an episode's frames: values, dtypes, and order of the features."""
    info, schema = source.episodes()[number], source.schema()
    frames = list(source.frames(info))
    assert len(frames) == len(want) == info.num_frames
    for got, frame in zip(frames, want, strict=True):
        assert [*got] == [name for name in schema if name in frame]
        assert got.keys() == frame.keys()
        for name, value in frame.items():
            array = np.asarray(got[name])
            assert array.dtype == schema[name].dtype, name
            assert array.flags.c_contiguous, name
            assert schema[name].accepts(array.shape), name
            np.testing.assert_array_equal(array, value, name)


def write(name: str, data: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(data)


def edit(name: str, change: Callable[[bytes], bytes]) -> Damage:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def cut(name: str, stop: int) -> Damage:
    return edit(name, lambda data: data[:stop])


def line(name: str, number: int, text: str) -> Damage:
    """Replace a line of a text file."""

    def change(data: bytes) -> bytes:
        lines = data.decode().splitlines()
        return "\n".join([*lines[:number], text, *lines[number + 1 :]]).encode()

    return edit(name, change)


def save(name: str, array: Any) -> Damage:
    return lambda folder: np.save(folder / name, np.asarray(array), allow_pickle=True)


def remove(*names: str) -> Damage:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def flipped(position: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
