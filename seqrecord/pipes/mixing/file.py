"""Mix files: the sources and arguments of a `SeqRecordMix` in YAML."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from seqrecord.errors import ClipError, NotFoundError
from seqrecord.pipes.mixing.file_context import Context, Default, absolute
from seqrecord.pipes.mixing.file_source import (
    BY_SOURCE,
    OF_PYTHON,
    OF_SOURCE,
    make_source,
    source_keys,
)
from seqrecord.pipes.mixing.file_values import check_keys, python_value
from seqrecord.pipes.mixing.yaml_file import YamlDict, plain, read_yaml
from seqrecord.pipes.options import check_option
from seqrecord.text import repr_of

_WEIGHTS = ("weights", "alpha", "repeat", "choose")
_MOST_FILES = 16  # one in the other
_MOST_SOURCES = 1024  # each with threads of its own


def load_mix(
    make: Callable[..., Any],
    path: str | os.PathLike[str],
    split: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    fallbacks: Mapping[str, Any] | None = None,
) -> Any:
    """Create a mix from a file; see `SeqRecordMix.from_file`.

    `make` is the class of the mix. `fallbacks` has `batch_size` and `clip_len` for a file without
    them.
    """
    context = Context(make, split, {}, (absolute(path),), fallbacks or {})
    return _load(context, dict(overrides or {}))


def _load(context: Context, overrides: dict[str, Any]) -> Any:
    """Create the mix of a context's file; `None` if a nested one has no source in the split."""
    try:
        root = read_yaml(context.path)
    except OSError as error:
        problem = f"the mix file cannot be read: {error.strerror}"
        raise NotFoundError(problem, file=str(context.path)) from None
    of_mix = [name for name in inspect.signature(context.make).parameters if name != "sources"]
    top, lines = _top_level(context, root, overrides, of_mix)
    options = {name: one for name, one in top.items() if _is_of_mix(name, one, of_mix)}
    own = [Default(n, top[n], f"{lines[n]}, {n}") for n in top if n not in options]
    defaults = {**context.defaults, **{default.key: default for default in own}}
    entries = _entries(context, root)
    inner = replace(context, defaults=defaults)
    sources = {n: _source(inner, n, entries[n], root["sources"].lines[n]) for n in entries}
    sources = {name: source for name, source in sources.items() if source is not None}
    is_nested = len(context.files) > 1
    if is_nested and not sources:
        return None
    has_size = "batch_size" in options
    if not has_size and (size := 1 if is_nested else context.fallbacks.get("batch_size")):
        options["batch_size"], has_size = size, True  # of a nested mix, it has no effect
    context.check_used(own)
    with context.naming("", lines):
        if not sources:
            raise ClipError("no source has episodes in the split", got=context.split)
        if not has_size:
            expected = "batch_size: 32 in the file, or from_file(…, batch_size=32)"
            raise ClipError("the mix has no batch_size", expected=expected)
        if not any(name in overrides for name in _WEIGHTS):
            options |= _by_source(entries, sources, options)
        for name in _WEIGHTS:  # also of sources left out by the split
            if isinstance(value := options.get(name), Mapping):
                kept = [n for n in value if n in sources or n not in entries]
                options[name] = {n: value[n] for n in kept}
        return context.make(sources, **options)


def _top_level(
    context: Context, root: YamlDict, overrides: Mapping[str, Any], of_mix: Collection[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The top-level keys and the arguments of `from_file`, with the place of each."""
    known, top = ["sources", *of_mix, *OF_SOURCE], dict[str, Any]()
    lines = {name: f"line {line}" for name, line in root.lines.items()}
    for name in root:
        with context.naming(lines[name]):
            check_keys("the mix file has an unknown key", [name], known)
            if name != "sources":
                top[name] = _value(name, plain(root[name]), of_mix)
    if any(name in overrides for name in _WEIGHTS):
        top = {name: value for name, value in top.items() if name not in _WEIGHTS}
    where, known = "argument of from_file", [*of_mix, *OF_SOURCE, *OF_PYTHON]
    with context.naming(where):
        check_keys("there is no such argument", overrides, known)
        top |= {name: _value(name, value, of_mix) for name, value in overrides.items()}
    return top, lines | dict.fromkeys(overrides, where)


def _value(name: str, given: Any, of_mix: Collection[str]) -> Any:
    """The Python value of a top-level key. Raises `ClipError`."""
    value = python_value(name, given)
    return value if _is_of_mix(name, value, of_mix) else check_option(name, value)


def _is_of_mix(name: str, value: Any, of_mix: Collection[str]) -> bool:
    """Whether a top-level key is an argument of the mix; `features` is if it is no list."""
    return name in of_mix and (name != "features" or isinstance(value, str))


def _entries(context: Context, root: YamlDict) -> dict[str, YamlDict]:
    """The sources' keys by name."""
    sources = root.get("sources")
    with context.naming(f"line {root.lines.get('sources', 1)}"):
        if not isinstance(sources, YamlDict) or not sources:
            expected = "sources: with a name for each, and its location"
            raise ClipError("the mix file has no sources", expected=expected, got=repr_of(sources))
        context.names.extend(sources)
        if (count := len(context.names)) > _MOST_SOURCES:
            expected = f"at most {_MOST_SOURCES:,}, nested files included"
            raise ClipError("sources are too many", expected=expected, got=f"{count:,} so far")
    for name, entry in sources.items():
        with context.naming(f"line {sources.lines[name]}, source {name!r}"):
            if not isinstance(entry, YamlDict):
                expected = "keys such as location: and weight:"
                raise ClipError("a source is not a mapping", expected=expected, got=repr_of(entry))
    return dict(sources)


def _source(context: Context, name: str, entry: YamlDict, line: int) -> Any:
    """Create a source; `None` if the split has no episode of it."""
    what = f"line {line}, source {name!r}"
    options = source_keys(context, entry, f"source {name!r}")
    with context.naming(what):
        if "mix" not in options:
            return make_source(context, options)
        path = absolute(context.resolved(options["mix"]))
        if path in context.files:
            shown = " -> ".join(map(str, (*context.files, path)))
            raise ClipError("mix files contain each other", expected="no cycle", got=shown)
        if len(context.files) == _MOST_FILES:
            expected = f"at most {_MOST_FILES} files, one in the other"
            raise ClipError("mix is nested too deep", expected=expected, got=str(path))
        return _load(replace(context, files=(*context.files, path)), {})


def _by_source(
    entries: Mapping[str, YamlDict], sources: Collection[str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """`weights`, `repeat` and `choose` of the mix, from the keys of its sources."""
    found: dict[str, dict[str, Any]] = {}
    for key in BY_SOURCE:
        some = {name: entries[name][key] for name in sources if key in entries[name]}
        argument = "weights" if key == "weight" else key
        if some and argument in options:
            problem = f"{argument} is given for the mix, and {key} for source {next(iter(some))!r}"
            raise ClipError(problem, expected="only one")
        found |= {argument: some} if some else {}
    if lacking := [name for name in sources if name not in found.get("weights", sources)]:
        problem, some_names = f"source {lacking[0]!r} has no weight", ", ".join(found["weights"])
        raise ClipError(problem, expected="a weight for each source, or none", got=some_names)
    return found
