"""A short run of the fuzzer of index, footer and manifest; longer ones are run by hand.

Of changes to one place, `test_hostile` says the same in the fast tests.
"""

from __future__ import annotations

import pytest

from tests.fuzz_files import ALLOWED, KINDS, fuzz


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_several_changed_bytes_are_refused_or_read(kind: str) -> None:
    # In one case of an index the first message is no schema: Arrow's reader of files dies of it.
    cases = 200 if kind == "index" else 100
    outcomes = fuzz(kind, seed=3, cases=cases)
    assert set(outcomes.counts) <= set(ALLOWED), outcomes
    assert outcomes.counts.total() == cases
    assert outcomes.counts["refused"] > cases // 2, "the changes change something"
