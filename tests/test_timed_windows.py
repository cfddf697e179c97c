"""Windows by timestamps, against brute force over all frames of an episode."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    ClipError,
    Seconds,
    SeqRecordDataset,
    SeqRecordPipe,
    SeqRecordStream,
    SeqRecordWriter,
)
from tests.clip_data import effective
from tests.resume_contract import check_resume

LENGTHS = (60, 1, 9, 33)
TIMES = [-0.25, 0, 0.1, 0.31]


def stamps(episode: int) -> npt.NDArray[np.int64]:
    """Nanoseconds: about ten frames a second, with jitter and a gap."""
    rng = np.random.default_rng(episode)
    steps = rng.integers(85_000_000, 115_000_000, LENGTHS[episode])
    if episode == 3:
        steps[20] += 150_000_000
    found: npt.NDArray[np.int64] = 1_700_000_000_000_000_000 + np.cumsum(steps)
    return found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("timed") / "records"
    features = {"time": {"kind": "timestamp", "unit": "ns"}}
    with SeqRecordWriter(path, features=features, chunk_frames=8) as writer:
        for number, length in enumerate(LENGTHS):
            with writer.episode(f"{number}") as episode:
                for i, at in enumerate(stamps(number)):
                    frame = {"time": at, "imu": np.array([number, i]), "image": np.full((4, 4), i)}
                    episode.append(frame)
                assert length == i + 1
    return path


def nearest(
    episode: int, start: int, times: list[float], tolerance: float
) -> list[tuple[int, bool, bool]]:
    """Frame, whether its time lies outside, and whether it lies too far away."""
    at = (stamps(episode) - stamps(episode)[0]) * 1e-9
    found = []
    for time in times:
        asked = at[start] + time
        frame = int(np.argmin(np.abs(at - asked)))
        far = abs(at[frame] - asked) > tolerance
        outside = far and not at[0] <= asked <= at[-1]
        found.append((frame, outside, far and not outside))
    return found


def check(clip: dict[str, Any], times: list[float], tolerance: float) -> None:
    episode, start = int(clip["episode"]), int(clip["start"])
    wanted = nearest(episode, start, times, tolerance)
    assert clip["imu"].tolist() == [[episode, frame] for frame, _, _ in wanted]
    assert clip["imu_is_pad"].tolist() == [outside or far for _, outside, far in wanted]
    assert clip["image"][:, 0, 0].tolist() == [start]


def clips_of(batch: dict[str, Any]) -> list[dict[str, Any]]:
    names = [name for name in batch if name != "episode"]
    return [
        {"episode": key, **{name: batch[name][i] for name in names}}
        for i, key in enumerate(batch["episode"])
    ]


@settings(deadline=None)
@given(
    times=st.lists(st.floats(-1.5, 1.5), min_size=1, max_size=4),
    tolerance=st.sampled_from([0.02, 0.06, 0.5]),
    shuffle=st.booleans(),
    device=st.sampled_from([None, "cpu"]),
)
def test_the_nearest_frames(
    path: Path, times: list[float], tolerance: float, shuffle: bool, device: str | None
) -> None:
    windows = {"imu": Seconds(times, by="time", tolerance=tolerance, beyond="pad")}
    options: dict[str, Any] = {"features": ["imu", "image"], "windows": windows, "pad": "edge"}
    order = effective({"shuffle": shuffle, "shuffle_buffer": 16})
    pipe = SeqRecordPipe(path, **options, **order, batch_size=5, device=device)
    clips = [clip for batch in pipe for clip in clips_of(batch)]
    assert len(clips) == sum(LENGTHS)
    far = 0
    for clip in clips:
        check(clip, times, tolerance)
        wanted = nearest(int(clip["episode"]), int(clip["start"]), times, tolerance)
        far += sum(one[2] for one in wanted)
    assert pipe.stats()["times_without_frame"] == far
    dataset = SeqRecordDataset(path, **options)
    for clip in dataset.__getitems__([0, 59, 60, 65, 102]):
        check({**clip, "imu_is_pad": clip["imu_is_pad"]}, times, tolerance)


def test_a_time_without_a_frame_is_an_error(path: Path) -> None:
    windows = {"imu": Seconds([0, 0.1], by="time", tolerance=0.06)}
    for make in (
        lambda: list(SeqRecordPipe(path, windows=windows, pad="edge", batch_size=4)),
        lambda: SeqRecordDataset(path, windows=windows, pad="edge", episodes=["3"])[19],
    ):
        with pytest.raises(ClipError, match="no frame is near enough") as caught:
            make()
        error = caught.value
        assert (error.episode, error.frame, error.feature) == ("3", 19, "time")
        assert error.expected == "a timestamp 0.1 s from that of the clip's start, to 0.06 s"
        assert str(error.got).startswith("the nearest one ")
    episodes = ["0", "1", "2"]
    assert list(SeqRecordPipe(path, windows=windows, pad="edge", episodes=episodes, batch_size=4))


def test_clips_inside_their_episodes(path: Path) -> None:
    """Without padding, clips are left out that might have a frame outside."""
    windows = {"imu": Seconds(TIMES, by="time", tolerance=0.06, beyond="pad")}
    pipe = SeqRecordPipe(path, windows=windows, features=["imu", "image"], batch_size=4)
    clips = [clip for batch in pipe for clip in clips_of(batch)]
    outside = pipe.stats()["clips_outside"]
    assert len(clips) + outside == sum(LENGTHS)
    assert len(clips) >= sum(max(0, length - 10) for length in LENGTHS)
    for clip in clips:
        check(clip, TIMES, 0.06)
        found = nearest(int(clip["episode"]), int(clip["start"]), TIMES, 0.06)
        assert not any(is_outside for _, is_outside, _ in found)


def test_resumes_and_works_in_workers(path: Path) -> None:
    windows = {"imu": Seconds(0, 0.4, every=0.1, by="time", tolerance=0.2, beyond="pad")}
    options: dict[str, Any] = {"windows": windows, "pad": "edge", "batch_size": 8}
    options["engine"] = seqrecord.EngineOptions(num_cursors=8)
    check_resume(lambda: SeqRecordPipe(path, **options), num_epochs=2)
    stream = SeqRecordStream(path, **options)
    batches = list(DataLoader(stream, batch_size=None, num_workers=1))
    dataset = pickle.loads(pickle.dumps(SeqRecordDataset(path, windows=windows, pad="edge")))
    assert (
        dataset[30]["imu"].tolist()
        == SeqRecordDataset(path, windows=windows, pad="edge")[30]["imu"].tolist()
    )
    for clip in (clip for batch in batches for clip in clips_of(batch)):
        check(clip, [0, 0.1, 0.2, 0.3, 0.4], 0.2)


def test_windows_that_time_cannot_bound(path: Path, tmp_path: Path) -> None:
    def refused(path: Path, message: str, by: str = "time") -> ClipError:
        with pytest.raises(ClipError, match=message) as caught:
            SeqRecordDataset(path, windows={"a": Seconds([0.1], by=by)})
        return caught.value

    features = {"time": {"kind": "timestamp", "unit": "s"}}
    for name, episodes in (("back", [[1, 2, 3], [1, 2, 2]]), ("none", [[1, 2, 3], [1, 0, 3]])):
        with SeqRecordWriter(tmp_path / name, features=features, statistics=False) as writer:
            for number, times in enumerate(episodes):
                with writer.episode(f"{number}") as episode:
                    for time in times:
                        frame = {"time": np.float64(time)} if time else {}
                        episode.append({**frame, "a": np.int64(time)})
    for name in ("back", "none"):
        error = refused(tmp_path / name, "timestamps do not ascend, or a frame has none")
        assert (error.episode, error.feature) == ("1", "time")
    assert refused(tmp_path / "back", "a feature that is not there", by="b").got == "b"
    assert (
        refused(tmp_path / "back", "not a timestamp", by="a").got
        == "kind None, unit None, int64 []"
    )
    windows = {"a": Seconds([1], by="time")}  # others than the selected episode do not matter
    clips = SeqRecordDataset(tmp_path / "none", windows=windows, episodes=["0"], pad="edge")
    assert [clip["a"].tolist() for clip in (clips[0], clips[1], clips[2])] == [[2], [3], [3]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"first": -0.5, "last": 0, "by": "time"}, "need to be told each time"),
        ({"first": [0], "by": 3}, "not a feature's name"),
        ({"first": [0], "beyond": "pad"}, "beyond of Seconds"),
        ({"first": [0], "by": "time", "beyond": "skip"}, "beyond of Seconds"),
    ],
)
def test_bad_seconds(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ClipError, match=message):
        Seconds(**arguments)


def test_episodes_of_one_frame_have_no_other(tmp_path: Path) -> None:
    """No frame stands for another one without a word."""
    path, features = tmp_path / "records", {"time": {"kind": "timestamp", "unit": "s"}}
    with SeqRecordWriter(path, features=features) as writer, writer.episode("a") as episode:
        episode.append({"x": np.array([3]), "time": np.array(1.5)})
    for times in ([-0.5, 0], [0, 0.5]):
        windows = {"x": Seconds(times, by="time")}
        with pytest.raises(ClipError, match="no clip has all of its frames"):
            SeqRecordDataset(path, windows=windows)
        padded = SeqRecordDataset(path, windows=windows, pad="edge")[0]
        assert padded["x_is_pad"].tolist() == [time != 0 for time in times]
    assert SeqRecordDataset(path, windows={"x": Seconds([0], by="time")})[0]["x"].tolist() == [[3]]
