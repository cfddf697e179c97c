"""What users get wrong first: the error names the file, what was expected, and what came."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import seqrecord
from seqrecord.edit import split_dataset
from seqrecord.errors import (
    DestinationError,
    EpisodeKeyError,
    FrameError,
    LocationError,
    SchemaError,
    SourceError,
    StatisticsKeyError,
    StorageError,
)
from tests.command_line import fail, run
from tests.datasets import write_small
from tests.numbered import add, lengths_of


@pytest.mark.parametrize(
    "kind", [seqrecord.SeqRecordPipe, seqrecord.SeqRecordIterableDataset, seqrecord.SeqRecordNode]
)
def test_a_stream_is_no_list(kind: Any, path: Path) -> None:
    with pytest.raises(TypeError, match=rf"{kind.__name__} streams clips.*SeqRecordMapDataset"):
        _ = kind(path, clip_len=3)[0]


@pytest.mark.parametrize("key", ["set/00", 0, None])
def test_a_key_that_is_not_there(key: Any, path: Path) -> None:
    episodes = seqrecord.open(path).episodes
    with pytest.raises(EpisodeKeyError) as caught:
        _ = episodes[key]
    error: EpisodeKeyError = pickle.loads(pickle.dumps(caught.value))
    assert issubclass(type(error), KeyError)
    assert error.file == str(path)
    assert error.expected == "a key of 4 episodes, as set/0, set/1, set/2"
    assert error.got == repr(key)
    assert str(error).startswith("unknown episode key; file: ")
    assert key not in episodes
    assert episodes.get(key) is None


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((), {"cliplen": 3}, r"no argument 'cliplen'; is it clip_len\?"),
        ((), {"delta_timestamps": {}}, r"no argument 'delta_timestamps'; is it windows\?"),
        ((), {"zzz": 1}, "no argument 'zzz'; there are batch_size, clip_len"),
        ((3,), {"clip_len": 3}, "only the dataset is given without a name; got 3 too"),
    ],
)
def test_arguments_that_are_not_there(
    arguments: tuple[Any, ...], options: dict[str, Any], message: str, path: Path
) -> None:
    kind: Any = seqrecord.SeqRecordPipe
    with pytest.raises(TypeError, match=message):
        kind(path, *arguments, **options)


def test_a_wrong_place(path: Path, tmp_path: Path) -> None:
    record = next((path / "records").glob("*.seqrec"))
    (tmp_path / "empty").mkdir()
    for place, why in [
        (record, "it is a file, and a dataset is a folder"),
        (path / "records", "the folder above it is one"),
        (tmp_path / "empty", "`seqrecord write --src SRC` packs originals"),
    ]:
        with pytest.raises(seqrecord.NotFoundError, match=why) as caught:
            seqrecord.open(place)
        assert caught.value.file == str(place)
    for location in (None, [path]):
        with pytest.raises(LocationError, match="expected: one path or URL; got: "):
            seqrecord.open(location)  # type: ignore[arg-type]


def test_names_that_are_not_there(path: Path) -> None:
    keys = "the keys of 4 episodes, as set/0, set/1, set/2"
    with pytest.raises(seqrecord.ClipError, match=f"expected: {keys}; got: set/00"):
        seqrecord.SeqRecordPipe(path, clip_len=3, episodes=["set/00"])
    with pytest.raises(seqrecord.ClipError, match=f"expected: some of {keys}; got: 'other/"):
        seqrecord.SeqRecordPipe(path, clip_len=3, episodes="other/*")
    with pytest.raises(SchemaError, match=f"no such feature; file: {path}; .* got: images"):
        seqrecord.SeqRecordPipe(path, clip_len=3, features=["images"])
    with pytest.raises(TypeError, match=r"by frames, then by feature.*got 'id'"):
        _ = seqrecord.open(path).episodes["set/0"]["id"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"episode": ["set/0"]}, "clips lacks a column: start; "),
        ({"episode": ["set/0"], "start": [0], "score": [1]}, "unknown column: score; "),
        (
            {"episode": ["set/0"], "start": [0, 1]},
            "clips is not a table: .*length 1 but got length 2",
        ),
    ],
)
def test_columns_of_clips(table: dict[str, Any], message: str, path: Path) -> None:
    with pytest.raises(seqrecord.ClipError, match=message):
        seqrecord.SeqRecordPipe(path, clip_len=3, clips=table)


def test_states_of_something_else(path: Path) -> None:
    pipe: Any = seqrecord.SeqRecordPipe(path, clip_len=3, batch_size=2)
    with pytest.raises(seqrecord.StateError, match=r"result of a loader's state_dict\(\)"):
        pipe.load_state_dict({"model": 1})
    states: list[dict[str, Any]] = [
        {"fetcher_state": {}, "dataset_state": None},
        {"_snapshot": {"_worker_snapshots": {"worker_0": {"dataset_state": None}}}},
    ]
    for state in states:
        with pytest.raises(
            seqrecord.StateError, match="a StatefulDataLoader to that, with as many"
        ):
            pipe.load_state_dict(state)


def test_frames_and_metadata_that_are_none(tmp_path: Path) -> None:
    with seqrecord.SeqRecordWriter(tmp_path / "records") as writer:
        with pytest.raises(FrameError, match=r"frame is not a dict; episode: a; .* got: ndarray"):
            writer.episode("a").append(np.zeros(3))  # type: ignore[arg-type]
        with pytest.raises(seqrecord.FormatError, match=r"JSON: .*float32.*; episode: b"):
            writer.episode("b", metadata={"x": np.float32(3)})
        with writer.episode("c") as episode:
            episode.append({"x": np.zeros(3)})
    assert list(seqrecord.open(tmp_path / "records").episodes) == ["c"]


def test_normalizing_what_was_permuted(tmp_path: Path) -> None:
    import torch  # and not where tests start a process of this module

    with seqrecord.SeqRecordWriter(tmp_path / "records") as writer, writer.episode("a") as episode:
        episode.append({"image": np.zeros((16, 24, 3), np.uint8)})
    statistics = seqrecord.open(tmp_path / "records").statistics
    image = torch.zeros(2, 16, 24, 3)
    assert statistics["image"].normalize(image).shape == image.shape
    for wrong in (image.permute(0, 3, 1, 2), image.permute(0, 3, 1, 2).numpy()):
        with pytest.raises(ValueError, match=r"\[\.\.\., 3\].*got \[2, 3, 16, 24\].*permute"):
            statistics["image"].normalize(wrong)


def test_statistics_that_are_not_there(tmp_path: Path) -> None:
    for name, kept in (("without", False), ("with", True)):
        with (
            seqrecord.SeqRecordWriter(tmp_path / name, statistics=kept) as writer,
            writer.episode("a") as episode,
        ):
            episode.append({"x": np.zeros(3), "note": "text"})
    without = tmp_path / "without"
    statistics = seqrecord.open(without).statistics
    assert not statistics
    assert "x" not in statistics
    assert statistics.get("x") is None
    with pytest.raises(StatisticsKeyError, match=f"`seqrecord stats {without}`") as caught:
        _ = statistics["x"]
    assert caught.value.file == str(without)
    with pytest.raises(StatisticsKeyError, match="of this feature; feature: note; expected: x"):
        _ = seqrecord.open(tmp_path / "with").statistics["note"]
    with pytest.raises(KeyError):
        _ = statistics["x"]
    seqrecord.add_statistics(without)
    assert seqrecord.open(without).statistics["x"].mean.tolist() == [0, 0, 0]


# Places on a local disk that cannot be written to, or that hold what they should not

MODES = ["create", "append", "resume"]


def write(folder: Path, mode: Any = "create", key: str = "a") -> None:
    with seqrecord.SeqRecordWriter(folder, mode=mode) as writer:
        add(writer, {key: 3})


def keys(folder: Path) -> list[str]:
    return list(lengths_of(folder))


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("below", ["", "set"])
def test_a_folder_that_is_a_file(tmp_path: Path, mode: str, below: str) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(StorageError, match=r"Not a directory; file: .*file"):
        write(tmp_path / "file" / below, mode)
    why = "Not a directory" if below else "it is a file, and a dataset is a folder"
    with pytest.raises(StorageError, match=rf"{why}; file: .*file"):
        seqrecord.open(tmp_path / "file" / below)
    assert tree(tmp_path) == ["file"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["manifest.json", "records", "index"])
def test_a_link_that_leads_out(tmp_path: Path, mode: str, name: str) -> None:
    write(tmp_path / "other")
    before = tree(tmp_path / "other")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / name).symlink_to(tmp_path / "other" / name)
    # A writer reads the manifest first: without one, nothing else is looked at to append.
    why = "no dataset to append to" if (name, mode) == ("index", "append") else "leads out"
    with pytest.raises(StorageError, match=why):
        write(tmp_path / "set", mode)
    assert tree(tmp_path / "other") == before
    assert keys(tmp_path / "other") == ["a"]


@pytest.mark.parametrize("mode", ["create", "resume"])
def test_a_folder_of_records_that_is_a_file(tmp_path: Path, mode: str) -> None:
    (tmp_path / "records").write_bytes(b"")
    with pytest.raises(StorageError, match=r"Not a directory; file: .*records"):
        write(tmp_path, mode)
    assert tree(tmp_path) == ["records"]


_ISOLATED = """
import json, sys
from functools import partial
from pathlib import Path
import seqrecord
from tests.numbered import add, lengths_of

folder = Path(sys.argv[1])

def write(folder, mode="create", key="a"):
    with seqrecord.SeqRecordWriter(folder, mode=mode) as writer:
        add(writer, {key: 3})

def failure(action):
    try:
        action()
    except seqrecord.SeqRecordError as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]
"""
_READ_ONLY = """
failures = [failure(partial(write, folder, mode, "b")) for mode in ("append", "resume")]
failures += [failure(partial(write, folder / "new")), failure(partial(seqrecord.reindex, folder))]
print(json.dumps([*failures, list(lengths_of(folder))]))
"""
_FULL = """
write(folder)
writer = seqrecord.SeqRecordWriter(folder, mode="append")
add(writer, {"b": 1})
with (folder / "fill").open("wb", buffering=0) as fill:
    while True:
        try:
            fill.write(bytes(4096))
        except OSError:
            break
seen = [failure(writer.close), list(lengths_of(folder))]
(folder / "fill").unlink()
seqrecord.SeqRecordWriter(folder, mode="resume").close()
print(json.dumps([*seen, list(lengths_of(folder))]))
"""


def isolated(mount: str, script: str, folder: Path) -> Any:
    """What a script prints that runs with a file system of its own in a folder."""
    unshare = shutil.which("unshare") or "unshare"
    command = f'{mount} || exit 77; exec "$0" -c "$2" "$1"'
    words = [unshare, "-m", "sh", "-c", command, sys.executable, str(folder), _ISOLATED + script]
    try:
        ran = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        ran = None
    if ran is None or (ran.returncode in (1, 77) and "Traceback" not in ran.stderr):
        pytest.skip("no mounts can be made here: run as root, with unshare of util-linux")
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_a_read_only_folder(tmp_path: Path) -> None:
    write(tmp_path)
    mount = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1"'
    *errors, read = isolated(mount, _READ_ONLY, tmp_path)
    for kind, text in errors:
        assert kind == "DestinationError"
        assert "cannot write: Read-only file system; file: " in text
    assert read == ["a"]


def test_a_full_disk(tmp_path: Path) -> None:
    """What was committed stays, and what had ended is brought in when there is room again."""
    mount = 'mount -t tmpfs -o size=256k tmpfs "$1"'
    (kind, text), during, after = isolated(mount, _FULL, tmp_path)
    assert kind == "StorageError"
    assert "No space left on device; ended episodes are kept: " in text
    assert "; file: " in text
    assert (during, after) == (["a"], ["a", "b"])


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As whoever is not root finds it."""
    real = os.open

    def refuse(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & os.O_CREAT and str(path).startswith(str(tmp_path)):
            raise OSError(13, os.strerror(13), path)
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DestinationError, match="cannot write: Permission denied; file: "):
        write(tmp_path)


EDITS = (
    "edit delete {} x",
    "split {} train=1",
    "merge {} {} -o out",
    "edit drop {} image",
    "clean {}",
)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Originals of the format folders: two episodes of two images."""
    root = tmp_path_factory.mktemp("originals")
    for number in range(4):
        folder = root / f"{number // 2}" / "image"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / f"{number}.png")
    return root


@pytest.mark.parametrize("command", EDITS)
def test_originals_are_not_edited(command: str, originals: Path) -> None:
    """The remedy is an index or a dataset of them, never the removal of the user's folder."""
    message = fail(*command.replace("{}", str(originals)).split())
    assert f"file: {originals}" in message
    assert "`seqrecord index SRC -o DST`" in message
    assert "`seqrecord write --src SRC`" in message
    assert "remove" not in message
    assert len(list(originals.glob("*/image/*.png"))) == 4


def test_clean_of_an_interrupted_write_names_resume(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "00000-x.seqrec").write_bytes(b"x")
    message = fail("clean", tmp_path)
    assert "--resume" in message
    assert "remove" not in message


@pytest.mark.parametrize("kind", [seqrecord.SeqRecordPipe, seqrecord.SeqRecordMapDataset])
def test_originals_in_place_of_a_dataset(kind: Any, originals: Path) -> None:
    with pytest.raises(seqrecord.NotFoundError, match=r"write --src SRC.*seqrecord index"):
        kind(originals, clip_len=1)


def test_a_path_in_place_of_a_source(originals: Path, tmp_path: Path) -> None:
    for wrong in (str(originals), originals):
        with pytest.raises(SourceError, match=r"open_source\(path\)"):
            seqrecord.convert(wrong, tmp_path / "records")  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=r"schema, episodes, frames.*got: NoneType"):
        seqrecord.convert(None, tmp_path / "records")  # type: ignore[arg-type]


def test_frames_of_nothing(tmp_path: Path) -> None:
    with seqrecord.SeqRecordWriter(tmp_path / "records") as writer:
        with writer.episode("whole") as episode:
            episode.append({"x": np.zeros(3)})
        with pytest.raises(SchemaError, match=r"None.*leave the feature out.*feature: image"):
            writer.episode("a").append({"image": None, "x": np.zeros(3)})  # type: ignore[dict-item]
        with (
            pytest.raises(FrameError, match="without features; append a frame with at least one"),
            writer.episode("b") as episode,
        ):
            episode.append({})
    with (
        seqrecord.SeqRecordRecorder(tmp_path / "recorded") as recorder,
        recorder.episode("a") as recorded,
    ):
        recorded.append({"image": np.zeros((2, 2)), "x": np.zeros(3)})
        with pytest.raises(SchemaError, match=r"None.*leave the feature out.*feature: image"):
            recorded.append({"image": None, "x": np.zeros(3)})  # type: ignore[dict-item]
    assert seqrecord.open(tmp_path / "recorded").num_frames == 1


@pytest.mark.parametrize("name", ["episode", "start", "intrinsics", "crop"])
def test_a_feature_with_the_name_of_a_column_names_rename(tmp_path: Path, name: str) -> None:
    with seqrecord.SeqRecordWriter(tmp_path / "records") as writer, writer.episode("a") as episode:
        episode.append({name: np.zeros((3, 3)), "image": np.zeros((8, 8, 3), np.uint8)})
    crop = seqrecord.RandomCrop((4, 4)) if name in ("intrinsics", "crop") else None
    with pytest.raises(seqrecord.ClipError, match=rf"rename=\{{'{name}': 'my_{name}'\}}"):
        seqrecord.SeqRecordPipe(tmp_path / "records", clip_len=1, clip_transform=crop)
    pipe = seqrecord.SeqRecordPipe(
        tmp_path / "records", clip_len=1, clip_transform=crop, rename={name: f"my_{name}"}
    )
    assert f"my_{name}" in next(iter(pipe))


def test_reports_of_paths_that_are_not_utf_8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"records-\xff")
    with seqrecord.SeqRecordWriter(folder) as writer, writer.episode("a") as episode:
        episode.append({"x": np.zeros(3)})
    for command in (("info",), ("verify",), ("plan", "--clip-len", "1"), ("clean",), ("reindex",)):
        assert "records-\\udcff" in run(command[0], folder, *command[1:]).stdout


def test_originals_whose_path_is_not_utf_8(originals: Path, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"tree-\xff")
    shutil.copytree(originals, folder)
    assert "a path that is not UTF-8" in fail("index", folder, "-o", tmp_path / "index")
    run("write", "--src", folder, "--dst", tmp_path / "records", "--quiet")
    assert seqrecord.open(tmp_path / "records").num_frames == 4


# Numbers that are none, too large, or of another kind: an error of ours that shows what came


_HUGE = 10**5000  # too large for a float, and for Python to print
_NUMBERS: dict[str, Any] = {
    "huge": _HUGE,
    "below": -_HUGE,
    "large": 10**400,
    "nan": float("nan"),
    "inf": float("inf"),
    "true": True,
    "numpy nan": np.float64("nan"),
    "numpy true": np.True_,
    "duration": np.timedelta64(1, "s"),
    "fraction": Fraction(_HUGE, 3),
    "complex": 1j,
    "inside": [_HUGE, float("nan")],
    "array": np.array([10**20], object),
}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "records"
    write_small(folder)
    return folder


def _pipe(**settings: Any) -> Callable[[Path, Any], Any]:
    def make(records: Path, value: Any) -> Any:
        these = {name: make(value) for name, make in settings.items()}
        return seqrecord.SeqRecordPipe(
            records, **{"clip_len": 2, "features": ["image_left", "pose"], **these}
        )

    return make


def _weighted(records: Path, value: Any) -> Any:
    sources = {"a": seqrecord.SeqRecordIterableDataset(records, clip_len=2)}
    return seqrecord.SeqRecordMix(sources, weights={"a": value}, batch_size=1)


_TAKE: dict[str, Callable[[Path, Any], Any]] = {
    "HorizontalFlip": lambda _, value: seqrecord.HorizontalFlip(value),
    "CenterCrop": lambda _, value: seqrecord.CenterCrop(value),
    "RandomCrop": _pipe(clip_transform=seqrecord.RandomCrop),
    "Seconds": lambda _, value: seqrecord.Seconds(value, 0),
    "Seconds last": lambda _, value: seqrecord.Seconds(0, value),
    "Seconds every": lambda _, value: seqrecord.Seconds(0, 1, step=value),
    "Seconds list": lambda _, value: seqrecord.Seconds([value]),
    "tolerance": lambda _, value: seqrecord.Seconds(0, 1, tolerance=value),
    **{
        name: _pipe(**{name: lambda value: value})
        for name in ("dilation", "reverse", "batch_size", "num_cursors", "memory_limit", "seed")
    },
    "windows": _pipe(windows=lambda value: {"pose": [value]}),
    "weights": _weighted,
    "split": lambda records, value: split_dataset(records, {"a": value}),
    "split by": lambda records, value: split_dataset(records, {"a": 1}, by=value),
    "select": lambda records, value: seqrecord.open(records).select(value),
}


@pytest.mark.parametrize("take", list(_TAKE))
def test_a_number_that_is_none_is_refused(take: str, records: Path) -> None:
    for name, value in _NUMBERS.items():
        if take == "weights" and name in ("huge", "large", "fraction"):  # which are ratios
            assert _TAKE[take](records, value).shares == {"a": 1}
            continue
        with pytest.raises(seqrecord.SeqRecordError) as caught:
            _TAKE[take](records, value)
        assert len(str(caught.value)) < 700, name
