"""Jobs of several ranks, started by common launchers: every clip once, no hang."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seqrecord import SeqRecordPipe
from tests.kit.clip_data import write_numbered
from tests.kit.processes import free_port
from tests.loader.rank_jobs import CLIPS, PATIENCE, check_equal, check_once, finish, start
from tests.loader.test_elastic import Job

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(PATIENCE + 50),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
TOTAL = 67


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = write_numbered(tmp_path_factory.mktemp("launchers") / "records")
    assert SeqRecordPipe(path, **CLIPS).num_clips == TOTAL
    return str(path)


def test_torchrun(path: str, tmp_path: Path) -> None:
    segment, state = Job(2, 3).run(Path(path)), tmp_path / "state.json"
    state.write_text(json.dumps(segment.state))
    job = ["-m", "tests.loader.rank_jobs.torchrun", path, str(state)]
    found = finish([start([*TORCHRUN, "3", *job])])
    assert len(found) == 3
    for name, parts in [("environment", 3), ("0 workers", 3), ("2 workers", 6)]:
        check_equal(found, name, TOTAL, parts)
    # Two ranks with the same number get the same clips.
    a, b, c = sorted(found, key=lambda part: repr(part["together"]))
    assert (a["together"] == b["together"]) != (b["together"] == c["together"])
    check_equal([a, c], "together", TOTAL, 2)
    # One rank evaluates all clips.
    alone = [{"alone": part["alone"]} for part in found if part["alone"]]
    assert len(alone) == 1
    check_once(alone, TOTAL)
    # Two ranks share the rest of an epoch.
    assert len({len(part["rest"]) for part in found}) == 1
    rest = {tuple(clip) for part in found for batch in part["rest"] for clip in batch}
    assert not rest & set(segment.clips)
    assert len(rest | set(segment.clips)) == TOTAL


@pytest.mark.parametrize(("strategy", "workers"), [("ddp", 2), ("ddp_spawn", 0)])
def test_lightning(path: str, strategy: str, workers: int) -> None:
    script = ["-m", "tests.loader.rank_jobs.with_lightning", path, strategy, str(workers)]
    found = finish([start(script)])
    assert len(found) == 2
    check_equal(found, "fit", TOTAL, 2 * max(1, workers))


def test_accelerate(path: str) -> None:
    found = finish([start([*TORCHRUN, "2", "-m", "tests.loader.rank_jobs.with_accelerate", path])])
    assert len(found) == 2
    for workers in (0, 2):
        check_equal(found, f"given {workers}", TOTAL, 2 * max(1, workers))
        for way in ("sharded", "dispatched"):
            name = f"{way} {workers}"
            check_once([{name: part[name]} for part in found], 24)
    # The error asks for rank=(0, 1), since Accelerate splits the epoch itself.
    assert [part["refused"] for part in found] == [11, 11] == [part["ways"] for part in found]


@pytest.mark.parametrize("ranks", [1, 2])
def test_accelerate_resumes(path: str, ranks: int) -> None:
    """A prepared loader as in docs/recipes.md; and ranks that read their own shards."""
    job = ["-m", "tests.loader.rank_jobs.resume_with_accelerate", path]
    found = finish([start([*TORCHRUN, "2", *job] if ranks > 1 else job)])
    assert len(found) == ranks
    for part in found:
        assert part["resumed"] == part["whole"]
        assert part["whole"][0] != part["whole"][1]


def test_jax(path: str) -> None:
    pytest.importorskip("jax")
    script = ["-m", "tests.loader.rank_jobs.with_jax", path, f"127.0.0.1:{free_port()}"]
    found = finish([start([*script, str(rank)], JAX_PLATFORMS="cpu") for rank in range(2)])
    check_once([{"named": part["named"]} for part in found], TOTAL // 8 * 8)
    sums = [sum(own) for own in zip(*(part["own"] for part in found), strict=True)]
    for part in found:
        assert part["sums"] == sums, "the sums include both processes' clips"
        assert part["kept"], "JAX arrays keep a batch's memory without a copy"
        assert "rank=(jax.process_index(), jax.process_count())" in part["refused"]
        assert part["mixed"] == "ndarray"
