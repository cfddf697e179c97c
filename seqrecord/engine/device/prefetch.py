"""Moves batches of any loader to a device, ahead of the step that needs them."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from seqrecord.engine.device.streams import (
    Mark,
    QueueLimit,
    SideStream,
    Staging,
    StagingBuffer,
    find_device,
    lasting_stream,
)
from seqrecord.errors import ClipError, StateError

_Item = TypeVar("_Item")


def prefetch_to_device(
    loader: Iterable[_Item], device: str | torch.device, *, depth: int = 2
) -> DevicePrefetcher[_Item]:
    """Iterate over any loader with its tensors on a device, copied during the previous step.

    A batch is copied to pinned memory, and from there to the device by a side stream, before the
    preceding batch is delivered::

        loader              0  1  |  2  |  3  |
        copies                 0  1  |  2  |  3  |
        the user's step           0     |  1     |  2     |

    The current stream at the call of `next` waits for the copy, on the device. No synchronization
    is needed; ordering of other streams is up to the user, as for any tensor. No thread is started.
    Leaving the loop early drops prefetched batches.

    Tensors are found in dicts, lists, tuples, named tuples and dataclasses. Other objects, and
    tensors on the device, are passed through. Dense tensors keep dtype, shape and strides. Dense
    pinned tensors are copied directly: do not write to them while they are referenced. Sparse and
    quantized tensors, subclasses, and tensors that require gradients are moved by `Tensor.to`.

    The result has a length if the loader has one. If the loader has a `state_dict`, it is called
    after each batch, and the state is always that of the last delivered batch: resuming neither
    loses nor repeats batches.

    With the `device` of a pipe, each frame crosses the bus once; here, once per clip. Use this
    function for other loaders, and for loaders with worker processes.

    Args:
        loader: iterable of batches.
        device: target device.
        depth: batches on the device in addition to those that the user has, including the one being
            delivered. 1 disables prefetching. A loop that queues steps faster than the device
            executes them is delayed: it gets a batch only after the step of the last batch but
            three is done. Until then, a few more batches are on the device.

    Raises `ClipError` if the device is not available.

    Example:
        loader = DataLoader(seqrecord.SeqRecordMapDataset("records/", clip_len=4), batch_size=2)
        for batch in seqrecord.prefetch_to_device(loader, "cpu"):  # "cuda"
            image = batch["image"]  # uint8 [2, 4, 48, 64, 3], on the device
    """
    if depth < 1:
        raise ClipError("depth is too small", expected="at least 1", got=depth)
    return DevicePrefetcher(loader, lasting_stream(find_device(device)), depth)


class DevicePrefetcher(Generic[_Item]):
    """See `prefetch_to_device`."""

    def __init__(self, loader: Iterable[_Item], stream: SideStream, depth: int) -> None:
        self.loader = loader
        self._stream = stream
        self._depth = depth
        self._staging = Staging(stream)
        self._state: dict[str, Any] | None = None  # after the last delivery, while more is read

    def __iter__(self) -> Iterator[_Item]:
        ahead: deque[_Moved] = deque()
        taken = QueueLimit()
        batches = iter(self.loader)
        error: BaseException | None = None
        try:
            while True:
                while error is None and len(ahead) < self._depth:
                    try:
                        ahead.append(self._move(next(batches), taken))
                    except StopIteration as end:
                        error = end
                    except Exception as failed:  # raised after the batches that were read
                        error = failed
                if not ahead:
                    break
                moved = ahead.popleft()
                taken.add(self._stream.give_to_current(moved.mark, moved.tensors))
                self._state, item = moved.state, moved.item
                del moved  # the user's last reference frees it
                yield item
                del item
            self._state = None  # from now on the loader's own, at its end
            if not isinstance(error, StopIteration):
                assert error is not None, "there is a reason to stop"
                raise error
        finally:
            del error  # its traceback refers to this frame

    def __len__(self) -> int:
        if not isinstance(self.loader, Sized):
            raise TypeError(f"{type(self.loader).__name__} has no length")
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """The loader's state after the last delivered batch."""
        return copy.deepcopy(self._read_state() if self._state is None else self._state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the loader's state for the next iteration."""
        self._stateful("load_state_dict")(state_dict)
        self._state = None

    def _read_state(self) -> dict[str, Any]:
        state: dict[str, Any] = self._stateful("state_dict")()
        return state

    def _stateful(self, method: str) -> Any:
        if not hasattr(self.loader, method):
            raise StateError(
                f"the loader has no {method}",
                expected="SeqRecordPipe, torchdata's "
                "StatefulDataLoader(SeqRecordIterableDataset(…), …) or Loader(SeqRecordNode(…))",
                got=type(self.loader).__name__,
            )
        return getattr(self.loader, method)

    def _move(self, item: _Item, taken: QueueLimit) -> _Moved:
        """Queue the copies of a batch, once the device is near the delivered ones."""
        # Before the next read. A copy: the loader may change its state in place.
        state = copy.deepcopy(self._read_state()) if hasattr(self.loader, "state_dict") else None
        copied = filter(_is_copied, find_tensors(item))
        staged = [tensor.nbytes for tensor in copied if not _is_ready(tensor)]
        made: list[torch.Tensor] = []
        taken.wait()
        with self._staging.acquire(staged) as buffer:
            moved = map_tensors(item, lambda tensor: self._copy(tensor, buffer, made))
        return _Moved(moved, made, self._stream.mark(), state)

    def _copy(
        self, tensor: torch.Tensor, buffer: StagingBuffer, made: list[torch.Tensor]
    ) -> torch.Tensor:
        """Copy a tensor to the device, and add it to `made` if the side stream allocated it."""
        if not _is_copied(tensor):
            return tensor.to(self._stream.device)  # by the current stream
        stride = _dense(tensor)
        if _is_ready(tensor):
            buffer.keep(tensor)
            source = tensor
        else:
            piece = buffer.carve(tensor.nbytes).view(tensor.dtype)
            source = piece.as_strided(tensor.shape, stride).copy_(tensor)
        device, dtype = self._stream.device, tensor.dtype
        with self._stream.use():
            target = torch.empty_strided(tensor.shape, stride, dtype=dtype, device=device)
            target.copy_(source, non_blocking=self._stream.pins_memory)
        made.append(target)
        return target


class _Moved(NamedTuple):
    """A batch that is on the device once `mark` is reached."""

    item: Any
    tensors: list[torch.Tensor]  # allocated by the side stream
    mark: Mark
    state: dict[str, Any] | None


def _is_copied(tensor: torch.Tensor) -> bool:
    """Whether a tensor is plain host memory."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.requires_grad or tensor.is_nested)
    )


def _is_ready(tensor: torch.Tensor) -> bool:
    """Whether an asynchronous copy is possible; torch waits for tensors that are not dense."""
    return tensor.is_pinned() and tensor.stride() == _dense(tensor)


def _dense(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides of a dense copy."""
    return torch.empty_like(tensor, device="meta").stride()


def map_tensors(item: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Apply a function to all tensors in an object.

    Mappings, lists, tuples, named tuples and dataclasses are rebuilt; other objects are unchanged.
    """
    if isinstance(item, torch.Tensor):
        return change(item)
    if isinstance(item, Mapping):
        changed = {key: map_tensors(value, change) for key, value in item.items()}
        return changed if type(item) is dict else _like(item, changed)
    if isinstance(item, tuple):
        values = [map_tensors(value, change) for value in item]
        return type(item)(*values) if hasattr(item, "_fields") else type(item)(values)
    if type(item) is list:
        return [map_tensors(value, change) for value in item]
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        made = copy.copy(item)
        for field in dataclasses.fields(item):
            # Also for frozen dataclasses.
            object.__setattr__(made, field.name, map_tensors(getattr(item, field.name), change))
        return made
    return item


def find_tensors(item: Any) -> list[torch.Tensor]:
    """List all tensors in an object; see `map_tensors`."""
    found: list[torch.Tensor] = []

    def add(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(item, add)
    return found


def _like(item: Mapping[Any, Any], values: dict[Any, Any]) -> Mapping[Any, Any]:
    """Put values into a copy of a mapping, which keeps attributes such as a default factory."""
    try:
        made: Any = copy.copy(item)
        for key, value in values.items():
            made[key] = value
    except (TypeError, ValueError):  # an immutable mapping
        return values
    return made  # type: ignore[no-any-return]
