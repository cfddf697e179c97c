"""`seqrecord export` and `push`: other formats, and the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from seqrecord.errors import NotFoundError, SourceError
from seqrecord.export import to_files, to_hub, to_lerobot
from seqrecord.formats.converting.convert import convert
from seqrecord.formats.indexing.source_opening import open_source
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.filters import EpisodeFilter
from seqrecord.store.reading.opening import dataset_of
from seqrecord.store.reading.opening import open as open_dataset
from seqrecord.store.text import counted
from seqrecord.store.units import format_size
from seqrecord.tools.cli.arguments import common, feature_names, joins, pairs, source_option
from seqrecord.tools.cli.terminal import Command, ProgressBar


@click.command(cls=Command)
@click.argument("path")
@click.argument("key", metavar="[KEY|GLOB]", required=False)
@click.argument("dest", required=False)
@click.option("--output", "-o", metavar="DEST", help="Destination, in place of the last argument.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["frames", "lerobot"]),
    default="frames",
    help="Files per frame, or a LeRobot dataset (v3.0).",
)
@feature_names("Features to export.")
@click.option("--fps", type=float, help="For lerobot: frames per second, if episodes have none.")
@click.option("--video", metavar="CODEC", help="For lerobot: encode images (h264, av1, …).")
@pairs("--rename", "rename", "FEATURE=NAME", "For lerobot: the column of a feature.")
@source_option
@click.option("--quiet", is_flag=True, help="Hide the progress bar.")
@joins
@common
def export(
    path: str,
    key: str | None,
    dest: str | None,
    output: str | None,
    kind: str,
    features: list[str] | None,
    fps: float | None,
    video: str | None,
    rename: dict[str, str],
    source_options: dict[str, Any] | None,
    quiet: bool,
    joining: dict[str, Any],
    storage_options: dict[str, Any] | None,
) -> None:
    """Export episodes as files or a LeRobot dataset.

    KEY is an episode, GLOB a pattern; '*', the default with -o, exports all episodes. PATH is a
    dataset, or an original such as a bag, which is packed beside DEST first and removed at the end.

    \b
    --format frames     DEST/KEY/: image, npy and JSON files; `seqrecord write` reads them back
    --format lerobot    DEST: a LeRobot dataset; video is copied without decoding
    """
    if output is not None and dest is None:
        key, dest = key or "*", output
    if key is None or dest is None or output not in (None, dest):
        raise click.UsageError("expected PATH KEY|GLOB DEST, or PATH [KEY|GLOB] -o DEST")
    for name, argument in (("fps", fps), ("video", video), ("rename", rename or None)):
        if kind == "frames" and argument is not None:
            raise click.UsageError(f"--{name} requires --format lerobot")
    if joining and source_options:
        raise click.UsageError("--source-option cannot be combined with --join")
    open_options: dict[str, Any] = {"storage_options": storage_options, "options": source_options}
    open_options["joining"] = joining
    with (
        _opened_or_packed(path, key, dest, features, quiet=quiet, **open_options) as dataset,
        ProgressBar("frames", speed=True, quiet=quiet) as bar,
    ):
        episodes = _selection(dataset, key)
        count = len(dataset.find_episodes(episodes))
        options: dict[str, Any] = {"features": features, "progress": bar}
        if kind == "lerobot":
            lerobot_options: dict[str, Any] = {"fps": fps, "video": video, "rename": rename}
            to_lerobot(dataset, dest, episodes=episodes, **lerobot_options, **options)
        else:
            to_files(dataset, episodes, dest, **options)
    click.echo(f"{Path(dest)}: {counted(count, 'episode')}")


def _selection(dataset: Dataset, key: str) -> EpisodeFilter:
    """The episode of this key, or those of a glob."""
    return [key] if key in dataset.episodes else key


@contextmanager
def _opened_or_packed(
    path: str,
    key: str,
    dest: str,
    features: list[str] | None,
    *,
    storage_options: dict[str, Any] | None,
    options: dict[str, Any] | None,
    joining: dict[str, Any],
    quiet: bool,
) -> Iterator[Dataset]:
    """Open a dataset; an original is packed into a temporary folder if the selected episodes cannot
    be read in place.
    """
    dataset = None
    if joining:
        dataset = open_dataset(path, storage_options=storage_options, **joining)
    elif options is None:
        with suppress(NotFoundError, SourceError), ExitStack() as opened:
            dataset_in_place = opened.enter_context(
                dataset_of(path, storage_options=storage_options)
            )
            dataset_in_place.find_episodes(_selection(dataset_in_place, key))
            opened.pop_all()
            dataset = dataset_in_place
    if dataset is not None:
        with dataset:
            yield dataset
        return
    source = open_source(
        path, storage_options=storage_options, features=features, **(options or {})
    )
    parent = Path(dest).absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".seqrecord-", dir=parent) as folder:
        with ProgressBar("frames", speed=True, quiet=quiet) as bar:
            convert(source, Path(folder) / "records", progress=bar)
        with open_dataset(Path(folder) / "records") as packed_dataset:
            yield packed_dataset


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
    report = to_hub(path, url, **options)
    sent_text = f"{counted(len(report.sent), 'file')}, {format_size(report.sent_bytes)}"
    removed_text = f", {len(report.removed)} removed" if report.removed else ""
    click.echo(
        f"{report.url}: {f'{sent_text} pushed{removed_text}' if report.sent else 'nothing new'}"
    )
    if report.is_card_kept:
        click.echo("README.md kept: it was not written by push", err=True)
