"""Tables, lists of frames, anchors, functions and draws, compared with `table_model` by kind.

`test_loader_machine` has their histories: ranks, states, epochs.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

import seqrecord
from seqrecord import FrameCache, SeqRecordPipe
from tests.kit.clip_data import minimum_memory
from tests.kit.datasets import written_once
from tests.loader.clip_model import GROUPS, write_all
from tests.loader.table_model import KINDS_OF_TABLES, TableCase, case_of, table_cases

records = written_once(write_all, GROUPS, open_it=True)


@pytest.mark.parametrize("kind", KINDS_OF_TABLES)
def test_any_table(records: seqrecord.Dataset, kind: str, tmp_path: Path) -> None:
    """Two epochs of one rank; of encoded images also from a frame cache."""

    # Without shrinking, which takes minutes.
    @settings(max_examples=max(3, settings().max_examples // 2), phases=[Phase.generate])
    @given(table_cases(kinds=(kind,)), st.integers(0, 3))
    def check(case: TableCase, epoch: int) -> None:
        assume(case.clips and case.smallest)
        options: dict[str, Any] = {**case.options, "last_batch": "keep"}
        make = partial(SeqRecordPipe, records, rank=(0, 1))
        if options.get("memory_limit") == "least":
            options["memory_limit"] = minimum_memory(partial(make, **options))
        if "image" in case.features and "frame_transform" not in options:
            cache = FrameCache(tempfile.mkdtemp(dir=tmp_path), "1GiB")
            options["frame_cache"] = cache
            check_epoch(make(**options), options, epoch)
        if case.draws_lengths:  # equally on all ranks
            ranks = [SeqRecordPipe(records, **options, rank=(rank, 2)) for rank in range(2)]
            drawn = [[len(batch["id"][0]) for batch in pipe] for pipe in ranks]
            assert all(one == other for one, other in zip(*drawn, strict=False))
        pipe = make(**options)
        for number in (epoch, epoch + 1):
            check_epoch(pipe, options, number)

    check()


def check_epoch(pipe: SeqRecordPipe, options: dict[str, Any], epoch: int) -> None:
    case = case_of(options)
    pipe.set_epoch(epoch)
    clips = [case.check(clip, epoch) for batch in pipe for clip in case.clips_in(batch)]
    expected = case.epoch(epoch)
    if expected is None:
        expected = case.drawn_epoch(epoch, clips, {})
    assert Counter(clips) == Counter(expected)
    if not options["shuffle"]:
        assert clips == case.in_order(clips)
