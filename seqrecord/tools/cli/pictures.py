"""`seqrecord view`: plot a clip or a quality table, or show episodes in the Rerun viewer."""

from __future__ import annotations

from typing import Any

import click

from seqrecord.errors import LocationError
from seqrecord.store.storage.url import local_path
from seqrecord.store.text import counted
from seqrecord.tools.cli.arguments import AT_LEAST_1, common, feature_names, is_given
from seqrecord.tools.cli.terminal import Command, ProgressBar
from seqrecord.viewer import DEFAULT_CLIP_LEN, view_quality, view_rerun
from seqrecord.viewer import view as draw_view

_FORMATS = (".png", ".jpg", ".webp", ".svg", ".pdf")
_OF_CLIPS, _OF_RERUN = {"start", "clip_len"}, {"save", "quiet"}
_REFUSED = {
    "clip": _OF_RERUN,
    "rerun": {*_OF_CLIPS, "output"},
    "quality": {*_OF_CLIPS, *_OF_RERUN, "key", "storage_options"},
}
"""Parameters that a view lacks."""


@click.command(cls=Command)
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
    help=f"Frames of the clip. [{DEFAULT_CLIP_LEN}, or fewer at the end of the episode]",
)
@feature_names("Features (or columns) to plot, in order.")
@click.option(
    "--quality", is_flag=True, help="Plot the table of `doctor --quality`: PATH is its file."
)
@click.option(
    "--rerun",
    is_flag=True,
    help="Show episodes in the Rerun viewer: all, or KEY (a key or a glob). Requires rerun-sdk.",
)
@click.option("--save", metavar="FILE.rrd", help="With --rerun: write a file and open no window.")
@click.option("--quiet", is_flag=True, help="With --rerun: hide the progress bar.")
@click.option(
    "-o",
    "--output",
    default="clip.png",
    metavar="FILE",
    help=f"Image file: {', '.join(_FORMATS)}.",
)
@common
@click.pass_context
def view(
    context: click.Context,
    /,
    path: str,
    key: str | None,
    quality: bool,
    rerun: bool,
    save: str | None,
    quiet: bool,
    output: str,
    **options: Any,
) -> None:
    """Plot a clip or a quality table, or open the Rerun viewer.

    KEY is an episode, by default the first. Plots require matplotlib.
    """
    if rerun and quality:
        raise click.UsageError("--rerun cannot be combined with --quality")
    chosen = "rerun" if rerun else "quality" if quality else "clip"
    problem = "requires --rerun" if chosen == "clip" else f"cannot be combined with --{chosen}"
    for parameter in context.command.params:
        if parameter.name in _REFUSED[chosen] and is_given(context, parameter.name):
            raise click.UsageError(f"{parameter.get_error_hint(context)} {problem}")
    if rerun:
        shared = {name: options[name] for name in ("features", "storage_options")}
        with ProgressBar("frames", quiet=quiet) as bar:
            frames = view_rerun(path, key, save=save, progress=bar, **shared)
        click.echo(f"{save or 'shown'}: {counted(frames, 'frame')}")
        return
    target = local_path(output, "the image")
    if (ending := target.suffix.lower() or ".png") not in _FORMATS:
        raise LocationError(
            "unknown image format",
            file=str(target),
            expected=" or ".join(_FORMATS),
            got=ending,
        )
    names = options["features"]
    figure = view_quality(path, names) if quality else draw_view(path, key, **options)
    figure.savefig(target, dpi=150, format=ending[1:])
    click.echo(str(target))
