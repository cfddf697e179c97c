"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from seqrecord.cli.terminal import Names, parse_storage_options

__all__ = ["AT_LEAST_1", "common", "feature_names"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

AT_LEAST_1 = click.IntRange(min=1)


def common(function: _Function) -> _Function:
    """The options that every command has."""
    debug = click.option(
        "--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."
    )
    storage = click.option(
        "--storage-option",
        "storage_options",
        metavar="KEY=VALUE",
        multiple=True,
        callback=lambda _ctx, _param, value: parse_storage_options(value),
        help="For the filesystem that serves the URL; can be repeated.",
    )
    return storage(debug(function))


def feature_names(help_text: str) -> Callable[[_Function], _Function]:
    """`--features A,B`."""
    return click.option("--features", type=Names(), metavar="A,B", help=f"{help_text} [all]")
