"""The commands that keep datasets in order: `cache`, `clean`, `split` and `stats`."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import click

from seqrecord.cli.arguments import AT_LEAST_1, DURATION, common, is_given
from seqrecord.cli.terminal import Group, ProgressBar
from seqrecord.edit import clean as remove_old
from seqrecord.edit import rewrite_files, split_dataset
from seqrecord.edit.cleaning import MIN_UNUSED
from seqrecord.format.manifest import KEPT_VERSIONS
from seqrecord.indexing.opening import open as open_dataset
from seqrecord.storage import cache_info, clear_cache, parse_location
from seqrecord.text import counted
from seqrecord.units import format_size
from seqrecord.writing.stored_statistics import add_statistics


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
    type=DURATION,
    default="7d",
    help="Keep files whose writer wrote anything since: 30m, 12h, 7d.",
)
@click.option(
    "--keep-versions",
    type=click.IntRange(0, KEPT_VERSIONS),
    default=0,
    metavar="N",
    help="Keep what the last N earlier versions need.",
)
@click.option(
    "--min-unused",
    type=click.FloatRange(0, 1, min_open=True),
    default=MIN_UNUSED,
    metavar="SHARE",
    help="Rewrite record files of which at least this share of the bytes was deleted.",
)
@click.option("--no-rewrite", is_flag=True, help="Rewrite none: only remove files.")
@click.option("--dry-run", is_flag=True, help="Only list what would be removed and rewritten.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@common
@click.pass_context
def clean(
    context: click.Context,
    /,
    path: str,
    older_than: float,
    keep_versions: int,
    min_unused: float,
    no_rewrite: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Free what a dataset does not need: leftovers, and bytes of what was deleted.

    Removes files that interrupted writes left behind (no --resume can add them then), and record
    files that the dataset had until so long ago, unless --keep-versions keeps them. Copies what
    lives in record files of which much was deleted or dropped into new ones; the old ones are
    removed when they are old enough. The lists of files to which an index refers (externals/) stay.
    """
    if no_rewrite and is_given(context, "min_unused"):
        raise click.UsageError("--min-unused says what is rewritten, and --no-rewrite nothing")
    would = "would be " if options["dry_run"] else ""
    shown = parse_location(path).shown
    remove = partial(
        remove_old, path, older_than=older_than, keep_versions=keep_versions, **options
    )
    removed = remove()
    report = None
    if not no_rewrite:
        with ProgressBar("bytes", scale=True, quiet=quiet) as bar:
            report = rewrite_files(path, min_unused=min_unused, progress=bar.show_copied, **options)
    if report is not None and report.rewritten and not options["dry_run"]:
        removed += remove()
    for name in removed:
        click.echo(name)
    if report is not None and report.rewritten:
        count = counted(len(report.rewritten), "record file")
        click.echo(
            f"{shown}: {count} {would}rewritten: {format_size(report.copied_bytes)} copied, "
            f"{format_size(report.freed_bytes)} freed when the old ones are removed"
        )
    click.echo(f"{shown}: {counted(len(removed), 'file')} {would}removed")


@click.command()
@click.argument("path")
@click.argument("shares", metavar="NAME=SHARE…", nargs=-1, required=True)
@click.option(
    "--by",
    default="episode",
    metavar="episode|ENTRY",
    help="Draw each episode, or all together whose metadata is equal in this entry.",
)
@click.option("--seed", type=int, default=0, help="Of what is drawn.")
@click.option(
    "--reassign", is_flag=True, help="Draw also episodes that are in one of these splits."
)
@common
def split(path: str, shares: tuple[str, ...], **options: Any) -> None:
    """Name splits of a dataset: train=0.9 val=0.1. Episodes that are in one of them stay there."""
    wanted = {}
    for text in shares:
        name, _, share = text.partition("=")
        if name in wanted:
            raise click.UsageError(f"two shares for {name}")
        try:
            wanted[name] = float(share)
        except ValueError:
            raise click.UsageError(f"not a share: {text!r}; write train=0.9") from None
    found = split_dataset(path, wanted, **options)
    said = ", ".join(f"{name} {counted(count, 'episode')}" for name, count in found.items())
    click.echo(f"{parse_location(path).shown}: {said}")


@click.command()
@click.argument("path")
@click.option("--recompute", is_flag=True, help="Compute them anew where the dataset has some.")
@click.option(
    "--max-frames", type=AT_LEAST_1, help="Look at about so many frames of each feature. [all]"
)
@click.option("--threads", "num_threads", type=AT_LEAST_1, help="Threads. [one for each core]")
@click.option("--split", metavar="NAME", help="Of the episodes of this split alone.")
@click.option("--dry-run", is_flag=True, help="Print them, and leave the dataset as it is.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
@common
def stats(
    path: str,
    recompute: bool,
    split: str | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    storage_options: dict[str, Any] | None,
    **options: Any,
) -> None:
    """Print mean, deviation, extremes and quantiles of each feature and channel.

    A dataset that has none gets them: then all its frames are read once. Those of a split are read
    each time, and not kept.
    """
    with open_dataset(path, storage_options=storage_options) as dataset:
        schema, found = dataset.features, dataset.statistics
        computes = recompute or found.lacking is not None or split is not None
        if options["max_frames"] is not None and not computes:
            raise click.UsageError(
                "--max-frames says how statistics are computed, and the dataset has some; "
                "--recompute computes them anew"
            )
        if computes:
            with ProgressBar("frames", quiet=quiet) as bar:
                options["progress"] = bar.show_frames
                if dry_run or split is not None:
                    found = dataset.compute_statistics(split=split, **options)
                else:
                    found = add_statistics(path, storage_options=storage_options, **options)
    click.echo(json.dumps(found.summary(), indent=1) if as_json else str(found))
    if missing := found.missing(schema):
        click.echo(f"no statistics of {', '.join(missing)}; --recompute reads them", err=True)
