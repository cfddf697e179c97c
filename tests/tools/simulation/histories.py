"""Histories: commands, an order of their calls and faults, drawn from a seed, run and checked.

The guarantees are in docs/storage.md, "Several writers, and cleaning". A failing history is
shortened; `str` shows it as a script of calls.
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
from seqrecord import errors
from seqrecord.edit import clean, list_versions
from seqrecord.errors import ConflictError, DestinationError, SeqRecordError
from seqrecord.store.format.manifest import MANIFEST, VERSIONS, Manifest, read_manifest
from seqrecord.store.processes import threads
from tests.tools.simulation.commands import (
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
from tests.tools.simulation.model import (
    Actor,
    Client,
    Fault,
    Killed,
    Server,
    Step,
    World,
    current_actor,
)


@dataclass(frozen=True)
class Case:
    """A history: the commands, the choices of the scheduler, and the faults, by number of call.

    A choice is taken modulo the number of actors that could continue. After the last choice the
    first of them continues.
    """

    commands: tuple[str, ...]
    begins: tuple[int, ...] = ()  # number of others' calls before each command begins
    naps: tuple[tuple[int, int, int], ...] = ()  # command, its call, number of others' calls
    choices: tuple[int, ...] = ()
    faults: tuple[tuple[str, int, Fault, int], ...] = ()
    jumps: tuple[tuple[int, float, int | None], ...] = ()
    in_empty: bool = False
    has_conditions: bool = True
    keeps_uploads: bool = True


class GuaranteeError(AssertionError):
    """A guarantee broken by a history; `steps` are its calls."""

    def __init__(self, what: str, case: Case, steps: Sequence[Step]) -> None:
        super().__init__(what)
        self.what, self.case, self.steps = what, case, steps

    def __str__(self) -> str:
        script = "\n".join(f"  {number:>4} {step}" for number, step in enumerate(self.steps))
        return f"{self.what}\n{self.case}\n{script}"


_FAULTS = tuple(Fault)


def random_case(seed: int, commands: Sequence[str] | None = None) -> Case:
    """A random case with these commands, by default with two or three random ones."""
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
    # Long stretches of one command produce more rare orders than a switch after each call.
    stretch = rng.choice((1, 3, 10, 30))
    choices: list[int] = []
    while len(choices) < 150:
        choices += [rng.randrange(64)] * rng.randrange(1, stretch + 1)
    # Without conditions, a stalled writer commits a manifest although its files were cleaned.
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
        rng.random() < 0.6,
    )


def _drawn_jump(rng: random.Random, num_commands: int) -> tuple[int, float, int | None]:
    """A server's clock jumps in both directions, a machine's monotonic clock only ahead."""
    whose = rng.choice((None, *range(num_commands)))
    return rng.randrange(60), 7200.0 if whose is not None else rng.choice((-7200.0, 7200.0)), whose


def _drawn_fault(rng: random.Random) -> tuple[str, int, Fault, int]:
    """Half of the faults affect the critical calls: the put of a manifest, the end of a file."""
    name = rng.choice(("", "put", "put", "commit"))
    number = {"": rng.randrange(70), "put": rng.randrange(4), "commit": rng.randrange(9)}[name]
    return name, number, rng.choice(_FAULTS), rng.choice((0, 100))


_BEGUN: dict[tuple[bool, bool, bool], tuple[Server, History]] = {}


def begin() -> None:
    """Create the initial datasets of histories, without faults."""
    for in_empty, has_conditions, keeps_uploads in itertools.product((False, True), repeat=3):
        make = empty if in_empty else started
        with simulated("base"):
            made = make(has_conditions=has_conditions, keeps_uploads=keeps_uploads)
        _BEGUN[in_empty, has_conditions, keeps_uploads] = made


def _begun(case: Case) -> tuple[Server, History]:
    if not _BEGUN:
        begin()
    return copy.deepcopy(_BEGUN[case.in_empty, case.has_conditions, case.keeps_uploads])


@contextmanager
def simulated(name: str) -> Iterator[None]:
    """Forbid new threads, so that pools run tasks directly; ids are random by the actor's name.

    Outside of actors they are random by `name`.
    """
    outside = random.Random(name)

    def refuse(thread: object) -> None:
        raise errors.ResourceError("a simulated process starts no thread")

    def token(count: int = 32) -> str:
        actor = current_actor()
        new = (actor.ids if actor else outside).randbytes(count).hex()
        if actor:
            actor.issued.append(new)
        return new

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
    """One run of a case, and its state."""

    case: Case
    server: Server
    history: History
    commits: dict[str, int] = field(default_factory=dict)
    versions: dict[str, Content] = field(default_factory=dict)  # by the ids of commits
    broken: str | None = None  # message of the first failed check

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
            raise GuaranteeError(
                str(error) or traceback.format_exc(), self.case, self.world.steps
            ) from None
        except SeqRecordError:
            raise GuaranteeError(traceback.format_exc(), self.case, self.world.steps) from None
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
        """Whether a clean may remove files of running or killed writers."""
        return self._may_forget or "clean keeping" in self.case.commands

    @property
    def _may_forget(self) -> bool:
        """Whether a clean may remove files of earlier versions."""
        jumps = any(whose is None for _, _, whose in self.case.jumps)
        return "clean" in self.case.commands or ("clean old" in self.case.commands and jumps)

    @property
    def view(self) -> Any:
        return Client(None, None, self.server)

    def after(self, step: Step) -> None:
        """Check after each call that a new manifest is an allowed change of the previous one."""
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
            stored = self.server.files.get(path)
            assert stored is not None, f"{step}: {path} is gone, which the manifest names"
            assert len(stored.data) == size, f"{step}: {path} has another length"
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
        """Check that success means a commit, refusal means none, and errors are expected."""
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
            expected = ConflictError, DestinationError, errors.CommitUnknownError
            if self.case.faults:
                expected += (errors.TransientError,)
            if self.case.in_empty:
                expected += (errors.NotFoundError,)  # as long as there is no dataset
            if not cleans:
                is_expected = isinstance(error, expected) or name in _NEED_EPISODES
                assert is_expected, f"{name} ({actor.name}): {shown}"
        if not self.case.faults and not cleans and "read" not in self.case.commands:
            assert self.commits or _NEED_NO_COMMIT.issuperset(self.case.commands), (
                "every command failed"
            )

    def finish(self, actors: Sequence[Actor]) -> None:
        """Check that a resume recovers all complete episodes, and a clean removes the rest."""
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
        if case.has_conditions and not cleans:
            safe = self.history.ended if case.keeps_uploads else self.history.stored
            for actor, keys in safe.items():
                lost = keys - self.history.removed - content.episodes.keys()
                assert not lost, f"episodes of {actor} that had ended are lost: {lost}"
        clean(view, older_than=-1e9)
        problems = seqrecord.verify(view).problems
        assert not problems, f"{problems}"
        assert read(view) == content, "clean changed the content"


_NEED_NO_COMMIT = {"read", "only resume", "clean", "clean keeping", "clean old", "stats"}
_NEED_NO_COMMIT |= {"rewrite", "reindex", "drop", "keep"}
_IN_STEPS = {"rewrite"}  # several commits
_NEED_EPISODES = {"delete", "rename", "keep", "drop", "trim"}  # raise if another removed them


def _is_of(actor: Actor, commit: str) -> bool:
    return any(commit.startswith(issued) for issued in actor.issued)


def run(case: Case) -> list[Step]:
    """Run a case; raises `GuaranteeError`."""
    server, history = _begun(case)
    with simulated("outside"):
        return _Run(case, server, history).run()


def failure_of(case: Case) -> GuaranteeError | None:
    try:
        run(case)
    except GuaranteeError as failure:
        return failure
    return None


def shortened(failure: GuaranteeError, most_runs: int = 400) -> GuaranteeError:
    """Shorten a failing case: fewer commands, faults and switches between actors."""
    remaining = most_runs

    def better(case: Case) -> bool:
        nonlocal failure, remaining
        if case == failure.case or remaining <= 0:
            return False
        remaining -= 1
        if (found := failure_of(case)) is None:
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


def run_block(first: int) -> tuple[Counter[tuple[str, ...]], list[str]]:
    """Run a block of histories from this seed; returns the counts of commands, and failures."""
    sets: Counter[tuple[str, ...]] = Counter()
    failures = []
    for seed in range(first, first + BLOCK):
        case = random_case(seed)
        sets[tuple(sorted(case.commands))] += 1
        if failure := failure_of(case):
            failures.append(f"seed {seed}: {shortened(failure)}")
    return sets, failures
