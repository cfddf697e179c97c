"""The order of clips does not change: batches of two epochs of many loaders are as recorded."""

from __future__ import annotations

import json
from pathlib import Path

from tests.loader.golden_epochs import CASES, GOLDEN, batch_digests, write_records


def test_batches_of_epochs_are_as_recorded(tmp_path: Path) -> None:
    recorded = json.loads(GOLDEN.read_text("utf-8"))
    found = batch_digests(write_records(tmp_path))
    assert set(CASES) < set(found) == set(recorded)
    for name, epochs in found.items():
        assert epochs == recorded[name], name
