"""`seqrecord edit` and `merge`: changes to episodes and features."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import click

from seqrecord.edit import (
    add_feature,
    delete_episodes,
    describe_features,
    drop_features,
    merge_datasets,
    rename_episodes,
    rename_features,
    restore_version,
    set_metadata,
    set_text,
    split_episodes,
    trim_episodes,
    values_of_dataset,
    values_of_files,
)
from seqrecord.store.reading.filters import EpisodeFilter
from seqrecord.store.reading.opening import open as open_dataset
from seqrecord.store.reading.opening import opened
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.storage.url import parse_location
from seqrecord.store.text import counted, json_or_text
from seqrecord.store.units import format_size
from seqrecord.tools.cli.arguments import (
    common,
    feature_names,
    meanings,
    parse_pairs,
    write_mode,
)
from seqrecord.tools.cli.terminal import Command, Group, ProgressBar
from seqrecord.tools.edit.features import spec_of_dataset


def _filter(_ctx: click.Context, _param: click.Parameter, keys: tuple[str, ...]) -> EpisodeFilter:
    """Return the keys, or a single glob as text. Keys may contain glob characters."""
    if len(keys) == 1 and set(keys[0]) & set("*?["):
        return keys[0]
    return list(keys)


_COMPANION_NAME = "companion.feature"  # of the feature that `add --from` stores, until it does

_EPISODES = click.argument(
    "episodes", metavar="KEY…|GLOB", nargs=-1, required=True, callback=_filter
)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Print the changes without making them.")


@click.group(cls=Group)
def edit() -> None:
    """Change episodes, features, metadata and splits.

    Select episodes by keys or by a glob such as 'kitchen/*'. Edits change no record file, and
    `seqrecord reindex` does not undo them.
    """


def _command(
    name: str | None = None, *, episodes: bool = False
) -> Callable[[Callable[..., None]], click.Command]:
    """Decorate an edit of a dataset or some of its episodes."""

    def decorate(function: Callable[..., None]) -> click.Command:
        function = _EPISODES(function) if episodes else function
        return edit.command(name)(click.argument("path")(function))

    return decorate


def _options(function: Callable[..., None]) -> Callable[..., None]:
    """The options of every edit."""
    help_text = "Fail if the dataset is not at this version."
    if_version = click.option("--if-version", metavar="ID", help=help_text)
    return if_version(_DRY_RUN(common(function)))


@_command(episodes=True)
@_options
def delete(path: str, episodes: EpisodeFilter, **options: Any) -> None:
    """Delete episodes.

    Also removes the statistics; `seqrecord stats` recomputes them. `seqrecord clean` reclaims the
    space.
    """
    _print_keys(path, delete_episodes(path, episodes, **options), "deleted", options)


@_command(episodes=True)
@_options
def keep(path: str, episodes: EpisodeFilter, **options: Any) -> None:
    """Delete all episodes except these."""
    _print_keys(path, delete_episodes(path, episodes, others=True, **options), "deleted", options)


@_command()
@click.argument("old", metavar="[KEY|GLOB", required=False)
@click.argument("new", metavar="NEW_KEY]", required=False)
@click.option(
    "--feature",
    "features",
    metavar="OLD=NEW",
    multiple=True,
    help="Rename a feature instead of episodes (repeatable).",
)
@_options
def rename(
    path: str, old: str | None, new: str | None, features: tuple[str, ...], **options: Any
) -> None:
    """Rename episodes, or features.

    In NEW_KEY, {} stands for the old key: seqrecord edit rename records/ 'episode_*' 'kitchen/{}'
    """
    if bool(features) == (old is not None) or (old is None) != (new is None):
        raise click.UsageError("expected KEY|GLOB and NEW_KEY, or only --feature OLD=NEW")
    if old is not None and new is not None:
        _print_keys(path, rename_episodes(path, {old: new}, **options), "renamed", options)
        return
    renamed = rename_features(path, parse_pairs(features, "OLD=NEW"), **options)
    _print_done(path, ", ".join(spec.name for spec in renamed) or "nothing", "renamed", options)


def _frames(_ctx: click.Context, _param: click.Parameter, text: str) -> slice:
    """Parse START:STOP; either may be empty or negative."""
    if (match := re.fullmatch(r"(-?[0-9]+)?:(-?[0-9]+)?", text)) is None:
        raise click.BadParameter(f"expected START:STOP, for example 30:-10, got {text!r}")
    return slice(*(int(bound) if bound else None for bound in match.groups()))


@_command(episodes=True)
@click.option(
    "--frames",
    metavar="START:STOP",
    required=True,
    callback=_frames,
    help="Frames that remain, as in a Python slice: 30:-10 removes the first 30 and the last 10.",
)
@_options
def trim(path: str, episodes: EpisodeFilter, frames: slice, **options: Any) -> None:
    """Cut frames off the start and the end of episodes.

    Also removes the statistics; `seqrecord stats` recomputes them. `seqrecord clean` reclaims the
    space of whole chunks.
    """
    _print_keys(path, trim_episodes(path, episodes, frames, **options), "trimmed", options)


@_command("set-metadata", episodes=True)
@click.option(
    "--set", "entries", metavar="NAME=VALUE", multiple=True, help="JSON or text (repeatable)."
)
@click.option("--remove", metavar="NAME", multiple=True, help="Remove an entry (repeatable).")
@click.option(
    "--text", metavar="NAME=TEXT", help="Set a text feature, such as task, to TEXT in all frames."
)
@_options
def set_entries(
    path: str,
    episodes: EpisodeFilter,
    entries: tuple[str, ...],
    remove: tuple[str, ...],
    text: str | None,
    **options: Any,
) -> None:
    """Change metadata of episodes, or a text feature.

    Other entries are unchanged.
    """
    values = {
        name: json_or_text(value_text)
        for name, value_text in parse_pairs(entries, "NAME=VALUE").items()
    }
    if repeated_names := values.keys() & {*remove}:
        raise click.UsageError(f"two values for {min(repeated_names)}; expected one")
    changes = {**dict.fromkeys(remove), **values}
    if bool(changes) == (text is not None):
        raise click.UsageError(
            "expected --set NAME=VALUE and --remove NAME, or only --text NAME=TEXT"
        )
    if text is not None:
        [entry] = parse_pairs([text], "NAME=TEXT").items()
        changed = set_text(path, episodes, *entry, **options)
    else:
        changed = set_metadata(path, episodes, changes, **options)
    _print_keys(path, changed, "changed", options)


@_command("split", episodes=True)
@click.option("--name", help="Name of the split. [none: remove from the split]")
@_options
def put_in_split(path: str, episodes: EpisodeFilter, name: str | None, **options: Any) -> None:
    """Assign episodes to a split.

    Without --name, remove them from their split. `seqrecord split` assigns episodes at random.
    """
    changed = split_episodes(path, episodes, name, **options)
    _print_keys(path, changed, f"put into {name}" if name else "put into no split", options)


@click.command(cls=Command)
@click.argument("sources", metavar="PATH…", nargs=-1, required=True)
@click.option("-o", "--dst", required=True, help="Path or URL of the new dataset.")
@click.option(
    "--prefix",
    "prefixes",
    metavar="NAME=TEXT",
    multiple=True,
    help="Prefix for the keys of one dataset (repeatable). NAME is its PATH or the last part of "
    "it: --prefix b-records=b/. LeRobot datasets need one: their keys are equal.",
)
@feature_names("Features to merge.")
@write_mode
@click.option("--quiet", is_flag=True, help="Hide the progress bar.")
@_DRY_RUN
@common
def merge(
    sources: tuple[str, ...],
    dst: str,
    prefixes: tuple[str, ...],
    quiet: bool,
    **options: Any,
) -> None:
    """Merge datasets into a new one.

    Copies chunks without decoding if a dataset has the codecs of the first one; encodes its frames
    again otherwise. The datasets themselves are unchanged.
    """
    key_prefixes = [""] * len(sources)
    for text in prefixes:
        name, _, prefix = text.rpartition("=")
        numbers = [i for i, path in enumerate(sources) if name.rstrip("/") in _names_of(path)]
        if len(numbers) != 1 or key_prefixes[numbers[0]]:
            raise click.UsageError(
                f"expected --prefix NAME=TEXT, NAME being one PATH or its last part; got {text!r}"
            )
        key_prefixes[numbers[0]] = prefix
    with ProgressBar("frames", quiet=quiet, resumes=True) as bar:
        report = merge_datasets(sources, dst, prefixes=key_prefixes, progress=bar, **options)
    would = "would have " if options["dry_run"] else ""
    present = f"; {len(report.skipped):,} already present" if report.skipped else ""
    click.echo(
        f"{parse_location(dst).shown}: {would}{counted(report.num_episodes, 'episode')}, "
        f"{counted(report.num_frames, 'frame')}, {format_size(report.num_bytes)}{present}"
    )


@_command()
@click.argument("name")
@click.option(
    "--from",
    "from_dataset",
    metavar="DATASET",
    help="Copy from a companion: a dataset or table of the same episodes.",
)
@click.option("--feature", help="Name of the feature in DATASET. [NAME]")
@click.option(
    "--files",
    metavar="FOLDER|FILE.npz",
    help="Read arrays [frames, …]: KEY.npy or KEY.npz in FOLDER, or an array per key in FILE.npz.",
)
@click.option("--codec", help="Codec, as for write. [codec of DATASET, or balanced]")
@click.option("--kind", help="Kind of the feature, such as depth or mask.")
@click.option("--unit", help="Unit of the feature, such as m.")
@click.option("--overwrite", is_flag=True, help="Replace the feature of this name.")
@_options
def add(
    path: str,
    name: str,
    from_dataset: str | None,
    feature: str | None,
    files: str | None,
    **options: Any,
) -> None:
    """Add a feature.

    Writes new record files; existing ones are unchanged.
    """
    if (from_dataset is None) == (files is None):
        raise click.UsageError("expected either --from DATASET or --files FOLDER|FILE.npz")
    if feature is not None and from_dataset is None:
        raise click.UsageError("--feature requires --from")
    if files is not None:
        spec = add_feature(path, name, values_of_files(files, name), **options)
    else:
        assert from_dataset is not None
        spec = _add_joined(path, name, from_dataset, feature or name, **options)
    _print_done(path, f"{spec}", "added", options)


def _add_joined(
    path: str, name: str, from_dataset: str, source: str, **options: Any
) -> FeatureSpec:
    """Add a feature of a companion: its values of the dataset's present frames."""
    # Imported late: other edits work without the part.
    from seqrecord.companions.joined_tables import companion_of, is_table, joined_table

    settings = {"storage_options": options["storage_options"]}
    with ExitStack() as datasets:
        if is_table(from_dataset):
            dataset = datasets.enter_context(open_dataset(path, **settings))
            table = datasets.enter_context(joined_table(from_dataset, **settings))
            companion = datasets.enter_context(companion_of(table, dataset)).select([source])
        else:
            companion = datasets.enter_context(opened(from_dataset, features=[source], **settings))
        source_spec = companion.features[source]
        if options["codec"]:
            source_spec = replace(source_spec, codec=())
        else:
            source_spec = spec_of_dataset(companion, source)
        companion = companion.renamed({source: _COMPANION_NAME})  # the dataset may have its name
        joined = datasets.enter_context(open_dataset(path, join=[companion], **settings))
        values = values_of_dataset(joined, _COMPANION_NAME)
        return add_feature(path, name, values, spec=source_spec, **options)


@_command()
@meanings
@_options
def describe(path: str, kinds: dict[str, str], units: dict[str, str], **options: Any) -> None:
    """Change kinds and units of features.

    Reads and writes no frame. An empty unit (--unit depth=) removes it. Example:
    seqrecord edit describe records/ --kind seg=segmentation --unit depth=mm
    """
    if not kinds and not units:
        raise click.UsageError(
            "nothing to change; expected --kind FEATURE=KIND or --unit FEATURE=UNIT"
        )
    for name, texts in {"kinds": kinds, "units": units}.items():
        options[name] = {feature: text or None for feature, text in texts.items()}
    changed = describe_features(path, **options)
    for spec in changed:
        click.echo(f"{spec.name}: kind {spec.kind or 'unknown'}, unit {spec.unit or 'unknown'}")
    _print_done(path, counted(len(changed), "feature"), "changed", options)


@_command()
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
@_options
def drop(path: str, names: tuple[str, ...], **options: Any) -> None:
    """Drop features.

    `seqrecord clean` reclaims the space.
    """
    _print_done(path, ", ".join(drop_features(path, names, **options)), "dropped", options)


@_command()
@click.argument("version")
@_options
def restore(path: str, version: str, **options: Any) -> None:
    """Restore an earlier version.

    `seqrecord info PATH --versions` lists them. The result is a new version.
    """
    restore_version(path, version, **options)
    _print_done(path, f"version {version}", "restored", options)


def _names_of(path: str) -> tuple[str, str]:
    """The path of a dataset and its last part: its two names in an option."""
    bare = path.rstrip("/")
    return bare, bare.rpartition("/")[2]


def _print_keys(path: str, keys: list[str], verb: str, options: Mapping[str, Any]) -> None:
    for key in keys:
        click.echo(key)
    _print_done(path, counted(len(keys), "episode"), verb, options)


def _print_done(path: str, changed: str, verb: str, options: Mapping[str, Any]) -> None:
    would = "would be " if options["dry_run"] else ""
    click.echo(f"{parse_location(path).shown}: {changed} {would}{verb}")
