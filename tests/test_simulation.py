"""Writers on a storage in memory, whose calls are interleaved, delayed and broken by a seed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import pytest

from seqrecord.edit import freeing
from seqrecord.errors import ConflictError
from seqrecord.format.manifest import MANIFEST, read_manifest
from seqrecord.reading import dataset
from seqrecord.reading.metadata import load_index
from seqrecord.storage import Storage
from seqrecord.writing import committing, own_files
from tests.simulation.commands import COMMANDS
from tests.simulation.histories import BrokenPromiseError, Case, drawn, fails, run, shrunk
from tests.simulation.model import Client, Server
from tests.storage_contract import StorageContract

FIRST = 1_000_000  # of the seeds here; `make simulate` begins at 0


class TestModel(StorageContract):
    """The model is a storage as any other."""

    is_shared = False

    @pytest.fixture
    def storage(self) -> Storage:
        return Client(None, None, Server(clock=time.time()))


def check(case: Case) -> None:
    if failure := fails(case):
        pytest.fail(str(shrunk(failure)))


@pytest.mark.parametrize("block", range(10))
def test_histories(block: int, thorough: bool) -> None:
    count = 300 if thorough else 20
    for seed in range(count):
        check(drawn(FIRST + 1000 * block + seed))


def pairs() -> Iterable[tuple[str, str]]:
    """All pairs of commands that can begin at the same place."""
    for one, other in itertools.combinations_with_replacement(COMMANDS, 2):
        a, b = COMMANDS[one], COMMANDS[other]
        if (a.in_dataset and b.in_dataset) or (a.in_empty and b.in_empty):
            yield one, other


@pytest.mark.slow
def test_all_pairs() -> None:
    for one, other in pairs():
        for seed in range(4):
            check(drawn(seed, [one, other]))


def test_a_resume_whose_files_go_with_the_commit_of_another_looks_again() -> None:
    """Record files that hold nothing but what was discarded."""
    check(Case(("resume", "discarding"), (30,), (), (0,) * 4 + (1,) * 9))


def found(commands: list[str], most: int = 400) -> BrokenPromiseError:
    """The first history of these commands that fails."""
    for seed in range(most):
        if failure := fails(drawn(seed, commands)):
            return failure
    raise AssertionError("the fault was not noticed")


def commit_on_whatever_is_there(storage: Any, manifest: Any, *, expected: str | None) -> None:
    storage.put(
        MANIFEST, manifest.encode(), expected=expected and storage.read_whole(MANIFEST, 1 << 20)[1]
    )


def refused_without_a_look(own: Any, base: Any, manifest: Any, error: Exception) -> None:
    own.forget()
    raise ConflictError("another writer committed first", file=own.storage.url) from error


def looked_once(storage: Any) -> Any:
    manifest = read_manifest(storage)
    return manifest, load_index(storage, manifest)


FAULTS: dict[str, tuple[Any, str, Callable[..., Any], list[str]]] = {
    "a commit on another base": (
        committing,
        "put_manifest",
        commit_on_whatever_is_there,
        ["append", "delete"],
    ),
    "files go that a manifest may name": (
        own_files.SmallFiles,
        "keep",
        lambda self: None,
        ["rename", "split"],
    ),
    "a lost answer is a refusal": (
        committing,
        "_look",
        refused_without_a_look,
        ["append", "rename"],
    ),
    "half a merge is taken": (own_files, "merges", lambda _: set(), ["merge", "resume"]),
    "what is being removed is recovered": (
        freeing,
        "_condemn",
        lambda *_: None,
        ["clean", "only resume"],
    ),
    "clean goes by another clock": (
        freeing,
        "_time_of",
        lambda storage: 1e9 + 1e6,
        ["clean old", "append"],
    ),
    "a reader does not look again": (
        dataset,
        "load",
        looked_once,
        ["read", "split", "split", "split"],
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_is_put_back_is_found(name: str) -> None:
    owner, attribute, fault, commands = FAULTS[name]
    with mock.patch.object(owner, attribute, fault):
        failure = found(commands)
        short = shrunk(failure, most_runs=60)
    assert len(short.case.commands) <= len(commands)
    assert str(short.steps[-1]) in str(short)
    run(short.case)  # without the fault it is sound
