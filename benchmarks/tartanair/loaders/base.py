"""A row of the comparison: settings, loader, and a `DataLoader` that reads single clips."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from benchmarks.reused import AHEAD, Memory, filled
from benchmarks.tartanair.compare.recordings import Clip, Feature, Recordings
from benchmarks.timing import once

__all__ = [
    "GRID",
    "REUSED_GRID",
    "USUAL",
    "Batch",
    "Batches",
    "Into",
    "Loader",
    "Order",
    "Read",
    "Settings",
    "link_originals",
    "load_features",
    "load_keys",
    "load_remote",
    "loader_arguments",
    "map_style",
    "memory_of",
    "places",
    "prepared",
    "prepared_at",
    "without_one_worker",
    "write_remote",
]

Batch: TypeAlias = dict[str, Any]
"""Feature to tensor or array [B, N, …], `episode` B keys, `start` B numbers of first frames."""

Batches: TypeAlias = Iterable[Batch]
"""Each iteration is an epoch."""

Into: TypeAlias = Mapping[str, Any] | None
"""Arrays [N, …] of a reused batch, which a reader may fill and return in place of its own."""

Read: TypeAlias = Callable[[Clip, Into], Mapping[str, Any]]
"""Feature to array or tensor [N, …]. The first call opens the files, after workers are forked."""

BASELINE = "original"
_RECORDINGS = "recordings.json"
_REMOTE = "remote.json"


@dataclass(frozen=True)
class Settings:
    """A row's settings."""

    features: tuple[str, ...] = ("image_left", "depth_left", "flow", "mask", "seg_left")
    clip_len: int = 16
    stride: int = 1
    batch_size: int = 4
    shuffle: str = "off"  # or buffer, full
    shuffle_buffer: int | None = 100  # clips; None: the loader's default
    memory_limit: str = "2GiB"
    workers: int = 0
    prefetch: int = 2  # batches per worker
    threads: int = 0  # that read ahead in this process, where a loader has such threads
    reused: bool = False  # whether clips are copied into batches that are used again
    codec: str = "raw"
    storage: str = "local"  # or cold: not in the page cache; others: see `compare.stores`
    training: str = ""  # network that is trained on the batches, see `compare.training`
    seed: int = 0

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Settings:
        """From JSON, which has lists in place of tuples."""
        return cls(**{**saved, "features": tuple(saved["features"])})


USUAL = Settings()
"""Default settings of TartanAir's rows."""


def link_originals(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    """`prepare` of loaders that read the originals: a link to them."""
    (folder / "originals").symlink_to(recordings.root.resolve(), target_is_directory=True)


GRID: Sequence[Mapping[str, Any]] = ({"workers": 0}, {"workers": 1}, {"workers": 2})
REUSED_GRID: Sequence[Mapping[str, Any]] = (
    *GRID,
    {"reused": True},
    {"reused": True, "threads": 1},
    {"reused": True, "threads": 2},
)


def without_one_worker(grid: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """A grid for consumers that only look at batches: one worker has nothing to overlap with, so it
    does the work of `workers=0`, and copies batches through shared memory as well.
    """
    return tuple(cell for cell in grid if cell.get("workers") != 1)


@dataclass(frozen=True)
class Loader:
    """One row of the comparison; see the package.

    `prepare` is called once for each value of `format`, in which `{codec}` is a setting. Settings
        that a loader does not support are skipped with the reason. `frames` is the source of an
        epoch's frames, unless the loader's `stats` tell. The settings of `grid` are tried,
        and the best ones are shown.
    """

    name: str
    format: str
    prepare: Callable[[Recordings, Path, Settings], None]
    open: Callable[[Path, Sequence[Clip], Settings], Batches]
    _: KW_ONLY
    shuffles: Sequence[str] = ("off", "full")
    codecs: Sequence[str] = ("raw",)
    needs: Sequence[str] = ()  # modules, or paths of folders
    install: str = "make install-bench"
    alone: bool = False  # needs a new process, which may be killed
    lossy: tuple[str, ...] = ()  # its only features, which it stores with loss
    frames: str = "read for each clip"
    grid: Sequence[Mapping[str, Any]] = GRID

    def missing(self) -> str:
        """Reason that this loader cannot run here; empty if it can."""
        for name in self.needs:
            try:
                found = Path(name).exists() if "/" in name else importlib.util.find_spec(name)
            except ModuleNotFoundError:  # of its parent
                found = None
            if not found:
                return f"no package {Path(name).name}: {self.install}"
        return ""

    def refuses(self, settings: Settings) -> str:
        """Reason that these settings are not supported; empty if they are."""
        if settings.shuffle not in self.shuffles:
            return f"cannot shuffle: {settings.shuffle}"
        if self.lossy and set(settings.features) - set(self.lossy):
            return f"stores {', '.join(self.lossy)} only"
        if settings.reused and not any(cell.get("reused") for cell in self.grid):
            return "makes new batches only"
        if settings.threads > (limit := max(cell.get("threads", 0) for cell in self.grid)):
            return f"reads in {limit} threads at most"
        return "" if settings.codec in self.codecs else f"has no codec {settings.codec}"


def prepared_at(loader: Loader, recordings: Recordings, work: Path, settings: Settings) -> Path:
    """The folder below `work` for the loader's data."""
    name = loader.format.format_map(asdict(settings))
    return work / "prepared" / recordings.name / name


def prepared(loader: Loader, recordings: Recordings, work: Path, settings: Settings) -> Path:
    """The folder below `work` with the loader's data; prepares missing data."""

    def make(folder: Path) -> None:
        folder.mkdir(parents=True)
        loader.prepare(recordings, folder, settings)
        keys = [episode.key for episode in recordings.episodes]
        (folder / _RECORDINGS).write_text(json.dumps([recordings.features, keys]))

    return once(prepared_at(loader, recordings, work, settings), make)


def write_remote(prepared: Path, folder: Path, **settings: Any) -> None:
    """Make `folder` refer to prepared data that was uploaded to the `location` of the settings."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(prepared / _RECORDINGS, folder)
    (folder / _REMOTE).write_text(json.dumps(settings))


def load_remote(folder: Path) -> dict[str, Any]:
    """Location and settings written by `write_remote`; empty for data in the folder itself."""
    file = folder / _REMOTE
    return json.loads(file.read_text()) if file.exists() else {}


def load_features(folder: Path, names: Sequence[str] | None = None) -> dict[str, Feature]:
    """Dtypes and shapes of prepared features, by default all, in the order of frames."""
    saved = json.loads((folder / _RECORDINGS).read_text())[0]
    features = {name: Feature(dtype, tuple(shape)) for name, (dtype, shape) in saved.items()}
    return features if names is None else {name: features[name] for name in names}


def load_keys(folder: Path) -> list[str]:
    """Episodes of prepared data, in order."""
    keys: list[str] = json.loads((folder / _RECORDINGS).read_text())[1]
    return keys


def places(clips: Sequence[Clip]) -> Batch:
    """Episode and start of clips, in the form of batches."""
    starts = torch.tensor([clip.start for clip in clips])
    return {"episode": [clip.episode for clip in clips], "start": starts}


def loader_arguments(settings: Settings) -> dict[str, Any]:
    """Arguments of every `DataLoader` of the comparison."""
    workers = settings.workers
    return {
        "num_workers": workers,
        "prefetch_factor": settings.prefetch if workers else None,
        "persistent_workers": workers > 0,
    }


class Order(Sampler[int]):
    """All numbers once, in canonical order or reshuffled in each epoch."""

    def __init__(self, count: int, settings: Settings) -> None:
        self._count = count
        self._shuffle = settings.shuffle != "off"
        self._seed = settings.seed
        self._epoch = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng([self._seed, self._epoch])
        self._epoch += 1
        yield from self.numbers(rng) if self._shuffle else range(self._count)

    def numbers(self, rng: np.random.Generator) -> Iterable[int]:
        """A full shuffle."""
        numbers: list[int] = rng.permutation(self._count).tolist()
        return numbers


def memory_of(features: Mapping[str, Feature], settings: Settings, num_batches: int = 3) -> Memory:
    """Memory for batches of clips: of `num_batches` in turn, if they are reused."""
    clips = {n: (f.dtype, (settings.clip_len, *f.shape)) for n, f in features.items()}
    is_reused = settings.reused
    return Memory(clips, settings.batch_size, reused=is_reused, num_batches=num_batches)


class ClipDataset(Dataset[Batch]):
    """Clips by index."""

    def __init__(self, read: Read, clips: Sequence[Clip]) -> None:
        self._read = read
        self._clips = clips

    def __len__(self) -> int:
        return len(self._clips)

    def __getitem__(self, number: int) -> Batch:
        clip = self._clips[number]
        tensors = {
            name: value if isinstance(value, torch.Tensor) else _own(value)
            for name, value in self._read(clip, None).items()
        }
        return {**tensors, "episode": clip.episode, "start": clip.start}


def _own(array: Any) -> torch.Tensor:
    """A tensor of an array, which is copied if it is a view of read-only memory."""
    return torch.from_numpy(np.require(array, requirements=["E", "W"]))


class ReusedBatches:
    """Epochs of batches that are used again; threads copy clips into them ahead of the consumer."""

    def __init__(
        self, read: Read, clips: Sequence[Clip], order: Sampler[int], memory: Memory, threads: int
    ) -> None:
        self._read, self._clips, self._order = read, clips, order
        self._memory, self._threads = memory, threads

    def __iter__(self) -> Iterator[Batch]:
        batch_size, order = self._memory.batch_size, list(self._order)
        for numbers, arrays in filled(order, batch_size, self._memory, self._fill, self._threads):
            batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
            yield {**batch, **places([self._clips[number] for number in numbers])}

    def _fill(self, number: int, into: Mapping[str, Any]) -> None:
        for name, value in self._read(self._clips[number], into).items():
            if value is not into[name]:
                np.copyto(into[name], value)


def map_style(
    make_read: Callable[[Path, Settings], Read],
    make_order: Callable[[int, Settings], Sampler[int]] = Order,
    *,
    delivered: Callable[[Mapping[str, Feature]], Mapping[str, Feature]] = dict,
) -> Callable[[Path, Sequence[Clip], Settings], Batches]:
    """`open` of loaders that read one clip at a time: with torch's DataLoader or, if batches are
    reused, with threads. `delivered` gives dtypes and shapes after a transform of frames.
    """

    def open_batches(folder: Path, clips: Sequence[Clip], settings: Settings) -> Batches:
        read, order = make_read(folder, settings), make_order(len(clips), settings)
        if settings.reused:
            features = delivered(load_features(folder, settings.features))
            memory = memory_of(features, settings, AHEAD + 2)
            return ReusedBatches(read, clips, order, memory, settings.threads)
        return DataLoader(
            ClipDataset(read, clips),
            batch_size=settings.batch_size,
            sampler=order,
            **loader_arguments(settings),
        )

    return open_batches
