"""Functions of clips: called with what crops leave, drawn from seed, epoch and clip."""

from __future__ import annotations

import itertools
import pickle
import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    ClipError,
    HorizontalFlip,
    RandomCrop,
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordNode,
    SeqRecordPipe,
)
from seqrecord.engine.crops import frames_in
from tests.clip_data import leaves_nothing
from tests.test_crops import frame_of, singles, write


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("functions") / "records", cameras=0)


def mean_and_draw(clip: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """A changed feature, one with another number of frames, a drawn one, and one as it was."""
    assert not clip["image"].flags.writeable
    return {
        "image": clip["image"][::-1].transpose(0, 3, 1, 2),
        "motion": np.abs(clip["flow"]).sum((1, 2))[:1],
        "notes": np.array([len(note) for note in clip["note"]]),
        "drawn": generator.random(2, np.float32),
        "pose": clip["pose"],
    }


def twice(clip: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """Of what `mean_and_draw` gives."""
    return {**clip, "motion": torch.from_numpy(clip["motion"] * 2), "more": generator.random(1)}


CHAINS: dict[str, Any] = {
    "function": mean_and_draw,
    "crop, flip, two functions": [
        RandomCrop((4, 6), features=["image", "flow"]),
        HorizontalFlip(0.5, features=["image", "flow"]),
        mean_and_draw,
        twice,
    ],
}


def check_clip(clip: dict[str, Any], length: int, dilation: int) -> None:
    """A clip is what its names, `crop` and `flipped` say; what is drawn is checked elsewhere."""
    episode = int(clip["episode"][4:])
    frames = [frame_of(episode, int(clip["start"]) + i * dilation) for i in range(length)]
    whole: dict[str, Any] = {name: [frame[name] for frame in frames] for name in frames[0]}
    whole = {name: item if name == "note" else np.stack(item) for name, item in whole.items()}
    assert ("crop" in clip) == ("more" in clip)
    if "crop" in clip:
        top, left, height, width = clip["crop"].tolist()
        for name in ("image", "flow"):
            whole[name] = whole[name][:, top : top + height, left : left + width]
            if clip["flipped"]:
                whole[name] = whole[name][:, :, ::-1]
    whole["image"].flags.writeable = False
    expected = mean_and_draw(whole, np.random.default_rng(0))
    if "more" in clip:
        expected["motion"] = expected["motion"] * 2
    for name, array in expected.items():
        assert clip[name].numpy().dtype == array.dtype
        if name == "motion":
            np.testing.assert_allclose(clip[name].numpy(), array, rtol=1e-5)
        elif name != "drawn":
            np.testing.assert_array_equal(clip[name].numpy(), array)
    assert set(clip) - {"crop", "flipped", "more"} == {*expected, "episode", "start"}


def drawn(clips: Any) -> dict[tuple[str, int], list[float]]:
    """What was drawn for each clip, of batches or single clips."""
    found: dict[tuple[str, int], list[float]] = {}
    for item in clips:
        for clip in singles(item) if isinstance(item["episode"], list) else [item]:
            numbers = clip["drawn"].tolist() + clip.get("more", clip["drawn"]).tolist()
            found[clip["episode"], int(clip["start"])] = numbers
    return found


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 3, "dilation": 2},
        {"batch_size": 2, "stride": 3},
        {"batch_size": 4, "shuffle": False, "memory_limit": "1MiB"},
        {},
    ],
    ids=str,
)
def test_clips_are_what_the_functions_make(path: Path, name: str, settings: Any) -> None:
    pipe = SeqRecordPipe(path, clip_len=3, clip_transform=CHAINS[name], seed=1, **settings)
    assert "motion: float32 [1, 2]" in repr(pipe)
    count = 0
    for item in pipe:
        for clip in singles(item) if "batch_size" in settings else [item]:
            check_clip(clip, 3, settings.get("dilation", 1))
            count += 1
    assert count == pipe.num_clips


def test_draws_depend_on_seed_epoch_and_clip_alone(path: Path) -> None:
    settings: dict[str, Any] = {
        "clip_len": 3,
        "clip_transform": CHAINS["crop, flip, two functions"],
    }
    pipe = SeqRecordPipe(path, **settings, batch_size=3, seed=2)
    first = drawn(pipe)
    assert len({str(numbers) for numbers in first.values()}) == len(first)
    assert first == drawn(SeqRecordPipe(path, **settings, shuffle=False, seed=2))
    assert drawn(pipe) != first
    assert drawn(SeqRecordPipe(path, **settings, batch_size=3, seed=3)) != first
    copy = pickle.loads(pickle.dumps(SeqRecordPipe(path, **settings, batch_size=3, seed=2)))
    iterator = iter(copy)
    given = drawn(next(iterator) for _ in range(4))
    again = SeqRecordPipe(path, **settings, batch_size=3, seed=2)
    again.load_state_dict(copy.state_dict())
    rest = drawn(again)
    assert {**given, **rest} == first
    with leaves_nothing():
        stream = SeqRecordIterableDataset(path, **settings, batch_size=3, seed=2)
        loader = DataLoader(stream, batch_size=None, num_workers=2)
        assert drawn(loader) == first
        del loader, stream


def test_clips_by_number(path: Path) -> None:
    for chain in CHAINS.values():
        dataset = SeqRecordMapDataset(path, clip_len=3, dilation=2, clip_transform=chain)
        torch.manual_seed(0)
        first = dataset.__getitems__([3, 9, 0, 9])
        for clip in [*first, dataset[5]]:
            check_clip(clip, 3, 2)
        torch.manual_seed(0)
        assert drawn(first) == drawn(dataset.__getitems__([3, 9, 0, 9]))
        batch = seqrecord.collate(first)
        assert batch["motion"].shape == (4, 1, 2)
        assert batch["motion"].data_ptr() == first[0]["motion"].data_ptr()  # side by side


def test_functions_see_views() -> None:
    array = np.arange(60).reshape(10, 3, 2)
    assert np.shares_memory(frames_in(array, np.array([3, 5, 7])), array)
    for rows in ([3, 5, 7], [8, 9, 0], [5, 5, 5], [7, 5, 3], [4]):
        np.testing.assert_array_equal(frames_in(array, np.array(rows)), array[rows])


# ---- errors


def fails_at(number: int, make: Callable[[dict[str, Any]], Any]) -> Any:
    """A function that gives what `make` makes for the clip at frame `number` of its episode."""

    def function(clip: dict[str, Any], _: np.random.Generator) -> Any:
        result = {"x": clip["pose"].sum(1), "y": clip["depth"][:, 0, 0]}
        return make(result) if (clip["pose"][0] == POSE[number]).all() else result

    return function


POSE = [frame_of(2, number)["pose"] for number in range(12)]


def broken(_: Any) -> Any:
    raise KeyError("nothing")


BAD: list[tuple[Any, type[Exception], str]] = [
    (broken, KeyError, "nothing"),
    (
        lambda made: {**made, "x": made["x"][:2]},
        ClipError,
        r"^clip_transform returns.* first clip;.*float64 \[3\].*float64 \[2\]",
    ),
    (lambda made: {**made, "x": made["x"].astype("f4")}, ClipError, r"float64.*float32 \[3\]"),
    (lambda made: {"x": made["x"]}, ClipError, "other features than for the first clip.*x, y"),
    (lambda made: {**made, "z": made["x"]}, ClipError, "other features than for the first clip"),
    (lambda made: made["x"], ClipError, "does not return arrays by name"),
    (lambda _: {}, ClipError, "does not return arrays by name"),
]


@pytest.mark.parametrize(("make", "kind", "message"), BAD)
def test_an_error_names_the_clip(
    path: Path, make: Any, kind: type[Exception], message: str
) -> None:
    function = fails_at(7, make)
    dataset = SeqRecordMapDataset(path, clip_len=3, clip_transform=function)
    number = len(dataset) - 3  # of ten clips of the last episode
    settings: dict[str, Any] = {"clip_len": 3, "clip_transform": function}
    with leaves_nothing():
        for use in (
            lambda: list(SeqRecordPipe(path, **settings, batch_size=2)),
            lambda: dataset[number],
        ):
            with pytest.raises(kind, match=message) as caught:
                use()
            told = str(caught.value) + str(getattr(caught.value, "__notes__", ""))
            assert "set/2" in told
            assert re.search(r"frame:? 7\b", told)
            assert str(path) in told
            del caught


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "does not return arrays by name"),
        ({}, "does not return arrays by name"),
        ({1: np.zeros(3)}, "does not return arrays by name"),
        ({"x": 3.0}, "a scalar"),
        ({"x": np.array(["text"])}, "torch has no such dtype"),
        ({"x": np.array([None])}, "torch has no such dtype"),
        ({"x": [np.zeros(2), np.zeros(3)]}, "not an array"),
        ({"start": np.zeros(3)}, "name of a batch's extra column"),
        ({"crop": np.zeros(3)}, "name of a batch's extra column"),
    ],
)
def test_what_functions_may_not_give(path: Path, result: Any, message: str) -> None:
    for loader in (SeqRecordPipe, SeqRecordMapDataset):
        with pytest.raises(ClipError, match=message):
            loader(path, clip_len=3, clip_transform=lambda *_: result)


def test_an_array_is_not_written_to(path: Path) -> None:
    def function(clip: dict[str, Any], _: np.random.Generator) -> Any:
        clip["image"] += 1
        return clip

    with pytest.raises(ValueError, match="read-only"):
        SeqRecordPipe(path, clip_len=3, clip_transform=function)


def drawn_by(draw: Callable[[], Any]) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
    return lambda clip, _: {"pose": np.asarray(clip["pose"]) + np.float32(draw())}


COUNTER = itertools.count()
GLOBAL: dict[str, tuple[Callable[[], Any], str]] = {
    "torch": (lambda: torch.rand(()), "global generator of torch"),
    "random": (random.random, "global generator of random"),
    "numpy.random": (np.random.random, "global generator of numpy.random"),
    "default_rng": (lambda: np.random.default_rng().random(), "different results"),
    "RandomState": (lambda: np.random.RandomState().rand(), "different results"),
    "Random": (lambda: random.Random().random(), "different results"),
    "SystemRandom": (lambda: random.SystemRandom().random(), "different results"),
    "a generator that goes on": (np.random.default_rng(0).random, "different results"),
    "a counter": (lambda: next(COUNTER), "different results"),
}


@pytest.mark.parametrize("loader", [SeqRecordPipe, SeqRecordMapDataset, SeqRecordNode])
@pytest.mark.parametrize("name", GLOBAL)
def test_a_function_whose_draws_no_seed_decides_is_refused(
    path: Path, loader: Any, name: str
) -> None:
    """As transforms of torchvision have it: threads would draw from it in any order."""
    draw, message = GLOBAL[name]
    with pytest.raises(ClipError, match=message) as caught:
        loader(path, clip_len=2, clip_transform=drawn_by(draw))
    assert "torchvision.transforms.v2.functional" in str(caught.value.expected)
    assert caught.value.episode is not None
    with pytest.raises(ClipError, match=message):
        loader(path, clip_len=2, clip_transform=[lambda clip, _: clip, drawn_by(draw)])
    with pytest.raises(ClipError, match=f"frame_transform.*{message}"):
        loader(path, clip_len=2, frame_transform=lambda frame: drawn_by(draw)(frame, None))


def test_seeded_generators_of_every_library_are_taken(path: Path) -> None:
    def own(clip: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        seed = int(generator.integers(1 << 62))
        drawn = torch.rand((), generator=torch.Generator().manual_seed(seed))
        other = random.Random(seed).random() + np.random.default_rng(seed).random()
        return {"pose": torch.tensor(clip["pose"]) + drawn + other}

    torch.manual_seed(3)
    (first, again) = ([clip["pose"] for clip in SeqRecordPipe(path, clip_len=2, clip_transform=own)]
                      for _ in range(2))  # fmt: skip
    assert all(map(torch.equal, first, again))

    def in_place(frame: dict[str, Any]) -> dict[str, Any]:
        frame["pose"] += 1
        return {"pose": frame["pose"]}

    (clip, *_) = SeqRecordPipe(path, clip_len=1, shuffle=False, frame_transform=in_place)
    assert np.array_equal(clip["pose"][0], frame_of(0, 0)["pose"] + 1)


@pytest.mark.parametrize("loader", [SeqRecordPipe, SeqRecordMapDataset])
def test_a_function_of_other_arguments_is_refused(path: Path, loader: Any) -> None:
    def three(clip: Any, generator: Any, more: Any) -> Any:
        raise AssertionError

    one = torch.nn.Identity()  # as transforms of torchvision: called with what `forward` takes
    for function in (lambda clip: clip, three, [pose_of, lambda clip: clip], one):
        with pytest.raises(ClipError, match="cannot be called with 2 arguments") as caught:
            loader(path, clip_len=2, clip_transform=function)
        assert caught.value.expected == "a function of (clip, generator)"
    for other in (lambda frame, generator: frame, three):
        with pytest.raises(ClipError, match="cannot be called with 1 argument") as caught:
            loader(path, clip_len=2, frame_transform=other)
        assert caught.value.expected == "a function of (frame)"
    with pytest.raises(ClipError, match="cannot be called with 1 argument"):
        seqrecord.open(path).compute_statistics(frame_transform=cast("Any", three))
    # What can be called so is taken, whatever its signature is.
    for good in (lambda *both: pose_of(*both), partial(three_of, 1), pose_of):
        next(iter(loader(path, clip_len=2, clip_transform=good)))


def pose_of(clip: dict[str, Any], generator: Any, scale: int = 1) -> dict[str, Any]:
    return {"pose": clip["pose"] * scale}


def three_of(number: int, clip: dict[str, Any], generator: Any) -> dict[str, Any]:
    return {"pose": clip["pose"] * number}


def test_functions_are_not_called_on_a_device(path: Path) -> None:
    with pytest.raises(ClipError, match=r"called on the host; .*prefetch_to_device"):
        SeqRecordPipe(path, clip_len=3, clip_transform=mean_and_draw, device="cpu")


def stops_frames(frame: dict[str, Any]) -> dict[str, Any]:
    if np.array_equal(frame["pose"], frame_of(1, 4)["pose"]):
        next(iter(()))
    return {"pose": frame["pose"]}


def stops_clips(clip: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    for pose in clip["pose"]:
        stops_frames({"pose": pose})
    return {"pose": clip["pose"]}


@pytest.mark.parametrize("transform", ["frame_transform", "clip_transform"])
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_function_that_raises_stop_iteration_does_not_end_the_clips(
    path: Path, transform: str, workers: int
) -> None:
    """The loop ended as if all clips were given: after 13 of 28."""
    function: Any = stops_frames if transform == "frame_transform" else stops_clips
    options: dict[str, Any] = {"clip_len": 4, "features": ["pose"], transform: function}
    dataset = SeqRecordMapDataset(path, **options)
    raised = f"{transform} raised StopIteration.*set/1"
    with pytest.raises(ClipError, match=raised):
        for _ in DataLoader(dataset, batch_size=1, num_workers=workers, collate_fn=len):
            pass
    with pytest.raises(ClipError, match=raised):
        list(SeqRecordPipe(path, **options))
