"""The commands that free space: the cache of remote datasets, and `clean`."""

from __future__ import annotations

import json
from typing import Any

import click

from seqrecord.storage import cache_info, clear_cache, parse_location
from seqrecord.text import counted
from seqrecord.tools.cli.arguments import Duration, common
from seqrecord.tools.cli.terminal import Group
from seqrecord.units import format_size
from seqrecord.writing.cleaning import clean as remove_old

__all__ = ["cache", "clean"]


@click.group(cls=Group)
def cache() -> None:
    """Show the cache of remote datasets, or empty it.

    DIR is what was given as `cache_dir`.
    """


@cache.command()
@click.argument("folder", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; sizes are in bytes.")
def info(folder: str, as_json: bool) -> None:
    """Print which datasets a cache holds, how many bytes of each, and when it was used."""
    found = cache_info(folder)
    click.echo(json.dumps(found.to_json(), indent=1) if as_json else str(found))


@cache.command()
@click.argument("folder", metavar="DIR")
@click.argument("location", metavar="[URL]", required=False)
def clear(folder: str, location: str | None) -> None:
    """Empty a cache, or remove what it holds of the dataset at URL."""
    size = clear_cache(folder, location)
    click.echo(f"{folder}: {format_size(size)} freed")


@click.command()
@click.argument("path")
@click.option(
    "--older-than",
    type=Duration(),
    default="7d",
    show_default=True,
    help="Keep files whose writer wrote anything since: 30m, 12h, 7d.",
)
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@common
def clean(
    path: str, older_than: float, dry_run: bool, storage_options: dict[str, Any] | None
) -> None:
    """Remove the files that interrupted writes left behind. No --resume can add them then."""
    removed = remove_old(
        path, older_than=older_than, dry_run=dry_run, storage_options=storage_options
    )
    for name in removed:
        click.echo(name)
    done = "would be removed" if dry_run else "removed"
    click.echo(f"{parse_location(path).shown}: {counted(len(removed), 'file')} {done}")
