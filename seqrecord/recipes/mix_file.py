"""Mix files: the sources and arguments of a `SeqRecordMix` in YAML."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from seqrecord.errors import ClipError, NotFoundError, SeqRecordError
from seqrecord.loader.mixing.mix_datasets import MIX_OPTIONS
from seqrecord.loader.mixing.weights import amount
from seqrecord.loader.pipes.loaders import SeqRecordIterableDataset
from seqrecord.loader.pipes.option_values import FrameCache
from seqrecord.loader.pipes.options import LoaderOptions, check_option
from seqrecord.recipes.values import check_keys, python_value
from seqrecord.recipes.yaml_file import YamlDict, read_yaml
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.opening import dataset_of
from seqrecord.store.reading.opening import open as open_dataset
from seqrecord.store.reading.resizing import images_of
from seqrecord.store.storage.url import local_path, parse_location
from seqrecord.store.text import repr_of
from seqrecord.store.units import check, check_integer, raise_if

OF_PYTHON = ("frame_transform",)
"""Arguments of a source that a file cannot have."""

_WEIGHTS = ("weights", "alpha", "repeat", "choose")
_BY_SOURCE = ("weight", "repeat", "choose")  # keys of a source that are arguments of the mix
_OF_MIX = (*MIX_OPTIONS, "order")  # a mix has no sequences
_OF_SOURCE = [one.name for one in fields(LoaderOptions) if one.name not in (*_OF_MIX, *OF_PYTHON)]
_BY_FEATURE = ("windows", "resize", "ragged", "clip_transform")
_FIRST = ("rename", "features", "frame_transform")  # other defaults depend on them
_NOT_OPEN = ("location", "features")  # arguments of the source
_OPEN = [n for n in inspect.signature(open_dataset).parameters if n not in _NOT_OPEN]
_APART = ("train", "val", "test")  # splits without a common episode

_RANGE = re.compile(r"range\((?:(-?\d+), )?(-?\d+)(?:, (-?\d+))?\)")
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
    return _MixFile(make, split, (_absolute(path),), fallbacks or {}).load(dict(overrides or {}))


@dataclass
class _Default:
    """A top-level key that applies to all sources without a value of their own.

    Features that a source lacks are ignored in it. `seen` are the features of sources so far.
    """

    key: str
    value: Any
    where: str
    seen: set[str] = field(default_factory=set)

    @property
    def features(self) -> Collection[str]:
        """The features that the value names."""
        is_named = isinstance(self.value, Mapping) and self.key in (*_BY_FEATURE, "rename")
        is_list = self.key == "features" and isinstance(self.value, Sequence)
        return self.value if is_named or is_list else ()

    def check(self) -> None:
        """Raise `ClipError` for features that no source has."""
        unused = [name for name in self.features if self.seen and name not in self.seen]
        check_keys("no source of the mix has this feature", unused, self.seen)

    def value_for(self, options: Mapping[str, Any], dataset: Dataset) -> Any:
        """The value for a source with these options: its features only."""
        if not self.features:
            chosen = options.get("features")
            is_for_all = self.key != "resize" or images_of(dataset.select(chosen).features)
            return self.value if is_for_all else {}
        stored, rename = dataset.contents.value_names, options.get("rename") or {}
        names = dict(zip(stored, stored, strict=True))
        if self.key != "rename":
            names = {rename.get(name, name): name for name in stored}
        if self.key in _BY_FEATURE:
            if options.get("frame_transform") is not None:  # it may return each of them
                self.seen.update(self.value)
                return self.value
            chosen = options.get("features")
            names = {n: old for n, old in names.items() if chosen is None or old in chosen}
        self.seen.update(names)
        shared_names = [*filter(names.__contains__, self.value)]
        if self.key != "features":
            return {name: self.value[name] for name in shared_names}
        problem, expected = "the source has none of the mix's features", ", ".join(names)
        raise_if(not shared_names, problem, expected, ", ".join(self.value))
        return [names[name] for name in shared_names]


@dataclass(frozen=True)
class _MixFile:
    """A mix file being loaded.

    Attributes:
        make: class of the mix.
        split: the split to take, whatever the file has.
        files: this file is the last, nested in the others.
        fallbacks: `clip_len` and `batch_size` if there are none.
        defaults: keys for sources without their own, by name, of this file and of outer ones.
        names: of all files' sources so far.
    """

    make: Callable[..., Any]
    split: str | None
    files: tuple[Path, ...]
    fallbacks: Mapping[str, Any]
    defaults: Mapping[str, _Default] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    @property
    def of_mix(self) -> list[str]:
        """The arguments of the mix that are keys."""
        return [name for name in inspect.signature(self.make).parameters if name != "sources"]

    def load(self, overrides: dict[str, Any]) -> Any:
        """Create the mix; `None` if it is nested and has no source in the split."""
        try:
            root = read_yaml(self.files[-1])
        except OSError as error:
            problem = f"the mix file cannot be read: {error.strerror}"
            raise NotFoundError(problem, file=str(self.files[-1])) from None
        top, lines = self._top_level(root, overrides)
        options = {name: one for name, one in top.items() if self._is_of_mix(name, one)}
        own = {n: _Default(n, top[n], f"{lines[n]}, {n}") for n in top if n not in options}
        entries = self._entries(root)
        inner = replace(self, defaults={**self.defaults, **own})
        source_lines = root["sources"].lines
        sources = {
            name: source
            for name, entry in entries.items()
            if (source := inner.source(name, entry, source_lines[name])) is not None
        }
        is_nested = len(self.files) > 1
        if is_nested and not sources:
            return None
        if size := 1 if is_nested else self.fallbacks.get("batch_size"):
            options.setdefault("batch_size", size)  # of a nested mix, it has no effect
        for default in own.values():
            with self.naming(default.where):
                default.check()
        with self.naming("", lines):
            raise_if(not sources, "no source has episodes in the split", got=self.split)
            expected = "batch_size: 32 in the file, or from_file(…, batch_size=32)"
            raise_if("batch_size" not in options, "the mix has no batch_size", expected)
            if overrides.keys().isdisjoint(_WEIGHTS):
                options |= _by_source(entries, sources, options)
            without_episodes = entries.keys() - sources.keys()
            for name in _WEIGHTS:
                options |= _without(name, options.get(name), without_episodes)
            return self.make(sources, **options)

    def _top_level(
        self, root: YamlDict, overrides: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """The top-level keys and the arguments of `from_file`, with the place of each."""
        known, top = ["sources", *self.of_mix, *_OF_SOURCE], dict[str, Any]()
        lines = {name: f"line {line}" for name, line in root.lines.items()}
        for name in root:
            with self.naming(lines[name]):
                check_keys("the mix file has an unknown key", [name], known)
                if name != "sources":
                    top[name] = self._value(name, root[name])
        if not overrides.keys().isdisjoint(_WEIGHTS):
            top = {name: value for name, value in top.items() if name not in _WEIGHTS}
        where = "argument of from_file"
        with self.naming(where):
            known = [*self.of_mix, *_OF_SOURCE, *OF_PYTHON]
            check_keys("there is no such argument", overrides, known)
            top |= {name: self._value(name, value) for name, value in overrides.items()}
        return top, lines | dict.fromkeys(overrides, where)

    def _value(self, name: str, given: Any) -> Any:
        """The Python value of a top-level key. Raises `ClipError`."""
        value = python_value(name, given)
        return value if self._is_of_mix(name, value) else check_option(name, value)

    def _is_of_mix(self, name: str, value: Any) -> bool:
        """Whether a top-level key is an argument of the mix; `features` is if it is no list."""
        return name in self.of_mix and (name != "features" or isinstance(value, str))

    def _entries(self, root: YamlDict) -> dict[str, YamlDict]:
        """The sources' keys by name."""
        sources = root.get("sources")
        with self.naming(f"line {root.lines.get('sources', 1)}"):
            if not isinstance(sources, YamlDict) or not sources:
                expected = "sources: with a name for each, and its location"
                problem, got = "the mix file has no sources", repr_of(sources)
                raise ClipError(problem, expected=expected, got=got)
            self.names.extend(sources)
            expected, count = f"at most {_MOST_SOURCES:,}, nested files included", len(self.names)
            raise_if(count > _MOST_SOURCES, "sources are too many", expected, f"{count:,} so far")
        for name, entry in sources.items():
            with self.naming(f"line {sources.lines[name]}, source {name!r}"):
                is_wrong, expected = not isinstance(entry, YamlDict), "keys such as location:"
                raise_if(is_wrong, "a source is not a mapping", expected, entry)
        return dict(sources)

    def source(self, name: str, entry: YamlDict, line: int) -> Any:
        """Create a source; `None` if the split has no episode of it."""
        what = f"line {line}, source {name!r}"
        options = self._keys(entry, f"source {name!r}")
        with self.naming(what):
            if "mix" not in options:
                return self._loader(options)
            path = _absolute(self.resolved(options["mix"]))
            shown = " -> ".join(map(str, (*self.files, path)))
            raise_if(path in self.files, "mix files contain each other", "no cycle", shown)
            expected = f"at most {_MOST_FILES} files, one in the other"
            is_wrong = len(self.files) == _MOST_FILES
            raise_if(is_wrong, "mix is nested too deep", expected, str(path))
            return replace(self, files=(*self.files, path)).load({})

    def _keys(self, entry: YamlDict, what: str) -> dict[str, Any]:
        """The checked keys of a source, with Python values. Raises `ClipError`."""
        found: dict[str, Any] = {}
        place = "mix" if "mix" in entry else "location"
        known = [place, *_BY_SOURCE]
        known += [] if place == "mix" else ["open", "join", "splits", *_OF_SOURCE]
        for key in entry:
            with self.naming(f"line {entry.lines[key]}, {what}"):
                expected = "the top level of the file"
                raise_if(key in _OF_MIX, f"{key} is a key of the mix", expected)
                expected = f"from_file(…, {key}=…) for all sources, or a mix in Python"
                raise_if(key in OF_PYTHON, f"{key} needs a function", expected)
                check_keys("the source has an unknown key", [key], known)
                value = python_value(key, entry[key])
                found[key] = check_option(key, value) if key in _OF_SOURCE else value
                if key in ("weight", "repeat"):
                    amount(key, value)
                if key == "choose":
                    check_integer(key, value, least=0)
                is_wrong = key == place and not (isinstance(value, str) and value)
                raise_if(is_wrong, f"{key} is not a text", "a path", repr_of(value))
        with self.naming(what):
            expected = "location: of a dataset, or mix: another mix file"
            is_wrong = place not in found
            raise_if(is_wrong, "the source has no location", expected, ", ".join(found))
        return found

    def _loader(self, options: dict[str, Any]) -> SeqRecordIterableDataset | None:
        """Create a source from its keys; `None` if the split has no episode of it."""
        dataset = self._opened(options)
        of_source = {key: options[key] for key in options if key in _OF_SOURCE}
        is_in_split = self._select_split(of_source, options.get("splits"), dataset)
        self._add_defaults(of_source, dataset)  # also for its names of features
        if not is_in_split:
            dataset.close()
            return None
        given = of_source.get("samples")
        given, is_list = (given, True) if isinstance(given, list) else ([given], False)
        if isinstance(given[0], Path):
            given = [self.resolved(str(given[0])), *given[1:]]
            of_source["samples"] = given if is_list else given[0]
        if isinstance(cache := of_source.get("frame_cache"), FrameCache):
            of_source["frame_cache"] = replace(cache, folder=self.resolved(str(cache.folder)))
        return SeqRecordIterableDataset(dataset, **of_source)

    def _opened(self, options: Mapping[str, Any]) -> Dataset:
        given = options.get("open", {})
        is_wrong = not isinstance(given, dict)
        raise_if(is_wrong, "open is not a mapping", ", ".join(_OPEN), given)
        check_keys("open has an unknown key", given, _OPEN)
        for key, kind in (("version", str), ("storage_options", dict)):
            is_right = isinstance(given.get(key), kind | None)
            check(key, given.get(key), is_right, "a mapping" if kind is dict else "a text")
        if isinstance(folder := given.get("cache_dir"), str):
            given = {**given, "cache_dir": self.resolved(folder)}
        location, join = self.resolved(options["location"]), options.get("join", given.get("join"))
        if join is None:
            return dataset_of(location, **given)
        paths = join if isinstance(join, list) else [join]
        is_right = bool(paths) and all(isinstance(path, str) and path for path in paths)
        check("join", join, is_right, "paths of datasets or tables")
        given = {**given, "join": [self.resolved(path) for path in paths]}
        given.setdefault("skip_bad_episodes", bool(options.get("skip_bad_episodes")))
        return open_dataset(location, **given)

    def _select_split(self, options: dict[str, Any], splits: Any, dataset: Dataset) -> bool:
        """Set `episodes` or `split` of a source; false if the split has no episode of it."""
        default = self.defaults.get("split")
        name = options.pop("split", None if default is None else default.value)
        name = self.split or name
        if splits is None:
            stored = dataset.contents.manifest.splits
            if name is not None and name not in stored:
                known = ", ".join(stored) or "a dataset with splits"
                expected, got = f"{known}; or splits: of the source", repr_of(name, 50)
                raise ClipError("unknown split", file=dataset.url, expected=expected, got=got)
            options |= {} if name is None else {"split": name}
            return True
        is_right, expected = isinstance(splits, dict), 'episodes by split: {train: "a*"}'
        raise_if(not is_right or not splits, "splits is not a mapping", expected, splits)
        raise_if("episodes" in options, "episodes excludes splits", "only one")
        expected = f"from_file(…, split=…), or split: in the file, of {', '.join(splits)}"
        raise_if(not isinstance(name, str), "splits without a chosen split", expected, name)
        check_keys("splits lacks the split", [name], splits)
        for episodes in splits.values():
            check_option("episodes", episodes)
        first: dict[int, str] = {}
        for one in _APART:
            for row in (
                dataset.contents.find_episodes(splits[one]).tolist() if splits.get(one) else ()
            ):
                if first.setdefault(row, one) != one:
                    raise ClipError(
                        "splits share an episode",
                        episode=dataset.contents.index.key(row),
                        expected=f"{', '.join(_APART)} without a common episode",
                        got=f"{first[row]} and {one}",
                    )
        options["episodes"] = splits[name]
        return bool(splits[name])

    def _add_defaults(self, options: dict[str, Any], dataset: Dataset) -> None:
        """Add the defaults to a source's options."""
        for key in dict.fromkeys((*_FIRST, *self.defaults)):
            if key not in self.defaults or key in options or key == "split":
                continue
            if key == "episodes" and "split" in options:
                continue
            value = self.defaults[key].value_for(options, dataset)
            if value or not isinstance(value, dict):
                options[key] = value
        if not {"windows", "clip_len", "samples"} & options.keys():
            # A frame alone, if the source has no feature with a window.
            length = 1 if "windows" in self.defaults else self.fallbacks.get("clip_len")
            options |= {} if length is None else {"clip_len": length}

    def resolved(self, location: str) -> str:
        """A path relative to the file's folder; URLs are unchanged."""
        if "://" in location or parse_location(location).protocol != "file":
            return location
        return os.path.normpath(self.files[-1].parent / Path(location).expanduser())

    @contextmanager
    def naming(self, what: str, lines: Mapping[str, str] | None = None) -> Iterator[None]:
        """Add a place in the file to errors raised in the block.

        `lines` has places of keys: an error whose message begins with a key gets its place too.
        """
        path = str(self.files[-1])
        try:
            yield
        except SeqRecordError as error:
            for name in ("expected", "got"):
                if isinstance(text := getattr(error, name), str):
                    setattr(error, name, _RANGE.sub(_as_yaml, text))
            key = error.message.split(maxsplit=1)[0].split(".")[0].rstrip(":")
            file = None if error.file in (None, path) else path
            if where := ", ".join(one for one in (file, (lines or {}).get(key), what) if one):
                error.message = f"{where}: {error.message}"
                error.args = (error.message,)
            raise error.located(file=path) from error.__cause__


def _without(name: str, value: Any, sources: Collection[str]) -> dict[str, Any]:
    """An argument by source, or by epoch and source, without these sources; empty for others."""
    if not isinstance(value, Mapping):
        return {}
    kept = {key: part for key, part in value.items() if key not in sources}
    return {name: {n: _without(name, v, sources).get(name, v) for n, v in kept.items()}}


def _by_source(
    entries: Mapping[str, YamlDict], sources: Collection[str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """`weights`, `repeat` and `choose` of the mix, from the keys of its sources."""
    found: dict[str, dict[str, Any]] = {}
    for key in _BY_SOURCE:
        some = {name: entries[name][key] for name in sources if key in entries[name]}
        argument = "weights" if key == "weight" else key
        if some:
            problem = f"{argument} is given for the mix, and {key} for source {next(iter(some))!r}"
            raise_if(argument in options, problem, "only one")
            found[argument] = some
    if lacking := [name for name in sources if name not in found.get("weights", sources)]:
        problem, some_names = f"source {lacking[0]!r} has no weight", ", ".join(found["weights"])
        raise ClipError(problem, expected="a weight for each source, or none", got=some_names)
    return found


def _absolute(path: str | os.PathLike[str]) -> Path:
    """The absolute path of a mix file. Raises `LocationError` for a URL."""
    return Path(os.path.abspath(local_path(path, "mix file")))  # noqa: PTH100 - links stay


def _as_yaml(found: re.Match[str]) -> str:
    """Return a range of Python in the form of the file."""
    start, stop, step = found.groups()
    parts = {"start": start or "0", "stop": stop, "step": step}
    return "{" + ", ".join(f"{name}: {part}" for name, part in parts.items() if part) + "}"
