"""The commands of the simulation, and the allowed effects of each on a dataset."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

import seqrecord
from seqrecord import SeqRecordRecorder, SeqRecordWriter, edit
from seqrecord.cloud.retrying import Retrier, RetryingStorage
from seqrecord.edit import delete_episodes
from tests.tools.simulation.model import Actor, Client, Server

KEPT = 3  # versions kept by "clean keeping"
DEADLINE = 2.0  # seconds for which requests are repeated, by the actor's clock


@dataclass(frozen=True)
class Content:
    """A dataset as read: values by key in order, features, splits and labels of the episodes."""

    episodes: dict[str, tuple[float, ...]]
    features: frozenset[str] = frozenset({"x"})
    splits: dict[str, str] = field(default_factory=dict)
    labels: dict[str, Any] = field(default_factory=dict)

    def renamed(self, name: Callable[[str], str | None]) -> Content:
        """Content with renamed episodes; `None` as a new key deletes the episode."""

        def keyed(items: dict[str, Any]) -> dict[str, Any]:
            return {new: item for key, item in items.items() if (new := name(key)) is not None}

        return Content(keyed(self.episodes), self.features, keyed(self.splits), keyed(self.labels))


def read(storage: Any, version: str | None = None) -> Content:
    """Read a dataset, or a version of it."""
    with seqrecord.open(storage, features=["x"], version=version) as dataset:
        infos, contents = dataset.episodes, dataset.contents
        names, numbers = contents.manifest.splits, contents.index.split.tolist()
        return Content(
            {key: tuple(item[:]["x"][:, 0].tolist()) for key, item in infos.items()},
            frozenset(contents.manifest.schema.active),
            {key: names[n] for key, n in zip(infos, numbers, strict=True) if n < len(names)},
            {k: item.metadata["label"] for k, item in infos.items() if "label" in item.metadata},
        )


@dataclass
class History:
    """Expected data of a history, updated while it runs.

    `written` are the values of each key's frames so far, by any writer, `flushed` the numbers of
    them that may survive, since the last flush that returned `True`. By actor, `ended` are the keys
    of acknowledged episodes, and `stored` those that had ended, or were flushed, at that flush.
    """

    written: dict[str, list[float]] = field(default_factory=dict)
    flushed: dict[str, set[int]] = field(default_factory=dict)
    ended: dict[str, set[str]] = field(default_factory=dict)
    stored: dict[str, set[str]] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)  # deleted, discarded or renamed: never again
    seen: list[Content] = field(default_factory=list)  # of each version, including the first


Do = Callable[[Any, str, History], object]
"""`do(storage, name of the actor, history)`."""

Spec = Callable[[Content, Content, str, History], bool]
"""`spec(before, after, actor, history)`: whether a commit of the command may make this change."""


@dataclass(frozen=True)
class Command:
    """`in_empty` and `in_dataset`: where the command may begin."""

    do: Do
    spec: Spec
    in_empty: bool = False
    in_dataset: bool = True


def frames(number: int, count: int = 3) -> list[float]:
    return [float(10 * number + i) for i in range(count)]


def frame(value: float, **more: Any) -> dict[str, Any]:
    return {"x": np.full(100, value, np.float32), **more}


def append(
    episode: Any, key: str, number: int, history: History, flush_at: Any = (), actor: str = ""
) -> None:
    """Append an episode's frames; flush after the counts in `flush_at`."""
    values = history.written.setdefault(key, [])
    for value in frames(number):
        values.append(value)
        episode.append(frame(value))
        if len(values) in flush_at:
            history.flushed.setdefault(key, set()).add(len(values))
            if episode.flush():
                history.flushed[key] = {len(values)}
                history.stored[actor] = {*history.ended.get(actor, ()), key}


def write(
    where: Any, actor: str, history: History, mode: Any, *, flushes: bool = False, episodes: int = 2
) -> None:
    """Write episodes; the first fills a record file."""
    with SeqRecordWriter(where, codecs="raw", max_file_size=1000, mode=mode) as writer:
        for number in range(episodes):
            key = f"{actor}{number}"
            with writer.episode(key) as episode:
                flush_at = {0: (2,), 1: (1, 3)}[number % 2] if flushes else ()
                append(episode, key, ord(actor[0]) + number, history, flush_at, actor)
            history.ended.setdefault(actor, set()).add(key)


def discard(episode: Any, key: str, history: History, actor: str) -> None:
    """Discard an episode. A kill or an error during the call may keep it."""
    history.stored.get(actor, set()).discard(key)
    episode.discard()
    history.removed.add(key)


def discarding(where: Any, actor: str, history: History) -> None:
    """Write an episode, flush and discard it, then write another one."""
    with SeqRecordWriter(where, codecs="raw", max_file_size=1000, mode="append") as writer:
        key = f"{actor}0"
        episode = writer.episode(key)
        append(episode, key, ord(actor[0]), history, [1, 2, 3], actor)
        discard(episode, key, history, actor)
        key = f"{actor}1"
        with writer.episode(key) as episode:
            append(episode, key, ord(actor[0]) + 1, history)
        history.ended.setdefault(actor, set()).add(key)


def dropping(where: Any, actor: str, history: History) -> None:
    """Write an episode, flush and discard a second one, then write a third one."""
    with SeqRecordWriter(where, codecs="raw", max_file_size=1000, mode="append") as writer:
        for number in range(3):
            key = f"{actor}{number}"
            episode = writer.episode(key)
            flush_at = (1, 2, 3) if number == 1 else ()
            append(episode, key, ord(actor[0]) + number, history, flush_at, actor)
            if number == 1:
                discard(episode, key, history, actor)
            else:
                episode.close()
                history.ended.setdefault(actor, set()).add(key)


def record(where: Any, actor: str, history: History) -> None:
    """Record episodes and discard the second one."""
    with SeqRecordRecorder(
        where,
        codecs="raw",
        max_file_size=1000,
        mode="append",
        flush_seconds=3600,
        timestamps=False,
    ) as recorder:
        for number in range(3):
            key = f"{actor}{number}"
            episode = recorder.episode(key)
            append(episode, key, ord(actor) + number, history)
            if number == 1:
                episode.discard(wait=True)
                history.removed.add(key)
            else:
                episode.close()
                history.ended.setdefault(actor, set()).add(key)


def _becomes(change: Callable[[Content, str], Content]) -> Spec:
    """The commit must change the content by `change(before, actor)`."""
    return lambda before, after, actor, history: after == change(before, actor)


_same = _becomes(lambda before, actor: before)


def _own(actor: str, history: History) -> set[str]:
    return history.ended.get(actor, set()) - history.removed


def _appended(before: Content, after: Content, actor: str, history: History) -> bool:
    own = {key: tuple(history.written[key]) for key in _own(actor, history)}
    episodes = {**before.episodes, **own}
    return bool(own) and after == replace(
        before, episodes=episodes, features=before.features | {"x"}
    )


def _resumed(before: Content, after: Content, actor: str, history: History) -> bool:
    """Keeps all content, adds the actor's own episodes, and recovers only ended or flushed frames.

    An episode of flushed frames may have become longer.
    """

    def is_kept(key: str, item: tuple[float, ...]) -> bool:
        now = after.episodes.get(key, ())
        is_longer = now[: len(item)] == item and len(item) in history.flushed.get(key, ())
        return now == item or is_longer

    rest = {key: item for key, item in after.episodes.items() if key not in before.episodes}
    return (
        all(is_kept(key, item) for key, item in before.episodes.items())
        and _own(actor, history) <= after.episodes.keys()
        and (before.splits, before.labels) == (after.splits, after.labels)
        and before.features <= after.features
        and not rest.keys() & history.removed
        and all(
            tuple(history.written[key][: len(item)]) == item
            and len(item) in {len(history.written[key]), *history.flushed.get(key, ())}
            for key, item in rest.items()
        )
    )


def _deleted(before: Content, after: Content, actor: str, history: History) -> bool:
    history.removed.add("e1")
    rest = before.renamed(lambda key: None if key == "e1" else key)
    return "e1" in before.episodes and after == rest


def _kept(before: Content, after: Content, actor: str, history: History) -> bool:
    kept = before.renamed(lambda key: key if key[:2] in ("e1", "e2") else None)
    history.removed.update(before.episodes.keys() - kept.episodes.keys())
    return after.episodes == kept.episodes


def _renamed(before: Content, after: Content, actor: str, history: History) -> bool:
    history.removed.add("e2")
    history.written["two"] = history.written["e2"]
    new = before.renamed(lambda key: "two" if key == "e2" else key)
    return "e2" in before.episodes and after == new


def _trimmed(before: Content, after: Content, actor: str, history: History) -> bool:
    rest = before.episodes.get("e2", ())[1:]
    return bool(rest) and after == replace(before, episodes={**before.episodes, "e2": rest})


def _merged(before: Content, after: Content, actor: str, history: History) -> bool:
    return not before.episodes and after.episodes == {
        key: tuple(history.written[key]) for key in ("m0", "m1")
    }


def _merge_resumed(before: Content, after: Content, actor: str, history: History) -> bool:
    return {"m0", "m1"} <= after.episodes.keys() and _resumed(before, after, actor, history)


def add(where: Any, actor: str, history: History) -> None:
    edit.add_feature(where, f"z{actor}", lambda episode: np.arange(len(episode), dtype=np.float32))


_SOURCES: list[Server] = []


def merge(where: Any, actor: str, history: History, mode: Any = "create") -> None:
    for number in range(2):
        history.written[f"m{number}"] = frames(ord("m") + number)
    sources = [Client(None, None, server) for server in _SOURCES]
    edit.merge_datasets(sources, where, mode=mode, max_file_size=1000)


def _make_sources() -> None:
    for number in range(2):
        _SOURCES.append(server := Server())
        write(Client(None, None, server), "m", History(), "create", episodes=number + 1)
        if number:
            delete_episodes(Client(None, None, server), "m0")  # type: ignore[arg-type]


def reader(where: Any, actor: str, history: History) -> None:
    """Assert that the content was current at some time since the read began."""
    first = len(history.seen) - 1
    found = read(where)
    if found not in history.seen[max(first, 0) :]:
        raise AssertionError(f"a reader saw what never was: {found}")


def _on(change: Callable[..., object], *arguments: Any, **options: Any) -> Do:
    """A change of a dataset that does not depend on the actor."""
    return lambda where, actor, history: change(where, *arguments, **options)


def _split(where: Any, actor: str, history: History) -> None:
    edit.split_episodes(where, None, actor)


def _label(where: Any, actor: str, history: History) -> None:
    edit.set_metadata(where, None, {"label": actor})


COMMANDS: dict[str, Command] = {
    "write": Command(partial(write, mode="create"), _appended, in_empty=True, in_dataset=False),
    "append": Command(partial(write, mode="append"), _appended),
    "flushing": Command(partial(write, mode="append", flushes=True), _appended),
    "record": Command(record, _appended),
    "discarding": Command(discarding, _appended),
    "dropping": Command(dropping, _appended),
    "resume": Command(partial(write, mode="resume", episodes=1), _resumed, in_empty=True),
    "only resume": Command(partial(write, mode="resume", episodes=0), _resumed),
    "reindex": Command(_on(seqrecord.reindex), _resumed),
    "delete": Command(_on(delete_episodes, "e1"), _deleted),
    "keep": Command(_on(delete_episodes, "e[12]*", others=True), _kept),
    "rename": Command(_on(edit.rename_episodes, {"e2": "two"}), _renamed),
    "trim": Command(_on(edit.trim_episodes, "e2", slice(1, None)), _trimmed),
    "relabel": Command(
        _label, _becomes(lambda old, actor: replace(old, labels=dict.fromkeys(old.episodes, actor)))
    ),
    "split": Command(
        _split, _becomes(lambda old, actor: replace(old, splits=dict.fromkeys(old.episodes, actor)))
    ),
    "stats": Command(_on(seqrecord.add_statistics), _same),
    "add": Command(
        add, _becomes(lambda old, actor: replace(old, features=old.features | {f"z{actor}"}))
    ),
    "drop": Command(
        _on(edit.drop_features, ["y"]),
        _becomes(lambda old, actor: replace(old, features=old.features - {"y"})),
    ),
    "rewrite": Command(_on(edit.rewrite_files, min_unused=0.01, commit_bytes=1), _same),
    "clean": Command(_on(edit.clean, older_than=0), _same),
    "clean keeping": Command(_on(edit.clean, older_than=0, keep_versions=KEPT), _same),
    "clean old": Command(_on(edit.clean, older_than=3600), _same),
    "merge": Command(merge, _merged, in_empty=True, in_dataset=False),
    "resume merge": Command(
        partial(merge, mode="resume"), _merge_resumed, in_empty=True, in_dataset=False
    ),
    "read": Command(reader, lambda *_: False),
}


def storage_of(client: Client, actor: Actor) -> Any:
    """The command's storage: requests are repeated, as with a real store."""

    def sleep(seconds: float) -> None:
        actor.world.wait(seconds)
        client.call("sleep", f"{seconds:.2f} s", lambda: None)

    retrier = Retrier(DEADLINE, clock=lambda: actor.clock, sleep=sleep, draw=lambda: 0.5)
    return RetryingStorage(client, requests_per_second=math.inf, retrier=retrier)


def empty(**options: Any) -> tuple[Server, History]:
    """An empty place, and two datasets to merge."""
    if not _SOURCES:
        _make_sources()
    return Server(**options), History(seen=[Content({}, frozenset())])


def started(**options: Any) -> tuple[Server, History]:
    """A dataset with deleted episodes, a second feature, and files of a killed writer."""
    server, history = Server(**options), History()
    client: Any = Client(None, None, server)
    for key in range(5):
        history.written[f"e{key}"] = frames(key)
    history.written["k0"] = frames(6)

    def put(writer: SeqRecordWriter, key: str) -> None:
        with writer.episode(key) as episode:
            for value in history.written[key]:
                episode.append(frame(value, y=np.float32(value)))

    with SeqRecordWriter(client, codecs="raw", max_file_size=2000) as writer:
        for key in range(5):
            put(writer, f"e{key}")
    delete_episodes(client, ["e0", "e3"])
    killed = SeqRecordWriter(client, codecs="raw", mode="append")
    put(killed, "k0")
    history.ended["k"] = {"k0"}
    history.removed |= {"e0", "e3"}
    history.seen.append(read(client))
    return server, history
