"""More episodes and runs than 23 bits can number: every clip is correct."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from seqrecord import SeqRecordIterableDataset, SeqRecordMapDataset, SeqRecordWriter
from seqrecord.format.index import NO_SPLIT, Index
from seqrecord.format.manifest import RecordFile, put_manifest, read_tagged
from seqrecord.storage import LocalStorage
from tests.core.data.big_index import put_tables
from tests.kit.tiny import loaded

EPISODES, FRAMES, STORED = (1 << 23) + 200, 3, 97
FIRST = (1 << 23) - 200  # the first episode that is read


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose index repeats 97 episodes."""
    root = tmp_path_factory.mktemp("many") / "records"
    with SeqRecordWriter(root, codecs={"x": [{"id": "zstd", "level": 1}]}) as writer:
        for number in range(STORED):
            with writer.episode(f"{number:08}") as episode:
                for frame in range(FRAMES):
                    episode.append({"x": np.array([number, frame])})
    storage = LocalStorage(root)
    manifest, index = loaded(root)
    _, tag = read_tagged(storage)
    tables = put_tables(root, _repeated(index, EPISODES))
    # Opening a dataset of so few bytes with so many chunks would fail.
    absent = RecordFile("records/absent.seqrec", 1 << 40, "f" * 32)
    files = (*manifest.record_files, absent)
    counts: dict[str, Any] = {"num_episodes": EPISODES, "num_frames": EPISODES * FRAMES}
    manifest = replace(manifest, record_files=files, index=tables, **counts)
    put_manifest(storage, manifest, expected=tag)
    return root


def _repeated(index: Index, count: int) -> Index:
    rows, zero = np.arange(count) % STORED, np.zeros(count, np.int64)
    [group] = index.groups
    columns = [f.name for f in fields(group) if f.name not in ("schema", "features", "gaps")]
    digits = np.arange(count)[:, None] // 10 ** np.arange(7, -1, -1) % 10
    return Index(
        schema=index.schema,
        keys=_texts(digits.astype(np.uint8) + ord("0")),
        uids=np.arange(2 * count).view(np.uint8).reshape(-1, 16),
        metadata=_texts(np.tile(np.frombuffer(b"{}", np.uint8), (count, 1))),
        num_frames=zero + FRAMES,
        fps=zero.astype(np.float64),
        split=np.full(count, NO_SPLIT, np.uint16),
        groups=(replace(group, **{name: getattr(group, name)[rows] for name in columns}),),
    )


def _texts(letters: npt.NDArray[np.uint8]) -> pa.StringArray:
    count, length = letters.shape
    ends = np.arange(count + 1, dtype=np.int32) * length
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(letters))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_random_access_to_more_than_2_to_the_23_episodes(root: Path) -> None:
    dataset = SeqRecordMapDataset(root, clip_len=2, memory_limit="1MiB")
    numbers = [*range(2 * FIRST, 2 * EPISODES)]
    wanted = [[[e % STORED, f], [e % STORED, f + 1]] for e, f in (divmod(n, 2) for n in numbers)]
    assert [clip["x"].tolist() for clip in dataset.__getitems__(numbers)] == wanted


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_epoch_of_more_than_2_to_the_23_runs(root: Path) -> None:
    stream = SeqRecordIterableDataset(root, clip_len=2, batch_size=100, shuffle=False)
    state = stream.state_dict()
    stream.load_state_dict(state | {"batch": 2 * FIRST // 100})
    count = 2 * FIRST // 100 * 100
    for batch in stream:
        columns = batch["episode"], batch["start"].tolist(), batch["x"].tolist()
        for key, start, x in zip(*columns, strict=True):
            episode, first = divmod(count, 2)
            assert (int(key), start) == (episode, first)
            assert x == [[episode % STORED, first], [episode % STORED, first + 1]]
            count += 1
    assert count == 2 * EPISODES
