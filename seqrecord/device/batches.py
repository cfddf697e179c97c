"""Batches in a device's memory, from the arena there to the consumer's stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.device.arena import DeviceArena, as_words, torch_dtype
from seqrecord.device.nested import find_tensors
from seqrecord.device.streams import RunAhead

__all__ = ["DeviceBatch", "DeviceBatches"]


class DeviceBatches:
    """Where batches of an arena come from.

    Their memory is the allocator's of torch, which knows when a tensor's last view is gone, in
    Python or in the graph of a backward pass. It is allocated for the arena's stream, so what was
    dropped is used again without waiting; but that of a batch which another stream had is so only
    once that stream is done with it (see `streams`). Therefore a batch is begun only when the
    device has come to the last but two that were taken.
    """

    def __init__(self, arena: DeviceArena, clip_len: int) -> None:
        self._arena = arena
        self._clip_len = clip_len
        self._taken = RunAhead()

    def begin(self, num_clips: int) -> DeviceBatch:
        """Memory for a batch of so many clips."""
        self._taken.wait()
        return DeviceBatch(self._arena, num_clips, self._clip_len, self._taken)


class DeviceBatch:
    """A batch while the device fills it, and while it waits for its consumer."""

    def __init__(self, arena: DeviceArena, num_clips: int, clip_len: int, taken: RunAhead) -> None:
        self._arena = arena
        self._taken = taken
        self._count = 0  # frames
        self._clip_len = clip_len
        self.features: dict[str, Any] = {}
        """Tensors [clips, frames, …], or lists of clips: for the consumer, after `hand_over`."""
        self._words: dict[str, torch.Tensor] = {}
        device = arena.stream.device
        with arena.stream.use():
            for name, spec in arena.specs.items():
                if not spec.is_fixed:
                    self.features[name] = []
                    continue
                shape: Any = (num_clips, clip_len, *spec.shape)
                batch = torch.empty(shape, dtype=torch_dtype(spec), device=device)
                self.features[name] = batch
                if (words := as_words(batch, spec)) is not None:
                    self._words[name] = words
        self._mark = arena.stream.mark()

    def gather(self, rows: npt.NDArray[np.int64]) -> int:
        """Append clips, whose frames are in these rows, int64 [clips, frames].

        The rows may be loaded into again when this returns: that is queued behind it. Returns how
        many bytes go to the device.
        """
        flat = np.ascontiguousarray(rows).reshape(-1)
        parts = {
            name: words[self._count : self._count + len(flat)]
            for name, words in self._words.items()
        }
        nbytes = self._arena.gather(flat, parts)
        for name, clips in self.features.items():
            if isinstance(clips, list):
                clips += [self._arena.gather_list(name, clip) for clip in rows]
        self._count += len(flat)
        self._mark = self._arena.stream.mark()
        return nbytes

    def hand_over(self) -> None:
        """Called by the consumer, whose current stream may use `features` from here on."""
        tensors = find_tensors(self.features)
        self._taken.add(self._arena.stream.hand_over(self._mark, tensors))
