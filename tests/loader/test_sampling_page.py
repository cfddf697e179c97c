"""Examples of docs/sampling.md, and its schemes against brute force on the stored frames."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqrecord import samples
from seqrecord.loader.sampling.built_ins import BUILT_INS
from seqrecord.samples import SampleRandom
from tests.kit.datasets import columns, write_dataset

PAGE = (Path(__file__).parents[2] / "docs/sampling.md").read_text()
REFERENCE = (Path(__file__).parents[2] / "docs/reference/loaders.md").read_text()
EXAMPLES, (PRELUDE, *BLOCKS) = (
    re.findall(r"^```python\n(.*?)^```", part, re.M | re.S) for part in PAGE.split("\n## Schemes\n")
)
SCHEMES = {
    source.partition("\n")[0].removeprefix("# ").replace(" ", "_"): source for source in BLOCKS
}

LENGTHS = (12, 20, 9, 16, 14, 11)
TASKS = ("pick", "push", "pick", "stack", "pick", "push")
SUCCESS = (True, False, True, True, False, True)
KEYS = [f"demo/{number:03d}" for number in range(len(LENGTHS))]
METADATA = {k: {"task": t, "success": s} for k, t, s in zip(KEYS, TASKS, SUCCESS, strict=True)}
Clip = dict[str, Any]
Epochs = list[list[Clip]]
place = itemgetter("number", "start")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Values name their episode and frame; subtasks have a third of an episode each."""
    folder = tmp_path_factory.mktemp("sampling")
    episodes = {
        key: columns(
            image=[np.full((8, 8, 3), [number, i, 0], np.uint8) for i in range(length)],
            action=[np.array([number, i], np.float32) for i in range(length)],
            subtask=[subtask(length, i) for i in range(length)],
        )
        for number, (key, length) in enumerate(zip(KEYS, LENGTHS, strict=True))
    }
    write_dataset(folder / "records", episodes, metadata=METADATA, codecs="fast", fps=10)
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
            values = batch[name][row][:, 0, 0, :2] if name == "image" else batch[name][row]
            assert (values[:, 0] == number).all()
            frames[name] = values[:, 1].int().tolist()
        clip |= {"number": number, "frames_of": frames, "batch": batch_number}
        found.append({n: v.tolist() if isinstance(v, torch.Tensor) else v for n, v in clip.items()})
    return found


def starts(length: int = 4, among: Sequence[int] = range(len(LENGTHS))) -> Counter[tuple[int, int]]:
    return Counter((e, i) for e in among for i in range(LENGTHS[e] - length + 1))


def clamped(clip: Clip, offsets: Sequence[int]) -> list[int]:
    numbers: list[int] = (
        np.add(clip["start"], offsets).clip(0, LENGTHS[clip["number"]] - 1).tolist()
    )
    return numbers


def check_starts(
    epochs: Epochs, means: Callable[[int], Mapping[tuple[int, int], float]], length: int = 4
) -> None:
    """Samples of `length` frames, each as often as a function of the epoch states."""
    for number, epoch in enumerate(epochs):
        check_means(Counter(map(place, epoch)), means(number))
        for clip in epoch:
            frames = [*range(clip["start"], clip["start"] + length)]
            assert all(found == frames for found in clip["frames_of"].values())


def check_means(counts: Counter[Any], means: Mapping[Any, float]) -> None:
    """Each comes as often as its mean, rounded up or down."""
    assert counts.keys() <= means.keys()
    assert all(np.floor(mean) <= counts[name] <= np.ceil(mean) for name, mean in means.items())


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


def test_every_function_is_in_the_docs_and_in_files() -> None:
    functions = {name for name in samples.__all__ if name.islower()}
    assert functions - {"per_episode", "segments"} == BUILT_INS.keys()
    assert all(f"{name}(" in PAGE for name in functions)
    described = re.findall(r"^::: seqrecord\.samples\.(\w+)$", REFERENCE, re.M)
    assert functions <= {*described}


def test_the_page_has_the_schemes() -> None:
    """Each has a test below."""
    prefix = "test_scheme_"
    tested = {name.removeprefix(prefix) for name in globals() if name.startswith(prefix)}
    assert tested == SCHEMES.keys()


@pytest.fixture
def epochs(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Epochs:
    """Three epochs of the scheme in the test's name."""
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(PRELUDE + SCHEMES[request.function.__name__.removeprefix("test_scheme_")], names)
    return [
        [clip for number, batch in enumerate(names["pipe"]) for clip in clips_of(batch, number)]
        for _ in range(3)
    ]


def test_scheme_hindsight(epochs: Epochs) -> None:
    for epoch in epochs:
        assert Counter(map(place, epoch)) == starts(1)
        for clip in epoch:
            assert clip["start"] <= clip["goal"] <= LENGTHS[clip["number"]] - 1
            frames = {"image": [clip["start"], clip["goal"]], "action": clamped(clip, range(8))}
            assert clip["frames_of"] == frames
    first, second, _ = ({place(clip): clip["goal"] for clip in epoch} for epoch in epochs)
    assert first != second


def test_scheme_final_goal(epochs: Epochs) -> None:
    for epoch in epochs:
        assert Counter(map(place, epoch)) == starts(1)
        for clip in epoch:
            assert clip["goal"] == LENGTHS[clip["number"]] - 1
            frames = {"image": [clip["start"], clip["goal"]], "action": clamped(clip, range(4))}
            assert clip["frames_of"] == frames


def test_scheme_loss_weights(epochs: Epochs) -> None:
    weights = {0: 1.0, 1: 0.2, 3: 0.6}
    check_starts(epochs, lambda _: starts(among=[*weights]))
    assert all(clip["weight"] == weights[clip["number"]] for epoch in epochs for clip in epoch)


def test_scheme_curriculum(epochs: Epochs) -> None:
    def short(epoch: int) -> Counter[tuple[int, int]]:
        return starts(among=[e for e, length in enumerate(LENGTHS) if length <= 10 + 3 * epoch])

    check_starts(epochs, short)


def test_scheme_prioritised(epochs: Epochs) -> None:
    error = np.linspace(0.1, 2, 64)
    means = dict(zip(starts(), (error / error.mean()).tolist(), strict=True))
    check_starts(epochs, lambda _: means)


def test_scheme_one_per_episode(epochs: Epochs) -> None:
    found = [sorted(map(place, epoch)) for epoch in epochs]
    assert all([number for number, _ in one] == [*range(len(LENGTHS))] for one in found)
    assert len({*map(tuple, found)}) == len(epochs)


def test_scheme_success_only(epochs: Epochs) -> None:
    check_starts(epochs, lambda _: starts(among=np.flatnonzero(SUCCESS).tolist()))


def test_scheme_balanced_tasks(epochs: Epochs) -> None:
    count = Counter(TASKS[number] for number, _ in starts())
    check_starts(epochs, lambda _: {one: 64 / 3 / count[TASKS[one[0]]] for one in starts()})
    clips = [clip for epoch in epochs for clip in epoch]
    assert all(clip["task"] == TASKS[clip["number"]] for clip in clips)
    assert min(Counter(clip["task"] for clip in clips).values()) >= 58  # 64 is a third


def test_scheme_segments(epochs: Epochs) -> None:
    inside = Counter(
        (e, i) for e, i in starts() if subtask(LENGTHS[e], i) == subtask(LENGTHS[e], i + 3)
    )
    check_starts(epochs, lambda _: inside)


def test_scheme_spans(epochs: Epochs) -> None:
    captions = dict.fromkeys(((0, i) for i in range(4)), "opens the drawer")
    captions |= dict.fromkeys(((0, i) for i in range(6, 9)), "closes it")
    check_starts(epochs, lambda _: dict.fromkeys(captions, 1))
    for clip in (clip for epoch in epochs for clip in epoch):
        assert clip["caption"] == captions[place(clip)]


def test_scheme_subsets(epochs: Epochs) -> None:
    check_starts(epochs, lambda _: {(1, i): 0.25 for i in range(16)})


def test_scheme_labels(epochs: Epochs) -> None:
    labels = {(0, 0): ("opens the drawer", 2), (0, 6): ("closes it", 0), (4, 3): ("pushes", 1)}
    check_starts(epochs, lambda _: dict.fromkeys(labels, 1))
    for clip in (clip for epoch in epochs for clip in epoch):
        assert (clip["caption"], clip["label"]) == labels[place(clip)]


def test_scheme_exponential_history(epochs: Epochs) -> None:
    for epoch in epochs:
        assert Counter(map(place, epoch)) == starts(1)
        for clip in epoch:
            frames = {"image": [-8, -4, -2, -1, 0], "action": range(4)}
            assert clip["frames_of"] == {n: clamped(clip, offsets) for n, offsets in frames.items()}


def test_scheme_two_rates(epochs: Epochs) -> None:
    for epoch in epochs:
        assert Counter(map(place, epoch)) == starts(8)
        for clip in epoch:
            start = clip["start"]
            frames = {"image": [start, start + 4], "action": [*range(start, start + 8)]}
            assert clip["frames_of"] == frames


def test_scheme_diffusion_forcing(epochs: Epochs) -> None:
    order = [*starts()]
    for number, epoch in enumerate(epochs):
        expected = SampleRandom(0, number).random(4 * len(order)).reshape(-1, 4)
        found = {place(clip): clip["noise"] for clip in epoch}
        assert found == {one: row.tolist() for one, row in zip(order, expected, strict=True)}


def test_scheme_temporal_contrast(epochs: Epochs) -> None:
    for epoch in epochs:
        for clip in epoch:
            assert 0 <= clip["positive"] - clip["start"] <= 3
            assert clip["frames_of"]["image"] == [clip["start"], clip["positive"]]
        assert Counter(map(place, epoch)) == starts(1)


def test_scheme_triplets(epochs: Epochs) -> None:
    for epoch in epochs:
        for clip in epoch:
            apart = abs(clip["far"] - clip["start"])
            assert 0 <= clip["near"] - clip["start"] <= 1
            assert min(apart, LENGTHS[clip["number"]] - apart) >= 4
            assert clip["frames_of"]["image"] == [clip["start"], clip["near"], clip["far"]]
        assert Counter(map(place, epoch)) == starts(1)


def test_scheme_random_views(epochs: Epochs) -> None:
    drawn = set()
    for epoch in epochs:
        for clip in epoch:
            views = [clip[name] for name in ("second", "third", "fourth")]
            assert clip["frames_of"]["image"] == [clip["start"], *views]
            assert all(0 <= frame < LENGTHS[clip["number"]] for frame in views)
            drawn |= {frame - clip["start"] for frame in views}
        assert Counter(map(place, epoch)) == starts(1)
    assert drawn == {*range(-4, 5)}


def test_scheme_overlap(epochs: Epochs) -> None:
    means = {(0, 3): 2, (7, 0): 0.5, (2, 9): 0.25}
    for epoch in epochs:
        assert all(clip["frames_of"]["image"] == clip["frames"] for clip in epoch)
        check_means(Counter(tuple(clip["frames"]) for clip in epoch), means)


def test_scheme_views(epochs: Epochs) -> None:
    for epoch in epochs:
        assert Counter(map(place, epoch)) == starts(3)
        assert {(clip["dilation"], clip["reversed"]) for clip in epoch} >= {(1, True), (2, False)}
        for clip in epoch:
            frames = [clip["start"] + clip["dilation"] * i for i in range(3)]
            assert clip["frames_of"]["image"] == frames[:: -1 if clip["reversed"] else 1]


def test_scheme_budget(epochs: Epochs) -> None:
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


def test_scheme_video_at_a_rate(epochs: Epochs) -> None:
    for epoch in epochs:
        assert sorted(clip["number"] for clip in epoch) == [*range(len(LENGTHS))]
        for clip in epoch:
            frames = [*range(0, LENGTHS[clip["number"]], 5)]
            rest = len(clip["frames"]) - len(frames)
            assert clip["frames"] == frames + [-1] * rest
            assert clip["frames_is_pad"] == [False] * len(frames) + [True] * rest
            assert clip["frames_of"]["image"][: len(frames)] == frames
