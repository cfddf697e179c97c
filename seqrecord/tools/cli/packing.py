"""`seqrecord write`, `index` and `reindex`: make datasets and indexes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from seqrecord.errors import SourceError
from seqrecord.formats.converting.convert import ConvertReport, convert
from seqrecord.formats.indexing.source_opening import open_source
from seqrecord.formats.sources.tartanair.layout import CAMERAS
from seqrecord.in_place.remote import is_url
from seqrecord.store.areas import DATASET, FORMATS
from seqrecord.store.codecs.presets import CODEC_NAMES
from seqrecord.store.format.manifest import Manifest
from seqrecord.store.format.page_kinds import MAX_CHUNK_FRAMES
from seqrecord.store.reading.metadata import DamagedFile
from seqrecord.store.storage.url import parse_location
from seqrecord.store.text import counted, one_line
from seqrecord.store.units import format_size
from seqrecord.store.writing.commits import reindex as rebuild
from seqrecord.store.writing.destination import WriteMode
from seqrecord.store.writing.stored_statistics import add_statistics
from seqrecord.tools.cli.arguments import (
    ABOVE_0,
    AT_LEAST_1,
    check_video,
    common,
    feature_names,
    joins,
    meanings,
    pairs,
    parse_codecs,
    parse_sizes,
    source_option,
    write_mode,
)
from seqrecord.tools.cli.terminal import Command, ProgressBar

_INVENTORY_LINES = 10

skip_bad_episodes = click.option(
    "--skip-bad-episodes",
    is_flag=True,
    help="Skip episodes with broken files, and list them at the end.",
)


_CAMERAS = {**{name: (name,) for name in CAMERAS}, "both": CAMERAS}


@click.command(cls=Command)
@click.option(
    "--src",
    required=True,
    metavar="PATH",
    help="Folder, file or URL of the original, or a dataset. --storage-option applies to a URL.",
)
@click.option(
    "--format",
    "source_format",
    metavar="NAME",
    help=f"Format of the original: {', '.join((DATASET, *FORMATS))}, or a plug-in's format. "
    "[detected]",
)
@click.option("--dst", metavar="PATH", help="Path or URL of the dataset. [SRC-records]")
@click.option(
    "--codec",
    "codecs",
    multiple=True,
    metavar="CODEC|FEATURE=CODEC",
    help=f"Codec of one feature or of all others (repeatable): {', '.join(CODEC_NAMES)}, "
    "jpeg:quality=90, or a JSON list of codec configurations. [balanced; codecs of SRC if it is "
    "a dataset]",
)
@click.option("--workers", type=AT_LEAST_1, help="Number of processes. [number of cores]")
@click.option(
    "--executor",
    metavar="URL",
    help="Convert on a cluster: dask://HOST:PORT or ray://HOST:PORT. Its workers need --src and "
    "--dst at the same paths. [processes on this machine]",
)
@write_mode
@feature_names("Features to convert.")
@click.option("--cameras", type=click.Choice([*_CAMERAS]), help="Cameras, for TartanAir. [both]")
@pairs(
    *("--map", "places", "FEATURE=PATH"),
    "Path of a feature inside the original's files (repeatable), such as "
    "image=/observations/images/front. Only mapped features are converted.",
)
@source_option
@meanings
@click.option("--keep-encoded", is_flag=True, help="Copy PNG and JPEG images without decoding.")
@skip_bad_episodes
@click.option(
    "--strict", is_flag=True, help="Fail for data not converted, and lossy changes of video."
)
@click.option(
    "--chunk-frames",
    type=click.IntRange(1, MAX_CHUNK_FRAMES),
    help="Frames per chunk. [at most 48 MiB and 32 frames; for features below 4 KiB, at most 1 MiB "
    "and 1024 frames]",
)
@click.option(
    "--fps",
    type=ABOVE_0,
    help="Frames per second, if the original has none.",
)
@click.option(
    "--statistics",
    type=click.Choice(["auto", "all", "none"]),
    default="auto",
    help="Statistics to store. auto: features that are decoded anyway; all: also decode copied "
    "video and images.",
)
@click.option(
    "--split-at-gaps",
    type=ABOVE_0,
    metavar="SECONDS",
    help="Split an episode where its timestamps jump by more than this: KEY/0, KEY/1, … Needs "
    "timestamps, of a selected feature or not.",
)
@click.option(
    "--resize",
    multiple=True,
    metavar="FEATURE=HxW|HxW",
    callback=lambda _ctx, _param, values: parse_sizes(values),
    help="Store frames of a feature, or of all images, at this height and width (repeatable).",
)
@click.option(
    "--undistort",
    is_flag=True,
    help="Remove the lens distortion of cameras in the metadata from images, depth and masks.",
)
@check_video
@click.option("--quiet", is_flag=True, help="Print errors and data left out only.")
@joins
@common
def write(
    src: str,
    source_format: str | None,
    dst: str | None,
    codecs: tuple[str, ...],
    features: list[str] | None,
    cameras: str | None,
    places: dict[str, str],
    source_options: dict[str, Any] | None,
    keep_encoded: bool,
    undistort: bool,
    statistics: str,
    quiet: bool,
    joining: dict[str, Any],
    storage_options: dict[str, Any] | None,
    **options: Any,
) -> None:
    """Convert original recordings to a dataset.

    With --join, SRC is a dataset or an original that can be read in place, and the result has the
    features of all.
    Example: seqrecord write --src tartanair/ --dst records/ --codec fast
    """
    destination = dst or _default_destination(src)
    named: dict[str, Any] = {
        "cameras": None if cameras is None else _CAMERAS[cameras],
        "map": places or None,
    }
    extra_options = source_options or {}
    if repeated_names := sorted(
        extra_options.keys() & (named.keys() | {"features", "format", "keep_encoded"})
    ):
        name = repeated_names[0]
        raise click.UsageError(
            f"--source-option {name} is not valid; use --{name.replace('_', '-')}"
        )
    source = open_source(
        src,
        format=source_format,
        features=features,
        keep_encoded=keep_encoded,
        storage_options=storage_options if is_url(src) else None,
        **joining,
        **named,
        **extra_options,
    )
    if undistort:
        from seqrecord.formats.sources.undistorting import undistorted  # rarely needed

        source = undistorted(source)
    dst_options = storage_options if is_url(destination) or not is_url(src) else None
    # Features of --keep-encoded have a codec: a preset for all others does not replace it.
    resized_features = options["resize"] or ()
    codec_choice = parse_codecs(
        codecs,
        lambda: [n for n, s in source.schema().items() if not s.codec or n in resized_features],
    )
    with ProgressBar("frames", speed=True, quiet=quiet, resumes=True) as bar:
        report = convert(
            source,
            destination,
            codecs=codec_choice,
            statistics=statistics != "none",
            progress=bar,
            storage_options=dst_options,
            **options,
        )
        frames, duration = bar.last.done, f"{bar.seconds:.1f} s ({bar.speed})"
    if statistics == "all":
        with ProgressBar("frames for statistics", quiet=quiet) as bar:
            add_statistics(
                destination, only_lacking=True, progress=bar, storage_options=dst_options
            )
    _print_written(parse_location(destination).shown, report, frames, duration, quiet)
    _print_damaged(report.damaged)  # not a failure: their episodes were converted again


@click.command(cls=Command)
@click.argument("src")
@click.option(
    "-o",
    "--dst",
    metavar="PATH",
    help="Path or URL of the index. [in SEQRECORD_HOME, where readers of SRC find it]",
)
@write_mode
@click.option("--checksums", is_flag=True, help="Store checksums of all referenced bytes.")
@check_video
@feature_names("Features to index.")
@source_option
@meanings
@skip_bad_episodes
@click.option("--strict", is_flag=True, help="Fail for data not indexed, or video of another size.")
@click.option("--quiet", is_flag=True, help="Print errors only.")
@common
def index(
    src: str,
    dst: str | None,
    mode: WriteMode,
    features: list[str] | None,
    source_options: dict[str, Any] | None,
    quiet: bool,
    storage_options: dict[str, Any] | None,
    **options: Any,
) -> None:
    """Index originals to read them in place.

    SRC is a LeRobot dataset, a folder of videos, a tree of images and arrays, or DROID. The index
    references video, images and arrays, and copies small features. LeRobot and video need no
    command: loaders index them on first use. All other formats require --dst.
    """
    # `write` does not need this import.
    from seqrecord.formats.indexing.originals import find_index, index_source

    if dst is None:
        if mode != "create" or any((features, source_options, *options.values())):
            raise click.UsageError(
                "--append, --resume, --checksums, --check-video, --features, --source-option, "
                "--kind, --unit, --skip-bad-episodes and --strict require --dst"
            )
        if (original_index := find_index(src, storage_options, workers=None)) is None:
            raise SourceError(
                "not an original that can be indexed without --dst; pass --dst, or convert it "
                "with `seqrecord write --src`",
                file=parse_location(src).shown,
                expected="a LeRobot dataset, or a folder with videos only",
            )
        click.echo(str(original_index.folder))
        _print_bad(original_index.bad.errors)
        return
    source = open_source(
        src,
        features=features,
        storage_options=storage_options if is_url(src) else None,
        **(source_options or {}),
    )
    with ProgressBar("frames", quiet=quiet, resumes=True) as bar:
        report = index_source(
            source,
            dst,
            mode=mode,
            progress=bar,
            storage_options=storage_options if is_url(dst) or not is_url(src) else None,
            **options,
        )
        duration = f"{bar.seconds:.1f} s"
    if not quiet:
        click.echo(
            f"{parse_location(dst).shown}: indexed {counted(len(report.written), 'episode')} in "
            f"{duration}; references {parse_location(src).shown}"
        )
        _print_inventory(report)
    _print_bad({bad.key: bad.error for bad in report.bad})


def _default_destination(src: str) -> str:
    if is_url(src):
        raise click.UsageError("--dst is required if --src is a URL")
    path = Path(os.path.abspath(Path(src).expanduser()))  # noqa: PTH100 - links keep their names
    if not path.name:
        raise click.UsageError("--dst is required: --src has no last path component")
    return str(path.with_name(f"{path.name}-records"))


def _print_written(
    destination: str, report: ConvertReport, frames: int, duration: str, quiet: bool
) -> None:
    if not quiet:
        manifest = report.manifest
        stored_bytes = sum(file.size for file in manifest.record_files)
        raw_bytes = manifest.num_frames * manifest.schema.frame_nbytes
        # Text is small. The raw size of other features with varying shapes is unknown.
        features = manifest.schema.active
        is_known = all(spec.value_kind.are_short for spec in features.variable)
        is_known &= len(features.variable) < len(features)
        size = format_size(stored_bytes)
        if is_known:
            size = f"{format_size(raw_bytes)} raw in {size} ({raw_bytes / stored_bytes:.2f}x)"
        present_text = f"; {len(report.skipped):,} already present" if report.skipped else ""
        click.echo(
            f"{destination}: wrote {counted(len(report.written), 'episode')}, "
            f"{counted(frames, 'frame')} in {duration}{present_text}"
        )
        click.echo(f"the dataset: {_contents(manifest)}, {size}")
        _print_inventory(report)
    else:
        for left_out in report.inventory.left_out_data:
            click.echo(f"{destination}: left out {one_line(str(left_out))}", err=True)
    _print_bad({bad.key: bad.error for bad in report.bad})


def _print_bad(reasons: Mapping[str, object]) -> None:
    if reasons:
        click.echo(f"skipped {counted(len(reasons), 'bad episode')}:", err=True)
    for key, error in reasons.items():
        click.echo(f"  {key}: {one_line(str(error))}", err=True)


def _print_inventory(report: ConvertReport) -> None:
    for line in report.inventory.lines(_INVENTORY_LINES):
        click.echo(f"  {line}")


@click.command(cls=Command)
@click.argument("path")
@common
def reindex(path: str, storage_options: dict[str, Any] | None) -> None:
    """Rebuild index and manifest from record files.

    Skips damaged record files, lists them, and exits with code 1.
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
            f"skipped {counted(len(damaged), 'damaged record file')}, not deleted:", err=True
        )
    for file in damaged:
        click.echo(f"  {one_line(str(file))}", err=True)


def _contents(manifest: Manifest) -> str:
    episodes = counted(manifest.num_episodes, "episode")
    frames = counted(manifest.num_frames, "frame")
    return f"{episodes}, {frames} in {counted(len(manifest.record_files), 'record file')}"
