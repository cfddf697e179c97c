"""Rewriting of record files with much unused space: kept data, freed space, readers."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqrecord
from seqrecord import NotFoundError, SeqRecordWriter, edit, open_source
from seqrecord.errors import ChecksumError, ConflictError
from seqrecord.store.storage.local import LocalStorage
from seqrecord.types import Progress
from tests.kit import command_line
from tests.kit.datasets import columns, flip, record_files, write_dataset
from tests.kit.faults import damages_once
from tests.kit.tiny import read_all, same_frames
from tests.tools.test_features_added import (
    WIDTHS,
    Model,
    check,
    content,
    hash_of,
    some,
    with_feature,
    without,
    write,
)

NAMES = ["x", "y", "s"]  # `x`, 4400 bytes a frame, is a separate group
LENGTHS = {"e0": 3, "e1": 9, "e2": 1, "e3": 4, "e4": 2}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model]:
    """Chunks of two frames in record files of about five; episodes span several files."""
    path = tmp_path_factory.mktemp("made") / "records"
    return path, write(path, LENGTHS, NAMES, chunk_frames=2)


@pytest.fixture
def dataset(made: tuple[Path, Model], tmp_path: Path) -> tuple[Path, Model]:
    return shutil.copytree(made[0], tmp_path / "records"), made[1]


def kept(model: Model, *keys: str) -> Model:
    return {key: frames for key, frames in model.items() if key not in keys}


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in (path / "records").iterdir())


def named(path: Path) -> set[str]:
    return {file.relative_to(path).as_posix() for file in record_files(path)}


def paths_in(path: Path) -> set[str]:
    return {f"records/{file.name}" for file in (path / "records").iterdir()}


def test_deleted_episodes_are_freed(dataset: tuple[Path, Model]) -> None:
    path, model = dataset
    seqrecord.add_statistics(path)
    edit.delete_episodes(path, ["e1", "e3"])
    seqrecord.add_statistics(path)
    model, before, old = kept(model, "e1", "e3"), size_of(path), named(path)
    with seqrecord.open(path) as reader:
        fingerprint, statistics = reader.fingerprint, reader.statistics
        planned = edit.rewrite_files(path, dry_run=True)
        assert (planned.written, named(path), size_of(path)) == ((), old, before)
        report = edit.rewrite_files(path)
        # Datasets opened before still read the old files.
        found = reader.episodes["e4"][:]["x"]
        assert np.array_equal(found[:, 0], [frame["x"][0] for frame in model["e4"]])
    for name in ("rewritten", "freed_bytes", "copied_bytes"):
        assert getattr(report, name) == getattr(planned, name)
    assert set(report.rewritten) <= old
    assert named(path) == old - set(report.rewritten) | set(report.written)
    with seqrecord.open(path) as reader:
        assert reader.fingerprint == fingerprint
        assert statistics is not None
        assert reader.statistics
        assert reader.statistics["x"].count.tolist() == statistics["x"].count.tolist()
    seqrecord.reindex(path)  # with old and new files
    assert content(path) == model
    assert named(path) == old - set(report.rewritten) | set(report.written)
    assert set(edit.clean(path, older_than=0)) >= set(report.rewritten)
    frames = sum(len(frames) for frames in model.values())
    assert size_of(path) < frames * 4400 + 3000 * len(named(path))
    assert before - size_of(path) > 0.9 * report.freed_bytes
    assert paths_in(path) == named(path)
    check(path, model)
    assert edit.rewrite_files(path).rewritten == ()
    write(path, {"e1": 3}, NAMES, mode="append")  # the key is free
    assert content(path).keys() == {*model, "e1"}
    edit.merge_datasets([path], path.parent / "merged")
    assert content(path.parent / "merged") == content(path)


def test_dropped_feature_of_a_group_is_freed(dataset: tuple[Path, Model]) -> None:
    """`y` shares its chunks with `s`; `x` is a group, and shares record files with them."""
    path, model = dataset
    for name in ("y", "x"):
        edit.drop_features(path, name)
        with seqrecord.open(path) as reader:
            fingerprint = reader.fingerprint
        before = size_of(path)
        report = edit.rewrite_files(path, min_unused=0.001)
        assert set(report.rewritten) | set(report.written) <= paths_in(path)
        model = without(model, name)
        assert content(path) == model
        seqrecord.reindex(path)  # the old files have copies of the chunks, with other pages
        assert content(path) == model
        SeqRecordWriter(path, codecs="raw", mode="resume").close()
        assert content(path) == model
        assert not named(path) & set(report.rewritten)
        edit.clean(path, older_than=0)
        assert size_of(path) < before
        with seqrecord.open(path) as reader:
            assert reader.fingerprint == fingerprint
        assert not seqrecord.verify(path, deep=True).problems
        # A new feature with this name, and episodes with it.
        edit.add_feature(path, name, some(name, 2.0))
        model = with_feature(model, name, 2.0)
        assert content(path) == model
        edit.drop_features(path, name)
        model = without(model, name)
    check(path, model)
    assert size_of(path) < 19 * 1000  # of 19 frames of 4400 bytes


def test_nothing_of_a_damaged_file_is_copied(dataset: tuple[Path, Model]) -> None:
    path, _ = dataset
    edit.delete_episodes(path, "e0")
    edit.rename_episodes(path, {"*": "new/{}"})
    [record, *_] = edit.rewrite_files(path, dry_run=True, min_unused=0.001).rewritten
    with seqrecord.open(path) as reader:
        group = reader.contents.index.groups[0]
        files = [file.path for file in reader.contents.manifest.record_files]
        row = int(np.flatnonzero(group.file == files.index(record))[0])
        offset, key = int(group.offset[row]), str(reader.contents.index.keys[group.episode_of(row)])
    flip(path / record, offset + 5)
    before = paths_in(path)
    with pytest.raises(ChecksumError) as caught:
        edit.rewrite_files(path, min_unused=0.001)
    error = caught.value
    assert str(error.file).endswith(record)
    assert (error.offset, error.episode, error.feature) == (offset, key, "x")
    assert paths_in(path) == before


def test_page_damaged_in_one_read_only_is_copied(
    dataset: tuple[Path, Model], tmp_path: Path
) -> None:
    """In a remote storage, for each read of pages."""
    path, model = dataset
    edit.delete_episodes(path, "e0")
    for number in itertools.count(3 * len(named(path))):  # three reads of each footer
        place = shutil.copytree(path, tmp_path / str(number))
        storage = damages_once(LocalStorage(place), number=number)
        assert edit.rewrite_files(storage, min_unused=0.001).written  # type: ignore[arg-type]
        if not storage.injected:  # no reads remain
            break
        assert content(place) == kept(model, "e0")


def test_files_with_little_unused_space_are_kept(dataset: tuple[Path, Model]) -> None:
    path, model = dataset
    edit.delete_episodes(path, "e1")  # one file has a few of its chunks, another only its chunks
    steps = [step / 20 for step in range(1, 21)]
    planned = {
        share: edit.rewrite_files(path, dry_run=True, min_unused=share).rewritten for share in steps
    }
    shares = {}
    for record in named(path):
        found = [share for share in steps if record in planned[share]]
        assert found == steps[: len(found)]
        shares[record] = max(found, default=0)
    assert len(set(shares.values())) > 1
    assert min(shares.values()) < 0.25 < max(shares.values())
    expected = {record for record, share in shares.items() if share >= 0.25}
    assert set(edit.rewrite_files(path).rewritten) == expected
    for share in (0, -1, 1.01, float("nan")):
        with pytest.raises(ValueError, match="min_unused"):
            edit.rewrite_files(path, min_unused=share)
    with pytest.raises(NotFoundError, match="no dataset"):
        edit.rewrite_files(path.parent / "nowhere")
    check(path, kept(model, "e1"))


def test_a_reader_keeps_old_files_until_they_are_old_enough(dataset: tuple[Path, Model]) -> None:
    path, model = dataset
    ancient = time.time() - 100 * 86_400
    for folder in ("records", "index"):
        for file in (path / folder).iterdir():
            os.utime(file, (ancient, ancient))
    old = named(path)
    edit.delete_episodes(path, ["e0", "e1", "e3"])
    by_edit = old - named(path)
    assert by_edit
    rewritten = set(edit.rewrite_files(path, min_unused=0.001).rewritten)
    assert rewritten
    removed = set(edit.clean(path, older_than=86_400))
    assert not any(name.startswith("records/") for name in removed)
    for note in (path / "records").glob("*.left"):
        moment = time.time() - 2 * 86_400
        os.utime(note, (moment, moment))
    assert edit.clean(path, older_than=3 * 86_400) == []
    removed = set(edit.clean(path, older_than=86_400))
    assert {name for name in removed if name.endswith(".seqrec")} == by_edit | rewritten
    assert paths_in(path) == named(path)
    check(path, kept(model, "e0", "e1", "e3"))


def test_several_commits_and_another_writer(dataset: tuple[Path, Model]) -> None:
    path, model = dataset
    edit.drop_features(path, "y")
    model = without(model, "y")
    total = set(edit.rewrite_files(path, min_unused=0.001, dry_run=True).rewritten)
    assert len(total) > 3
    seen: list[Progress] = []

    def show(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) == 3:
            model.update(write(path, {"late": 2}, ["x", "s"], mode="append"))

    with pytest.raises(ConflictError, match="another writer committed meanwhile"):
        edit.rewrite_files(path, min_unused=0.001, commit_bytes=1, progress=show)
    left = named(path) & total
    assert len(left) == len(total) - 2
    # And a file of a refused commit.
    assert named(path) | total < {p for p in paths_in(path) if p.endswith(".seqrec")}
    check(path, model)
    report = edit.rewrite_files(path, min_unused=0.001, commit_bytes=1, progress=seen.append)
    assert not total & named(path)
    assert (seen[-1].done, seen[-1].total) == (report.copied_bytes,) * 2
    check(path, model)


def test_file_with_the_end_of_an_episode_is_not_needed(tmp_path: Path) -> None:
    """A file contains only the last chunk of `e1`, of the small group."""
    path = tmp_path / "records"
    model = write(path, {"e0": 3, "e1": 5}, NAMES)
    assert len(named(path)) == 2
    edit.drop_features(path, ["y", "s"])
    model = without(without(model, "y"), "s")
    edit.clean(path, older_than=0)
    check(path, model)
    edit.rename_episodes(path, {"e0": "first"})
    model = {"first": model["e0"], "e1": model["e1"]}
    edit.rewrite_files(path, min_unused=0.001)
    edit.clean(path, older_than=0)
    check(path, model)


def test_separate_chunks_of_an_episode_stay_separate(tmp_path: Path) -> None:
    """The first and the last file are rewritten, but not the files between."""
    path = tmp_path / "records"
    model = write(path, {"e0": 3, "e1": 15, "e2": 2}, NAMES, chunk_frames=2)
    edit.delete_episodes(path, ["e0", "e2"])
    report = edit.rewrite_files(path, min_unused=0.001)
    assert (len(report.rewritten), len(report.written)) == (2, 2)
    edit.drop_features(path, "y")  # in all files
    report = edit.rewrite_files(path, min_unused=0.001)
    assert len(report.rewritten) == 4 > len(report.written)
    edit.clean(path, older_than=0)
    check(path, without(kept(model, "e0", "e2"), "y"))


def test_texts_variable_shapes_and_timestamps(tmp_path: Path) -> None:
    path = tmp_path / "records"
    described: dict[str, Any] = {name: {"kind": "timestamp"} for name in "tu"}
    described |= {name: {"shape": (None, size)} for name, size in (("gone", 2), ("cloud", 3))}
    with SeqRecordWriter(path, features=described, chunk_frames=3, max_file_size=3000) as writer:
        for number in range(6):
            with writer.episode(f"e{number}", fps=10) as episode:
                for i in range(number + 3):
                    frame: dict[str, Any] = {
                        "t": i * 1.0,
                        "u": i * 2.0,
                        "gone": np.zeros((i + 1, 2)),
                    }
                    frame["text"] = f"{number} {i} " * 40
                    if i % 3:
                        frame["cloud"] = np.full((i, 3), number, "<f4")
                    episode.append(frame)

    def frames() -> tuple[Any, list[Any]]:
        with seqrecord.open(path) as reader:
            spans = reader.contents.index.time_spans
            assert spans is not None
            return read_all(path), spans.min_growth[:, :, 1].tolist()

    def check_same() -> None:
        found, spans = frames()
        assert spans == expected[1]
        assert same_frames(found, expected[0])

    edit.delete_episodes(path, ["e1", "e4"])
    edit.drop_features(path, ["u", "gone"])
    expected = frames()
    assert len(edit.rewrite_files(path, min_unused=0.01).rewritten) > 2
    check_same()
    edit.clean(path, older_than=0)
    assert not seqrecord.verify(path, deep=True).problems
    (path / "manifest.json").unlink()
    seqrecord.reindex(path)
    check_same()


def test_time_spans_of_two_files_with_the_same_episode(tmp_path: Path) -> None:
    """The copies of both parts keep theirs."""
    path, described = tmp_path / "records", {"t": {"kind": "timestamp"}}
    write_dataset(path, {key: columns(t=np.arange(5.0)) for key in "de"}, features=described)
    edit.add_feature(path, "u", lambda episode: 3.0 * np.arange(len(episode)), kind="timestamp")
    edit.delete_episodes(path, "d")
    assert len(edit.rewrite_files(path, min_unused=0.001).rewritten) == 2
    for _ in range(2):
        with seqrecord.open(path) as reader:
            spans = reader.contents.index.time_spans
            assert spans is not None
            assert spans.min_growth[0, :, 1].tolist() == [2.0, 6.0]
        assert not seqrecord.verify(path, deep=True).problems
        seqrecord.reindex(path)


STEPS = ("append", "delete", "rename", "drop", "add", "rewrite", "clean", "reindex", "lose", "late")


@pytest.mark.slow
@settings(max_examples=20)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2**16)), min_size=3, max_size=7))
def test_any_history(
    made: tuple[Path, Model], tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    check_history(made, folder, steps)
    shutil.rmtree(folder)


def test_a_history_of_all_steps(made: tuple[Path, Model], tmp_path: Path) -> None:
    check_history(made, tmp_path, [(step, number) for number, step in enumerate([*STEPS, "lose"])])


def check_history(made: tuple[Path, Model], folder: Path, steps: list[tuple[str, int]]) -> None:
    path = shutil.copytree(made[0], folder / "records")
    model, names = made[1], list(NAMES)
    # At least one step frees space.
    for number, (step, choice) in enumerate([*steps, ("delete", 1), ("rewrite", 3)]):
        keys = list(model)
        key = keys[choice % len(keys)]
        if step == "append":
            lengths = {f"n{number}": 1 + choice % 7, f"m{number}": 1 + choice % 3}
            model = model | write(path, lengths, names, mode="append", chunk_frames=2)
        elif step == "delete" and len(keys) > 1:
            edit.delete_episodes(path, [key])
            model = kept(model, key)
        elif step == "rename":
            edit.rename_episodes(path, {key: f"{key}r"})
            model = {f"{key}r" if k == key else k: frames for k, frames in model.items()}
        elif step == "drop" and len(names) > 1:
            dropped = names.pop(choice % len(names))
            edit.drop_features(path, dropped)
            model = without(model, dropped)
        elif step == "add" and (name := f"z{choice % 2}") not in names:
            edit.add_feature(path, name, some(name, number), max_file_size=100 + choice)
            model, names = with_feature(model, name, number), [*names, name]
        elif step == "rewrite":
            size = 1 + choice % 60_000
            edit.rewrite_files(path, min_unused=(0.001, 0.25, 0.6)[choice % 3], max_file_size=size)
        elif step == "clean":
            edit.clean(path, older_than=0)
        elif step == "reindex":
            seqrecord.reindex(path)
        elif step == "lose":
            (path / "manifest.json").unlink()
            seqrecord.reindex(path)
        elif step == "late" and len(names) > 1:  # by a writer that began before
            writer = SeqRecordWriter(path, codecs="raw", mode="append", chunk_frames=2)
            values = [{n: hash_of(f"l{number}", n, i) for n in names} for i in range(3)]
            with writer.episode(f"l{number}") as episode:
                for frame in values:
                    full = {n: np.full(WIDTHS.get(n, 4), v, "<f4") for n, v in frame.items()}
                    episode.append(full)
            other, dropped = f"late{number}", names.pop(choice % len(names))
            edit.add_feature(path, other, some(other))
            edit.drop_features(path, dropped)
            edit.rewrite_files(path, min_unused=0.001)
            model, names = without(with_feature(model, other), dropped), [*names, other]
            with pytest.raises(ConflictError):
                writer.close()
            SeqRecordWriter(path, codecs="raw", mode="resume").close()
            late = [{n: [v] for n, v in frame.items() if n != dropped} for frame in values]
            model = {**model, f"l{number}": late}
        assert content(path) == model
    assert not seqrecord.verify(path).problems
    seqrecord.convert(open_source(path), path.parent / "copy", workers=1)
    assert content(path.parent / "copy") == model
    edit.clean(path, older_than=0)
    check(path, model)


def test_the_command(dataset: tuple[Path, Model]) -> None:
    path, model = dataset

    def run(*words: object, code: int = 0) -> str:
        return command_line.run("clean", path, *words, code=code).stdout

    assert run("--older-than", "0s") == f"{path}: 0 files removed\n"
    edit.delete_episodes(path, "e3")
    planned = edit.rewrite_files(path, dry_run=True)
    before = paths_in(path)
    text = run("--dry-run")
    number = len(planned.rewritten)
    count = "1 record file" if number == 1 else f"{number} record files"
    assert text.startswith(f"{path}: {count} would be rewritten: ")
    end = f" to be freed by deleting the old ones\n{path}: 0 files would be removed\n"
    assert text.endswith(end)
    assert "rewritten" not in run("--no-rewrite")
    assert "rewritten" not in run("--min-unused", "1")
    assert paths_in(path) == before
    text = run("--quiet")
    assert f"{path}: {count} rewritten: " in text
    assert text.endswith("0 files removed\n")
    assert set(planned.rewritten) <= set(run("--older-than", "0s").splitlines())
    check(path, kept(model, "e3"))
    for words in (["--min-unused", "0"], ["--min-unused", "1.1"]):
        run(*words, code=2)
