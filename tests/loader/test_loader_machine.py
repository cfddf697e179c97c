"""Loaders with drawn arguments and histories; `loader_machine` has the rules and invariants."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import seqrecord
from tests.loader.clip_model import GROUPS, write_all
from tests.loader.loader_machine import (
    LoaderMachine,
    MixMachine,
    TableMachine,
    TableMixMachine,
    WorkerMachine,
)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> seqrecord.Dataset:
    return seqrecord.open(write_all(tmp_path_factory.mktemp("machine") / "records", GROUPS))


@pytest.mark.timeout(900)  # of the slow test, on a busy machine
@pytest.mark.parametrize("steps", [8, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("kind", "share"),
    [
        (LoaderMachine, 1),
        (TableMachine, 2),
        (MixMachine, 4),
        (TableMixMachine, 4),
        pytest.param(WorkerMachine, 10, marks=pytest.mark.slow),
    ],
)
def test_loaders(
    records: seqrecord.Dataset,
    tmp_path: Path,
    kind: type[LoaderMachine],
    share: int,
    steps: int,
) -> None:
    attributes = {"records": records, "cache": tmp_path}
    machine, usual = type("Machine", (kind,), attributes), settings()
    chosen = settings(
        max_examples=max(2, usual.max_examples // share),
        stateful_step_count=steps,
        # Without shrinking, which takes up to 300 s: by then faulthandler_timeout ends the process,
        # and the failed example is lost.
        phases=[Phase.generate],
    )
    run_state_machine_as_test(machine, settings=chosen)
