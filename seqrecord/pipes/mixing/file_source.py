"""The sources of a mix file: keys, location, split."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from seqrecord.errors import ClipError
from seqrecord.pipes.loaders import SeqRecordIterableDataset
from seqrecord.pipes.mixing.file_context import Context
from seqrecord.pipes.mixing.file_values import check_keys, python_value
from seqrecord.pipes.mixing.sources import MIX_OPTIONS
from seqrecord.pipes.mixing.weights import amount
from seqrecord.pipes.mixing.yaml_file import YamlDict, plain
from seqrecord.pipes.option_values import FrameCache
from seqrecord.pipes.options import LoaderOptions, check_option
from seqrecord.reading.dataset import Dataset
from seqrecord.reading.opening import dataset_of
from seqrecord.reading.opening import open as open_dataset
from seqrecord.text import repr_of
from seqrecord.units import check, check_integer

OF_PYTHON = ("frame_transform",)
"""Arguments of a source that a file cannot have."""

_OF_MIX = (*MIX_OPTIONS, "order")  # a mix has no sequences
OF_SOURCE = tuple(
    item.name for item in fields(LoaderOptions) if item.name not in (*_OF_MIX, *OF_PYTHON)
)
"""Arguments of a source that are keys."""

BY_SOURCE = ("weight", "repeat", "choose")
"""Keys of a source that are arguments of the mix."""

_NOT_OPEN = ("location", "features")  # arguments of the source
_OPEN = [n for n in inspect.signature(open_dataset).parameters if n not in _NOT_OPEN]
_APART = ("train", "val", "test")  # splits without a common episode


def source_keys(context: Context, entry: YamlDict, what: str) -> dict[str, Any]:
    """The checked keys of a source, with Python values. Raises `ClipError`."""
    found: dict[str, Any] = {}
    of_location = "mix" if "mix" in entry else "location"
    known = [of_location, *BY_SOURCE]
    known += [] if of_location == "mix" else ["open", "splits", *OF_SOURCE]
    for key in entry:
        with context.naming(f"line {entry.lines[key]}, {what}"):
            if key in _OF_MIX:
                raise ClipError(f"{key} is a key of the mix", expected="the top level of the file")
            if key in OF_PYTHON:
                expected = f"from_file(…, {key}=…) for all sources, or a mix in Python"
                raise ClipError(f"{key} needs a function", expected=expected)
            check_keys("the source has an unknown key", [key], known)
            value = python_value(key, plain(entry[key]))
            found[key] = check_option(key, value) if key in OF_SOURCE else value
            if key in ("weight", "repeat"):
                amount(key, value)
            if key == "choose":
                check_integer(key, value, least=0)
            if key == of_location and not (isinstance(found[key], str) and found[key]):
                raise ClipError(f"{key} is not a text", expected="a path", got=repr_of(found[key]))
    if of_location not in found:
        expected = "location: of a dataset, or mix: another mix file"
        with context.naming(what):
            raise ClipError("the source has no location", expected=expected, got=", ".join(found))
    return found


def make_source(context: Context, options: dict[str, Any]) -> SeqRecordIterableDataset | None:
    """Create a source from its keys; `None` if the split has no episode of it."""
    dataset = _opened(context, options)
    of_source = {key: options[key] for key in options if key in OF_SOURCE}
    is_in_split = _select_split(context, of_source, options.get("splits"), dataset)
    context.add_defaults(of_source, dataset)  # also for its names of features
    if not is_in_split:
        dataset.close()
        return None
    given = of_source.get("samples")
    given, is_list = (given, True) if isinstance(given, list) else ([given], False)
    if isinstance(given[0], Path):
        given = [context.resolved(str(given[0])), *given[1:]]
        of_source["samples"] = given if is_list else given[0]
    if isinstance(cache := of_source.get("frame_cache"), FrameCache):
        of_source["frame_cache"] = replace(cache, folder=context.resolved(str(cache.folder)))
    return SeqRecordIterableDataset(dataset, **of_source)


def _opened(context: Context, options: Mapping[str, Any]) -> Dataset:
    given = options.get("open", {})
    if not isinstance(given, dict):
        raise ClipError("open is not a mapping", expected=", ".join(_OPEN), got=repr_of(given))
    check_keys("open has an unknown key", given, _OPEN)
    for key, kind in (("version", str), ("storage_options", dict)):
        is_right = isinstance(given.get(key), kind | None)
        check(key, given.get(key), is_right, "a mapping" if kind is dict else "a text")
    if isinstance(folder := given.get("cache_dir"), str):
        given = {**given, "cache_dir": context.resolved(folder)}
    return dataset_of(context.resolved(options["location"]), **given)


def _select_split(context: Context, options: dict[str, Any], splits: Any, dataset: Dataset) -> bool:
    """Set `episodes` or `split` of a source; false if the split has no episode of it."""
    default = context.defaults.get("split")
    name = options.pop("split", None if default is None else default.value)
    name = context.split or name
    if splits is None:
        stored = dataset.contents.manifest.splits
        if name is not None and name not in stored:
            known = ", ".join(stored) or "a dataset with splits"
            expected, got = f"{known}; or splits: of the source", repr_of(name, 50)
            raise ClipError("unknown split", file=dataset.url, expected=expected, got=got)
        options |= {} if name is None else {"split": name}
        return True
    if not isinstance(splits, dict) or not splits:
        expected = 'episodes by split: {train: "a*", val: [3, 4]}'
        raise ClipError("splits is not a mapping", expected=expected, got=repr_of(splits))
    if "episodes" in options:
        raise ClipError("episodes excludes splits", expected="only one")
    if not isinstance(name, str):
        expected = f"from_file(…, split=…), or split: in the file, of {', '.join(splits)}"
        raise ClipError("splits without a chosen split", expected=expected, got=name)
    check_keys("splits lacks the split", [name], splits)
    for episodes in splits.values():
        check_option("episodes", episodes)
    first: dict[int, str] = {}
    for one in _APART:
        for row in dataset.find_episodes(splits[one]).tolist() if splits.get(one) else ():
            if first.setdefault(row, one) != one:
                raise ClipError(
                    "splits share an episode",
                    episode=dataset.contents.index.key(row),
                    expected=f"{', '.join(_APART)} without a common episode",
                    got=f"{first[row]} and {one}",
                )
    options["episodes"] = splits[name]
    return bool(splits[name])
