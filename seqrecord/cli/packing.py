"""`seqrecord write`, `index` and `reindex`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from seqrecord.cli.arguments import (
    AT_LEAST_1,
    common,
    feature_names,
    meanings,
    parse_by_feature,
    parse_codecs,
    parse_options,
    write_mode,
)
from seqrecord.cli.terminal import ProgressBar
from seqrecord.codecs import CODEC_NAMES
from seqrecord.errors import SourceError
from seqrecord.format.manifest import Manifest
from seqrecord.format.rows import MAX_CHUNK_FRAMES
from seqrecord.indexing.source_opening import open_source
from seqrecord.reading.metadata import DamagedFile
from seqrecord.sources.common.remote import is_url
from seqrecord.sources.registry import BUILT_IN, DATASET
from seqrecord.sources.tartanair.layout import CAMERAS
from seqrecord.storage import parse_location
from seqrecord.text import counted, one_line
from seqrecord.units import format_size
from seqrecord.writing.commits import reindex as rebuild
from seqrecord.writing.convert import ConvertReport, convert
from seqrecord.writing.convert_jobs import Progress
from seqrecord.writing.destination import WriteMode
from seqrecord.writing.stored_statistics import add_statistics

_INVENTORY_LINES = 10


@click.command()
@click.option(
    "--src",
    required=True,
    metavar="PATH",
    help="The originals, of any format of --format: a folder, or a file that holds them, or a "
    "dataset; or a URL, to which --storage-option applies as well.",
)
@click.option(
    "--format",
    "source_format",
    metavar="NAME",
    help=f"The originals' format: {', '.join((DATASET, *BUILT_IN))}, or one that another "
    "package adds. [the one that fits]",
)
@click.option("--dst", metavar="PATH", help="The dataset. [--src's name with -records, beside it]")
@click.option(
    "--codec",
    "codecs",
    multiple=True,
    metavar="CODEC|FEATURE=CODEC",
    help=f"One of {', '.join(CODEC_NAMES)}, jpeg:quality=90, or a list of codec configurations in "
    "JSON; for all features or for one; can be repeated. [balanced; of a dataset, those it has]",
)
@click.option("--workers", type=AT_LEAST_1, help="Processes. [one for each core]")
@click.option(
    "--executor",
    metavar="URL",
    help="A cluster that packs: dask://HOST:PORT or ray://HOST:PORT. Its workers read --src and "
    "write --dst under the same names. [processes of this machine]",
)
@write_mode
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
@meanings
@click.option("--keep-encoded", is_flag=True, help="Store PNG and JPEG images as they are.")
@click.option(
    "--skip-bad-episodes",
    is_flag=True,
    help="Leave out episodes with broken originals; they are listed at the end.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Fail if the originals have possible data that is not packed: see the inventory.",
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
    "--statistics",
    type=click.Choice(["auto", "all", "source", "none"]),
    default="auto",
    help="Of which features to keep mean, deviation and quantiles: auto, of those that are not "
    "kept encoded; all, and then video and images that are kept encoded are decoded for it; "
    "source, those that LeRobot's meta/ has, in place of these.",
)
@click.option("--quiet", is_flag=True, help="Print nothing but errors and bad episodes.")
@common
def write(
    src: str,
    source_format: str | None,
    dst: str | None,
    codecs: tuple[str, ...],
    mode: WriteMode,
    features: list[str] | None,
    cameras: str | None,
    difficulty: str | None,
    places: tuple[str, ...],
    source_options: tuple[str, ...],
    kinds: tuple[str, ...],
    units: tuple[str, ...],
    keep_encoded: bool,
    statistics: str,
    quiet: bool,
    storage_options: dict[str, Any] | None,
    **options: Any,
) -> None:
    """Pack original recordings into a dataset."""
    destination = dst or _default_destination(src)
    named: dict[str, Any] = {
        "cameras": CAMERAS if cameras == "both" else cameras and (cameras,),
        "difficulty": difficulty,
        "map": parse_by_feature(places, "PATH"),
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
    given = getattr(source, "statistics", None) if statistics == "source" else None
    if statistics == "source" and given is None:
        raise click.UsageError("--statistics source: this source has none of its own")
    destined = storage_options if is_url(destination) or not is_url(src) else None
    # A preset for all others does not undo --keep-encoded: those have a codec already.
    chosen = parse_codecs(
        codecs, lambda: [spec.name for spec in source.schema().values() if not spec.codec]
    )
    last = Progress(0, 0, 0)
    with ProgressBar("frames", quiet=quiet, resumes=True) as bar:

        def show(progress: Progress) -> None:
            nonlocal last
            last = progress
            done, total = progress.frames, progress.total_frames
            bar.show(done, total, bar.speed(progress.raw_bytes) + ", committing" * (done == total))

        report = convert(
            source,
            destination,
            codecs=chosen,
            kinds=parse_by_feature(kinds, "KIND"),
            units=parse_by_feature(units, "UNIT"),
            mode=mode,
            statistics=statistics != "none",
            progress=show,
            storage_options=destined,
            **options,
        )
        took = f"{bar.seconds:.1f} s ({bar.speed(last.raw_bytes)})"
    if statistics == "source":
        add_statistics(destination, given=given, storage_options=destined)
    if statistics == "all":
        with ProgressBar("frames for statistics", quiet=quiet) as bar:
            add_statistics(
                destination, only_lacking=True, progress=bar.show_frames, storage_options=destined
            )
    _print_written(parse_location(destination).shown, report, last.frames, took, quiet)
    _print_damaged(report.damaged)  # no failure: their episodes are packed again


@click.command()
@click.argument("src")
@click.option(
    "-o",
    "--dst",
    metavar="PATH",
    help="The index, a dataset. [in the folder SEQRECORD_HOME, where everything that reads SRC "
    "finds it]",
)
@write_mode
@click.option(
    "--checksums", is_flag=True, help="Read and keep checksums of all that is referred to."
)
@feature_names("Names of the features to index.")
@click.option(
    "--source-option",
    "source_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="For the format, as of `write`, with --dst; can be repeated.",
)
@meanings
@click.option("--strict", is_flag=True, help="Fail if SRC has possible data that is left out.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@common
def index(
    src: str,
    dst: str | None,
    mode: WriteMode,
    checksums: bool,
    features: list[str] | None,
    source_options: tuple[str, ...],
    kinds: tuple[str, ...],
    units: tuple[str, ...],
    strict: bool,
    quiet: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Index a LeRobot dataset, a folder of video, a tree of images and arrays, or HDF5 or Zarr,
    which is then read where it lies.

    Video, images and arrays are not copied, small features are. Loaders and commands that are given
    SRC itself do this by themselves for LeRobot and video; all others need --dst.
    """
    # Here, for `write` does without it.
    from seqrecord.indexing.originals import find_index, index_source

    if dst is None:
        if mode != "create" or checksums or features or source_options or kinds or units or strict:
            options = "--append, --resume, --checksums, --features, --source-option, --kind, --unit"
            raise click.UsageError(f"{options} and --strict need --dst")
        if (folder := find_index(src, storage_options, workers=None)) is None:
            raise SourceError(
                "nothing here that is indexed; `seqrecord write --src` packs originals",
                file=parse_location(src).shown,
                expected="a LeRobot dataset, or a folder of nothing but video; or --dst, for the "
                "index of images and arrays",
            )
        click.echo(str(folder))
        return
    source = open_source(
        src,
        features=features,
        storage_options=storage_options if is_url(src) else None,
        **(parse_options(source_options) or {}),
    )
    with ProgressBar("frames", quiet=quiet, resumes=True) as bar:
        report = index_source(
            source,
            dst,
            mode=mode,
            checksums=checksums,
            kinds=parse_by_feature(kinds, "KIND"),
            units=parse_by_feature(units, "UNIT"),
            strict=strict,
            progress=bar.show_frames,
            storage_options=storage_options if is_url(dst) or not is_url(src) else None,
        )
        took = f"{bar.seconds:.1f} s"
    if not quiet:
        click.echo(
            f"{parse_location(dst).shown}: indexed {counted(len(report.written), 'episode')} in "
            f"{took}; it refers to {parse_location(src).shown}"
        )
        _print_inventory(report)


def _default_destination(src: str) -> str:
    if is_url(src):
        raise click.UsageError("--dst is needed where --src is a URL")
    path = Path(os.path.abspath(Path(src).expanduser()))  # noqa: PTH100 - links keep their names
    if not path.name:
        raise click.UsageError("--dst is needed: --src has no name of its own")
    return str(path.with_name(f"{path.name}-records"))


def _print_written(
    destination: str, report: ConvertReport, frames: int, took: str, quiet: bool
) -> None:
    if not quiet:
        manifest = report.manifest
        stored = sum(file.size for file in manifest.record_files)
        raw = manifest.num_frames * manifest.schema.frame_nbytes
        # Text is small beside others; how large what else varies is is not known here.
        features = manifest.schema.active
        is_known = all(spec.value == "text" for spec in features.variable)
        is_known &= len(features.variable) < len(features)
        size = format_size(stored)
        if is_known:
            size = f"{format_size(raw)} raw in {size} ({raw / stored:.2f}x)"
        there = f"; {len(report.skipped):,} were there already" if report.skipped else ""
        click.echo(
            f"{destination}: wrote {counted(len(report.written), 'episode')}, "
            f"{counted(frames, 'frame')} in {took}{there}"
        )
        click.echo(f"the dataset: {_contents(manifest)}, {size}")
        _print_inventory(report)
    if report.bad:
        click.echo(f"left out {counted(len(report.bad), 'bad episode')}:", err=True)
        for bad in report.bad:
            click.echo(f"  {bad.key}: {one_line(bad.error)}", err=True)


def _print_inventory(report: ConvertReport) -> None:
    for line in report.inventory.lines(_INVENTORY_LINES):
        click.echo(f"  {line}")


@click.command()
@click.argument("path")
@common
def reindex(path: str, storage_options: dict[str, Any] | None) -> None:
    """Rebuild a dataset's index and manifest from its record files.

    Damaged record files are skipped and listed, and the exit code is 1 then.
    """
    damaged: list[DamagedFile] = []
    manifest = rebuild(path, on_damaged=damaged.append, storage_options=storage_options)
    click.echo(f"{parse_location(path).shown}: {_contents(manifest)}")
    _print_damaged(damaged)
    if damaged:
        sys.exit(1)


def _print_damaged(damaged: Sequence[DamagedFile]) -> None:
    if damaged:
        click.echo(
            f"skipped {counted(len(damaged), 'damaged record file')}, still there:", err=True
        )
    for file in damaged:
        click.echo(f"  {one_line(str(file))}", err=True)


def _contents(manifest: Manifest) -> str:
    episodes = counted(manifest.num_episodes, "episode")
    frames = counted(manifest.num_frames, "frame")
    return f"{episodes}, {frames} in {counted(len(manifest.record_files), 'record file')}"
