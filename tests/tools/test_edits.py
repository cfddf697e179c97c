"""Episodes that are deleted, kept, renamed, relabelled or put into splits, as readers see them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import ClipError, FormatError, NotFoundError, SeqRecordPipe
from seqrecord.edit import (
    clean,
    delete_episodes,
    merge_datasets,
    rename_episodes,
    rewrite_files,
    set_metadata,
    split_episodes,
)
from seqrecord.errors import SeqRecordError
from tests.kit import command_line
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
    for edit, given, error, message in wrong:
        with pytest.raises(error, match=message):
            edit(path, given)
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
