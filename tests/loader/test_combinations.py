"""Loader arguments in named combinations, compared with the model of clips.

`test_loader_machine` draws combinations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import seqrecord
from seqrecord import CenterCrop, Latest, Next
from seqrecord.samples import dilate, reverse
from tests.kit.datasets import written_once
from tests.loader.clip_model import GROUPS, SPARSE, Case, check_case, write_all

PLAIN: dict[str, Any] = {"clip_len": 3, "features": ["image", "flow", "id"]}
LATEST = dict.fromkeys(SPARSE, Latest())
VALUES: dict[str, Any] = {
    "clip_len": 3,
    "features": ["image", "note", "imu", "blob", "grid", "id"],
    "metadata": ["task", "rate", "arm"],
}
CASES: dict[str, dict[str, Any]] = {
    "windows": {
        **PLAIN,
        "windows": {"image": [-1, 0], "id": range(16), "flow": [-4, -2, 3]},
        "pad": "edge",
    },
    "lists": VALUES,
    "padded": {**VALUES, "ragged": {"imu": "pad", "grid": (3, 4)}, "dilation": 2},
    "nested": {**VALUES, "ragged": {"imu": "nested", "grid": (3, 3)}},
    "padded at load": {
        **VALUES,
        "ragged": {"imu": "pad", "grid": (3, 4)},
        "stride": 3,
    },
    "latest": {"clip_len": 3, "windows": LATEST},
    "sparse and complete": {
        "clip_len": 2,
        "windows": {"gps": Latest(), "id": Latest()},  # no frame lacks `id`
        "features": ["gps", "id"],
    },
    "latest, strided": {"clip_len": 2, "stride": 5, "windows": LATEST, "features": [*SPARSE, "id"]},
    "latest of limited age": {
        "clip_len": 3,
        "dilation": 2,
        "windows": {
            n: Latest(max_age=age) for n, age in {"gps": 6, "text": 40, "force": 2}.items()
        },
    },
    "zeros": {"clip_len": 3, "windows": dict.fromkeys(SPARSE, Latest(max_age=2, unknown="zeros"))},
    "latest or zeros, least memory": {
        "clip_len": 3,
        "features": [*SPARSE, "id"],
        "windows": dict.fromkeys(SPARSE, Latest(max_age=1, unknown="zeros")),
        "ragged": "pad",
        "memory_limit": "least",
    },
    "latest with all features": {"clip_len": 2, "windows": {"gps": Latest(), "text": Latest()}},
    "latest for single frames": {
        "windows": {"gps": Latest(max_age=2, unknown="zeros"), "text": Latest(max_age=9)},
        "features": ["gps", "text", "id"],
    },
    "squeezed": {
        "windows": {"image": [-1, 0], "gps": Latest(), "id": [0]},
        "features": ["image", "note", "imu", "grid", "gps", "id"],
        "pad": "edge",
        "squeeze_time": True,
        "ragged": {"imu": "pad"},
    },
    "squeezed and nested": {
        **VALUES,
        "clip_len": 1,
        "squeeze_time": True,
        "ragged": {"imu": "nested"},
    },
    "latest in windows": {
        "clip_len": 2,
        "windows": {
            "gps": Latest([-4, 0]),
            "image": [0],
            "text": Latest([1, 6]),
            "force": Latest(),
        },
        "pad": "edge",
    },
    "next, or zeros": {
        "clip_len": 3,
        "windows": dict.fromkeys(SPARSE, Next(max_wait=2, unknown="zeros")),
    },
    "next and latest, least memory": {
        "clip_len": 2,
        "windows": {"gps": Next(), "text": Next(max_wait=5), "force": Latest()},
        "features": [*SPARSE, "id"],
        "memory_limit": "least",
    },
    "next in windows": {
        "clip_len": 2,
        "windows": {"gps": Next([-4, 0]), "image": [0], "text": Next([-6, 1]), "force": Next()},
        "pad": "edge",
    },
    "sequence rows": {**PLAIN, "order": "sequences", "pad": "edge", "clip_len": 5},
    "sequence rows of windows": {
        "features": ["image", "id"],
        "windows": {"image": [-1, 0], "id": range(4)},
        "order": "sequences",
        "shuffle": False,
    },
    "sequence rows of crops": {**PLAIN, "order": "sequences", "clip_transform": CenterCrop((2, 4))},
    "overlapping sequence rows": {**PLAIN, "order": "sequences", "dilation": 2, "stride": 1},
    "backwards": {
        "clip_len": 3,
        "features": ["gps", "text", "id"],
        "samples": [dilate(1, 2), reverse(0.5)],
        "windows": {"gps": Latest(), "text": Latest()},
    },
    "backwards and padded": {
        "clip_len": 4,
        "features": ["image", "id"],
        "samples": [dilate(1, 2, 5), reverse(0.5)],
        "pad": "edge",
    },
}

FAST_CASE = "squeezed"
"""Other cases are fast tests only for `pipe`: values do not depend on the loader."""


records = written_once(write_all, GROUPS, open_it=True)


def named_cases() -> Iterator[Any]:
    """Each case of CASES with each kind of loader that supports it."""
    for name, case in CASES.items():
        yield name, "pipe"
        if not {"order", "memory_limit"} & case.keys():
            for kind in ("workers", "map style", "collated"):
                yield pytest.param(name, kind, marks=() if name == FAST_CASE else pytest.mark.slow)


@pytest.mark.parametrize(("name", "kind"), list(named_cases()))
def test_named_cases(records: seqrecord.Dataset, name: str, kind: str) -> None:
    options = CASES[name] | ({"batch_size": 3} if kind in ("pipe", "workers") else {})
    check_case(records, Case(options), kind=kind)
