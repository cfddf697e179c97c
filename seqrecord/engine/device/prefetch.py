"""Batches of any loader, moved to a device ahead of the step that needs them."""

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
    """Iterate over any loader with its tensors on a device, copied while the step before runs.

    A batch is copied to pinned memory, and from there to the device by a stream beside the
    current one, before the batch ahead of it is delivered::

        loader              0  1  |  2  |  3  |
        copies                 0  1  |  2  |  3  |
        the user's step           0     |  1     |  2     |

    The stream that is current where `next` is called waits for the copy, on the device: nothing
    needs to be synchronized. Work on other streams is the user's to order, as with any tensor. No
    thread is started; leaving early drops what was copied ahead.

    Tensors are found in dicts, lists, tuples, named tuples and dataclasses; what is none, or is on
    the device, passes through. A dense tensor keeps dtype, shape and strides. Pinned tensors that
    are dense are copied from as they are: whoever makes them must not write to them again while
    they are referred to. Tensors that are sparse, quantized, of a subclass or in need of a gradient
    are moved by `Tensor.to`.

    It has a length if the loader has one, and saves and loads the loader's state if that has a
    `state_dict`, which is then called after each batch: it is always that of the batch which was
    delivered last, so that resuming loses and repeats nothing.

    With a pipe's own `device` each frame crosses the bus once, here once for each clip that it is
    in: this is for other loaders, and for those that have worker processes.

    Args:
        loader: gives batches each time that it is iterated over.
        device: where to.
        depth: batches on the device beside those that the user holds, the one being delivered
            included. With 1 nothing is copied ahead. A loop that queues its steps faster than the
            device does them is held back: it takes a batch when the step of the last but three
            is done, so a few batches more are on the device until then.

    Raises `ClipError` for a device that is not there.
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
        self._state: dict[str, Any] | None = None  # of what was delivered, while more was read

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
                    except Exception as failed:  # it belongs behind the batches that are there
                        error = failed
                if not ahead:
                    break
                moved = ahead.popleft()
                taken.add(self._stream.give_to_current(moved.mark, moved.tensors))
                self._state, item = moved.state, moved.item
                del moved  # what the user drops must be gone
                yield item
                del item
            self._state = None  # the loader's own: it is at its end too
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
        """The loader's state after the batch that was delivered last."""
        return copy.deepcopy(self._read_state() if self._state is None else self._state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the loader go on there with the next iteration."""
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
        """Queue the copies of a batch, when the device has come near to what was taken."""
        # Before anything else is read. A copy: the loader may go on to change what it gave.
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
        """The tensor on the device, and in `made` if this stream makes it."""
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
    """A batch on the device, once `mark` is reached."""

    item: Any
    tensors: list[torch.Tensor]  # those that the side stream made
    mark: Mark
    state: dict[str, Any] | None


def _is_copied(tensor: torch.Tensor) -> bool:
    """Whether it is plain memory of the host."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.requires_grad or tensor.is_nested)
    )


def _is_ready(tensor: torch.Tensor) -> bool:
    """Whether a copy from its own memory can be queued; torch waits for one that is not dense."""
    return tensor.is_pinned() and tensor.stride() == _dense(tensor)


def _dense(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides of a copy."""
    return torch.empty_like(tensor, device="meta").stride()


def map_tensors(item: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same with each tensor changed.

    Looks into mappings, lists, tuples, named tuples and dataclasses, and makes them anew; all else
    stays what it is.
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
            # A frozen one does not let its fields be set.
            object.__setattr__(made, field.name, map_tensors(getattr(item, field.name), change))
        return made
    return item


def find_tensors(item: Any) -> list[torch.Tensor]:
    """All tensors that `map_tensors` would change."""
    found: list[torch.Tensor] = []

    def add(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(item, add)
    return found


def _like(item: Mapping[Any, Any], values: dict[Any, Any]) -> Mapping[Any, Any]:
    """The values in a mapping of the item's kind: a copy knows what else it has, as a default."""
    try:
        made: Any = copy.copy(item)
        for key, value in values.items():
            made[key] = value
    except (TypeError, ValueError):  # it cannot be changed
        return values
    return made  # type: ignore[no-any-return]
