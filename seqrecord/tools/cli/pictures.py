"""`seqrecord view`: a page of a dataset, a plot of a clip, the Rerun viewer."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click

from seqrecord.errors import LocationError
from seqrecord.store.reading.filters import EpisodeFilter
from seqrecord.store.storage.url import local_path
from seqrecord.store.text import counted
from seqrecord.tools.cli.arguments import (
    AT_LEAST_1,
    BYTE_SIZE,
    common,
    feature_names,
    is_given,
    joins,
)
from seqrecord.tools.cli.joining import opened_joined
from seqrecord.tools.cli.terminal import Command, ProgressBar
from seqrecord.tools.viewer.view import view as draw_view
from seqrecord.viewer import (
    DEFAULT_CLIP_LEN,
    MAX_FOLDER,
    MAX_PAGE,
    view_page,
    view_rerun,
)

_FORMATS = (".png", ".jpg", ".webp", ".svg", ".pdf")
_PAGES = (".html", ".htm")
_OF_CLIPS, _OF_RERUN, _OF_PAGES = (
    {"start", "clip_len"},
    {"save"},
    {"episodes", "max_size", "quality_table"},
)
_REFUSED = {
    "clip": {*_OF_RERUN, *_OF_PAGES, "quiet"},
    "page": {*_OF_CLIPS, *_OF_RERUN, "key"},
    "rerun": {*_OF_CLIPS, *_OF_PAGES, "output"},
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
@feature_names("Features to plot, in order.")
@click.option(
    "--rerun",
    is_flag=True,
    help="Show episodes in the Rerun viewer: all, or KEY (a key or a glob). Requires rerun-sdk.",
)
@click.option("--save", metavar="FILE.rrd", help="With --rerun: write a file and open no window.")
@click.option(
    "--episodes",
    multiple=True,
    metavar="KEY",
    help="Episodes of a page: a key or a glob (repeatable) [all]",
)
@click.option(
    "--quality-table",
    metavar="FILE",
    help="Show the numbers of `doctor --quality` in a page: its file.",
)
@click.option(
    "--max-size",
    type=BYTE_SIZE,
    metavar="SIZE",
    help=f"Most bytes of a page. [{MAX_PAGE}; {MAX_FOLDER} for a folder]",
)
@click.option("--quiet", is_flag=True, help="Hide the progress bar of a page or of --rerun.")
@click.option(
    "-o",
    "--output",
    default="clip.png",
    metavar="FILE",
    help=f"A page of the dataset: .html or FOLDER/. A clip's image: {', '.join(_FORMATS)}.",
)
@joins
@common
@click.pass_context
def view(
    context: click.Context,
    /,
    path: str,
    key: str | None,
    rerun: bool,
    save: str | None,
    episodes: tuple[str, ...],
    max_size: int | None,
    quality_table: str | None,
    quiet: bool,
    output: str,
    joining: dict[str, Any],
    **options: Any,
) -> None:
    """Write a page of a dataset, plot a clip, or open the Rerun viewer.

    \b
    seqrecord view records/ -o page.html      one file for the browser: all episodes
    seqrecord view records/ -o page/          a folder: more pictures, and video as MP4
    seqrecord view records/ KEY -o clip.png   a clip; KEY is an episode, by default the first
    seqrecord view records/ --rerun           episodes in the Rerun viewer

    A page of a mix file has all its sources. Images of clips require matplotlib.
    """
    is_page = output.lower().endswith((*_PAGES, "/")) or Path(output).is_dir()
    kind = "rerun" if rerun else "page" if is_page else "clip"
    _check_parameters(context, kind)
    opening = path, joining, options.pop("storage_options")
    if kind == "page":
        with (
            opened_joined(*opening) as (data, place_options),
            ProgressBar("episodes", quiet=quiet) as bar,
        ):
            page = view_page(
                data,
                output,
                _selection(episodes),
                quality=quality_table,
                max_size=max_size,
                progress=bar,
                features=options["features"],
                **place_options,
            )
        click.echo(str(page))
        return
    if rerun:
        with (
            opened_joined(*opening) as (data, place_options),
            ProgressBar("frames", quiet=quiet) as bar,
        ):
            names = options["features"]
            frames = view_rerun(data, key, save=save, progress=bar, features=names, **place_options)
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
    with opened_joined(*opening) as (data, place_options):
        figure = draw_view(data, key, **options, **place_options)
    figure.savefig(target, dpi=150, format=ending[1:])
    click.echo(str(target))


def _check_parameters(context: click.Context, kind: str) -> None:
    """Raise `UsageError` for a parameter that this kind of view lacks."""
    for parameter in context.command.params:
        if parameter.name in _REFUSED[kind] and is_given(context, parameter.name):
            problem = f"cannot be combined with {'a page' if kind == 'page' else f'--{kind}'}"
            if kind == "clip":
                is_rerun = parameter.name in _OF_RERUN
                problem = f"requires {'--rerun' if is_rerun else 'a page, -o FILE.html'}"
            raise click.UsageError(f"{parameter.get_error_hint(context)} {problem}")


def _selection(patterns: Sequence[str]) -> EpisodeFilter:
    """The episodes that have any of the keys, or match any of the globs; `None` for all."""
    if not any(set(pattern) & set("*?[") for pattern in patterns):
        return patterns or None
    return lambda episode: any(
        episode.key == pattern or fnmatchcase(episode.key, pattern) for pattern in patterns
    )
