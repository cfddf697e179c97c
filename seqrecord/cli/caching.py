"""The commands for the cache of remote datasets."""

from __future__ import annotations

import json

import click

from seqrecord.cli.options import debug
from seqrecord.storage import cache_info, clear_cache
from seqrecord.units import format_size

__all__ = ["cache"]


@click.group()
def cache() -> None:
    """Look into the cache of remote datasets, or empty it.

    DIR is what was given as `cache_dir`.
    """


@cache.command()
@click.argument("folder", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; sizes are in bytes.")
@debug
def info(folder: str, as_json: bool) -> None:
    """Print what a cache holds: of which datasets, how much, and when it was used."""
    found = cache_info(folder)
    click.echo(json.dumps(found.to_json(), indent=1) if as_json else str(found))


@cache.command()
@click.argument("folder", metavar="DIR")
@click.argument("location", metavar="[URL]", required=False)
@debug
def clear(folder: str, location: str | None) -> None:
    """Empty a cache, or drop what it holds of the dataset at URL."""
    size = clear_cache(folder, location)
    click.echo(f"{folder}: {format_size(size)} given back")
