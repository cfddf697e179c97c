"""Writers on a storage in memory, whose calls are interleaved, delayed and broken by a seed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from seqrecord.cloud.retrying import RetryingStorage
from seqrecord.errors import ConflictError
from seqrecord.store.format.manifest import MANIFEST, VERSIONS, read_manifest
from seqrecord.store.reading import dataset, index_building
from seqrecord.store.reading.versions import kept_versions, open_version
from seqrecord.store.storage.base import Storage
from seqrecord.store.writing import committing, record_files, recovery
from seqrecord.tools.edit import cleaning
from tests.store.storage_contract import StorageContract
from tests.tools.simulation.commands import COMMANDS
from tests.tools.simulation.histories import (
    Case,
    GuaranteeError,
    begin,
    failure_of,
    random_case,
    run,
    shortened,
)
from tests.tools.simulation.model import Client, Fault, Server

FIRST = 1_000_000  # seed; `make simulate` starts at 0


class TestModel(StorageContract):
    """The simulated storage passes the storage contract."""

    is_shared = False

    @pytest.fixture
    def storage(self) -> Storage:
        return Client(None, None, Server(clock=time.time()))


def check(case: Case) -> None:
    if failure := failure_of(case):
        pytest.fail(str(shortened(failure)))


@pytest.mark.parametrize("block", range(10))
def test_histories(block: int, thorough: bool) -> None:
    for seed in range(50 if thorough else 2):
        check(random_case(FIRST + 1000 * block + seed))


# Whichever commits first, the other's episodes are committed or found by the next resume.
_IN_EVERY_RUN = ["append append", "append resume", "flushing resume", "resume resume"]
_IN_EVERY_RUN += ["discarding resume", "clean resume", "merge resume", "rewrite append"]
_IN_EVERY_RUN += ["add append", "drop append", "delete append", "rename append"]


def test_pairs(thorough: bool) -> None:
    """Of commands that can start from the same destination."""
    pairs: Iterable[Sequence[str]] = itertools.combinations_with_replacement(COMMANDS, 2)
    for pair in pairs if thorough else [names.split() for names in _IN_EVERY_RUN]:
        a, b = (COMMANDS[name] for name in pair)
        if not (a.in_dataset and b.in_dataset) and not (a.in_empty and b.in_empty):
            continue
        for seed in range(2 if thorough else 1):
            check(random_case(seed, pair))


_SOME = [("flushing", Fault.KILL), ("dropping", Fault.KILL_AFTER), ("flushing", Fault.BUSY)]
_WRITING = "write", "append", "flushing", "dropping", "resume", "merge", "clean"


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        *_SOME,
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in itertools.product(_WRITING, Fault)
            if case not in _SOME
        ),
    ],
)
def test_a_fault_in_every_request_to_an_object_store(
    command: str, fault: Fault, thorough: bool
) -> None:
    """No unfinished upload remains, and flushes store all episodes that had ended.

    At the end a resume adds what was stored, compared frame by frame.
    """
    in_empty = not COMMANDS[command].in_dataset
    number, has_fault = 0, True
    while has_fault:
        case = Case((command,), faults=(("", number, fault, 0),), in_empty=in_empty)
        steps = run(replace(case, keeps_uploads=False))
        has_fault = any(step.fault is not None for step in steps)
        number += 1 if thorough else 12
    assert number > 10


@pytest.mark.parametrize(
    "case",
    [
        Case(("resume", "discarding"), (30,), (), (1, 1, 0, 1, 0, 1, 1, 1, 0, 1, 0, 1, 1, 1)),
        Case(("discarding", "reindex"), (30, 30), (), (0, 0, 1, 1, 1), has_conditions=False),
    ],
)
def test_commands_retry_after_another_commit_deleted_their_files(case: Case) -> None:
    """The deleted record files contain discarded episodes only."""
    deleted, missed = set(), []
    for step in run(case):
        missed += [step] if step.path in deleted and step.call != "remove" else []
        deleted |= {step.path} if step.call == "remove" and step.path.endswith(".seqrec") else set()
    assert missed, "no command looked for a deleted file"


def found(commands: Sequence[str], message: str, most: int = 400) -> GuaranteeError:
    """The first history of these commands that fails with this message."""
    for seed in range(most):
        if (failure := failure_of(random_case(seed, commands))) and message in failure.what:
            return failure
    raise AssertionError("the fault was not noticed")


def put_anyway(storage: Any, manifest: Any, *, expected: str | None) -> None:
    """Replace any manifest."""
    storage.put(
        MANIFEST, manifest.encode(), expected=expected and storage.read_whole(MANIFEST, 1 << 20)[1]
    )


def refuse(own: Any, base: Any, manifest: Any, error: Exception) -> None:
    """Without a look at the manifest."""
    own.forget()
    raise ConflictError("another writer committed first", file=own.storage.url) from error


def load_the_version_before(storage: Any) -> Any:
    manifest = read_manifest(storage)
    if isinstance(storage, RetryingStorage):  # a command's, not the checker's
        manifest = next(kept_versions(storage, manifest), (manifest, 0))[0]
    return open_version(storage, manifest.commit)


def tidy_all(storage: Any, paths: Iterable[str]) -> None:
    for path in (*paths, MANIFEST):
        storage.remove(path)


def keep_another(storage: Any, manifest: Any) -> None:
    new = replace(manifest, commit="0" * 32)
    storage.put(f"{VERSIONS}/{new.commit}.json", new.encode(), expected=None)


_COMMITS = "rename", "split"
_ADDS = "append", "record"

# By name: the patched function, the past fault, the commands that reveal it, and the message.
FAULTS: dict[str, tuple[Any, str, Any, tuple[str, ...], str]] = {
    "a commit on another base": (
        *(committing, "put_manifest", put_anyway, ("append", "delete")),
        "a commit of",
    ),
    "clean uses another clock": (
        *(cleaning, "_time_of", lambda storage: 1e9 + 1e6, ("clean old", "append")),
        "that had ended are lost",
    ),
    "a lost manifest": (committing, "tidy", tidy_all, _COMMITS, "the manifest is gone"),
    "a lost response counts as a refusal": (
        committing,
        "_resolve_outcome",
        refuse,
        ("append", "rename"),
        "was refused, and did commit",
    ),
    "a reader opens an old version": (
        dataset,
        "load",
        load_the_version_before,
        ("read", "split"),
        "a reader saw what never was",
    ),
    "a version that never existed is kept": (
        committing,
        "_keep_version",
        keep_another,
        _COMMITS,
        "it was never the dataset",
    ),
    "a flush stores nothing": (
        record_files.ChunkWriter,
        "store",
        lambda writer: True,
        ("flushing", "resume"),
        "that had ended are lost",
    ),
    "a mark of a discarded episode is ignored": (
        index_building,
        "_discarded_uids",
        lambda footers: set(),
        ("dropping", "resume"),
        "contradict",
    ),
    "a resume skips unfinished files": (
        recovery,
        "recover",
        lambda *_: {},
        _ADDS,
        "that had ended are lost",
    ),
}


SLOW = [name for name in FAULTS if name != "a commit on another base"]


@pytest.mark.parametrize(
    "name",
    ["a commit on another base", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)],
)
def test_past_faults_are_found(name: str, thorough: bool) -> None:
    owner, function, fault, commands, message = FAULTS[name]
    begin()
    with mock.patch.object(owner, function, fault):
        failure = found(commands, message)
        short = shortened(failure, most_runs=60 if thorough else 6)
    assert len(short.case.commands) <= len(commands)
    assert str(short.steps[-1]) in str(short)
    run(short.case)  # passes without the fault
