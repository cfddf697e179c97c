"""`seqrecord clean`: what interrupted writers have left."""

from __future__ import annotations

from typing import Any

import click

from seqrecord.cleaning import clean as remove_old
from seqrecord.cli.options import common
from seqrecord.cli.terminal import Duration
from seqrecord.storage import parse_location
from seqrecord.wording import counted

__all__ = ["clean"]


@click.command()
@click.argument("path")
@click.option(
    "--older-than",
    type=Duration(),
    default="7d",
    show_default=True,
    help="Leave what its writer has touched since: 30m, 12h, 7d.",
)
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@common
def clean(
    path: str, older_than: float, dry_run: bool, storage_options: dict[str, Any] | None
) -> None:
    """Remove what interrupted writes have left and no --resume is to bring in."""
    removed = remove_old(
        path, older_than=older_than, dry_run=dry_run, storage_options=storage_options
    )
    for name in removed:
        click.echo(name)
    done = "would be removed" if dry_run else "removed"
    click.echo(f"{parse_location(path).shown}: {counted(len(removed), 'file')} {done}")
