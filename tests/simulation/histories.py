"""Histories: commands, an order of their calls and faults, drawn from a seed, run and judged.

What is promised is in docs/storage.md, "What is promised". A failing history is cut down to a
short one, which `str` shows as a script of calls.
"""

from __future__ import annotations

import copy
import itertools
import logging
import random
import secrets
import threading
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import seqrecord
from seqrecord.edit import clean, list_versions
from seqrecord.errors import (
    CommitUnknownError,
    ConflictError,
    DestinationError,
    NotFoundError,
    ResourceError,
    SeqRecordError,
    TransientError,
)
from seqrecord.format.manifest import MANIFEST, VERSIONS, Manifest, read_manifest
from seqrecord.processes import threads
from tests.simulation.commands import (
    COMMANDS,
    KEPT,
    Content,
    History,
    empty,
    read,
    started,
    storage_of,
    write,
)
from tests.simulation.model import Actor, Client, Fault, Killed, Server, Step, World, current_actor

__all__ = ["BLOCK", "BrokenPromiseError", "Case", "drawn", "fails", "run", "shrunk", "tried"]


@dataclass(frozen=True)
class Case:
    """What is run: the commands, choices of who goes on, and which calls are broken, by number.

    A choice is a number that is taken modulo the number of those that could go on. After the last
    choice the first that can goes on.
    """

    commands: tuple[str, ...]
    begins: tuple[int, ...] = ()  # after how many calls of others each command begins
    naps: tuple[tuple[int, int, int], ...] = ()  # of which command, after which call, how long
    choices: tuple[int, ...] = ()
    faults: tuple[tuple[str, int, Fault, int], ...] = ()
    jumps: tuple[tuple[int, float, int | None], ...] = ()
    in_empty: bool = False
    has_conditions: bool = True
    is_durable: bool = True


class BrokenPromiseError(AssertionError):
    """A promise that a history broke; `steps` are its calls."""

    def __init__(self, what: str, case: Case, steps: Sequence[Step]) -> None:
        super().__init__(what)
        self.what, self.case, self.steps = what, case, steps

    def __str__(self) -> str:
        script = "\n".join(f"  {number:>4} {step}" for number, step in enumerate(self.steps))
        return f"{self.what}\n{self.case}\n{script}"


_FAULTS = tuple(Fault)


def drawn(seed: int, commands: Sequence[str] | None = None) -> Case:
    """A case; of these commands, or of two or three that are drawn."""
    rng = random.Random(f"simulation {seed}")
    in_empty = rng.random() < 0.2
    names = [
        name
        for name, command in COMMANDS.items()
        if (command.in_empty if in_empty else command.in_dataset) or name == "read"
    ]
    if commands is None:
        count = rng.choice((2, 2, 2, 3))
        commands = [rng.choice(names) for _ in range(count)]
    else:
        in_empty = not all(COMMANDS[name].in_dataset for name in commands)
    kind = rng.random()
    num_faults = 0 if kind < 0.3 else rng.choice((1, 1, 2))
    # Long stretches of one command make more of the rare orders than a change at each call.
    stretch = rng.choice((1, 3, 10, 30))
    choices: list[int] = []
    while len(choices) < 150:
        choices += [rng.randrange(64)] * rng.randrange(1, stretch + 1)
    # Without conditions a writer that stands still puts its manifest though its files are cleaned.
    has_conditions = rng.random() < 0.9 or any(name.startswith("clean") for name in commands)
    return Case(
        tuple(commands),
        tuple(rng.choice((0, 30, 60)) for _ in commands),
        tuple(
            (rng.randrange(len(commands)), rng.randrange(rng.choice((8, 60))), 100)
            for _ in range(rng.choice((0, 1, 1, 2)))
        ),
        tuple(choices),
        tuple(_drawn_fault(rng) for _ in range(num_faults)),
        tuple(_drawn_jump(rng, len(commands)) for _ in range(rng.random() < 0.3)),
        in_empty,
        has_conditions,
        rng.random() < 0.8,
    )


def _drawn_jump(rng: random.Random, num_commands: int) -> tuple[int, float, int | None]:
    """A server's clock is set; that of a machine, by which commands wait, only jumps ahead."""
    whose = rng.choice((None, *range(num_commands)))
    return rng.randrange(60), 7200.0 if whose is not None else rng.choice((-7200.0, 7200.0)), whose


def _drawn_fault(rng: random.Random) -> tuple[str, int, Fault, int]:
    """Half of them break the calls that decide: a manifest is put, a file is finished."""
    name = rng.choice(("", "put", "put", "commit"))
    number = {"": rng.randrange(70), "put": rng.randrange(4), "commit": rng.randrange(9)}[name]
    return name, number, rng.choice(_FAULTS), rng.choice((0, 100))


_BEGUN: dict[tuple[bool, bool, bool], tuple[Server, History]] = {}


def begin() -> None:
    """Make what histories begin with, by commands that nobody has broken on purpose."""
    for in_empty, has_conditions, is_durable in itertools.product((False, True), repeat=3):
        make = empty if in_empty else started
        with simulated("base"):
            made = make(has_conditions=has_conditions, is_durable=is_durable)
        _BEGUN[in_empty, has_conditions, is_durable] = made


def _begun(case: Case) -> tuple[Server, History]:
    if not _BEGUN:
        begin()
    return copy.deepcopy(_BEGUN[case.in_empty, case.has_conditions, case.is_durable])


@contextmanager
def simulated(name: str) -> Iterator[None]:
    """No thread starts, so pools do their tasks at once; ids are drawn by the actor's name.

    Outside of actors they are drawn by `name`.
    """
    outside = random.Random(name)

    def refuse(thread: object) -> None:
        raise ResourceError("a simulated process starts no thread")

    def token(count: int = 32) -> str:
        actor = current_actor()
        drawn = (actor.ids if actor else outside).randbytes(count).hex()
        if actor:
            actor.issued.append(drawn)
        return drawn

    logger = logging.getLogger("seqrecord")
    before = logger.disabled
    logger.disabled = True
    try:
        with (
            mock.patch.object(threads, "start", refuse),
            mock.patch.object(secrets, "token_hex", token),
            mock.patch.object(threading, "excepthook"),  # recorders are killed
        ):
            yield
    finally:
        logger.disabled = before


@dataclass
class _Run:
    """One run of a case, and what is known while it goes on."""

    case: Case
    server: Server
    history: History
    commits: dict[str, int] = field(default_factory=dict)
    versions: dict[str, Content] = field(default_factory=dict)  # by the ids of commits
    broken: str | None = None  # the first promise that was

    def run(self) -> list[Step]:
        choices = iter(self.case.choices)
        self.world = World(
            self.server,
            lambda count: next(choices, 0) % count,
            faults=self.case.faults,
            jumps={number: (seconds, whose) for number, seconds, whose in self.case.jumps},
            after=self.after,
        )
        if (manifest := self._manifest()) is not None:
            self.versions[Manifest.parse(manifest).commit] = self.history.seen[-1]
        self.manifest = manifest
        begins = dict(enumerate(self.case.begins))
        actors = [
            self.world.add(
                chr(ord("A") + number),
                self._doing(name),
                after=begins.get(number, 0),
                naps=[(call, wait) for of, call, wait in self.case.naps if of == number],
            )
            for number, name in enumerate(self.case.commands)
        ]
        self.by_name = dict(zip((actor.name for actor in actors), self.case.commands, strict=True))
        try:
            self.world.run()
            assert self.broken is None, self.broken
            self.judge(actors)
            self.finish(actors)
        except AssertionError as error:
            raise BrokenPromiseError(
                str(error) or traceback.format_exc(), self.case, self.world.steps
            ) from None
        except SeqRecordError:
            raise BrokenPromiseError(traceback.format_exc(), self.case, self.world.steps) from None
        return self.world.steps

    def _doing(self, name: str) -> Any:
        command = COMMANDS[name]

        def do(client: Client) -> None:
            actor = current_actor()
            assert actor is not None
            command.do(storage_of(client, actor), actor.name, self.history)

        return do

    def _manifest(self) -> bytes | None:
        file = self.server.files.get(MANIFEST)
        return None if file is None else file.data

    @property
    def _may_remove(self) -> bool:
        """Whether a clean may remove files of writers that are at work, or were killed."""
        return self._may_forget or "clean keeping" in self.case.commands

    @property
    def _may_forget(self) -> bool:
        """Whether a clean may remove what earlier versions need."""
        jumps = any(whose is None for _, _, whose in self.case.jumps)
        return "clean" in self.case.commands or ("clean old" in self.case.commands and jumps)

    @property
    def view(self) -> Any:
        return Client(None, None, self.server)

    def after(self, step: Step) -> None:
        """After each call: a new manifest is what its command may make of the one before."""
        if self.broken is not None:
            return
        try:
            self._look(step)
        except AssertionError as error:
            self.broken = str(error) or traceback.format_exc()
        except SeqRecordError:
            self.broken = f"after {step}: {traceback.format_exc()}"

    def _look(self, step: Step) -> None:
        now = self._manifest()
        if step.call == "put" and step.path.startswith(VERSIONS):
            kept = Manifest.parse(self.server.files[step.path].data).commit
            assert kept in self.versions, f"{step}: kept, though it was never the dataset"
        if now == self.manifest and step.call != "remove":
            return
        if now is None:
            assert self.manifest is None, "the manifest is gone"
            return
        manifest = read_manifest(self.view)
        sizes = {file.path: file.size for file in manifest.record_files}
        sizes |= {file.path: file.size for file in manifest.small_files}
        for path, size in sizes.items():
            there = self.server.files.get(path)
            assert there is not None, f"{step}: {path} is gone, which the manifest names"
            assert len(there.data) == size, f"{step}: {path} has another length"
        if now == self.manifest:
            return
        self.manifest = now
        actor = next(name for name in self.world.actors if _is_of(name, manifest.commit))
        self.commits[actor.name] = self.commits.get(actor.name, 0) + 1
        before, after = self.history.seen[-1], read(self.view)
        self.history.seen.append(after)
        self.versions[manifest.commit] = after
        spec = COMMANDS[self.by_name[actor.name]].spec
        if self.server.has_conditions:
            assert spec(before, after, actor.name, self.history), (
                f"{step}: a commit of {self.by_name[actor.name]} ({actor.name}) made of\n"
                f"{before}\n{after}"
            )

    def judge(self, actors: Sequence[Actor]) -> None:
        """What was acknowledged is there, what was refused is not, and errors are what they say."""
        cleans = self._may_remove
        for actor, name in zip(actors, self.case.commands, strict=True):
            count, error = self.commits.get(actor.name, 0), actor.error
            if actor.is_killed or isinstance(error, Killed):
                continue
            if error is None:
                assert name == "read" or count or name in _NEED_NO_COMMIT, (
                    f"{name} ({actor.name}) was acknowledged, and committed nothing"
                )
                continue
            shown = "".join(traceback.format_exception(error))
            assert isinstance(error, SeqRecordError), f"{name} ({actor.name}): {shown}"
            if isinstance(error, (ConflictError, DestinationError)) and name not in _IN_STEPS:
                assert not count, f"{name} ({actor.name}) was refused, and did commit: {shown}"
            expected: tuple[type[SeqRecordError], ...]
            expected = ConflictError, DestinationError, CommitUnknownError
            if self.case.faults:
                expected += (TransientError,)
            if self.case.in_empty:
                expected += (NotFoundError,)  # as long as there is no dataset
            if not cleans:
                is_expected = isinstance(error, expected) or name in _OF_WHAT_IS_THERE
                assert is_expected, f"{name} ({actor.name}): {shown}"
        if not self.case.faults and not cleans and "read" not in self.case.commands:
            assert self.commits or _NEED_NO_COMMIT.issuperset(self.case.commands), (
                "nobody went through"
            )

    def finish(self, actors: Sequence[Actor]) -> None:
        """All that is whole is found by a resume; then a clean removes the rest."""
        case, view = self.case, self.view
        cleans = self._may_remove
        before = self.history.seen[-1]
        if self.manifest is not None and not self._may_forget:
            for version in list_versions(view)[: KEPT + 1]:
                if version.id in self.versions:
                    now = read(view, version.id)
                    assert now == self.versions[version.id], f"version {version} is {now}"
        write(view, "Z", self.history, "resume", episodes=0 if self.manifest else 1)
        content = read(view)
        assert COMMANDS["resume"].spec(before, content, "Z", self.history), (
            f"the last resume made of\n{before}\n{content}"
        )
        if case.has_conditions and case.is_durable and not cleans:
            for actor, keys in self.history.ended.items():
                lost = keys - self.history.gone - content.episodes.keys()
                assert not lost, f"episodes of {actor} that had ended are lost: {lost}"
        clean(view, older_than=-1e9)
        problems = seqrecord.verify(view).problems
        assert not problems, f"{problems}"
        assert read(view) == content, "clean changed what there is"


_NEED_NO_COMMIT = {"read", "only resume", "clean", "clean keeping", "clean old", "stats"}
_NEED_NO_COMMIT |= {"rewrite", "reindex", "drop", "keep"}
_IN_STEPS = {"rewrite"}  # several commits
_OF_WHAT_IS_THERE = {"delete", "rename", "keep", "drop", "trim"}  # errors where another removed it


def _is_of(actor: Actor, commit: str) -> bool:
    return any(commit.startswith(drawn) for drawn in actor.issued)


def run(case: Case) -> list[Step]:
    """Run a case; raises `BrokenPromiseError`."""
    server, history = _begun(case)
    with simulated("outside"):
        return _Run(case, server, history).run()


def fails(case: Case) -> BrokenPromiseError | None:
    try:
        run(case)
    except BrokenPromiseError as failure:
        return failure
    return None


def shrunk(failure: BrokenPromiseError, most_runs: int = 400) -> BrokenPromiseError:
    """A shorter case that fails too: fewer commands, faults and changes from one to another."""
    left = most_runs

    def better(case: Case) -> bool:
        nonlocal failure, left
        if case == failure.case or left <= 0:
            return False
        left -= 1
        if (found := fails(case)) is None:
            return False
        failure = found
        return True

    for name in ("faults", "jumps", "naps", "begins", "commands"):
        number = 0
        least = 1 if name == "commands" else 0
        while least < len(items := getattr(failure.case, name)) > number:
            fewer: dict[str, Any] = {name: _without(items, number, 1)}
            number += not better(replace(failure.case, **fewer))
    length = len(failure.case.choices)
    while length:
        at = 0
        while at < len(failure.case.choices):
            choices = failure.case.choices
            shorter = replace(failure.case, choices=_without(choices, at, length))
            at += 0 if better(shorter) else length
        length //= 2
    for at, choice in enumerate(failure.case.choices):
        for lower in range(min(choice, 3)):
            choices = failure.case.choices
            if better(replace(failure.case, choices=(*choices[:at], lower, *choices[at + 1 :]))):
                break
    return failure


def _without(items: tuple[Any, ...], at: int, count: int) -> tuple[Any, ...]:
    return items[:at] + items[at + count :]


BLOCK = 50


def tried(first: int) -> tuple[Counter[tuple[str, ...]], list[str]]:
    """The commands of a block of histories from this seed on, counted; and those that failed."""
    sets: Counter[tuple[str, ...]] = Counter()
    failures = []
    for seed in range(first, first + BLOCK):
        case = drawn(seed)
        sets[tuple(sorted(case.commands))] += 1
        if failure := fails(case):
            failures.append(f"seed {seed}: {shrunk(failure)}")
    return sets, failures
