"""Replay buffers of Diffusion Policy and UMI: Zarr groups, which need Python 3.11."""

from __future__ import annotations

import importlib.util
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tests.formats.cases import Case, Episodes
from tests.golden.make_replay_buffer import ENDS, FILE, arrays
from tests.kit import datasets


def write_buffer(
    store: Any, lengths: Sequence[int] = (4, 2, 7), *, zarr_format: Any = 2, spare: int = 0
) -> dict[str, Any]:
    """Write like ReplayBuffer.save_to_store; returns the arrays."""
    import numcodecs
    import zarr

    rng = np.random.default_rng(sum(lengths))
    ends = np.cumsum(lengths)
    total = int(ends[-1]) + spare
    arrays = {
        "action": rng.normal(size=(total, 2)).astype("<f4"),
        "img": rng.integers(0, 256, (total, 6, 8, 3)).astype("<f4"),
        "keypoint": rng.normal(size=(total, 9, 2)).astype("<f4"),
        "n_contacts": rng.integers(0, 9, (total, 1)).astype("<f8"),
    }
    root = zarr.create_group(store, zarr_format=zarr_format)
    meta, data = root.create_group("meta"), root.create_group("data")
    meta.create_array("episode_ends", data=ends.astype("<i8"), chunks=ends.shape)
    meta.create_array("success", data=ends % 2 == 0, chunks=ends.shape)
    blosc = numcodecs.Blosc(cname="zstd", clevel=5, shuffle=numcodecs.Blosc.BITSHUFFLE)
    for name, array in arrays.items():
        options = {"compressors": blosc} if zarr_format == 2 else {}
        data.create_array(name, data=array, chunks=(3, *array.shape[1:]), **options)
    return arrays


def _episodes(name: str, ends: Sequence[int], columns: Mapping[str, Any]) -> Episodes:
    return {
        f"{name}/{number:06d}": datasets.columns(**{n: c[a:b] for n, c in columns.items()})
        for number, (a, b) in enumerate(pairwise((0, *ends)))
    }


def _cup(folder: Path) -> Episodes:
    """The golden file, written by zarr 2."""
    shutil.copy(FILE, folder / "cup.zarr.zip")
    return _episodes("cup", ENDS, arrays())


def _damaged_zip(path: Path) -> None:
    """Replaces the chunk of rows 8 and 9, of the last episode, with invalid data."""
    with zipfile.ZipFile(path) as file:
        values = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in values.items():
            file.writestr(name, b"no blosc frame" if name == "data/img/2.0.0.0" else data)


def _raw(folder: Path, zarr_format: int) -> Episodes:
    """Images without compression; a file per chunk of one frame in version 2, four in version 3."""
    import zarr

    rng = np.random.default_rng(zarr_format)
    images, action = rng.integers(0, 256, (11, 40, 50, 3), np.uint8), rng.random((11, 2))
    group = zarr.open_group(folder / "a.zarr", mode="w", zarr_format=zarr_format)
    chunks = (1 if zarr_format == 2 else 4, 40, 50, 3)
    group.create_array("data/action", data=action, chunks=(4, 2))
    group.create_array("data/img", data=images, chunks=chunks, compressors=None)
    group.create_array("meta/episode_ends", data=np.array([5, 11]), chunks=(2,))
    return _episodes("a", (5, 11), {"action": action, "img": images})


_RAW: dict[str, Any] = {
    "source": "ZarrSource",
    "bad": "a/000001",
    "named": "a.zarr",
    "packages": {"zarr": "'zarr>=3.1.3'"},
    "inventory": """
format    zarr: 1 group with data/ and meta/episode_ends
feature   action  float64 [2]  action  from data/action
feature   img  uint8 [40, 50, 3]  image  from data/img
""",
}
CASES: dict[str, Case] = {}
if importlib.util.find_spec("zarr") is not None:
    CASES["zarr"] = Case(
        source="ZarrSource",
        write=_cup,
        bad="cup/000002",
        file="cup.zarr.zip",
        damage=_damaged_zip,
        packages={"zarr": "'zarr>=3.1.3'"},
        inventory="""
format    zarr: 1 group with data/ and meta/episode_ends
feature   action  float32 [2]  action  from data/action
feature   img  uint8 [4, 4, 3]  image  from data/img
""",
    )
    for version, file in ((2, "data/img/8.0.0.0"), (3, "data/img/c/2/0/0/0")):
        CASES[f"zarr {version}"] = Case(
            write=partial(_raw, zarr_format=version), file=f"a.zarr/{file}", **_RAW
        )
