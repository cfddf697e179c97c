"""The command line: each command calls one public function and prints what it says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from seqrecord.clips import ClipSpec
from seqrecord.codecs import CODEC_NAMES
from seqrecord.format import MAX_CHUNK_FRAMES
from seqrecord.format.manifest import Manifest
from seqrecord.reading.episode_summary import (
    EpisodeSummary,
    list_episodes,
    listing_lines,
    summarize_episode,
)
from seqrecord.reading.filters import EpisodeFilter
from seqrecord.reading.reader import SeqRecordReader, open_dataset
from seqrecord.reading.summary import Summary, summarize
from seqrecord.reading.verification import VerifyProgress
from seqrecord.reading.verification import verify as verify_dataset
from seqrecord.sources import CAMERAS, open_source
from seqrecord.sources.registry import BUILT_IN
from seqrecord.sources.remote import is_url
from seqrecord.storage import parse_location
from seqrecord.text import counted, one_line
from seqrecord.tools.cli.arguments import (
    AT_LEAST_1,
    ByteSize,
    common,
    feature_names,
    parse_codecs,
    parse_map,
    parse_options,
)
from seqrecord.tools.cli.editing import edit, merge
from seqrecord.tools.cli.exporting import export
from seqrecord.tools.cli.pictures import trace, view
from seqrecord.tools.cli.statistics import stats
from seqrecord.tools.cli.terminal import PROGRAM, Commands, Interrupted, ProgressBar
from seqrecord.tools.cli.timing import bench
from seqrecord.tools.cli.upkeep import cache, clean, split
from seqrecord.units import format_size
from seqrecord.version import CREATED_BY, __version__
from seqrecord.writing.commits import reindex as rebuild
from seqrecord.writing.convert import ConvertReport, Progress, convert
from seqrecord.writing.destination import WriteMode

__all__ = ["main"]


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def main(context: click.Context) -> None:
    """Store multi-modal recordings once and stream shuffled clips of them into PyTorch.

    Datasets are folders or URLs: s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH,
    https://ACCOUNT.blob.core.windows.net/…, and any other URL that fsspec knows.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@main.command()
@click.option(
    "--src",
    required=True,
    metavar="PATH",
    help="The originals, of any format of --format: a folder, or a file that holds them; or a URL, "
    "to which --storage-option applies as well.",
)
@click.option(
    "--format",
    "source_format",
    metavar="NAME",
    help=f"The originals' format: {', '.join(each.name for each in BUILT_IN)}, or one that another "
    "package adds. [the one that fits]",
)
@click.option("--dst", metavar="PATH", help="The dataset. [--src's name with -records, beside it]")
@click.option(
    "--codec",
    "codecs",
    multiple=True,
    metavar="CODEC|FEATURE=CODEC",
    help=f"One of {', '.join(CODEC_NAMES)}, jpeg:quality=90, or a list of codec configurations in "
    "JSON; for all features or for one; can be repeated. [balanced]",
)
@click.option("--workers", type=AT_LEAST_1, help="Processes. [one for each core]")
@click.option(
    "--executor",
    metavar="URL",
    help="A cluster that packs: dask://HOST:PORT or ray://HOST:PORT. Its workers read --src and "
    "write --dst under the same names. [processes of this machine]",
)
@click.option("--resume", is_flag=True, help="Continue an interrupted write.")
@click.option("--append", is_flag=True, help="Add the episodes that the dataset does not have yet.")
@feature_names("Names of the features to pack.")
@click.option(
    "--cameras", type=click.Choice([*CAMERAS, "both"]), help="TartanAir's cameras. [both]"
)
@click.option(
    "--difficulty", type=click.Choice(["Easy", "Hard"]), help="TartanAir's difficulty. [both]"
)
@click.option(
    "--map",
    "places",
    multiple=True,
    metavar="FEATURE=PATH",
    help="Where a feature lies inside the original files, as image=/observations/images/front; can "
    "be repeated. Other features are left out.",
)
@click.option(
    "--source-option",
    "source_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="For the format, if it takes more options; can be repeated.",
)
@click.option("--keep-encoded", is_flag=True, help="Store PNG and JPEG images as they are.")
@click.option(
    "--skip-bad-episodes",
    is_flag=True,
    help="Leave out episodes with broken originals; they are listed at the end.",
)
@click.option(
    "--chunk-frames",
    type=click.IntRange(1, MAX_CHUNK_FRAMES),
    help=f"Frames read together, 1 to {MAX_CHUNK_FRAMES}. [as many as fit 48 MiB, 32 at most; of "
    "features below 4 KiB as many as fit 1 MiB, 1024 at most]",
)
@click.option(
    "--fps",
    type=click.FloatRange(0, min_open=True),
    help="Frames a second, where the originals do not tell.",
)
@click.option(
    "--record-size",
    type=ByteSize(),
    default="1GiB",
    show_default=True,
    help="Size of a record file.",
)
@click.option(
    "--no-statistics", is_flag=True, help="Keep no mean, deviation and quantiles of the features."
)
@click.option("--quiet", is_flag=True, help="Print nothing but errors and bad episodes.")
@common
def write(
    src: str,
    source_format: str | None,
    dst: str | None,
    codecs: tuple[str, ...],
    workers: int | None,
    executor: str | None,
    resume: bool,
    append: bool,
    features: list[str] | None,
    cameras: str | None,
    difficulty: str | None,
    places: tuple[str, ...],
    source_options: tuple[str, ...],
    keep_encoded: bool,
    skip_bad_episodes: bool,
    chunk_frames: int | None,
    fps: float | None,
    record_size: int,
    no_statistics: bool,
    quiet: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Pack original recordings into a dataset."""
    if resume and append:
        raise click.UsageError("--resume and --append exclude each other")
    mode: WriteMode = "resume" if resume else "append" if append else "create"
    destination = dst or _default_destination(src)
    named: dict[str, Any] = {
        "cameras": CAMERAS if cameras == "both" else cameras and (cameras,),
        "difficulty": difficulty,
        "map": parse_map(places),
    }
    others = parse_options(source_options) or {}
    if twice := sorted(others.keys() & (named.keys() | {"features", "format", "keep_encoded"})):
        raise click.UsageError(f"--source-option {twice[0]}: it has an option of its own")
    source = open_source(
        src,
        format=source_format,
        features=features,
        keep_encoded=keep_encoded,
        storage_options=storage_options if is_url(src) else None,
        **named,
        **others,
    )
    # A preset for all others does not undo --keep-encoded: those have a codec already.
    chosen = parse_codecs(
        codecs, lambda: [spec.name for spec in source.schema().values() if not spec.codec]
    )
    last = Progress(0, 0, 0)
    with ProgressBar("frames", quiet=quiet) as bar:

        def show(progress: Progress) -> None:
            nonlocal last
            last = progress
            speed = progress.raw_bytes / max(bar.seconds, 1e-3) / 1e6
            bar.show(progress.frames, progress.total_frames, f"{speed:.0f} MB/s")

        try:
            report = convert(
                source,
                destination,
                codecs=chosen,
                mode=mode,
                workers=workers,
                executor=executor,
                skip_bad_episodes=skip_bad_episodes,
                chunk_frames=chunk_frames,
                fps=fps,
                record_bytes=record_size,
                statistics=not no_statistics,
                progress=show,
                storage_options=None
                if is_url(src) and not is_url(destination)
                else storage_options,
            )
        except KeyboardInterrupt:
            raise Interrupted(
                "interrupted; the same command with --resume continues after the finished episodes"
            ) from None
        seconds = bar.seconds
    _print_written(parse_location(destination).shown, report, last, seconds, quiet)


def _default_destination(src: str) -> str:
    if is_url(src):
        raise click.UsageError("--dst is needed where --src is a URL")
    path = Path(os.path.abspath(Path(src).expanduser()))  # noqa: PTH100 - links keep their names
    if not path.name:
        raise click.UsageError("--dst is needed: --src has no name of its own")
    return str(path.with_name(f"{path.name}-records"))


def _print_written(
    destination: str, report: ConvertReport, last: Progress, seconds: float, quiet: bool
) -> None:
    if not quiet:
        manifest = report.manifest
        stored = sum(file.size for file in manifest.record_files)
        raw = manifest.num_frames * manifest.schema.frame_nbytes
        speed = last.raw_bytes / max(seconds, 1e-3) / 1e6
        there = f"; {len(report.skipped):,} were there already" if report.skipped else ""
        click.echo(
            f"{destination}: wrote {counted(len(report.written), 'episode')}, "
            f"{counted(last.frames, 'frame')} in {seconds:.1f} s ({speed:.0f} MB/s){there}"
        )
        click.echo(
            f"the dataset: {_contents(manifest)}, "
            f"{format_size(raw)} raw in {format_size(stored)} ({raw / stored:.2f}x)"
        )
    if report.bad:
        click.echo(f"left out {counted(len(report.bad), 'bad episode')}:", err=True)
        for bad in report.bad:
            click.echo(f"  {bad.key}: {one_line(bad.error)}", err=True)


def _contents(manifest: Manifest) -> str:
    episodes = counted(manifest.num_episodes, "episode")
    frames = counted(manifest.num_frames, "frame")
    return f"{episodes}, {frames} in {counted(len(manifest.record_files), 'record file')}"


@main.command()
@click.argument("path")
@click.argument("key", required=False)
@click.option(
    "--episodes",
    is_flag=True,
    help="List the episodes, one line each; with a glob for KEY, those that match.",
)
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
    """
    if clip_len is None and (stride or dilation):
        raise click.UsageError("--stride and --dilation need --clip-len")
    clip = None
    if clip_len is not None:
        clip = ClipSpec(clip_len, stride=stride or 1, dilation=dilation or 1)
    with open_dataset(path, features=features, storage_options=storage_options) as dataset:
        is_key = key is not None and key in dataset.index.positions
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
    dataset: SeqRecordReader, episodes: EpisodeFilter, *, clip: ClipSpec | None
) -> Iterator[str]:
    """A JSON array, made while it is printed: there may be many episodes."""
    before = "["
    for row in list_episodes(dataset, episodes, clip=clip):
        yield before + json.dumps(row.to_json())
        before = ","
    yield "]"


@main.command()
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
    """Check every byte of a dataset. Print a line for each problem; exit with 1 if there is one."""
    with ProgressBar("bytes", scale=True, quiet=quiet) as bar:

        def show(progress: VerifyProgress) -> None:
            speed = progress.page_bytes / max(bar.seconds, 1e-3) / 1e6
            bar.show(progress.page_bytes, progress.total_bytes, f"{speed:.0f} MB/s")

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


@main.command()
@click.argument("path")
@common
def reindex(path: str, storage_options: dict[str, Any] | None) -> None:
    """Rebuild a dataset's index and manifest from its record files."""
    manifest = rebuild(path, created_by=CREATED_BY, storage_options=storage_options)
    click.echo(f"{parse_location(path).shown}: {_contents(manifest)}")


main.add_command(bench)
main.add_command(cache)
main.add_command(clean)
main.add_command(export)
main.add_command(edit)
main.add_command(merge)
main.add_command(split)
main.add_command(stats)
main.add_command(trace)
main.add_command(view)
