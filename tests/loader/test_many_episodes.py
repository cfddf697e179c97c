"""More episodes and runs than 23 bits can number: every clip is correct."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqrecord import SeqRecordIterableDataset, SeqRecordMapDataset
from tests.kit.datasets import columns, write_dataset
from tests.store.big_index import repeat_episodes

EPISODES, FRAMES, STORED = (1 << 23) + 200, 3, 97
FIRST = (1 << 23) - 200  # the first episode that is read


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose index repeats 97 episodes."""
    root = tmp_path_factory.mktemp("many") / "records"
    episodes = {
        f"{n:08}": columns(x=[[n, frame] for frame in range(FRAMES)]) for n in range(STORED)
    }
    write_dataset(root, episodes, codecs={"x": [{"id": "zstd", "level": 1}]})
    repeat_episodes(root, EPISODES)
    return root


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
