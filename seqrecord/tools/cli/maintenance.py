"""Maintenance commands: `seqrecord clean`, `split` and `stats`."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import click

from seqrecord.edit import clean as remove_old
from seqrecord.edit import rewrite_files, split_dataset
from seqrecord.store.format.manifest import KEPT_VERSIONS
from seqrecord.store.reading.opening import open as open_dataset
from seqrecord.store.storage.url import parse_location
from seqrecord.store.text import counted
from seqrecord.store.units import format_size
from seqrecord.store.writing.stored_statistics import add_statistics
from seqrecord.tools.cli.arguments import DURATION, common, is_given, joins, parse_pairs
from seqrecord.tools.cli.terminal import Command, ProgressBar
from seqrecord.tools.edit.cleaning import MIN_UNUSED


@click.command(cls=Command)
@click.argument("path")
@click.option(
    "--older-than",
    type=DURATION,
    default="7d",
    help="Delete only files whose writer has been idle this long: 30m, 12h, 7d.",
)
@click.option(
    "--keep-versions",
    type=click.IntRange(0, KEPT_VERSIONS),
    default=0,
    metavar="N",
    help="Keep the files of the last N earlier versions.",
)
@click.option(
    "--min-unused",
    type=click.FloatRange(0, 1, min_open=True),
    default=MIN_UNUSED,
    metavar="SHARE",
    help="Rewrite record files with at least this share of deleted bytes.",
)
@click.option("--no-rewrite", is_flag=True, help="Delete files only.")
@click.option("--dry-run", is_flag=True, help="List the files without deleting or rewriting them.")
@click.option("--quiet", is_flag=True, help="Hide the progress bar.")
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
    """Delete unused files and reclaim space.

    Deletes the files of interrupted writes, which --resume can then no longer continue, and record
    files used only by old versions (see --keep-versions). Rewrites record files with
    many deleted bytes; a later run deletes the old ones, once they are older than --older-than.
    Keeps an index's lists of external files (externals/).
    """
    if no_rewrite and is_given(context, "min_unused"):
        raise click.UsageError("--min-unused has no effect with --no-rewrite")
    would = "would be " if options["dry_run"] else ""
    url = parse_location(path).shown
    remove = partial(
        remove_old, path, older_than=older_than, keep_versions=keep_versions, **options
    )
    removed = remove()
    report = None
    if not no_rewrite:
        with ProgressBar("bytes", scale=True, quiet=quiet) as bar:
            report = rewrite_files(path, min_unused=min_unused, progress=bar, **options)
    if report is not None and report.rewritten and not options["dry_run"]:
        removed += remove()
    for name in removed:
        click.echo(name)
    if report is not None and report.rewritten:
        count = counted(len(report.rewritten), "record file")
        click.echo(
            f"{url}: {count} {would}rewritten: {format_size(report.copied_bytes)} copied, "
            f"{format_size(report.freed_bytes)} to be freed by deleting the old ones"
        )
    click.echo(f"{url}: {counted(len(removed), 'file')} {would}removed")


@click.command(cls=Command)
@click.argument("path")
@click.argument("shares", metavar="NAME=SHARE…", nargs=-1, required=True)
@click.option(
    "--by",
    default="episode",
    metavar="episode|ENTRY",
    help="Keep episodes together that have the same value of this metadata entry.",
)
@click.option("--seed", type=int, default=0, help="Seed of the random assignment.")
@common
def split(path: str, shares: tuple[str, ...], **options: Any) -> None:
    """Assign episodes to splits at random.

    Episodes of these splits keep their split; `seqrecord edit split` removes them from it.
    Example: seqrecord split records/ train=0.9 val=0.1
    """
    texts = parse_pairs(shares, form := "NAME=SHARE such as train=0.9")
    try:
        fractions = {name: float(share) for name, share in texts.items()}
    except ValueError as error:
        raise click.UsageError(f"expected {form}: {error}") from None
    split_sizes = split_dataset(path, fractions, **options)
    counts = ", ".join(f"{name} {counted(count, 'episode')}" for name, count in split_sizes.items())
    click.echo(f"{parse_location(path).shown}: {counts}")


@click.command(cls=Command)
@click.argument("path")
@click.option("--recompute", is_flag=True, help="Compute the statistics again.")
@click.option("--split", metavar="NAME", help="Compute statistics of this split.")
@click.option("--dry-run", is_flag=True, help="Print without storing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--quiet", is_flag=True, help="Hide the progress bar.")
@joins
@common
def stats(
    path: str,
    recompute: bool,
    split: str | None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    joining: dict[str, Any],
    storage_options: dict[str, Any] | None,
) -> None:
    """Print or compute statistics of features.

    Prints mean, standard deviation, minimum, maximum and quantiles of each feature and channel.
    Computes and stores them if the dataset has none, which reads all frames once. Statistics of a
    split, and of frames that lack them in a dataset of --join, are computed each time and
    not stored.
    """
    with open_dataset(path, storage_options=storage_options, **joining) as dataset:
        schema, statistics = dataset.features, dataset.statistics
        computes = recompute or statistics.lacking is not None or split is not None
        computes |= bool(joining and statistics.missing(schema))
        if computes:
            with ProgressBar("frames", quiet=quiet) as bar:
                if dry_run or split is not None or joining:
                    statistics = dataset.compute_statistics(split=split, progress=bar)
                else:
                    statistics = add_statistics(path, progress=bar, storage_options=storage_options)
    click.echo(json.dumps(statistics.summary(), indent=1) if as_json else str(statistics))
    if lacking_features := statistics.missing(schema):
        click.echo(f"no statistics of {', '.join(lacking_features)}; use --recompute", err=True)
