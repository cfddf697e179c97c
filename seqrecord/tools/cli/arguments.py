"""Shared options, and parameter types of option values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import click

from seqrecord.store.feature_kinds import KINDS
from seqrecord.store.text import json_or_text
from seqrecord.store.units import parse_duration, parse_size

_Function = TypeVar("_Function", bound=Callable[..., Any])

_FEATURE = re.compile(r"[\w.-]*", re.ASCII)  # no `:` or `[`, which begin codec settings

ABOVE_0 = click.FloatRange(0, min_open=True)
AT_LEAST_1 = click.IntRange(min=1)


common = click.option(
    "--storage-option",
    "storage_options",
    metavar="KEY=VALUE",
    multiple=True,
    callback=lambda _ctx, _param, value: parse_options(value),
    help="Option of the filesystem that serves the URL (repeatable).",
)
"""Option of every command that opens a dataset."""

source_option = click.option(
    "--source-option",
    "source_options",
    metavar="NAME=VALUE",
    multiple=True,
    callback=lambda _ctx, _param, value: parse_options(value),
    help="Option of the format (repeatable).",
)


def feature_names(
    help_text: str, option: str = "--features", *, default: str = " [all]", required: bool = False
) -> Callable[[_Function], _Function]:
    """`--features A,B`; repeated options are one list, `None` without any."""
    return click.option(
        option,
        required=required,
        type=Parsed("names", _parse_names),
        metavar="A,B",
        multiple=True,
        callback=lambda _ctx, _param, lists: [name for names in lists for name in names] or None,
        help=f"{help_text} (repeatable){default}",
    )


def meanings(function: _Function) -> _Function:
    """`--kind FEATURE=KIND` and `--unit FEATURE=UNIT`, as `kinds` and `units` by feature."""
    kind = f"Kind of a feature (repeatable): {', '.join(KINDS)}."
    unit = "Unit of a feature (repeatable): m, mm, px, rad, ns, 1/5000 m, …"
    with_units = pairs("--unit", "units", "FEATURE=UNIT", unit)(function)
    return pairs("--kind", "kinds", "FEATURE=KIND", kind)(with_units)


def pairs(option: str, name: str, form: str, help_text: str) -> Callable[[_Function], _Function]:
    """A repeatable option of this `form`, `NAME=VALUE`, as a dict."""
    return click.option(
        *(option, name),
        multiple=True,
        metavar=form,
        callback=lambda _ctx, _param, values: parse_pairs(values, form),
        help=help_text,
    )


check_video = click.option("--check-video", is_flag=True, help="Decode all frames of video.")


def write_mode(function: Callable[..., None]) -> Callable[..., None]:
    """`--resume` and `--append`, as `mode`."""

    @wraps(function)
    def with_mode(*arguments: Any, resume: bool, append: bool, **options: Any) -> None:
        if resume and append:
            raise click.UsageError("--resume cannot be combined with --append")
        mode = "resume" if resume else "append" if append else "create"
        function(*arguments, mode=mode, **options)

    resume = click.option("--resume", is_flag=True, help="Continue an interrupted run.")
    append = click.option("--append", is_flag=True, help="Add episodes to an existing dataset.")
    return resume(append(with_mode))


def joins(function: Callable[..., None]) -> Callable[..., None]:
    """`--join PATH`, `--missing` and `--check`, as `joining`: arguments of `seqrecord.open`."""

    @wraps(function)
    def with_joining(
        *arguments: Any,
        join: tuple[str, ...],
        missing: str | None,
        check: str | None,
        **options: Any,
    ) -> None:
        settings = {"missing": missing, "check": check}
        joining = {name: value for name, value in settings.items() if value is not None}
        if joining and not join:
            raise click.UsageError(f"--{min(joining)} requires --join")
        function(*arguments, joining={"join": [*join], **joining} if join else {}, **options)

    return _JOIN(_MISSING(_CHECK(with_joining)))


_JOIN = click.option(
    "--join",
    multiple=True,
    metavar="PATH",
    help="Add the features of another dataset, or of a Parquet or Arrow table (repeatable).",
)
_MISSING = click.option(
    "--missing",
    type=click.Choice(["error", "drop", "pad"]),
    help="With --join: episodes without a partner. [error]",
)
_CHECK = click.option(
    "--check",
    type=click.Choice(["pages", "lengths"]),
    help="With --join: what partners have in common. [pages]",
)


def check_usage(*rules: tuple[object, ...]) -> None:
    """Raise `UsageError` with the message of the first rule whose other items are all true."""
    for message, *conditions in rules:
        if all(conditions):
            raise click.UsageError(str(message))


def is_given(context: click.Context, name: str) -> bool:
    """Whether the command line has this option."""
    return context.get_parameter_source(name) != click.core.ParameterSource.DEFAULT


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """Parameter type of a parse function; its `ValueError` becomes a usage error."""

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
"""Bytes: `1GiB`, `500MB` or a number."""

DURATION = Parsed("duration", parse_duration)
"""Seconds: `30m`, `12h`, `7d` or a number."""


def _parse_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError(f"{text!r} is not a list of names; write A,B,C")
    return names


def parse_codecs(
    values: Sequence[str], features: Callable[[], Sequence[str]]
) -> str | dict[str, Any] | None:
    """Parse repeated `--codec` options: one codec for all features, or codecs by feature.

    `features` returns the features without a codec of their own. It is called only if needed.
    """
    common_texts: list[str] = []
    named_texts: list[str] = []
    for value in values:
        name, equals, _ = value.partition("=")
        is_named = equals and _FEATURE.fullmatch(name)  # not jpeg:quality=90, or JSON
        (named_texts if is_named else common_texts).append(value)
    if len(common_texts) > 1:
        raise click.BadParameter(
            f"two codecs for all features: {' and '.join(common_texts)}; expected one"
        )
    common_codec = _parse_codec(common_texts[0]) if common_texts else None
    by_name = {
        n: _parse_codec(codec) for n, codec in parse_pairs(named_texts, "FEATURE=CODEC").items()
    }
    if not by_name and not isinstance(common_codec, list):
        return common_codec
    return {**dict.fromkeys(features() if common_texts else (), common_codec), **by_name}


def parse_pairs(
    values: Sequence[str], expected: str, *, are_secret: bool = False
) -> dict[str, str]:
    """Parse repeated `NAME=VALUE` options; `expected` is their form for errors."""
    texts: dict[str, str] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name:
            got = "" if are_secret else f", got {value!r}"
            raise click.BadParameter(f"expected {expected}{got}")
        if name in texts:
            raise click.BadParameter(f"two values for {name}; expected one")
        texts[name] = text
    return texts


def parse_sizes(values: Sequence[str]) -> tuple[int, int] | dict[str, tuple[int, int]] | None:
    """Parse repeated `FEATURE=HEIGHTxWIDTH` options, or `HEIGHTxWIDTH` for all images."""
    sizes: dict[str, tuple[int, int]] = {}
    for value in values:
        name, _, size = value.rpartition("=")
        sides = size.split("x")
        if len(sides) != 2 or not all(side.isdecimal() and int(side) for side in sides):
            raise click.BadParameter(
                f"expected FEATURE=HEIGHTxWIDTH, or HEIGHTxWIDTH, got {value!r}"
            )
        if name in sizes or (sizes and "" in (name, *sizes)):
            raise click.BadParameter(f"two sizes for {name or 'all images'}")
        sizes[name] = int(sides[0]), int(sides[1])
    return sizes.get("") or sizes or None


def _parse_codec(text: str) -> Any:
    if not text.startswith("["):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"the codec chain is not valid JSON: {error}") from error


def parse_options(values: Sequence[str]) -> dict[str, Any] | None:
    """Parse `KEY=VALUE` options. JSON numbers, `true`, `false` and `null` are converted."""
    options: dict[str, Any] = {}
    for key, text in parse_pairs(values, "KEY=VALUE", are_secret=True).items():
        parsed = json_or_text(text)
        options[key] = text if isinstance(parsed, (list, dict)) else parsed
    return options or None
