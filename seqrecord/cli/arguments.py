"""Options that several commands have, and the types of what follows an option."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import click

from seqrecord.feature_kinds import KINDS
from seqrecord.units import parse_duration, parse_size

_Function = TypeVar("_Function", bound=Callable[..., Any])

_FEATURE = re.compile(r"[\w.-]*", re.ASCII)  # no character that tells a codec from a name

AT_LEAST_1 = click.IntRange(min=1)


common = click.option(
    "--storage-option",
    "storage_options",
    metavar="KEY=VALUE",
    multiple=True,
    callback=lambda _ctx, _param, value: parse_options(value),
    help="For the filesystem that serves the URL; can be repeated.",
)
"""What every command has that opens a dataset."""


def feature_names(help_text: str) -> Callable[[_Function], _Function]:
    """`--features A,B`."""
    return click.option(
        "--features", type=Parsed("names", _parse_names), metavar="A,B", help=f"{help_text} [all]"
    )


def meanings(function: _Function) -> _Function:
    """`--kind FEATURE=KIND` and `--unit FEATURE=UNIT`, as `kinds` and `units`."""
    kind = click.option(
        "--kind",
        "kinds",
        multiple=True,
        metavar="FEATURE=KIND",
        help=f"The kind of a feature: {', '.join(KINDS)}; can be repeated.",
    )
    unit = click.option(
        "--unit",
        "units",
        multiple=True,
        metavar="FEATURE=UNIT",
        help="The unit of a feature, such as m, mm, px, rad, ns or 1/5000 m; can be repeated.",
    )
    return kind(unit(function))


def write_mode(function: Callable[..., None]) -> Callable[..., None]:
    """`--resume` and `--append`, as `mode`."""

    @wraps(function)
    def with_mode(*arguments: Any, resume: bool, append: bool, **options: Any) -> None:
        if resume and append:
            raise click.UsageError("--resume and --append exclude each other")
        mode = "resume" if resume else "append" if append else "create"
        function(*arguments, mode=mode, **options)

    resume = click.option("--resume", is_flag=True, help="Continue after an interruption.")
    append = click.option("--append", is_flag=True, help="Add episodes to the dataset in --dst.")
    return resume(append(with_mode))


def is_given(context: click.Context, name: str) -> bool:
    """Whether somebody has written this option."""
    return context.get_parameter_source(name) != click.core.ParameterSource.DEFAULT


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """An option that a function parses; its `ValueError` is a wrong use."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


BYTE_SIZE = Parsed("size", parse_size)
"""`1GiB`, `500MB`, or a number of bytes."""

DURATION = Parsed("duration", parse_duration)
"""`30m`, `12h`, `7d`, or a number of seconds."""


def _parse_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError(f"not a list of names: {text!r}; write a,b,c")
    return names


def _parse_range(text: str) -> slice:
    try:
        numbers = [int(part) if part else None for part in text.split(":")]
        if len(numbers) in (2, 3) and numbers[2:] != [0]:
            return slice(*numbers)
    except ValueError:
        pass
    raise ValueError(f"not a range of frames: {text!r}; write START:STOP or START:STOP:STEP")


FRAME_RANGE = Parsed("range", _parse_range)
"""`START:STOP` or `START:STOP:STEP`, as Python's slices."""


def parse_codecs(
    values: Sequence[str], features: Callable[[], Sequence[str]]
) -> str | dict[str, Any] | None:
    """What repeated `--codec` options ask for: codecs by feature, beside one for all others.

    `features` tells which others there are; it is called only where that matters.
    """
    bare: list[str] = []
    named: dict[str, Any] = {}
    for value in values:
        name, equals, codec = value.partition("=")
        if not equals or not _FEATURE.fullmatch(name):  # jpeg:quality=90, or JSON
            bare.append(value)
        elif name in named:
            raise click.BadParameter(f"two codecs for {name}")
        else:
            named[name] = _parse_codec(codec)
    if len(bare) > 1:
        raise click.BadParameter(f"two codecs for all features: {' and '.join(bare)}")
    others = _parse_codec(bare[0]) if bare else None
    if not named and not isinstance(others, list):
        return others
    return {**dict.fromkeys(features() if bare else (), others), **named}


def parse_by_feature(values: Sequence[str], what: str) -> dict[str, str] | None:
    """Repeated options `FEATURE=WHAT` by feature; `None` without any."""
    found: dict[str, str] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name or (what == "PATH" and not text):
            raise click.BadParameter(f"not FEATURE={what}: {value!r}")
        if name in found:
            raise click.BadParameter(f"two {what.lower()}s for {name}")
        found[name] = text
    return found or None


def _parse_codec(text: str) -> Any:
    if not text.startswith("["):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"a codec chain that is not JSON: {error}") from error


def parse_options(values: Sequence[str]) -> dict[str, Any] | None:
    """`KEY=VALUE` options; a value that is a JSON number, `true`, `false` or `null` is that."""
    options: dict[str, Any] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise click.BadParameter("not KEY=VALUE")  # not shown: it may be a secret
        if key in options:
            raise click.BadParameter(f"two values for {key}")
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = text
        options[key] = text if isinstance(parsed, (list, dict)) else parsed
    return options or None
