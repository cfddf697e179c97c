"""The memory of an iteration on a device: rows of frames, and batches that are gathered there.

Frames are decoded into staging, on the host, and copied from there into rows; clips are gathered
from rows on the device. So a frame crosses the bus once, whatever the number of clips that it is
in. All of that is queued on one side stream, in the order in which the engine asks for it::

    loading threads    decode A    decode B     decode C
    side stream                 copy A | gather | copy B | gather | copy C into rows of A
    consumer's stream                        step 0           step 1

Because it is one stream, a gather finds the rows that were stored before it was asked for, and
rows that the plan has freed are written to only after the last gather that reads them: there is
nothing to wait for. Two streams could gather while they copy, at the price of an event for each
pair that must not; gathers run at the speed of the device's own memory, so there is little to win.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.clips.grids import run_bounds
from seqrecord.engine.arena import FeatureRows, Frames, FreshRows, ObjectRows
from seqrecord.engine.batches import ClipRows, Copiers
from seqrecord.engine.buffers import BufferNeeds, ChunkBuffers
from seqrecord.engine.calls import Calls
from seqrecord.engine.crops import Crop, Place, interpolated, nearest, runs
from seqrecord.engine.device.streams import (
    Mark,
    QueueLimit,
    SideStream,
    Staging,
    side_stream,
    upload,
)
from seqrecord.engine.device.video import DeviceFrames, DeviceVideo
from seqrecord.engine.stats import EngineStats
from seqrecord.reading.frames import ArraySpec
from seqrecord.sampling.memory import CONSUMER


class CopySpan(NamedTuple):
    """When a device copied a load, in seconds of `perf_counter`, and how many bytes."""

    begin: float
    end: float
    nbytes: int


class DeviceArena:
    """Rows of frames on the device of a stream; see `seqrecord.engine.arena.Arena` for the host's.

    A feature of a fixed shape is a tensor of whole words, [rows, words]: copies are of bits, so a
    device needs to know few dtypes. A feature with a variable shape is a list of tensors, and one
    of texts a list of these.
    """

    def __init__(
        self,
        specs: Mapping[str, ArraySpec],
        num_rows: int,
        staging: Staging,
        video: Mapping[str, DeviceVideo] | None = None,
    ) -> None:
        self.specs = dict(specs)
        self._video = {n: decodes for n, decodes in (video or {}).items() if n in specs}
        self.num_rows = num_rows
        self.is_read: npt.NDArray[np.bool_] = np.zeros(num_rows, np.bool_)  # see `Arena`
        self.stream = stream = staging.stream
        self._staging = staging  # which arenas of one stream share
        # Copies of one load follow each other, so that their times are those of no other load of
        # this arena. What gathers and other arenas queue meanwhile counts as copying: a lock for
        # that would be held while memory is pinned, and hold up the copies.
        self._queueing = threading.Lock()
        self._copying: deque[tuple[Mark, Mark, int]] = deque()
        # Of the user's thread, which may be in inference mode: those that write to it are not.
        with stream.use(), torch.inference_mode(False):
            self._rows: dict[str, Any] = {
                name: torch.empty(
                    (num_rows, spec.nbytes // _word(spec.nbytes).itemsize),
                    dtype=_word(spec.nbytes),
                    device=stream.device,
                )
                if spec.is_fixed
                else [None] * num_rows
                for name, spec in specs.items()
            }

    @property
    def nbytes(self) -> int:
        """Bytes of the rows of features with a fixed shape, on the device."""
        return sum(rows.nbytes for rows in self._rows.values() if isinstance(rows, torch.Tensor))

    @contextmanager
    def stage(self, rows: npt.NDArray[np.int64]) -> Iterator[FeatureRows]:
        """Memory of the host for the frames of these rows, one after the other, which are stored
        after the block; and the rows themselves, of video that the device decodes."""
        arrays: dict[str, Any] = {
            name: DeviceFrames(video, self._frames(name), rows)
            for name, video in self._video.items()
            if video.works
        }
        staged = {name: spec for name, spec in self.specs.items() if name not in arrays}
        stored: dict[str, torch.Tensor | list[Any]] = {}
        count = len(rows)
        fixed = [spec.nbytes * count for spec in staged.values() if spec.is_fixed]
        with self._staging.acquire(fixed) as buffer:
            for name, spec in staged.items():
                if spec.is_fixed:
                    shape: Any = (count, *spec.shape)
                    memory, arrays[name] = buffer.array(shape, spec.dtype)
                    if memory.numel():
                        stored[name] = memory.view(count, -1)
                elif spec.value != "array":
                    stored[name] = arrays[name] = ObjectRows(count, spec)
                else:
                    stored[name] = arrays[name] = FreshRows(count, spec.dtype)
            yield arrays
            self._store(rows, stored)

    def _frames(self, feature: str) -> torch.Tensor:
        """The rows of a feature of a fixed shape of bytes, [rows, …]."""
        whole = self._rows[feature].view(torch.uint8)
        frames: torch.Tensor = whole.view(self.num_rows, *self.specs[feature].shape)
        return frames

    def _store(
        self, rows: npt.NDArray[np.int64], staged: Mapping[str, torch.Tensor | list[Any]]
    ) -> None:
        """Queue copies of frames into rows, int64[n].

        `staged` are bytes, uint8 [n, bytes], or lists of n arrays or texts by feature. A list may
        hold `None`, for a frame that no clip needs. Texts stay on the host.
        """
        nbytes, is_late = 0, self.stream.pins_memory
        with self._queueing, self.stream.use():
            begin = self.stream.mark()
            for name, frames in staged.items():
                target = self._rows[name]
                if isinstance(frames, list):
                    for row, frame in zip(rows.tolist(), frames, strict=True):
                        is_array = isinstance(frame, np.ndarray)
                        target[row] = self._upload(frame) if is_array else frame
                        nbytes += frame.nbytes if is_array else 0
                    continue
                for start, stop in pairwise(run_bounds(rows)):
                    first = int(rows[start])
                    source = frames[start:stop].view(target.dtype)
                    target[first : first + len(source)].copy_(source, non_blocking=is_late)
                nbytes += frames.nbytes
            self._copying.append((begin, self.stream.mark(), nbytes))

    def copied(self, *, wait: bool = False) -> list[CopySpan]:
        """The copies of loads that are done, each told once; with `wait`, all of them."""
        spans: list[CopySpan] = []
        while True:
            with self._queueing:
                if not self._copying or not (wait or self._copying[0][1].is_reached):
                    return spans
                begin, end, nbytes = self._copying.popleft()
            end.wait()
            spans.append(CopySpan(end.time - end.seconds_since(begin), end.time, nbytes))

    def gather(
        self,
        rows: npt.NDArray[np.int64],
        into: Mapping[str, torch.Tensor],
        at: npt.NDArray[np.int64] | None = None,
    ) -> int:
        """Queue copies of rows, int64[n], into parts of a batch; how many bytes cross the bus.

        `into` are words, [n, words], by feature: those that have a fixed shape. With `at`,
        int64[n], they are those of the whole batch, and the copies go to these rows of it.
        """
        nbytes = rows.nbytes
        with self.stream.use():
            index = self._upload(rows)
            if at is None:
                for name, part in into.items():
                    torch.index_select(self._rows[name], 0, index, out=part)
                return nbytes
            places = self._upload(at)
            for name, whole in into.items():
                found = torch.empty(
                    (len(rows), whole.shape[1]), dtype=whole.dtype, device=index.device
                )
                torch.index_select(self._rows[name], 0, index, out=found)
                whole.index_copy_(0, places, found)
        return nbytes + at.nbytes

    def gather_window(
        self, feature: str, rows: npt.NDArray[np.int64], out: torch.Tensor, place: Place
    ) -> None:
        """Queue copies of what batches get at a place of the frames in these rows, int64[n], to
        `out` [n, h, w, …]. All frames of a clip are resized at once, in memory of their own."""
        with self.stream.use():
            target = _bytes(out)
            for there, frames in self._pixels(feature, rows):
                window = frames[place.pixels]
                if place.size is not None and place.is_smooth:
                    whole = window.contiguous().view(out.dtype)
                    whole = whole.view(*window.shape[:3], *out.shape[3:])
                    window = _bytes(interpolated(whole, place.size).contiguous())
                elif place.size is not None:
                    height, width = map(self._upload, nearest(place))
                    window = window[:, height][:, :, width]
                target[there].copy_(window.flip(2) if place.flipped else window)
            for numbers, factor in place.scaled(out):
                if out.is_floating_point():
                    numbers.mul_(float(self.specs[feature].dtype.type(factor)))
                else:
                    limits = torch.iinfo(out.dtype)
                    scaled = (numbers.double() * factor).round()
                    numbers.copy_(scaled.clamp(limits.min, limits.max))

    def sizes(self, feature: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `Arena`."""
        return np.array([self._rows[feature][row].shape[:2] for row in rows.tolist()], np.int64)

    def _pixels(
        self, feature: str, rows: npt.NDArray[np.int64]
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """The frames in these rows as bytes [n, height, width, bytes of a pixel], and which of the
        rows they are; those of a variable shape one by one."""
        if not self.specs[feature].is_fixed:
            for number, row in enumerate(rows.tolist()):
                yield slice(number, number + 1), _bytes(self._rows[feature][row][None])
            return
        whole = self._rows[feature].view(torch.uint8)
        pixels = whole.view(self.num_rows, *self.specs[feature].shape[:2], -1)
        for there, here in runs(rows):
            if (step := here.step or 1) > 0:
                yield there, pixels[here]
            else:  # torch has no views in reverse
                count = there.stop - there.start
                ascending = slice(here.start + (count - 1) * step, here.start + 1, -step)
                yield there, pixels[ascending].flip(0)

    def gather_list(self, feature: str, rows: npt.NDArray[np.int64]) -> list[Any]:
        """Copies of the frames in these rows, for a feature with a variable shape; or texts."""
        if self.specs[feature].value != "array":
            return [self._rows[feature][row] for row in rows.tolist()]
        with self.stream.use():
            return [self._rows[feature][row].clone() for row in rows.tolist()]

    def _upload(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """A tensor of an array that nobody writes to any more."""
        host, stream = torch.from_numpy(array), self.stream
        return upload(host, stream.device, is_late=stream.pins_memory)


def as_words(batch: torch.Tensor, spec: ArraySpec) -> torch.Tensor | None:
    """The memory of a batch [clips, frames, …] as `gather` fills it, or `None` if it has none."""
    if not batch.numel():
        return None
    frames = batch.view(batch.shape[0] * batch.shape[1], -1)
    return frames.view(torch.uint8).view(_word(spec.nbytes))


def _bytes(frames: torch.Tensor) -> torch.Tensor:
    """The same memory, [n, height, width, …], as [n, height, width, bytes of a pixel]."""
    return frames.unsqueeze(-1).flatten(3).view(torch.uint8)


def torch_dtype(spec: ArraySpec) -> torch.dtype:
    """The dtype of tensors of a feature."""
    return torch.from_numpy(np.empty(0, spec.dtype)).dtype


def _word(nbytes: int) -> torch.dtype:
    """The widest integers that make up so many bytes."""
    for word in (torch.int64, torch.int32, torch.int16):
        if nbytes % word.itemsize == 0:
            return word
    return torch.uint8


class DeviceBuffers:
    """Buffers on a device, see `seqrecord.engine.buffers.Buffers`.

    Frames are decoded into staging, and copied from there by a stream beside the consumer's, which
    gathers clips too; see `DeviceArena`. Those of `needs.decoded_there` are decoded into their rows
    by the device itself, where it can; see `DeviceVideo`.

    The memory of batches is the allocator's of torch, which knows when a tensor's last view is
    gone, in Python or in the graph of a backward pass. It is allocated for the side stream, so what
    was dropped is used again without waiting; but that of a batch which another stream had is so
    only once that stream is done with it (see `streams`). Therefore a batch is begun only when the
    device has come to the last but one that was taken: of those that were, it then has `CONSUMER`.
    """

    def __init__(self, needs: BufferNeeds, stream: SideStream | None = None) -> None:
        assert needs.device is not None, "buffers of a device"
        self.needs, self.is_fresh = needs, False
        self.chunks = ChunkBuffers()
        self.stream = self._stream = stream or side_stream(needs.device)
        staging = Staging(self._stream)
        self._video = {spec.name: DeviceVideo(spec, self._stream) for spec in needs.decoded_there}
        self.arenas: Sequence[DeviceArena] = [
            DeviceArena(group.specs, group.num_rows, staging, self._video) for group in needs.groups
        ]
        self._taken = QueueLimit(CONSUMER - 1)
        self._stats = EngineStats()

    def begin(self, stats: EngineStats) -> None:
        """See `Buffers`; the device is the current one of this thread from here on."""
        self._stats = stats
        self._stream.bind_thread()
        self._stream.set_clock()

    @contextmanager
    def storing(
        self, target: DeviceArena, rows: npt.NDArray[np.int64]
    ) -> Iterator[tuple[FeatureRows, npt.NDArray[np.int64]]]:
        """See `Buffers`; rows of staging, which the device copies from after the block."""
        self._stream.bind_thread()
        with target.stage(rows) as staged:
            yield staged, np.arange(len(rows))
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
                self._stats.add(device_seconds=span.end - span.begin, device_bytes=span.nbytes)
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
        taken: QueueLimit,
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

    def gather(
        self,
        slots: npt.NDArray[np.int64],
        sources: Sequence[ClipRows[DeviceArena]],
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
                if name in self._features and not self._specs[name].is_fixed:
                    for place, clip in zip(slots.tolist(), rows, strict=True):
                        self._features[name][place] = arena.gather_list(name, clip)
        return nbytes

    def _crop(
        self, slots: npt.NDArray[np.int64], source: ClipRows[DeviceArena], crop: Crop
    ) -> None:
        """Queue copies of the windows of clips."""
        for name in sorted(crop.features & self._features.keys() & set(source.features)):
            for clip, rows in enumerate(source.rows):
                out = self._features[name][int(slots[clip])]
                source.arena.gather_window(name, rows, out, crop.place(name, clip))

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
