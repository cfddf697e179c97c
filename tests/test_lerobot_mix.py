"""A mix as LeRobot's dataset: items, order, metadata."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import seqrecord
from seqrecord.lerobot import LeRobotMixDataset, PlannedSampler
from tests.lerobot_stand_in import install

TOP, WRIST = "observation.images.top", "observation.images.wrist"
ROBOTS: dict[str, dict[str, Any]] = {
    "aloha": {"lengths": (11, 6, 9), "fps": 10, "cameras": (TOP, WRIST), "first": 0},
    "so101": {"lengths": (8, 7), "fps": 20, "cameras": (TOP,), "first": 3},
}
WINDOWS = {TOP: [-0.1, 0.0], "action": [i / 10 for i in range(4)]}
DELTAS = {TOP: [-1, 0], "action": [0, 1, 2, 3]}
TASKS = ["pick", "place", "push"]


def frame(robot: str, episode: int, number: int) -> dict[str, Any]:
    rng = np.random.default_rng([len(robot), len(ROBOTS[robot]["cameras"]), episode, number])
    found = {name: rng.integers(0, 256, (6, 8, 3), np.uint8) for name in ROBOTS[robot]["cameras"]}
    vectors = {
        "observation.state": rng.normal(size=3).astype(np.float32),
        "action": rng.normal(size=2).astype(np.float32) + ROBOTS[robot]["first"],
    }
    return found | vectors | {"task": TASKS[(episode + ROBOTS[robot]["first"] // 3) % 3]}


@pytest.fixture(autouse=True)
def lerobot(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("robots")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEQRECORD_HOME", str(folder / "home"))
        for name, robot in ROBOTS.items():
            metadata = {"robot_type": name, "names": {"action": ["x", "y"]}}
            with seqrecord.SeqRecordWriter(folder / name, fps=robot["fps"]) as writer:
                for number, length in enumerate(robot["lengths"]):
                    with writer.episode(f"{name}/{number}", metadata=metadata) as episode:
                        for i in range(length):
                            episode.append(frame(name, number, i))
            seqrecord.add_statistics(folder / name)
        yield folder


def mixed(root: Path, **options: Any) -> seqrecord.SeqRecordMix:
    """A mix as of a file: each source with `clip_len=1`, or as given by name."""
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


def expected(number: int) -> dict[str, Any]:
    """The item of a frame, by its number over all robots."""
    index = number
    for at, (robot, episode, length) in enumerate(EPISODES):
        if number < length:
            break
        number -= length
    item: dict[str, Any] = {"dataset": robot, "index": index, "episode_index": at}
    item |= {"frame_index": number, f"{WRIST}_is_missing": robot == "so101"}
    frames = [frame(robot, episode, i) for i in range(length)]
    item[WRIST] = np.zeros((6, 8, 3), np.uint8)
    for name, value in frames[number].items():
        item[name] = value
        if name in DELTAS:
            asked = number + np.array(DELTAS[name])
            item[name] = np.stack([frames[i][name] for i in asked.clip(0, length - 1)])
            item[f"{name}_is_pad"] = (asked < 0) | (asked >= length)
    for name in (TOP, WRIST):
        item[name] = np.moveaxis(item[name], -1, -3) / np.float32(255)
    item["task_index"] = TASKS.index(item["task"])
    return item | {"timestamp": np.float32(number / ROBOTS[robot]["fps"])}


def check_item(item: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert item.keys() == wanted.keys()
    for name, value in wanted.items():
        got = item[name].numpy() if isinstance(item[name], torch.Tensor) else item[name]
        assert np.array_equal(got, value), name


def test_items_by_number(root: Path) -> None:
    ours = dataset(root)
    assert len(ours) == ours.num_frames == 41
    for number in (0, 5, 40):
        check_item(ours[number], expected(number))
    for number, item in zip((26, 3, 27, 25), ours.__getitems__([26, 3, 27, 25]), strict=True):
        check_item(item, expected(number))
    as_uint8 = dataset(root, return_uint8=True)[3]
    assert as_uint8[TOP].dtype == torch.uint8
    ours.set_image_transforms(lambda image: 1 - image)
    assert torch.equal(ours[3][TOP], 1 - dataset(root)[3][TOP])


def test_the_order_is_that_of_the_mix(root: Path) -> None:
    ours = dataset(root)
    options = {"windows": DELTAS, "pad": "edge", "squeeze_time": True, "clip_len": None}
    mix = mixed(root, seed=7, aloha=options, so101={**options})
    begins = dict.fromkeys((), 0)
    at = 0
    for robot, episode, length in EPISODES:
        begins[f"{robot}/{episode}"] = at
        at += length
    sampler = PlannedSampler(ours, batch_size=4, seed=7)
    for _ in range(3):
        order = []
        for batch in mix:
            firsts = np.array([begins[key] for key in batch["episode"]])
            order += (firsts + batch["start"].numpy()).tolist()
        found = list(sampler)
        assert found == order
        assert len(sampler) == len(order)
        items = ours.__getitems__(found)
        assert [item["index"].item() for item in items] == found
        for item in items[::5]:
            check_item(item, expected(int(item["index"])))
    assert ours.stats()["items_in_order"] == 3 * len(order)
