"""Finds who iterates over a pipe or asks for its length, where torch has no other way to tell."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import Batcher, Filter, Mapper, ShardingFilter
from torchdata.stateful_dataloader import StatefulDataLoader

__all__ = [
    "find_filter",
    "find_holder",
    "find_iterating",
    "find_loader",
    "find_starting",
    "is_distributed_by_accelerate",
    "is_running",
]

_ITER_PIPES = "torch.utils.data.datapipes.iter"


def find_loader() -> DataLoader[Any] | None:
    """The DataLoader whose length is being asked for.

    The length of its epoch depends on how many workers it has, and it tells its dataset in no
    other way: `apply_sharding` is called in the workers, and `__len__` has no arguments.
    """
    loader: DataLoader[Any] | None = _owner(DataLoader.__len__)
    return loader


def find_iterating() -> DataLoader[Any] | None:
    """The DataLoader that makes an iterator, in this process or in the one that has forked it."""
    loader: DataLoader[Any] | None = _owner(DataLoader.__iter__, StatefulDataLoader.__iter__)
    return loader


def find_starting() -> object | None:
    """The iterator that starts a process while it is being made, as those of DataLoaders do."""
    for frame in _frames():
        if frame.f_code.co_name == "__init__":
            made = frame.f_locals.get("self")
            if isinstance(made, Iterator):
                return made
    return None


def is_distributed_by_accelerate() -> bool:
    """Whether Accelerate is iterating, which distributes to ranks what a loader gives."""
    accelerate = sys.modules.get("accelerate.data_loader")
    if accelerate is None:
        return False
    distributing = (accelerate.IterableDatasetShard, accelerate.DataLoaderDispatcher)
    codes = _codes(*(cls.__iter__ for cls in distributing))
    return any(frame.f_code in codes for frame in _frames())


def find_filter() -> ShardingFilter | None:
    """The `.sharding_filter()` further down the chain that is asking.

    A pipe knows the pipes before it, not those behind it. `apply_sharding` is for one pipe of a
    chain only, and that is the filter.
    """
    found: ShardingFilter | None = _owner(ShardingFilter.__iter__, ShardingFilter.__len__)
    return found


def find_holder() -> str | None:
    """The class of a pipe of torch's further down the chain that may hold items, or skip some.

    The consumer has then not been given all that this pipe gave. `.map()`, `.collate()`,
    `.batch()` and `.filter()` hold none between two of their items.
    """
    passing = _codes(Mapper.__iter__, Batcher.__iter__, Filter.__iter__)
    if (sharding := find_filter()) is not None and sharding.num_of_instances == 1:
        passing |= _codes(ShardingFilter.__iter__)
    for frame in _frames():
        name = str(frame.f_globals.get("__name__"))
        if name.startswith(f"{_ITER_PIPES}.") and frame.f_code not in passing:
            return type(frame.f_locals.get("self")).__name__  # it has just begun and holds nothing
    return None


def is_running(module: str) -> bool:
    """Whether code of a module, or of one in it, is running up the stack."""
    names = (str(frame.f_globals.get("__name__")) for frame in _frames())
    return any(name == module or name.startswith(f"{module}.") for name in names)


def _owner(*methods: Callable[..., Any]) -> Any:
    """The object that the nearest of these methods is running on.

    Only that frame's local variables are looked at. Before Python 3.13 looking at them refers to
    all that they hold until the frame ends or is looked at again: in a training loop, to a batch.
    """
    codes = _codes(*methods)
    return next((f.f_locals["self"] for f in _frames() if f.f_code in codes), None)


@lru_cache
def _codes(*methods: Callable[..., Any]) -> frozenset[CodeType]:
    return frozenset(inspect.unwrap(method).__code__ for method in methods)


def _frames() -> Iterator[FrameType]:
    frame = sys._getframe().f_back
    while frame is not None:
        yield frame
        frame = frame.f_back
