"""Parts of raw pages are read straight into rows where few of their frames are wanted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import seqrecord
from seqrecord import EngineOptions, SeqRecordPipe
from seqrecord.errors import ChecksumError
from tests.clip_data import LARGE, check, possible_clips, write_numbered

FRAME = math.prod(LARGE)  # bytes of an image


@pytest.fixture(scope="module", params=["even", "uneven"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chunks of 32 frames, or of up to 23: only from larger ones is a part worth its reading."""
    return write(tmp_path_factory.mktemp("direct"), [16] if request.param == "uneven" else [])


def write(folder: Path, flush_at: list[int]) -> Path:
    return write_numbered(
        folder / "records", codecs="raw", chunk_frames=None, shape=LARGE, flush_at=flush_at
    )


@pytest.mark.parametrize("stride", [3, 16])
@pytest.mark.parametrize("clip_len", [1, 2])
@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("verify", [True, False])
def test_clips_far_apart(
    path: Path, stride: int, clip_len: int, device: str | None, verify: bool
) -> None:
    features = ["image", "id"]
    pipe = SeqRecordPipe(
        seqrecord.open(path, verify=verify),
        clip_len=clip_len,
        stride=stride,
        features=features,
        batch_size=2,
        engine=EngineOptions(shuffle_buffer=8),
        device=device,
    )
    for _ in range(2):
        clips = [name for batch in pipe for name in check(batch, features, clip_len)]
        assert sorted(clips) == possible_clips(features, clip_len, stride)


def test_what_is_read_are_wanted_frames(tmp_path: Path) -> None:
    path = write(tmp_path, [])
    pipe = SeqRecordPipe(path, clip_len=1, stride=16, features=["image"], batch_size=2)
    every = [name for batch in pipe for name in check(batch, ["image"], 1)]
    assert sorted(every) == possible_clips(["image"], 1, 16)
    assert pipe.stats()["bytes_read"] == len(every) * (FRAME + 4)


@pytest.mark.parametrize(("frame", "is_wanted"), [(16, True), (15, False)])
def test_checksums_are_those_of_parts(tmp_path: Path, frame: int, is_wanted: bool) -> None:
    path = write(tmp_path, [])
    reader = seqrecord.open(path, features=["image"]).contents.chunks
    dataset = seqrecord.open(path)
    chunk = reader.chunk_at(0, int(dataset.contents.index.groups[0].first_chunk[3]))
    (page,) = reader.pages(chunk)
    file = path / chunk.path
    data = bytearray(file.read_bytes())
    data[page.start + frame * FRAME + 7] ^= 1
    file.write_bytes(data)
    settings: dict[str, Any] = {"clip_len": 1, "stride": 16, "features": ["image"]}
    pipe = SeqRecordPipe(path, batch_size=2, **settings)
    if not is_wanted:
        assert len(list(pipe)) == len(pipe)
        return
    with pytest.raises(ChecksumError, match=r"set/3 \(frames 0 to 31\)"):
        list(pipe)
