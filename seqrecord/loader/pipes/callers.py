"""Find the user of a pipe in the call stack, for information that torch passes in no other way.

Only the local variables of the matching frame are read. Before Python 3.13, reading them keeps
references to all of them until the frame ends: in a training loop, to a batch.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from traceback import walk_stack
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader, IterDataPipe, default_collate, default_convert
from torch.utils.data.datapipes import iter as torch_pipes

from seqrecord.errors import ClipError

_OF_FETCHER = "__init__", "fetch"  # methods of a DataLoader's fetcher that iterate over its data


def find_loader() -> DataLoader[Any] | None:
    """The DataLoader whose length is requested: the length depends on its workers."""
    loader: DataLoader[Any] | None = _find(DataLoader.__len__)
    return loader


def find_buffering_pipe() -> str | None:
    """The class name of a torch pipe behind this one that may buffer or skip items.

    Its consumer has then received fewer items than this pipe has returned. `.map()`, `.collate()`,
    `.batch()` and `.filter()` keep no item between two of their own. A `.sharding_filter()` passes
    all items from now on, because ranks and workers have shards of their own.

    Raises `ClipError` for a `.sharding_filter()` behind pipes that may have other sources.
    """
    found = list[str]()
    for frame, _ in walk_stack(inspect.currentframe()):
        if _of(frame, "torch.utils.data.datapipes.iter.") and frame.f_code not in _PASSING:
            pipe = frame.f_locals.get("self")  # it has just begun and buffers nothing
            if not isinstance(pipe, torch_pipes.ShardingFilter):
                found.append(type(pipe).__name__)
            elif {*found} <= {torch_pipes.Shuffler.__name__}:
                pipe.apply_sharding(1, 0)  # type: ignore[no-untyped-call]
            else:
                raise ClipError(
                    f"a .sharding_filter() behind {found[-1]} would leave out clips of each shard",
                    expected="no .sharding_filter(): ranks and workers get shards of their own",
                )
    return found[0] if found else None


def is_batched_again(data: object) -> bool:
    """Whether a DataLoader batches the items of `data`, possibly mapped."""
    fetcher = _find_fetcher(data)
    return bool(getattr(fetcher, "auto_collation", False))


def check_kept(data: object) -> None:
    """Raise `ClipError` if a DataLoader makes tensors of arrays in the items of `data`, possibly
    mapped.
    """
    collate_fn = getattr(_find_fetcher(data), "collate_fn", None)
    if collate_fn is default_convert or collate_fn is default_collate:
        raise ClipError(
            "a DataLoader without collate_fn makes tensors of NumPy arrays",
            expected="collate_fn=dict around batches of the loader (batch_size=None); around clips "
            'functools.partial(seqrecord.collate, output="numpy"); or output="torch"',
            got='output="numpy" and no collate_fn',
        )


def is_stateful() -> bool:
    """Whether a StatefulDataLoader is creating an iterator."""
    torchdata = sys.modules.get("torchdata.stateful_dataloader")  # imported where there is one
    if torchdata is None:
        return False
    kind = torchdata.StatefulDataLoader
    return _find(kind.__iter__, kind.state_dict) is not None


def find_stateless_dataset(data: object) -> str | None:
    """The class name of a StatefulDataLoader's dataset that requests items of `data` and has no
    state; `None` if it, or what it iterates with, has one.

    Such a loader resumes by skipping items of a new iteration.
    """
    frames = walk_stack(inspect.currentframe())
    if not any(_of(frame, "torchdata.stateful_dataloader.") for frame, _ in frames):
        return None
    for frame, _ in walk_stack(inspect.currentframe()):  # up to the fetcher: not a training loop
        owner: Any = frame.f_locals.get("self")
        if _of(frame, "torch.utils.data.") and hasattr(owner, "auto_collation"):
            return None if _has_state(owner.dataset) else type(owner.dataset).__name__
        if owner is not data and _has_state(owner):
            return None
    return None


def _has_state(owner: object) -> bool:
    """Whether a StatefulDataLoader would save and load the state of an object."""
    return hasattr(owner, "state_dict") and hasattr(owner, "load_state_dict")


def find_batch_shard() -> Any:
    """Accelerate's `BatchSamplerShard` that requests an item; or `None`."""
    accelerate = sys.modules.get("accelerate.data_loader")
    if accelerate is None:
        return None
    for frame, _ in walk_stack(inspect.currentframe()):
        if _of(frame, "accelerate."):
            shard = frame.f_locals.get("self")
            if isinstance(shard, accelerate.BatchSamplerShard):
                return shard
    return None


def _find_fetcher(data: object) -> Any:
    """The DataLoader's object that requests items of `data`, possibly mapped; or `None`."""
    fetcher: Any = None
    for frame, _ in walk_stack(inspect.currentframe()):
        if _of(frame, "torch.utils.data.") and frame.f_code.co_name in _OF_FETCHER:
            fetcher = frame.f_locals.get("self")
            if hasattr(fetcher, "auto_collation"):
                break
    else:
        return None
    source: Any = fetcher.dataset
    if type(source).__module__ == IterDataPipe.__module__:  # a wrapper for pickling
        source = next(one for one in vars(source).values() if isinstance(one, IterDataPipe))
    while isinstance(source, torch_pipes.Mapper):
        source = source.datapipe
    return fetcher if source is data else None


def _find(*methods: Callable[..., Any]) -> Any:
    """The `self` of the nearest running call of these methods."""
    codes = _codes(*methods)
    frames = walk_stack(inspect.currentframe())
    return next((frame.f_locals["self"] for frame, _ in frames if frame.f_code in codes), None)


def _of(frame: FrameType, module: str) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(module)


def _codes(*methods: Callable[..., Any]) -> set[Any]:
    return {inspect.unwrap(method).__code__ for method in methods}


# Methods of pipes that keep no item between two of their own.
_PASSING = _codes(
    torch_pipes.Mapper.__iter__, torch_pipes.Batcher.__iter__, torch_pipes.Filter.__iter__
)
