"""The memory of an iteration on a device: arenas, staging, and batches that it gathers there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.engine.arena import Rows
from seqrecord.engine.batches import Copiers, Source
from seqrecord.engine.buffers import ChunkBuffers, Needs
from seqrecord.engine.calls import Calls
from seqrecord.engine.crops import Crop
from seqrecord.engine.device.arena import DeviceArena, as_words, torch_dtype
from seqrecord.engine.device.staging import Staging
from seqrecord.engine.device.streams import RunAhead, SideStream, side_stream
from seqrecord.engine.device.video import DeviceVideo
from seqrecord.engine.ragged import Frames
from seqrecord.engine.stats import EngineStats
from seqrecord.reading.frames import ArraySpec

__all__ = ["DeviceBatchBuilder", "DeviceBuffers"]


class DeviceBuffers:
    """Buffers on a device, see `seqrecord.engine.buffers.Buffers`.

    Frames are decoded into staging, and copied from there by a stream beside the consumer's, which
    gathers clips too; see `DeviceArena`. Those of `needs.decoded_there` are decoded into their rows
    by the device itself, where it can; see `DeviceVideo`.

    The memory of batches is the allocator's of torch, which knows when a tensor's last view is
    gone, in Python or in the graph of a backward pass. It is allocated for the side stream, so what
    was dropped is used again without waiting; but that of a batch which another stream had is so
    only once that stream is done with it (see `streams`). Therefore a batch is begun only when the
    device has come to the last but two that were taken.
    """

    def __init__(self, needs: Needs, stream: SideStream | None = None) -> None:
        assert needs.device is not None, "buffers of a device"
        self.needs = needs
        self.chunks = ChunkBuffers()
        self.stream = self._stream = stream or side_stream(needs.device)
        staging = Staging(self._stream)
        self._video = {spec.name: DeviceVideo(spec, self._stream) for spec in needs.decoded_there}
        self.arenas: Sequence[DeviceArena] = [
            DeviceArena(group.specs, group.num_rows, staging, self._video) for group in needs.groups
        ]
        self._taken = RunAhead()
        self._stats = EngineStats()

    def begin(self, stats: EngineStats) -> None:
        """See `Buffers`; the device is the current one of this thread from here on."""
        self._stats = stats
        self._stream.bind_thread()
        self._stream.set_clock()

    @contextmanager
    def storing(
        self, target: DeviceArena, rows: npt.NDArray[np.int64]
    ) -> Iterator[tuple[Rows, npt.NDArray[np.int64]]]:
        """See `Buffers`; rows of staging, which the device copies from after the block."""
        self._stream.bind_thread()
        with target.stage(rows) as staged:
            yield staged, np.arange(len(rows))
            nbytes = staged.store()
        self._stats.add(device_bytes=nbytes)
        self._note_copies()

    def begin_batch(self, size: int) -> DeviceBatchBuilder:
        """See `Buffers`; waits until the device has come near to what the consumer has taken."""
        self._taken.wait()
        needs = self.needs
        return DeviceBatchBuilder(size, needs.lengths, needs.specs, self._stream, self._taken)

    def end(self) -> None:
        """See `Buffers`; waits for the copies, for their times."""
        self._note_copies(wait=True)
        for video in self._video.values():
            video.end_decoders()

    def _note_copies(self, *, wait: bool = False) -> None:
        """Count and trace the copies that are done; with `wait`, all of them."""
        track = f"{self._stream.device} copies"
        for arena in self.arenas:
            for span in arena.copied(wait=wait):
                self._stats.add(device_seconds=span.end - span.begin)
                self._stats.trace.add(
                    "device copy", span.begin, span.end, track=track, bytes=span.nbytes
                )


class DeviceBatchBuilder:
    """A batch of `size` clips while the device gathers it; see `BatchBuilder`.

    Copies are queued on `stream`: when `gather` returns, what is loaded into the rows is queued
    behind. The thread that takes the batch must have it `arrive`.
    """

    def __init__(
        self,
        size: int,
        lengths: Mapping[str, int],
        specs: Mapping[str, ArraySpec],
        stream: SideStream,
        taken: RunAhead,
    ) -> None:
        self._stream = stream
        self._taken = taken
        self._specs = specs
        self._features: dict[str, Any] = {}  # tensors [clips, frames, …], or lists of clips
        self._words: dict[str, torch.Tensor] = {}
        with stream.use():
            for name, spec in specs.items():
                if not spec.is_fixed:
                    is_text = spec.value != "array"
                    self._features[name] = [None if is_text else [] for _ in range(size)]
                    continue
                shape: Any = (size, lengths[name], *spec.shape)
                batch = torch.empty(shape, dtype=torch_dtype(spec), device=stream.device)
                self._features[name] = batch
                if (words := as_words(batch, spec)) is not None:
                    self._words[name] = words
        self._mark = stream.mark()

    def gather(
        self,
        slots: npt.NDArray[np.int64],
        sources: Sequence[Source[DeviceArena]],
        copiers: Copiers,
        calls: Calls | None = None,
    ) -> int:
        del copiers  # the device does it
        assert calls is None, "functions are called on the host"
        nbytes = 0
        is_run = int(slots[-1] - slots[0]) == len(slots) - 1
        for source in sources:
            arena, rows = source.arena, source.rows
            flat, length = np.ascontiguousarray(rows).reshape(-1), rows.shape[1]
            first = int(slots[0]) * length
            parts = {
                name: self._words[name][first : first + len(flat)] if is_run else self._words[name]
                for name in source.features
                if name in self._words
                and not (source.crop is not None and name in source.crop.features)
            }
            if source.crop is not None:
                self._crop(slots, source, source.crop)
            at = None if is_run else (slots[:, None] * length + np.arange(length)).reshape(-1)
            nbytes += arena.gather(flat, parts, at)
            for name in source.features:
                if not arena.specs[name].is_fixed and name in self._features:
                    for place, clip in zip(slots.tolist(), rows, strict=True):
                        self._features[name][place] = arena.gather_list(name, clip)
        return nbytes

    def _crop(self, slots: npt.NDArray[np.int64], source: Source[DeviceArena], crop: Crop) -> None:
        """Queue copies of the windows of clips."""
        for name in sorted(crop.features.intersection(source.features, self._features)):
            for clip, rows in enumerate(source.rows):
                corner, flipped = crop.place(clip)
                out = self._features[name][int(slots[clip])]
                source.arena.gather_window(name, rows, out, corner, flipped=flipped)
                if flipped and name in crop.crops.flows:
                    with self._stream.use():
                        out[..., 0].neg_()

    def clear(self, feature: str, slots: npt.NDArray[np.int64]) -> None:
        """Queue filling the clips at these slots with 0, of a feature of a fixed shape."""
        with self._stream.use():
            for slot in slots.tolist():
                self._features[feature][slot].zero_()

    def finish(self) -> tuple[dict[str, Any], Callable[[], object]]:
        self._mark = self._stream.mark()  # several threads may have gathered
        features = {
            name: Frames(clips) if self._is_ragged(name) else clips
            for name, clips in self._features.items()
        }
        return features, self._arrive

    def _is_ragged(self, feature: str) -> bool:
        """Whether a feature is a list of tensors for each clip."""
        spec = self._specs[feature]
        return not spec.is_fixed and spec.value == "array"

    def _arrive(self) -> None:
        """Called by the consumer, whose current stream may use the features from here on."""
        tensors: list[torch.Tensor] = []
        for name, item in self._features.items():
            if self._is_ragged(name):
                tensors += chain.from_iterable(item)
            elif isinstance(item, torch.Tensor):
                tensors.append(item)
        self._taken.add(self._stream.give_to_current(self._mark, tensors))
