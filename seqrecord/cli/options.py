"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from seqrecord.cli.terminal import Names, parse_storage_options

__all__ = ["AT_LEAST_1", "PICTURE", "common", "debug", "dots_per_inch", "feature_names"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

AT_LEAST_1 = click.IntRange(min=1)
PICTURE = "The picture: .png, .jpg, .webp, .svg or .pdf."

debug = click.option(
    "--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."
)
dots_per_inch = click.option(
    "--dpi",
    type=click.IntRange(10, 1200),
    default=150,
    show_default=True,
    help="Pixels an inch; a wide picture has 16 inches.",
)


def common(function: _Function) -> _Function:
    """The options of every command that opens a dataset."""
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
