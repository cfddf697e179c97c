"""Values of a mix file as arguments in Python: windows, steps of clip_transform, engine, sizes."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from seqrecord.errors import ClipError
from seqrecord.loader.clips import transforms
from seqrecord.loader.clips.depth import DepthToMeters
from seqrecord.loader.clips.transforms import CropStep
from seqrecord.loader.clips.windows import At, Latest, Next, Seconds
from seqrecord.loader.pipes.option_values import Budget, FrameCache, Vector
from seqrecord.loader.pipes.options import EngineOptions
from seqrecord.loader.pipes.registered_columns import find_maker
from seqrecord.loader.sampling.built_ins import BUILT_INS
from seqrecord.store.tables.table_places import sample_places
from seqrecord.store.text import repr_of

_STEPS: dict[str, Callable[..., Any]] = {"DepthToMeters": DepthToMeters} | {
    name: step
    for name, step in vars(transforms).items()
    if isinstance(step, type) and issubclass(step, CropStep) and not inspect.isabstract(step)
}

_WINDOWS: dict[str, Any] = {"at": At, "latest": Latest, "next": Next, "seconds": Seconds}
"""Classes by the key that has their first argument."""


def python_value(key: str, value: Any) -> Any:
    """Convert a key's value, of a file or already of Python. Raises `ClipError`."""
    convert = _CONVERTERS.get(key)
    return value if convert is None or value is None else convert(key, value)


def check_keys(problem: str, names: Collection[str], valid_names: Collection[str]) -> None:
    """Raise `ClipError` for an unknown name, with the known one that is a letter or two away, or
    with all; `repeat` for path would mislead.
    """
    for name in sorted(names):
        if name not in valid_names:
            near = difflib.get_close_matches(name, valid_names, 1, cutoff=0.75)
            expected = near[0] if near else ", ".join(sorted(valid_names))
            raise ClipError(problem, expected=expected, got=repr_of(name, 50))


def _windows(key: str, value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value  # refused by the loader
    return {feature: _window(f"{key} of {feature}", window) for feature, window in value.items()}


def _window(name: str, value: Any) -> Any:
    """A window: offsets, `{start, stop, step}`, `{at, …}`, `{seconds, …}`, `{latest, …}` or
    `{next, …}`.
    """
    if isinstance(value, list):
        return [_window(name, part) for part in value]
    if not isinstance(value, Mapping):
        return value
    for key, kind in _WINDOWS.items():
        if key in value:
            argument, options = value[key], {part: value[part] for part in value if part != key}
            if kind is not Seconds or not isinstance(argument, Mapping):  # no first, last and step
                argument = {next(iter(inspect.signature(kind).parameters)): _window(name, argument)}
            return _called(kind, name, {**argument, **options})
    check_keys(f"{name} has an unknown key", value, ("start", "stop", "step", *_WINDOWS))
    numbers: list[Any] = [value.get("start", 0), value.get("stop"), value.get("step", 1)]
    if any(type(part) is not int for part in numbers) or numbers[2] == 0:
        raise ClipError(
            f"{name} is not a range of frames",
            expected="integers start (default 0), stop (exclusive) and step (default 1)",
            got=repr_of(dict(value)),
        )
    return range(*numbers)


def _transform(key: str, value: Any) -> Any:
    """Steps: a list of `{RandomCrop: 224}`; or such lists by feature."""
    if isinstance(value, Mapping) and not any(name in _STEPS for name in value):
        return {
            feature: _transform(f"{key} of {feature}", steps) for feature, steps in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_step(key, steps) for steps in value]
    return _step(key, value)


def _step(key: str, value: Any, steps: Mapping[str, Callable[..., Any]] = _STEPS) -> Any:
    if not isinstance(value, (Mapping, str, list)):
        return value  # of Python
    if not isinstance(value, Mapping) or len(value) != 1:
        expected = f"one step, such as {next(iter(steps))}: 2, of {', '.join(steps)}"
        raise ClipError(f"{key} has an invalid step", expected=expected, got=repr_of(value, 100))
    check_keys(f"{key} has an unknown key", value, steps)
    ((name, argument),) = value.items()
    return _called(steps[name], name, argument)


def _engine(key: str, value: Any) -> Any:
    if isinstance(value, Mapping) and "trace" in value:  # a file must not choose files to write
        expected = "from_file(…, engine=EngineOptions(trace=…))"
        raise ClipError("trace is no key of a mix file", expected=expected, got=repr_of(value))
    return _made(EngineOptions, key, value)


def _samples(key: str, value: Any) -> Any:
    """The path of a table, functions as `{every: 4}`, or a list of both."""
    if isinstance(value, list):
        return [_samples(key, part) for part in value]
    is_table = not isinstance(value, Mapping) or bool(sample_places(value))
    return value if is_table else _step(key, value, BUILT_INS)


def _vectors(key: str, value: Any) -> Any:
    """Vectors by feature, or one for all features."""
    if not isinstance(value, Mapping) or any(isinstance(v, Vector) for v in value.values()):
        return value  # of Python
    if not any(isinstance(vector, Mapping) for vector in value.values()):
        return _made(Vector, key, value)
    return {name: _made(Vector, f"{key} of {name}", vector) for name, vector in value.items()}


def _columns(key: str, value: Any) -> Any:
    return _made(find_maker(key).values, key, value) if isinstance(value, Mapping) else value


def _made(make: Callable[..., Any], key: str, value: Any) -> Any:
    """A value of the package from a mapping with its arguments; others are of Python."""
    return _called(make, key, value) if isinstance(value, Mapping) else value


def _called(make: Callable[..., Any], name: str, argument: Any) -> Any:
    """The value of a class or function with these arguments: a mapping, or its only one."""
    parameters = inspect.signature(make).parameters
    options = dict(argument) if isinstance(argument, Mapping) else {}
    check_keys(f"{name} has an unknown key", options, parameters)
    values = [] if argument is None or isinstance(argument, Mapping) else [argument]
    for key, parameter in parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:  # a list of them
            argument = options.pop(key, argument)
            values = argument if isinstance(argument, list) else values
    try:
        return make(*values, **options)
    except TypeError:
        expected = f"values for {', '.join(parameters)}"
        raise ClipError(f"{name} lacks a value", expected=expected, got=repr_of(argument)) from None


_CONVERTERS: dict[str, Callable[[str, Any], Any]] = {
    "windows": _windows,
    "clip_transform": _transform,
    "engine": _engine,
    "samples": _samples,
    "vectors": _vectors,
    "batch_size": partial(_made, Budget),
    "frame_cache": partial(_made, FrameCache),
    "camera": _columns,
}
