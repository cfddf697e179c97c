"""The commands of the simulation, and what each may do to the content of a dataset."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import seqrecord
from seqrecord import SeqRecordRecorder, SeqRecordWriter
from seqrecord.edit import (
    add_feature,
    clean,
    delete_episodes,
    drop_features,
    keep_episodes,
    merge_datasets,
    rename_episodes,
    rewrite_files,
    set_metadata,
    split_episodes,
    trim_episodes,
)
from seqrecord.storage.retrying import Retrier, RetryingStorage
from tests.simulation.model import Actor, Client, Server

__all__ = [
    "COMMANDS",
    "KEPT",
    "Content",
    "History",
    "empty",
    "read",
    "started",
    "storage_of",
    "write",
]

KEPT = 3  # versions that "clean keeping" keeps
DEADLINE = 2.0  # seconds that requests are repeated, by the clock of who asks


@dataclass(frozen=True)
class Content:
    """What a reader sees: values by key in order, features, splits and labels of the episodes."""

    episodes: dict[str, tuple[float, ...]]
    features: frozenset[str] = frozenset({"x"})
    splits: dict[str, str] = field(default_factory=dict)
    labels: dict[str, Any] = field(default_factory=dict)


def read(storage: Any, version: str | None = None) -> Content:
    """All of the dataset, or of a version of it."""
    with seqrecord.open(storage, features=["x"], version=version) as dataset:
        episodes = {
            key: tuple(episode[:]["x"][:, 0].tolist()) for key, episode in dataset.episodes.items()
        }
        infos, names, numbers = (
            dataset.episodes,
            dataset.contents.manifest.splits,
            dataset.contents.index.split,
        )
        return Content(
            episodes,
            frozenset(dataset.contents.manifest.schema.active),
            {
                key: names[number]
                for key, number in zip(episodes, numbers.tolist(), strict=True)
                if number < len(names)
            },
            {
                key: item.metadata["label"]
                for key, item in infos.items()
                if "label" in item.metadata
            },
        )


@dataclass
class History:
    """What is known of the data while a history runs.

    `written` are the values of each key's frames so far, by whoever writes it, `flushed` how many
    frames of it are to stay, `ended` the keys of episodes whose end was acknowledged, by actor.
    """

    written: dict[str, list[float]] = field(default_factory=dict)
    flushed: dict[str, int] = field(default_factory=dict)
    ended: dict[str, set[str]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)  # deleted, discarded or renamed: never again
    seen: list[Content] = field(default_factory=list)  # of each version, the first one too


Do = Callable[[Any, str, History], object]
"""`do(storage, name of the actor, history)`."""

Spec = Callable[[Content, Content, str, History], bool]
"""`spec(before, after, actor, history)`: whether a commit of the command may do that."""


@dataclass(frozen=True)
class Command:
    """`in_empty` and `in_dataset` say where it may begin."""

    do: Do
    spec: Spec
    in_empty: bool = False
    in_dataset: bool = True


def frames(number: int, count: int = 3) -> list[float]:
    return [float(10 * number + i) for i in range(count)]


def write(
    where: Any, actor: str, history: History, mode: Any, *, flushes: bool = False, episodes: int = 2
) -> None:
    """Episodes of which the first fills a record file."""
    writer = SeqRecordWriter(where, codecs="raw", max_file_size=1000, mode=mode)
    with writer:
        for number in range(episodes):
            key = f"{actor}{number}"
            with writer.episode(key) as episode:
                values = history.written.setdefault(key, [])
                for value in frames(ord(actor[0]) + number):
                    values.append(value)
                    episode.append({"x": np.full(100, value, np.float32)})
                    if flushes and len(values) == 2:
                        episode.flush()
                        history.flushed[key] = 2
            history.ended.setdefault(actor, set()).add(key)


def discarding(where: Any, actor: str, history: History) -> None:
    """A writer whose first episode was flushed, and is discarded."""
    with SeqRecordWriter(where, codecs="raw", max_file_size=1000, mode="append") as writer:
        key = f"{actor}0"
        episode = writer.episode(key)
        history.written[key] = []
        for value in frames(ord(actor[0])):
            history.written[key].append(value)
            episode.append({"x": np.full(100, value, np.float32)})
            episode.flush()
            history.flushed[key] = len(history.written[key])
        episode.discard()
        history.gone.add(key)
        key = f"{actor}1"
        with writer.episode(key) as episode:
            history.written[key] = frames(ord(actor[0]) + 1)
            for value in history.written[key]:
                episode.append({"x": np.full(100, value, np.float32)})
        history.ended.setdefault(actor, set()).add(key)


def record(where: Any, actor: str, history: History) -> None:
    """A recorder, whose second episode is discarded."""
    recorder = SeqRecordRecorder(
        where, codecs="raw", max_file_size=1000, mode="append", flush_seconds=3600
    )
    with recorder:
        for number in range(3):
            key = f"{actor}{number}"
            episode = recorder.episode(key)
            for value in frames(ord(actor) + number):
                history.written.setdefault(key, []).append(value)
                episode.append({"x": np.full(100, value, np.float32)})
            if number == 1:
                episode.discard(wait=True)
                history.gone.add(key)
            else:
                episode.close()
                history.ended.setdefault(actor, set()).add(key)


def _same(before: Content, after: Content, actor: str, history: History) -> bool:
    return before == after


def _own(actor: str, history: History) -> set[str]:
    return history.ended.get(actor, set()) - history.gone


def _appended(before: Content, after: Content, actor: str, history: History) -> bool:
    own = {key: tuple(history.written[key]) for key in _own(actor, history)}
    episodes = {**before.episodes, **own}
    return bool(own) and after == replace(
        before, episodes=episodes, features=before.features | {"x"}
    )


def _resumed(before: Content, after: Content, actor: str, history: History) -> bool:
    """All there was, its own, and nothing but what others had written, up to a flush or an end.

    An episode of which only what was flushed was there may have become longer.
    """

    def is_kept(key: str, item: tuple[float, ...]) -> bool:
        now = after.episodes.get(key, ())
        is_longer = now[: len(item)] == item and len(item) == history.flushed.get(key)
        return now == item or is_longer

    rest = {key: item for key, item in after.episodes.items() if key not in before.episodes}
    return (
        all(is_kept(key, item) for key, item in before.episodes.items())
        and _own(actor, history) <= after.episodes.keys()
        and (before.splits, before.labels) == (after.splits, after.labels)
        and before.features <= after.features
        and not rest.keys() & history.gone
        and all(
            tuple(history.written[key][: len(item)]) == item
            and len(item) in (len(history.written[key]), history.flushed.get(key, -1))
            for key, item in rest.items()
        )
    )


def _deleted(key: str) -> Spec:
    def spec(before: Content, after: Content, actor: str, history: History) -> bool:
        history.gone.add(key)
        rest = {name: item for name, item in before.episodes.items() if name != key}
        return key in before.episodes and after == Content(
            rest,
            before.features,
            {name: item for name, item in before.splits.items() if name != key},
            {name: item for name, item in before.labels.items() if name != key},
        )

    return spec


def _kept(before: Content, after: Content, actor: str, history: History) -> bool:
    kept = [key for key in before.episodes if key[:2] in ("e1", "e2")]
    history.gone.update(before.episodes.keys() - kept)
    return after.episodes == {key: before.episodes[key] for key in kept}


def _renamed(before: Content, after: Content, actor: str, history: History) -> bool:
    def name(key: str) -> str:
        return "two" if key == "e2" else key

    history.gone.add("e2")
    history.written["two"] = history.written["e2"]
    return "e2" in before.episodes and after == Content(
        {name(key): item for key, item in before.episodes.items()},
        before.features,
        {name(key): item for key, item in before.splits.items()},
        {name(key): item for key, item in before.labels.items()},
    )


def _trimmed(before: Content, after: Content, actor: str, history: History) -> bool:
    rest = before.episodes.get("e2", ())[1:]
    return bool(rest) and after == replace(before, episodes={**before.episodes, "e2": rest})


def _labelled(before: Content, after: Content, actor: str, history: History) -> bool:
    return after == replace(before, labels=dict.fromkeys(before.episodes, actor))


def _added(before: Content, after: Content, actor: str, history: History) -> bool:
    return after == replace(before, features=before.features | {f"z{actor}"})


def _dropped(before: Content, after: Content, actor: str, history: History) -> bool:
    return after == replace(before, features=before.features - {"y"})


def _splitted(before: Content, after: Content, actor: str, history: History) -> bool:
    return after == replace(before, splits=dict.fromkeys(before.episodes, actor))


def _merged(before: Content, after: Content, actor: str, history: History) -> bool:
    return not before.episodes and after.episodes == {
        key: tuple(history.written[key]) for key in ("m0", "m1")
    }


def _merge_resumed(before: Content, after: Content, actor: str, history: History) -> bool:
    return {"m0", "m1"} <= after.episodes.keys() and _resumed(before, after, actor, history)


def add(where: Any, actor: str, history: History) -> None:
    add_feature(where, f"z{actor}", lambda episode: np.arange(len(episode), dtype=np.float32))


_SOURCES: list[Server] = []


def merge(where: Any, actor: str, history: History, mode: Any = "create") -> None:
    for number in range(2):
        history.written[f"m{number}"] = frames(ord("m") + number)
    sources = [Client(None, None, server) for server in _SOURCES]
    merge_datasets(sources, where, mode=mode, max_file_size=1000)


def _make_sources() -> None:
    for number in range(2):
        _SOURCES.append(server := Server())
        write(Client(None, None, server), "m", History(), "create", episodes=number + 1)
        if number:
            delete_episodes(Client(None, None, server), "m0")  # type: ignore[arg-type]


def reader(where: Any, actor: str, history: History) -> None:
    """What it sees was the dataset at some time since it began."""
    first = len(history.seen) - 1
    found = read(where)
    if found not in history.seen[max(first, 0) :]:
        raise AssertionError(f"a reader saw what never was: {found}")


COMMANDS: dict[str, Command] = {
    "write": Command(
        lambda where, actor, history: write(where, actor, history, "create"),
        _appended,
        in_empty=True,
        in_dataset=False,
    ),
    "append": Command(
        lambda where, actor, history: write(where, actor, history, "append"),
        _appended,
    ),
    "flushing": Command(
        lambda where, actor, history: write(where, actor, history, "append", flushes=True),
        _appended,
    ),
    "record": Command(record, _appended),
    "discarding": Command(discarding, _appended),
    "resume": Command(
        lambda where, actor, history: write(where, actor, history, "resume", episodes=1),
        _resumed,
        in_empty=True,
    ),
    "only resume": Command(
        lambda where, actor, history: write(where, actor, history, "resume", episodes=0), _resumed
    ),
    "reindex": Command(lambda where, actor, history: seqrecord.reindex(where), _resumed),
    "delete": Command(lambda where, actor, history: delete_episodes(where, "e1"), _deleted("e1")),
    "keep": Command(lambda where, actor, history: keep_episodes(where, "e[12]*"), _kept),
    "rename": Command(
        lambda where, actor, history: rename_episodes(where, {"e2": "two"}), _renamed
    ),
    "trim": Command(
        lambda where, actor, history: trim_episodes(where, "e2", slice(1, None)), _trimmed
    ),
    "relabel": Command(
        lambda where, actor, history: set_metadata(where, None, {"label": actor}), _labelled
    ),
    "split": Command(lambda where, actor, history: split_episodes(where, None, actor), _splitted),
    "stats": Command(lambda where, actor, history: seqrecord.add_statistics(where), _same),
    "add": Command(add, _added),
    "drop": Command(lambda where, actor, history: drop_features(where, ["y"]), _dropped),
    "rewrite": Command(
        lambda where, actor, history: rewrite_files(where, min_unused=0.01, commit_bytes=1), _same
    ),
    "clean": Command(lambda where, actor, history: clean(where, older_than=0), _same),
    "clean keeping": Command(
        lambda where, actor, history: clean(where, older_than=0, keep_versions=KEPT), _same
    ),
    "clean old": Command(lambda where, actor, history: clean(where, older_than=3600), _same),
    "merge": Command(merge, _merged, in_empty=True, in_dataset=False),
    "resume merge": Command(
        lambda where, actor, history: merge(where, actor, history, "resume"),
        _merge_resumed,
        in_empty=True,
        in_dataset=False,
    ),
    "read": Command(reader, lambda *_: False),
}


def storage_of(client: Client, actor: Actor) -> Any:
    """What the command works on: its requests are repeated, as those to a real store are."""

    def sleep(seconds: float) -> None:
        actor.world.wait(seconds)
        client.call("sleep", f"{seconds:.2f} s", lambda: None)

    retrier = Retrier(DEADLINE, clock=lambda: actor.clock, sleep=sleep, draw=lambda: 0.5)
    return RetryingStorage(client, requests_per_second=math.inf, retrier=retrier)


def empty(**options: Any) -> tuple[Server, History]:
    """A place where nothing is, and two datasets that can be merged."""
    if not _SOURCES:
        _make_sources()
    return Server(**options), History(seen=[Content({}, frozenset())])


def started(**options: Any) -> tuple[Server, History]:
    """A dataset with deleted episodes, a second feature, and what a killed writer has left."""
    server, history = Server(**options), History()
    client: Any = Client(None, None, server)
    for key in range(5):
        history.written[f"e{key}"] = frames(key)
    with SeqRecordWriter(client, codecs="raw", max_file_size=2000) as writer:
        for key in range(5):
            with writer.episode(f"e{key}") as episode:
                for value in frames(key):
                    episode.append({"x": np.full(100, value, np.float32), "y": np.float32(value)})
    delete_episodes(client, ["e0", "e3"])
    killed = SeqRecordWriter(client, codecs="raw", mode="append")
    history.written["k0"] = frames(6)
    with killed.episode("k0") as episode:
        for value in frames(6):
            episode.append({"x": np.full(100, value, np.float32), "y": np.float32(value)})
    history.ended["k"] = {"k0"}
    history.gone |= {"e0", "e3"}
    history.seen.append(read(client))
    return server, history
