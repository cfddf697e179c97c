"""`seqrecord stats`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import seqrecord
from seqrecord import SeqRecordWriter
from tests.command_line import main
from tests.datasets import write_small


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["stats", *map(str, arguments), "--quiet"])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    with SeqRecordWriter(tmp_path / "d", statistics=False) as writer:
        for key in ("a", "b"):
            with writer.episode(key) as episode:
                for number in range(100):
                    action = np.array([number, np.nan, -1], np.float32)
                    episode.append({"action": action, "flag": np.bool_(number == 3)})
    return tmp_path / "d"


def kept(folder: Path) -> bool:
    with seqrecord.open(folder) as reader:
        return bool(reader.statistics)


def test_a_dataset_that_has_none_gets_them(dataset: Path) -> None:
    assert not kept(dataset)
    lines = run(dataset).stdout.splitlines()
    head = "feature mean std min 1% 50% 99% max NaN infinite numbers"
    assert lines[0].split() == head.split()
    assert " ".join(lines[1].split()) == "action[0] 49.5 28.866 0 0 49 98 99 0 0 200"
    assert lines[2].split() == ["action[1]", *["nan"] * 7, "200", "0", "0"]
    assert " ".join(lines[4].split()) == "flag 0.01 0.099499 0 0 0 0 1 0 0 200"
    assert kept(dataset)
    assert run(dataset).stdout.splitlines() == lines


def test_as_json(dataset: Path) -> None:
    found = json.loads(run(dataset, "--json").stdout)
    assert found["action"]["mean"] == [49.5, None, -1]
    assert found["action"]["q99"] == [98, None, -1]
    assert found["action"]["num_nan"] == [0, 200, 0]
    assert (found["flag"]["num_frames"], found["flag"]["rank_error"]) == (200, 0)


def test_dry_run_leaves_the_dataset_alone(dataset: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in dataset.rglob("*"))
    table = run(dataset, "--dry-run").stdout
    assert sorted((path, path.stat().st_mtime_ns) for path in dataset.rglob("*")) == before
    assert run(dataset).stdout == table


def test_of_some_frames_and_anew(dataset: Path) -> None:
    run(dataset, "--max-frames", 100, "--threads", 2)
    with seqrecord.open(dataset) as reader:
        assert reader.statistics
        assert reader.statistics["flag"].num_frames < 200
    run(dataset, "--recompute")
    with seqrecord.open(dataset) as reader:
        assert reader.statistics
        assert reader.statistics["flag"].num_frames == 200


def test_features_that_have_none_are_named(tmp_path: Path) -> None:
    write_small(tmp_path / "d")
    assert "no statistics of photo; --recompute reads them" in run(tmp_path / "d").stderr
    assert run(tmp_path / "d", "--recompute").stderr == ""
