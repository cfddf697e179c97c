"""The commands that change which episodes and features a dataset has: `edit` and `merge`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from seqrecord.cli.arguments import common, feature_names, meanings, parse_by_feature, write_mode
from seqrecord.cli.terminal import Group, ProgressBar
from seqrecord.edit import (
    add_feature,
    delete_episodes,
    describe_features,
    drop_features,
    keep_episodes,
    merge_datasets,
    rename_episodes,
    set_metadata,
    set_text,
    split_episodes,
    values_of_dataset,
    values_of_files,
)
from seqrecord.edit.features import spec_of_dataset
from seqrecord.indexing.opening import opened
from seqrecord.reading.filters import EpisodeFilter
from seqrecord.storage import parse_location
from seqrecord.text import counted
from seqrecord.units import format_size


def _filter(_ctx: click.Context, _param: click.Parameter, keys: tuple[str, ...]) -> EpisodeFilter:
    """Keys as they are, or one glob. An episode may have a key that looks like a glob."""
    if len(keys) == 1 and set(keys[0]) & set("*?["):
        return keys[0]
    return list(keys)


_PATH = click.argument("path")
_EPISODES = click.argument(
    "episodes", metavar="KEY…|GLOB", nargs=-1, required=True, callback=_filter
)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Only print what would be changed.")


@click.group(cls=Group)
def edit() -> None:
    """Change a dataset: which episodes and features there are, keys, metadata and splits.

    Record files stay as they are, and `reindex` does not undo an edit. Episodes are keys, or a glob
    such as 'kitchen/*'.
    """


@edit.command()
@_PATH
@_EPISODES
@_DRY_RUN
@common
def delete(path: str, episodes: EpisodeFilter, **options: Any) -> None:
    """Delete episodes. `clean` removes the record files of which nothing is left.

    Statistics are removed with a warning; `seqrecord stats` computes them again.
    """
    _print_keys(path, delete_episodes(path, episodes, **options), "deleted", options)


@edit.command()
@_PATH
@_EPISODES
@_DRY_RUN
@common
def keep(path: str, episodes: EpisodeFilter, **options: Any) -> None:
    """Delete all other episodes."""
    _print_keys(path, keep_episodes(path, episodes, **options), "deleted", options)


@edit.command()
@_PATH
@click.argument("old", metavar="KEY|GLOB")
@click.argument("new", metavar="NEW_KEY")
@_DRY_RUN
@common
def rename(path: str, old: str, new: str, **options: Any) -> None:
    """Give an episode another key, or all that GLOB fits: {} in NEW_KEY is the old key.

    `seqrecord edit rename records/ 'episode_*' 'kitchen/{}'`.
    """
    _print_keys(path, rename_episodes(path, {old: new}, **options), "renamed", options)


@edit.command("set-metadata")
@_PATH
@_EPISODES
@click.option(
    "--set", "entries", metavar="NAME=VALUE", multiple=True, help="JSON, or else text; repeatable."
)
@click.option("--remove", metavar="NAME", multiple=True, help="Remove an entry; repeatable.")
@click.option(
    "--text", metavar="NAME=TEXT", help="A feature of texts, such as task: TEXT on every frame."
)
@_DRY_RUN
@common
def set_entries(
    path: str,
    episodes: EpisodeFilter,
    entries: tuple[str, ...],
    remove: tuple[str, ...],
    text: str | None,
    **options: Any,
) -> None:
    """Change entries of the metadata of episodes, and the others stay; or the texts of frames."""
    wanted: dict[str, Any] = dict.fromkeys(remove)
    for entry in entries:
        name, value = _entry(entry)
        if name in wanted:
            raise click.UsageError(f"two values for {name}")
        wanted[name] = _value(value)
    if bool(wanted) == (text is not None):
        raise click.UsageError("--set NAME=VALUE and --remove NAME, or --text NAME=TEXT alone")
    if text is not None:
        changed = set_text(path, episodes, *_entry(text), **options)
    else:
        changed = set_metadata(path, episodes, wanted, **options)
    _print_keys(path, changed, "relabelled", options)


@edit.command("split")
@_PATH
@_EPISODES
@click.option("--name", help="The split; left out: none.")
@_DRY_RUN
@common
def put_in_split(path: str, episodes: EpisodeFilter, name: str | None, **options: Any) -> None:
    """Put episodes into a split, or into none. `seqrecord split` draws them."""
    changed = split_episodes(path, episodes, name, **options)
    _print_keys(path, changed, f"put into {name}" if name else "put into no split", options)


@click.command()
@click.argument("sources", metavar="PATH…", nargs=-1, required=True)
@click.option("-o", "--dst", required=True, help="Where the new dataset goes.")
@click.option(
    "--prefix",
    "prefixes",
    metavar="NAME=TEXT",
    multiple=True,
    help="What comes before the keys of a dataset, named by its PATH or by the last name in that; "
    "repeatable. Keys of LeRobot datasets are alike: `--prefix b-records=b/`.",
)
@feature_names("Names of the features to merge.")
@write_mode
@click.option("--quiet", is_flag=True, help="Show no progress.")
@_DRY_RUN
@common
def merge(
    sources: tuple[str, ...],
    dst: str,
    prefixes: tuple[str, ...],
    quiet: bool,
    **options: Any,
) -> None:
    """Make a dataset of all episodes of several ones; these stay as they are.

    Frames are copied without decoding where the first dataset has the same codecs, and encoded
    again elsewhere.
    """
    before = [""] * len(sources)
    for text in prefixes:
        name, _, prefix = text.rpartition("=")
        found = [i for i, path in enumerate(sources) if name.rstrip("/") in _names_of(path)]
        if len(found) != 1 or before[found[0]]:
            raise click.UsageError("--prefix takes NAME=TEXT, and NAME is one PATH, or ends it")
        before[found[0]] = prefix
    with ProgressBar("frames", quiet=quiet, resumes=True) as bar:
        options["progress"] = lambda at: bar.show(at.frames, at.total_frames, "")
        report = merge_datasets(sources, dst, prefixes=before, **options)
    would = "would have " if options["dry_run"] else ""
    click.echo(
        f"{parse_location(dst).shown}: {would}{counted(report.num_episodes, 'episode')}, "
        f"{counted(report.num_frames, 'frame')}, {format_size(report.num_bytes)}"
    )


@edit.command()
@_PATH
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
@click.option("--overwrite", is_flag=True, help="In the place of the feature of this name.")
@_DRY_RUN
@common
def add(
    path: str, name: str, other: str | None, feature: str | None, files: str | None, **options: Any
) -> None:
    """Add a feature: new record files, and those that are there stay as they are."""
    if (other is None) == (files is None):
        raise click.UsageError("where from: --from DATASET, or --files FOLDER or FILE.npz")
    if feature is not None and other is None:
        raise click.UsageError("--feature goes with --from")
    if files is not None:
        spec = add_feature(path, name, values_of_files(files, name), **options)
    else:
        assert other is not None
        source = feature or name
        with opened(
            other, features=[source], storage_options=options["storage_options"]
        ) as dataset:
            known = dataset.features[source]
            if options["codec"]:
                known = replace(known, codec=())
            else:
                known = spec_of_dataset(dataset, source)
            values = values_of_dataset(dataset, source)
            spec = add_feature(path, name, values, spec=known, **options)
    _print_done(path, f"{spec}", "added", options)


@edit.command()
@_PATH
@meanings
@_DRY_RUN
@common
def describe(path: str, kinds: tuple[str, ...], units: tuple[str, ...], **options: Any) -> None:
    """Change kinds and units of features. No frame is read or written; `depth=` removes a unit.

    `seqrecord edit describe records/ --kind seg=segmentation --unit depth=mm`.
    """
    if not kinds and not units:
        raise click.UsageError("what to change: --kind FEATURE=KIND or --unit FEATURE=UNIT")
    given = [
        {name: text or None for name, text in (parse_by_feature(values, what) or {}).items()}
        for values, what in ((kinds, "KIND"), (units, "UNIT"))
    ]
    changed = describe_features(path, kinds=given[0], units=given[1], **options)
    for spec in changed:
        click.echo(f"{spec.name}: kind {spec.kind or 'unknown'}, unit {spec.unit or 'unknown'}")
    _print_done(path, counted(len(changed), "feature"), "changed", options)


@edit.command()
@_PATH
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
@_DRY_RUN
@common
def drop(path: str, names: tuple[str, ...], **options: Any) -> None:
    """Drop features. `clean` removes the record files of which nothing is left."""
    _print_done(path, ", ".join(drop_features(path, names, **options)), "dropped", options)


def _names_of(path: str) -> tuple[str, str]:
    """What names a dataset in an option: its path, and the last name in that."""
    bare = path.rstrip("/")
    return bare, bare.rpartition("/")[2]


def _entry(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"not an entry: {text!r}; write NAME=VALUE")
    return name, value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _print_keys(path: str, keys: list[str], done: str, options: Mapping[str, Any]) -> None:
    for key in keys:
        click.echo(key)
    _print_done(path, counted(len(keys), "episode"), done, options)


def _print_done(path: str, what: str, done: str, options: Mapping[str, Any]) -> None:
    would = "would be " if options["dry_run"] else ""
    click.echo(f"{parse_location(path).shown}: {what} {would}{done}")
