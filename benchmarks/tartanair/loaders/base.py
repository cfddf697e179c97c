"""What a loader of the comparison is: how to prepare its data once, and how to iterate over it.

A file of this folder holds `LOADERS`, one `Loader` for each of its rows. Packages that only one
loader needs are imported inside its functions.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.tartanair.compare.recordings import Clip, Recordings

__all__ = ["USUAL", "Batch", "Batches", "Loader", "Place", "Settings", "one_format", "prepare_link"]

Batch: TypeAlias = dict[str, Any]
"""Feature to tensor or array [B, N, …], `episode` B keys, `start` B numbers of first frames."""

Batches: TypeAlias = Iterable[Batch]
"""Iterating gives an epoch of batches; iterating again the next epoch."""

SHUFFLES = ("off", "buffer", "full")
STORAGES = ("local", "cold", "mount", "adlfs", "obstore", "blobfile", "own")
OURS = STORAGES[:-1]  # there is no client of ours


@dataclass(frozen=True)
class Settings:
    """One cell of the grid, but for the loader."""

    features: tuple[str, ...] = ("image_left", "depth_left", "flow", "mask", "seg_left")
    clip_len: int = 16
    stride: int = 1
    batch_size: int = 4
    shuffle: str = "off"
    shuffle_buffer: int | None = 100  # clips, where a loader shuffles in a buffer; its own default
    memory_limit: str = "2GiB"  # where a loader takes one
    workers: int = 0
    prefetch: int = 2  # batches ahead, of each worker
    codec: str = "raw"
    storage: str = "local"
    seed: int = 0

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Settings:
        """As JSON gives them back, with lists for tuples."""
        return cls(**{**saved, "features": tuple(saved["features"])})


USUAL = Settings()
"""What a row has where nothing says otherwise; another workload has a base of its own."""


@dataclass(frozen=True)
class Place:
    """Where a loader's prepared data lies: a folder, or the location of a remote one."""

    folder: Path
    location: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def at(self) -> str:
        return self.location or str(self.folder)


def one_format(name: str) -> Callable[[Settings], str]:
    """A format that does not depend on settings."""
    return lambda _settings: name


def prepare_link(name: str) -> Callable[[Recordings, Path, Settings], None]:
    """`prepare` of a loader that reads the originals: a link to them, of that name."""

    def prepare(recordings: Recordings, folder: Path, _settings: Settings) -> None:
        (folder / name).symlink_to(recordings.root.resolve(), target_is_directory=True)

    return prepare


@dataclass(frozen=True, kw_only=True)
class Loader:
    """One row of the comparison.

    `prepare(recordings, folder, settings)` converts all features of the recordings into the
    loader's own format, in an empty folder; it is called once for each value of `format(settings)`.
    `open(place, clips, settings)` gives the batches: every clip exactly once an epoch, the last
    batch smaller. What it cannot do is declared, and skipped with the reason.
    """

    name: str
    format: Callable[[Settings], str]
    prepare: Callable[[Recordings, Path, Settings], None]
    open: Callable[[Place, Sequence[Clip], Settings], Batches]
    shuffles: Sequence[str] = ("off", "full")
    storages: Sequence[str] = ("local", "cold", "mount")
    codecs: Sequence[str] = ("raw",)
    needs: Sequence[str] = ()  # modules
    install: str = "make install-bench"
    lossless: bool = True
    only_features: Sequence[str] = ()  # if it can hold only these
    alone: bool = False  # needs a process that nothing else has run in, and that may be killed
    note: str = ""
    kind: str = ""  # a heading, where results show a workload's loaders in kinds
    precut: bool = False  # holds clips, with frames as often as they are in clips
    also_missing: Callable[[], str | None] = lambda: None

    def missing(self) -> str | None:
        """Why this loader cannot run here at all, or nothing."""
        for name in self.needs:
            try:
                found = importlib.util.find_spec(name)
            except ModuleNotFoundError:  # of its parent
                found = None
            if found is None:
                return f"no package {name}: {self.install}"
        return self.also_missing()

    def refuses(self, settings: Settings) -> str | None:
        """Why it cannot do these settings, or nothing."""
        if self.only_features and set(settings.features) != set(self.only_features):
            return f"holds only {', '.join(self.only_features)}"
        if settings.shuffle not in self.shuffles:
            return f"cannot shuffle: {settings.shuffle}"
        if settings.storage not in self.storages:
            return f"cannot read from {settings.storage}"
        if settings.codec not in self.codecs:
            return f"has no codec {settings.codec}"
        return None
