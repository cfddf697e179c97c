"""Datasets of several groups with chunks of any length; all reads equal the written frames."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import FeatureSpec, Schema, SeqRecordWriter, reindex, summarize, verify
from seqrecord.edit import clean
from seqrecord.errors import ClipError
from seqrecord.store.checksum import crc32c
from seqrecord.store.format.edits import Delete, Edit, Split, encode_edit
from tests.kit.command_line import run
from tests.kit.datasets import write_dataset
from tests.kit.tiny import change_manifest, loaded

Frames = list[dict[str, Any]]

_ZSTD = ({"id": "zstd", "level": 1},)
SCHEMA = Schema(
    [
        FeatureSpec("image", np.dtype("u1"), (6, 5), kind="image"),
        FeatureSpec("pose", np.dtype("<f8"), (7,), group=1, kind="pose", unit="m"),
        FeatureSpec("task", np.dtype("u1"), (None,), group=1, kind="text", value="text"),
        FeatureSpec("depth", np.dtype("<f4"), (6, 5), _ZSTD, unit="m"),
        FeatureSpec("packet", np.dtype("u1"), (None,), _ZSTD, group=2, value="bytes"),
        FeatureSpec("points", np.dtype("<f4"), (None, 3), group=2),
    ]
)


def make_frames(rng: random.Random, count: int) -> Frames:
    """Frames with runs that lack features; each frame has at least one feature."""
    frames: Frames = []
    absent: set[str] = set()
    for number in range(count):
        if rng.random() < 0.1:
            absent = set(rng.sample(list(SCHEMA), rng.randint(0, 5)))
        frame = {
            "image": np.full((6, 5), number % 256, np.uint8),
            "pose": np.arange(7) / 7 + number,
            "task": "größer 日本"[: number % 10],
            "depth": np.full((6, 5), number, "<f4"),
            "packet": bytes(range(number % 5)),
            "points": np.full((number % 4, 3), number, "<f4"),
        }
        frames.append({name: value for name, value in frame.items() if name not in absent})
    return frames


def write(root: Path, seed: int) -> dict[str, Frames]:
    """Write several record files, with chunks that end at random flushes."""
    rng = random.Random(seed)
    written: dict[str, Frames] = {}
    codecs = {name: list(spec.codec) for name, spec in SCHEMA.items()}
    with SeqRecordWriter(
        root,
        schema=SCHEMA,
        codecs=codecs,
        chunk_frames=rng.choice([None, 3, 64, 100]),
        max_file_size=rng.choice([1000, 20_000, 1 << 30]),
    ) as writer:
        for number in range(4):
            key = f"env/{number}"
            written[key] = make_frames(rng, rng.choice([1, 30, 200]))
            with writer.episode(key, metadata={"n": number}, fps=[None, 10][number % 2]) as episode:
                for frame in written[key]:
                    episode.append(frame)
                    if rng.random() < 0.05:
                        episode.flush()
    return written


def check_frame(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(found[name], value, strict=True)
        else:
            assert found[name] == value, name


@pytest.mark.parametrize("verified", [True, False])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))]
)
def test_every_way_to_read(tmp_path: Path, seed: int, verified: bool) -> None:
    written = write(tmp_path, seed)
    rng = random.Random(seed)
    with seqrecord.open(tmp_path, verify=verified) as dataset:
        assert len(dataset.contents.index.groups) == 3
        absent = {name: set[tuple[int, int]]() for name in SCHEMA}
        for number, (key, frames) in enumerate(written.items()):
            episode = dataset.episodes[key]
            assert (len(episode), episode.fps) == (len(frames), [None, 10][number % 2])
            assert len(episode.uid) == 32
            for i, frame in enumerate(frames):
                check_frame(episode[i], frame)
            for name in SCHEMA:
                present = [name in frame for frame in frames]
                assert episode.present(name).tolist() == present
                absent[name] |= {(number, i) for i, has in enumerate(present) if not has}
            for _ in range(10):
                names = rng.sample(list(SCHEMA), rng.randint(1, 6))
                numbers = [rng.randrange(len(frames)) for _ in range(rng.randint(0, 40))]
                if rng.random() < 0.5:
                    first = rng.randrange(len(frames))
                    numbers = list(range(first, min(len(frames), first + rng.randint(1, 90))))
                if any(name not in frames[i] for i in numbers for name in names):
                    with pytest.raises(ClipError, match="lacks a feature"):
                        episode.read(numbers, features=names)
                    continue
                found = episode.read(numbers, features=names)
                assert list(found) == names
                for place, i in enumerate(numbers):
                    chosen = {name: frames[i][name] for name in names}
                    check_frame({name: found[name][place] for name in names}, chosen)
            with pytest.raises(IndexError):
                episode.read([len(frames)])
        for names in (["image"], ["task", "points"], list(SCHEMA)):
            missing = dataset.select(names).contents.missing_frames()
            runs = zip(missing.episode, missing.start, missing.stop, strict=True)
            listed = {(int(e), i) for e, start, stop in runs for i in range(start, stop)}
            assert listed == set.union(*(absent[name] for name in names))
    assert verify(tmp_path, deep=True).ok


def test_summaries(tmp_path: Path) -> None:
    written = write(tmp_path, 2)
    summary = summarize(tmp_path)
    total = sum(map(len, written.values()))
    assert summary.num_frames == total
    names = [list(group.features) for group in summary.groups]
    assert names == [["image", "depth"], ["pose", "task"], ["packet", "points"]]
    assert summary.fps == (10.0, 10.0)
    for feature in summary.features:
        absent = sum(feature.spec.name not in f for frames in written.values() for f in frames)
        assert (feature.num_missing, feature.num_frames) == (absent, total - absent)
    text = str(summary)
    assert "group 0 " in text
    assert "fps           10" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["feature", "dtype", "shape", "codec", "group", "kind", "unit"] in [r[:7] for r in rows]
    assert ["task", "text", "raw", "1", "text"] in [r[:5] for r in rows]
    assert json.loads(json.dumps(summary.to_json()))["groups"][1]["features"] == ["pose", "task"]
    assert "fps           10" in run("info", tmp_path, "env/1").stdout
    one = json.loads(run("info", tmp_path, "env/1", "--json").stdout)
    assert (one["fps"], one["split"], one["num_frames"]) == (10, None, len(written["env/1"]))


def put_edits(root: Path, *edits: Edit) -> None:
    """Add a file of edits to the manifest; callers rebuild the index."""
    (root / "edits").mkdir(exist_ok=True)
    number = len(list((root / "edits").iterdir()))
    path, data = f"edits/{number:05d}-x.json", encode_edit(edits)
    (root / path).write_bytes(data)
    entry = {"path": path, "size": len(data), "crc32c": f"{crc32c(data):08x}"}
    change_manifest(root, lambda value: value["edits"].append(entry))


def test_edits_survive_appends_and_rebuilds(tmp_path: Path) -> None:
    written = write(tmp_path, 3)
    with seqrecord.open(tmp_path) as dataset:
        uid = {key: episode.uid for key, episode in dataset.episodes.items()}
        fingerprint = dataset.fingerprint
    put_edits(tmp_path, Split("train", (uid["env/0"], uid["env/1"], uid["env/2"])))
    put_edits(tmp_path, Delete((uid["env/1"],)), Split("val", (uid["env/2"],)))
    assert verify(tmp_path).problems, "the index does not match the edits yet"
    reindex(tmp_path)
    assert verify(tmp_path).ok
    manifest = loaded(tmp_path)[0]
    assert manifest.splits == ("train", "val")
    assert manifest.fingerprint != fingerprint
    assert [file.path for file in manifest.edits] == ["edits/00000-x.json", "edits/00001-x.json"]
    with seqrecord.open(tmp_path) as dataset:
        assert list(dataset.episodes) == ["env/0", "env/2", "env/3"]
        for key, split in (("env/0", "train"), ("env/2", "val"), ("env/3", None)):
            assert json.loads(run("info", tmp_path, key, "--json").stdout)["split"] == split
            check_frame(dataset.episodes[key][0], written[key][0])
    assert summarize(tmp_path).splits == {"train": 1, "val": 1}
    assert "train 1, val 1, none 1" in str(summarize(tmp_path))
    # Edits survive an append, a lost manifest and a lost index.
    write_dataset(tmp_path, {"z": [written["env/0"][0]]}, mode="append")
    assert loaded(tmp_path)[0].splits == ("train", "val")
    put_edits(tmp_path, Delete((loaded(tmp_path)[1].uid(3),)))
    reindex(tmp_path)
    manifest = loaded(tmp_path)[0]
    edits, other = tmp_path / "edits" / "00002-x.json", tmp_path / "edits" / "z.txt"
    (tmp_path / "manifest.json").unlink()
    edits.rename(other)
    reindex(tmp_path)  # other files are ignored: `z` is visible again
    assert "z" in loaded(tmp_path)[1].keys.to_pylist()
    other.rename(edits)
    (tmp_path / "manifest.json").unlink()
    assert reindex(tmp_path).fingerprint == manifest.fingerprint


def test_clean_and_broken_edits(tmp_path: Path) -> None:
    """`clean` removes unused edits and statistics; broken edits are errors."""
    write(tmp_path, 1)
    put_edits(tmp_path, Split("train", ("0" * 32,)))
    assert verify(tmp_path).ok
    statistics = loaded(tmp_path)[0].statistics
    assert statistics is not None
    strays = [f"edits/00000001-{'0' * 16}.json", f"index/{'0' * 16}-statistics.json"]
    stray = [tmp_path / name for name in strays]
    for path in stray:
        path.write_bytes(b"{}")
    kept = [tmp_path / "edits" / name for name in ("notes.txt", "00000-x.json")]
    kept[0].write_bytes(b"mine")
    assert clean(tmp_path, older_than=0, dry_run=True) == strays
    assert clean(tmp_path, older_than=3600) == []
    assert clean(tmp_path, older_than=0) == strays
    assert not any(path.exists() for path in stray)
    assert all(path.exists() for path in (*kept, tmp_path / statistics.path))
    manifest = loaded(tmp_path)[0]
    assert (len(manifest.edits), manifest.statistics) == (1, statistics)
    path = kept[1]
    path.write_bytes(path.read_bytes().replace(b"0" * 32, b"1" * 32))
    [problem] = verify(tmp_path).problems
    assert problem.file == str(path)
    with pytest.raises(type(problem)):
        reindex(tmp_path)
