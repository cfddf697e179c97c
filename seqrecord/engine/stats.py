"""What an engine has done, and which stage holds the others up."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, fields
from typing import Any

from seqrecord.engine.trace import Trace

__all__ = ["EngineStats"]


@dataclass
class EngineStats:
    """Counters that any thread may add to. Seconds are summed over threads where several work.

    `bytes_read` counts pages, `frames_decoded` frames that clips need, each once although it may
    have many features. `clips` and `batches` are those handed to the consumer. `resident_bytes` is
    the most that the frames in the arena have taken.
    """

    bytes_read: int = 0
    frames_decoded: int = 0
    clips: int = 0
    batches: int = 0
    resident_bytes: int = 0
    fetch_seconds: float = 0.0  # reading pages and checking them
    decode_seconds: float = 0.0  # into the arena, `frame_transform` included
    gather_seconds: float = 0.0  # from the arena into batches
    waiting_for_loads_seconds: float = 0.0  # the engine's, for frames
    waiting_for_consumer_seconds: float = 0.0  # the engine's, for the consumer to take a batch
    waiting_for_batches_seconds: float = 0.0  # the consumer's
    device_seconds: float = 0.0  # moving batches to the device, or beginning to
    trace: Trace = field(default_factory=Trace, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def __reduce__(self) -> tuple[type[EngineStats], tuple[()]]:
        return EngineStats, ()  # a copy, in another process, counts anew

    def add(self, **amounts: float) -> None:
        """Add to counters."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)

    def hold(self, resident_bytes: int) -> None:
        """So much is held now."""
        self.resident_bytes = max(self.resident_bytes, resident_bytes)

    def report(self) -> dict[str, Any]:
        """All counters by name, and the `bottleneck` in words."""
        counters = {f.name: getattr(self, f.name) for f in fields(self) if f.compare}
        return {**counters, "bottleneck": self._bottleneck()}

    def _bottleneck(self) -> str:
        if not self.clips:
            return "nothing has been delivered yet"
        if self.waiting_for_batches_seconds < self.waiting_for_consumer_seconds:
            return "the consumer: batches wait for it"
        stages = {
            "reading: more is asked for than the storage delivers": self.fetch_seconds,
            "decoding: a faster codec, or more threads, would help": self.decode_seconds,
            "copying clips into batches: memory bandwidth": self.gather_seconds,
        }
        return max(stages, key=lambda stage: stages[stage])
