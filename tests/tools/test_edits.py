"""Episodes that are deleted, kept, renamed, relabelled or put into splits, as readers see them."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqrecord
from seqrecord import ClipError, FormatError, NotFoundError, SeqRecordPipe
from seqrecord.edit import (
    clean,
    delete_episodes,
    merge_datasets,
    rename_episodes,
    rewrite_files,
    set_metadata,
    split_dataset,
    split_episodes,
)
from seqrecord.errors import SeqRecordError
from seqrecord.types import EpisodeDescription
from tests.kit import command_line
from tests.kit.clip_data import LENGTHS, names
from tests.kit.command_line import fail, run
from tests.kit.datasets import check_rebuilt, record_files, write_dataset


def write(path: Path, numbers: range, **settings: Any) -> Path:
    """Episodes of three frames each, two of them in a record file."""
    episodes = {
        f"e{n}": [{"x": np.full(1000, 10 * n + i, np.float32)} for i in range(3)] for n in numbers
    }
    metadata = {f"e{number}": {"number": number, "of": "a"} for number in numbers}
    options = {"codecs": "raw", "max_file_size": 20_000, **settings}
    write_dataset(path, episodes, metadata=metadata, **options)
    return path


def content(path: Path) -> dict[str, tuple[dict[str, Any], list[float]]]:
    """Metadata and values of each episode of the reopened dataset."""
    with seqrecord.open(path) as dataset:
        return {
            key: (dict(episode.metadata), episode[:]["x"][:, 0].tolist())
            for key, episode in dataset.episodes.items()
        }


def check(path: Path, expected: dict[str, tuple[dict[str, Any], list[float]]]) -> None:
    """Check the dataset's content, also after its index and then its manifest are rebuilt."""
    check_rebuilt(path, content, expected)


def test_statistics_are_correct_or_removed_with_a_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each change keeps correct statistics, or removes them with a message."""

    def lost_file(path: Path) -> None:
        sorted((path / "records").iterdir())[-1].unlink()
        seqrecord.reindex(path)

    ends: dict[str, Callable[[Path], Any]] = {
        "delete": lambda path: delete_episodes(path, ["e1"]),
        "keep": lambda path: delete_episodes(path, ["e1"], others=True),
        "append": lambda path: write(path, range(6, 7), mode="append", statistics=False),
        "reindex": lost_file,
    }
    keeps: dict[str, Callable[[Path], Any]] = {
        "rename": lambda path: rename_episodes(path, {"e1": "x"}),
        "relabel": lambda path: set_metadata(path, ["e1"], {"of": "b"}),
        "split": lambda path: split_episodes(path, ["e1"], "val"),
        "append": lambda path: write(path, range(6, 7), mode="append"),
        "reindex": seqrecord.reindex,
        "rewrite": rewrite_files,
    }
    for name, change in ends.items():
        path = write(tmp_path / f"ends {name}", range(4))
        caplog.clear()
        change(path)
        with seqrecord.open(path) as dataset:
            assert not dataset.statistics, name
        (text,) = [r.getMessage() for r in caplog.records if "statistics removed" in r.getMessage()]
        assert f"{path}: statistics removed" in text
        assert "`seqrecord stats`" in text
        seqrecord.add_statistics(path)
    for name, change in keeps.items():
        path = write(tmp_path / f"keeps {name}", range(4))
        caplog.clear()
        change(path)
        with seqrecord.open(path) as dataset:
            found, counted = dataset.statistics["x"], dataset.compute_statistics()["x"]
        assert found.mean == pytest.approx(counted.mean), name
        assert not [r for r in caplog.records if "statistics removed" in r.getMessage()], name
    one, two = tmp_path / "one", tmp_path / "two"
    write(one, range(2))
    write(two, range(2, 4), statistics=False)
    caplog.clear()
    merge_datasets([one, two], tmp_path / "merged")
    assert f"1 of 2 datasets lack them, as {two}" in caplog.text
    command_line.run("edit", "delete", one, "e1")
    assert "one: statistics removed" in caplog.text


def test_delete_and_clean(tmp_path: Path) -> None:
    path = write(tmp_path / "records", range(6))
    before, files = content(path), {*record_files(path)}
    assert len(files) == 3
    assert delete_episodes(path, ["e4", "e1"], dry_run=True) == ["e1", "e4"]
    assert content(path) == before
    assert delete_episodes(path, ["e4", "e1"]) == ["e1", "e4"]
    remaining = {key: before[key] for key in ("e0", "e2", "e3", "e5")}
    check(path, remaining)
    write(path, range(6, 8), mode="append")
    assert content(path).keys() == {*remaining, "e6", "e7"}
    assert delete_episodes(path, lambda e: e["number"] > 5) == ["e6", "e7"]
    check(path, remaining)
    clips = SeqRecordPipe(path, clip_len=3, shuffle=False)
    assert [clip["episode"] for clip in clips] == list(remaining)
    assert delete_episodes(path, "e[35]", others=True) == ["e0", "e2"]
    assert delete_episodes(path, "e*", others=True) == []
    gone = files - {*record_files(path)}
    assert gone
    cleaned = {path / file for file in clean(path, older_than=0)}
    assert cleaned >= gone, "record files without episodes"
    assert not any(file.exists() for file in gone)
    check(path, {key: before[key] for key in ("e3", "e5")})


@pytest.mark.parametrize("key", ["run[1]", "take?", "a*"])
def test_the_key_of_an_episode_is_no_pattern(tmp_path: Path, key: str) -> None:
    """An exact key is that episode, whatever else it would match as a glob."""
    keys = ["run1", "run[1]", "takeA", "take?", "ab", "a*"]
    path = tmp_path / "records"
    write_dataset(path, {name: [{"x": np.int64(0)}] for name in keys})
    with seqrecord.open(path) as dataset:
        assert dataset.find_episodes(key).tolist() == [keys.index(key)]
    run("edit", "delete", path, key)
    with seqrecord.open(path) as dataset:
        assert [*dataset.episodes] == [name for name in keys if name != key]


def test_rename(tmp_path: Path) -> None:
    path = write(tmp_path / "records", range(4))
    before = content(path)
    names = {"e0": "e1", "e1": "e0", "e2": "new/2", "e3": "e3"}
    assert rename_episodes(path, names) == ["e0", "e1", "e2"]
    after = {names[key]: item for key, item in before.items()}
    check(path, after)
    rename_episodes(path, {"new/2": "last"})
    after["last"] = after.pop("new/2")
    check(path, after)
    write(path, range(2, 3), mode="append")  # a key free after the rename
    after["e2"] = before["e2"]
    assert content(path) == after
    # Every key that matches a pattern; the last match counts.
    names = {"e[12]": "B/{}", "e0": "{}{}", "e3": "x", "last": "x/9"}
    assert sorted(rename_episodes(path, names)) == sorted(after)
    new = {"e1": "B/e1", "e2": "B/e2", "e0": "e0e0", "e3": "x", "last": "x/9"}
    after = {new[key]: item for key, item in after.items()}
    check(path, after)
    assert sorted(rename_episodes(path, {"*": "A/{}", "x": "A/9"})) == sorted(after)
    assert content(path).keys() == {"A/e0e0", "A/B/e1", "A/B/e2", "A/9", "A/x/9"}
    for keys in ({"B/*": "C/{}"}, {"A/*": "C"}):
        with pytest.raises(ClipError) as found:
            rename_episodes(path, keys)
        assert next(iter(keys)) in str(found.value.got)
    with pytest.raises(ClipError, match="two episodes would have the same key"):
        rename_episodes(path, {"A/B/e1": "A/{}", "A/9": "A/A/B/e1"})


def test_relabel_keeps_statistics(tmp_path: Path) -> None:
    path = write(tmp_path / "records", range(3))
    before = content(path)
    changed = {"scene": {"name": "ä", "lights": [1, 2]}, "of": None}
    assert set_metadata(path, ["e0", "e2"], changed) == ["e0", "e2"]
    assert set_metadata(path, ["e0", "e2"], changed) == []
    after = dict(before)
    for number in (0, 2):
        metadata = {"number": number, "scene": changed["scene"]}
        after[f"e{number}"] = (metadata, before[f"e{number}"][1])
    with seqrecord.open(path) as dataset:
        assert dataset.statistics
    check(path, after)
    with seqrecord.open(path) as dataset:
        assert dataset.find_episodes(lambda episode: "scene" in episode).tolist() == [0, 2]


def test_split(tmp_path: Path) -> None:
    path = write(tmp_path / "records", range(4))
    before = content(path)
    assert split_episodes(path, "e[012]", "train") == ["e0", "e1", "e2"]
    assert split_episodes(path, ["e2", "e3"], "val") == ["e2", "e3"]
    assert split_episodes(path, ["e0"], None) == ["e0"]
    assert split_episodes(path, ["e1"], "train") == []
    with seqrecord.open(path) as dataset:
        assert dataset.find_episodes(None, "train").tolist() == [1]
        assert dataset.find_episodes(None, "val").tolist() == [2, 3]
        assert dataset.statistics
    check(path, before)
    with seqrecord.open(path) as dataset:
        assert dataset.find_episodes(None, "val").tolist() == [2, 3]


def test_a_skipped_duplicate_does_not_replace_a_renamed_episode(tmp_path: Path) -> None:
    path = write(tmp_path / "records", range(3))
    # An episode with a duplicate key, from an interrupted writer.
    other = write(tmp_path / "other", range(1, 2))
    for file in (other / "records").iterdir():
        (path / "records" / file.name).hardlink_to(file)
    seqrecord.reindex(path)
    before = content(path)
    rename_episodes(path, {"e1": "renamed"})
    after = {"e0": before["e0"], "renamed": before["e1"], "e2": before["e2"]}
    check(path, after)
    delete_episodes(path, ["renamed"])
    del after["renamed"]
    check(path, after)


def none_of_them(episode: object) -> bool:
    return False


def test_an_impossible_edit_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "records", range(3))
    text = (path / "manifest.json").read_bytes()
    wrong: list[tuple[Callable[..., object], Any, type[SeqRecordError], str]] = [
        (delete_episodes, "*", ClipError, "no episode would be left"),
        (delete_episodes, ["e9"], ClipError, r"unknown episode.*e9"),
        (delete_episodes, none_of_them, ClipError, r"got: the function none_of_them$"),
        (delete_episodes, lambda _: False, ClipError, r"no episode.*a function of an episode$"),
        (
            partial(delete_episodes, others=True),
            "nothing*",
            ClipError,
            "the selection has no episode",
        ),
        (rename_episodes, {"e0": "e2"}, ClipError, r"two episodes would have the same key.*e2"),
        (rename_episodes, {"e0": "x", "e1": "x"}, ClipError, r"would have the same key.*x"),
        (rename_episodes, {"e0": "../x"}, FormatError, "not an episode key"),
    ]
    for edit, argument, error, message in wrong:
        with pytest.raises(error, match=message):
            edit(path, argument)
    with pytest.raises(FormatError, match="JSON"):
        set_metadata(path, ["e0"], {"x": float("nan")})
    with pytest.raises(ClipError, match="invalid name of a split"):
        split_episodes(path, ["e0"], "a/b")
    with pytest.raises(NotFoundError, match="no dataset"):
        delete_episodes(tmp_path / "nowhere", ["e0"])
    assert (path / "manifest.json").read_bytes() == text
    assert not (path / "edits").exists()


def test_the_commands(tmp_path: Path) -> None:
    path = write(tmp_path / "records", range(5))

    def run(*words: object, code: int = 0) -> str:
        return command_line.run(*words, code=code).stdout

    text = run("edit", "delete", path, "e[34]", "--dry-run")
    assert text == f"e3\ne4\n{path}: 2 episodes would be deleted\n"
    assert run("edit", "delete", path, "e4") == f"e4\n{path}: 1 episode deleted\n"
    assert run("edit", "keep", path, "e0", "e1", "e2").startswith("e3\n")
    assert "1 episode renamed" in run("edit", "rename", path, "e0", "first")
    assert run("edit", "rename", path, "e*", "B/{}", "--dry-run").startswith("e1\ne2\n")
    options = ["--set", "scene=hall", "--set", "lights=[1, 2]", "--remove", "of"]
    assert "1 episode changed" in run("edit", "set-metadata", path, "e1", *options)
    assert "2 episodes put into val" in run("edit", "split", path, "e*", "--name", "val")
    assert "1 episode put into no split" in run("edit", "split", path, "e1")
    found = content(path)
    assert found.keys() == {"first", "e1", "e2"}
    assert found["e1"][0] == {"number": 1, "scene": "hall", "lights": [1, 2]}
    with seqrecord.open(path) as dataset:
        assert dataset.find_episodes(None, "val").tolist() == [2]
    other, made = write(tmp_path / "other", range(7, 9)), tmp_path / "made"
    text = run("merge", path, other, "-o", made)
    assert text.startswith(f"{made}: 5 episodes, 15 frames, ")
    assert content(made).keys() == {*found, "e7", "e8"}
    merge = ["merge", path, other, "-o", tmp_path / "named", "--prefix", "records=a/"]
    assert "100% |" in command_line.run(*merge).stderr
    assert content(tmp_path / "named").keys() == {*(f"a/{key}" for key in found), "e7", "e8"}
    later = write(tmp_path / "later", range(9, 10))
    assert "1 episode, 3 frames" in run("merge", later, "-o", made, "--append", "--features", "x")
    assert run("merge", path, later, "-o", made, "--resume", "--quiet")
    assert content(made).keys() == {*found, "e7", "e8", "e9"}
    for words in (
        ["merge", later, "-o", made, "--append", "--resume"],
        ["merge", path, "-o", "x", "--prefix", "nowhere=a"],
        ["merge", path, "-o", "x", "--prefix", "records"],
        ["merge", path, "-o", "x", "--prefix", "records=a", "--prefix", f"{path}=b"],
        ["edit", "set-metadata", path, "e1"],
        ["edit", "set-metadata", path, "e1", "--set", "x"],
    ):
        run(*words, code=2)
    assert "unknown episode" in command_line.fail("edit", "delete", path, "nothing")


# Splits


def split_write(path: Path, numbers: range, **settings: Any) -> Path:
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
    path = split_write(tmp_path / "records", range(20))
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
        path = split_write(tmp_path / str(i), range(20))
        split_dataset(path, {"train": 0.5, "val": 0.5}, seed=seed)
        drawn.append(splits_of(path))
    assert drawn[0] == drawn[1] != drawn[2]


def test_episodes_stay_in_their_splits_after_an_append(tmp_path: Path) -> None:
    path, shares = split_write(tmp_path / "records", range(20)), {"train": 0.75, "val": 0.25}
    split_dataset(path, shares)
    before = splits_of(path)
    assert split_dataset(path, shares, seed=7) == {"train": 15, "val": 5}
    assert splits_of(path) == before
    split_write(path, range(20, 40), mode="append")
    assert Counter(splits_of(path).values()) == {"train": 15, "val": 5, None: 20}
    assert split_dataset(path, shares) == {"train": 30, "val": 10}
    after = splits_of(path)
    assert {key: after[key] for key in before} == before
    split_episodes(path, None, None)
    split_dataset(path, shares, seed=7)
    assert Counter(splits_of(path).values()) == {"train": 30, "val": 10}
    assert splits_of(path) != after
    # Remaining episodes have no split, and episodes of another split do not change.
    path = split_write(tmp_path / "others", range(20))
    assert split_dataset(path, {"val": 0.1}) == {"val": 2}
    assert Counter(splits_of(path).values()) == {"val": 2, None: 18}
    assert split_dataset(path, {"train": 0.5}) == {"val": 2, "train": 9}
    split_episodes(path, [k for k, name in splits_of(path).items() if name == "train"], None)
    assert split_dataset(path, {"train": 0.0}) == {"val": 2, "train": 0}


def test_episodes_of_a_scene_are_in_one_split(tmp_path: Path) -> None:
    path, shares = split_write(tmp_path / "records", range(40)), {"train": 0.8, "val": 0.2}
    assert split_dataset(path, shares, by="scene") == {"train": 32, "val": 8}
    splits = splits_of(path)
    assert all(len({splits[f"e{i + k}"] for k in range(4)}) == 1 for i in range(0, 40, 4))
    split_write(path, range(40, 43), mode="append")
    split_write(path, range(43, 44), mode="append")
    split_dataset(path, shares, by="scene")
    assert len({splits_of(path)[f"e{i}"] for i in range(40, 44)}) == 1


@pytest.fixture(scope="module")
def thirty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return split_write(tmp_path_factory.mktemp("splits") / "records", range(30))


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
    path = split_write(tmp_path / "records", range(3))
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
    path = split_write(tmp_path / "records", range(10))
    output = run("split", path, "train=0.9", "val=0.1").stdout
    assert "train 9 episodes, val 1 episode\n" in output
    assert "train 9" in run("info", path).stdout
    assert "lacks the entry" in fail("split", path, "train=1", "--by", "room")
    line = fail("split", path, "train", code=2)
    assert "expected NAME=SHARE such as train=0.9, got 'train'" in line
    run("edit", "split", path, "*")
    output = run("split", path, "val=1").stdout
    assert output.endswith(" val 10 episodes\n")
