"""`seqrecord info` and `verify`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from seqrecord.errors import SeqRecordError
from seqrecord.loader.clips.sample_tables import column_names
from seqrecord.loader.clips.samples import Samples
from seqrecord.store.clip_spec import ClipSpec
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.filters import EpisodeFilter
from seqrecord.store.reading.measured_rates import measured_rate
from seqrecord.store.reading.opening import open as open_dataset
from seqrecord.store.reading.opening import open_unchecked
from seqrecord.store.reading.summary import (
    EpisodeRow,
    Summary,
    list_episodes,
    listing_lines,
    summarize,
)
from seqrecord.store.reading.versions import list_versions
from seqrecord.store.text import counted, one_line, table_lines
from seqrecord.tools.cli.arguments import (
    AT_LEAST_1,
    check_usage,
    check_video,
    common,
    feature_names,
    joins,
)
from seqrecord.tools.cli.batch_rows import show_rows
from seqrecord.tools.cli.joining import opened_joined
from seqrecord.tools.cli.terminal import Command, ProgressBar, echo_json
from seqrecord.tools.verify import verify as verify_dataset
from seqrecord.tools.viewer.page_sources import is_mix_file

_NUMBER = click.IntRange(min=0)


@click.command(cls=Command)
@click.argument("path")
@click.argument("key", required=False)
@click.option(
    "--episodes",
    is_flag=True,
    help="List episodes, one per line. A glob for KEY filters them.",
)
@click.option("--versions", is_flag=True, help="List versions of the dataset, newest first.")
@click.option("--clip-len", type=AT_LEAST_1, help="Count the clips of this many frames.")
@click.option("--batch-size", type=AT_LEAST_1, help="Predict the memory of a loader.")
@feature_names("Features to show, and to require in clips.")
@click.option("--split", help="Split of a mix file, or of the run with --state.")
@click.option(
    "--samples",
    is_flag=False,
    flag_value="",
    metavar="[SAMPLES]",
    help="Show the first samples of an epoch: of a mix file; or of a table or functions as in mix "
    "files, such as '{every: 4}', with --clip-len.",
)
@click.option(
    "--budget",
    metavar="BUDGET",
    help="With --samples: the expected use of batches of this budget, such as 48 or "
    "'{size: 4096, cost: tokens, padded: true}'.",
)
@click.option(
    "--state",
    metavar="FILE",
    help="JSON file with a loader's state: show the rows of --batch in its run.",
)
@click.option("--batch", type=_NUMBER, help="With --state: number of the batch in its epoch.")
@click.option("--epoch", type=_NUMBER, help="With --state: the epoch. [that of the state]")
@click.option("--rank", type=_NUMBER, help="With --state: the rank. [0]")
@click.option(
    "--segment",
    type=_NUMBER,
    help="With --state: part of an epoch between changes of ranks or workers. [the last one]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with sizes in bytes.")
@joins
@common
def info(
    path: str,
    key: str | None,
    episodes: bool,
    versions: bool,
    clip_len: int | None,
    batch_size: int | None,
    features: list[str] | None,
    split: str | None,
    samples: str | None,
    budget: str | None,
    state: str | None,
    as_json: bool,
    joining: dict[str, Any],
    storage_options: dict[str, Any] | None,
    **place: int | None,
) -> None:
    """Show features, codecs, sizes and counts; of a mix file, sources and features.

    \b
    seqrecord info records/                   the dataset
    seqrecord info records/ demo/000          one episode: frames, rate, split, metadata
    seqrecord info records/ 'demo/*'          a list of episodes; all with --episodes
    seqrecord info records/ --clip-len 16     also clips; with --batch-size, memory
    seqrecord info records/ --versions        versions for seqrecord.open(PATH, version=N)
    seqrecord info records/ --join t.parquet  with the features of a table or another dataset
    seqrecord info mix.yaml                   sources, shares and features of a mix
    seqrecord info records/ --state state.json --rank 5 --batch 37     rows of a batch
    """
    is_mix, is_listing = is_mix_file(path), key or episodes
    _check_place(state, place, (is_listing, versions, clip_len, features))
    check_usage(
        ("--budget requires --samples, of a dataset",
         budget is not None, any((samples is None, is_mix, state))),
        ("a mix file takes only --clip-len, --split, --samples, --json",
         is_mix, any((is_listing, versions, features, storage_options, batch_size, joining))),
        ("a mix file takes --samples without a value, and not with --state",
         is_mix, samples is not None, samples or state),
        ("--split requires a mix file or --state", split is not None, not any((is_mix, state))),
        ("--versions cannot be combined with KEY, --episodes, --clip-len or --features",
         versions, any((is_listing, clip_len, features))),
        ("--versions cannot be combined with --batch-size", versions, batch_size),
        ("--versions cannot be combined with --join", versions, joining),
        ("--versions cannot be combined with --samples", versions, samples is not None),
        ("--batch-size requires --clip-len", batch_size, clip_len is None),
        ("--batch-size cannot be combined with KEY or --episodes", batch_size, is_listing),
        ("--batch-size cannot be combined with --samples", batch_size, samples is not None),
        ("--samples cannot be combined with KEY or --episodes",
         not is_mix, samples is not None, is_listing),
    )  # fmt: skip
    if state is not None:
        opening: dict[str, Any] = {"storage_options": storage_options, **joining}
        arguments = path, state, place, opening, samples, split
        show_rows(*arguments, is_mix=is_mix, as_json=as_json)
        return
    if is_mix:
        _show_mix(path, clip_len, split, samples=samples is not None, as_json=as_json)
        return
    if versions:
        _show_versions(path, storage_options, as_json=as_json)
        return
    if samples is not None:
        with open_dataset(
            path, features=features, storage_options=storage_options, **joining
        ) as dataset:
            _show_samples(dataset, samples, clip_len, budget, as_json=as_json)
        return
    clip = None if clip_len is None else ClipSpec(clip_len)
    with opened_joined(path, joining, storage_options, features=features) as (data, options):
        if isinstance(data, Dataset):
            _show_dataset(data, key, clip, batch_size, as_list=episodes, as_json=as_json)
            return
        with open_unchecked(data, features=features, **options) as dataset:
            _show_dataset(dataset, key, clip, batch_size, as_list=episodes, as_json=as_json)


def _check_place(
    state: str | None, place: Mapping[str, int | None], others: Iterable[object]
) -> None:
    """Raise `UsageError` unless `--state` and the place of a batch come together, alone."""
    check_usage(
        ("--state requires --batch", state is not None, place["batch"] is None),
        ("--batch, --epoch, --rank and --segment require --state",
         state is None, any(number is not None for number in place.values())),
        ("--state cannot be combined with KEY, --episodes, --versions, --clip-len or --features",
         state is not None, any(others)),
    )  # fmt: skip


def _show_dataset(
    dataset: Dataset,
    key: str | None,
    clip: ClipSpec | None,
    batch_size: int | None,
    *,
    as_list: bool,
    as_json: bool,
) -> None:
    is_key = key is not None and key in dataset.contents.index.positions
    if as_list or (key is not None and not is_key and set(key) & set("*?[")):
        make_lines = _json_lines if as_json else listing_lines
        for line in make_lines(dataset, [key] if key and is_key else key, clip=clip):
            click.echo(line)
        return
    report: Summary | EpisodeRow
    report = _summary(dataset, clip, batch_size) if key is None else _row(dataset, key, clip)
    click.echo(json.dumps(report.to_json(), indent=1) if as_json else str(report))


def _show_versions(path: str, storage_options: dict[str, Any] | None, *, as_json: bool) -> None:
    versions = list_versions(path, storage_options=storage_options)
    rows = [version.to_json() for version in versions]
    click.echo(json.dumps(rows, indent=1) if as_json else "\n".join(map(str, versions)))


def _summary(dataset: Dataset, clip: ClipSpec | None, batch_size: int | None) -> Summary:
    """Counts of a dataset, with the memory of a loader if there is a batch size."""
    summary = summarize(dataset, clip=clip)
    if clip is None or not batch_size or not summary.clips or not summary.clips.num_clips:
        return summary
    nbytes = _predicted_memory(dataset, clip.length, batch_size)
    clips = replace(summary.clips, batch_size=batch_size, memory_bytes=nbytes)
    return replace(summary, clips=clips)


def _row(dataset: Dataset, key: str, clip: ClipSpec | None) -> EpisodeRow:
    """An episode, with the rate of its timestamps."""
    row = next(list_episodes(dataset, [key], clip=clip))
    with suppress(SeqRecordError):  # `verify` reports unreadable timestamps
        row = replace(row, measured=measured_rate(dataset.episodes[key]))
    return row


def _predicted_memory(dataset: Dataset, clip_len: int, batch_size: int) -> int:
    """Predicted memory of a loader with these clips in one process, in bytes."""
    # Imported late: torch takes seconds.
    from seqrecord.loader.pipes.job_memory import predict_memory
    from seqrecord.loader.pipes.options import LoaderOptions

    return predict_memory(dataset, LoaderOptions(clip_len=clip_len, batch_size=batch_size))


def _show_samples(
    dataset: Dataset, samples: str, clip_len: int | None, budget: str | None, *, as_json: bool
) -> None:
    # Imported late: torch takes seconds.
    from seqrecord.loader.pipes.make_view import make_view
    from seqrecord.loader.pipes.options import ClipOptions, LoaderOptions, check_option
    from seqrecord.loader.pipes.view_order import predict_use
    from seqrecord.recipes.values import python_value
    from seqrecord.recipes.yaml_file import yaml_value

    value = check_option("samples", python_value("samples", yaml_value(samples or "null")))
    first_part = value[0] if isinstance(value, list) else value
    has_frames = not callable(first_part) and "frames" in column_names(first_part)
    options = ClipOptions(clip_len=None if has_frames else clip_len or 1, samples=value)
    table = make_view(dataset, options).samples.in_epoch(0).samples
    uses = dict[str, Any]()
    if budget is not None:
        given = yaml_value(budget)
        size = python_value("batch_size", given if isinstance(given, dict) else {"size": given})
        uses = predict_use(
            dataset,
            LoaderOptions(clip_len=options.clip_len, samples=options.samples, batch_size=size),
        )
    if as_json:
        values = {"num_samples": len(table), "first": table.head(), **uses}
        echo_json(values)
    else:
        lines = [*_sample_lines(dataset.url, table)]
        click.echo("\n".join([*lines, *(f"  {name}: {use}" for name, use in uses.items())]))


def _sample_lines(name: str, samples: Samples) -> Iterator[str]:
    """The number of samples, and the first rows of their table."""
    head = samples.head()
    yield f"{name}: {counted(len(samples), 'sample')} in epoch 0"
    rows = [(*head,), *(tuple(map(str, row)) for row in zip(*head.values(), strict=True))]
    yield from (f"  {line}" for line in table_lines(rows, num_left=len(head)))


def _show_mix(
    path: str, clip_len: int | None, split: str | None, *, samples: bool, as_json: bool
) -> None:
    # Imported late: torch takes seconds.
    from seqrecord.loader.mixing.mix import SeqRecordMix, mix_loader
    from seqrecord.recipes.mix_file import load_mix
    from seqrecord.recipes.yaml_file import read_yaml

    arguments = {} if clip_len is None else {"clip_len": clip_len}
    # A training may choose these two itself.
    mix = load_mix(SeqRecordMix, path, split, arguments, {"batch_size": 1, "clip_len": 1})
    summary, root = mix.summarize(), read_yaml(Path(path))
    source_names = [source.name for source in summary.sources]
    used = {*source_names, *(name.split("/")[0] for name in source_names)}
    unused = [name for name in root["sources"] if name not in used]
    loaders = mix_loader(mix).loaders if samples else {}
    tables = {name: loader.view.samples.in_epoch(0).samples for name, loader in loaders.items()}
    if as_json:
        report = {"file": path, **summary.to_json(), "unused_sources": unused}
        report |= (
            {"samples": {name: table.head() for name, table in tables.items()}} if samples else {}
        )
        echo_json(report)
        return
    click.echo(f"{path}\n{summary}")
    for name, table in tables.items():
        click.echo("\n".join(_sample_lines(name, table)))
    if "batch_size" not in root:
        click.echo("  the file has no batch_size: shown with 1")
    for name in unused:
        click.echo(f"  {name}: unused, with weight 0 or without episodes in the split")


def _json_lines(
    dataset: Dataset, episodes: EpisodeFilter, *, clip: ClipSpec | None
) -> Iterator[str]:
    """Yield a JSON array row by row: the list of episodes may be long."""
    prefix = "["
    for row in list_episodes(dataset, episodes, clip=clip):
        yield prefix + json.dumps(row.to_json())
        prefix = ","
    yield "]"


@click.command(cls=Command)
@click.argument("path")
@click.option("--deep", is_flag=True, help="Also decode all frames.")
@check_video
@click.option("--quiet", is_flag=True, help="Print problems only.")
@joins
@common
@click.pass_context
def verify(
    context: click.Context,
    path: str,
    deep: bool,
    check_video: bool,
    quiet: bool,
    joining: dict[str, Any],
    storage_options: dict[str, Any] | None,
) -> None:
    """Check files, page checksums and the index; with --join, those of all datasets.

    Prints one line per problem, and the skipped checks. The exit code is 1 if there is a problem.
    """
    with (
        opened_joined(path, joining, storage_options) as (data, options),
        ProgressBar("bytes", scale=True, quiet=quiet) as bar,
    ):
        report = verify_dataset(data, deep=deep, check_video=check_video, progress=bar, **options)
    for problem in report.problems:
        click.echo(f"{type(problem).__name__}: {one_line(problem)}")
    if not quiet:
        for note in report.notes:
            click.echo(f"note: {note}")
        click.echo(str(report))
    context.exit(0 if report.ok else 1)
