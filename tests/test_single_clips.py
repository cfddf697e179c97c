"""Single clips, which an engine makes together: one after the other, as if each came alone."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import seqrecord
from seqrecord import SeqRecordPipe, SeqRecordStream
from seqrecord.errors import MemoryLimitError
from tests.clip_data import LARGE, check_ended, digest, names, write_numbered

CLIPS: dict[str, Any] = {"clip_len": 3, "seed": 1, "features": ["image", "id"]}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbered(tmp_path_factory.mktemp("single") / "records")


def address(clip: dict[str, Any]) -> int:
    return int(clip["image"].untyped_storage().data_ptr())


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 50])
def test_a_state_counts_the_clips_that_were_given(path: Path, count: int) -> None:
    expected = [digest(clip) for clip in SeqRecordPipe(path, **CLIPS)]
    assert len(expected) > 64
    pipe = SeqRecordPipe(path, **CLIPS)
    iterator = iter(pipe)
    found = [digest(clip) for clip in islice(iterator, count)]
    assert (pipe.stats()["clips"], pipe.stats()["batches"]) == (count, count)
    state = pipe.state_dict()
    del iterator  # it is left early
    assert (pipe.stats()["clips"], pipe.stats()["batches"]) == (count, count)
    other = SeqRecordPipe(path, **CLIPS)
    other.load_state_dict(state)
    found += [digest(clip) for clip in other]
    assert found == expected
    assert other.stats()["clips"] == len(expected) - count


def test_they_lie_side_by_side(path: Path) -> None:
    clips = list(islice(SeqRecordPipe(path, **CLIPS), 40))
    assert [len({address(clip) for clip in part}) for part in (clips[:32], clips)] == [1, 2]
    batch = seqrecord.collate(clips[4:8])
    assert address(batch) == address(clips[0])
    assert names(batch) == [name for clip in clips[4:8] for name in names(clip)]
    across = seqrecord.collate(clips[30:34])
    assert address(across) not in {address(clip) for clip in clips}
    assert names(across) == [name for clip in clips[30:34] for name in names(clip)]


def test_large_ones_have_memory_of_their_own(tmp_path: Path) -> None:
    path = write_numbered(tmp_path / "records", shape=(2 * LARGE[0], 6 * LARGE[1], *LARGE[2:]))
    clips = list(islice(SeqRecordPipe(path, **CLIPS), 4))
    assert clips[0]["image"].nbytes > 1 << 19
    assert len({address(clip) for clip in clips}) == 4


def test_little_memory_is_enough(path: Path) -> None:
    with pytest.raises(MemoryLimitError) as caught:
        SeqRecordPipe(path, **CLIPS, memory_limit=1)
    assert caught.value.expected is not None
    expected = [digest(clip) for clip in SeqRecordPipe(path, **CLIPS, shuffle=False)]
    options = {**CLIPS, "shuffle": False, "num_threads": 1}
    for limit in (1 << n for n in range(8, 24)):
        try:
            pipe = SeqRecordPipe(path, **options, memory_limit=limit)
        except MemoryLimitError:
            continue
        assert [digest(clip) for clip in pipe] == expected
        break


def test_an_iteration_that_was_ended_gives_no_more_of_them(path: Path) -> None:
    check_ended(SeqRecordStream(path, **CLIPS))
