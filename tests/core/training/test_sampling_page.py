"""Examples of docs/sampling.md, and its schemes against brute force on the stored frames."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import seqrecord
from seqrecord.samples import SampleRandom

PAGE = (Path(__file__).parents[3] / "docs/sampling.md").read_text()
EXAMPLES, (PRELUDE, *BLOCKS) = (
    re.findall(r"^```python\n(.*?)^```", part, re.M | re.S) for part in PAGE.split("\n## Schemes\n")
)
SCHEMES = {source.partition("\n")[0].removeprefix("# "): source for source in BLOCKS}

LENGTHS = (12, 20, 9, 16, 14, 11)
TASKS = ("pick", "push", "pick", "stack", "pick", "push")
SUCCESS = (True, False, True, True, False, True)
KEYS = [f"demo/{number:03d}" for number in range(len(LENGTHS))]
Clip = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Values name their episode and frame; subtasks have a third of an episode each."""
    folder = tmp_path_factory.mktemp("sampling")
    with seqrecord.SeqRecordWriter(folder / "records", codecs="fast", fps=10) as writer:
        for number, (key, length) in enumerate(zip(KEYS, LENGTHS, strict=True)):
            metadata = {"task": TASKS[number], "success": SUCCESS[number]}
            with writer.episode(key, metadata=metadata) as episode:
                for i in range(length):
                    image = np.empty((8, 8, 3), np.uint8)
                    image[:] = number, i, 0
                    action = np.array([number, i], np.float32)
                    episode.append(
                        {"image": image, "action": action, "subtask": subtask(length, i)}
                    )
    return folder


def subtask(length: int, frame: int) -> str:
    return ("reach", "grasp", "lift")[3 * frame // length]


def clips_of(batch: Mapping[str, Any], batch_number: int) -> list[Clip]:
    """The clips of a batch, with the numbers of their episodes and frames by feature."""
    found = []
    for row, key in enumerate(batch["episode"]):
        clip = {name: value[row] for name, value in batch.items()}
        number, frames = KEYS.index(key), dict[str, list[int]]()
        for name in {"image", "action"} & batch.keys():
            values = batch[name][row]
            values = values[:, 0, 0, :2] if name == "image" else values
            assert (values[:, 0] == number).all()
            frames[name] = values[:, 1].int().tolist()
        clip |= {"number": number, "frames_of": frames, "batch": batch_number}
        found.append({n: v.tolist() if isinstance(v, torch.Tensor) else v for n, v in clip.items()})
    return found


def place(clip: Clip) -> tuple[int, int]:
    return clip["number"], clip["start"]


def starts(length: int = 4, among: Sequence[int] = range(len(LENGTHS))) -> Counter[tuple[int, int]]:
    return Counter((e, i) for e in among for i in range(LENGTHS[e] - length + 1))


def clamped(clip: Clip, offsets: Sequence[int]) -> list[int]:
    last = LENGTHS[clip["number"]] - 1
    return [min(max(clip["start"] + offset, 0), last) for offset in offsets]


def of_length(clip: Clip, length: int = 4) -> bool:
    frames = [*range(clip["start"], clip["start"] + length)]
    return all(found == frames for found in clip["frames_of"].values())


def between(counts: Counter[Any], mean: Mapping[Any, float]) -> bool:
    """Whether each comes as often as its mean, rounded up or down."""
    low = all(np.floor(one) <= counts[name] <= np.ceil(one) for name, one in mean.items())
    return low and counts.keys() <= mean.keys()


Epochs = list[list[Clip]]


def goals(epochs: Epochs, chunk: int, *, is_final: bool) -> None:
    for epoch in epochs:
        assert Counter(map(place, epoch)) == starts(1)
        for clip in epoch:
            last = LENGTHS[clip["number"]] - 1
            assert clip["goal"] == last if is_final else clip["start"] <= clip["goal"] <= last
            frames = {"image": [clip["start"], clip["goal"]], "action": clamped(clip, range(chunk))}
            assert clip["frames_of"] == frames
    drawn = [{place(clip): clip["goal"] for clip in epoch} for epoch in epochs]
    assert (drawn[0] == drawn[1]) == is_final


def every_start(
    means: Callable[[int], Mapping[tuple[int, int], float]],
    more: Callable[[Clip], bool] = lambda _clip: True,
) -> Callable[[Epochs], None]:
    """Samples of four frames, each as often as a function of the epoch states."""

    def check(epochs: Epochs) -> None:
        for number, epoch in enumerate(epochs):
            assert all(of_length(clip) and more(clip) for clip in epoch)
            assert between(Counter(map(place, epoch)), means(number))

    return check


def short(epoch: int) -> Counter[tuple[int, int]]:
    return starts(among=[e for e, length in enumerate(LENGTHS) if length <= 10 + 3 * epoch])


def one_per_episode(epochs: Epochs) -> None:
    found = [sorted(map(place, epoch)) for epoch in epochs]
    assert all([number for number, _ in one] == [*range(len(LENGTHS))] for one in found)
    assert len({*map(tuple, found)}) == len(epochs)


def windowed(image: Sequence[int], action: Sequence[int], *, padded: bool) -> Any:
    def check(epochs: Epochs) -> None:
        for epoch in epochs:
            assert Counter(map(place, epoch)) == starts(1 if padded else max(action) + 1)
            for clip in epoch:
                frames = {"image": clamped(clip, image), "action": clamped(clip, action)}
                assert clip["frames_of"] == frames

    return check


def noise(epochs: Epochs) -> None:
    order = [*starts()]
    for number, epoch in enumerate(epochs):
        expected = SampleRandom(0, number).random(4 * len(order)).reshape(-1, 4)
        found = {place(clip): clip["noise"] for clip in epoch}
        assert found == {one: row.tolist() for one, row in zip(order, expected, strict=True)}


def contrast(epochs: Epochs) -> None:
    for epoch in epochs:
        for clip in epoch:
            assert 0 <= clip["positive"] - clip["start"] <= 3
            assert clip["frames_of"]["image"] == [clip["start"], clip["positive"]]
        assert Counter(map(place, epoch)) == starts(1)


def triplets(epochs: Epochs) -> None:
    for epoch in epochs:
        for clip in epoch:
            apart = abs(clip["far"] - clip["start"])
            assert 0 <= clip["near"] - clip["start"] <= 1
            assert min(apart, LENGTHS[clip["number"]] - apart) >= 4
            assert clip["frames_of"]["image"] == [clip["start"], clip["near"], clip["far"]]
        assert Counter(map(place, epoch)) == starts(1)


def listed(means: Mapping[tuple[int, ...], float]) -> Callable[[Epochs], None]:
    def check(epochs: Epochs) -> None:
        for epoch in epochs:
            assert all(clip["frames_of"]["image"] == clip["frames"] for clip in epoch)
            assert between(Counter(tuple(clip["frames"]) for clip in epoch), means)

    return check


def views(epochs: Epochs) -> None:
    for epoch in epochs:
        assert Counter(map(place, epoch)) == starts(3)
        assert {(clip["dilation"], clip["reversed"]) for clip in epoch} >= {(1, True), (2, False)}
        for clip in epoch:
            frames = [clip["start"] + clip["dilation"] * i for i in range(3)]
            assert clip["frames_of"]["image"] == frames[:: -1 if clip["reversed"] else 1]


def budget(epochs: Epochs) -> None:
    for epoch in epochs:
        for number in range(epoch[-1]["batch"] + 1):
            batch = [clip for clip in epoch if clip["batch"] == number]
            [length] = {len(clip["frames"]) for clip in batch}
            assert 2 <= length <= 6
            assert len(batch) == 24 // length or batch[-1] is epoch[-1]
            for clip in batch:
                frames = clip["frames"]
                assert clip["frames_of"]["image"] == frames == sorted({*frames})
                assert clip["start"] <= frames[0] <= frames[-1] < clip["start"] + 8
        assert Counter(map(place, epoch)) == starts(8)


def video(epochs: Epochs) -> None:
    for epoch in epochs:
        assert sorted(clip["number"] for clip in epoch) == [*range(len(LENGTHS))]
        for clip in epoch:
            frames = [*range(0, LENGTHS[clip["number"]], 5)]
            rest = len(clip["frames"]) - len(frames)
            assert clip["frames"] == frames + [-1] * rest
            assert clip["frames_is_pad"] == [False] * len(frames) + [True] * rest
            assert clip["frames_of"]["image"][: len(frames)] == frames


WEIGHTS = {0: 1.0, 1: 0.2, 3: 0.6}
LABELS = {(0, 0): ("opens the drawer", 2), (0, 6): ("closes it", 0), (4, 3): ("pushes", 1)}
ERROR = np.linspace(0.1, 2, 64)
OF_TASK = Counter(TASKS[number] for number, _ in starts())
CHECKS: dict[str, Callable[[Epochs], None]] = {
    "hindsight": lambda epochs: goals(epochs, 8, is_final=False),
    "final goal": lambda epochs: goals(epochs, 4, is_final=True),
    "loss weights": every_start(
        lambda _: starts(among=[*WEIGHTS]), lambda clip: clip["weight"] == WEIGHTS[clip["number"]]
    ),
    "curriculum": every_start(short),
    "prioritised": every_start(
        lambda _: dict(zip(starts(), (ERROR / ERROR.mean()).tolist(), strict=True))
    ),
    "one per episode": one_per_episode,
    "success only": every_start(lambda _: starts(among=np.flatnonzero(SUCCESS).tolist())),
    "balanced tasks": every_start(
        lambda _: {one: 64 / 3 / OF_TASK[TASKS[one[0]]] for one in starts()},
        lambda clip: clip["task"] == TASKS[clip["number"]],
    ),
    "segments": every_start(
        lambda _: Counter(
            (e, i) for e, i in starts() if subtask(LENGTHS[e], i) == subtask(LENGTHS[e], i + 3)
        )
    ),
    "subsets": every_start(lambda _: {(1, i): 0.25 for i in range(16)}),
    "labels": every_start(
        lambda _: dict.fromkeys(LABELS, 1),
        lambda clip: (clip["caption"], clip["label"]) == LABELS[place(clip)],
    ),
    "exponential history": windowed([-8, -4, -2, -1, 0], range(4), padded=True),
    "two rates": windowed([0, 4], range(8), padded=False),
    "diffusion forcing": noise,
    "temporal contrast": contrast,
    "triplets": triplets,
    "overlap": listed({(0, 3): 2, (7, 0): 0.5, (2, 9): 0.25}),
    "views": views,
    "budget": budget,
    "video at a rate": video,
}


def test_examples_before_the_schemes_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    for source in EXAMPLES:
        exec(source, names)
        found = re.findall(r'^(batch\["\w+"\])  # (\w+) \[([\d, ]+)\]', source, re.M)
        for value, dtype, shape in found:
            tensor = eval(value, names)
            assert [*tensor.shape] == [int(size) for size in shape.split(", ")], value
            assert str(tensor.dtype) == f"torch.{dtype}", value
    assert len(EXAMPLES) >= 5


def test_the_page_has_the_schemes() -> None:
    assert SCHEMES.keys() == CHECKS.keys()
    assert len(SCHEMES) == 20
    for source in SCHEMES.values():
        lines = [line for line in source.splitlines() if line and not line.startswith("#")]
        assert len(lines) <= 10


@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes(scheme: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(PRELUDE + SCHEMES[scheme], names)
    epochs = [
        [clip for number, batch in enumerate(names["pipe"]) for clip in clips_of(batch, number)]
        for _ in range(3)
    ]
    CHECKS[scheme](epochs)
