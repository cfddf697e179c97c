"""`seqrecord export` and `push`: other formats, and the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from seqrecord.cli.arguments import common, feature_names
from seqrecord.cli.terminal import Command, ProgressBar
from seqrecord.export import to_files, to_hub, to_lerobot
from seqrecord.indexing.opening import open as open_dataset
from seqrecord.text import counted
from seqrecord.units import format_size


@click.command(cls=Command)
@click.argument("path")
@click.argument("key", metavar="KEY|GLOB")
@click.argument("dest")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["frames", "lerobot"]),
    default="frames",
    help="Files per frame, or a LeRobot dataset (v3.0).",
)
@feature_names("Features to export.")
@click.option("--fps", type=float, help="For lerobot: frames per second, if episodes have none.")
@click.option("--quiet", is_flag=True, help="Hide the progress bar.")
@common
def export(
    path: str,
    key: str,
    dest: str,
    kind: str,
    features: list[str] | None,
    fps: float | None,
    quiet: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Export episodes as files or a LeRobot dataset.

    KEY is an episode, GLOB a pattern: '*' exports all episodes.

    \b
    --format frames     DEST/KEY/: image, npy and JSON files; `seqrecord write` reads them back
    --format lerobot    DEST: a LeRobot dataset; video is copied without decoding
    """
    if kind == "frames" and fps is not None:
        raise click.UsageError("--fps requires --format lerobot")
    with (
        open_dataset(path, storage_options=storage_options) as dataset,
        ProgressBar("frames", speed=True, quiet=quiet) as bar,
    ):
        episodes = [key] if key in dataset.episodes else key
        count = len(dataset.find_episodes(episodes))
        options: dict[str, Any] = {"features": features, "progress": bar}
        if kind == "lerobot":
            to_lerobot(dataset, dest, episodes=episodes, fps=fps, **options)
        else:
            to_files(dataset, episodes, dest, **options)
    click.echo(f"{Path(dest)}: {counted(count, 'episode')}")


@click.command(cls=Command)
@click.argument("path", metavar="DST")
@click.argument("url", metavar="hf://datasets/ORG/NAME[@BRANCH]")
@click.option("--private", is_flag=True, help="Create a private repository.")
@click.option("--license", metavar="ID", help="License in the card: mit, … [unchanged]")
@click.option("--replace", is_flag=True, help="Overwrite another dataset or a later version.")
@common
def push(path: str, url: str, **options: Any) -> None:
    """Push a dataset to the Hugging Face Hub.

    Uploads new files only, also after an interruption, and makes one commit with a dataset card.
    DST may also be an index of an original at a URL.
    """
    done = to_hub(path, url, **options)
    sent = f"{counted(len(done.sent), 'file')}, {format_size(done.sent_bytes)}"
    removed = f", {len(done.removed)} removed" if done.removed else ""
    click.echo(f"{done.url}: {f'{sent} pushed{removed}' if done.sent else 'nothing new'}")
    if done.is_card_kept:
        click.echo("README.md kept: it was not written by push", err=True)
