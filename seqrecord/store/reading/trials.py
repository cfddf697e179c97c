"""Trial calls of users' functions: checks of signature and reproducibility."""

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
    """Raise `ClipError` if a function cannot be called with these positional arguments."""
    torch, called = sys.modules.get("torch"), function
    if torch is not None and isinstance(function, torch.nn.Module):
        called = function.forward
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # built-in functions may have no signature
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
    """Return the result of `call`, after a second call with an equal result.

    Raises `ClipError` if the results differ, or if a call uses a global random generator. Such
    results would depend on threads and processes. `expected` is the advice in the error.
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
            f"{what} returns different results for the same arguments; clips would not be "
            "reproducible by seed",
            feature=wrong[0],
            expected=expected,
            got="a second call that differs from the first",
        )
    return first


@contextmanager
def no_global_draws(what: str, *, expected: str) -> Iterator[None]:
    """Raise `ClipError` if the block uses the global random generator of Python, NumPy or torch."""
    before = _states()
    yield
    after = _states()
    if drawn := [name for name, state in before.items() if after[name] != state]:
        raise ClipError(
            f"{what} uses the global generator of {' and '.join(drawn)}; clips would not be "
            "reproducible by seed",
            expected=expected,
            got="a generator that was used",
        )


def _states() -> dict[str, object]:
    """Return the states of the global generators; torch's only if torch is imported."""
    numpy_state = pickle.dumps(np.random.get_state(legacy=False))  # noqa: NPY002
    states: dict[str, object] = {"random": random.getstate(), "numpy.random": numpy_state}
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


def _equal(one: Any, two: Any) -> bool:
    """Compare two arrays by bytes, other values by `==`."""
    if isinstance(one, np.ndarray) and isinstance(two, np.ndarray):
        same = one.dtype == two.dtype and one.shape == two.shape
        return same and (one.dtype == object or one.tobytes() == two.tobytes())
    return type(one) is type(two) and bool(one == two)
