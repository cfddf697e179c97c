"""Robots of different vectors in one batch: pad_to, normalize, missing cameras, task numbers."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    ClipError,
    Normalization,
    SeqRecordIterableDataset,
    SeqRecordMix,
    SeqRecordWriter,
    Vector,
)
from seqrecord.samples import subset
from tests.cuda.side_streams import NO_GPU, STREAMS, device_of
from tests.kit.clip_data import begun, digests, resumed
from tests.kit.datasets import write_dataset

SIZES = {"arm": 6, "humanoid": 14, "second": 6}
CAMERAS = {"arm": ("top",), "humanoid": ("top", "wrist"), "second": ("wrist",)}
ROBOTS = {"arm": "so101", "humanoid": "aloha", "second": "so101"}
PLACES = {"arm": [0, 1, 2, 3, 4, 31]}
WEIGHTS = {"arm": 2, "humanoid": 1, "second": 1}
SHARES = {"arm": Fraction(1, 2), "humanoid": Fraction(1, 4), "second": Fraction(1, 4)}
SIZES_OF_MIX = {"action": 32, "state": 16}


def write_robot(
    path: Path, number: int, name: str, *, texts: bool = False, unit: str = "rad", **writer: Any
) -> None:
    rng, size = np.random.default_rng(number), SIZES[name]
    features = {"action": {"kind": "action", "unit": unit}}
    with SeqRecordWriter(path, chunk_frames=4, features=features, **writer) as open_one:
        for episode, length in enumerate((12, 17)):
            tasks = [f"{name} {task}" for task in range(episode + 1)] + ["all"]
            metadata: dict[str, Any] = {"robot_type": ROBOTS[name]}
            metadata |= {"tasks": tasks} if texts else {"task": tasks[-1 - episode]}
            with open_one.episode(f"{name}/{episode}", metadata=metadata) as frames:
                for frame in range(length):
                    frames.append(
                        {
                            "action": rng.normal(number, number + 1, size).astype("f4"),
                            "state": rng.normal(-number, 3, size),
                            "step": np.int64(frame),
                        }
                        | {c: rng.integers(0, 256, (4, 6, 3), np.uint8) for c in CAMERAS[name]}
                        | ({"task": tasks[frame % len(tasks)]} if texts else {})
                    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("robots")
    for number, name in enumerate(SIZES):
        write_robot(folder / name, number, name, texts=name == "humanoid")
    return folder


@pytest.fixture(params=[pytest.param(None, marks=pytest.mark.slow), *STREAMS])
def device(request: pytest.FixtureRequest) -> Iterator[str | None]:
    if request.param is None:
        yield None
        return
    with device_of(request.param) as device:
        yield device


def form(
    pad_to: dict[str, int] | None = None, normalize: Any = None, mode: str = "mean_std"
) -> dict[str, Any]:
    """The argument `vectors` with sizes, and scopes by feature or one for all."""
    if isinstance(normalize, str) and not pad_to:
        return {"vectors": Vector(normalize=mode, statistics=normalize)}
    if isinstance(normalize, str):
        normalize = dict.fromkeys(SIZES_OF_MIX, normalize)
    found: dict[str, dict[str, Any]] = {name: {"pad_to": n} for name, n in (pad_to or {}).items()}
    for name, scope in (normalize or {}).items():
        found.setdefault(name, {}).update(normalize=mode, statistics=scope)
    return {"vectors": {name: Vector(**one) for name, one in found.items()} or None}


def sources(root: Path, names: Any = SIZES, **options: Any) -> dict[str, SeqRecordIterableDataset]:
    options = {"clip_len": 2, "windows": {"action": range(4)}, "pad": "edge", **options}
    own = {name: {"action": Vector(place=PLACES[name])} for name in PLACES}
    return {n: SeqRecordIterableDataset(root / n, vectors=own.get(n), **options) for n in names}


def robots(root: Path, **options: Any) -> SeqRecordMix:
    settings: dict[str, Any] = {"weights": WEIGHTS, "batch_size": 7, "seed": 3}
    return SeqRecordMix(sources(root), **settings, **{**form(SIZES_OF_MIX, "source"), **options})


def places_of(name: str, feature: str) -> list[int]:
    is_placed = feature == "action" and name in PLACES
    return PLACES[name] if is_placed else list(range(SIZES[name]))


@lru_cache
def stored(path: Path) -> dict[str, Any]:
    """All frames of each episode."""
    return {key: one[:] for key, one in seqrecord.open(path).episodes.items()}


def numbers(root: Path, feature: str, names: list[str], size: int, mode: str) -> Any:
    """Mean and deviation, or quantiles, of the mixture of sources, by brute force."""
    offset, scale = np.zeros(size), np.ones(size)
    for channel in range(size):
        values, weights = [np.zeros(0)], [np.zeros(0)]
        for name in names:
            if channel in places_of(name, feature):
                column = places_of(name, feature).index(channel)
                episodes = stored(root / name).values()
                found = np.concatenate([frames[feature][:, column] for frames in episodes])
                values.append(found.astype(np.float64))
                weights.append(np.full(len(found), float(SHARES[name]) / len(found)))
        each, weight = np.concatenate(values), np.concatenate(weights)
        if not len(each):
            continue
        if mode == "mean_std":
            offset[channel] = np.average(each, weights=weight)
            scale[channel] = np.average((each - offset[channel]) ** 2, weights=weight) ** 0.5
        else:
            order = np.argsort(each)
            ranks = np.cumsum(weight[order]) / weight.sum()
            low, high = (each[order[np.searchsorted(ranks, q - 1e-12)]] for q in (0.01, 0.99))
            offset[channel], scale[channel] = (low + high) / 2, (high - low) / 2
    return offset, scale


GROUPS = {
    "source": [["arm"], ["humanoid"], ["second"]],
    "robot_type": [["arm", "second"], ["humanoid"]],
    "mix": [["arm", "humanoid", "second"]],
}


CASES: list[Any] = [
    ("mix", "mean_std", "cpu"),
    ("source", "mean_std", "late"),
    ("robot_type", "quantiles", None),
]
MODES = ("mean_std", "quantiles")
ALL = [(scope, mode, kind) for kind in (None, "cpu", "late") for scope in GROUPS for mode in MODES]


@pytest.mark.parametrize(
    ("scope", "mode", "device"),
    [
        *CASES,
        *(pytest.param(*case[:2], "cuda", marks=NO_GPU) for case in CASES),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ALL if case not in CASES),
    ],
    indirect=["device"],
)
def test_robots_in_one_batch(root: Path, device: str | None, scope: str, mode: str) -> None:
    """Each value is that of the stored frame, normalized and placed by brute force."""
    mix = robots(root, **form(SIZES_OF_MIX, scope, mode), device=device)
    normal: dict[tuple[str, str], Any] = {}
    features = {"action": 32, "state": 16}
    for group in GROUPS[scope]:
        for feature, size in features.items():
            found = numbers(root, feature, group, size, mode)
            normal |= dict.fromkeys(((name, feature) for name in group), found)
    assert not mix.single_source_batches
    assert all([*found] == [*features] for found in mix.normalized.values())
    clips = 0
    for batch in mix:
        for i, (name, key) in enumerate(zip(batch["dataset"], batch["episode"], strict=True)):
            episode, start = stored(root / name)[key], int(batch["start"][i])
            assert batch["step"].dtype == torch.int64
            for feature, size in features.items():
                length, places = batch[feature].shape[1], places_of(name, feature)
                frames = np.minimum(np.arange(start, start + length), len(episode[feature]) - 1)
                offset, scale = normal[name, feature]
                expected = np.zeros((length, size), np.float32)
                expected[:, places] = (episode[feature][frames] - offset[places]) / scale[places]
                found = batch[feature][i].cpu().numpy()
                assert found.dtype == np.float32
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
                is_pad = [channel not in places for channel in range(size)]
                assert batch[f"{feature}_dim_is_pad"][i].tolist() == is_pad
            clips += 1
    assert clips >= 40


def test_sizes_decide_whether_batches_mix(root: Path) -> None:
    """Without pad_to of each, batches alternate; each has the columns of its source."""
    mix = robots(root, features="intersection", **form(normalize={"state": "robot_type"}))
    assert mix.single_source_batches
    for batch in mix:
        [name] = set(batch["dataset"])
        assert ("action_dim_is_pad" in batch) == (name in PLACES)
        assert batch["action"].shape[-1] == max(places_of(name, "action")) + 1
        assert batch["state"].dtype == torch.float32
    assert robots(root, single_source_batches=True).single_source_batches
    with pytest.raises(ClipError, match="disagree in a shape") as info:
        robots(root, single_source_batches=False, **form({"action": 32}))
    assert info.value.feature == "state"


def test_missing_cameras_and_features(root: Path) -> None:
    mix = robots(root, camera_padding_masks=True)
    for batch in mix:
        for camera in ("top", "wrist"):
            has = torch.tensor([camera in CAMERAS[name] for name in batch["dataset"]])
            assert torch.equal(batch[f"{camera}_padding_mask"], has)
            assert torch.equal(batch[f"{camera}_is_missing"], ~has)
            assert not batch[camera][~has].any()
    both = sources(root, ["arm"]) | sources(root, ["second"], features=["state"], windows=None)
    mix = SeqRecordMix(both, batch_size=8, **form({"action": 40}, {"action": "mix"}))
    batch = next(iter(mix))
    lacks = torch.tensor([name == "second" for name in batch["dataset"]])
    assert lacks.any()
    assert batch["action_dim_is_pad"][lacks].all()
    assert batch["action_dim_is_pad"][~lacks].sum(1).tolist() == [34] * int((~lacks).sum())


def test_zeros_and_single_sources_are_reported_once(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names features of the source that may have the camera under another name."""
    for name, number in (("arm", 0), ("humanoid", 1)):
        write_robot(tmp_path / name, number, name)
    both = sources(tmp_path, ["humanoid"]) | sources(
        tmp_path, ["arm"], features=["top", "action"], rename={"top": "front"}
    )
    padded: dict[str, Any] = {"batch_size": 4, **form({"action": 32})}
    for _ in range(2):
        SeqRecordMix(both, weights={"humanoid": 3, "arm": 1}, **padded)
    [found] = [one for one in caplog.messages if "lacks" in one]
    head, *rows = found.split("\n  ")
    assert "0; rename= or features=" in head
    assert rows == [
        "arm (25% of clips) lacks state, step, top, wrist; it has state, step, front",
        "humanoid (75% of clips) lacks front; it has top, wrist",
    ]
    caplog.clear()
    SeqRecordMix(both, features="intersection", **padded)
    SeqRecordMix(both, batch_size=4, single_source_batches=True)
    assert not caplog.messages
    SeqRecordMix(both, batch_size=4)
    [found] = caplog.messages
    assert found.endswith("\n  action: humanoid: float32 [4, 14]; arm: float32 [4, 32]")
    caplog.clear()
    many = {str(i): both["arm"] for i in range(30)} | {"humanoid": both["humanoid"]}
    SeqRecordMix(many, **padded)
    [found] = [one for one in caplog.messages if "lacks" in one]
    assert found.endswith("… 23 more")
    assert len(found.splitlines()) == 10


def test_own_steps_of_sources_and_nested_mixes(root: Path) -> None:
    """The steps of a source, or of an inner mix, come first; the outer mix extends its vectors."""
    normal = Normalization("mean_std", np.zeros(6), np.full(6, 2.0))
    own = {
        "arm": Vector(normalize=normal),
        "second": Vector(pad_to=7),
        "humanoid": Vector(normalize="mean_std"),
    }
    arm, second, other = (
        SeqRecordIterableDataset(root / name, clip_len=1, vectors={"state": one})
        for name, one in own.items()
    )
    of_inner = form({"state": 8}, {"action": "source"})
    inner = SeqRecordMix({"one": arm, "two": second}, batch_size=2, **of_inner)
    both: dict[str, Any] = {"arms": inner, "other": other}
    sizes = {"state": 20, "action": 14}
    mix = SeqRecordMix(both, batch_size=9, features="intersection", **form(sizes))
    found = {source: {*names} for source, names in mix.normalized.items()}
    assert found == {"arms/one": {"state", "action"}, "arms/two": {"action"}, "other": {"state"}}
    batch = next(iter(mix))
    assert batch["state"].shape[-1] == 20
    for i, name in enumerate(batch["dataset"]):
        size = 14 if name == "other" else 6
        assert int((~batch["state_dim_is_pad"][i]).sum()) == size
    with pytest.raises(ClipError, match="normalize of the mix, and of a source") as info:
        SeqRecordMix(both, batch_size=2, **form(normalize={"state": "source"}))
    assert info.value.feature == "state"
    kept = SeqRecordMix(both, batch_size=2, **form(normalize="source"))
    assert kept.normalized["arms/one"]["state"] is normal


@pytest.mark.parametrize("scope", ["source", "mix", "robot_type"])
def test_single_values_at_places_are_normalized_by_their_own(tmp_path: Path, scope: str) -> None:
    """Grippers of one value at place 6, at 0 and, without a place, of a third robot."""
    placed: dict[str, list[int] | None] = {"a": [6], "b": [1], "c": None, "d": [6]}
    values = {name: np.random.default_rng(n).normal(n, n + 1, 40) for n, name in enumerate(placed)}
    loaders = {}
    for name, own in placed.items():
        frames = [{"gripper": np.array([value], np.float32)} for value in values[name]]
        path = tmp_path / name
        metadata = {"e": {"robot_type": name}}
        features = {"gripper": {"kind": "action"}}
        write_dataset(path, {"e": frames}, metadata=metadata, features=features)
        vectors = None if own is None else {"gripper": Vector(place=own)}
        loaders[name] = SeqRecordIterableDataset(path, clip_len=1, vectors=vectors)
    vector = Vector(pad_to=8, normalize="mean_std", statistics=scope)
    mix = SeqRecordMix(loaders, batch_size=8, vectors={"gripper": vector})
    for batch in mix:
        for row, name in enumerate(batch["dataset"]):
            place = (placed[name] or [0])[0]
            sharing = [n for n, places in placed.items() if (places or [0])[0] == place]
            names = sharing if scope == "mix" else [name]
            mean = np.mean([values[n].mean() for n in names])
            square = np.mean([(values[n] ** 2).mean() for n in names])
            value = values[name][batch["start"][row]]
            expected = np.zeros(8)
            expected[place] = (value - mean) / np.sqrt(square - mean**2)
            np.testing.assert_allclose(batch["gripper"][row, 0], expected, atol=1e-5)


def test_results_of_functions_are_padded_and_normalized(root: Path) -> None:
    """The mix pads features that functions make; statistics need the stored values."""

    def relative(clip: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
        return {"delta": clip["action"] - clip["action"][:1], "state": clip["state"]}

    both = {
        name: SeqRecordIterableDataset(root / name, clip_len=3, clip_transform=relative)
        for name in ("arm", "humanoid")
    }
    sizes = {"delta": 20, "state": 20}
    for batch in SeqRecordMix(both, batch_size=5, **form(sizes, {"state": "mix"})):
        assert batch["delta"].shape[1:] == batch["state"].shape[1:] == (3, 20)
        assert not batch["delta"][:, 0].any()
        for i, name in enumerate(batch["dataset"]):
            assert batch["delta"][i, 1:, : SIZES[name]].all()
            assert not batch["delta"][i, :, SIZES[name] :].any()
    wrong: list[Any] = ["source", {"delta": "source"}]
    for normalize in wrong:
        with pytest.raises(ClipError, match="a function changes this feature") as info:
            SeqRecordMix(both, batch_size=5, **form(normalize=normalize))
        assert info.value.feature == "delta"


def test_order_resume_and_workers_do_not_depend_on_the_form(root: Path) -> None:
    def clips_of(batch: dict[str, Any]) -> list[Any]:
        return list(zip(batch["dataset"], batch["episode"], batch["start"].tolist(), strict=True))

    assert [*map(clips_of, robots(root, **form(SIZES_OF_MIX)))] == [*map(clips_of, robots(root))]
    whole = digests(robots(root, number_tasks=True))
    stopped = robots(root, number_tasks=True)
    begun(stopped, 2)
    again = resumed(robots(root, number_tasks=True), stopped.state_dict())
    assert digests(again) == whole[2:]
    assert digests(pickle.loads(pickle.dumps(robots(root, number_tasks=True)))) == whole
    mix = robots(root, number_tasks=True)
    assert digests(DataLoader(mix, batch_size=None, num_workers=1)) == whole


def test_task_numbers(root: Path, tmp_path: Path) -> None:
    """By the text of a clip's first frame, else by the metadata of its episode."""
    mix, opened = robots(root, number_tasks=True), {n: seqrecord.open(root / n) for n in SIZES}
    assert mix.tasks == sorted(set(mix.tasks))
    assert {"all", "arm 0", "humanoid 1", "second 0"} & {*mix.tasks} == {"all", "humanoid 1"}
    assert robots(root).tasks == []
    seen = set()
    for batch in mix:
        for i, (name, key) in enumerate(zip(batch["dataset"], batch["episode"], strict=True)):
            task, episode = mix.tasks[int(batch["task_index"][i])], opened[name].episodes[key]
            if name == "humanoid":
                assert task == episode[int(batch["start"][i])]["task"]
            else:
                assert task == episode.metadata["task"]
            seen.add(task)
    assert len(seen) >= 4
    lists = {"episode": ["arm/1", "arm/0"], "frames": [[9, 2], [4, 0]]}
    pairs = SeqRecordIterableDataset(root / "arm", samples=lists, rename={"top": "camera"})
    for batch in SeqRecordMix({"arm": pairs}, batch_size=1, number_tasks=True):
        assert {batch["episode"][0]: int(batch["task_index"][0])} in ({"arm/0": 0}, {"arm/1": 1})

    with SeqRecordWriter(tmp_path / "records") as writer:
        for key, metadata in (("a", {"tasks": ["known"]}), ("b", {})):
            with writer.episode(key, metadata=metadata) as written:
                written.append({"task": "read", "x": np.zeros(2)})

    def numbered(**options: Any) -> SeqRecordMix:
        source = SeqRecordIterableDataset(tmp_path / "records", clip_len=1, **options)
        return SeqRecordMix({"a": source}, batch_size=1, number_tasks=True)

    assert numbered().tasks == ["known", "read"]
    with pytest.raises(ClipError, match="a task that the metadata lacks"):
        list(numbered(episodes=["a"]))
    with pytest.raises(ClipError, match="finds no task") as info:
        numbered(features=["x"])
    assert info.value.episode == "b"


def test_invalid_forms(root: Path) -> None:
    for options, problem, feature in WRONG:
        with pytest.raises(ClipError, match=problem) as info:
            robots(root, **options)
        assert info.value.feature == feature
        assert info.value.expected


WRONG: list[tuple[dict[str, Any], str, str | None]] = [
    (form({"action": 31}), "source 'arm' of a mix: pad_to is smaller", "action"),
    (form({"state": 13}), "source 'humanoid' of a mix: pad_to is smaller", "state"),
    (form({"top": 13}), "source 'arm' of a mix: pad_to is for vectors", "top"),
    (form({"other": 13}), "batches of the mix have no such feature", "other"),
    ({**form({"wrist": 13}), "features": "intersection"}, "no such feature", "wrist"),
    ({"vectors": 3}, "vectors is not valid", None),
    ({"vectors": Vector(pad_to=3)}, "a Vector for all features has no pad_to", None),
    ({"vectors": {"state": Vector(place=[0])}}, "place is an argument of sources", None),
    ({"vectors": Vector(normalize=Normalization("mean_std", [0], [1]))}, "stored statistics", None),  # type: ignore[arg-type]
    (form(normalize={"top": "mix"}), "normalize is for vectors", "top"),
    ({"camera_padding_masks": 1}, "camera_padding_masks is not valid", None),
    ({"number_tasks": "task"}, "number_tasks is not valid", None),
]


def test_units_robots_and_statistics_of_sources(root: Path, tmp_path: Path) -> None:
    """Merged statistics need one unit; robot_type its metadata; all need stored statistics."""
    write_robot(tmp_path / "degrees", 0, "arm", unit="deg")
    write_robot(tmp_path / "bare", 0, "arm", statistics=False)

    def with_arm(name: str, **options: Any) -> SeqRecordMix:
        both = sources(root, ["second"])
        both["other"] = sources(tmp_path, [name])[name]
        return SeqRecordMix(both, batch_size=2, **options)

    assert not with_arm("degrees", **form(normalize="source")).single_source_batches
    for normalize in (None, "mix", {"state": "source"}):
        with pytest.raises(ClipError, match="disagree on the unit"):
            with_arm("degrees", **form(normalize=normalize))
    with pytest.raises(ClipError, match="source 'other' of a mix: normalize needs statistics"):
        with_arm("bare", **form(normalize="source"))
    with pytest.raises(ClipError, match="finds none"):
        SeqRecordMix(
            sources(root, ["second"], features=["step"], windows=None),
            batch_size=2,
            **form(normalize="mix"),
        )
    for number, robot in enumerate(("one", "two")):
        writer = SeqRecordWriter(tmp_path / "two", mode="append" if number else "create")
        with writer, writer.episode(robot, metadata={"robot_type": robot}) as episode:
            episode.append({"state": np.zeros(2)})
    two = SeqRecordIterableDataset(tmp_path / "two", clip_len=1)
    with pytest.raises(ClipError, match="takes one robot_type") as info:
        SeqRecordMix({"two": two}, batch_size=2, **form(normalize="robot_type"))
    assert "'one' (one), 'two' (two)" in str(info.value.got)


def test_features_of_one_channel_and_channels_without_numbers(tmp_path: Path) -> None:
    """A vector of many values has one channel for all; a channel of NaN stays as it is."""
    for name, size in (("wide", 300), ("narrow", 2)):
        with SeqRecordWriter(tmp_path / name) as writer, writer.episode("e") as episode:
            for i in range(30):
                frame = {"x": np.full(size, i, "f4"), "gap": np.array([i, np.nan], "f4")}
                episode.append(frame)
    both = {n: SeqRecordIterableDataset(tmp_path / n, clip_len=1) for n in ("wide", "narrow")}
    for mode in MODES:
        mix = SeqRecordMix(both, batch_size=2, **form(normalize="mix", mode=mode))
        found = mix.normalized["wide"]
        assert found["x"].offset.shape == (300,)
        np.testing.assert_allclose(found["x"].offset, 14.5, atol=0.5)
        assert (found["gap"].offset[1], found["gap"].scale[1]) == (0, 1)


CONSTANTS = (7.5, 0.1, -1 / 3, 1e-17, 0.0, 1.7e9 + 0.1)  # merged deviations of 1e-17 and more
SPREADS = {"<f8": ((5e6, 1e-3), (1.7e9, 20)), "<f4": ((5e6, 100), (1.7e9, 1e5))}  # UTM, Unix time


@pytest.mark.parametrize(
    ("scope", "mode", "dtype"),
    [
        ("source", "mean_std", "<f4"),
        ("robot_type", "quantiles", "<f8"),
        ("mix", "mean_std", "<f8"),
        pytest.param("source", "quantiles", "<f4", marks=pytest.mark.slow),
        pytest.param("mix", "quantiles", "<f4", marks=pytest.mark.slow),
    ],
)
def test_constants_large_offsets_and_rare_values(
    tmp_path: Path, scope: str, mode: str, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Constants become 0, large offsets keep their scale, and rare values stay small."""
    rng, columns, both = np.random.default_rng(4), [], {}
    for name, length in {"one": 300, "two": 500}.items():
        column: dict[str, Any] = {str(number): np.full(length, number) for number in CONSTANTS}
        for offset, spread in SPREADS[dtype]:
            column[str(offset)] = offset + rng.normal(0, spread, length)
        column["rare"] = rng.normal(0, 1e-6, length)
        column["rare"][::200] = 0.5
        columns.append(column)
        values = np.stack([*column.values()], 1).astype(dtype)
        path = tmp_path / f"{scope} {mode} {dtype} {name}"  # its own warnings
        writer = SeqRecordWriter(path, codecs="raw", chunk_frames=64)
        with writer, writer.episode("e", metadata={"robot_type": "arm"}) as episode:
            for value in values:
                episode.append({"state": value})
        both[name] = SeqRecordIterableDataset(path, clip_len=1)
    weights = {"one": 1, "two": 2}
    mix = SeqRecordMix(both, weights=weights, batch_size=100, **form(normalize=scope, mode=mode))
    seen = np.concatenate([batch["state"][:, 0].numpy() for batch in mix])
    few = len(CONSTANTS)
    assert not seen[:, :few].any()
    assert (abs(seen[:, few:-1].std(0) - (1 if mode == "mean_std" else 0.43)) < 0.15).all()
    assert abs(seen[:, -1]).max() < (20 if mode == "mean_std" else 0.51)
    stored = np.array(CONSTANTS, dtype).astype("f8")
    for found in mix.normalized.values():
        undone = found["state"].undo(np.full(few + 3, 0.5))[:few]
        np.testing.assert_array_equal(undone, stored + 0.5)
    warned = caplog.text.count(f"channels [{few + 2}] of feature state unscaled")
    assert warned == (0 if mode == "mean_std" else len(mix.normalized) if scope == "source" else 1)


def test_clips_of_drawn_lengths(root: Path, device: str | None) -> None:
    """Steps of vectors apply to each frame of a span, in batches of different lengths."""
    options: dict[str, Any] = {"windows": None, "pad": None, "features": ["action", "step"]}
    settings: dict[str, Any] = {"weights": WEIGHTS, "device": device}
    mix = SeqRecordMix(
        sources(root, clip_len=(2, 5), samples=subset(of=6), **options),
        batch_size=seqrecord.Budget(12),
        **form({"action": 32}, {"action": "source"}),
        **settings,
    )
    lengths = set()
    for batch in mix:
        clips, length = batch["frames"].shape
        lengths.add((clips, length))
        assert batch["action"].shape == (clips, length, 32)
        assert batch["action_dim_is_pad"].shape == (clips, 32)
        assert (batch["step"].cpu() == batch["frames"]).all()
        for row, (name, key) in enumerate(zip(batch["dataset"], batch["episode"], strict=True)):
            values = stored(root / name)[key]["action"][batch["frames"][row].cpu().numpy()]
            given = batch["action"][row].cpu().numpy()[:, places_of(name, "action")]
            undone = mix.normalized[name]["action"].undo(given)
            np.testing.assert_allclose(undone, values, rtol=1e-4, atol=1e-5)
    assert lengths >= {(6, 2), (4, 3), (3, 4), (2, 5)}
    shapes = {item.name: item.shape for item in mix.summarize().features}
    assert shapes == {"action": (None, 32), "step": (None,)}
