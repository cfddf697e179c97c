"""Loader arguments, in named and random combinations, compared with the model of clips."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

import seqrecord
from seqrecord import CenterCrop, EngineOptions, HorizontalFlip, Latest, Next, RandomCrop, Seconds
from seqrecord.samples import dilate, reverse, skip_last
from tests.core.training.clip_model import (
    FEATURES,
    GROUPS,
    IMAGES,
    SPARSE,
    Case,
    check_case,
    write_all,
)

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

SPAN = 16  # maximum frames of windows before and after a clip's start


@pytest.fixture(scope="module", params=["one", "several"])
def records(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> seqrecord.Dataset:
    """All features in one group, or in several."""
    folder = tmp_path_factory.mktemp("combinations") / "records"
    return seqrecord.open(write_all(folder, GROUPS if request.param == "several" else None))


def random_case(rng: random.Random, *, rated: bool = False) -> Case:
    """A random case; with `rated`, windows are in seconds and frame rates differ."""

    def maybe(share: float) -> bool:
        return rng.random() < share

    names = rng.sample(FEATURES, len(FEATURES))
    options: dict[str, Any] = {
        "features": [*dict.fromkeys([*names[: rng.randrange(1, len(names))], "id"])],
        "seed": rng.randrange(100),
        "shuffle": maybe(0.8),
        "batch_size": rng.choice([None, 1, 3, 4, 7]),
    }
    windows: dict[str, Any] = {}
    if maybe(0.6):
        windows = {
            name: rng.sample(range(-SPAN // 2, SPAN), rng.randrange(1, 5))
            if maybe(0.5)
            else range(rng.randrange(-4, 1), rng.randrange(1, 6))
            for name in options["features"]
            if maybe(0.6)
        } or {"id": [0, 1]}
    if rated:
        tenths = {name: rng.sample(range(-3, 6), rng.randrange(1, 4)) for name in FEATURES}
        windows = {
            name: Seconds([i / 10 for i in tenths[name]])
            for name in options["features"]
            if name == "id" or maybe(0.6)
        }
    is_plain = not windows
    if is_plain or maybe(0.5):
        options["clip_len"] = rng.randrange(1, 7)
        options["dilation"] = rng.choice([1, 1, 2, 3])
    if maybe(0.4):
        options["stride"] = rng.randrange(1, 12)
    if maybe(0.4):
        options["pad"], is_plain = rng.choice(["edge", "before", "after"]), False
    if maybe(0.3):
        options["samples"] = [skip_last(rng.randrange(1, 6))]
    for name in SPARSE:
        if name in options["features"] and maybe(0.9):
            age, unknown = rng.choice([None, 2, 40]), rng.choice([None, "zeros"])
            window = windows.get(name)
            windows[name] = Latest(window, max_age=age, unknown=unknown)
            if maybe(0.5):
                windows[name] = Next(window, max_wait=age, unknown=unknown)
    if windows:
        options["windows"] = windows
    if maybe(0.5):
        options["metadata"] = rng.sample(["task", "arm", "rate"], rng.randrange(1, 4))
    if maybe(0.6):
        forms = {n: rng.choice(["list", "pad", "nested", (5,)]) for n in ("imu", "force")}
        forms["grid"] = rng.choice(["list", (3, 3), (3, 4)])
        ragged = {name: form for name, form in forms.items() if name in options["features"]}
        is_one_word = "grid" not in ragged and maybe(0.3)
        options["ragged"] = rng.choice(["list", "pad", "nested"]) if is_one_word else ragged
    if maybe(0.3):
        options["episodes"] = rng.choice(["lab/*", ["kitchen/1", "kitchen/3"], [3, 0]])
    if maybe(0.4) and set(IMAGES) & set(options["features"]):
        crop = rng.choice([RandomCrop((5, 7)), CenterCrop((12, 3))])
        options["clip_transform"] = rng.sample([crop, HorizontalFlip(0.5)], rng.randrange(1, 3))
    engine: dict[str, Any] = {"num_threads": rng.choice([1, 2, 3])}
    if options["batch_size"] and maybe(0.3):
        options["order"] = "sequences"
    else:
        if is_plain and maybe(0.5):
            options["dilation"] = 1
            chosen = dilate(*rng.choice([(1, 2), (3, 1, 2), (2,)]))
            functions = [chosen, reverse(rng.choice([0.0, 0.5, 1.0]))]
            options["samples"] = [*options.get("samples", []), *functions]
        if options["shuffle"] and maybe(0.5):
            engine |= {"num_cursors": rng.choice([1, 5]), "shuffle_buffer": rng.choice([1, 5, 64])}
    options["engine"] = EngineOptions(**engine)
    if maybe(0.2):
        options["device"] = "cpu"
    if maybe(0.2):
        options["memory_limit"] = "least"
    if maybe(0.3):
        options["rank"] = rng.choice([(0, 2), (1, 2), (2, 3)])
    return Case(options)


def mostly_slow(seeds: range, count: int) -> list[Any]:
    """Marks all but the first `count` seeds as slow."""
    return [*seeds[:count], *(pytest.param(s, marks=pytest.mark.slow) for s in seeds[count:])]


def run(records: seqrecord.Dataset, seed: int, *, rated: bool = False) -> None:
    rng = random.Random(seed)
    case = random_case(rng, rated=rated)
    check_case(records, case, seed=seed, kind=rng.choice(["pipe", "stream", "stream", "node"]))


@pytest.mark.parametrize("seed", mostly_slow(range(14), 3))
def test_random_cases(records: seqrecord.Dataset, seed: int) -> None:
    run(records, seed)


@pytest.mark.parametrize("seed", mostly_slow(range(2000, 2008), 3))
def test_episodes_of_several_rates(records: seqrecord.Dataset, seed: int) -> None:
    run(records, seed, rated=True)


def named_cases() -> Iterator[Any]:
    """Each case of CASES with each kind of loader that supports it."""
    for name, case in CASES.items():
        yield name, "pipe"
        if not {"order", "memory_limit"} & case.keys():
            for kind in ("workers", "map style", "collated"):
                yield pytest.param(name, kind, marks=() if name == FAST_CASE else pytest.mark.slow)


@pytest.mark.parametrize("records", ["several"], indirect=True)
@pytest.mark.parametrize(("name", "kind"), list(named_cases()))
def test_named_cases(records: seqrecord.Dataset, name: str, kind: str) -> None:
    options = CASES[name] | ({"batch_size": 3} if kind in ("pipe", "workers") else {})
    check_case(records, Case(options), kind=kind)


@pytest.mark.slow
@pytest.mark.parametrize("tens", range(10))
def test_many_random_cases(records: seqrecord.Dataset, tens: int) -> None:
    for seed in range(1000 + 10 * tens, 1010 + 10 * tens):
        run(records, seed, rated=tens > 7)
