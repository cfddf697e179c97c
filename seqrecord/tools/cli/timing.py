"""`seqrecord bench` times a loader."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from time import perf_counter
from typing import Any, TypeVar

import click

from seqrecord.errors import ClipError
from seqrecord.loader.pipes.options import EngineOptions, LoaderOptions, check_option
from seqrecord.store.reading.opening import dataset_of
from seqrecord.store.reading.opening import open as open_dataset
from seqrecord.tools.cli.arguments import (
    AT_LEAST_1,
    BYTE_SIZE,
    common,
    feature_names,
    joins,
    parse_pairs,
)
from seqrecord.tools.cli.terminal import Command, ProgressBar
from seqrecord.tools.profiler.bench import bench as run_bench

_Function = TypeVar("_Function", bound=Callable[..., Any])


def parse_arguments(values: Sequence[str]) -> dict[str, Any]:
    """Parse `NAME=VALUE` to arguments of a loader, as in a mix file."""
    if not values:
        return {}
    from seqrecord.recipes.mix_file import OF_PYTHON  # imports torch, which takes seconds
    from seqrecord.recipes.values import check_keys, python_value
    from seqrecord.recipes.yaml_file import yaml_value

    names = {field.name for field in fields(LoaderOptions)}.difference(OF_PYTHON)
    arguments: dict[str, Any] = {}
    for name, value in parse_pairs(values, "NAME=VALUE").items():
        try:
            check_keys("a loader has no such argument", [name], names)
            arguments[name] = check_option(name, python_value(name, yaml_value(value)))
        except ClipError as error:
            raise click.BadParameter(str(error)) from error
    return arguments


def loader_arguments(help_text: str) -> Callable[[_Function], _Function]:
    """`--loader NAME=VALUE`, as `arguments`."""
    return click.option(
        "--loader",
        "arguments",
        metavar="NAME=VALUE",
        multiple=True,
        callback=lambda _ctx, _param, values: parse_arguments(values),
        help=f"{help_text} (repeatable)",
    )


def with_loader_arguments(
    options: Mapping[str, Any], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options that are not `None`, and the arguments of `--loader`.

    Raises `UsageError` for a name in both.
    """
    values = {name: value for name, value in options.items() if value is not None}
    if repeated_names := sorted(values.keys() & arguments):
        raise click.UsageError(
            f"{repeated_names[0]} is given as an option and with --loader; expected once"
        )
    return {**values, **arguments}


@click.command(cls=Command)
@click.argument("path")
@click.option("--clip-len", type=AT_LEAST_1, help="Frames per clip. [16]")
@feature_names("Features to read.")
@click.option("--batch-size", type=AT_LEAST_1, help="Clips per batch. [4]")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", help="Batch device.")
@loader_arguments(
    "Another argument of the loader, as in mix files: stride=4, pad=edge, "
    "'windows={front: [-1, 0]}', 'resize=[224, 224]', 'engine={num_threads: 2}'."
)
@click.option(
    "--consumer-ms",
    type=click.FloatRange(min=0, max=1e6),
    default=0.0,
    help="Milliseconds of a simulated training step (sleep).",
)
@click.option("--max-batches", type=AT_LEAST_1, help="Stop after this many batches. [all]")
@click.option("--trace", metavar="FILE", help="Write a trace for https://ui.perfetto.dev.")
@click.option("--cache-dir", metavar="DIR", help="Cache reads of a remote dataset in DIR.")
@click.option("--cache-limit", type=BYTE_SIZE, help="Maximum size of the cache, such as 200GiB.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, in seconds and bytes.")
@click.option("--quiet", is_flag=True, help="Hide the progress bar.")
@joins
@common
def bench(
    path: str,
    arguments: dict[str, Any],
    device: str,
    consumer_ms: float,
    trace: str | None,
    cache_dir: str | None,
    cache_limit: int | None,
    as_json: bool,
    quiet: bool,
    joining: dict[str, Any],
    storage_options: dict[str, Any] | None,
    **options: Any,
) -> None:
    """Time a loader and name its bottleneck.

    Streams one epoch, prints the waiting time of steps and suggests the first setting to change.
    """
    options["device"] = None if device == "cpu" else device
    options = with_loader_arguments(options, arguments)
    if trace is not None:
        options["engine"] = replace(options.get("engine") or EngineOptions(), trace=trace)
    with ProgressBar("batches", speed=True, quiet=quiet) as bar:
        begin = perf_counter()
        opening: dict[str, Any] = {
            "storage_options": storage_options,
            "cache_dir": cache_dir,
            "cache_limit": cache_limit,
        }
        if joining:
            is_skipping = options.get("skip_bad_episodes", False)
            dataset = open_dataset(path, skip_bad_episodes=is_skipping, **opening, **joining)
        else:  # the loader checks the episodes that it selects
            dataset = dataset_of(path, **opening)
        open_seconds = perf_counter() - begin
        report = run_bench(
            dataset,
            consumer_seconds=consumer_ms / 1e3,
            progress=bar,
            **options,
        )
    report = replace(report, open_seconds=open_seconds + report.open_seconds)
    click.echo(json.dumps(report.to_json(), indent=1) if as_json else str(report))
