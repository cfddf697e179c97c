"""`export`: episodes as files, or as a dataset of another format; and `push` to the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from seqrecord.cli.arguments import FRAME_RANGE, common, feature_names
from seqrecord.cli.terminal import ProgressBar
from seqrecord.export import to_files, to_hub, to_lerobot, to_mcap
from seqrecord.indexing.opening import open as open_dataset
from seqrecord.text import counted
from seqrecord.units import format_size
from seqrecord.writing.convert_jobs import Progress


@click.command()
@click.argument("path")
@click.argument("key", metavar="KEY|GLOB")
@click.argument("dest")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["frames", "lerobot", "mcap"]),
    default="frames",
    help="Files of frames, a LeRobot dataset (v3.0), or rosbag2 recordings in MCAP.",
)
@feature_names("Names of the features.")
@click.option(
    "--frames",
    type=FRAME_RANGE,
    metavar="START:STOP[:STEP]",
    help="frames: some of those of each episode. [all]",
)
@click.option(
    "--fps", type=float, help="lerobot, mcap: frames a second, where episodes do not say it."
)
@click.option("--quiet", is_flag=True, help="Show no progress.")
@common
def export(
    path: str,
    key: str,
    dest: str,
    kind: str,
    features: list[str] | None,
    frames: slice | None,
    fps: float | None,
    quiet: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Write episodes as files to DEST/KEY: images, npy, JSON. `write` packs them again.

    GLOB is a pattern, '*' for all episodes. With another `--format` DEST becomes a LeRobot dataset,
    in which video stays as it is, or DEST/KEY a rosbag2 folder with an MCAP file.
    """
    if kind != "frames" and frames is not None:
        raise click.UsageError(f"--frames is not for --format {kind}")
    if kind == "frames" and fps is not None:
        raise click.UsageError("--fps is for --format lerobot and mcap")
    with (
        open_dataset(path, storage_options=storage_options) as dataset,
        ProgressBar("frames", quiet=quiet) as bar,
    ):

        def show(progress: Progress) -> None:
            bar.show(progress.frames, progress.total_frames, bar.speed(progress.raw_bytes))

        episodes = [key] if key in dataset.episodes else key
        count = len(dataset.find_episodes(episodes))
        options: dict[str, Any] = {"features": features, "progress": show}
        if kind == "lerobot":
            to_lerobot(dataset, dest, episodes=episodes, fps=fps, **options)
        elif kind == "mcap":
            to_mcap(dataset, dest, episodes=episodes, fps=fps, **options)
        else:
            to_files(dataset, episodes, dest, frames=frames, **options)
    click.echo(f"{Path(dest)}: {counted(count, 'episode')}")


@click.command()
@click.argument("path", metavar="DST")
@click.argument("url", metavar="hf://datasets/ORG/NAME[@BRANCH]")
@click.option("--private", is_flag=True, help="Make a private repository.")
@click.option("--tag", help="A tag for the commit.")
@click.option("--message", metavar="TEXT", help="Of the commit.")
@click.option("--license", metavar="ID", help="For the card: cc-by-4.0, mit, … [that of the card]")
@click.option("--replace", is_flag=True, help="Push where another dataset is, or a later version.")
@click.option("--replace-card", is_flag=True, help="Replace a README.md that no push wrote.")
@common
def push(path: str, url: str, **options: Any) -> None:
    """Push a dataset, or an index of an original on a URL, to the Hugging Face Hub.

    All files come in one commit, with a dataset card. Only what is new is sent, also after an
    interruption.
    """
    done = to_hub(path, url, **options)
    sent = f"{counted(len(done.sent), 'file')}, {format_size(done.sent_bytes)}"
    removed = f", {len(done.removed)} removed" if done.removed else ""
    click.echo(f"{done.url}: {f'{sent} pushed{removed}' if done.sent else 'nothing new'}")
    if done.is_card_kept:
        click.echo("README.md is somebody else's, and stays; --replace-card writes one", err=True)
