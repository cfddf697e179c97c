"""`seqrecord info PATH --state FILE --batch N`: `rows` of a loader with the state's arguments."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import seqrecord
from seqrecord import SeqRecordIterableDataset, SeqRecordPipe
from tests.kit.command_line import fail, run
from tests.kit.datasets import columns, noise, write_dataset

FEATURES = ("id", "image")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rows") / "records"
    frames = columns(id=range(40), image=[noise(12, 16, 3, seed=n) for n in range(40)])
    episodes = {f"e/{n}": frames[: 14 + 3 * n] for n in range(6)}
    write_dataset(root, episodes, fps=10, chunk_frames=8)
    run("split", root, "train=0.7", "val=0.3")
    return root


def saved(loader: Any, folder: Path) -> Path:
    """A file with the loader's state after a batch."""
    next(iter(loader))
    file = folder / "state.json"
    file.write_text(json.dumps(loader.state_dict()))
    return file


def rows_of(where: object, file: Path, *arguments: object) -> dict[str, Any]:
    text = run("info", where, "--state", file, "--json", *arguments).stdout
    found: dict[str, Any] = json.loads(text, parse_constant=pytest.fail)
    return found


def as_json(batch: Any) -> dict[str, Any]:
    return {
        name: value.tolist() if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
        if name not in FEATURES
    }


NORMALIZED = {"id": seqrecord.Vector(normalize="mean_std")}
OPTIONS: dict[str, dict[str, Any]] = {
    "batches": {"batch_size": 4, "clip_len": 3, "seed": 7},
    "single clips": {"clip_len": 3, "dilation": 2, "stride": 2},
    "in order": {"batch_size": 4, "clip_len": 3, "shuffle": False, "last_batch": "drop"},
    "sequences": {"batch_size": 2, "clip_len": 3, "order": "sequences"},
    "padding": {"batch_size": 4, "clip_len": 8, "pad": "edge"},
    "budget": {"batch_size": seqrecord.Budget(12), "clip_len": (2, 5)},
    "features": {"batch_size": 4, "clip_len": 3, "features": ["id"], "rename": {"id": "number"}},
    "normalized": {"batch_size": 4, "clip_len": 3, "vectors": NORMALIZED},
    "memory": {"batch_size": 4, "clip_len": 3, "memory_limit": "1MiB"},
    "engine": {
        "batch_size": 4,
        "clip_len": 3,
        "engine": seqrecord.EngineOptions(shuffle_buffer=40),
    },
}


@pytest.mark.parametrize("case", OPTIONS)
def test_rows_follow_from_the_state(path: Path, tmp_path: Path, case: str) -> None:
    loader = SeqRecordIterableDataset(path, rank=(1, 3), **OPTIONS[case])
    file = saved(loader, tmp_path)
    for number, batch in enumerate(SeqRecordIterableDataset(path, rank=(1, 3), **OPTIONS[case])):
        found = rows_of(path, file, "--rank", 1, "--batch", number)
        expected = as_json({n: v for n, v in batch.items() if n != "number"})
        assert found["rows"] == expected
        if number == 3:
            break
    found = rows_of(path, file, "--rank", 2, "--batch", 0, "--epoch", 5)
    assert found["rows"] == as_json(loader.rows(5, 0, rank=2))


def test_a_split_and_samples_of_the_run(path: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"clip_len": 3, "batch_size": 2, "split": "train"}
    samples = seqrecord.samples.every(2)
    loader = SeqRecordPipe(path, samples=samples, **options)
    file = saved(loader, tmp_path)
    place = "--split", "train", "--samples", "{every: 2}"
    assert rows_of(path, file, "--batch", 1, *place)["rows"] == as_json(loader.rows(0, 1))
    message = fail("info", path, "--state", file, "--batch", 1, "--split", "train")
    assert "the state does not have the samples of the run; " in message
    assert "expected: --samples of the run; or in Python a loader" in message
    message = fail("info", path, "--state", file, "--batch", 1, *place[2:])
    assert "of other episodes of this dataset" in message
    assert "loader.load_state_dict(state); loader.rows(" in message
    loader = SeqRecordPipe(path, samples=samples, stride=2, clip_len=3)
    place = "--batch", "1", "--samples", "{every: 2}"
    assert rows_of(path, saved(loader, tmp_path), *place)["rows"] == as_json(loader.rows(0, 1))


def test_a_column_with_nan(path: Path, tmp_path: Path) -> None:
    with seqrecord.open(path) as dataset:
        key = next(iter(dataset.episodes))
    table = tmp_path / "scores.parquet"
    pq.write_table(pa.table({"episode": [key], "start": [0], "score": [math.nan]}), table)
    file = saved(SeqRecordPipe(path, samples=table, clip_len=3, batch_size=1), tmp_path)
    assert rows_of(path, file, "--batch", 0, "--samples", table)["rows"]["score"] == [None]


def test_rows_of_a_mix_file(path: Path, tmp_path: Path) -> None:
    text = f"sources: {{a: {{location: '{path}'}}, b: {{location: '{path}', split: val}}}}\n"
    (tmp_path / "mix.yaml").write_text(text + "weights: {a: 1, b: 2}\n")
    options: dict[str, Any] = {"clip_len": 3, "batch_size": 5, "seed": 3, "vectors": NORMALIZED}
    mix = seqrecord.SeqRecordMix.from_file(tmp_path / "mix.yaml", **options)
    file = saved(mix, tmp_path)
    found = rows_of(tmp_path / "mix.yaml", file, "--batch", 2, "--epoch", 1)
    assert found["rows"] == as_json(mix.rows(1, 2))
    assert set(found["rows"]) == {"episode", "start", "dataset"}
    assert "one of a mix; " in fail("info", path, "--state", file, "--batch", 0)
    single = saved(SeqRecordPipe(path, clip_len=3), tmp_path)
    message = fail("info", tmp_path / "mix.yaml", "--state", single, "--batch", 0)
    assert "the state is not one of a mix" in message


def test_the_table_of_a_batch(path: Path, tmp_path: Path) -> None:
    loader = SeqRecordPipe(path, clip_len=3, batch_size=2, pad="edge")
    next(iter(loader))
    file = tmp_path / "checkpoint.json"
    file.write_text(json.dumps({"step": 1, "loader": loader.state_dict()}))
    rows = loader.rows(0, 4)
    lines = run("info", path, "--state", file, "--batch", 4).stdout.splitlines()
    assert lines[0] == "epoch 0, batch 4 of rank 0 of 1"
    assert lines[1].split()[:3] == ["slot", "episode", "start"]
    for slot, line in enumerate(lines[2:]):
        expected = [str(slot), rows["episode"][slot], str(int(rows["start"][slot]))]
        assert line.split()[:3] == expected


def test_what_a_state_does_not_have(path: Path, tmp_path: Path) -> None:
    windows: list[dict[str, Any]] = [
        {"windows": {"image": seqrecord.Latest(max_age=5)}, "clip_len": 2},
        {"windows": {"id": [-2, 0], "image": range(0, 4, 2)}},
    ]
    shapes: list[dict[str, Any]] = [
        {"frame_transform": lambda frame: {"x": frame["id"]}, "clip_len": 2},
        {"resize": (6, 8), "clip_len": 2},
    ]
    cases = [(options, "does not have the windows") for options in windows]
    cases += [(options, "other settings: shapes") for options in shapes]
    for options, problem in cases:
        loader = SeqRecordPipe(path, batch_size=2, **options)
        message = fail("info", path, "--state", saved(loader, tmp_path), "--batch", 0)
        assert problem in message
        assert "in Python a loader with the run's arguments" in message


def test_files_and_arguments_that_are_wrong(path: Path, tmp_path: Path) -> None:
    file = saved(SeqRecordPipe(path, clip_len=3), tmp_path)
    message = fail("info", path, "--state", file, "--batch", 9999)
    assert "no such batch" in message
    assert "in Python" not in message
    assert "no such rank" in fail("info", path, "--state", file, "--batch", 0, "--rank", 1)
    assert "--state requires --batch" in fail("info", path, "--state", file, code=2)
    assert "require --state" in fail("info", path, "--rank", 3, code=2)
    assert "--split requires" in fail("info", path, "--split", "train", code=2)
    for text, problem in (
        ("{", "cannot read the state"),
        ("[]", "no state of a loader"),
        ('{"a": {"sources": []}, "b": {"sources": []}}', "several states"),
        ('{"sources": [], "version": 3}', "another version"),
    ):
        file.write_text(text)
        assert problem in fail("info", path, "--state", file, "--batch", 0)
    message = fail("info", path, "--state", tmp_path / "absent.json", "--batch", 0)
    assert "cannot read the state" in message


_RANK = """
import json, os, signal, sys
from torch.utils.data import DataLoader
import seqrecord

path, rank, ranks, state = sys.argv[1], *map(int, sys.argv[2:4]), sys.argv[4]
stream = seqrecord.SeqRecordIterableDataset(path, clip_len=3, batch_size=2, rank=(rank, ranks))
if os.path.exists(state):
    stream.load_state_dict(json.load(open(state)))
rows = []
if __name__ == "__main__":
    for number, batch in enumerate(DataLoader(stream, batch_size=None, num_workers=2)):
        rows.append([batch["episode"], batch["start"].tolist()])
        if number == 2:
            if rank == 0:
                json.dump(stream.state_dict(batches=2), open(f"{state}.next", "w"))
            json.dump(rows, open(f"{state}.{rank}", "w"))
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_killed_run_is_named_by_one_process(path: Path, tmp_path: Path) -> None:
    """Four ranks of two workers are killed, three continue and are killed too."""
    files = [tmp_path / f"state{number}.json" for number in range(3)]
    (tmp_path / "rank.py").write_text(_RANK)
    for file, following, ranks in ((files[0], files[1], 4), (files[1], files[2], 3)):
        for rank in range(ranks):
            arguments = map(str, (tmp_path / "rank.py", path, rank, ranks, file))
            assert subprocess.run([sys.executable, *arguments]).returncode == -signal.SIGKILL
        file.with_name(f"{file.name}.next").rename(following)
    count = 0
    for file, state, part in ((files[0], files[2], ["--segment", 0]), (files[1], files[2], [])):
        for rank in range(3):
            taken = json.loads(file.with_name(f"{file.name}.{rank}").read_bytes())
            for number, (episodes, starts) in enumerate(taken):
                found = rows_of(path, state, "--rank", rank, "--batch", number, *part)["rows"]
                assert (found["episode"], found["start"]) == (episodes, starts)
                count += 1
    assert count == 18
