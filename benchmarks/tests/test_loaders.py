"""Every loader of the comparison gives exactly the baseline's clips, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import rgbd
from benchmarks.tartanair.compare.check import check
from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.compare.workloads import AUDIO, RGBD, TARTANAIR, WORKLOADS, Workload
from benchmarks.tartanair.generate import generate
from benchmarks.tartanair.loaders.base import Batch, Batches, Loader, Settings, prepared
from benchmarks.timing import run_job

# Other packages' loaders leave files open and warn.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SETTINGS = {
    "tartanair": replace(TARTANAIR.base, clip_len=3, batch_size=4, shuffle_buffer=5),
    "audio": replace(AUDIO.base, clip_len=3, batch_size=4, shuffle_buffer=5),
    "rgbd": replace(RGBD.base, clip_len=2, batch_size=2, shuffle_buffer=4),
}
SOME = ("depth_left", "image_left")
Row = tuple[Workload, Loader]


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each workload, with its recordings in `tree`."""
    works = {name: tmp_path_factory.mktemp(name) for name in WORKLOADS}
    generate(works["tartanair"] / "tree", episodes=[7, 9, 2, 5], height=16, width=24)
    AUDIO.generate(works["audio"] / "tree", [7, 9, 2, 5])
    rgbd.generate(works["rgbd"] / "tree", [4, 5, 1, 3], height=48, width=64)
    return works


def recordings_of(workload: Workload, works: dict[str, Path]) -> Recordings:
    return workload.open(works[workload.name] / "tree", workload.base.features)


@pytest.fixture(params=[(w, n) for w in WORKLOADS for n in WORKLOADS[w].loaders], ids="-".join)
def row(request: pytest.FixtureRequest) -> Row:
    workload = WORKLOADS[request.param[0]]
    loader = workload.loaders[request.param[1]]
    if missing := loader.missing():
        pytest.skip(missing)
    return workload, loader


def problems(row: Row, works: dict[str, Path], settings: Settings) -> list[str]:
    workload, loader = row
    work = works[workload.name]
    if loader.alone:
        places = {"root": str(work / "tree"), "work": str(work)}
        job: dict[str, Any] = {
            "do": "check",
            "workload": workload.name,
            "loader": loader.name,
            **places,
        }
        job |= {"settings": asdict(settings), "epochs": 2}
        result = run_job("benchmarks.tartanair.compare.row", job, 60)
        return result["problems"] if "problems" in result else [result["error"]]
    recordings = recordings_of(workload, works)
    folder = prepared(loader, recordings, work, settings)
    return check(loader, recordings, folder, settings, epochs=2)


@pytest.mark.parametrize(
    ("shuffle", "changes"),
    [
        ("off", {}),
        ("off", {"stride": 2, "workers": 2}),
        ("buffer", {"workers": 0}),
        ("buffer", {"workers": 2}),
        ("full", {"workers": 0}),
        ("full", {"workers": 2}),
    ],
)
def test_every_order(
    row: Row, works: dict[str, Path], shuffle: str, changes: dict[str, Any]
) -> None:
    settings = replace(SETTINGS[row[0].name], shuffle=shuffle, **changes)
    if reason := row[1].refuses(settings):
        pytest.skip(reason)
    assert problems(row, works, settings) == []


def test_some_features(row: Row, works: dict[str, Path]) -> None:
    workload, _ = row
    features = {TARTANAIR.name: SOME, RGBD.name: (rgbd.DEPTH,)}.get(workload.name)
    if features is None:
        pytest.skip("has one feature")
    assert problems(row, works, replace(SETTINGS[workload.name], features=features)) == []


class Changed:
    """Batches to which a change was made."""

    def __init__(self, batches: Batches, change: Callable[[Batch], object]) -> None:
        self._batches = batches
        self._change = change

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            self._change(batch)
            yield batch


def one_bit(batch: Batch) -> None:
    batch["depth_left"].view(torch.uint8)[-1, -1, 0, 0] ^= 1


def one_clip_less(batch: Batch) -> None:
    for name in batch:
        batch[name] = batch[name][1:]


def no_mask(batch: Batch) -> None:
    del batch["mask"]


@pytest.mark.parametrize(
    ("change", "said"),
    [(one_bit, "depth_left of"), (one_clip_less, "clips lacking"), (no_mask, "a batch of")],
)
def test_a_loader_that_does_less_work_is_found(
    works: dict[str, Path], change: Callable[[Batch], None], said: str
) -> None:
    memmap = TARTANAIR.loaders["memmap"]

    def open_batches(folder: Path, clips: Sequence[Clip], settings: Settings) -> Batches:
        return Changed(memmap.open(folder, clips, settings), change)

    found = problems((TARTANAIR, replace(memmap, open=open_batches)), works, SETTINGS["tartanair"])
    assert any(said in problem for problem in found)


@pytest.mark.parametrize("name", list(RGBD.loaders))
def test_a_frame_is_resized_as_often_as_its_kind_says(
    works: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader, settings = RGBD.loaders[name], replace(SETTINGS["rgbd"], features=(rgbd.DEPTH,))
    if missing := loader.missing():
        pytest.skip(missing)
    recordings = recordings_of(RGBD, works)
    folder = prepared(loader, recordings, works["rgbd"], settings)
    resized = []
    original = rgbd.RESIZE[rgbd.DEPTH]

    def counting(depth: Any) -> Any:
        resized.append(depth.shape)
        return original(depth)

    monkeypatch.setitem(rgbd.RESIZE, rgbd.DEPTH, counting)
    clips = recordings.clips(settings.clip_len, settings.stride)
    assert sum(len(batch["start"]) for batch in loader.open(folder, clips, settings)) == 9
    # Of 13 frames, one is alone in its recording and in no clip: a loader may leave it out. A trial
    # call of a `frame_transform` is repeated, to see that it gives the same.
    assert len(resized) in {rgbd.ONCE: (12, 13, 15), rgbd.PER_CLIP: (2 * 9,)}[loader.kind]


def test_frames_are_resized_alike_in_clips_and_alone() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, 480, 640, 3), np.uint8)
    depth = rng.integers(0, 65_536, (2, 480, 640), np.uint16)
    clip = rgbd.resize_clip({rgbd.IMAGE: images, rgbd.DEPTH: depth})
    for i in range(2):
        frame = rgbd.resize({rgbd.IMAGE: images[i], rgbd.DEPTH: depth[i]})
        assert all((frame[name] == clip[name][i]).all() for name in frame)
    # That pixel has its middle 1.25 rows down and 3.75 columns across.
    assert clip[rgbd.DEPTH][0, 0, 1] == np.float32(0.001) * np.float32(depth[0, 1, 3])
    assert abs(clip[rgbd.IMAGE].mean() - images.mean()) < 0.5
