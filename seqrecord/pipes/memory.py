"""How a memory limit is spent: on frames, on batches, on chunks that are being read.

The order of clips follows from it, so it depends on nothing but its arguments: not on the cores
of the machine, nor on how many processes share them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from seqrecord.errors import MemoryLimitError
from seqrecord.format.pages import ALIGNMENT
from seqrecord.pipes.selection import ClipSelection
from seqrecord.plan import PlanSettings, resident_bound
from seqrecord.plan.budget import default_settings, least_resident_frames, mixing_limit
from seqrecord.plan.phases import typical_table
from seqrecord.units import format_size

__all__ = ["Fit", "FrameSizes", "fit", "fit_given"]

_PREFETCH = 2  # batches that are filled or wait, where memory allows
_CONSUMER = 2  # batches that the consumer has: the one in its hands and the one it drops for it
_MAX_LOADS = 16  # chunks read and decoded at a time, where they take no more than
_TENSOR_BYTES = 1 << 10  # of a tensor beside what it holds: one for each frame of a variable shape
_LOADS_SHARE = 8  # one part in eight of the limit
_AHEAD_SHARE = 1.5  # rows for what the plan holds, and for loads of the next round
_MOST_AHEAD = 2.0  # where memory is left: then all of the next round's loads may begin, which
# `default_settings` leaves room for where it chooses larger blocks than the smallest


@dataclass(frozen=True)
class FrameSizes:
    """Bytes: of a frame in the arena, of the largest chunk while it is read, of a batch."""

    frame: int
    chunk: int
    batch: int

    @classmethod
    def of(cls, selection: ClipSelection, batch_size: int | None) -> FrameSizes:
        """A variable shape counts as its largest frame of the selected episodes, decoded."""
        index, features = selection.dataset.index, selection.dataset.features
        frame = sum(spec.nbytes for spec in selection.arrays.values())
        variable = sum(not spec.is_fixed for spec in selection.arrays.values())
        stored = selection.stored_arrays().values()
        columns = [index.schema.position(name) for name in features]
        padded = index.page_length[:, columns].astype("i8") + (ALIGNMENT - 1)
        chunk = int((padded // ALIGNMENT * ALIGNMENT).sum(axis=1).max())
        if selection.frame_transform is not None:
            chunk += sum(spec.nbytes for spec in stored) + frame
        else:  # codecs may need room for a frame that is in no row yet
            chunk += sum(spec.nbytes for spec in stored if not spec.is_fixed)
        frame = max(1, frame)
        frames = (batch_size or 1) * selection.spec.length
        return cls(frame, chunk, frames * (frame + variable * _TENSOR_BYTES))

    def beside_arena(self, prefetch: int, loads: int) -> int:
        """Bytes of all batches in use, and of chunks being read."""
        return (prefetch + _CONSUMER) * self.batch + loads * self.chunk


@dataclass(frozen=True)
class Fit:
    """Settings within a memory limit."""

    settings: PlanSettings
    sizes: FrameSizes
    max_rows: int  # of the arena
    prefetch: int
    max_loads: int
    resident: int | None = None  # the most of any phase, so that all epochs have one arena's size
    limited: str | None = None  # what keeps batches from being mixed well, in words

    def rows(self, resident_frames: int) -> int:
        """Rows for a plan that holds so many frames."""
        return max(resident_frames, min(self.max_rows, int(resident_frames * _MOST_AHEAD)))

    def chunks_ahead(self, rows: int) -> int:
        """How many chunks more can be held as they are stored beside an arena of so many rows."""
        spare = (self.max_rows - rows) * self.sizes.frame
        return max(0, min(_MAX_LOADS, spare // max(1, self.sizes.chunk)))


def fit(
    selection: ClipSelection,
    settings: PlanSettings,
    sizes: FrameSizes,
    *,
    memory_limit: int,
    shuffle_buffer: int | None,
    open_episodes: int | None,
    num_splits: int,
) -> Fit:
    """The best settings whose arena, batches and chunks in flight take at most `memory_limit`.

    They hold for every epoch, whatever its phase.

    Raises `MemoryLimitError`, which says the least that would do, where nothing fits.
    """
    table, episodes = selection.clips, selection.dataset.episode_table
    if selection.phases is not None:
        table = typical_table(table, selection.spec.stride)
    for prefetch, loads, share in _preferences(sizes, memory_limit):
        rows = (memory_limit - sizes.beside_arena(prefetch, loads)) // sizes.frame
        try:
            fitted = default_settings(
                table,
                episodes,
                settings,
                shuffle_buffer=shuffle_buffer,
                max_frames=int(rows / share),
                max_rows=rows,
                open_episodes=open_episodes,
                num_splits=num_splits,
            )
        except MemoryLimitError:
            continue
        resident = None
        if settings.rotate_phase:
            resident = resident_bound(table, episodes, fitted)
        limited = None
        if open_episodes is None:
            limited = mixing_limit(
                table, episodes, fitted, max_frames=int(rows / share), num_splits=num_splits
            )
        return Fit(fitted, sizes, rows, prefetch, loads, resident, limited)
    cursors = open_episodes if settings.shuffle else None
    least_rows = least_resident_frames(table, episodes, settings, cursors)
    raise _too_small(
        "memory_limit is too small for these clips", selection, sizes, least_rows, memory_limit
    )


def fit_given(
    selection: ClipSelection, settings: PlanSettings, sizes: FrameSizes, *, memory_limit: int
) -> Fit:
    """Memory for settings that are given, those of a saved state: they are the order's.

    Raises `MemoryLimitError`, which says the least that would do, where they do not fit.
    """
    table, episodes = selection.clips, selection.dataset.episode_table
    if selection.phases is not None:
        table = typical_table(table, selection.spec.stride)
    resident = resident_bound(table, episodes, settings)
    for prefetch, loads, share in _preferences(sizes, memory_limit):
        rows = (memory_limit - sizes.beside_arena(prefetch, loads)) // sizes.frame
        if int(rows / share) >= resident:
            most = resident if settings.rotate_phase else None
            return Fit(settings, sizes, rows, prefetch, loads, most)
    raise _too_small(
        "memory_limit is too small for the order of the saved state",
        selection,
        sizes,
        resident,
        memory_limit,
    )


def _too_small(
    message: str, selection: ClipSelection, sizes: FrameSizes, least_rows: int, memory_limit: int
) -> MemoryLimitError:
    least = least_rows * sizes.frame + sizes.beside_arena(1, 1)
    return MemoryLimitError(
        message,
        file=selection.dataset.url,
        expected=(
            f"at least {least} bytes ({format_size(least)}): {least_rows} frames, "
            f"{1 + _CONSUMER} batches and a chunk"
        ),
        got=f"{memory_limit} bytes ({format_size(memory_limit)})",
    )


def _preferences(sizes: FrameSizes, memory_limit: int) -> Iterator[tuple[int, int, float]]:
    """Batches to prefetch, chunks to load at a time, share of rows to leave to loads ahead."""
    affordable = memory_limit // _LOADS_SHARE // max(1, sizes.chunk)
    loads = max(1, min(_MAX_LOADS, affordable))
    for prefetch in range(_PREFETCH, 0, -1):
        yield prefetch, loads, _AHEAD_SHARE
        yield prefetch, loads, 1.0
    yield 1, 1, 1.0
