"""Reads the call stack, for what torch tells in no other way: who asks, or starts a process."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import Batcher, Filter, Mapper, ShardingFilter

__all__ = ["find_filter", "find_holder", "find_loader", "find_starting"]

_ITER_PIPES = "torch.utils.data.datapipes.iter."


def find_loader() -> DataLoader[Any] | None:
    """The DataLoader whose length is being asked for.

    The length of its epoch depends on how many workers it has, and it tells its dataset in no
    other way: `apply_sharding` is called in the workers, and `__len__` has no arguments.
    """
    loader: DataLoader[Any] | None = _owner(DataLoader.__len__)
    return loader


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
    for frame in _frames():
        name = str(frame.f_globals.get("__name__"))
        if name.startswith(_ITER_PIPES) and frame.f_code not in passing:
            pipe = frame.f_locals.get("self")  # it has just begun and holds nothing
            if not isinstance(pipe, ShardingFilter) or pipe.num_of_instances > 1:
                return type(pipe).__name__
    return None


def find_starting() -> tuple[object, DataLoader[Any]] | None:
    """The iterator over a DataLoader that is being made, which starts workers, and the DataLoader.

    Torch gives workers nothing that differs between two iterators: their seeds may be equal. And
    where it forks them, nothing is called that belongs to the dataset.
    """
    for frame in _frames():
        code = frame.f_code
        if code.co_name == "__init__" and code.co_varnames[:2] == ("self", "loader"):
            made, loader = frame.f_locals["self"], frame.f_locals["loader"]
            if isinstance(made, Iterator) and isinstance(loader, DataLoader):
                return made, loader
    return None


def _owner(*methods: Callable[..., Any]) -> Any:
    """The object that the nearest of these methods is running on.

    Only that frame's local variables are looked at. Before Python 3.13 looking at them refers to
    all that they hold until the frame ends or is looked at again: in a training loop, to a batch.
    """
    codes = _codes(*methods)
    return next((f.f_locals["self"] for f in _frames() if f.f_code in codes), None)


def _codes(*methods: Callable[..., Any]) -> set[CodeType]:
    return {inspect.unwrap(method).__code__ for method in methods}


def _frames() -> Iterator[FrameType]:
    frame = sys._getframe().f_back
    while frame is not None:
        yield frame
        frame = frame.f_back
