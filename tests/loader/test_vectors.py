"""place, pad_to and normalize of loaders, against NumPy on the stored values."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import ClipError, Normalization, SeqRecordIterableDataset, SeqRecordPipe, Vector
from seqrecord.samples import dilate, reverse
from tests.cuda.side_streams import NO_GPU, device_of
from tests.kit.clip_data import digests, with_vectors

LENGTHS = (13, 9, 20)
STEPS: dict[str, Any] = {
    "place": {"action": [4, 0, 2, 9, 1], "flags": [5, 3]},
    "pad_to": {"action": 12, "state": 4, "counts": 2},
    "normalize": {
        "action": "mean_std",
        "state": "quantiles",
        "counts": "mean_std",
        "id": "quantiles",
    },
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place, rng = tmp_path_factory.mktemp("vectors") / "records", np.random.default_rng(3)
    codecs = {"image": "balanced", "points": "balanced"}
    points = {"points": {"shape": (None,)}}
    with seqrecord.SeqRecordWriter(place, codecs=codecs, chunk_frames=4, features=points) as writer:
        for number, length in enumerate(LENGTHS):
            with writer.episode(f"e/{number}") as episode:
                for frame in range(length):
                    action = rng.normal(3, 2, 5).astype("f4")
                    action[3] = 1.5  # always: divided by 1
                    episode.append(
                        {
                            "action": action,
                            "state": rng.normal(-4, 9, 3),
                            "counts": rng.integers(0, 1 << 40, 2),
                            "flags": rng.integers(0, 2, 2).astype(bool),
                            "id": np.int16(frame),
                            "wide": rng.normal(size=(2, 3)),
                            "image": rng.integers(0, 256, (6, 8, 3), np.uint8),
                            "points": rng.normal(size=(frame % 3 + 1,)).astype("f4"),
                            "note": f"{number} {frame}",
                        }
                    )
    return place


def made(name: str, stored: torch.Tensor, statistics: Any, steps: Mapping[str, Any]) -> Any:
    """Expected batch values from stored values, by NumPy in float64."""
    values, mode = stored.cpu().numpy(), steps.get("normalize", {}).get(name)
    if mode is not None:
        values = values.astype(np.float64)
        low, high = statistics[name].quantile([0.01, 0.99])
        offset = statistics[name].mean if mode == "mean_std" else (low + high) / 2
        scale = statistics[name].std if mode == "mean_std" else (high - low) / 2
        scale = np.where(scale > 0, scale, 1.0)
        values = ((values - offset) / scale).astype(np.float32)
    places = steps.get("place", {}).get(name)
    size = steps.get("pad_to", {}).get(name, max(places, default=0) + 1 if places else None)
    if size is None:
        return values
    whole = np.zeros((*values.shape[:-1], size), values.dtype)
    whole[..., places or range(values.shape[-1])] = values
    return whole


def check(batch: dict[str, Any], plain: dict[str, Any], statistics: Any, steps: Any) -> None:
    masks = {f"{name}_dim_is_pad" for name in {**steps.get("place", {}), **steps.get("pad_to", {})}}
    assert batch.keys() == plain.keys() | masks
    for name, stored in plain.items():
        if not isinstance(stored, torch.Tensor):
            assert name == "points" or batch[name] == stored
            continue
        expected, got = made(name, stored, statistics, steps), batch[name].cpu().numpy()
        assert got.dtype == expected.dtype, name
        np.testing.assert_allclose(got, expected, rtol=3e-6, atol=3e-6, err_msg=name)
    for mask in masks & batch.keys():
        name = mask.removesuffix("_dim_is_pad")
        places = steps.get("place", {}).get(name, range(plain[name].shape[-1]))
        assert (batch[mask].dtype, batch[mask].device.type) == (torch.bool, "cpu")
        rows = batch[mask].reshape(-1, batch[mask].shape[-1]).tolist()
        assert rows == [[i not in places for i in range(len(rows[0]))]] * len(rows)


WINDOWS = {"windows": {"action": range(-2, 5), "id": [0, 1]}, "pad": "edge", "squeeze_time": True}
SETTINGS: list[dict[str, Any]] = [
    {"batch_size": 5},
    {"batch_size": 4, "clip_len": None, **WINDOWS},
    {"batch_size": 3, "windows": {"state": seqrecord.Latest()}, "shuffle": False},
    {
        "batch_size": 6,
        "clip_transform": {"image": [seqrecord.RandomCrop(4), seqrecord.HorizontalFlip(0.5)]},
    },
    {"batch_size": 6, "ragged": "pad", "episodes": [0, 2]},
    {"features": ["action", "state", "counts", "flags", "id"]},
    {"batch_size": 64, "memory_limit": "1MiB"},
    {"batch_size": 3, "samples": [dilate(1, 2), reverse(0.5)], "stride": 2},
    {"batch_size": 2, "order": "sequences"},
]


def settings_and_streams() -> Iterator[Any]:
    """All settings on the host; in the fast run, a subset for each stream of a device."""
    for number, settings in enumerate(SETTINGS):
        yield settings, None
        yield pytest.param(settings, "cpu", marks=pytest.mark.slow if number else ())
        yield pytest.param(settings, "late", marks=() if number in (1, 3) else pytest.mark.slow)
        yield pytest.param(settings, "cuda", marks=NO_GPU)


@pytest.mark.parametrize(("settings", "stream"), list(settings_and_streams()))
def test_batches_equal_numpy(path: Path, settings: dict[str, Any], stream: str | None) -> None:
    with device_of(stream) if stream else nullcontext() as device:
        options = {"clip_len": 3, "seed": 4, "device": device, **settings}
        plain = SeqRecordPipe(path, **options)
        moved = SeqRecordPipe(path, **options, **with_vectors(STEPS))
        assert "action: float32 [" in repr(moved)
        for _ in range(2):  # frames stay in memory for the second epoch
            found = list(zip(moved, plain, strict=True))  # no kept batch is overwritten
            assert found
            for batch, expected in found:
                check(batch, expected, plain.dataset.statistics, STEPS)
        assert moved.stats()["frames_decoded"] == plain.stats()["frames_decoded"]


SLOW_SEEDS = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 8)]


@pytest.mark.parametrize("seed", [*range(3), *SLOW_SEEDS])
def test_random_steps(path: Path, seed: int) -> None:
    """Any places, sizes, modes, windows and batch sizes; three loaders."""
    rng = np.random.default_rng(seed)
    steps: dict[str, Any] = {"place": {}, "pad_to": {}, "normalize": {}}
    for name, count in {"action": 5, "state": 3, "counts": 2, "flags": 2}.items():
        most = int(rng.integers(count, 20))
        if rng.random() < 0.6:
            steps["place"][name] = rng.permutation(most)[:count].tolist()
        if rng.random() < 0.6:
            steps["pad_to"][name] = most + int(rng.integers(0, 3))
        if rng.random() < 0.6 and name != "flags":
            steps["normalize"][name] = rng.choice(["mean_std", "quantiles"]).item()
    settings: dict[str, Any] = {"clip_len": int(rng.integers(1, 5)), "pad": "edge"}
    if rng.random() < 0.5:
        settings["windows"] = {"action": rng.integers(-4, 9, 3).tolist()}
    size, statistics = int(rng.integers(1, 9)), seqrecord.open(path).statistics
    of_batches = {**settings, "seed": seed, "batch_size": size}
    stored, moved = (
        SeqRecordIterableDataset(path, **of_batches, **more) for more in ({}, with_vectors(steps))
    )
    for plain, batch in zip(stored, moved, strict=True):
        check(batch, plain, statistics, steps)
    clips, others = (
        seqrecord.SeqRecordMapDataset(path, **settings, **more)
        for more in ({}, with_vectors(steps))
    )
    numbers = rng.integers(0, len(clips), size).tolist()
    plain, batch = (seqrecord.collate(data.__getitems__(numbers)) for data in (clips, others))
    check(batch, plain, statistics, steps)
    check(others[numbers[0]], clips[numbers[0]], statistics, steps)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_large_vectors_are_written_in_blocks(path: Path, device: str | None) -> None:
    steps: dict[str, Any] = {"place": {"action": [4, 0, 2, 9, 1]}, "pad_to": {"action": 50_000}}
    settings: dict[str, Any] = {"clip_len": 4, "batch_size": 16, "device": device}
    settings |= {"features": ["action", "state"], "episodes": [0, 2]}
    plain, moved = (
        SeqRecordPipe(path, **settings),
        SeqRecordPipe(path, **settings, **with_vectors(steps)),
    )
    for batch, stored in zip(moved, plain, strict=True):
        check(batch, stored, plain.dataset.statistics, steps)


def test_functions_receive_stored_values(path: Path) -> None:
    """A loader places and normalizes results of functions, including new features."""

    def relative(clip: Any, _: Any) -> Any:
        return {**clip, "delta": clip["action"] - clip["action"][:1]}

    normal = Normalization("quantiles", np.full(5, 0.5), np.arange(1.0, 6.0))
    settings: dict[str, Any] = {"clip_len": 3, "batch_size": 4, "clip_transform": relative}
    settings["features"] = ["action", "state"]
    steps: dict[str, Any] = {
        "pad_to": {"delta": 7},
        "normalize": {"delta": normal, "state": "mean_std"},
    }
    plain, moved = (
        SeqRecordPipe(path, **settings),
        SeqRecordPipe(path, **settings, **with_vectors(steps)),
    )
    for batch, stored in zip(moved, plain, strict=True):
        delta = (stored["delta"].numpy() - np.float32(0.5)) / np.arange(1, 6, dtype="f4")
        np.testing.assert_array_equal(batch["delta"][..., :5].numpy(), delta)
        assert not batch["delta"][..., 5:].any()
        state = plain.dataset.statistics["state"].normalize(stored["state"]).float()
        np.testing.assert_allclose(batch["state"], state, rtol=1e-6)
        assert torch.equal(batch["action"], stored["action"])
        undone = normal.undo(batch["delta"][..., :5])
        np.testing.assert_allclose(undone, stored["delta"], atol=1e-5)


def test_steps_after_a_frame_transform(path: Path) -> None:
    """Stored statistics describe features unchanged by the transform."""

    def whole(frame: dict[str, Any]) -> dict[str, Any]:
        return {"action": frame["action"], "state": frame["state"] * 2}

    settings: dict[str, Any] = {"clip_len": 3, "batch_size": 4, "frame_transform": whole}
    vectors = {"state": Vector(pad_to=5), "action": Vector(normalize="mean_std")}
    pipe = SeqRecordPipe(path, **settings, vectors=vectors)
    statistics = pipe.dataset.statistics
    for batch, stored in zip(pipe, SeqRecordPipe(path, **settings), strict=True):
        assert torch.equal(batch["action"], statistics["action"].normalize(stored["action"]))
        assert torch.equal(batch["state"][..., :3], stored["state"])
    with pytest.raises(ClipError, match="a function changes this feature") as info:
        SeqRecordPipe(path, **settings, vectors={"state": Vector(normalize="mean_std")})
    assert info.value.feature == "state"
    own = SeqRecordPipe(path, **settings).compute_statistics()["state"]
    vectors = {"state": Vector(normalize=Normalization.of(own))}
    pipe = SeqRecordPipe(path, **settings, vectors=vectors)
    assert abs(float(torch.cat([batch["state"] for batch in pipe]).mean())) < 0.5


def test_loaders_with_steps_work_in_other_processes(path: Path) -> None:
    settings: dict[str, Any] = {"clip_len": 3, "batch_size": 4, "shuffle": False}
    settings |= with_vectors(STEPS)
    settings |= {"last_batch": "keep", "features": ["action", "state", "counts", "flags", "id"]}
    loader = SeqRecordIterableDataset(path, **settings)
    copied = pickle.loads(pickle.dumps(loader))
    assert repr(copied) == repr(loader)
    assert copied.options.vectors == loader.options.vectors
    workers = DataLoader(loader, batch_size=None, num_workers=1)
    assert (
        digests(workers) == digests(SeqRecordIterableDataset(path, **settings)) == digests(copied)
    )


def test_wrong_steps(path: Path, tmp_path: Path) -> None:
    two = Normalization("mean_std", np.zeros(2), np.ones(2))
    wrong: list[Any] = [[0, 1, 2, 3, 3], [0, 1, 2, 3, -1], 3, {0, 1, 2, 3, 4}, [True, 2, 3, 4, 5]]
    pad: dict[str, Any] = {"ragged": "pad"}
    errors: list[tuple[dict[str, Any], str, str | None]] = [
        ({"place": {"action": [0, 1, 2, 3]}}, "an index for each value", "action"),
        *(({"place": {"action": item}}, "place of a Vector is not valid", None) for item in wrong),
        ({"vectors": ["action"]}, "vectors is not valid", None),
        ({"vectors": {"action": 32}}, "vectors is not valid", None),
        ({"place": {"other": [0]}}, "clips have no such feature", "other"),
        ({"place": {"action": [0, 1, 2, 3, 9]}, "pad_to": {"action": 9}}, "smaller than", "action"),
        ({"pad_to": {"action": 4}}, "pad_to is smaller than the feature", "action"),
        ({"pad_to": {"action": 0}}, "pad_to of a Vector is too small", None),
        *(
            ({"pad_to": {name: 4}}, "pad_to is for vectors", name)
            for name in ("image", "id", "note", "points")
        ),
        ({"pad_to": {"points": 4}, **pad}, "pad_to is for vectors", "points"),
        *(
            ({"normalize": {name: "mean_std"}, **pad}, "is for vectors", name)
            for name in ("points", "points_mask", "image", "wide", "flags")
        ),
        ({"normalize": {"action": "min_max"}}, "normalize of a Vector is not valid", None),
        ({"vectors": {"action": Vector(statistics="mix")}}, "is for mixes", None),
        ({"normalize": {"action": two}}, "channels", "action"),
    ]
    for steps, problem, feature in errors:
        with pytest.raises(ClipError, match=problem) as info:
            SeqRecordPipe(path, clip_len=2, **with_vectors(steps))
        assert info.value.feature == feature
        assert info.value.expected

    normalizations: list[tuple[Any, Any, Any]] = [("min_max", [0], [1]), (["mean_std"], [0], [1])]
    numbers: list[tuple[Any, Any]] = [("a", "b"), ([0], [0]), ([np.nan], [1]), ([0, 1], [1])]
    for one in [*normalizations, *(("mean_std", *pair) for pair in [*numbers, (0, 1), ([], [])])]:
        with pytest.raises(ClipError, match="normalization"):
            Normalization(*one)

    writer = seqrecord.SeqRecordWriter(tmp_path / "records", statistics=False)
    with writer, writer.episode("a") as episode:
        for _ in range(3):
            frame = {"action": np.ones(3), "action_dim_is_pad": np.ones(3)}
            episode.append({**frame, "depth": np.ones((4, 4), np.float32)})
    normal = Vector(normalize="mean_std")
    with pytest.raises(ClipError, match=r"needs statistics.*seqrecord stats"):
        SeqRecordPipe(tmp_path / "records", clip_len=1, vectors={"action": normal})
    with pytest.raises(ClipError, match="pad_to is for vectors"):
        SeqRecordPipe(tmp_path / "records", clip_len=1, vectors={"depth": Vector(pad_to=8)})
    with pytest.raises(ClipError, match="name of a batch's extra column"):
        SeqRecordPipe(tmp_path / "records", clip_len=1, vectors={"action": Vector(pad_to=3)})
