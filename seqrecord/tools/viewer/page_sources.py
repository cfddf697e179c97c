"""Sources of a page: the datasets whose episodes it shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from seqrecord.errors import ClipError
from seqrecord.store.areas import MIX_FILE, load_entry
from seqrecord.store.reading.dataset import Dataset, DatasetLike, refuse_ignored
from seqrecord.store.reading.filters import EpisodeFilter
from seqrecord.store.reading.opening import open as open_dataset

_MIX_FILES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class PageSource:
    """A dataset of a page, and the numbers of the shown episodes.

    `name` is the source's name in a mix, else empty.
    """

    name: str
    dataset: Dataset
    numbers: list[int]


@dataclass(frozen=True)
class PageSources:
    """All datasets of a page. `mix` describes the mix file, `None` without one."""

    title: str
    datasets: list[PageSource]
    mix: str | None = None


@contextmanager
def page_sources(
    data: DatasetLike,
    episodes: EpisodeFilter,
    features: Sequence[str] | None,
    storage_options: Mapping[str, Any] | None,
) -> Iterator[PageSources]:
    """Open the datasets of a page.

    Episodes of an original that cannot be read are left out; `Dataset.bad_episodes` has them.
    Raises the errors of `seqrecord.open`, and `ClipError` for unknown episodes.
    """
    if isinstance(data, (str, PathLike)) and is_mix_file(fspath(data)):
        refuse_ignored("a mix file", episodes=episodes, storage_options=storage_options)
        yield _of_mix(fspath(data), features)
        return
    with ExitStack() as stack:
        if isinstance(data, Dataset):
            refuse_ignored("an open dataset", storage_options=storage_options)
            dataset = data.resized(None).select(features or [*data.features])
        else:
            dataset = open_dataset(
                data, features=features, storage_options=storage_options, skip_bad_episodes=True
            )
            stack.enter_context(dataset)
        numbers = dataset.contents.find_episodes(episodes).tolist()
        yield PageSources(dataset.url, [PageSource("", dataset, numbers)])


def is_mix_file(path: str) -> bool:
    """Whether a path is a file of a mix, by its name."""
    return Path(path).suffix in _MIX_FILES and Path(path).is_file()


def _of_mix(path: str, features: Sequence[str] | None) -> PageSources:
    # Imported late: torch takes seconds.
    from seqrecord.loader.mixing.mix import SeqRecordMix, mix_loader

    load_mix = load_entry(MIX_FILE)
    mix: SeqRecordMix = load_mix(SeqRecordMix, path, None, {}, {"batch_size": 1, "clip_len": 1})
    sources = []
    for name, loader in mix_loader(mix).loaders.items():
        view = loader.view
        dataset = view.dataset.resized(None)
        names = [name for name in dataset.features if features is None or name in features]
        if names:
            numbers = view.episode_rows.tolist()
            sources.append(PageSource(name, dataset.select(names), numbers))
    if not sources:
        raise ClipError(
            "no source of the mix has these features", file=path, got=", ".join(features or ())
        )
    return PageSources(path, sources, str(mix.summarize()))
