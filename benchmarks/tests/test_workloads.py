"""The comparison's other workloads: their recordings, and that every loader gives their clips."""

from __future__ import annotations

import json
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.audio.generate import speech
from benchmarks.audio.wav import BLOCK, RATE, read_blocks, wav_file
from benchmarks.rgbd import frames
from benchmarks.rgbd.frames import DEPTH, IMAGE, ONCE, PER_CLIP, SIZE, resize, resize_clip
from benchmarks.rgbd.generate import generate as generate_rgbd
from benchmarks.tartanair.compare import __main__ as command
from benchmarks.tartanair.compare.check import Originals, check
from benchmarks.tartanair.compare.children import run_task
from benchmarks.tartanair.compare.prepared import folder_of, prepare
from benchmarks.tartanair.compare.recordings import Recordings
from benchmarks.tartanair.compare.row import Task
from benchmarks.tartanair.compare.workloads import AUDIO, RGBD, TARTANAIR, WORKLOADS, Workload
from benchmarks.tartanair.loaders.base import Loader, Place, Settings

# Other people's loaders leave files open and warn of this and that.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SETTINGS = {
    "audio": replace(AUDIO.base, clip_len=3, batch_size=4, shuffle_buffer=5),
    "rgbd": replace(RGBD.base, clip_len=2, batch_size=2, shuffle_buffer=4),
}
ROWS = [(workload, name) for workload in SETTINGS for name in WORKLOADS[workload].loaders()]


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each workload, with its recordings in `tree`."""
    folder = tmp_path_factory.mktemp("workloads")
    AUDIO.generate(folder / "audio" / "tree", [7, 9, 2, 5])
    generate_rgbd(folder / "rgbd" / "tree", [4, 5, 1, 3], height=48, width=64)
    return {name: folder / name for name in SETTINGS}


def opened(workload: Workload, works: dict[str, Path]) -> Recordings:
    work = works[workload.name]
    return workload.open(work / "tree", workload.base.features, work)


@pytest.fixture(params=ROWS, ids="-".join)
def row(request: pytest.FixtureRequest) -> tuple[Workload, Loader]:
    workload = WORKLOADS[request.param[0]]
    loader = workload.loaders()[request.param[1]]
    if missing := loader.missing():
        pytest.skip(missing)
    return workload, loader


def problems(row: tuple[Workload, Loader], works: dict[str, Path], settings: Settings) -> list[str]:
    workload, loader = row
    return check(loader, opened(workload, works), works[workload.name], settings, epochs=2)


@pytest.mark.parametrize(
    ("shuffle", "changes"),
    [
        *(("off", changes) for changes in ({}, {"stride": 2}, {"workers": 2})),
        *((shuffle, {"workers": n}) for shuffle in ("buffer", "full") for n in (0, 2)),
    ],
)
def test_every_order(
    row: tuple[Workload, Loader], works: dict[str, Path], shuffle: str, changes: dict[str, Any]
) -> None:
    settings = replace(SETTINGS[row[0].name], shuffle=shuffle, **changes)
    if reason := row[1].refuses(settings):
        pytest.skip(reason)
    assert problems(row, works, settings) == []


@pytest.mark.parametrize("name", list(RGBD.loaders()))
def test_depth_alone(works: dict[str, Path], name: str) -> None:
    loader = RGBD.loaders()[name]
    if missing := loader.missing():
        pytest.skip(missing)
    settings = replace(SETTINGS["rgbd"], features=(DEPTH,))
    assert problems((RGBD, loader), works, settings) == []


@pytest.mark.parametrize("name", list(RGBD.loaders()))
def test_a_frame_is_resized_as_often_as_its_kind_says(
    works: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader, settings = RGBD.loaders()[name], replace(SETTINGS["rgbd"], features=(DEPTH,))
    if missing := loader.missing():
        pytest.skip(missing)
    recordings, work = opened(RGBD, works), works["rgbd"]
    prepare(loader, recordings, work, settings)
    resized = []

    def counting(depth: Any) -> Any:
        resized.append(depth.shape)
        return original(depth)

    original = frames.RESIZE[DEPTH]
    monkeypatch.setitem(frames.RESIZE, DEPTH, counting)
    clips = recordings.clips(settings.clip_len, settings.stride)
    place = Place(folder_of(loader, recordings, work, settings))
    given = sum(len(batch["start"]) for batch in loader.open(place, clips, settings))
    assert given == len(clips) == 9
    # Of 13 frames, one is alone in its recording and in no clip: a loader may leave it out. A trial
    # call of a `frame_transform` is repeated, to see that it gives the same.
    assert len(resized) in {ONCE: (12, 13, 15), PER_CLIP: (2 * 9,)}[loader.kind]


def test_sound_is_a_second_in_ten_frames(works: dict[str, Path]) -> None:
    recordings = opened(AUDIO, works)
    assert [episode.num_frames for episode in recordings.episodes] == [7, 9, 2, 5]
    assert AUDIO.base.clip_len * BLOCK == RATE
    root = works["audio"] / "tree"
    with wave.open(str(wav_file(root, "00001"))) as file:
        assert file.getparams()[:4] == (1, 2, RATE, 9 * BLOCK)
        samples = np.frombuffer(file.readframes(9 * BLOCK), "<i2")
    assert (speech(9 * BLOCK, number=1) == samples).all()
    clip = Originals(recordings).clip("00001", 2, 3, "audio")
    assert (clip.reshape(-1) == samples[2 * BLOCK : 5 * BLOCK]).all()
    assert (read_blocks(wav_file(root, "00001"), 2, 5) == clip).all()


def test_speech_has_words_and_pauses() -> None:
    loudness = np.abs(speech(5 * RATE).astype(float)).reshape(-1, RATE // 50).mean(1)
    assert np.percentile(loudness, 90) > 20 * np.percentile(loudness, 10)
    assert (speech(RATE) == speech(RATE)).all()
    assert (speech(RATE, number=1) != speech(RATE)).mean() > 0.9


def test_an_rgbd_camera(works: dict[str, Path]) -> None:
    recordings = opened(RGBD, works)
    assert [episode.num_frames for episode in recordings.episodes] == [4, 5, 1, 3]
    shapes = {name: (f.dtype, f.shape) for name, f in recordings.features.items()}
    assert shapes == {IMAGE: ("|u1", (48, 64, 3)), DEPTH: ("<u2", (48, 64))}
    folder = works["rgbd"] / "tree" / "0000"
    with Image.open(folder / IMAGE / "000000.jpg") as image:
        assert (image.format, image.size) == ("JPEG", (64, 48))
    frame = next(recordings.rows())
    assert 500 < np.median(frame[DEPTH]) < 30_000  # millimetres, in a hall


def test_frames_are_resized_alike_in_clips_and_alone() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, 480, 640, 3), np.uint8)
    depth = rng.integers(0, 65_536, (2, 480, 640), np.uint16)
    clip = resize_clip({IMAGE: images, DEPTH: depth})
    for i in range(2):
        frame = resize({IMAGE: images[i], DEPTH: depth[i]})
        assert (frame[IMAGE] == clip[IMAGE][i]).all()
        assert (frame[DEPTH] == clip[DEPTH][i]).all()
    assert clip[IMAGE].shape == (2, *SIZE, 3)
    assert clip[DEPTH].dtype == np.float32
    # That pixel has its middle 1.25 rows down and 3.75 columns across.
    assert clip[DEPTH][0, 0, 1] == np.float32(0.001) * np.float32(depth[0, 1, 3])
    assert abs(clip[IMAGE].mean() - images.mean()) < 0.5


@pytest.mark.parametrize(
    ("workload", "num_frames", "count", "expected"),
    [
        (TARTANAIR, 163, None, [40] * 4),
        (TARTANAIR, 100, 2, [50] * 2),
        (AUDIO, 350, None, [100] * 3),
        (AUDIO, 30, None, [30]),
        (RGBD, 480, 4, [120] * 4),
    ],
)
def test_lengths_of_recordings(
    workload: Workload, num_frames: int, count: int | None, expected: list[int]
) -> None:
    assert workload.episodes(num_frames, count) == expected


def test_a_row_of_a_workload(works: dict[str, Path]) -> None:
    """In a process of its own, which gets its loaders and recordings by the workload's name."""
    recordings = opened(AUDIO, works)
    task = Task(
        do="prepare",
        loader="numpy-files",
        settings=SETTINGS["audio"],
        root=str(recordings.root),
        features=tuple(recordings.features),
        work=str(works["audio"]),
        workload="audio",
    )
    assert "error" not in run_task(task, 60)
    result = run_task(replace(task, do="measure"), 60)
    assert result["problems"] == []
    assert result["clips"] == 5 + 7 + 3


def test_a_workload_from_end_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(task: Task, _limit: float) -> dict[str, Any]:
        return {**Task.loads(task.dumps()).run(), "peak_memory_bytes": 0}  # in this process

    monkeypatch.setattr(command, "run_task", run)
    monkeypatch.setattr(command, "copy_rate", lambda *_args, **_named: 1e9)
    arguments = "--workload audio --frames 30 --loaders original seqrecord --stride 10"
    command.main([str(tmp_path), *arguments.split(), "--epochs", "1", "--max-seconds", "2"])
    rows = json.loads((tmp_path / "audio" / "results.json").read_text())["rows"]
    assert [(row["loader"], row["clips"], row["problems"]) for row in rows] == [
        ("original", 3, []),
        ("seqrecord", 3, []),
    ]
    assert "| seqrecord | features=audio clip_len=10 stride=10" in capsys.readouterr().out


def test_what_a_workload_has_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main([str(tmp_path), "--workload", "audio", "--loaders", "ffcv"])
    assert "no loader ffcv of audio: original, seqrecord" in capsys.readouterr().err
