"""Jobs of several ranks, started by those who start them in practice: every clip once, no hang."""

from __future__ import annotations

import pytest

from seqrecord import SeqRecordPipe
from tests.clip_data import write_numbered
from tests.rank_jobs import CLIPS, PATIENCE, check_equal, check_once, finish, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(PATIENCE + 50)]

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
TOTAL = 67


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = write_numbered(tmp_path_factory.mktemp("launchers") / "records")
    assert SeqRecordPipe(path, **CLIPS).num_clips == TOTAL
    return str(path)


def test_torchrun(path: str) -> None:
    found = finish([start([*TORCHRUN, "3", "-m", "tests.rank_jobs.torchrun", path])])
    assert len(found) == 3
    for name, parts in [("environment", 3), ("0 workers", 3), ("2 workers", 6)]:
        check_equal(found, name, TOTAL, parts)
    # Two ranks are given the same number, and get the same.
    a, b, c = sorted(found, key=lambda part: repr(part["together"]))
    assert (a["together"] == b["together"]) != (b["together"] == c["together"])
    check_equal([a, c], "together", TOTAL, 2)
    # One rank evaluates all.
    alone = [{"alone": part["alone"]} for part in found if part["alone"]]
    assert len(alone) == 1
    check_once(alone, TOTAL)


@pytest.mark.parametrize(("strategy", "workers"), [("ddp", 0), ("ddp", 2), ("ddp_spawn", 2)])
def test_lightning(path: str, strategy: str, workers: int) -> None:
    script = ["-m", "tests.rank_jobs.with_lightning", path, strategy, str(workers)]
    found = finish([start(script)])
    assert len(found) == 2
    check_equal(found, "fit", TOTAL, 2 * max(1, workers))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", ["found", "sharded", "dispatched"])
def test_accelerate(path: str, way: str, workers: int) -> None:
    script = ["-m", "tests.rank_jobs.with_accelerate", path, way, str(workers)]
    found = finish([start([*TORCHRUN, "2", *script])])
    assert len(found) == 2
    if way == "found":
        check_equal(found, way, TOTAL, 2 * max(1, workers))
    else:
        check_once(found, 24)


def test_accelerate_deals_out_no_part_of_a_part(path: str) -> None:
    script = ["-m", "tests.rank_jobs.with_accelerate", path, "refused", "0"]
    found = finish([start([*TORCHRUN, "2", *script])])
    assert [part["refused"] for part in found] == [11, 11] == [part["ways"] for part in found]
