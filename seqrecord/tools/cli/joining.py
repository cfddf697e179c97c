"""Options of commands that read joined datasets: `--join`, `--missing` and `--check`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import click

from seqrecord.store.reading.dataset import DatasetLike
from seqrecord.store.reading.opening import open as open_dataset

_Function = TypeVar("_Function", bound=Callable[..., Any])


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


@contextmanager
def opened_joined(
    path: str,
    joining: Mapping[str, Any],
    storage_options: Mapping[str, Any] | None,
    *,
    features: Sequence[str] | None = None,
) -> Iterator[tuple[DatasetLike, dict[str, Any]]]:
    """Provide a dataset with its companions, or the path if `joining` is empty.

    Also the arguments for a function that takes either: `storage_options` for a path.
    """
    if not joining:
        yield path, {"storage_options": storage_options}
        return
    with open_dataset(
        path,
        features=features,
        storage_options=storage_options,
        skip_bad_episodes=True,
        **joining,
    ) as dataset:
        yield dataset, {}


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
