"""Every loader of the comparison gives exactly the baseline's clips, bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.tartanair.compare.check import check
from benchmarks.tartanair.compare.children import run_task
from benchmarks.tartanair.compare.prepared import folder_of
from benchmarks.tartanair.compare.recordings import Clip
from benchmarks.tartanair.compare.row import Task
from benchmarks.tartanair.compare.services import AZURE, Services
from benchmarks.tartanair.compare.tree import Tree
from benchmarks.tartanair.generate import generate
from benchmarks.tartanair.loaders.base import Batch, Batches, Loader, Place, Settings
from benchmarks.tartanair.loaders.registry import all_loaders
from tests.services import Azurite, need_azurite, need_mount

# Other people's loaders leave files open and warn of this and that.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SETTINGS = Settings(clip_len=3, batch_size=4, shuffle_buffer=5)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compare")


@pytest.fixture(scope="module")
def tree(work: Path) -> Tree:
    generate(work / "tree", episodes=[7, 9, 2, 5], height=16, width=24)
    return Tree.open(work / "tree", SETTINGS.features, work)


@pytest.fixture(params=list(all_loaders()))
def loader(request: pytest.FixtureRequest) -> Loader:
    made = all_loaders()[request.param]
    if missing := made.missing():
        pytest.skip(missing)
    return made


def test_clips_apart_of_some_features(loader: Loader, tree: Tree, work: Path) -> None:
    settings = replace(SETTINGS, stride=2, features=("depth_left", "image_left"))
    assert problems(loader, tree, work, settings) == []


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", ["off", "buffer", "full"])
def test_every_order(loader: Loader, tree: Tree, work: Path, shuffle: str, workers: int) -> None:
    settings = replace(SETTINGS, shuffle=shuffle, workers=workers)
    if loader.only_features:
        settings = replace(settings, features=tuple(loader.only_features))
    if reason := loader.refuses(settings):
        pytest.skip(reason)
    assert problems(loader, tree, work, settings) == []


class Lossy:
    """Batches that some change has been made to."""

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
def test_a_loader_that_does_less_is_found_out(
    tree: Tree, work: Path, change: Callable[[Batch], None], said: str
) -> None:
    memmap = all_loaders()["memmap"]

    def open_batches(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
        return Lossy(memmap.open(place, clips, settings), change)

    found = check(replace(memmap, open=open_batches), tree, work, SETTINGS)
    assert any(said in problem for problem in found)


def problems(loader: Loader, tree: Tree, work: Path, settings: Settings) -> list[str]:
    if loader.only_features:
        settings = replace(settings, features=tuple(loader.only_features))
    if not loader.alone:
        return check(loader, tree, work, settings, epochs=2)
    result = run_task(replace(task_of(loader.name, settings, tree, work), epochs=2), SECONDS)
    return result["problems"] if "problems" in result else [result["error"]]


# Loaders that can read from Azure give exactly the baseline's clips from there, and no secrets

SECONDS = 60
OURS = [("seqrecord", storage) for storage in AZURE]
OTHERS = [
    (loader.name, storage)
    for loader in all_loaders().values()
    for storage in AZURE
    if storage in loader.storages and not loader.name.startswith("seqrecord")
]


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    need_azurite()
    with Services() as services:
        yield services


def test_who_reads_from_where() -> None:
    assert set(OTHERS) == {
        ("webdataset", "own"),
        ("litdata", "own"),
    }


@pytest.mark.service
@pytest.mark.parametrize(("name", "storage"), OURS + OTHERS)
def test_shuffled_with_workers(
    services: Services, tree: Tree, work: Path, name: str, storage: str
) -> None:
    shuffle = all_loaders()[name].shuffles[-1]
    settings = replace(SETTINGS, storage=storage, workers=2, shuffle=shuffle)
    assert problems_in(services, task_of(name, settings, tree, work)) == []


@pytest.mark.service
def test_the_original_from_a_mount(services: Services, tree: Tree, work: Path) -> None:
    need_mount()
    settings = replace(SETTINGS, storage="mount", workers=2)
    assert problems_in(services, task_of("original", settings, tree, work)) == []


def test_errors_hold_no_secrets(azurite: Azurite, container: str, tree: Tree, work: Path) -> None:
    if missing := all_loaders()["webdataset"].missing():
        pytest.skip(missing)
    task = replace(
        task_of("webdataset", replace(SETTINGS, storage="own"), tree, work),
        location=f"az://{container}/nothing",
        options={"connection_string": azurite.connection_string},
    )
    error = run_task(task, SECONDS)["error"]
    assert "nothing" in error
    assert azurite.key not in error
    assert "sig=" not in error


def test_secrets_are_taken_out_of_errors(tree: Tree, work: Path) -> None:
    task = task_of("KEY and ?sv=1&sig=SIGNED&se=2", SETTINGS, tree, work)  # no loader's name
    task = replace(task, options={"connection_string": "AccountName=me;AccountKey=KEY;"})
    assert run_task(task, SECONDS)["error"] == "KeyError: '… and ?sv=1&sig=…&se=2'"


def task_of(name: str, settings: Settings, tree: Tree, work: Path) -> Task:
    return Task(
        do="check",
        loader=name,
        settings=settings,
        root=str(tree.root),
        features=SETTINGS.features,
        work=str(work),
    )


def problems_in(services: Services, task: Task) -> list[str]:
    """Of a check that finds the loader's data in the service alone."""
    loader = all_loaders()[task.loader]
    if missing := loader.missing():
        pytest.skip(missing)
    made = run_task(replace(task, do="prepare"), SECONDS)
    assert "error" not in made, made["error"]
    tree = Tree.open(Path(task.root), task.features, Path(task.work))
    folder = folder_of(loader, tree, Path(task.work), task.settings)
    placed = services.place(task, folder)
    shutil.rmtree(folder)
    result = run_task(placed, SECONDS)
    return result["problems"] if "problems" in result else [result["error"]]
