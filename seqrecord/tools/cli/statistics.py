"""`seqrecord stats`: what the features' numbers are like."""

from __future__ import annotations

import json
from typing import Any

import click

from seqrecord.reading.reader import open_dataset
from seqrecord.reading.statistics import StatisticsProgress, compute_statistics
from seqrecord.statistics import num_channels
from seqrecord.tools.cli.arguments import AT_LEAST_1, common
from seqrecord.tools.cli.terminal import ProgressBar
from seqrecord.writing.statistics import add_statistics

__all__ = ["stats"]


@click.command()
@click.argument("path")
@click.option("--recompute", is_flag=True, help="Compute them anew where the dataset has some.")
@click.option(
    "--max-frames", type=AT_LEAST_1, help="Look at about so many frames of each feature. [all]"
)
@click.option("--threads", type=AT_LEAST_1, help="Threads. [one for each core]")
@click.option("--dry-run", is_flag=True, help="Print them, and leave the dataset as it is.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@common
def stats(
    path: str,
    recompute: bool,
    max_frames: int | None,
    threads: int | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Print mean, deviation, extremes and quantiles of each feature and channel.

    A dataset that has none gets them: then all its frames are read once.
    """
    with open_dataset(path, storage_options=storage_options) as dataset:
        schema, found = dataset.features, dataset.statistics
        computes = recompute or found.lacking is not None
        if max_frames is not None and not computes:
            raise click.UsageError(
                "--max-frames says how statistics are computed, and the dataset has some; "
                "--recompute computes them anew"
            )
        if computes:
            with ProgressBar("frames", quiet=quiet) as bar:

                def show(progress: StatisticsProgress) -> None:
                    bar.show(progress.frames, progress.total_frames, "")

                if dry_run:
                    found = compute_statistics(
                        dataset, max_frames=max_frames, num_threads=threads, progress=show
                    )
                else:
                    found = add_statistics(
                        path,
                        max_frames=max_frames,
                        num_threads=threads,
                        progress=show,
                        storage_options=storage_options,
                    )
    click.echo(json.dumps(found.summary(), indent=1) if as_json else str(found))
    lacking = [n for n, spec in schema.items() if n not in found and num_channels(spec) is not None]
    if lacking:
        click.echo(f"no statistics of {', '.join(lacking)}; --recompute reads them", err=True)
