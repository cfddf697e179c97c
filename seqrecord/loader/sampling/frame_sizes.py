"""Memory: the division of a limit among batches, chunks being read, and decoded frames.

The limit covers all of them. Sizes depend on the arguments only: not on the machine's cores, nor on
the processes that share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import mul

import numpy as np

from seqrecord.errors import MemoryLimitError
from seqrecord.store.units import format_size

PREFETCH = 2  # batches that are filled or wait: one is ready while the next one is filled. 6 of
# tiny batches: 0.18 ms a batch, as with 2 (0.19)
CONSUMER = 2  # batches that the consumer has: the one in its hands and the one it drops for it
MAX_LOADS = 16  # chunks read and decoded at a time. Without: 302 MiB for 58 (32x32, batches of 1),
LOADS_SHARE = 8  # and at most one part in eight of the limit. A half: blocks of 64 clips for 256
AHEAD = 1.5  # times the frames in use. 1.0: 80 of 100 loads of the next round wait for room, not 0
USUAL_LIMIT = 2 << 30  # bytes of a process, where `memory_limit` is not given, or more to mix well
MOST_OF_RANK = 8 << 30  # … but at most for all workers of a rank together
MOST_CLIPS = 1 << 17  # of an epoch whose arenas are reduced to what it loads
STAYING = 3 * 8  # bytes beside a frame that stays: hash, place and number of a clip in a shuffle


@dataclass(frozen=True)
class FrameSizes:
    """Sizes in bytes.

    Attributes:
        frames: a frame of each group in its arena.
        chunk: the largest chunk of any group during a read.
        batch: a batch.
        staying: a frame of each group if all frames are resident.
        whole_chunk: a load if all frames are resident, which decodes whole chunks.
    """

    frames: tuple[int, ...]
    chunk: int
    batch: int
    staying: tuple[int, ...] = ()
    whole_chunk: int = 0

    @property
    def of_staying(self) -> FrameSizes:
        """The sizes if all frames are resident."""
        chunk = max(self.chunk, self.whole_chunk)
        return replace(self, frames=self.staying or self.frames, chunk=chunk)

    def held(self, frames: Sequence[int]) -> int:
        """The bytes of `frames` frames, by group."""
        return sum(map(mul, frames, self.frames))

    def beside_arena(self, prefetch: int, loads: int) -> int:
        """The bytes of all batches in use and of chunks being read."""
        return (prefetch + CONSUMER) * self.batch + loads * self.chunk

    def divisions(
        self, memory_limit: int, held: int, what: str, url: str
    ) -> list[tuple[MemoryDivision, int]]:
        """Divisions of a memory limit, best first, and the greatest bytes of frames in use; the
        rest of the arenas is for loads ahead.

        Raises `MemoryLimitError` if none leaves `held` bytes for frames.
        """
        loads = max(1, min(MAX_LOADS, memory_limit // LOADS_SHARE // max(1, self.chunk)))
        ways = [*product((AHEAD, 1), range(PREFETCH, 0, -1), (loads,))]
        while loads > 1:
            loads //= 2
            ways.append((1, 1, loads))
        divisions = []
        for ahead, prefetch, loads in ways:
            arena = memory_limit - self.beside_arena(prefetch, loads)
            if int(arena / ahead) >= held:
                division = MemoryDivision(self, arena, prefetch, loads)
                divisions.append((division, int(arena / ahead)))
        if divisions:
            return divisions
        minimum = held + self.beside_arena(1, 1)
        raise MemoryLimitError(
            f"memory_limit is too small for {what}",
            file=url,
            expected=(
                f"at least {minimum} bytes ({format_size(minimum)}): {format_size(held)} of "
                f"frames, {1 + CONSUMER} batches and a chunk"
            ),
            got=f"{memory_limit} bytes ({format_size(memory_limit)})",
        )


@dataclass(frozen=True)
class Memory:
    """Limits of an engine."""

    num_rows: tuple[int, ...]  # of each group's arena, a frame each
    prefetch: int  # batches that are filled or wait
    max_loads: int  # chunks being read
    max_read_ahead: int  # chunks more that wait as they are stored
    together: int = 1  # batches of one clip that are built at once, and count as one above


@dataclass(frozen=True)
class MemoryDivision:
    """A memory limit, divided.

    Attributes:
        sizes: of frames, chunks and batches.
        max_arena: bytes of all arenas.
        prefetch: batches that are filled or wait.
        max_loads: chunks being read.
        frames: of each group that cursors have at a time.
        in_memory: the limits of an engine that keeps all frames; `None` if frames are freed.
    """

    sizes: FrameSizes
    max_arena: int
    prefetch: int
    max_loads: int
    frames: tuple[int, ...] = ()
    in_memory: Memory | None = None

    def nbytes(self, memory: Memory) -> int:
        """The greatest number of bytes that an epoch needs with this memory."""
        loads = memory.max_loads + memory.max_read_ahead
        return self.sizes.held(memory.num_rows) + self.sizes.beside_arena(memory.prefetch, loads)

    def clips_at_once(self, memory: Memory, most: int) -> int:
        """The number of batches that fit at once into the bytes that `memory` leaves, at most
        `most`.
        """
        room = self.max_arena - self.sizes.held(memory.num_rows)
        room -= memory.max_read_ahead * self.sizes.chunk
        extra_clips = room // max(1, (memory.prefetch + CONSUMER) * self.sizes.batch)
        return max(1, min(most, 1 + extra_clips))

    @property
    def memory(self) -> Memory:
        """The limits of an engine. Arenas have room for the loads of the next round, which are at
        most as many.
        """
        if self.in_memory is not None:
            return self.in_memory
        nbytes = max(1, self.sizes.held(self.frames))
        max_bytes = max(nbytes, min(self.max_arena, 2 * nbytes))
        rows = tuple(number * max_bytes // nbytes for number in self.frames)
        ahead = (self.max_arena - self.sizes.held(rows)) // max(1, self.sizes.chunk)
        return Memory(rows, self.prefetch, self.max_loads, max(0, min(MAX_LOADS, ahead)))

    def with_all(self, frames: Sequence[int]) -> MemoryDivision:
        """A copy with rows for `frames` frames, by group, which then stay in memory; itself if
        they do not fit.

        Reduces the number of loads at a time if necessary.
        """
        if not any(frames):
            return self
        sizes, rows = self.sizes.of_staying, tuple(np.maximum(frames, 1).tolist())
        room = self.max_arena - sizes.held(rows) - STAYING * sum(rows)
        room += self.max_loads * self.sizes.chunk
        loads = min(self.max_loads, room // max(1, sizes.chunk))
        if loads < 1:
            return self
        return replace(self, sizes=sizes, in_memory=Memory(rows, self.prefetch, loads, 0))


def usual_limit(nbytes: int, num_workers: int = 1) -> int:
    """The default memory limit of each worker in a rank, in bytes.

    `nbytes`, at least `USUAL_LIMIT`; all workers together at most `MOST_OF_RANK`.
    """
    return min(MOST_OF_RANK // num_workers, max(USUAL_LIMIT, nbytes))
