"""Merged datasets: content of the new dataset; the others stay unchanged."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from click.testing import CliRunner

import seqrecord
from seqrecord import NotFoundError, SeqRecordPipe, edit
from seqrecord.edit import merge_datasets, split_episodes
from seqrecord.errors import DestinationError, FormatError, SchemaError, SourceError
from seqrecord.types import Progress
from tests.formats.test_dataset_source import pages_of, write_video
from tests.kit.command_line import main, run
from tests.kit.datasets import columns, write_dataset
from tests.tools.test_edits import check, content, write
from tests.tools.test_export import frames_of


@pytest.fixture
def parts(tmp_path: Path) -> tuple[Path, Path]:
    a, b = write(tmp_path / "a", range(4)), write(tmp_path / "b", range(4, 7))
    split_episodes(a, ["e0"], "val")
    split_episodes(b, ["e4"], "train")
    split_episodes(b, ["e5"], "val")
    edit.delete_episodes(a, ["e1"])
    edit.set_metadata(b, ["e6"], {"number": "six"})
    return a, b


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Inode and content of every file."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_ino, path.read_bytes()) for path in files}


def split_of(path: Path, name: str) -> set[str]:
    with seqrecord.open(path) as dataset:
        keys = np.array(list(dataset.episodes))
        return set(keys[dataset.find_episodes(None, name)])


def test_all_episodes_with_their_edits(parts: tuple[Path, Path], tmp_path: Path) -> None:
    before = [state(folder) for folder in parts]
    expected = {**content(parts[0]), **content(parts[1])}
    made = tmp_path / "new" / "made"
    report = merge_datasets(parts, made, dry_run=True)
    assert not made.parent.exists()
    seen: list[Progress] = []
    assert merge_datasets(parts, made, progress=seen.append) == report
    assert (seen[-1].done, seen[-1].total) == (18, 18)
    assert (report.num_episodes, report.num_frames) == (6, 18)
    assert report.num_bytes > 6 * 12_000
    check(made, expected)
    assert [state(folder) for folder in parts] == before
    assert split_of(made, "val") == {"e0", "e5"}
    assert split_of(made, "train") == {"e4"}
    with seqrecord.open(made) as dataset:
        assert not dataset.statistics  # `a` has none since the edit
    # The dataset is independent: it can grow, also by further merges.
    write(made, range(7, 9), mode="append")
    more = write(tmp_path / "more", range(10, 12))
    merge_datasets([parts[0], more], made, mode="append")
    expected |= content(more)
    for path in [*parts[0].rglob("*"), *parts[1].rglob("*"), *more.rglob("*")]:
        if path.is_file():
            path.unlink()
    assert content(made).keys() == {*expected, "e7", "e8"}
    pipe = SeqRecordPipe(made, clip_len=3, batch_size=2, seed=1)
    assert sum(len(batch["episode"]) for batch in pipe) == 10


def test_chunks_are_copied_as_they_are(tmp_path: Path) -> None:
    """Of video, one packet of which does not decode, and of other features."""
    a, b, made = tmp_path / "a", tmp_path / "b", tmp_path / "made"
    write_video(a, whole=False)
    write_video(b)
    merge_datasets([a, b], made, prefixes=["", "b/"])
    for name in ("image", "x"):
        assert pages_of(made, name) == [*pages_of(a, name), *pages_of(b, name)]


def test_to_another_storage_and_edits_there(parts: tuple[Path, Path], memory_url: Any) -> None:
    expected = {**content(parts[0]), **content(parts[1])}
    assert merge_datasets(parts, memory_url).num_episodes == 6
    edit.delete_episodes(memory_url, ["e4"])
    del expected["e4"]
    assert content(memory_url) == expected
    assert not seqrecord.verify(memory_url).problems


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
    edit.rename_episodes(b, {"e1": "renamed"})
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
            merge_datasets([a, b], tmp_path / "none", prefixes=prefixes)
    with pytest.raises(DestinationError, match="episode with the same key"):
        merge_datasets([a, b], tmp_path / "none", prefixes=["b/", "b/"])


def test_datasets_that_cannot_be_merged(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", range(3)), write(tmp_path / "b", range(2, 4))
    for name, frame in (("c", {"x": np.zeros(1000)}), ("f", {"y": np.zeros(3)})):
        write_dataset(tmp_path / name, {"other": [frame]})
    d = write(tmp_path / "d", range(10, 12), features={"x": {"unit": "m"}})
    e = write(tmp_path / "e", range(12, 14), features={"x": {"unit": "px"}})
    made = tmp_path / "made"
    wrong: list[tuple[list[Path], type[Exception], str]] = [
        ([a, b], DestinationError, r"episode with the same key.*e2"),
        (
            [a, tmp_path / "c"],
            SchemaError,
            r"different dtypes or shapes; file: \S*/c; feature: x.*, as in \S*/a; got: float64",
        ),
        ([d, e], SchemaError, r"different units.*expected: m.*got: px$"),
        (
            [a, tmp_path / "f"],
            SchemaError,
            r"no feature in common.*got: x only in \S*/a; y only in \S*/f$",
        ),
        ([a, tmp_path / "nowhere"], NotFoundError, "no dataset"),
        ([], DestinationError, "no datasets to merge"),
    ]
    for datasets, error, message in wrong:
        with pytest.raises(error, match=message):
            merge_datasets(datasets, made)
    for dry_run in (True, False):
        with pytest.raises(DestinationError, match="dataset exists already"):
            merge_datasets([a], b, dry_run=dry_run)
    assert not [path for path in made.rglob("*") if path.is_file()]


def run_as_printed(error: SchemaError) -> None:
    """Run the command that the error names, as a shell would."""
    for command in error.message.rpartition(": ")[2].split(" && "):
        name, *words = shlex.split(command)
        assert name == "seqrecord"
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output


def write_frames(path: Path, keys: str, names: list[str], **settings: Any) -> None:
    """Episodes of 24 frames of the features `names`."""
    values: dict[str, list[Any]] = {
        "x": [np.full(2000, i, "<f4") for i in range(24)],
        "s": [np.int32(i) if i % 7 != 3 else None for i in range(24)],
        "text": [f"frame {i}" for i in range(24)],
        "y": [np.zeros(2000)] * 24,
    }
    frames = columns(**{name: values[name] for name in names})
    metadata = {key: {"n": number} for number, key in enumerate(keys)}
    write_dataset(path, dict.fromkeys(keys, frames), metadata=metadata, fps=30, **settings)


def test_features_stored_differently_are_encoded_as_in_the_first(tmp_path: Path) -> None:
    """Other codecs, groups and orders of features, an added feature and a dropped one."""
    a, b, c, d = paths = [tmp_path / name for name in "abcd"]
    names = ["x", "s", "text"]
    write_frames(a, "ij", names, codecs="raw")
    write_frames(b, "klm", ["text", "x", "s"], features={"x": {"kind": "state"}})
    write_frames(c, "p", names, codecs="raw")
    write_frames(d, "q", ["x", "y", "text"], codecs="raw")
    edit.drop_features(d, "y")
    edit.add_feature(d, "s", lambda episode: [None, *map(np.int32, range(1, 24))])
    split_episodes(b, ["k", "m"], "val")
    split_episodes(c, ["p"], "val")
    edit.delete_episodes(b, ["l"])
    edit.rename_episodes(b, {"m": "renamed"})
    edit.set_metadata(b, ["renamed"], {"n": "two"})
    before = [state(path) for path in paths]
    made = tmp_path / "made"
    merge_datasets(paths, made, dry_run=True)
    assert not made.exists()
    merge_datasets(paths, made)
    assert [state(path) for path in paths] == before
    expected: dict[str, Any] = {}
    for path in paths:
        with seqrecord.open(path) as dataset:
            expected |= frames_of(dataset)
    for _ in range(2):
        with seqrecord.open(made) as dataset, seqrecord.open(a) as first:
            assert dataset.features == first.features
            assert list(dataset.episodes) == ["i", "j", "k", "renamed", "p", "q"]
            assert frames_of(dataset) == expected
            assert not dataset.statistics or dataset.statistics.num_frames == dataset.num_frames
        assert split_of(made, "val") == {"k", "renamed", "p"}
        assert not seqrecord.verify(made, deep=True).problems
        (made / "manifest.json").unlink()
        seqrecord.reindex(made)


@pytest.mark.parametrize("first", ["more", "fewer"])
def test_the_command_takes_features_that_all_have(tmp_path: Path, first: str) -> None:
    a, b, made = tmp_path / "a", tmp_path / "b", tmp_path / "made"
    write_frames(a, "ij", ["x", "s", "text"] if first == "more" else ["x", "s"])
    write_frames(b, "k", ["x", "s"] if first == "more" else ["x", "text", "s"])
    with pytest.raises(SchemaError, match="merge the common features: ") as found:
        merge_datasets([a, b], made, prefixes=["", "b/"])
    assert found.value.got == f"text only in {a if first == 'more' else b}"
    run_as_printed(found.value)
    with seqrecord.open(made) as dataset:
        assert list(dataset.features) == ["x", "s"]
        assert list(dataset.episodes) == ["i", "j", "b/k"]
        assert dataset.statistics.num_frames == 72


def test_a_codec_that_loses_data_is_asked_for(tmp_path: Path) -> None:
    for name, codec in (("a", "jpeg:quality=90"), ("b", "jpeg:quality=80"), ("c", "raw")):
        frames = [{"image": np.zeros((8, 8, 3), np.uint8)}]
        write_dataset(tmp_path / name, {name: frames}, codecs={"image": codec})
    merge_datasets([tmp_path / "a", tmp_path / "b"], tmp_path / "copied")  # the files of images
    with pytest.raises(
        SchemaError, match=r"lossy codec.*expected: image.jpeg, 90.*: raw$"
    ) as found:
        merge_datasets([tmp_path / "a", tmp_path / "c"], tmp_path / "made")
    assert not [path for path in (tmp_path / "made").rglob("*") if path.is_file()]
    run_as_printed(found.value)
    for made, others in (("copied", "b"), ("made", "c")):
        with seqrecord.open(tmp_path / made) as dataset:
            assert list(dataset.episodes) == ["a", others]
            assert dataset.features["image"].codec[0]["quality"] == 90


def test_an_append_skips_episodes_that_are_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of equal length; the log and the report name them."""
    a, b, made = write(tmp_path / "a", range(3)), write(tmp_path / "b", range(2, 5)), tmp_path / "m"
    merge_datasets([a], made)
    expected = {**content(a), **content(b)}
    for dry_run in (True, False):
        caplog.clear()
        report = merge_datasets([b], made, mode="append", dry_run=dry_run)
        assert (report.num_episodes, report.num_frames, report.skipped) == (2, 6, ("e2",))
        assert "skipped 1 episode with keys that the dataset has already: e2" in caplog.text
    check(made, expected)
    shown = run("merge", b, "-o", made, "--append").stdout
    assert "0 episodes, 0 frames" in shown
    assert "; 3 already present" in shown
    longer = tmp_path / "longer"
    write_dataset(longer, {"e1": [{"x": np.zeros(1000, np.float32)}] * 4})
    for dry_run in (True, False):
        with pytest.raises(DestinationError, match="another number of frames") as found:
            merge_datasets([longer], made, mode="append", dry_run=dry_run)
        assert found.value.episode == "e1"
        assert (found.value.expected, found.value.got) == ("3 frames", "4 frames")
    edit.trim_episodes(made, ["e0"], slice(1, None))
    assert merge_datasets([a], made, mode="append").skipped == ("e0", "e1", "e2")


def test_an_append_compares_features_with_the_destination(tmp_path: Path) -> None:
    """Also in a dry run; a codec that loses data is asked for."""
    made, image = tmp_path / "made", np.zeros((8, 8, 3), np.uint8)
    frame = {"x": np.float32(0), "image": image}
    features: dict[str, Any] = {"x": {"unit": "m"}}
    write_dataset(made, {"a": [frame]}, codecs={"image": "jpeg:quality=90"}, features=features)
    before, found_errors = state(made), list[SchemaError]()
    wrong: list[tuple[dict[str, Any], str | None, str]] = [
        ({"y": np.float32(0)}, None, "dataset has other features"),
        ({**frame, "x": np.float64(0)}, None, "different dtypes or shapes"),
        (frame, "px", "different units"),
        (frame, "m", "lossy codec"),
    ]
    for number, (other_frame, unit, message) in enumerate(wrong):
        source = tmp_path / f"{number}"
        features = {"x": {"unit": unit}} if unit else {}
        write_dataset(source, {"b": [other_frame]}, codecs="raw", features=features)
        for dry_run in (True, False):
            with pytest.raises(SchemaError, match=message) as found:
                merge_datasets([source], made, mode="append", dry_run=dry_run)
            assert str(made) in str(found.value)
            assert state(made) == before
            found_errors.append(found.value)
    run_as_printed(found_errors[-1])
    with seqrecord.open(made) as dataset:
        assert list(dataset.episodes) == ["a", "b"]
        assert dataset.features["image"].codec[0]["quality"] == 90


def test_a_merge_that_failed_is_resumed(parts: tuple[Path, Path], tmp_path: Path) -> None:
    """The episodes that had ended are not copied again."""
    made = tmp_path / "made"
    damaged = max((parts[1] / "records").iterdir())  # with the last episode
    data = damaged.read_bytes()
    damaged.write_bytes(data[:3000] + bytes([data[3000] ^ 1]) + data[3001:])
    with pytest.raises(SourceError, match=r"checksum.*edit delete.*--resume.*episode: e"):
        merge_datasets(parts, made)
    with pytest.raises(NotFoundError):
        seqrecord.open(made)
    damaged.write_bytes(data)
    before = state(made / "records")
    assert before
    with pytest.raises(DestinationError, match="--resume"):
        merge_datasets(parts, made)
    merge_datasets(parts, made, mode="resume", dry_run=True)
    assert state(made / "records") == before
    seen: list[Progress] = []
    merge_datasets(parts, made, mode="resume", progress=seen.append)
    assert 0 < seen[-1].total < 18
    assert before.items() <= state(made / "records").items()
    check(made, {**content(parts[0]), **content(parts[1])})
    assert split_of(made, "val") == {"e0", "e5"}


def test_ctrl_c_names_resume(parts: tuple[Path, Path], tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with patch("tqdm.tqdm.update", interrupt):  # the bar moves while frames are copied
        failed = run("merge", *parts, "-o", tmp_path / "made", code=130)
    assert "the same command with --resume continues" in failed.stderr
    run("merge", *parts, "-o", tmp_path / "made", "--resume")
    check(tmp_path / "made", {**content(parts[0]), **content(parts[1])})


def test_a_place_with_record_files_is_refused(parts: tuple[Path, Path], tmp_path: Path) -> None:
    made = tmp_path / "made"
    left = made / "records" / f"00000-{'a' * 32}.seqrec.partial"
    for name in (left.name, left.stem):
        left.parent.mkdir(parents=True)
        (left.parent / name).write_bytes(b"of another writer")
        for dry_run in (True, False):
            with pytest.raises(DestinationError, match=r"record files of another writer.*--resume"):
                merge_datasets(parts, made, dry_run=dry_run)
        assert [path.name for path in left.parent.iterdir()] == [name]
        shutil.rmtree(made)
