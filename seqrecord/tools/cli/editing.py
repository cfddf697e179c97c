"""The commands that change which episodes and features a dataset has: `edit` and `merge`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import click

from seqrecord.edit import (
    add_feature,
    delete_episodes,
    drop_features,
    keep_episodes,
    merge_datasets,
    relabel_episodes,
    rename_episodes,
    split_episodes,
    values_of_dataset,
    values_of_files,
)
from seqrecord.edit.features import spec_of_dataset
from seqrecord.reading.dataset import opened
from seqrecord.reading.filters import EpisodeFilter
from seqrecord.storage import parse_location
from seqrecord.text import counted
from seqrecord.tools.cli.arguments import common
from seqrecord.tools.cli.terminal import Group
from seqrecord.units import format_size

__all__ = ["edit", "merge"]

_EPISODES = click.argument("episodes", metavar="KEY…|GLOB", nargs=-1, required=True)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Only print what would be changed.")


@click.group(cls=Group)
def edit() -> None:
    """Change a dataset: which episodes and features there are, keys, metadata and splits.

    Record files stay as they are, and `reindex` does not undo an edit. Episodes are keys, or a glob
    such as 'kitchen/*'.
    """


@edit.command()
@click.argument("path")
@_EPISODES
@_DRY_RUN
@common
def delete(
    path: str, episodes: tuple[str, ...], dry_run: bool, storage_options: dict[str, Any] | None
) -> None:
    """Delete episodes. `clean` removes the record files of which nothing is left."""
    chosen = delete_episodes(
        path, _filter(episodes), dry_run=dry_run, storage_options=storage_options
    )
    _say(path, chosen, "deleted", dry_run)


@edit.command()
@click.argument("path")
@_EPISODES
@_DRY_RUN
@common
def keep(
    path: str, episodes: tuple[str, ...], dry_run: bool, storage_options: dict[str, Any] | None
) -> None:
    """Delete all other episodes."""
    chosen = keep_episodes(
        path, _filter(episodes), dry_run=dry_run, storage_options=storage_options
    )
    _say(path, chosen, "deleted", dry_run)


@edit.command()
@click.argument("path")
@click.argument("old", metavar="KEY")
@click.argument("new", metavar="NEW_KEY")
@_DRY_RUN
@common
def rename(
    path: str, old: str, new: str, dry_run: bool, storage_options: dict[str, Any] | None
) -> None:
    """Give an episode another key."""
    chosen = rename_episodes(path, {old: new}, dry_run=dry_run, storage_options=storage_options)
    _say(path, chosen, "renamed", dry_run)


@edit.command()
@click.argument("path")
@_EPISODES
@click.option(
    "--set", "entries", metavar="NAME=VALUE", multiple=True, help="JSON, or else text; repeatable."
)
@click.option("--remove", metavar="NAME", multiple=True, help="Remove an entry; repeatable.")
@_DRY_RUN
@common
def relabel(
    path: str,
    episodes: tuple[str, ...],
    entries: tuple[str, ...],
    remove: tuple[str, ...],
    dry_run: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Change entries of the metadata of episodes; the others stay."""
    wanted: dict[str, Any] = dict.fromkeys(remove)
    for text in entries:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"not an entry: {text!r}; write NAME=VALUE")
        if name in wanted:
            raise click.UsageError(f"two values for {name}")
        wanted[name] = _value(value)
    if not wanted:
        raise click.UsageError("nothing to change: --set NAME=VALUE or --remove NAME")
    chosen = relabel_episodes(
        path, _filter(episodes), wanted, dry_run=dry_run, storage_options=storage_options
    )
    _say(path, chosen, "relabelled", dry_run)


@edit.command("split")
@click.argument("path")
@_EPISODES
@click.option("--name", help="The split; left out: none.")
@_DRY_RUN
@common
def put_in_split(
    path: str,
    episodes: tuple[str, ...],
    name: str | None,
    dry_run: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Put episodes into a split, or into none. `seqrecord split` draws them."""
    chosen = split_episodes(
        path, _filter(episodes), name, dry_run=dry_run, storage_options=storage_options
    )
    _say(path, chosen, f"put into {name}" if name else "put into no split", dry_run)


@click.command()
@click.argument("sources", metavar="PATH…", nargs=-1, required=True)
@click.option("-o", "--dst", required=True, help="Where the new dataset goes.")
@click.option("--copy", is_flag=True, help="Copy record files even where they can be linked.")
@_DRY_RUN
@common
def merge(
    sources: tuple[str, ...],
    dst: str,
    copy: bool,
    dry_run: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Make a dataset of all episodes of several ones; these stay as they are.

    On one disk record files are hard-linked, and so take no more room; elsewhere they are copied,
    in one bucket by the service. Datasets of other schemas are not merged: the error names the
    command that packs them into one.
    """
    report = merge_datasets(
        sources, dst, link=not copy, dry_run=dry_run, storage_options=storage_options
    )
    would = "would have " if dry_run else ""
    click.echo(
        f"{parse_location(dst).shown}: {would}{counted(report.num_episodes, 'episode')}, "
        f"{counted(report.num_frames, 'frame')} in "
        f"{counted(report.num_record_files, 'record file')}; "
        f"{format_size(report.linked_bytes)} linked, {format_size(report.copied_bytes)} copied"
        + (f", {format_size(report.server_bytes)} of it on the server" * (report.server_bytes > 0))
    )


@edit.command()
@click.argument("path")
@click.argument("name")
@click.option("--from", "other", metavar="DATASET", help="Another dataset with the same episodes.")
@click.option("--feature", help="Its name in the other dataset; by default NAME.")
@click.option(
    "--files",
    metavar="FOLDER|FILE.npz",
    help="Arrays of shape [frames, …]: KEY.npy or KEY.npz in a folder, or a .npz file with keys.",
)
@click.option("--codec", help="As for `write`; by default that of the other dataset, or balanced.")
@click.option("--kind", help="What the feature is, such as depth or mask.")
@click.option("--unit", help="Of what its numbers are, such as m.")
@_DRY_RUN
@common
def add(
    path: str,
    name: str,
    other: str | None,
    feature: str | None,
    files: str | None,
    codec: str | None,
    kind: str | None,
    unit: str | None,
    dry_run: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Add a feature: new record files, and those that are there stay as they are."""
    if (other is None) == (files is None):
        raise click.UsageError("where from: --from DATASET, or --files FOLDER or FILE.npz")
    if feature is not None and other is None:
        raise click.UsageError("--feature goes with --from")
    said: dict[str, Any] = {"kind": kind, "unit": unit, "codec": codec, "dry_run": dry_run}
    said["storage_options"] = storage_options
    if files is not None:
        spec = add_feature(path, name, values_of_files(files, name), **said)
    else:
        assert other is not None
        source = feature or name
        with opened(other, features=[source], storage_options=storage_options) as dataset:
            known = dataset.features[source]
            known = replace(known, codec=()) if codec else spec_of_dataset(dataset, source)
            spec = add_feature(path, name, values_of_dataset(dataset, source), spec=known, **said)
    click.echo(f"{parse_location(path).shown}: {spec} {'would be ' if dry_run else ''}added")


@edit.command()
@click.argument("path")
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
@_DRY_RUN
@common
def drop(
    path: str, names: tuple[str, ...], dry_run: bool, storage_options: dict[str, Any] | None
) -> None:
    """Drop features. `clean` removes the record files of which nothing is left."""
    dropped = drop_features(path, names, dry_run=dry_run, storage_options=storage_options)
    would = "would be " if dry_run else ""
    click.echo(f"{parse_location(path).shown}: {', '.join(dropped)} {would}dropped")


def _filter(episodes: tuple[str, ...]) -> EpisodeFilter:
    """Keys as they are, or one glob. An episode may have a key that looks like a glob."""
    if len(episodes) == 1 and set(episodes[0]) & set("*?["):
        return episodes[0]
    return list(episodes)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _say(path: str, keys: list[str], done: str, dry_run: bool) -> None:
    for key in keys:
        click.echo(key)
    would = "would be " if dry_run else ""
    click.echo(f"{parse_location(path).shown}: {counted(len(keys), 'episode')} {would}{done}")
