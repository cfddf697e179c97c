"""The commands that draw pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from seqrecord.text import counted
from seqrecord.tools.cli.arguments import AT_LEAST_1, common, feature_names, is_given
from seqrecord.tools.cli.terminal import ProgressBar
from seqrecord.tools.drawing import DEFAULT_CLIP_LEN, draw_timeline, picture_file, view_rerun
from seqrecord.tools.drawing import view as draw_view

PICTURE = "The picture: .png, .jpg, .webp, .svg or .pdf."

_OF_RERUN = ("save", "every", "quiet")
_OF_PICTURES = ("start", "clip_len", "dilation", "max_columns", "output", "dpi")

dots_per_inch = click.option(
    "--dpi",
    type=click.IntRange(10, 1200),
    default=150,
    help="Pixels an inch; a wide picture has 16 inches.",
)


@click.command()
@click.argument("path")
@click.argument("key", required=False)
@click.option(
    "--start",
    type=click.IntRange(min=0),
    default=0,
    metavar="FRAME",
    help="First frame of the clip.",
)
@click.option(
    "--clip-len",
    type=AT_LEAST_1,
    help=f"Frames of the clip. [{DEFAULT_CLIP_LEN}, or as many as there are]",
)
@click.option("--dilation", type=AT_LEAST_1, default=1, help="Frames from one to the next.")
@click.option(
    "--columns",
    "max_columns",
    type=AT_LEAST_1,
    default=DEFAULT_CLIP_LEN,
    help="The most frames that are drawn.",
)
@feature_names("Names of the features, in this order.")
@click.option(
    "--rerun",
    is_flag=True,
    help="Show whole episodes in the Rerun viewer instead: all, or that of KEY, which may be a "
    "glob. Needs rerun-sdk.",
)
@click.option("--save", metavar="FILE.rrd", help="With --rerun: write a file, without a screen.")
@click.option(
    "--every", type=AT_LEAST_1, default=1, help="With --rerun: of so many frames show one."
)
@click.option("--quiet", is_flag=True, help="With --rerun: show no progress.")
@click.option("-o", "--output", default="clip.png", metavar="FILE", help=PICTURE)
@dots_per_inch
@common
@click.pass_context
def view(
    context: click.Context,
    /,
    path: str,
    key: str | None,
    rerun: bool,
    save: str | None,
    every: int,
    quiet: bool,
    output: str,
    dpi: int,
    **options: Any,
) -> None:
    """Draw a clip of an episode, by default the first, as one picture. Needs matplotlib."""
    for name in _OF_PICTURES if rerun else _OF_RERUN:
        if is_given(context, name):
            option = name.removeprefix("max_").replace("_", "-")
            raise click.UsageError(f"--{option} {'excludes' if rerun else 'needs'} --rerun")
    if rerun:
        shared = {name: options[name] for name in ("features", "storage_options")}
        with ProgressBar("frames", quiet=quiet) as bar:

            def show(done: int, total: int) -> None:
                bar.show(done, total, "")

            frames = view_rerun(path, key, every=every, save=save, progress=show, **shared)
        click.echo(f"{save or 'shown'}: {counted(frames, 'frame')}")
        return
    target, picture_format = picture_file(output)
    draw_view(path, key, **options).savefig(target, dpi=dpi, format=picture_format)
    click.echo(str(target))


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "-o", "--output", metavar="FILE", help=f"{PICTURE} [the first trace's name, with .png]"
)
@click.option("--start", type=float, metavar="SECONDS", help="[the trace's start]")
@click.option("--stop", type=float, metavar="SECONDS", help="[the trace's end]")
@dots_per_inch
def trace(
    files: tuple[str, ...], output: str | None, start: float | None, stop: float | None, dpi: int
) -> None:
    """Draw a timeline of traces: when each thread worked or waited. Needs matplotlib.

    FILE was written in training with `EngineOptions(trace="epoch.json")`, or by `seqrecord bench
    --trace`. The files of several processes of one machine can be drawn together.
    """
    target, picture_format = picture_file(output or Path(files[0]).with_suffix(".png"))
    figure = draw_timeline(files, start=start, stop=stop)
    figure.savefig(target, dpi=dpi, format=picture_format)
    click.echo(str(target))
