"""Loaders that can read from Azure give exactly the baseline's clips from there, and no secrets."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.tartanair.compare.children import run_task
from benchmarks.tartanair.compare.prepared import folder_of
from benchmarks.tartanair.compare.row import Task
from benchmarks.tartanair.compare.services import AZURE, Services
from benchmarks.tartanair.compare.tree import Tree
from benchmarks.tartanair.generate import generate
from benchmarks.tartanair.loaders.base import Settings
from benchmarks.tartanair.loaders.registry import all_loaders
from tests.services import Azurite, need_azurite, need_mount

SETTINGS = Settings(clip_len=3, batch_size=4, shuffle_buffer=5)
SECONDS = 60
OURS = [("seqrecord", storage) for storage in AZURE]
OTHERS = [
    (loader.name, storage)
    for loader in all_loaders().values()
    for storage in AZURE
    if storage in loader.storages and not loader.name.startswith("seqrecord")
]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compare")


@pytest.fixture(scope="module")
def tree(work: Path) -> Tree:
    generate(work / "tree", episodes=[7, 9, 2, 5], height=16, width=24)
    return Tree.open(work / "tree", SETTINGS.features, work)


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    need_azurite()
    with Services() as services:
        yield services


def test_who_reads_from_where() -> None:
    assert set(OTHERS) == {
        ("zarr", "adlfs"),
        ("zarr", "obstore"),
        ("zarr-cached", "adlfs"),
        ("zarr-cached", "obstore"),
        ("hdf5", "adlfs"),
        ("webdataset", "own"),
        ("litdata", "own"),
        ("litdata-cut", "own"),
    }


@pytest.mark.service
@pytest.mark.parametrize(("name", "storage"), OURS + OTHERS)
def test_shuffled_with_workers(
    services: Services, tree: Tree, work: Path, name: str, storage: str
) -> None:
    shuffle = all_loaders()[name].shuffles[-1]
    settings = replace(SETTINGS, storage=storage, workers=2, shuffle=shuffle)
    assert problems(services, task_of(name, settings, tree, work)) == []


@pytest.mark.service
def test_the_original_from_a_mount(services: Services, tree: Tree, work: Path) -> None:
    need_mount()
    settings = replace(SETTINGS, storage="mount", workers=2)
    assert problems(services, task_of("original", settings, tree, work)) == []


@pytest.mark.parametrize(("name", "storage"), [("webdataset", "own"), ("hdf5", "adlfs")])
def test_errors_hold_no_secrets(
    azurite: Azurite, container: str, tree: Tree, work: Path, name: str, storage: str
) -> None:
    if missing := all_loaders()[name].missing():
        pytest.skip(missing)
    task = replace(
        task_of(name, replace(SETTINGS, storage=storage), tree, work),
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
        consumer="touch",
        root=str(tree.root),
        features=SETTINGS.features,
        work=str(work),
    )


def problems(services: Services, task: Task) -> list[str]:
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
