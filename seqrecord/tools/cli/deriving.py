"""`seqrecord derive` stores the results of a function."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from seqrecord.store.text import counted
from seqrecord.tools.cli.arguments import (
    AT_LEAST_1,
    common,
    feature_names,
    parse_codecs,
    parse_options,
)
from seqrecord.tools.cli.terminal import Command, ProgressBar
from seqrecord.tools.cli.timing import (
    loader_arguments,
    parse_arguments,
    with_loader_arguments,
)
from seqrecord.tools.derive.derive import check_derived
from seqrecord.tools.derive.derive import derive as derive_values
from seqrecord.tools.derive.provenance import Derivation
from seqrecord.tools.derive.ranks import launched_group


def _imported(name: str) -> Callable[..., Any]:
    """Import `MODULE:FUNCTION`, also from the current folder."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise click.BadParameter("not MODULE:FUNCTION, such as encoders:encode")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as `python -m` does
    try:
        value: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as error:
        raise click.BadParameter(f"cannot be imported: {error}") from error
    finally:
        sys.path.pop(0)
    if not callable(value):
        raise click.BadParameter(f"{attribute} is not a function")
    function: Callable[..., Any] = value
    return function


def _text_function(option: str) -> tuple[str, Callable[..., Any]]:
    """Parse `FEATURE=MODULE:FUNCTION`."""
    feature, _, name = option.partition("=")
    if not feature or not name:
        raise click.BadParameter(f"--per-text {option}: not FEATURE=MODULE:FUNCTION")
    return feature, _imported(name)


def _unknown_features() -> Sequence[str]:
    raise click.BadParameter("a codec chain needs the name of its feature: FEATURE=CODEC")


@click.command(cls=Command)
@click.argument("path")
@click.argument("function", metavar="MODULE:FUNCTION")
@click.option("-o", "--output", required=True, metavar="PATH", help="Path or URL of the dataset.")
@feature_names("Inputs of the function.", default="", required=True)
@feature_names("Features to copy.", "--keep", default="")
@click.option("--batch-size", type=AT_LEAST_1, help="Rows of a call. [1]")
@click.option("--device", metavar="DEVICE", help="Device of the tensors, such as cuda:0. [cpu]")
@click.option("--version", "function_version", default="", help="Version of the function.")
@click.option(
    "--argument",
    "function_arguments",
    multiple=True,
    metavar="NAME=VALUE",
    callback=lambda _ctx, _param, values: parse_options(values) or {},
    help="An argument of the function, also stored with the dataset (repeatable).",
)
@click.option(
    "--per-text",
    "text_functions",
    multiple=True,
    metavar="FEATURE=MODULE:FUNCTION",
    help="A function that is called once for each distinct text of a feature (repeatable).",
)
@click.option("--samples", metavar="YAML", help="A table or functions, as in mix files.")
@click.option("--clip-len", type=AT_LEAST_1, help="Frames of each sample.")
@loader_arguments(
    "Another argument that chooses or prepares clips, as in mix files: stride=4, "
    "'windows={image: [0, 1]}', 'resize=[224, 224]'."
)
@click.option(
    "--codec",
    "codecs",
    multiple=True,
    metavar="CODEC|FEATURE=CODEC",
    help="Codec of one feature or of all others (repeatable). [balanced]",
)
@click.option("--check", is_flag=True, help="List changed episodes; compute nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--quiet", is_flag=True, help="Hide the progress bar.")
@common
def derive(
    path: str,
    function: str,
    output: str,
    features: list[str],
    keep: list[str] | None,
    batch_size: int | None,
    device: str | None,
    function_version: str,
    function_arguments: dict[str, Any],
    text_functions: tuple[str, ...],
    samples: str | None,
    clip_len: int | None,
    arguments: dict[str, Any],
    codecs: tuple[str, ...],
    check: bool,
    as_json: bool,
    quiet: bool,
    storage_options: dict[str, Any] | None,
) -> None:
    """Store the results of a function for the frames, or samples, of a dataset.

    The function gets a dict of tensors [B, …] and the options --argument, and returns a dict of
    values for B rows. With --samples, --clip-len or windows, a row is a sample; else a frame. The
    same command continues after an interruption, and updates the values when PATH has changed.
    Under torchrun, all ranks share the work.
    """
    call = _imported(function)
    options: dict[str, Any] = {
        "features": features,
        "clip_len": clip_len,
        "batch_size": batch_size,
        "device": device,
    }
    if samples is not None:
        options |= parse_arguments([f"samples={samples}"])
    shared: dict[str, Any] = {
        "keep": keep or [],
        "version": function_version,
        "arguments": function_arguments,
        "per_text": dict(map(_text_function, text_functions)) or None,
        "storage_options": storage_options,
        **with_loader_arguments(options, arguments),
    }
    if check:
        state = check_derived(path, call, output, **shared)
        _show(state, output, as_json=as_json)
        if not state.is_current:
            raise SystemExit(1)
        return
    with (
        launched_group() as is_first,
        ProgressBar("frames", speed=True, quiet=quiet or not is_first) as bar,
    ):
        report = derive_values(
            path,
            call,
            output,
            codecs=parse_codecs(codecs, _unknown_features),
            progress=bar,
            **shared,
        )
    if not is_first:
        return
    if as_json:
        click.echo(json.dumps({"written": report.written, "skipped": report.skipped}, indent=1))
    elif not quiet:
        kept = f", {len(report.skipped)} were there" if report.skipped else ""
        click.echo(f"{output}: {counted(len(report.written), 'episode')} written{kept}")


def _show(state: Derivation, output: str, *, as_json: bool) -> None:
    lists = {
        "changed": [*state.changed],
        "new": [*state.new],
        "gone": [*state.gone],
        "renamed": [f"{old} -> {new}" for old, new in state.renamed.items()],
        "new text": [
            f"{name}: {text}" for name, texts in state.new_texts.items() for text in texts
        ],
    }
    if as_json:
        click.echo(json.dumps({"current": [*state.current], **lists}, indent=1))
        return
    click.echo(f"{output}: {counted(len(state.current), 'episode')} current")
    for name, keys in lists.items():
        for key in keys:
            click.echo(f"  {name}: {key}")
