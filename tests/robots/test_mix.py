"""LeRobotMixDataset: items, order, metadata, statistics."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import seqrecord
from seqrecord.errors import ClipError
from seqrecord.lerobot import LeRobotDataset, LeRobotMixDataset, PlannedSampler
from tests.kit.datasets import write_dataset
from tests.kit.lerobot_depth_data import DEPTH
from tests.kit.lerobot_stand_in import install
from tests.kit.lerobot_video_data import unpack

TOP, WRIST = "observation.images.top", "observation.images.wrist"
ROBOTS: dict[str, dict[str, Any]] = {
    "aloha": {"lengths": (11, 6, 9, 5, 7), "fps": 10, "cameras": (TOP, WRIST), "dtype": "f4"},
    "so101": {"lengths": (8, 7, 6, 5), "fps": 20, "cameras": (TOP,), "dtype": "f8"},
}
FIRST = {"aloha": 0, "so101": 3}
WINDOWS = {TOP: [-0.1, 0.0], "action": [i / 10 for i in range(4)]}
DELTAS = {TOP: [-1, 0], "action": [0, 1, 2, 3]}
TASKS = ["pick", "place", "push"]


def frame(robot: str, episode: int, number: int) -> dict[str, Any]:
    rng = np.random.default_rng([len(robot), len(ROBOTS[robot]["cameras"]), episode, number])
    found = {name: rng.integers(0, 256, (6, 8, 3), np.uint8) for name in ROBOTS[robot]["cameras"]}
    vectors = {
        "observation.state": (rng.normal(size=3) * [1, 0, 1] + [0, 0.1, 0]).astype(np.float32),
        "action": rng.normal(size=2).astype(ROBOTS[robot]["dtype"]) + FIRST[robot],
    }
    return found | vectors | {"task": TASKS[(episode + FIRST[robot] // 3) % 3]}


@pytest.fixture(autouse=True)
def lerobot(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("robots")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEQRECORD_HOME", str(folder / "home"))
        for name, robot in ROBOTS.items():
            about = {"robot_type": name, "names": {"action": ["x", "y"]}}
            episodes = {
                f"{name}/{number}": [frame(name, number, i) for i in range(length)]
                for number, length in enumerate(robot["lengths"])
            }
            metadata = dict.fromkeys(episodes, about)
            write_dataset(folder / name, episodes, metadata=metadata, fps=robot["fps"])
            seqrecord.add_statistics(folder / name)
        yield folder


def mixed(root: Path, **options: Any) -> seqrecord.SeqRecordMix:
    """A mix of all robots; an option named after a robot has options of its source."""
    own = {name: options.pop(name, {}) for name in ROBOTS}
    sources = {
        name: seqrecord.SeqRecordIterableDataset(root / name, **{"clip_len": 1, **own[name]})
        for name in ROBOTS
    }
    given = {"weights": {"aloha": 0.75, "so101": 0.25}, "batch_size": 4, **options}
    return seqrecord.SeqRecordMix(sources, **given)


def dataset(root: Path, **options: Any) -> LeRobotMixDataset:
    return LeRobotMixDataset(mixed(root), **{"delta_timestamps": WINDOWS, **options})


EPISODES = [(name, i, n) for name, one in ROBOTS.items() for i, n in enumerate(one["lengths"])]
BEGINS = np.cumsum([0, *(length for _, _, length in EPISODES)])[:-1]


def expected(number: int) -> dict[str, Any]:
    """Expected item of a frame; frames are numbered across robots."""
    at = int(np.searchsorted(BEGINS, number, side="right")) - 1
    robot, episode, length = EPISODES[at]
    inside = number - BEGINS[at]
    item: dict[str, Any] = {"dataset": robot, "index": number, "episode_index": at}
    item |= {"frame_index": inside, f"{WRIST}_is_missing": robot == "so101"}
    frames = [frame(robot, episode, i) for i in range(length)]
    item[WRIST] = np.zeros((6, 8, 3), np.uint8)
    for name, value in frames[inside].items():
        item[name] = value
        if name in DELTAS:
            asked = inside + np.array(DELTAS[name])
            item[name] = np.stack([frames[i][name] for i in asked.clip(0, length - 1)])
            item[f"{name}_is_pad"] = (asked < 0) | (asked >= length)
    for name in (TOP, WRIST):
        item[name] = np.moveaxis(item[name], -1, -3) / np.float32(255)
    item["task_index"] = TASKS.index(item["task"])
    return item | {"timestamp": np.float32(inside / ROBOTS[robot]["fps"])}


def check_item(item: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert item.keys() == wanted.keys()
    for name, value in wanted.items():
        got = item[name].numpy() if isinstance(item[name], torch.Tensor) else item[name]
        value = np.float32(value) if name == "action" else value
        assert np.array_equal(got, value), name


def test_items_by_number(root: Path) -> None:
    ours = dataset(root)
    assert len(ours) == ours.num_frames == 64
    for number in (0, 5, 63):
        check_item(ours[number], expected(number))
    for number, item in zip((38, 3, 39, 37), ours.__getitems__([38, 3, 39, 37]), strict=True):
        check_item(item, expected(number))
    as_uint8 = dataset(root, return_uint8=True)[3]
    assert as_uint8[TOP].dtype == torch.uint8
    ours.set_image_transforms(lambda image: 1 - image)
    assert torch.equal(ours[3][TOP], 1 - dataset(root)[3][TOP])


def test_order_equals_that_of_the_mix(root: Path) -> None:
    ours = dataset(root)
    floats = seqrecord.Normalization("mean_std", np.zeros(1), np.ones(1))
    options: dict[str, Any] = {"windows": DELTAS, "pad": "edge", "clip_len": None}
    options["vectors"] = {"action": seqrecord.Vector(normalize=floats)}
    mix = mixed(root, seed=7, aloha=options, so101=options)
    sampler, count = PlannedSampler(ours, batch_size=4, seed=7), 0
    keys = [f"{robot}/{episode}" for robot, episode, _ in EPISODES]
    begins = dict(zip(keys, BEGINS.tolist(), strict=True))  # frames are numbered across robots
    for _ in range(3):
        order = [
            begins[key] + int(start)
            for batch in mix
            for key, start in zip(batch["episode"], batch["start"], strict=True)
        ]
        found = list(sampler)
        assert found == order
        assert len(sampler) == len(order)
        for item in ours.__getitems__(found):
            check_item(item, expected(int(item["index"])))
        count += len(order)
    assert ours.stats()["items_in_order"] == count
    with pytest.raises(ClipError, match="no episode of source 'so101'"):
        PlannedSampler(dataset(root, episodes=[0, 1]), batch_size=4)


@pytest.mark.parametrize(
    ("ranks", "workers", "stop"),
    [
        (1, 3, 7),
        (2, 1, 1 << 30),
        *(pytest.param(1, 1, stop, marks=pytest.mark.slow) for stop in (7, 1 << 30)),
        *(pytest.param(2, 2, stop, marks=pytest.mark.slow) for stop in (7, 1 << 30)),
    ],
)
def test_ranks_workers_and_resuming(root: Path, ranks: int, workers: int, stop: Any) -> None:
    """Batch i goes to rank i mod W and worker (i div W) mod N; each has its own plan."""
    options: Any = {"batch_size": 4, "num_workers": workers, "num_replicas": ranks, "seed": 2}
    sampler = PlannedSampler(dataset(root, stopping_strategy=stop), **options)
    steps = min(len(sampler) // 4 // ranks, 40)
    whole = list(islice(sampler, steps * ranks * 4))
    if stop == 7:
        assert len(sampler) == len(whole) == 7 * ranks * 4
    batches = [whole[at : at + 4] for at in range(0, len(whole), 4)]
    for rank in range(ranks):
        for worker in range(workers):
            ours = dataset(root, stopping_strategy=stop)
            mine = batches[rank::ranks][worker::workers]
            for batch in pickle.loads(pickle.dumps(mine[:6])):
                items = ours.__getitems__(batch)
                assert [item["index"].item() for item in items] == batch
            assert ours.stats()["items_in_order"] == 4 * len(mine[:6])
            given = [item["dataset"] for batch in mine for item in ours.__getitems__(batch)]
            assert abs(given.count("aloha") - 0.75 * len(given)) < 1
        alone = PlannedSampler(dataset(root, stopping_strategy=stop), **options, rank=rank)
        assert len(alone) == len(sampler) // ranks
        assert list(islice(alone, steps * 4)) == [i for one in batches[rank::ranks] for i in one]
    for start in (1, 4, 13, 4 * ranks * workers, len(whole) - 3):
        sampler.load_state_dict({"epoch": 0, "start_index": start})
        assert list(islice(sampler, len(whole) - start)) == whole[start:]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fork", "spawn"])
def test_worker_processes(root: Path, kind: str) -> None:
    ours = dataset(root, stopping_strategy=12)
    sampler = PlannedSampler(ours, batch_size=4, num_workers=2)
    loader: Any = DataLoader(ours, 4, sampler=sampler, num_workers=2, multiprocessing_context=kind)
    expected_order = list(PlannedSampler(ours, batch_size=4, num_workers=2))
    assert [i for batch in loader for i in batch["index"].tolist()] == expected_order


def test_metadata(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    ours = dataset(root)
    meta = ours.meta
    assert "aloha 10.0, so101 20.0" in caplog.text
    assert (meta.fps, meta.total_frames, meta.total_episodes, meta.robot_type) == (10, 64, 9, None)
    assert set(meta.camera_keys) == {TOP, WRIST}
    assert meta.features[TOP]["shape"] == (6, 8, 3)
    assert meta.features["action"] == {"dtype": "float32", "shape": (2,), "names": ["x", "y"]}
    assert meta.episodes["dataset_from_index"] == BEGINS.tolist()
    assert meta.episodes["dataset_to_index"] == [*BEGINS[1:].tolist(), 64]
    assert meta.episodes["tasks"] == [[TASKS[i % 3]] for i in (0, 1, 2, 3, 4, 1, 2, 3, 4)]
    assert ours.absolute_to_relative_idx is None
    subset = dataset(root, episodes=[6, 1])
    numbers = [*range(11, 17), *range(46, 53)]
    assert subset.absolute_to_relative_idx == {number: i for i, number in enumerate(numbers)}
    assert [item["index"].item() for item in subset[:]] == numbers
    assert (subset.num_frames, subset.num_episodes) == (13, 2)


def test_items_outside_of_a_subset_are_refused(root: Path) -> None:
    """Not other episodes' frames: a loop over a split's training part ends at its last item."""
    for ours in (dataset(root), dataset(root, episodes=[5]), *dataset(root).split(0.4)):
        count = len(ours)
        for outside in (count, -count - 1, 10_000):
            with pytest.raises(IndexError, match=f"item {outside} of {count}"):
                ours[outside]
        indices = [item["index"].item() for item in ours[:]]
        items: Any = ours  # iterated by number until `IndexError`
        assert [item["index"].item() for item in items] == indices
        assert ours[-1]["index"].item() == indices[-1]
        assert ours[-count]["index"].item() == indices[0]


def test_split_takes_the_last_episodes_of_each_task_for_validation(root: Path) -> None:
    ours = dataset(root, image_transforms=torch.neg)
    train, val = ours.split(0.4)
    assert (train.episodes, val.episodes) == ([0, 1, 5], [2, 3, 4, 6, 7, 8])
    assert (train.image_transforms, val.image_transforms) == (torch.neg, None)
    assert train.meta is val.meta is ours.meta
    order = list(islice(PlannedSampler(train, batch_size=4), 40))
    assert {item["episode_index"].item() for item in train.__getitems__(order)} == {0, 1, 5}
    for item, at in zip(val[:], range(17, 26), strict=False):
        check_item(item, expected(at))
    twice = LeRobotMixDataset(mixed(root, weights=None, repeat={"aloha": 2})).split(0.4)
    sizes = [len(PlannedSampler(one, batch_size=1)) for one in twice]
    assert sizes == [102 * one.num_frames // 64 for one in twice]  # of 102 clips
    with pytest.raises(ClipError, match="leaves no episode of source"):
        dataset(root, episodes=[0, 1, 5]).split(0.1)


# ---- statistics


PLACES = {"aloha": {"action": [0, 2], "observation.state": [0, 1, 2]}, "so101": {"action": [1, 0]}}


def placed(root: Path, normalize: Any, **options: Any) -> seqrecord.SeqRecordMix:
    of = {
        robot: {"vectors": {name: seqrecord.Vector(place=one) for name, one in places.items()}}
        for robot, places in PLACES.items()
    }
    steps = {} if normalize is None else {"normalize": "mean_std", "statistics": normalize}
    vectors = {
        "action": seqrecord.Vector(pad_to=4, **steps),
        "observation.state": seqrecord.Vector(**steps),
    }
    return mixed(root, **of, vectors=vectors, **options)


def actions(robot: str) -> Any:
    lengths = enumerate(ROBOTS[robot]["lengths"])
    return np.array([frame(robot, e, i)["action"] for e, n in lengths for i in range(n)], "f8")


def processed(items: list[Any], stats: dict[str, Any], mode: str, name: str = "action") -> Any:
    """Vectors of items after LeRobot's processor."""
    value = np.stack([item[name].numpy() for item in items])
    if mode == "MEAN_STD":
        return (value - stats["mean"]) / (stats["std"] + 1e-8)
    low, high = {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99")}[mode]
    return 2 * (value - stats[low]) / (stats[high] - stats[low]) - 1


def scaled(values: Any, over: Any, mode: str) -> Any:
    if mode == "MEAN_STD":
        return (values - over.mean(0)) / over.std(0)
    low, high = over.min(0), over.max(0)
    if mode == "QUANTILES":
        low, high = np.quantile(over, [0.01, 0.99], axis=0, method="inverted_cdf")
    return 2 * (values - low) / (high - low) - 1


@pytest.mark.parametrize(
    ("mode", "deploy"),
    [
        ("MEAN_STD", "aloha"),
        ("QUANTILES", "so101"),
        pytest.param("MIN_MAX", "so101", marks=pytest.mark.slow),
        pytest.param("QUANTILES", "aloha", marks=pytest.mark.slow),
    ],
)
def test_each_robot_is_normalized_by_its_own_statistics(root: Path, mode: str, deploy: str) -> None:
    """The processor has the statistics of one robot; padding becomes 0."""
    mix = placed(root, "source")
    mapping = {"ACTION": mode, "STATE": mode}
    ours = LeRobotMixDataset(mix, deploy=deploy, normalization_mapping=mapping)
    assert (ours.fps, ours.meta.robot_type) == (ROBOTS[deploy]["fps"], deploy)
    stats = ours.meta.stats["action"]
    places = PLACES[deploy]["action"]
    assert np.allclose(stats["mean"][places], actions(deploy).mean(0))
    assert np.allclose(np.delete(stats["std"], places), 1)
    order = list(PlannedSampler(ours, batch_size=4))
    for items in (ours[:], ours.__getitems__(order)):
        found = processed(items, stats, mode)
        states = ours.meta.stats["observation.state"]
        constant = processed(items, states, mode, "observation.state")[:, 1]
        assert np.allclose(constant, 0, atol=1e-6)
        for item, got in zip(items, found, strict=True):
            robot, number = item["dataset"], int(item["index"])
            stored = expected(number)["action"][0]
            wanted = np.zeros(4)
            wanted[PLACES[robot]["action"]] = scaled(stored, actions(robot), mode)
            assert np.allclose(got, wanted, atol=1e-5)
            if robot == deploy:
                assert np.array_equal(item["action"].numpy()[places], stored.astype("f4"))


@pytest.mark.parametrize(("normalize", "mode"), [(None, "MIN_MAX"), ("mix", "MEAN_STD")])
def test_one_set_of_statistics(root: Path, normalize: Any, mode: str) -> None:
    """Over all frames including zero padding, or by weight without padding."""
    mix = placed(root, normalize)
    ours = LeRobotMixDataset(mix, normalization_mapping={"ACTION": mode})
    stats, rows = ours.meta.stats["action"], []
    for robot in ROBOTS:
        values = np.full((len(actions(robot)), 4), 0.0 if normalize is None else np.nan)
        values[:, PLACES[robot]["action"]] = actions(robot)
        rows.append(values)
    if normalize is None:
        every = np.concatenate(rows)
        wanted = {name: getattr(every, name)(0) for name in ("mean", "std", "min", "max")}
        for q in (1, 10, 50, 90, 99):
            wanted[f"q{q:02}"] = np.quantile(every, q / 100, axis=0, method="inverted_cdf")
        for name, value in wanted.items():
            assert np.allclose(stats[name], value), name
        assert np.array_equal(ours[0]["action"][[1, 3]], [0, 0])
    else:
        mean = 0.75 * actions("aloha").mean(0)[0] + 0.25 * actions("so101").mean(0)[1]
        assert np.isclose(stats["mean"][0], mean)
        assert np.isclose(stats["mean"][2], actions("aloha").mean(0)[1])
        found = processed(ours[:], stats, mode)
        for item, got in zip(ours[:], found, strict=True):
            rest = {*range(4)} - {*PLACES[item["dataset"]]["action"]}
            assert np.allclose(got[[*rest]], 0, atol=1e-6)
    assert ours[0]["action_dim_is_pad"].tolist() == [False, True, False, True]
    assert ours[63]["action_dim_is_pad"].tolist() == [False, False, True, True]


def test_planned_items_equal_items_by_number(root: Path) -> None:
    """Includes masks of cameras, padding and missing features."""
    mix = mixed(
        root,
        aloha={"metadata": ["robot_type"]},
        so101={"features": [TOP, "action"]},
        vectors={
            name: seqrecord.Vector(pad_to=size, normalize="mean_std", statistics="mix")
            for name, size in (("action", 3), ("observation.state", 4))
        },
        camera_padding_masks=True,
        number_tasks=False,
    )
    ours = LeRobotMixDataset(mix, delta_timestamps=WINDOWS, return_uint8=True)
    order = list(PlannedSampler(ours, batch_size=4))
    for item, alone in zip(
        ours.__getitems__(order), ours.__getitems__([*map(int, order)]), strict=True
    ):
        check_item(item, {name: np.asarray(value) for name, value in alone.items()})
        is_one = item["dataset"] == "aloha"
        assert item[f"{WRIST}_padding_mask"] == is_one != item["observation.state_is_missing"]
        assert item["observation.state_dim_is_pad"].tolist() == [not is_one] * 3 + [True]
    assert ours.stats()["items_in_order"] == len(order)


def test_statistics_of_images_and_of_robots_of_one_type(root: Path) -> None:
    found = LeRobotMixDataset(mixed(root)).meta.stats
    frames = [frame(robot, e, i)[TOP] for robot, e, n in EPISODES for i in range(n)]
    assert found[TOP]["mean"].shape == found[WRIST]["std"].shape == (3, 1, 1)
    assert np.allclose(found[TOP]["mean"][:, 0, 0], np.mean(frames, (0, 1, 2)) / 255)
    ours = LeRobotMixDataset(placed(root, "robot_type"), deploy="aloha")
    assert np.allclose(ours.meta.stats["action"]["mean"][[0, 2]], actions("aloha").mean(0))


# ---- mistakes


def test_invalid_mixes_are_refused(root: Path) -> None:
    normal = seqrecord.Vector(normalize="mean_std")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"aloha": {"clip_len": 2}}, "windows of a policy; .*no clip_len"),
        ({"aloha": {"pad": "after"}}, "no pad"),
        ({"aloha": {"windows": {"action": range(3)}}}, "expected: 4 frames.*; got: 3 frames"),
        ({"aloha": {"windows": {WRIST: range(4)}}}, "for which the policy has none"),
        ({"so101": {"resize": (3, 4)}, "single_source_batches": True}, "disagree in a shape"),
        ({"so101": {"rename": {"observation.state": "index"}}}, "name of a column"),
        ({"so101": {"vectors": {"action": normal}}}, "'so101' normalises a feature"),
        ({"vectors": normal}, "deploy .*one of aloha, so101"),
    ]
    for options, text in wrong:
        with pytest.raises(ClipError, match=text):
            LeRobotMixDataset(mixed(root, **options), delta_timestamps=WINDOWS)
    with pytest.raises(ClipError, match="no such source to deploy to"):
        LeRobotMixDataset(mixed(root), deploy="panda")


def test_windows_of_a_source_are_kept(root: Path) -> None:
    """In seconds: the same times at another rate."""
    mix = mixed(root, so101={"windows": {"action": seqrecord.Seconds([0, 0.1, 0.2, 0.3])}})
    item = LeRobotMixDataset(mix, delta_timestamps=WINDOWS)[38]
    stored = [frame("so101", 0, i)["action"] for i in (0, 2, 4, 6)]
    assert np.array_equal(item["action"], np.array(stored, np.float32))


@pytest.mark.parametrize("unit", ["mm", "m"])
def test_depth_equals_that_of_each_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    """Videos with different scales, by number and in the planned order."""
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "home"))
    folder, depth = unpack(tmp_path, "lerobot_depth"), "observation.images.depth"
    kinds = {name.rpartition(".")[2]: name for name in DEPTH}
    sources = {
        kind: seqrecord.SeqRecordIterableDataset(folder / kind, clip_len=1, rename={name: depth})
        for kind, name in kinds.items()
    }
    mix = seqrecord.SeqRecordMix(sources, weights={"log": 1, "linear": 1}, batch_size=2)
    times = {depth: [-0.1, 0.0]}
    ours = LeRobotMixDataset(mix, depth_output_unit=unit, delta_timestamps=times)
    wanted = []
    for kind, name in kinds.items():
        options: Any = {"depth_output_unit": unit, "delta_timestamps": {name: times[depth]}}
        wanted += [item[name] for item in LeRobotDataset("a/b", folder / kind, **options)[:]]
    assert len(ours) == len(wanted) == 20
    sampler = islice(PlannedSampler(ours, batch_size=2), 20)
    for item in [*ours[:], *ours.__getitems__([*sampler])]:
        assert torch.equal(item[depth], wanted[int(item["index"])])
    assert ours.meta.features[depth]["shape"] == (32, 48, 1)
    mean = float(np.mean([item.numpy()[1] for item in wanted])) / {"mm": 1000, "m": 1}[unit]
    assert np.shape(ours.meta.stats[depth]["mean"]) == (1, 1, 1)  # in metres: LeRobot rescales them
    assert float(ours.meta.stats[depth]["mean"][0, 0, 0]) == pytest.approx(mean, rel=0.01)
