"""`seqrecord doctor`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from seqrecord.tools.cli.arguments import ABOVE_0, check_usage, common, is_given
from seqrecord.tools.cli.terminal import Command, ProgressBar
from seqrecord.tools.doctor.doctor import examine
from seqrecord.tools.doctor.quality import STILL, check_replaceable, measure


@click.command(cls=Command)
@click.argument("src")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON (at most 1,000 items of a kind and severity).",
)
@click.option(
    "--quality",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="In place of checks, rank episodes by quality, and write the numbers (Parquet).",
)
@click.option(
    "--still",
    type=ABOVE_0,
    default=STILL,
    show_default=True,
    metavar="X",
    help="With --quality: least movement of a step, in standard deviations.",
)
@click.option("--quiet", is_flag=True, help="Hide the progress bar.")
@common
@click.pass_context
def doctor(
    context: click.Context,
    src: str,
    as_json: bool,
    quality: Path | None,
    still: float,
    quiet: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Check a LeRobot dataset for problems, or measure the quality of any demonstrations.

    Compares the frame counts of index, tables and videos. Reports missing or unreferenced files,
    rows and frames, timestamps that drift or jump, distant keyframes, black or frozen cameras,
    wrong statistics, and skipped checks. Writes nothing. The exit code is 1 if there is an error, 0
    if there are only warnings.

    --quality measures each episode's vectors and times instead, of any original or dataset: length,
    share without motion, jerk, outliers, last pose, gaps in time, NaN. It reads no images, and
    judges nothing.
    """
    check_usage(("--still requires --quality", quality is None, is_given(context, "still")))
    if quality is not None:
        check_replaceable(quality)
        with ProgressBar("episodes", quiet=quiet) as bar:
            table = measure(src, still=still, progress=bar, storage_options=storage_options)
        table.write(quality)
        rows = [asdict(episode) for episode in table.episodes]
        click.echo(json.dumps(rows, indent=1) if as_json else str(table))
        return
    with ProgressBar("files", quiet=quiet) as bar:
        report = examine(src, progress=bar, storage_options=storage_options)
    click.echo(json.dumps(report.to_json(), indent=1) if as_json else str(report))
    context.exit(0 if report.ok else 1)
