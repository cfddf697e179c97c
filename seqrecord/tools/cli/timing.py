"""`seqrecord bench`: where the time goes."""

from __future__ import annotations

import json
from dataclasses import replace
from time import perf_counter
from typing import Any

import click

from seqrecord.indexing.opening import open_dataset
from seqrecord.pipes.options import EngineOptions
from seqrecord.tools.bench import bench as run_bench
from seqrecord.tools.cli.arguments import (
    AT_LEAST_1,
    ByteSize,
    common,
    feature_names,
)
from seqrecord.tools.cli.terminal import ProgressBar

__all__ = ["bench"]


@click.command()
@click.argument("path")
@click.option("--clip-len", type=AT_LEAST_1, default=16, help="Frames of a clip.")
@click.option(
    "--stride", type=AT_LEAST_1, default=1, help="Frames from one clip's start to the next."
)
@click.option(
    "--dilation", type=AT_LEAST_1, default=1, help="Frames from one to the next in a clip."
)
@feature_names("Names of the features to read.")
@click.option("--batch-size", type=AT_LEAST_1, default=4, help="Clips of a batch.")
@click.option(
    "--memory-limit",
    type=ByteSize(),
    help="For frames, batches and reads in flight. [2 GiB, or what mixes batches well]",
)
@click.option("--no-shuffle", is_flag=True, help="Read episodes front to back.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of the order.")
@click.option("--threads", "num_threads", type=AT_LEAST_1, help="Threads. [one for each core]")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu")
@click.option(
    "--consumer-ms",
    type=click.FloatRange(min=0, max=1e6),
    default=0.0,
    help="How long a training step takes; bench sleeps for it.",
)
@click.option("--max-batches", type=AT_LEAST_1, help="Stop after so many. [the whole epoch]")
@click.option(
    "--trace", metavar="FILE", help="Write a timeline, which `seqrecord trace` and Perfetto show."
)
@click.option("--cache-dir", metavar="DIR", help="Keep what is read from a remote dataset in DIR.")
@click.option("--cache-limit", type=ByteSize(), help="The most that DIR may hold, such as 200GiB.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: seconds and bytes.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@common
def bench(
    path: str,
    batch_size: int,
    no_shuffle: bool,
    num_threads: int | None,
    device: str,
    consumer_ms: float,
    trace: str | None,
    cache_dir: str | None,
    cache_limit: int | None,
    as_json: bool,
    quiet: bool,
    storage_options: dict[str, Any] | None,
    **options: Any,
) -> None:
    """Stream an epoch, print what each step waits for, and what to change first."""
    with ProgressBar("batches", quiet=quiet) as bar:

        def show(done: int, total: int) -> None:
            bar.show(done, total, f"{done * batch_size / max(bar.seconds, 1e-3):.0f} clips/s")

        begin = perf_counter()
        dataset = open_dataset(
            path, storage_options=storage_options, cache_dir=cache_dir, cache_limit=cache_limit
        )
        opened = perf_counter() - begin
        report = run_bench(
            dataset,
            batch_size=batch_size,
            shuffle=not no_shuffle,
            device=None if device == "cpu" else device,
            consumer_seconds=consumer_ms / 1e3,
            progress=show,
            engine=EngineOptions(num_threads=num_threads, trace=trace),
            **options,
        )
    report = replace(report, open_seconds=opened + report.open_seconds)
    click.echo(json.dumps(report.to_json(), indent=1) if as_json else str(report))
