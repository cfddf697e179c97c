"""Named splits: `split_dataset` and its command, and splits as options of readers and loaders."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqrecord
from seqrecord import ClipError, NotFoundError, SeqRecordPipe
from seqrecord.edit import split_dataset, split_episodes
from seqrecord.types import EpisodeDescription
from tests.kit.clip_data import LENGTHS, names
from tests.kit.command_line import fail, run
from tests.kit.datasets import write_dataset


def write(path: Path, numbers: range, **settings: Any) -> Path:
    """Episodes of one frame each, four per scene."""
    metadata = {f"e{number}": {"scene": number // 4} for number in numbers}
    write_dataset(path, {f"e{n}": [{"id": [n]}] for n in numbers}, metadata=metadata, **settings)
    return path


def splits_of(path: Path) -> dict[str, str | None]:
    """The split of each episode."""
    found: dict[str, str | None] = {}

    def look(episode: EpisodeDescription) -> bool:
        found[episode.key] = episode.split
        return True

    with seqrecord.open(path) as dataset:
        dataset.find_episodes(look)
    return found


def test_each_split_gets_its_share_and_readers_see_it(tmp_path: Path) -> None:
    path = write(tmp_path / "records", range(20))
    expected = {"train": 16, "val": 2, "test": 2}
    assert split_dataset(path, {"train": 0.8, "val": 0.1, "test": 0.1}) == expected
    found = splits_of(path)
    assert Counter(found.values()) == expected
    with seqrecord.open(path) as dataset:
        for name in expected:
            keys = [f"e{i}" for i in dataset.find_episodes(None, name).tolist()]
            assert keys == [key for key, split in found.items() if split == name]
    assert not seqrecord.verify(path).problems
    # The split depends on the seed only.
    drawn = []
    for i, seed in enumerate((0, 0, 1)):
        path = write(tmp_path / str(i), range(20))
        split_dataset(path, {"train": 0.5, "val": 0.5}, seed=seed)
        drawn.append(splits_of(path))
    assert drawn[0] == drawn[1] != drawn[2]


def test_episodes_stay_in_their_splits_after_an_append(tmp_path: Path) -> None:
    path, shares = write(tmp_path / "records", range(20)), {"train": 0.75, "val": 0.25}
    split_dataset(path, shares)
    before = splits_of(path)
    assert split_dataset(path, shares, seed=7) == {"train": 15, "val": 5}
    assert splits_of(path) == before
    write(path, range(20, 40), mode="append")
    assert Counter(splits_of(path).values()) == {"train": 15, "val": 5, None: 20}
    assert split_dataset(path, shares) == {"train": 30, "val": 10}
    after = splits_of(path)
    assert {key: after[key] for key in before} == before
    split_episodes(path, None, None)
    split_dataset(path, shares, seed=7)
    assert Counter(splits_of(path).values()) == {"train": 30, "val": 10}
    assert splits_of(path) != after
    # Remaining episodes have no split, and episodes of another split do not change.
    path = write(tmp_path / "others", range(20))
    assert split_dataset(path, {"val": 0.1}) == {"val": 2}
    assert Counter(splits_of(path).values()) == {"val": 2, None: 18}
    assert split_dataset(path, {"train": 0.5}) == {"val": 2, "train": 9}
    split_episodes(path, [k for k, name in splits_of(path).items() if name == "train"], None)
    assert split_dataset(path, {"train": 0.0}) == {"val": 2, "train": 0}


def test_episodes_of_a_scene_are_in_one_split(tmp_path: Path) -> None:
    path, shares = write(tmp_path / "records", range(40)), {"train": 0.8, "val": 0.2}
    assert split_dataset(path, shares, by="scene") == {"train": 32, "val": 8}
    splits = splits_of(path)
    assert all(len({splits[f"e{i + k}"] for k in range(4)}) == 1 for i in range(0, 40, 4))
    write(path, range(40, 43), mode="append")
    write(path, range(43, 44), mode="append")
    split_dataset(path, shares, by="scene")
    assert len({splits_of(path)[f"e{i}"] for i in range(40, 44)}) == 1


@pytest.fixture(scope="module")
def thirty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("splits") / "records", range(30))


@given(st.lists(st.just(0.0) | st.floats(0.2, 1), min_size=3, max_size=3), st.integers(0, 5))
def test_shares_are_met_within_one_episode(thirty: Path, parts: list[float], seed: int) -> None:
    shares = {f"s{i}": part / max(1.0, sum(parts)) for i, part in enumerate(parts)}
    split_episodes(thirty, None, None)
    found = split_dataset(thirty, shares, seed=seed)
    for name, share in shares.items():
        assert abs(found[name] - share * 30) < 1.5, "each of three splits may take one more"


def test_loaders_take_a_split(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ClipError, match="`seqrecord split` makes them"):
        SeqRecordPipe(path, clip_len=2, split="train")
    path = shutil.copytree(path, tmp_path / "records")
    split_dataset(path, {"train": 0.5, "val": 0.5}, seed=1)
    splits = splits_of(path)
    for name in ("train", "val"):
        pipe = SeqRecordPipe(path, clip_len=2, features=["id"], split=name, batch_size=4)
        keys = {key for batch in pipe for key, _ in names(batch)}
        assert keys == {key for key, split in splits.items() if split == name}
    both = SeqRecordPipe(path, clip_len=2, split="val", episodes=["set/0", "set/1", "set/3"])
    assert {splits[key] for clip in both for key, _ in names(clip)} == {"val"}
    with pytest.raises(ClipError, match=r"unknown split.*expected: train, val; got: 'test'"):
        SeqRecordPipe(path, clip_len=2, split="test")
    with pytest.raises(ClipError, match="split is not valid"):
        SeqRecordPipe(path, clip_len=2, split=3)  # type: ignore[arg-type]


def test_a_function_sees_key_length_and_metadata(path: Path) -> None:
    seen = []

    def chosen(episode: EpisodeDescription) -> bool:
        seen.append((episode.key, episode.num_frames, episode.fps, episode.split, dict(episode)))
        return episode.num_frames > 9 and episode["number"] != 0

    with seqrecord.open(path) as dataset:
        assert dataset.find_episodes(chosen).tolist() == [3]
    assert seen == [(f"set/{i}", n, None, None, {"number": i}) for i, n in enumerate(LENGTHS)]


def test_invalid_splits(tmp_path: Path) -> None:
    path = write(tmp_path / "records", range(3))
    text = (path / "manifest.json").read_bytes()
    wrong: list[tuple[Any, str]] = [
        ({}, "shares of the splits are not valid"),
        (["train"], "expected: a dict of shares"),
        (None, "expected: a dict of shares"),
        ({"train": 0.9, "val": 0.2}, "got: 2 with a sum of 1.1"),
        ({"train": -0.1}, "0 to 1 for split train.*-0.1"),
        ({"train": float("nan")}, "for split train.*nan"),
        ({"train": "0.5"}, "0 to 1 for split train"),
        ({"../train": 0.5}, "invalid name of a split"),
        ({"train": 0.9, "val": 0.1}, r"would be empty.*got: val of 3 episodes"),
    ]
    for shares, match in wrong:
        with pytest.raises(ClipError, match=match):
            split_dataset(path, shares)
    seeds: list[Any] = [None, 1.0, "1", True, 1 << 1024]
    for seed in seeds:
        with pytest.raises(ClipError, match="seed is "):
            split_dataset(path, {"train": 1}, seed=seed)
    with pytest.raises(ClipError, match=r"lacks the entry.*e0.*'room'.*got: scene"):
        split_dataset(path, {"train": 1.0}, by="room")
    with pytest.raises(NotFoundError):
        split_dataset(tmp_path / "nothing", {"train": 1.0})
    assert not (path / "edits").exists()
    assert (path / "manifest.json").read_bytes() == text
    found = split_dataset(path, {"train": 0.6, "val": 0.4, "test": 0})
    assert found == {"train": 2, "val": 1, "test": 0}


def test_the_command(tmp_path: Path) -> None:
    path = write(tmp_path / "records", range(10))
    output = run("split", path, "train=0.9", "val=0.1").stdout
    assert "train 9 episodes, val 1 episode\n" in output
    assert "train 9" in run("info", path).stdout
    assert "lacks the entry" in fail("split", path, "train=1", "--by", "room")
    line = fail("split", path, "train", code=2)
    assert "expected NAME=SHARE such as train=0.9, got 'train'" in line
    run("edit", "split", path, "*")
    output = run("split", path, "val=1").stdout
    assert output.endswith(" val 10 episodes\n")
