"""First calls of users' functions: their signature, and whether a seed decides their results."""

from __future__ import annotations

import inspect
import pickle
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from seqrecord.errors import ClipError


def check_signature(what: str, function: Callable[..., Any], *arguments: str) -> None:
    """Raise `ClipError` for a function that does not take these positional arguments."""
    torch, called = sys.modules.get("torch"), function
    if torch is not None and isinstance(function, torch.nn.Module):
        called = function.forward
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # some built-in functions have none
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        count = "1 argument" if len(arguments) == 1 else f"{len(arguments)} arguments"
        raise ClipError(
            f"{what} cannot be called with {count}: {error}",
            expected=f"a function of ({', '.join(arguments)})",
            got=f"{getattr(function, '__name__', type(function).__name__)}{signature}",
        ) from None


def repeatable(
    what: str, call: Callable[[], Mapping[str, Any]], *, expected: str
) -> Mapping[str, Any]:
    """The result of `call`, arrays and texts by name; it is called twice with equal arguments.

    Raises `ClipError`, with what is `expected`, for a function that draws from a global generator
    or gives two results: which call draws which numbers depends on threads and processes.
    """
    with no_global_draws(what, expected=expected):
        first = call()
    second = call()
    if wrong := [
        name
        for name in {**first, **second}
        if name not in first or name not in second or not _equal(first[name], second[name])
    ]:
        raise ClipError(
            f"{what} gives two results for the same arguments, so that no seed gives the same "
            "clips again",
            feature=wrong[0],
            expected=expected,
            got="a second call that differs from the first",
        )
    return first


@contextmanager
def no_global_draws(what: str, *, expected: str) -> Iterator[None]:
    """Raise `ClipError` if the block draws from a global generator of Python, NumPy or torch."""
    before = _states()
    yield
    after = _states()
    if drawn := [name for name, state in before.items() if after[name] != state]:
        raise ClipError(
            f"{what} draws from the global generator of {' and '.join(drawn)}, so that no seed "
            "gives the same clips again",
            expected=expected,
            got="a generator that was used",
        )


def _states() -> dict[str, object]:
    """The states of the global generators; torch's only where torch was imported."""
    numpy_state = pickle.dumps(np.random.get_state(legacy=False))  # noqa: NPY002
    states: dict[str, object] = {"random": random.getstate(), "numpy.random": numpy_state}
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


def _equal(one: Any, two: Any) -> bool:
    """Whether two values are the same bytes, or the same texts."""
    if isinstance(one, np.ndarray) and isinstance(two, np.ndarray):
        same = one.dtype == two.dtype and one.shape == two.shape
        return same and (one.dtype == object or one.tobytes() == two.tobytes())
    return type(one) is type(two) and bool(one == two)
