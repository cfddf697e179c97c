"""`seqrecord doctor`."""

from __future__ import annotations

import json
from typing import Any

import click

from seqrecord.cli.arguments import common
from seqrecord.cli.terminal import ProgressBar
from seqrecord.indexing.doctor import examine


@click.command()
@click.argument("src")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with up to 1,000 of each kind.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@common
@click.pass_context
def doctor(
    context: click.Context,
    src: str,
    as_json: bool,
    quiet: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Check an original LeRobot dataset; exit with 1 if there is an error, and 0 for warnings.

    Counts frames by index, table and video, and looks for files, rows and frames that are missing
    or in no episode, timestamps that drift or jump, keyframes far apart, black or frozen cameras,
    and statistics that are not those of the rows. Lists the checks that were skipped. Nothing is
    written.
    """
    with ProgressBar("files", quiet=quiet) as bar:
        report = examine(
            src,
            progress=lambda at: bar.show(at.files, at.total_files, ""),
            storage_options=storage_options,
        )
    click.echo(json.dumps(report.to_json(), indent=1) if as_json else str(report))
    context.exit(0 if report.ok else 1)
