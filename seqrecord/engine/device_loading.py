"""Loads into an arena on a device: chunks are decoded into staging, and copied from there."""

from __future__ import annotations

from collections.abc import Sequence

from seqrecord.device.arena import DeviceArena, StagedLoad
from seqrecord.engine.loading import ChunkLoader, Fetched, Load, Place
from seqrecord.engine.stats import EngineStats

__all__ = ["DeviceLoader"]


class DeviceLoader:
    """Does loads as a `ChunkLoader`, but into staging, and has the device copy them."""

    def __init__(self, loader: ChunkLoader, arena: DeviceArena, stats: EngineStats) -> None:
        self._loader = loader
        self._arena = arena
        self._stats = stats
        self._lane = f"{arena.stream.device} copies"
        arena.stream.set_clock()

    def fetch(self, load: Load) -> Fetched:
        """See `ChunkLoader`."""
        return self._loader.fetch(load)

    def __call__(self, load: Load, places: Sequence[Place], fetched: Fetched | None = None) -> None:
        """See `ChunkLoader`; when it returns, the copies are queued."""
        self._arena.stream.bind_thread()
        (place,) = places
        assert isinstance(place.target, StagedLoad), "the arena has made the place"
        with place.target as staged:
            self._loader(load, places, fetched)
            nbytes = staged.store()
        self._stats.add(device_bytes=nbytes)
        self.note_copies()

    def note_copies(self, *, wait: bool = False) -> None:
        """Count and trace the copies that are done; with `wait`, all of them."""
        for span in self._arena.copied(wait=wait):
            self._stats.add(device_seconds=span.end - span.begin)
            self._stats.trace.add(
                "device copy", span.begin, span.end, lane=self._lane, bytes=span.nbytes
            )
