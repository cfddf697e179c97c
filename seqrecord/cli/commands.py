"""`seqrecord info` and `verify`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from seqrecord.cli.arguments import AT_LEAST_1, common, feature_names
from seqrecord.cli.terminal import ProgressBar
from seqrecord.clips.tables import ClipSpec
from seqrecord.indexing.opening import open_unchecked
from seqrecord.indexing.opening import verify as verify_dataset
from seqrecord.reading.dataset import Dataset
from seqrecord.reading.filters import EpisodeFilter
from seqrecord.reading.summary import (
    EpisodeSummary,
    Summary,
    list_episodes,
    listing_lines,
    summarize,
    summarize_episode,
)
from seqrecord.reading.verify import VerifyProgress
from seqrecord.reading.versions import list_versions
from seqrecord.text import one_line


@click.command()
@click.argument("path")
@click.argument("key", required=False)
@click.option(
    "--episodes",
    is_flag=True,
    help="List the episodes, one line each; with a glob for KEY, those that match.",
)
@click.option("--versions", is_flag=True, help="List the dataset's versions, newest first.")
@click.option("--clip-len", type=AT_LEAST_1, help="Count clips of so many frames.")
@click.option("--stride", type=AT_LEAST_1, help="Frames from one clip's start to the next. [1]")
@click.option("--dilation", type=AT_LEAST_1, help="Frames from one to the next in a clip. [1]")
@feature_names("Names of the features that are shown, and that clips must have.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; sizes are in bytes.")
@common
def info(
    path: str,
    key: str | None,
    episodes: bool,
    versions: bool,
    clip_len: int | None,
    stride: int | None,
    dilation: int | None,
    features: list[str] | None,
    as_json: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Print what a dataset holds: features, codecs, sizes, episodes, frames, clips.

    With KEY, what this episode holds: its frames, features, missing frames and metadata. With a
    glob for KEY (`'*/Easy/*'`), or with --episodes, a list of episodes and their metadata.
    With --versions, what can be opened by `seqrecord.open(PATH, version=…)`.
    """
    if versions:
        if key or episodes or clip_len or features:
            raise click.UsageError("--versions goes with no other choice of what is shown")
        found = list_versions(path, storage_options=storage_options)
        rows = [version.to_json() for version in found]
        click.echo(json.dumps(rows, indent=1) if as_json else "\n".join(map(str, found)))
        return
    if clip_len is None and (stride or dilation):
        raise click.UsageError("--stride and --dilation need --clip-len")
    clip = None
    if clip_len is not None:
        clip = ClipSpec(clip_len, stride=stride or 1, dilation=dilation or 1)
    with open_unchecked(path, features=features, storage_options=storage_options) as dataset:
        is_key = key is not None and key in dataset.contents.index.positions
        if episodes or (key is not None and not is_key and set(key) & set("*?[")):
            make_lines = _json_lines if as_json else listing_lines
            for line in make_lines(dataset, [key] if key and is_key else key, clip=clip):
                click.echo(line)
            return
        summary: Summary | EpisodeSummary
        if key is None:
            summary = summarize(dataset, clip=clip)
        else:
            summary = summarize_episode(dataset, key, clip=clip)
    click.echo(json.dumps(summary.to_json(), indent=1) if as_json else str(summary))


def _json_lines(
    dataset: Dataset, episodes: EpisodeFilter, *, clip: ClipSpec | None
) -> Iterator[str]:
    """A JSON array, made while it is printed: there may be many episodes."""
    before = "["
    for row in list_episodes(dataset, episodes, clip=clip):
        yield before + json.dumps(row.to_json())
        before = ","
    yield "]"


@click.command()
@click.argument("path")
@click.option("--deep", is_flag=True, help="Decode every frame of every feature as well.")
@click.option("--threads", type=AT_LEAST_1, help="Threads. [one for each core]")
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
@common
@click.pass_context
def verify(
    context: click.Context,
    path: str,
    deep: bool,
    threads: int | None,
    quiet: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Check a dataset: files, checksums of all pages, and whether index and record files agree.

    Prints a line for each problem, and the checks that were skipped; exits with 1 if there is a
    problem.
    """
    with ProgressBar("bytes", scale=True, quiet=quiet) as bar:

        def show(progress: VerifyProgress) -> None:
            done = progress.page_bytes
            bar.show(done, progress.total_bytes, bar.speed(done))

        report = verify_dataset(
            path, deep=deep, num_threads=threads, progress=show, storage_options=storage_options
        )
    for problem in report.problems:
        click.echo(f"{type(problem).__name__}: {one_line(problem)}")
    if not quiet:
        for note in report.notes:
            click.echo(f"note: {note}")
        click.echo(str(report))
    context.exit(0 if report.ok else 1)
