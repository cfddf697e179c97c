"""A case of a source format: files, and everything that a source must find in them.

`tests/formats/format_cases` has a module per format with its cases; `test_source_contract.py` runs
all tests of the contract with each case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import numpy as np

from seqrecord import open_source
from seqrecord.formats.indexing.originals import index_source
from seqrecord.sources import Source

__all__ = ["Case", "Episodes", "cut", "index_source", "upload"]

Frames = list[dict[str, Any]]
Episodes = dict[str, Frames]
"""Expected frames by episode key. Features are arrays or texts; video frames are decoded."""


def cut(path: Path) -> None:
    """Remove the second half of a file."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


@dataclass(frozen=True)
class Case:
    """Originals of one format.

    Attributes:
        source: Name of the expected class in `seqrecord.sources`.
        write: Writes at least two episodes into an empty folder; returns their frames.
        inventory: Expected text of `seqrecord info`: features in the schema's order with dtype,
            shape, kind, unit and place; data left out; notes.
        bad: Key of the episode that `damage` breaks. Other episodes stay readable.
        file: The file that `damage` changes.
        named: The file or folder that errors name, unless it is `file`.
        damage: Breaks the file.
        options: Arguments of `open_source`.
        fps: Expected frame rate of all episodes.
        kept: Features that `keep_encoded=True` keeps as in the files, with their format.
        referred: Features that are not copied when the original is read in place, with the format
            of their files, or `video`; `None`: cannot be read in place.
        opens: Whether `seqrecord.open` reads the original without an index.
        close: Largest difference of values by feature; others are equal.
        packages: Packages without which the format cannot be read, with what `pip install` gets.
    """

    source: str
    write: Callable[[Path], Episodes]
    inventory: str
    bad: str
    file: str
    damage: Callable[[Path], object] = cut
    named: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    fps: float | None = None
    kept: Mapping[str, str] = field(default_factory=dict)
    referred: Mapping[str, str] | None = None
    opens: bool = False
    close: Mapping[str, float] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)

    def opened(self, place: Any, **more: Any) -> Source:
        return open_source(place, **self.options, **more)

    def damage_episode(self, root: Path) -> None:
        self.damage(root / self.file)

    def assert_frames(self, found: Iterable[Mapping[str, Any]], expected: Frames) -> None:
        """Assert names, dtypes and values of frames."""
        for number, (got, want) in enumerate(zip(found, expected, strict=True)):
            assert got.keys() == want.keys(), number
            for name, value in want.items():
                if isinstance(value, str):
                    assert str(got[name]) == value, (number, name)
                    continue
                one, other = np.asarray(got[name]), np.asarray(value)
                assert (one.dtype, one.shape) == (other.dtype, other.shape), (number, name)
                if name in self.close:
                    np.testing.assert_allclose(
                        one.astype(float), other.astype(float), rtol=0, atol=self.close[name]
                    )
                else:
                    np.testing.assert_array_equal(one, other, f"{number} {name}")


def upload(folder: Path, url: str) -> str:
    """Copy a folder to fsspec's memory file system; returns the URL."""
    memory = fsspec.filesystem("memory")
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            memory.pipe_file(f"{url}/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return url
