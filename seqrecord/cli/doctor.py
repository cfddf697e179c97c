"""`seqrecord doctor`."""

from __future__ import annotations

import json
from typing import Any

import click

from seqrecord.cli.arguments import common
from seqrecord.cli.terminal import Command, ProgressBar
from seqrecord.indexing.doctor import examine


@click.command(cls=Command)
@click.argument("src")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (at most 1,000 items of a kind).")
@click.option("--quiet", is_flag=True, help="Hide the progress bar.")
@common
@click.pass_context
def doctor(
    context: click.Context,
    src: str,
    as_json: bool,
    quiet: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Check a LeRobot dataset for problems, or any other original for NaN and infinities.

    Compares the frame counts of index, tables and videos. Reports missing or unreferenced files,
    rows and frames, timestamps that drift or jump, distant keyframes, black or frozen cameras,
    wrong statistics, and skipped checks. Of other formats and of datasets, reports NaN and
    infinities in actions, states, poses and IMU values. Writes nothing. The exit code is 1 if there
    is an error, 0 if there are only warnings.
    """
    with ProgressBar("files", quiet=quiet) as bar:
        report = examine(src, progress=bar, storage_options=storage_options)
    click.echo(json.dumps(report.to_json(), indent=1) if as_json else str(report))
    context.exit(0 if report.ok else 1)
