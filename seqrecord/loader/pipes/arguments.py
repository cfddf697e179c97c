"""Functions with a keyword argument for each option of a loader."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

from seqrecord.errors import ClipError
from seqrecord.loader.pipes.options import ClipOptions, EngineOptions, LoaderOptions
from seqrecord.store.reading.dataset import DatasetLike
from seqrecord.store.text import repr_of

_P = ParamSpec("_P")
_Self = TypeVar("_Self")
_Options = TypeVar("_Options", bound=ClipOptions)
_Result = TypeVar("_Result")


def takes_arguments(
    options: Callable[_P, _Options],
) -> Callable[
    [Callable[[DatasetLike, _Options], _Result]], Callable[Concatenate[DatasetLike, _P], _Result]
]:
    """Turn `function(dataset, options)` into a function with a keyword argument for each option.

    Type checkers, `inspect.signature` and `help` show names, types, defaults and documentation.
    """
    return lambda function: _with_arguments(function, options)


def init_takes_arguments(
    options: Callable[_P, _Options],
) -> Callable[
    [Callable[[_Self, DatasetLike, _Options], None]],
    Callable[Concatenate[_Self, DatasetLike, _P], None],
]:
    """`takes_arguments` for an `__init__(self, dataset, options)`."""
    return lambda function: _with_arguments(function, options)


def _with_arguments(function: Callable[..., Any], options: Any) -> Callable[..., Any]:
    given = inspect.signature(function)
    *first, _ = (
        parameter.replace(kind=parameter.POSITIONAL_ONLY) for parameter in given.parameters.values()
    )
    named = inspect.signature(options).parameters

    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) < len(first):
            raise TypeError(
                "the dataset is missing: the first argument, without a name, is a path, a URL or "
                "an open dataset"
            )
        for name in kwargs.keys() - named.keys():
            raise _unknown_argument(name, named)
        if len(args) > len(first):
            raise TypeError(
                f"only the dataset is given without a name; got {repr_of(args[-1], 100)} too"
            )
        return function(*args, options(**kwargs))

    update_wrapper(call, function)
    parameters = [*first, *named.values()]
    call.__signature__ = given.replace(parameters=parameters)  # type: ignore[attr-defined]
    call.__doc__ = _docstring(function.__doc__ or "", options)
    return call


_OF_OPEN = ("verify", "storage_options", "cache_dir", "cache_limit", "join")
"""Arguments of `seqrecord.open`."""

_BUDGET_WORDS = ("max_tokens", "max_frames", "max_cost", "token_budget", "budget", "cost")
_BUDGET = "batch_size=seqrecord.Budget(4096, cost=…), batches by the costs of clips"

_OF_OTHERS = {
    **dict.fromkeys(_BUDGET_WORDS, _BUDGET),
    **dict.fromkeys(("world_size", "num_replicas"), "rank=(rank, world_size), or none"),
    **dict.fromkeys(
        ("num_workers", "workers"),
        "DataLoader(loader, batch_size=None, num_workers=…) around it; its own threads: "
        "engine=seqrecord.EngineOptions(num_threads=…)",
    ),
    "drop_last": 'last_batch="drop"',
    "chunk_size": "windows={feature: range(chunk_size)} for chunks of a feature, such as actions; "
    "clip_len=… for all features",
}
"""What to write for arguments of torch and policies."""


def _unknown_argument(name: str, names: Collection[str]) -> Exception:
    elsewhere = {one: f"seqrecord.open(location, {one}=…) as the location" for one in _OF_OPEN}
    if "engine" in names:
        of_engine = inspect.signature(EngineOptions).parameters
        elsewhere |= {one: f"engine=seqrecord.EngineOptions({one}=…)" for one in of_engine}
        elsewhere |= _OF_OTHERS
    else:
        sampler = "torch.utils.data.DistributedSampler(dataset) as the sampler of a DataLoader"
        elsewhere |= dict.fromkeys(("world_size", "num_replicas", "rank"), sampler)
        elsewhere |= dict.fromkeys(_BUDGET_WORDS, f"SeqRecordPipe with {_BUDGET}")
        elsewhere["num_workers"] = "DataLoader(dataset, num_workers=…) around it"
        elsewhere["chunk_size"] = _OF_OTHERS["chunk_size"]
    if name in elsewhere:
        return ClipError(f"{name} is no argument of a loader", expected=elsewhere[name], got=name)
    if name in inspect.signature(LoaderOptions).parameters:
        expected = "SeqRecordPipe, SeqRecordIterableDataset or SeqRecordNode, which stream epochs"
        return ClipError("clips read by their number have no epochs", expected=expected, got=name)
    lerobot = {"delta_timestamps": ["windows"]}
    near = lerobot.get(name) or difflib.get_close_matches(name, names, 1)
    hint = f"is it {near[0]}?" if near else f"there are {', '.join(sorted(names))}"
    return TypeError(f"there is no argument {name!r}; {hint}")


def _docstring(text: str, options: type[ClipOptions]) -> str:
    """Append the options' documentation to a docstring that ends with arguments."""
    lines = [inspect.cleandoc(text)]
    for cls in reversed(options.__mro__):
        lines += inspect.cleandoc(vars(cls)["__doc__"] or "").partition("Args:\n")[2:]
    return "\n".join(line for line in lines if line)
