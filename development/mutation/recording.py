"""A plugin of pytest that records the executed lines, outcome and duration of each test.

    pytest -p development.mutation.recording

`MUTATION_CODE` is the folder of `instrumenting`, `MUTATION_RECORDS` a folder that gets a file of
JSON lines from each process of the run. The lines of a fixture with a wider scope than a test count
for every test that uses it, although it is made only once.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
import time
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from development.mutation.instrumenting import read_numbers

__all__ = ["packed_lines"]

_Lines = npt.NDArray[np.bool_]


def packed_lines(text: str) -> npt.NDArray[np.uint8]:
    """The lines of one record, packed into bits, the first line in the highest bit."""
    return np.frombuffer(zlib.decompress(base64.b85decode(text)), np.uint8)


def _packed(lines: _Lines) -> str:
    return base64.b85encode(zlib.compress(np.packbits(lines).tobytes())).decode()


class Recorder:
    """Clears the file of hits before each test."""

    def __init__(self, hits: Path, count: int, records: Path) -> None:
        self._hits = np.memmap(hits, np.uint8, "r+", shape=(count,))
        self._records = records
        self._fixtures: dict[str, _Lines] = {}
        self._test: _Lines = self._taken()
        self._outcomes: set[str] = set()

    def _taken(self) -> _Lines:
        """Lines that ran since the last call."""
        taken: _Lines = self._hits != 0
        self._hits[:] = 0
        return taken

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._taken()
        self._test = np.zeros(len(self._hits), np.bool_)
        self._outcomes = set()
        start = time.perf_counter()
        result = yield
        seconds = time.perf_counter() - start
        lines = self._test | self._taken()
        for name in getattr(item, "fixturenames", ()):
            if name in self._fixtures:
                lines |= self._fixtures[name]
        failed, skipped = "failed" in self._outcomes, "skipped" in self._outcomes
        record = {
            "test": item.nodeid,
            "outcome": "failed" if failed else "skipped" if skipped else "passed",
            "seconds": round(seconds, 3),
            "lines": _packed(lines),
        }
        with self._records.open("a") as file:
            file.write(json.dumps(record) + "\n")
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        self._test |= self._taken()
        try:
            return (yield)
        finally:
            taken = self._taken()
            self._test |= taken
            name = fixturedef.argname
            self._fixtures[name] = taken | self._fixtures.get(name, taken)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._outcomes.add(report.outcome)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Create the file before the package's modules are imported, which map it."""
    _, count = read_numbers(Path(os.environ["MUTATION_CODE"]))
    handle, name = tempfile.mkstemp(prefix="hits-", dir=os.environ["MUTATION_RECORDS"])
    os.truncate(handle, count)
    os.close(handle)
    os.environ["MUTATION_HITS"] = name
    records = Path(name).with_suffix(".jsonl")
    early_config.pluginmanager.register(Recorder(Path(name), count, records))
