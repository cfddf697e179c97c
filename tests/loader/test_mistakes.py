"""Common mistakes: errors name the file, the expected value and the actual one."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import seqrecord
from seqrecord import ClipError, SeqRecordPipe, edit, errors, samples
from seqrecord.edit import split_dataset
from seqrecord.errors import SchemaError, StorageError
from tests.kit.command_line import fail, run
from tests.kit.datasets import lengths_of, write_dataset, write_small, written_once
from tests.kit.faults import fail_calls


def written(folder: Path, *frames: dict[str, Any], **options: Any) -> Path:
    """A dataset of one episode, "a"."""
    write_dataset(folder, {"a": frames}, **options)
    return folder


# Arguments of loaders, names and states

KEYS = "4 episodes, as set/0, set/1, set/2"
LOADERS: list[Any] = [SeqRecordPipe, seqrecord.SeqRecordIterableDataset, seqrecord.SeqRecordNode]
CLIP = {"episode": ["set/0"], "start": [0]}
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"cliplen": 3}, TypeError, r"no argument 'cliplen'; is it clip_len\?"),
    ({"delta_timestamps": {}}, TypeError, r"no argument 'delta_timestamps'; is it windows\?"),
    ({"world_size": 2}, ClipError, r"no argument of a loader; expected: rank=\(rank, world_size"),
    ({"num_replicas": 2}, ClipError, r"no argument of a loader; expected: rank=\(rank, world_size"),
    ({"num_workers": 2}, ClipError, r"expected: DataLoader\(loader, batch_size=None, num_work"),
    ({"workers": 2}, ClipError, r"expected: DataLoader\(loader, batch_size=None, num_work"),
    ({"drop_last": True}, ClipError, 'no argument of a loader; expected: last_batch="drop"'),
    ({"chunk_size": 16}, ClipError, r"expected: windows=\{feature: range\(chunk_size\)\}"),
    ({"max_tokens": 4096}, ClipError, r"batch_size=seqrecord\.Budget\(4096, cost=…\)"),
    ({"budget": 4096}, ClipError, r"batch_size=seqrecord\.Budget\(4096, cost=…\)"),
    ({"skip_bad_episodes": 1}, ClipError, "skip_bad_episodes.*True or False"),
    ({"zzz": 1}, TypeError, "no argument 'zzz'; there are batch_size, camera, clip_len"),
    ({"episodes": ["set/00"]}, ClipError, f"expected: the keys of {KEYS}; got: set/00"),
    ({"episodes": "other/*"}, ClipError, f"expected: some of the keys of {KEYS}; got: 'other/"),
    ({"features": ["images"]}, SchemaError, "no such feature; file: .*; .* got: images"),
    ({"samples": {"start": [0]}}, ClipError, "samples lacks a column: episode; "),
    ({"samples": {**CLIP, "score": [None]}}, ClipError, "no values for batches in column score; "),
    (
        {"samples": {**CLIP, "start": [0, 1]}},
        ClipError,
        "samples is not a table: .*length 1 but got length 2",
    ),
]
STATES: list[tuple[dict[str, Any], str]] = [
    ({"model": 1}, r"result of a loader's state_dict\(\)"),
    ({"fetcher_state": {}, "dataset_state": None}, "a StatefulDataLoader to that, with as many"),
    (
        {"_snapshot": {"_worker_snapshots": {"worker_0": {"dataset_state": None}}}},
        "a StatefulDataLoader to that, with as many",
    ),
]


def test_arguments_of_the_map_style_class_and_of_rename_episodes(path: Path) -> None:
    clips: Any = seqrecord.SeqRecordMapDataset
    for name, expected in (
        ("num_replicas", r"DistributedSampler\(dataset\)"),
        ("num_workers", r"DataLoader\(dataset, num_workers="),
        ("max_tokens", r"SeqRecordPipe with batch_size=seqrecord\.Budget"),
        ("shuffle", "SeqRecordPipe, "),
    ):
        with pytest.raises(ClipError, match=expected):
            clips(path, clip_len=3, **{name: 2})
    rename: Any = edit.rename_episodes
    for arguments, pair in ((("old", "new"), "{'old': 'new'}"), ((["old"],), "{old: new}")):
        expected = re.escape(f"the keys are no dict; expected: rename_episodes(…, {pair}); got: ")
        with pytest.raises(ClipError, match=expected):
            rename(path, *arguments)


def test_arguments_and_states_of_loaders(path: Path) -> None:
    pipe: Any = SeqRecordPipe(path, clip_len=3)
    for options, kind, message in WRONG:
        with pytest.raises(kind, match=message):
            SeqRecordPipe(path, **{"clip_len": 3, **options})
    with pytest.raises(TypeError, match="only the dataset is given without a name; got 3 too"):
        SeqRecordPipe(path, 3)  # type: ignore[call-arg]
    for make in (*LOADERS, seqrecord.SeqRecordMapDataset):
        for options in ({}, {"dataset": path}):
            with pytest.raises(TypeError, match="the dataset is missing: the first argument"):
                make(clip_len=3, **options)
    for loader in LOADERS:
        message = rf"{loader.__name__} streams clips.*SeqRecordMapDataset"
        with pytest.raises(TypeError, match=message):  # a stream has no random access
            _ = loader(path, clip_len=3)[0]
    for state, message in STATES:
        with pytest.raises(seqrecord.StateError, match=message):
            pipe.load_state_dict(state)


TWO = np.array(["a", "b"])  # an array is compared by its values
HUGE = 10**400
NORMALIZATION: Any = seqrecord.Normalization
OF_VALUES: list[tuple[Callable[..., Any], dict[str, list[Any]]]] = [
    (samples.every, {"n": [0, 1.5, "2", HUGE, TWO]}),
    (partial(samples.every, 4), {"rotate": ["no", None, TWO]}),
    (samples.skip_first, {"n": [-1, 1.5, None, HUGE]}),
    (samples.skip_last, {"n": [-1, 1.5, None, HUGE]}),
    (samples.where, {"condition": [3, None, TWO]}),
    (samples.per_episode, {"function": [3, None, TWO]}),
    (samples.inside, {"feature": [3, None, "", TWO]}),
    (
        partial(samples.repeat_by, "note"),
        {"power": ["x", "1", None, True, HUGE, float("nan"), TWO, np.timedelta64(1)]},
    ),
    (samples.repeat_by, {"name": [3, None, "", TWO]}),
    (samples.reverse, {"probability": ["0.5", None, 2, TWO]}),
    (samples.subset, {"of": [0, "3", None, 1.5]}),
    (samples.final_goal, {"column": [3, None, "", "dilation", "start", TWO]}),
    (
        samples.future_goal,
        {
            "kind": ["far", None, TWO],
            "discount": ["0.9", None, 0, 1, float("nan"), HUGE, np.array([0.5, 0.6])],
            "column": [3, None, "", "repeat", "frames", TWO],
        },
    ),
    (
        seqrecord.Vector,
        {"normalize": [3, "max", np.ones(2), TWO], "statistics": [3, None, "own", TWO]},
    ),
    (partial(seqrecord.Budget, 4), {"too_large": [3, None, "split", TWO], "cost": [TWO, ""]}),
    (
        partial(NORMALIZATION, offset=[0], scale=[1]),
        {"mode": [3, None, "max", TWO]},
    ),
    (partial(NORMALIZATION, "mean_std", scale=[1]), {"offset": [[HUGE], TWO, None]}),
    (seqrecord.Normalization.of, {"statistics": [{}, None]}),
    (partial(seqrecord.RandomCrop, 8), {"around": [3, None, "middle", TWO]}),
    (partial(seqrecord.CenterCrop, 8), {"around": [3, None, "middle", TWO]}),
    (
        partial(seqrecord.RandomResizedCrop, 8),
        {"scale": ["12", (HUGE, HUGE), None, 1], "ratio": ["12", (HUGE, HUGE), TWO]},
    ),
    (partial(seqrecord.BatchResize, [4, 8]), {"weights": ["12", [HUGE, 1], [1], TWO, 3]}),
    (
        partial(seqrecord.DepthToMeters, "depth"),
        {"unit": [3, TWO], "invalid": [HUGE, None, 1j, np.complex64(1), np.timedelta64(1)]},
    ),
    (
        partial(seqrecord.delta_timestamps, {"id": [0.1, 0.2]}),
        {"fps": [0, -10, "10", None, True, HUGE, float("nan"), TWO]},
    ),
    (
        partial(seqrecord.delta_timestamps, fps=10),
        {"times": [None, [0.1], {3: [0.1]}, {"id": 0.1}, {"id": "0.1"}, {"id": None}]},
    ),
    (
        partial(seqrecord.delta_timestamps, {"id": [0.1]}, fps=10),
        {"tolerance": ["x", None, -1, TWO]},
    ),
]


def test_values_that_arguments_do_not_take() -> None:
    for function, wrong in OF_VALUES:
        for name, values in wrong.items():
            for value in values:
                with pytest.raises(ClipError) as caught:
                    function(**{name: value})
                assert len(str(caught.value)) < 700, (function, name)
    given = {"mode": "mean_std", "offset": [0], "scale": [1]}
    assert seqrecord.Vector(normalize=NORMALIZATION(**given))
    assert samples.future_goal("geometric", discount=np.float32(0.5)).arguments["discount"] == 0.5


@pytest.mark.parametrize("key", ["set/00", 0, None])
def test_an_unknown_episode_key(key: Any, path: Path) -> None:
    episodes = seqrecord.open(path).episodes
    with pytest.raises(errors.EpisodeKeyError) as caught:
        _ = episodes[key]
    error: errors.EpisodeKeyError = pickle.loads(pickle.dumps(caught.value))
    assert issubclass(type(error), KeyError)
    assert error.file == str(path)
    assert (error.expected, error.got) == (f"a key of {KEYS}", repr(key))
    assert str(error).startswith("unknown episode key; file: ")
    assert key not in episodes
    assert episodes.get(key) is None
    with pytest.raises(TypeError, match=r"by frames, then by feature.*got 'id'"):
        _ = episodes["set/0"]["id"]  # type: ignore[index]


HUB_NAMES: dict[str, str | None] = {
    "lerobot/pusht": "lerobot/pusht",
    "lerobot/pusht@v2.0": "lerobot/pusht@v2.0",
    "datasets/lerobot/pusht/": "lerobot/pusht",
    "huggingface.co/datasets/lerobot/pusht": "lerobot/pusht",
    "./lerobot/pusht": None,
    "data/lerobot/pusht": None,
    "records": None,
    "empty/records": None,  # below a folder that is there
}


def test_datasets_are_no_sequences(path: Path) -> None:
    """Neither of episodes nor of frames or clips: the error names these."""
    dataset: Any = seqrecord.open(path)
    with pytest.raises(TypeError, match=r"len\(dataset\.episodes\), dataset\.num_frames"):
        len(dataset)
    assert dataset
    for use in (
        lambda: dataset[0],
        lambda: dataset["set/0"],
        lambda: [*dataset],
        lambda: 3 in dataset,
    ):
        with pytest.raises(TypeError, match=r"dataset\.episodes\[key\]\[frame\]"):
            use()


def test_calls_of_edits_without_an_argument(path: Path) -> None:
    any_edit: Any = edit
    with pytest.raises(TypeError, match=r"set_metadata\(location, episodes, entries, …\): missing"):
        any_edit.set_metadata(path, {"site": "lab"})
    with pytest.raises(TypeError, match=r"delete_episodes\(location, episodes, …\): missing"):
        any_edit.delete_episodes(path)


_WRONG_EDITS: dict[str, tuple[Callable[[Any, Path], object], str]] = {
    "metadata": (
        lambda edit, path: edit.set_metadata(path, ["set/0"], ["site"]),
        "entries is not valid; expected: a dict",
    ),
    "one number": (
        lambda edit, path: edit.delete_episodes(path, 99),
        "episodes is not valid; expected: a list of keys or of numbers, .*; got: 99",
    ),
    "names of features": (
        lambda edit, path: edit.drop_features(path, 3),
        "names is not valid; expected: names of features; got: 3",
    ),
    "values in a dict": (
        lambda edit, path: edit.add_feature(path, "x", {"set/0": np.zeros(3)}),
        r"values is not valid; expected: a function of an episode, .*values\[episode\.key\]",
    ),
    "no values": (
        lambda edit, path: edit.add_feature(path, "x", lambda _: None),
        "number of values differs from the number of frames; .*; got: None",
    ),
    "version": (lambda edit, path: edit.restore_version(path, 1), "unknown version.*; got: 1"),
    "seconds": (
        lambda edit, path: edit.clean(path, older_than="1d"),
        "older_than is not valid; expected: a number of seconds; got: '1d'",
    ),
    "share": (
        lambda edit, path: edit.rewrite_files(path, min_unused="all"),
        "min_unused is not valid; expected: a share above 0 and at most 1; got: 'all'",
    ),
    "large share": (
        lambda edit, path: edit.rewrite_files(path, min_unused=3),
        "min_unused is not valid; expected: a share above 0 and at most 1; got: 3",
    ),
    "one dataset": (
        lambda edit, path: edit.merge_datasets(str(path), path / "merged"),
        "sources is not valid; expected: a list of datasets",
    ),
    "one prefix": (
        lambda edit, path: edit.merge_datasets([path, path], path / "merged", prefixes="a/"),
        r"prefixes is a list of names; expected: \['a/'\]; got: a/",
    ),
}


@pytest.mark.parametrize("name", list(_WRONG_EDITS))
def test_wrong_values_of_edits(name: str, path: Path) -> None:
    """Each is an error of this package that names the argument."""
    call, message = _WRONG_EDITS[name]
    with pytest.raises(seqrecord.SeqRecordError, match=message):
        call(edit, path)


def test_functions_with_other_arguments(path: Path, tmp_path: Path) -> None:
    pipe: Any = partial(SeqRecordPipe, path, clip_len=3)
    derive: Any = partial(seqrecord.derive, path, destination=tmp_path / "x", features=["id"])
    budget: Any = seqrecord.Budget
    calls: list[tuple[Any, str]] = [
        (lambda: pipe(samples=lambda samples: samples), r"\(samples, epoch, rng\)"),
        (lambda: pipe(samples=[CLIP, lambda samples: samples]), r"\(samples, epoch, rng\)"),
        (lambda: budget(9, lambda: 3), r"\(columns\)"),
        (lambda: derive(function=lambda: None), r"\(batch\)"),
        (lambda: derive(function=lambda batch, scale: {}), r"\(batch\)"),
        (lambda: derive(function=dict, per_text={"note": lambda: 0}), r"\(text\)"),
    ]
    for call, expected in calls:
        with pytest.raises(ClipError, match=f"cannot be called with .*a function of {expected}"):
            call()
    with pytest.raises(ClipError, match="function is not valid; expected: a function of a batch"):
        derive(function="encode")
    with pytest.raises(ClipError, match=r"keep is a list of names; .* got: flow"):
        derive(function=dict, keep="flow")
    with pytest.raises(SchemaError, match="no such feature; if the destination has other features"):
        derive(function=dict, features=["zzz"])
    with pytest.raises(ClipError, match=r"no argument shuffle; .*samples.*windows; got: shuffle"):
        derive(function=dict, shuffle=True)
    scaled = partial(seqrecord.derive, path, lambda batch, scale: {"x": scale * batch["id"]})
    report = scaled(tmp_path / "scaled", features=["id"], arguments={"scale": 2})
    assert len(report.written) == 4


def test_other_values_than_numbers_specs_and_tables(path: Path) -> None:
    clips: Any = seqrecord.SeqRecordMapDataset(path, clip_len=3)
    for number in ("set/0", slice(0, 2), 1.5, None):
        with pytest.raises(TypeError, match="the number of a clip is not an integer; expected: an"):
            clips[number]
    summarize: Any = seqrecord.summarize
    with pytest.raises(ClipError, match=r"clip is not valid; expected: seqrecord\.ClipSpec\(…\)"):
        summarize(path, clip=3)
    crop: Any = seqrecord.RandomCrop
    with pytest.raises(TypeError, match=r"^Crop\.__init__"):
        crop(3, 3)
    with pytest.raises(SchemaError, match=r"expected: a list such as \['image'\]; got: 'image'"):
        seqrecord.open(path, features="image")
    with pytest.raises(ClipError, match="samples is not a table") as caught:
        SeqRecordPipe(path, clip_len=3, samples="absent.parquet")
    assert str(caught.value).count("expected: ") == 1


def test_locations_without_a_dataset(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    with pytest.raises(seqrecord.NotFoundError) as caught:
        seqrecord.open(tmp_path / "lerobot/pusht")
    assert caught.value.expected is None
    monkeypatch.chdir(tmp_path)
    for name, url in HUB_NAMES.items():
        for function in (seqrecord.open, partial(SeqRecordPipe, clip_len=1), seqrecord.summarize):
            with pytest.raises(seqrecord.NotFoundError, match="no such folder") as caught:
                function(name)
            expected = url and f"hf://datasets/{url}, for a dataset on the Hugging Face Hub"
            assert caught.value.expected == expected
    for location in (None, [path]):
        with pytest.raises(errors.LocationError, match="expected: one path or URL; got: "):
            seqrecord.open(location)  # type: ignore[arg-type]


# Frames, metadata and statistics


def test_invalid_frames_and_metadata(tmp_path: Path) -> None:
    frame, nothing = {"x": np.zeros(3)}, r"None.*leave the feature out.*feature: image"
    wrong: list[tuple[Any, type[Exception], str]] = [
        (np.zeros(3), errors.FrameError, r"frame is not a dict; episode: b; .* got: ndarray"),
        ({"image": None, **frame}, SchemaError, nothing),
        ({}, errors.FrameError, "without features; append a frame with at least one"),
    ]
    with seqrecord.SeqRecordWriter(tmp_path / "records") as writer:
        with writer.episode("a") as episode:
            episode.append(frame)
        for value, kind, message in wrong:
            with pytest.raises(kind, match=message), writer.episode("b") as episode:
                episode.append(value)
        with pytest.raises(seqrecord.FormatError, match=r"JSON: .*float32.*; episode: b"):
            writer.episode("b", metadata={"x": np.float32(3)})
    assert list(seqrecord.open(tmp_path / "records").episodes) == ["a"]
    recorder = seqrecord.SeqRecordRecorder(tmp_path / "recorded")
    with recorder, recorder.episode("a") as recorded:
        recorded.append({"image": np.zeros((2, 2)), **frame})
        with pytest.raises(SchemaError, match=nothing):
            recorded.append({"image": None, **frame})  # type: ignore[dict-item]
    assert seqrecord.open(tmp_path / "recorded").num_frames == 1


@pytest.mark.parametrize("name", ["episode", "start", "flipped", "crop"])
def test_a_feature_named_like_a_column_needs_rename(tmp_path: Path, name: str) -> None:
    written(tmp_path, {name: np.zeros((3, 3)), "image": np.zeros((8, 8, 3), np.uint8)})
    crop = seqrecord.RandomCrop((4, 4)) if name in ("flipped", "crop") else None
    options: dict[str, Any] = {"clip_len": 1, "clip_transform": crop}
    with pytest.raises(ClipError, match=rf"rename=\{{'{name}': 'my_{name}'\}}"):
        SeqRecordPipe(tmp_path, **options)
    pipe = SeqRecordPipe(tmp_path, **options, rename={name: f"my_{name}"})
    assert f"my_{name}" in next(iter(pipe))


def test_missing_statistics(tmp_path: Path) -> None:
    frame = {"x": np.zeros(3), "note": "text", "image": np.zeros((16, 24, 3), np.uint8)}
    without = written(tmp_path / "without", frame, statistics=False)
    statistics = seqrecord.open(without).statistics
    assert not statistics
    assert "x" not in statistics
    assert statistics.get("x") is None
    with pytest.raises(errors.StatisticsKeyError, match=f"`seqrecord stats {without}`") as caught:
        _ = statistics["x"]
    assert caught.value.file == str(without)
    assert isinstance(caught.value, KeyError)
    seqrecord.add_statistics(without)
    assert seqrecord.open(without).statistics["x"].mean.tolist() == [0, 0, 0]
    statistics = seqrecord.open(written(tmp_path / "with", frame)).statistics
    with pytest.raises(
        errors.StatisticsKeyError, match="feature; feature: note; expected: x, image"
    ):
        _ = statistics["note"]

    import torch  # here, since subprocesses import this module

    image = torch.zeros(2, 16, 24, 3)
    assert statistics["image"].normalize(image).shape == image.shape
    for wrong in (image.permute(0, 3, 1, 2), image.permute(0, 3, 1, 2).numpy()):
        with pytest.raises(ValueError, match=r"\[\.\.\., 3\].*got \[2, 3, 16, 24\].*permute"):
            statistics["image"].normalize(wrong)


# Local folders without write access or with unexpected files


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("mode", ["create", "append", "resume"])
def test_files_and_links_in_place_of_folders(tmp_path: Path, mode: str) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for below, why in (
        ("", "it is a file, and a dataset is a folder"),
        ("set", "Not a directory"),
    ):
        with pytest.raises(StorageError, match=r"Not a directory; file: .*file"):
            write_dataset(tmp_path / "file" / below, {"a": 3}, mode=mode)
        with pytest.raises(StorageError, match=rf"{why}; file: .*file"):
            seqrecord.open(tmp_path / "file" / below)
    assert tree(tmp_path) == ["file"]
    if mode != "append":
        (tmp_path / "set").mkdir()
        (tmp_path / "set" / "records").write_bytes(b"")
        with pytest.raises(StorageError, match=r"Not a directory; file: .*records"):
            write_dataset(tmp_path / "set", {"a": 3}, mode=mode)
        assert tree(tmp_path / "set") == ["records"]

    write_dataset(tmp_path / "other", {"a": 3})
    before = tree(tmp_path / "other")
    for name in ("manifest.json", "records", "index"):
        (tmp_path / f"link-{name}").mkdir()
        (tmp_path / f"link-{name}" / name).symlink_to(tmp_path / "other" / name)
        # A writer reads the manifest first: without one, an append checks nothing else.
        why = "no dataset to append to" if (name, mode) == ("index", "append") else "leads out"
        with pytest.raises(StorageError, match=why):
            write_dataset(tmp_path / f"link-{name}", {"a": 3}, mode=mode)
    assert tree(tmp_path / "other") == before
    assert lengths_of(tmp_path / "other") == {"a": 3}


FULL_THEN_READ_ONLY = """
import json, subprocess, sys
from functools import partial
from pathlib import Path
import seqrecord
from tests.kit.datasets import lengths_of, write_episodes

folder = Path(sys.argv[1])

def write(folder, mode="create", key="a"):
    with seqrecord.SeqRecordWriter(folder, mode=mode) as writer:
        write_episodes(writer, {key: 3})

def failure(action):
    try:
        action()
    except seqrecord.SeqRecordError as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]

write(folder)
writer = seqrecord.SeqRecordWriter(folder, mode="append")
write_episodes(writer, {"b": 1})
with (folder / "fill").open("wb", buffering=0) as fill:
    while True:
        try:
            fill.write(bytes(4096))
        except OSError:
            break
full = [*failure(writer.close), list(lengths_of(folder))]
(folder / "fill").unlink()
seqrecord.SeqRecordWriter(folder, mode="resume").close()
full.append(list(lengths_of(folder)))
subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
failures = [failure(partial(write, folder, mode, "c")) for mode in ("append", "resume")]
failures += [failure(partial(write, folder / "new")), failure(partial(seqrecord.reindex, folder))]
print(json.dumps([full, failures, list(lengths_of(folder))]))
"""


def test_a_full_disk_and_a_read_only_one(tmp_path: Path) -> None:
    """Committed episodes stay; ended ones are added by a resume after space is freed."""
    unshare = shutil.which("unshare") or "unshare"
    mount = 'mount -t tmpfs -o size=256k tmpfs "$1" || exit 77; exec "$0" -c "$2" "$1"'
    words = [unshare, "-m", "sh", "-c", mount, sys.executable, str(tmp_path), FULL_THEN_READ_ONLY]
    try:
        ran = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        ran = None
    if ran is None or (ran.returncode in (1, 77) and "Traceback" not in ran.stderr):
        pytest.skip("no mounts can be made here: run as root, with unshare of util-linux")
    assert ran.returncode == 0, ran.stderr
    (kind, text, during, after), refused, read = json.loads(ran.stdout)
    assert kind == "StorageError"
    assert "No space left on device; ended episodes are kept: " in text
    assert "; file: " in text
    assert (during, after) == (["a"], ["a", "b"])
    for kind, text in refused:
        assert kind == "DestinationError"
        assert "cannot write: Read-only file system; file: " in text
    assert read == ["a", "b"]


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user without root privileges."""
    fail_calls(monkeypatch, os, "open", errno.EACCES, below=tmp_path, flags=os.O_CREAT)
    with pytest.raises(errors.DestinationError, match="cannot write: Permission denied; file: "):
        write_dataset(tmp_path, {"a": 3})


EDITS = ["edit delete {} x", "split {} train=1", "merge {} {} -o out", "edit drop {} image"]
EDITS += ["clean {}"]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Originals of the format folders: two episodes of two images."""
    root = tmp_path_factory.mktemp("originals")
    for number in range(4):
        folder = root / f"{number // 2}" / "image"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / f"{number}.png")
    return root


def test_originals_in_place_of_a_dataset(originals: Path, tmp_path: Path) -> None:
    """The remedy is an index or a conversion, never the removal of the user's folder."""
    for command in EDITS:
        message = fail(*command.replace("{}", str(originals)).split())
        assert f"file: {originals}" in message
        assert "`seqrecord index SRC -o DST`" in message
        assert "`seqrecord write --src SRC`" in message
        assert "remove" not in message
        assert len(list(originals.glob("*/image/*.png"))) == 4
    kind: Any
    for kind in (SeqRecordPipe, seqrecord.SeqRecordMapDataset):
        with pytest.raises(seqrecord.NotFoundError, match=r"write --src SRC.*seqrecord index"):
            kind(originals, clip_len=1)
    wrong: Any  # a path in place of a source
    for wrong, message in (
        (str(originals), r"open_source\(path\)"),
        (originals, r"open_source\(path\)"),
        (None, r"schema, episodes, frames.*got: NoneType"),
    ):
        with pytest.raises(errors.SourceError, match=message):
            seqrecord.convert(wrong, tmp_path / "records")
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "00000-x.seqrec").write_bytes(b"x")
    message = fail("clean", tmp_path)  # a file of an interrupted write
    assert "--resume" in message
    assert "remove" not in message


def test_paths_that_are_not_utf_8(originals: Path, tmp_path: Path) -> None:
    folder = written(tmp_path / os.fsdecode(b"records-\xff"), {"x": np.zeros(3)})
    for command in (("info",), ("verify",), ("clean",), ("reindex",)):
        assert "records-\\udcff" in run(command[0], folder, *command[1:]).stdout
    folder = tmp_path / os.fsdecode(b"tree-\xff")
    shutil.copytree(originals, folder)
    assert "a path that is not UTF-8" in fail("index", folder, "-o", tmp_path / "index")
    run("write", "--src", folder, "--dst", tmp_path / "records", "--quiet")
    assert seqrecord.open(tmp_path / "records").num_frames == 4


# NaN, too large numbers and wrong types raise our errors, with the actual value

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


records = written_once(write_small)


def _pipe(**settings: Any) -> Callable[[Path, Any], Any]:
    def make(records: Path, value: Any) -> Any:
        given = {name: make(value) for name, make in settings.items()}
        return seqrecord.SeqRecordPipe(
            records, **{"clip_len": 2, "features": ["image_left", "pose"], **given}
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
        for name in ("dilation", "batch_size", "num_cursors", "memory_limit", "seed")
    },
    "windows": _pipe(windows=lambda value: {"pose": [value]}),
    "weights": _weighted,
    "split": lambda records, value: split_dataset(records, {"a": value}),
    "split by": lambda records, value: split_dataset(records, {"a": 1}, by=value),
    "select": lambda records, value: seqrecord.open(records).select(value),
}


@pytest.mark.parametrize("take", list(_TAKE))
def test_invalid_numbers_are_refused(take: str, records: Path) -> None:
    for name, value in _NUMBERS.items():
        if take == "weights" and name in ("huge", "large", "fraction"):  # valid ratios
            assert _TAKE[take](records, value).shares == {"a": 1}
            continue
        with pytest.raises(seqrecord.SeqRecordError) as caught:
            _TAKE[take](records, value)
        assert len(str(caught.value)) < 700, name
