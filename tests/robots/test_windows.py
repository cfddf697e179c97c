"""Windows in seconds equal lerobot's for the same `delta_timestamps`, masks included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqrecord import Seconds, SeqRecordMapDataset, SeqRecordPipe, convert, open_source
from tests.golden.make_lerobot_windows import WINDOWS
from tests.kit.lerobot_video_data import unpack

GOLDEN = Path(__file__).parents[1] / "golden" / "lerobot_windows.npz"


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("lerobot")
    convert(open_source(unpack(folder)), folder / "records", workers=1)
    return folder / "records", {"features": [*WINDOWS, "next.reward"], "pad": "edge"}


@pytest.mark.parametrize("by", [None, "timestamp"])
def test_every_clip_equals_lerobots(arguments: tuple[Path, dict[str, Any]], by: str | None) -> None:
    """By frames per second, and by the timestamps written by lerobot."""
    path, options = arguments
    windows = {name: Seconds(times, timestamps=by) for name, times in WINDOWS.items()}
    options = {**options, "windows": windows}
    with np.load(GOLDEN) as golden:
        wanted = dict(golden)
    order = list(zip(wanted["episode_index"], wanted["frame_index"], strict=True))
    clips = SeqRecordMapDataset(path, **options)
    assert len(clips) == len(order) == 15
    [batch] = SeqRecordPipe(path, **options, batch_size=15, shuffle=True, seed=3)
    for i, (episode, frame) in enumerate(order):
        clip, key = clips[i], f"episode_{episode:06d}"
        assert (clip["episode"], clip["start"]) == (key, frame)
        at = list(zip(batch["episode"], batch["start"].tolist(), strict=True)).index((key, frame))
        for name in WINDOWS:
            for column in (name, f"{name}_is_pad"):
                expected = wanted[column][i]
                for got in (clip[column].numpy(), batch[column][at].numpy()):
                    # lerobot gives other integers and float32; pixels are rounded to 1 / 255.
                    np.testing.assert_array_equal(got.astype(expected.dtype), expected)
        assert clip["next.reward"].tolist() == [wanted["next.reward"][i]]
