"""`export`: an episode as files, or episodes as a dataset of another format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from seqrecord.export import to_files, to_lerobot, to_mcap
from seqrecord.indexing.opening import open_dataset
from seqrecord.text import counted
from seqrecord.tools.cli.arguments import FrameRange, common, feature_names

__all__ = ["export"]


@click.command()
@click.argument("path")
@click.argument("key")
@click.argument("dest")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["frames", "lerobot", "mcap"]),
    default="frames",
    help="Files of one episode; or, of all episodes that KEY fits, a LeRobot dataset (v3.0) or "
    "rosbag2 recordings in MCAP.",
)
@feature_names("Names of the features.")
@click.option(
    "--frames", type=FrameRange(), metavar="START:STOP[:STEP]", help="Some of the frames. [all]"
)
@click.option(
    "--fps", type=float, help="lerobot, mcap: frames a second, where episodes do not say it."
)
@common
def export(
    path: str,
    key: str,
    dest: str,
    kind: str,
    features: list[str] | None,
    frames: slice | None,
    fps: float | None,
    storage_options: dict[str, Any] | None,
) -> None:
    """Write an episode as files to DEST/KEY: images, npy, JSON. `write` packs them again.

    With another `--format` KEY may be a pattern, '*' for all episodes. DEST becomes a LeRobot
    dataset, in which video stays as it is, or DEST/KEY a rosbag2 folder with an MCAP file.
    """
    with open_dataset(path, storage_options=storage_options) as dataset:
        if kind != "frames" and frames is not None:
            raise click.UsageError(f"--frames is for single episodes, not for --format {kind}")
        if kind == "mcap":
            for folder in to_mcap(dataset, dest, episodes=key, features=features, fps=fps):
                click.echo(str(folder))
            return
        if kind == "lerobot":
            root = to_lerobot(dataset, dest, episodes=key, features=features, fps=fps)
            click.echo(f"{root}: {counted(len(dataset.find_episodes(key)), 'episode')}")
            return
        if fps is not None:
            raise click.UsageError("--fps is for --format lerobot and mcap")
        dataset.find_episodes([key])
        chosen = None if frames is None else range(len(dataset.episodes[key]))[frames]
        files = to_files(dataset, key, dest, features=features, frames=chosen)
    click.echo(f"{Path(dest) / key}: {counted(len(files), 'file')}")
