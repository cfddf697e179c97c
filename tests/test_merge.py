"""Datasets that are merged: what the new one holds, and what stays of the others."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import stat
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import seqrecord
from seqrecord import NotFoundError, SeqRecordPipe, SeqRecordWriter
from seqrecord.edit import (
    CopyProgress,
    clean,
    delete_episodes,
    merge_datasets,
    relabel_episodes,
    rename_episodes,
    split_episodes,
)
from seqrecord.errors import DestinationError, FormatError, SchemaError, StorageError
from seqrecord.reading.metadata import read_footer
from seqrecord.storage import copy_on_server, open_storage
from tests.command_line import main
from tests.places import CLOUDS, Place
from tests.test_edits import check, content, write


@pytest.fixture
def parts(tmp_path: Path) -> tuple[Path, Path]:
    a, b = write(tmp_path / "a", range(4)), write(tmp_path / "b", range(4, 7))
    split_episodes(a, ["e0"], "val")
    split_episodes(b, ["e4"], "train")
    split_episodes(b, ["e5"], "val")
    delete_episodes(a, ["e1"])
    relabel_episodes(b, ["e6"], {"number": "six"})
    return a, b


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file, with what it holds."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_ino, path.read_bytes()) for path in files}


def test_all_episodes_with_their_edits(parts: tuple[Path, Path], tmp_path: Path) -> None:
    before = [state(folder) for folder in parts]
    expected = {**content(parts[0]), **content(parts[1])}
    made = tmp_path / "new" / "made"
    report = merge_datasets(parts, made, dry_run=True)
    assert not made.parent.exists()
    seen: list[CopyProgress] = []
    assert merge_datasets(parts, made, progress=seen.append) == report
    assert seen[-1] == CopyProgress(report.linked_bytes, report.linked_bytes)
    assert (report.num_episodes, report.num_frames) == (6, 18)
    assert report.num_record_files == 4
    assert report.copied_bytes == 0
    check(made, expected)
    assert [state(folder) for folder in parts] == before
    for path in (made / "records").iterdir():
        assert path.stat().st_nlink == 2
        assert not path.is_symlink()
    with seqrecord.open(made) as dataset:
        keys = np.array(list(dataset.episodes.keys()))
        assert set(keys[dataset.find_episodes(None, "val")]) == {"e0", "e5"}
        assert set(keys[dataset.find_episodes(None, "train")]) == {"e4"}
        assert not dataset.statistics  # `a` has none since the edit
    # The dataset is one of its own: it can grow, and others may go.
    write(made, range(7, 9), mode="append")
    for path in [*parts[0].rglob("*"), *parts[1].rglob("*")]:
        if path.is_file():
            path.unlink()
    assert content(made).keys() == {*expected, "e7", "e8"}
    pipe = SeqRecordPipe(made, clip_len=3, batch_size=2, seed=1)
    assert sum(len(batch["episode"]) for batch in pipe) == 8


def test_copies_where_they_are_asked_for(parts: tuple[Path, Path], tmp_path: Path) -> None:
    writer = SeqRecordWriter(tmp_path / "large", codecs="raw")
    with writer, writer.episode("large", metadata={}) as episode:  # more than is copied at once
        for i in range(2500):
            episode.append({"x": np.full(1000, i, np.float32)})
    every = [*parts, tmp_path / "large"]
    expected = {key: item for part in every for key, item in content(part).items()}
    seen: list[CopyProgress] = []
    report = merge_datasets(every, tmp_path / "made", link=False, progress=seen.append)
    assert len(seen) > report.num_record_files
    assert seen[-1] == CopyProgress(report.copied_bytes, report.copied_bytes)
    assert (report.linked_bytes, report.num_record_files) == (0, 5)
    check(tmp_path / "made", expected)
    assert {path.stat().st_nlink for path in (tmp_path / "made" / "records").iterdir()} == {1}


def test_links_where_folders_cannot_be_synced(
    parts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some mounts refuse to; they make names durable on their own."""
    fsync = os.fsync

    def of_files(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", of_files)
    report = merge_datasets(parts, tmp_path / "made")
    assert report.linked_bytes
    assert not report.copied_bytes
    check(tmp_path / "made", {**content(parts[0]), **content(parts[1])})


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP])
def test_copies_where_a_file_cannot_be_linked(
    parts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "link", _raising(code))
    merge_datasets(parts, tmp_path / "made")
    check(tmp_path / "made", {**content(parts[0]), **content(parts[1])})


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("call", ["link", "mkdir"])
def test_other_errors_of_the_system_name_the_file(
    parts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, call: str
) -> None:
    """A link that failed for any reason was followed by a copy."""
    owner: Any = os if call == "link" else Path
    monkeypatch.setattr(owner, call, _raising(code))
    with pytest.raises(StorageError, match=rf"{os.strerror(code)}.*file: {tmp_path}/made") as found:
        merge_datasets(parts, tmp_path / "made")
    assert not isinstance(found.value, FileNotFoundError)


def _raising(code: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_to_another_storage_and_edits_there(parts: tuple[Path, Path]) -> None:
    expected = {**content(parts[0]), **content(parts[1])}
    url = f"memory://{uuid.uuid4().hex}"
    report = merge_datasets(parts, url)
    assert (report.linked_bytes, report.num_episodes) == (0, 6)
    assert report.copied_bytes > 6 * 12_000
    delete_episodes(url, ["e4"])
    with seqrecord.open(url) as dataset:
        assert set(dataset.episodes.keys()) == expected.keys() - {"e4"}
        for key, episode in dataset.episodes.items():
            assert (dict(episode.metadata), episode[:]["x"][:, 0].tolist()) == expected[key]
    assert not seqrecord.verify(url).problems


def test_statistics_of_all_together(tmp_path: Path) -> None:
    parts = [write(tmp_path / "a", range(3)), write(tmp_path / "b", range(3, 8))]
    merge_datasets(parts, tmp_path / "made")
    write(tmp_path / "whole", range(8))
    found = []
    for name in ("made", "whole"):
        with seqrecord.open(tmp_path / name) as dataset:
            assert dataset.statistics
            found.append(dataset.statistics["x"])
    for name in ("count", "mean", "std", "min", "max"):
        np.testing.assert_allclose(getattr(found[0], name), getattr(found[1], name))


def test_keys_with_prefixes(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", range(3)), write(tmp_path / "b", range(3))
    rename_episodes(b, {"e1": "renamed"})
    # An episode of a key that is there, which is in no dataset.
    other = write(tmp_path / "other", range(2, 3))
    for file in (other / "records").iterdir():
        (b / "records" / file.name).hardlink_to(file)
    seqrecord.reindex(b)
    before = [content(a), content(b)]
    made = tmp_path / "made"
    with pytest.raises(DestinationError, match="--prefix") as found:
        merge_datasets([a, b], made)
    assert found.value.episode == "e0"
    merge_datasets([a, b], made, prefixes=["", "b/"])
    check(made, {**before[0], **{f"b/{key}": item for key, item in before[1].items()}})
    assert [content(a), content(b)] == before
    for prefixes, error in ((["", "e1/../"], FormatError), (["x"], DestinationError)):
        with pytest.raises(error):
            merge_datasets([a, b], tmp_path / "none", prefixes=prefixes, dry_run=True)
    with pytest.raises(DestinationError, match="episode of one key"):
        merge_datasets([a, b], tmp_path / "none", prefixes=["b/", "b/"])


def test_what_cannot_be_merged(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", range(3)), write(tmp_path / "b", range(2, 4))
    made = tmp_path / "made"
    with pytest.raises(DestinationError, match=r"episode of one key.*e2"):
        merge_datasets([a, b], made)
    with pytest.raises(DestinationError, match="same record file"):
        merge_datasets([a, shutil.copytree(a, tmp_path / "copy")], made)
    with SeqRecordWriter(tmp_path / "c") as writer, writer.episode("other") as episode:
        episode.append({"x": np.zeros(1000, np.float64)})
    with pytest.raises(
        SchemaError,
        match=r"feature of other values; file: \S*/c; feature: x; "
        r"expected: float32 \[1000\], as in \S*/a; got: float64 \[1000\]$",
    ):
        merge_datasets([a, tmp_path / "c"], made)
    write(tmp_path / "d", range(10, 12), features={"x": {"unit": "m"}})
    write(tmp_path / "e", range(12, 14), features={"x": {"unit": "px"}})
    with pytest.raises(SchemaError, match=r"feature of other unit.*expected: m.*got: px$"):
        merge_datasets([tmp_path / "d", tmp_path / "e"], made)
    with SeqRecordWriter(tmp_path / "f") as writer, writer.episode("other") as episode:
        episode.append({"y": np.zeros(3)})
    with pytest.raises(
        SchemaError, match=r"no feature is in all.*/f: x is only there, y is only here$"
    ):
        merge_datasets([a, tmp_path / "f"], made)
    with pytest.raises(NotFoundError, match="no dataset"):
        merge_datasets([a, tmp_path / "nowhere"], made)
    with pytest.raises(DestinationError, match="nothing to merge"):
        merge_datasets([], made)
    with pytest.raises(DestinationError, match="not empty"):
        merge_datasets([a], b)
    assert not [path for path in made.rglob("*") if path.is_file()]


def run_as_printed(error: SchemaError) -> None:
    """Run the command that the error names, as a shell would."""
    for command in error.message.partition(": ")[2].split(" && "):
        name, *words = shlex.split(command)
        assert name == "seqrecord"
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output


def write_frames(path: Path, keys: str, names: list[str], **settings: Any) -> None:
    """Episodes of 40 frames of the features `names`."""
    frames = [
        {"x": np.full(2000, i, "<f4"), "s": np.int32(i), "text": f"frame {i}"} for i in range(40)
    ]
    with SeqRecordWriter(path, **settings) as writer:
        for number, key in enumerate(keys):
            with writer.episode(key, metadata={"n": number}, fps=30) as episode:
                for i, frame in enumerate(frames):
                    episode.append({n: frame[n] for n in names if n != "s" or i % 7 != 3})


def test_the_command_for_what_is_stored_otherwise(tmp_path: Path) -> None:
    """It merges what is alike, and appends the rest, in the codecs of the first."""
    a, b, c, d = (tmp_path / name for name in ("a", "b b", "c", "d"))
    names = ["x", "s", "text"]
    write_frames(a, "ij", names, codecs="raw")
    write_frames(b, "klm", ["text", "x", "s"], features={"x": {"kind": "state"}})
    write_frames(c, "p", names, codecs="raw")
    write_frames(d, "q", ["x", "text", "s"], codecs="raw")
    split_episodes(b, ["k", "m"], "val")
    split_episodes(c, ["p"], "val")
    delete_episodes(b, ["l"])
    rename_episodes(b, {"m": "renamed"})
    relabel_episodes(b, ["renamed"], {"n": "two"})
    before = [state(path) for path in (a, b, c, d)]
    made = tmp_path / "made"
    with pytest.raises(SchemaError, match="this packs them into one: seqrecord merge"):
        merge_datasets([a, b, c, d], made, dry_run=True)
    assert not made.exists()
    with pytest.raises(SchemaError, match="this packs them into one: seqrecord merge") as found:
        merge_datasets([a, b, c, d], made)
    assert not [path for path in made.rglob("*") if path.is_file()]
    assert found.value.message.partition(": ")[2] == (
        f"seqrecord merge {a} {c} -o {made} && seqrecord write --src '{b}' --dst {made} --append"
        f" && seqrecord write --src {d} --dst {made} --append"
    )
    for what in ("x (kind state, not None, codec ", ", not raw, group 1, not 0)", f"{d}: another"):
        assert what in str(found.value.got)
    run_as_printed(found.value)
    assert [state(path) for path in (a, b, c, d)] == before
    expected: dict[str, Any] = {}
    for path in (a, b, c, d):
        with seqrecord.open(path) as dataset:
            expected |= everything(dataset)
    for _ in range(2):
        with seqrecord.open(made) as dataset, seqrecord.open(a) as first:
            assert dataset.features == first.features
            assert list(dataset.episodes)[3:] == ["k", "renamed", "q"]
            assert everything(dataset) == expected
            keys = np.array(list(dataset.episodes))
            assert set(keys[dataset.find_episodes(None, "val")]) == {"k", "renamed", "p"}
            assert not dataset.statistics or dataset.statistics.num_frames == dataset.num_frames
        assert not seqrecord.verify(made, deep=True).problems
        (made / "manifest.json").unlink()
        seqrecord.reindex(made)


def everything(dataset: seqrecord.Dataset) -> dict[str, Any]:
    """All frames, metadata and rates, by key."""
    return {
        key: (
            dict(episode.metadata),
            episode.fps,
            [{n: np.asarray(v).tolist() for n, v in episode[i].items()} for i in range(40)],
        )
        for key, episode in dataset.episodes.items()
    }


def test_the_command_makes_keys_differ_first(tmp_path: Path) -> None:
    a, b, made = tmp_path / "a", tmp_path / "b", tmp_path / "made"
    write_frames(a, "ij", ["x", "s"], codecs="raw")
    write_frames(b, "ij", ["x", "s"])
    with pytest.raises(SchemaError, match="this packs them into one") as found:
        merge_datasets([a, b], made, prefixes=["", "b/"])
    run_as_printed(found.value)
    with seqrecord.open(made) as dataset:
        assert list(dataset.episodes) == ["i", "j", "b/i", "b/j"]


@pytest.mark.parametrize("first", ["more", "fewer"])
def test_the_command_takes_features_that_all_have(tmp_path: Path, first: str) -> None:
    a, b, made = tmp_path / "a", tmp_path / "b", tmp_path / "made"
    write_frames(a, "ij", ["x", "s", "text"] if first == "more" else ["x", "s"])
    write_frames(b, "k", ["x", "s"] if first == "more" else ["x", "text", "s"])
    with pytest.raises(SchemaError, match="this packs those that all have into one") as found:
        merge_datasets([a, b], made)
    assert f"text is only {'there' if first == 'more' else 'here'}" in str(found.value.got)
    run_as_printed(found.value)
    with seqrecord.open(made) as dataset:
        assert list(dataset.features) == ["x", "s"]
        assert list(dataset.episodes) == ["i", "j", "k"]
        assert dataset.statistics.num_frames == 120


def test_the_command_says_what_loses_data(tmp_path: Path) -> None:
    for name, codec in (("a", "jpeg:quality=90"), ("b", "jpeg:quality=80"), ("c", "raw")):
        writer = SeqRecordWriter(tmp_path / name, codecs={"image": codec})
        with writer, writer.episode(name) as episode:
            episode.append({"image": np.zeros((8, 8, 3), np.uint8)})
    with pytest.raises(
        SchemaError, match=r"quality=80\), not \S*quality=90\)\)$"
    ):  # which are copied
        merge_datasets([tmp_path / "a", tmp_path / "b"], tmp_path / "made")
    with pytest.raises(SchemaError, match=r"codec raw, not \S*quality=90\), which loses data\)$"):
        merge_datasets([tmp_path / "a", tmp_path / "c"], tmp_path / "made")
    assert not [path for path in (tmp_path / "made").rglob("*") if path.is_file()]


@pytest.mark.parametrize("place", CLOUDS[:2], indirect=True)
def test_within_a_bucket_the_service_copies(parts: tuple[Path, Path], place: Place) -> None:
    options = place.options
    urls = [f"{place.url}/{part.name}" for part in parts]
    for part, url in zip(parts, urls, strict=True):
        report = merge_datasets([part], url, storage_options=options)
        assert report.server_bytes == 0
    one, another = (open_storage(f"{place.url}/{name}", place.options) for name in ("a", "other"))
    path = one.files("records")[0].path
    assert copy_on_server(one, path, another, path)
    assert read_footer(another, path).file_id == read_footer(one, path).file_id
    one.close()
    another.close()
    report = merge_datasets(urls, f"{place.url}/made", storage_options=options)
    assert report.server_bytes == report.copied_bytes > 0
    expected = {**content(parts[0]), **content(parts[1])}
    for url in urls:  # nothing of it is used by the new one
        storage = open_storage(url, options)
        for folder in ("records", "index", "edits"):
            for file in storage.files(folder):
                storage.remove(file.path)
        storage.close()
    with seqrecord.open(f"{place.url}/made", storage_options=options) as dataset:
        assert set(dataset.episodes) == expected.keys()
        for key, episode in dataset.episodes.items():
            assert (dict(episode.metadata), episode[:]["x"][:, 0].tolist()) == expected[key]
    assert not seqrecord.verify(f"{place.url}/made", storage_options=options).problems


@pytest.mark.parametrize("place", ["gs"], indirect=True)
def test_what_a_service_does_not_copy_goes_through_this_machine(
    parts: tuple[Path, Path], place: Place
) -> None:
    """The stub of Google Cloud Storage knows no copies, and answers with an error."""
    merge_datasets(parts[:1], f"{place.url}/a", storage_options=place.options)
    merge_datasets([f"{place.url}/a"], f"{place.url}/made", storage_options=place.options)
    assert not seqrecord.verify(f"{place.url}/made", storage_options=place.options).problems


def test_a_failure_leaves_what_another_merge_passes_over(
    parts: tuple[Path, Path], tmp_path: Path
) -> None:
    """It cannot tell who names its files by now."""
    made = tmp_path / "made"
    made.mkdir()
    (made / "index").touch()  # so that no table can be written, after the record files
    with pytest.raises(StorageError):
        merge_datasets(parts, made)
    left = {path.name for path in (made / "records").iterdir()}
    assert {name.partition(".")[2] for name in left} == {"seqrec", "merge"}
    (made / "index").unlink()
    merge_datasets(parts, made)
    check(made, {**content(parts[0]), **content(parts[1])})
    assert left < {path.name for path in (made / "records").iterdir()}
    clean(made, older_than=0)
    assert not left & {path.name for path in (made / "records").iterdir()}
    check(made, {**content(parts[0]), **content(parts[1])})
