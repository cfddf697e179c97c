"""Every loader of the comparison gives exactly the baseline's clips, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.tartanair.compare.check import check
from benchmarks.tartanair.compare.grid import LOADERS
from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.generate import generate
from benchmarks.tartanair.loaders.base import USUAL, Batch, Batches, Loader, Settings, prepared
from benchmarks.timing import run_job

# Other packages' loaders leave files open and warn.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SETTINGS = replace(USUAL, clip_len=3, batch_size=4, shuffle_buffer=5)
SOME = ("depth_left", "image_left")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with recordings in `tree`."""
    work = tmp_path_factory.mktemp("work")
    generate(work / "tree", episodes=[7, 9, 2, 5], height=16, width=24)
    return work


@pytest.fixture(params=list(LOADERS))
def loader(request: pytest.FixtureRequest) -> Loader:
    if missing := LOADERS[request.param].missing():
        pytest.skip(missing)
    return LOADERS[request.param]


def problems(loader: Loader, work: Path, settings: Settings) -> list[str]:
    if loader.alone:
        places = {"root": str(work / "tree"), "work": str(work)}
        job: dict[str, Any] = {"do": "check", "loader": loader.name, **places}
        job |= {"settings": asdict(settings), "epochs": 2}
        result = run_job("benchmarks.tartanair.compare.row", job, 60)
        return result["problems"] if "problems" in result else [result["error"]]
    recordings = Recordings.open(work / "tree", USUAL.features)
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
def test_every_order(loader: Loader, work: Path, shuffle: str, changes: dict[str, Any]) -> None:
    settings = replace(SETTINGS, shuffle=shuffle, **changes)
    if reason := loader.refuses(settings):
        pytest.skip(reason)
    assert problems(loader, work, settings) == []


def test_some_features(loader: Loader, work: Path) -> None:
    assert problems(loader, work, replace(SETTINGS, features=SOME)) == []


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
    work: Path, change: Callable[[Batch], None], said: str
) -> None:
    memmap = LOADERS["memmap"]

    def open_batches(folder: Path, clips: Sequence[Clip], settings: Settings) -> Batches:
        return Changed(memmap.open(folder, clips, settings), change)

    found = problems(replace(memmap, open=open_batches), work, SETTINGS)
    assert any(said in problem for problem in found)
