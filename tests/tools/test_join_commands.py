"""Commands with `--join`: as with the same features stored together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqrecord
from seqrecord import FeatureSpec, Schema
from seqrecord.errors import JoinError
from seqrecord.export import to_files
from tests.kit.command_line import fail, run
from tests.kit.datasets import columns, noise, write_dataset
from tests.kit.lerobot_video_data import unpack
from tests.kit.tiny import check_frames, read_all
from tests.tools.test_page import data_of

pytestmark = pytest.mark.usefixtures("home")

LENGTHS = {"a": 5, "b": 3, "c": 40}


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """A dataset, a companion, a table, and a dataset with the features of all."""
    frames = {
        key: columns(image=noise(n, 8, 9, 3, seed=n), step=np.arange(n, dtype="<i4"))
        for key, n in LENGTHS.items()
    }
    latents = {key: columns(latent=noise(n, 4, dtype="f4", seed=n)) for key, n in LENGTHS.items()}
    labels: dict[str, Any] = {"episode": ["c", "a", "b"], "start": [1, 0, 2], "stop": [9, 5, 3]}
    labels |= {"label": ["r", "p", "q"], "score": [0.5, None, 2.0]}
    together: dict[str, Any] = {}
    for key, episode in frames.items():
        together[key] = [{**f, **latent} for f, latent in zip(episode, latents[key], strict=True)]
    for row, key in enumerate(labels["episode"]):
        for frame in together[key][labels["start"][row] : labels["stop"][row]]:
            frame["label"] = labels["label"][row]
            if (score := labels["score"][row]) is not None:
                frame["score"] = np.float64(score)
    roots = {name: tmp_path / name for name in ("records", "latents", "together")}
    specs = [("image", "u1", (8, 9, 3)), ("step", "<i4", ()), ("latent", "<f4", (4,))]
    features = [FeatureSpec(name, np.dtype(dtype), shape) for name, dtype, shape in specs]
    features += [FeatureSpec("label", np.dtype("u1"), (None,), value="text")]
    features += [FeatureSpec("score", np.dtype("<f8"), ())]
    for name, episodes in (("records", frames), ("latents", latents)):
        write_dataset(roots[name], episodes)
    write_dataset(roots["together"], together, schema=Schema(features))
    pq.write_table(pa.table(labels), tmp_path / "labels.parquet")
    return {**roots, "labels": tmp_path / "labels.parquet"}


def joined(places: dict[str, Path]) -> list[object]:
    return [places["records"], "--join", places["latents"], "--join", places["labels"]]


def test_info_lists_the_features_of_all(places: dict[str, Path]) -> None:
    report = json.loads(run("info", *joined(places), "--json").stdout)
    expected = json.loads(run("info", places["together"], "--json").stdout)
    names = [[feature["name"] for feature in r["features"]] for r in (report, expected)]
    assert sorted(names[0]) == sorted(names[1])
    assert report["num_frames"] == expected["num_frames"]
    assert report["companions"] == [str(places[name]) for name in ("latents", "labels")]
    printed = run("info", *joined(places)).stdout
    assert f"joined with   {places['latents']}, {places['labels']}\n" in printed
    command = ["info", *joined(places), "--clip-len", 2, "--json"]
    clips = json.loads(run(*command).stdout)["clips"]
    expected = json.loads(run("info", places["together"], "--clip-len", 2, "--json").stdout)
    assert clips["num_clips"] == expected["clips"]["num_clips"]


def test_stats_are_those_of_all(places: dict[str, Path]) -> None:
    statistics = json.loads(run("stats", *joined(places), "--json", "--quiet").stdout)
    expected = json.loads(run("stats", places["together"], "--json").stdout)
    assert statistics.keys() == expected.keys()
    for name, values in expected.items():
        for key in ("mean", "std", "min", "max"):
            if key in values:
                np.testing.assert_allclose(statistics[name][key], values[key], rtol=1e-6)


def test_verify_checks_all_datasets(places: dict[str, Path]) -> None:
    alone = run("verify", places["records"]).stdout
    assert "3 record files" in run("verify", *joined(places)).stdout
    assert "1 record file" in alone
    [file] = (places["latents"] / "records").iterdir()
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    output = run("verify", *joined(places), code=1).stdout
    assert "ChecksumError" in output
    assert "latents" in output


def test_write_packs_the_features_of_all(places: dict[str, Path], tmp_path: Path) -> None:
    command = ["write", "--src", *joined(places), "--dst", tmp_path / "packed", "--quiet"]
    run(*command)
    check_frames(read_all(tmp_path / "packed"), read_all(places["together"]))
    run("verify", "--deep", tmp_path / "packed")
    run(*[*command[:-2], tmp_path / "some", "--features", "score,image", "--quiet"])
    with seqrecord.open(tmp_path / "some") as dataset:
        assert [*dataset.features] == ["score", "image"]


def test_edit_add_stores_a_companion(places: dict[str, Path]) -> None:
    for name, source in (("latent", "latents"), ("label", "labels"), ("score", "labels")):
        run("edit", "add", places["records"], name, "--from", places[source])
    check_frames(read_all(places["records"]), read_all(places["together"]))
    run("edit", "add", places["records"], "copy", "--from", places["labels"], "--feature", "score")
    with seqrecord.open(places["records"]) as dataset:
        episode = dataset.episodes["c"]
        assert [episode[i].get("copy") for i in range(9)] == [None] + [0.5] * 8


def test_edit_add_refuses_other_episodes(places: dict[str, Path], tmp_path: Path) -> None:
    write_dataset(tmp_path / "other", {"a": columns(z=range(5))})
    error = fail("edit", "add", places["records"], "z", "--from", tmp_path / "other")
    assert "2 episodes" in error
    assert "without a partner" in error


def test_export_has_the_features_of_all(places: dict[str, Path], tmp_path: Path) -> None:
    run("export", *joined(places), "-o", tmp_path / "exported", "--quiet")
    to_files(places["together"], "*", tmp_path / "expected")
    files = {path.relative_to(tmp_path / "exported") for path in tmp_path.glob("exported/**/*.*")}
    assert files == {p.relative_to(tmp_path / "expected") for p in tmp_path.glob("expected/**/*.*")}
    for file in files:
        data = (tmp_path / "exported" / file).read_bytes()
        assert data == (tmp_path / "expected" / file).read_bytes()


def test_a_page_has_the_features_of_all(places: dict[str, Path], tmp_path: Path) -> None:
    run("view", *joined(places), "-o", tmp_path / "page.html", "--quiet")
    page = data_of(tmp_path / "page.html")
    text = json.dumps(page)
    assert all(name in text for name in ("image", "latent", "label", "score"))
    assert "labels.parquet" not in text or "joined" in text
    run("view", *joined(places), "c", "-o", tmp_path / "clip.png")
    assert (tmp_path / "clip.png").stat().st_size > 1000


def test_bench_reads_joined_features(places: dict[str, Path]) -> None:
    command = ["bench", *joined(places), "--clip-len", 2, "--batch-size", 2, "--json", "--quiet"]
    report = json.loads(run(*command, "--loader", 'features=["latent"]').stdout)
    assert report["num_batches"] > 10


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["info", "--missing", "pad"], "--missing requires --join"),
        (["info", "--check", "lengths"], "--check requires --join"),
        (["info", "--join", "x", "--versions"], "--versions cannot be combined with --join"),
    ],
)
def test_options_that_need_a_companion(
    places: dict[str, Path], arguments: list[str], match: str
) -> None:
    place = 2 if "--src" in arguments else 1
    command = [*arguments[:place], places["records"], *arguments[place:]]
    assert match in run(*command, code=2).output


def test_write_refuses_options_of_originals(places: dict[str, Path], tmp_path: Path) -> None:
    command = ["write", "--src", *joined(places), "--dst", tmp_path / "packed"]
    for options in (["--format", "tum"], ["--keep-encoded"], ["--source-option", "exif=ignore"]):
        assert "cannot be combined with join" in fail(*command, *options)
    assert not (tmp_path / "packed").exists()


# Originals in place, with the sidecars of two projects


def write_progress(path: Path, lengths: tuple[int, ...]) -> None:
    """Progress as LeRobot's SARM writes it: from pandas, NaN as null, sorted by `index`."""
    count = sum(lengths)
    values = np.linspace(0, 1, count, dtype="f4")
    table = pa.table(
        {
            "index": np.arange(count),
            "episode_index": np.repeat(np.arange(len(lengths)), lengths),
            "frame_index": np.concatenate([np.arange(n) for n in lengths]),
            "progress_sparse": pa.array(values, mask=np.arange(count) == 3),
        }
    )
    pq.write_table(table.replace_schema_metadata({"reward_model_path": "a/model"}), path)


def write_advantages(path: Path, lengths: tuple[int, ...]) -> None:
    """Advantages as RLinf writes them: a table of pandas by `episode_index` and `frame_index`."""
    count = sum(lengths)
    order = np.random.default_rng(0).permutation(count)
    columns: dict[str, Any] = {
        "episode_index": np.repeat(np.arange(len(lengths)), lengths),
        "frame_index": np.concatenate([np.arange(n) for n in lengths]),
        "advantage_continuous": np.arange(count) / 7,
        "return": -np.arange(count, dtype="f8"),
        "num_valid_rewards": np.ones(count, "i8"),
        "dataset_name": ["a/b"] * count,
        "advantage": np.arange(count) % 3 == 0,
    }
    table = pa.table(columns).take(order)
    pandas = {b"pandas": b'{"index_columns": [], "columns": []}'}
    pq.write_table(table.replace_schema_metadata(pandas), path)


def test_sidecars_of_lerobot_datasets_join_by_path(tmp_path: Path) -> None:
    root, lengths = unpack(tmp_path, "lerobot_video_v3"), (5, 4, 7)
    (root / "meta").mkdir(exist_ok=True)
    write_progress(root / "sarm_progress.parquet", lengths)
    write_advantages(root / "meta" / "advantages.parquet", lengths)
    join = [root / "sarm_progress.parquet", str(root / "meta" / "advantages.parquet")]
    with seqrecord.open(root, join=join) as dataset:
        frames = [episode[i] for episode in dataset.episodes.values() for i in range(len(episode))]
    progress = np.linspace(0, 1, 16, dtype="f4")
    assert [frame.get("progress_sparse") for frame in frames] == [
        None if i == 3 else value for i, value in enumerate(progress)
    ]
    assert [frame["advantage"] for frame in frames] == [i % 3 == 0 for i in range(16)]
    assert [frame["return"] for frame in frames] == [-i for i in range(16)]
    assert {frame["dataset_name"] for frame in frames} == {"a/b"}
    pipe = seqrecord.SeqRecordPipe(
        seqrecord.open(root, join=join),
        features=["observation.state", "advantage_continuous"],
        windows={"observation.state": range(2), "advantage_continuous": [0]},
        batch_size=4,
        shuffle=False,
    )
    values = [value for batch in pipe for value in batch["advantage_continuous"][:, 0].tolist()]
    assert {round(value * 7) for value in values} <= {*range(16)}
    run("write", "--src", root, "--join", join[1], "--dst", tmp_path / "packed", "--quiet")
    with seqrecord.open(tmp_path / "packed") as packed:
        assert "return" in packed.features
        assert packed.num_frames == 16


def test_commands_read_originals_in_place_with_companions(tmp_path: Path) -> None:
    root = unpack(tmp_path, "lerobot_video_v3")
    pq.write_table(pa.table({"index": range(16), "value": np.arange(16.0)}), tmp_path / "v.parquet")
    join = [root, "--join", tmp_path / "v.parquet"]
    run("view", *join, "-o", f"{tmp_path}/page/", "--quiet")
    assert '"value"' in (tmp_path / "page" / "index.html").read_text()
    assert [*(tmp_path / "page" / "videos").rglob("*.mp4")]
    assert "no problem found" in run("verify", *join, "--deep").stdout
    run("export", *join, "-o", tmp_path / "exported", "--format", "lerobot", "--quiet")
    run("write", "--src", *join, "--dst", tmp_path / "packed", "--quiet")
    for name in ("exported", "packed"):
        with seqrecord.open(tmp_path / name) as dataset:
            frame = dataset.episodes["episode_000002"][3]
            assert dataset.features["observation.images.front"].is_video
            assert frame["value"] == 12


def test_stale_sidecars_are_refused(tmp_path: Path) -> None:
    root = unpack(tmp_path, "lerobot_video_v3")
    write_progress(root / "sarm_progress.parquet", (5, 5, 6))
    with pytest.raises(JoinError, match=r"in row 10.*sarm_progress\.parquet"):
        seqrecord.open(root, join=root / "sarm_progress.parquet")
