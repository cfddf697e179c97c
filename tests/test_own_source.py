"""The example of a source of one's own, as docs/reference/writing.md has it, runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

import seqrecord

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "writing.md"


def test_the_example_packs_its_recordings(tmp_path: Path) -> None:
    page = PAGE.read_text()
    page = page[page.index("## A source of your own") :]
    (script,) = re.findall(r"```python\n(.*?if __name__.*?)```", page, re.DOTALL)
    (tmp_path / "pack.py").write_text(script)
    folder = tmp_path / "recordings"
    folder.mkdir()
    rng = np.random.default_rng(0)
    recordings = {}
    for name, length in (("a", 5), ("b", 3), ("c", 1)):
        recordings[name] = {
            "image": rng.integers(0, 255, (length, 48, 64, 3), np.uint8),
            "action": rng.normal(size=(length, 7)).astype("<f4"),
        }
        np.savez(folder / f"{name}.npz", **recordings[name])  # type: ignore[arg-type]
    np.savez(folder / "broken.npz", action=np.zeros((2, 7), np.float32))
    done = subprocess.run(
        [sys.executable, "pack.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "3 episodes, 1 left out"
    with seqrecord.open(tmp_path / "records") as dataset:
        assert list(dataset.episodes) == ["a", "b", "c"]
        for key, want in recordings.items():
            got = dataset.episodes[key][:]
            for feature, array in want.items():
                np.testing.assert_array_equal(got[feature], array)
        assert dataset.episodes["a"].metadata == {"file": "a.npz"}
