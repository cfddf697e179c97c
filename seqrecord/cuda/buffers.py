"""Memory of an iteration on a device: arenas, and batches gathered from them.

Frames are decoded into staging memory on the host, copied to rows on the device, and gathered into
batches there. Each frame crosses the bus once, whatever the number of its clips. All work is queued
on one side stream in the order of requests::

    loading threads    decode A    decode B     decode C
    side stream                 copy A | gather | copy B | gather | copy C into rows of A
    consumer's stream                        step 0           step 1

One stream orders the work without waiting: a gather sees all rows stored before it, and freed rows
are overwritten only after the last gather that reads them. Two streams would need an event for each
conflicting pair, and gathers are limited by device memory anyway.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.cuda.streams import (
    Mark,
    QueueLimit,
    SideStream,
    Staging,
)
from seqrecord.cuda.video import DeviceFrames, DeviceVideo
from seqrecord.loader.engine.arena import FeatureRows, Frames, ObjectRows, stacked, upload
from seqrecord.loader.engine.batches import NO_STEPS, BatchForm, ClipRows, Copiers
from seqrecord.loader.engine.buffers import BufferNeeds, Buffers, most_numbers, shapes_of
from seqrecord.loader.engine.calls import Calls
from seqrecord.loader.engine.crops import (
    Crop,
    Place,
    ValuesChange,
    interpolated,
    nearest,
    runs,
)
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.loader.engine.tensors import tensor_of, torch_dtype
from seqrecord.loader.engine.vectors import VectorStep, VectorSteps, bits_of
from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.loader.sampling.frame_sizes import CONSUMER
from seqrecord.store.tables.grids import run_bounds
from seqrecord.store.value_kinds import BLOBS, RAGGED_ARRAYS, TEXTS, ValueKind


class CopySpan(NamedTuple):
    """Copy of a load to the device: times in seconds of `perf_counter`, and bytes."""

    begin: float
    end: float
    nbytes: int


class DeviceArena:
    """Arena on the device of a stream; see `seqrecord.loader.engine.arena.Arena` for the host.

    A feature with a fixed shape is a tensor of words, [rows, words]: copies move bits, so few
    dtypes need device support. A feature with a variable shape is a list of tensors, a text feature
    a list of texts.
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
        self._staging = staging  # shared by the arenas of a stream
        # Copies of one load are consecutive among loads of this arena, which makes their times
        # exact. Work queued meanwhile by gathers and other arenas counts as copying: a lock for
        # it would be kept while memory is pinned, and delay copies.
        self._queueing = threading.Lock()
        self._copying: deque[tuple[Mark, Mark, int]] = deque()
        self._constants: dict[str, tuple[VectorStep, list[torch.Tensor]]] = {}
        # The user's thread may be in inference mode; the writing threads are not.
        # tests/cuda/test_device_pipe.py::test_an_iteration_may_begin_in_inference_mode
        with stream.use(), torch.inference_mode(False):
            self._rows: dict[str, Any] = {
                name: torch.empty(
                    (num_rows, spec.nbytes // _word(spec.nbytes).itemsize),
                    dtype=_word(spec.nbytes),
                    device=stream.device,
                )
                for name, spec in stacked(specs).items()
            }
        for name in specs.keys() - self._rows.keys():
            self._rows[name] = [None] * num_rows

    @property
    def nbytes(self) -> int:
        """Device memory of rows with a fixed shape, in bytes."""
        return sum(rows.nbytes for rows in self._rows.values() if isinstance(rows, torch.Tensor))

    @contextmanager
    def stage(self, rows: npt.NDArray[np.int64]) -> Iterator[FeatureRows]:
        """Context with host memory for frames of rows, which are copied to the device afterwards.

        For video decoded by the device, the rows themselves.
        """
        arrays: dict[str, Any] = {
            name: DeviceFrames(video, self._frames(name), rows)
            for name, video in self._video.items()
            if video.works
        }
        staged = {name: spec for name, spec in self.specs.items() if name not in arrays}
        copied_features: dict[str, torch.Tensor | list[Any]] = {}
        count = len(rows)
        in_buffer = stacked(staged)
        with self._staging.acquire([s.nbytes * count for s in in_buffer.values()]) as buffer:
            for name, spec in in_buffer.items():
                shape: Any = (count, *spec.shape)
                memory, arrays[name] = buffer.array(shape, spec.dtype)
                if memory.numel():
                    copied_features[name] = memory.view(count, -1)
            for name in staged.keys() - in_buffer.keys():
                copied_features[name] = arrays[name] = ObjectRows(staged[name], count)
            yield arrays
            self._store(rows, copied_features)

    def _frames(self, feature: str) -> torch.Tensor:
        """Rows of a feature with a fixed shape, as bytes, [rows, …]."""
        all_bytes = self._rows[feature].view(torch.uint8)
        frames: torch.Tensor = all_bytes.view(self.num_rows, *self.specs[feature].shape)
        return frames

    def _store(
        self, rows: npt.NDArray[np.int64], staged: Mapping[str, torch.Tensor | list[Any]]
    ) -> None:
        """Queue copies of frames into rows, int64[n].

        `staged` has bytes, uint8 [n, bytes], or lists of n arrays or texts by feature. A list may
        contain `None` for unused frames. Texts remain on the host.
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
                    first_row = int(rows[start])
                    source = frames[start:stop].view(target.dtype)
                    target[first_row : first_row + len(source)].copy_(source, non_blocking=is_late)
                nbytes += frames.nbytes
            self._copying.append((begin, self.stream.mark(), nbytes))

    def copied(self, *, wait: bool = False) -> list[CopySpan]:
        """Finished copies of loads since the last call; with `wait`, waits for all."""
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
        """Queue copies of rows, int64[n], into a batch. Returns the bytes sent over the bus.

        `into` has words, [n, words], of features with a fixed shape. With `at`, int64[n], `into` is
        the whole batch and `at` are the target rows.
        """
        nbytes = rows.nbytes
        with self.stream.use():
            index = self._upload(rows)
            if at is None:
                for name, part in into.items():
                    torch.index_select(self._rows[name], 0, index, out=part)
                return nbytes
            places = self._upload(at)
            for name, batch in into.items():
                gathered_rows = torch.empty(
                    (len(rows), batch.shape[1]), dtype=batch.dtype, device=index.device
                )
                torch.index_select(self._rows[name], 0, index, out=gathered_rows)
                batch.index_copy_(0, places, gathered_rows)
        return nbytes + at.nbytes

    def gather_window(
        self, feature: str, rows: npt.NDArray[np.int64], out: torch.Tensor, place: Place
    ) -> None:
        """Queue copies of a clip's windows from rows, int64[n], to `out` [n, h, w, …].

        All frames of a clip are resized together, in temporary memory.
        """
        with self.stream.use():
            target = _bytes(out)
            for frame_range, frames in self._pixels(feature, rows):
                window = frames[place.pixels]
                if place.size is not None and place.is_smooth:
                    pixels = window.contiguous().view(out.dtype)
                    pixels = pixels.view(*window.shape[:3], *out.shape[3:])
                    window = _bytes(interpolated(pixels, place.size).contiguous())
                elif place.size is not None:
                    height, width = map(self._upload, nearest(place))
                    window = window[:, height][:, :, width]
                target[frame_range].copy_(window.flip(2) if place.flipped else window)
            for numbers, factor in place.scaled(out):
                if out.is_floating_point():
                    numbers.mul_(float(self.specs[feature].dtype.type(factor)))
                else:
                    limits = torch.iinfo(out.dtype)
                    scaled = (numbers.double() * factor).round()
                    numbers.copy_(scaled.clamp(limits.min, limits.max))

    def gather_vectors(
        self,
        feature: str,
        rows: npt.NDArray[np.int64],
        step: VectorStep,
        change: ValuesChange | None,
        batch: torch.Tensor,
        slots: npt.NDArray[np.int64],
    ) -> int:
        """Queue a step for clips, rows int64[clips, frames], to slots of a batch, after a `change`
        of their values.

        Returns the bytes sent over the bus.
        """
        stored_rows, first_slot = self._rows[feature], int(slots[0])
        shape: Any = (*rows.shape, *step.given.shape)
        with self.stream.use():
            index = self._upload(np.ascontiguousarray(rows).reshape(-1))
            words = torch.index_select(stored_rows, 0, index)
            values = words.view(torch.uint8).view(torch_dtype(step.given.dtype)).view(shape)
            if change is not None:
                columns = map(self._upload, (change.factor, change.offset))
                values = change.apply(values, *columns).to(values.dtype)
            vectors = step.on_device(values, self._constants_of(feature, step))
            if int(slots[-1]) - first_slot == len(slots) - 1:
                batch[first_slot : first_slot + len(slots)].copy_(vectors)
                return rows.nbytes
            bits = bits_of(vectors)
            batch.view(bits).index_copy_(0, self._upload(slots), vectors.view(bits))
        return rows.nbytes + slots.nbytes

    def _constants_of(self, feature: str, step: VectorStep) -> list[torch.Tensor]:
        """Numbers of a step on the device, uploaded once."""
        constants = self._constants.get(feature)
        if constants is None or constants[0] is not step:
            constants = self._constants[feature] = step, list(map(self._upload, step.arrays()))
        return constants[1]

    def change_values(
        self, batch: torch.Tensor, slots: npt.NDArray[np.int64], change: ValuesChange
    ) -> None:
        """Queue a change of gathered numbers in these slots of `batch`, [clips, frames, …]."""
        with self.stream.use():
            places, factor, offset = map(self._upload, (slots, change.factor, change.offset))
            changed_values = change.apply(batch[places], factor, offset)
            batch.index_copy_(0, places, changed_values.to(batch.dtype))

    def sizes(self, feature: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See `Arena`."""
        return np.array([self._rows[feature][row].shape[:2] for row in rows.tolist()], np.int64)

    def _pixels(
        self, feature: str, rows: npt.NDArray[np.int64]
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield frames as bytes [n, height, width, bytes per pixel], with their index in `rows`.

        Frames of a variable shape are yielded one by one.
        """
        frames = self._rows[feature]
        if isinstance(frames, list):
            for number, row in enumerate(rows.tolist()):
                yield slice(number, number + 1), _bytes(frames[row][None])
            return
        row_bytes = frames.view(torch.uint8)
        pixels = row_bytes.view(self.num_rows, *self.specs[feature].shape[:2], -1)
        for frame_range, row_range in runs(rows):
            if (step := row_range.step or 1) > 0:
                yield frame_range, pixels[row_range]
            else:  # torch has no negative strides
                count = frame_range.stop - frame_range.start
                ascending = slice(row_range.start + (count - 1) * step, row_range.start + 1, -step)
                yield frame_range, pixels[ascending].flip(0)

    def gather_list(self, feature: str, rows: npt.NDArray[np.int64]) -> list[Any]:
        """Copy frames of a variable shape; texts are returned as values."""
        frames = [self._rows[feature][row] for row in rows.tolist()]
        with self.stream.use():
            return LISTS[self.specs[feature].value_kind].copy(frames)

    def change_list(
        self, frames: Sequence[torch.Tensor], clip: int, change: ValuesChange
    ) -> list[torch.Tensor]:
        """Queue a change of clip number `clip`, frames of variable shape."""
        some = slice(clip, clip + 1)
        with self.stream.use():
            factor, offset = map(self._upload, (change.factor[some], change.offset[some]))
            return [
                change.apply(frame[None, None], factor, offset)[0, 0].to(frame.dtype)
                for frame in frames
            ]

    def _upload(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """Upload an array that is never written to again."""
        host, stream = tensor_of(array), self.stream
        return upload(host, stream.device, is_late=stream.pins_memory)


def as_words(batch: torch.Tensor, spec: ArraySpec) -> torch.Tensor | None:
    """View a batch [clips, frames, …] as words for `gather`; `None` if it is empty."""
    if not batch.numel():
        return None
    frames = batch.view(batch.shape[0] * batch.shape[1], -1)
    return frames.view(torch.uint8).view(_word(spec.nbytes))


def _bytes(frames: torch.Tensor) -> torch.Tensor:
    """View frames [n, height, width, …] as [n, height, width, bytes per pixel]."""
    return frames.unsqueeze(-1).flatten(3).view(torch.uint8)


def _word(nbytes: int) -> torch.dtype:
    """Widest integer dtype that divides `nbytes`."""
    for word in (torch.int64, torch.int32, torch.int16):
        if nbytes % word.itemsize == 0:
            return word
    return torch.uint8


class DeviceBuffers(Buffers[DeviceArena]):
    """Buffers on a device.

    Frames are decoded into staging memory, copied and gathered by a side stream; see `DeviceArena`.
    The `videos` of groups are decoded by the device into their rows if possible; see `DeviceVideo`.

    Batches use torch's allocator, which detects the deletion of a tensor's last view, in Python or
    in the graph of a backward pass. They are allocated on the side stream, so that freed memory is
    reused without waiting. The memory of a batch used by another stream is reused only after that
    stream is done with it (see `streams`). A batch is therefore begun only after the device has
    reached the last but one delivered batch: the consumer has `CONSUMER` of them.
    """

    def __init__(self, needs: BufferNeeds, stream: SideStream) -> None:
        super().__init__(needs)
        self._stream = stream
        staging = Staging(self._stream)
        self._videos: list[DeviceVideo] = []
        self.arenas = []
        for group in needs.groups:
            videos = {spec.name: DeviceVideo(spec, self._stream) for spec in group.videos}
            self.arenas.append(DeviceArena(group.specs, group.num_rows, staging, videos))
            self._videos += videos.values()
        self._deliveries = QueueLimit(CONSUMER - 1)
        self._stats = EngineStats()

    def begin(self, stats: EngineStats) -> None:
        """See `Buffers`. Makes the device current in this thread."""
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

    def begin_batch(self, size: int, form: BatchForm | None = None) -> DeviceBatchBuilder:
        """See `Buffers`; waits until the device is near the last delivered batch."""
        self._deliveries.wait()
        needs, views = self.needs, None
        if form is not None:
            views = shapes_of(needs, form), most_numbers(needs)
        return DeviceBatchBuilder(
            size, needs.lengths, needs.specs, self._stream, self._deliveries, views
        )

    def end(self) -> None:
        """See `Buffers`; waits for the copies, for their times."""
        self._note_copies(wait=True)
        for video in self._videos:
            video.end_decoders()

    def _note_copies(self, *, wait: bool = False) -> None:
        """Count and trace finished copies; with `wait`, all copies."""
        track = f"{self._stream.device} copies"
        for arena in self.arenas:
            for span in arena.copied(wait=wait):
                self._stats.add(device_seconds=span.end - span.begin, device_bytes=span.nbytes)
                self._stats.trace.add(
                    "device copy", span.begin, span.end, track=track, bytes=span.nbytes
                )


class _RaggedLists:
    """Arrays of variable shape: a list of tensors for each clip."""

    def clips(self, size: int) -> list[Any]:
        return [[] for _ in range(size)]

    def copy(self, frames: list[torch.Tensor]) -> list[torch.Tensor]:
        """Copies for a batch, on the current stream, since rows are overwritten."""
        return [frame.clone() for frame in frames]

    def tensors(self, clips: list[list[torch.Tensor]]) -> Iterable[torch.Tensor]:
        """Tensors on the device."""
        return chain.from_iterable(clips)

    def column(self, clips: list[list[torch.Tensor]]) -> Any:
        """The feature of a batch."""
        return Frames(clips)


class _ObjectLists:
    """Texts, which are kept on the host: a list for each clip, `None` if its source lacks them."""

    def clips(self, size: int) -> list[Any]:
        return [None] * size

    def copy(self, frames: list[Any]) -> list[Any]:
        return frames

    def tensors(self, clips: list[Any]) -> Iterable[torch.Tensor]:  # noqa: ARG002
        return ()

    def column(self, clips: list[Any]) -> Any:
        return clips


LISTS: Mapping[ValueKind, _RaggedLists | _ObjectLists] = {
    RAGGED_ARRAYS: _RaggedLists(),
    TEXTS: _ObjectLists(),
    BLOBS: _ObjectLists(),
}
"""Frames that are not stacked, on devices, by value kind."""


class DeviceBatchBuilder:
    """A batch of `size` clips while the device gathers it; see `BatchBuilder`.

    Copies are queued on `stream`. Loads into the same rows are queued after `gather` returns. The
    consuming thread must call `Batch.arrive`. With `views`, shapes of features in a clip and the
    numbers of the largest batch, batches of all forms take memory of one size.
    """

    def __init__(
        self,
        size: int,
        lengths: Mapping[str, int],
        specs: Mapping[str, ArraySpec],
        stream: SideStream,
        deliveries: QueueLimit,
        views: tuple[Mapping[str, tuple[int, ...]], Mapping[str, int]] | None = None,
    ) -> None:
        self._stream = stream
        self._deliveries = deliveries
        self._specs = specs
        self._lists = {n: LISTS[specs[n].value_kind] for n in specs.keys() - stacked(specs).keys()}
        # Tensors [clips, frames, …], or lists of clips.
        self._features: dict[str, Any] = {n: form.clips(size) for n, form in self._lists.items()}
        self._words: dict[str, torch.Tensor] = {}
        with stream.use():
            for name, spec in stacked(specs).items():
                shape: Any = (size, lengths[name], *spec.shape)
                if views is not None:
                    shape = (size, *views[0][name])
                count = math.prod(shape)
                num_allocated = count if views is None else views[1][name]
                memory = torch.empty(
                    num_allocated, dtype=torch_dtype(spec.dtype), device=stream.device
                )
                batch = memory[:count].view(shape)
                self._features[name] = batch
                is_whole = shape[2:] == tuple(spec.shape)  # others come as windows, not as rows
                if is_whole and (words := as_words(batch, spec)) is not None:
                    self._words[name] = words

    def gather(
        self,
        slots: npt.NDArray[np.int64],
        sources: Sequence[ClipRows[DeviceArena]],
        copiers: Copiers,
        calls: Calls | None = None,
        vectors: VectorSteps = NO_STEPS,
    ) -> int:
        del copiers  # the device copies
        assert calls is None, "functions are called on the host"
        nbytes = 0
        for source in sources:
            cropped = () if source.crop is None else source.crop.parts
            uncropped = [
                name
                for name in source.features
                if name in self._words and name not in vectors and name not in cropped
            ]
            if source.crop is not None:
                self._crop(slots, source, source.crop)
            nbytes += self._copy(slots, source, uncropped)
            if source.crop is not None:
                self._change_values(slots, source, source.crop, vectors)
            nbytes += self._make_vectors(slots, source, vectors)
            for name in source.features:
                if name in self._lists:
                    change = None if source.crop is None else source.crop.changes.get(name)
                    for clip, (place, rows) in enumerate(
                        zip(slots.tolist(), source.rows, strict=True)
                    ):
                        frames = source.arena.gather_list(name, rows)
                        if change is not None:
                            frames = source.arena.change_list(frames, clip, change)
                        self._features[name][place] = frames
        return nbytes

    def _copy(
        self,
        slots: npt.NDArray[np.int64],
        source: ClipRows[DeviceArena],
        features: Sequence[str],
    ) -> int:
        """Queue copies of unchanged frames. Returns the bytes sent over the bus."""
        rows, length = np.ascontiguousarray(source.rows).reshape(-1), source.rows.shape[1]
        if int(slots[-1] - slots[0]) == len(slots) - 1:
            first_frame = int(slots[0]) * length
            words = {
                name: self._words[name][first_frame : first_frame + len(rows)] for name in features
            }
            return source.arena.gather(rows, words)
        at = (slots[:, None] * length + np.arange(length)).reshape(-1)
        return source.arena.gather(rows, {name: self._words[name] for name in features}, at)

    def _crop(
        self, slots: npt.NDArray[np.int64], source: ClipRows[DeviceArena], crop: Crop
    ) -> None:
        """Queue copies of cropped windows."""
        for name in sorted(crop.parts.keys() & self._features.keys() & set(source.features)):
            for clip, rows in enumerate(source.rows):
                out = self._features[crop.target(name, clip)][int(slots[clip])]
                source.arena.gather_window(name, rows, out, crop.place(name, clip))

    def _change_values(
        self,
        slots: npt.NDArray[np.int64],
        source: ClipRows[DeviceArena],
        crop: Crop,
        vectors: VectorSteps,
    ) -> None:
        """Queue changes of gathered intrinsics, distortion and points without steps."""
        stacked_names = self._features.keys() - self._lists.keys()
        names = crop.changes.keys() - vectors.keys()
        for name in sorted(names & stacked_names & set(source.features)):
            source.arena.change_values(self._features[name], slots, crop.changes[name])

    def _make_vectors(
        self,
        slots: npt.NDArray[np.int64],
        source: ClipRows[DeviceArena],
        vectors: VectorSteps,
    ) -> int:
        """Queue steps of vectors, after changes of their values. Returns the bytes sent over the
        bus.
        """
        nbytes = 0
        for name in source.features if vectors else ():
            if name in self._words and (step := vectors.get(name)) is not None:
                change = None if source.crop is None else source.crop.changes.get(name)
                for block in step.blocks(source.rows):
                    of_block = None if change is None else change.take(block)
                    into = self._features[name], slots[block]
                    nbytes += source.arena.gather_vectors(
                        name, source.rows[block], step, of_block, *into
                    )
        return nbytes

    def clear(self, feature: str, slots: npt.NDArray[np.int64]) -> None:
        """Queue filling slots of a feature with a fixed shape with 0."""
        with self._stream.use():
            for slot in slots.tolist():
                self._features[feature][slot].zero_()

    def finish(self) -> tuple[dict[str, Any], Callable[[], object]]:
        self._mark = self._stream.mark()  # several threads may have gathered
        features = {name: self._features[name] for name in self._specs}
        for name, form in self._lists.items():
            features[name] = form.column(features[name])
        return features, self._arrive

    def _arrive(self) -> None:
        """Let the consumer's current stream use the features."""
        tensors: list[torch.Tensor] = []
        for name, feature in self._features.items():
            tensors += self._lists[name].tensors(feature) if name in self._lists else [feature]
        self._deliveries.add(self._stream.give_to_current(self._mark, tensors))
