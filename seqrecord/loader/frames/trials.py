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
        values = call()
    repeated_values = call()
    if changed_names := [
        name
        for name in {**values, **repeated_values}
        if name not in values
        or name not in repeated_values
        or not _equal(values[name], repeated_values[name])
    ]:
        raise ClipError(
            f"{what} returns different results for the same arguments; clips would not be "
            "reproducible by seed",
            feature=changed_names[0],
            expected=expected,
            got="a second call that differs from the first",
        )
    return values


@contextmanager
def no_global_draws(what: str, *, expected: str) -> Iterator[None]:
    """Raise `ClipError` if the block uses the global random generator of Python, NumPy or torch."""
    states = _states()
    yield
    new_states = _states()
    if generators := [name for name, state in states.items() if new_states[name] != state]:
        raise ClipError(
            f"{what} uses the global generator of {' and '.join(generators)}; clips would not be "
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


def _equal(left: Any, right: Any) -> bool:
    """Compare two arrays by bytes, other values by `==`."""
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        is_alike = left.dtype == right.dtype and left.shape == right.shape
        return is_alike and (left.dtype == object or left.tobytes() == right.tobytes())
    return type(left) is type(right) and bool(left == right)
