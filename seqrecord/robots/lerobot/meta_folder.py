"""Private copies of LeRobot's `meta/` folder, in `SEQRECORD_HOME`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from seqrecord.store.reading.home import private_folder

_DIGITS = 32


def kept_folder(files: Mapping[str, bytes]) -> Path:
    """A folder with these files, by relative path; equal files have one folder."""
    facts = sorted((path, hashlib.sha256(data).hexdigest()) for path, data in files.items())
    name = hashlib.sha256(repr(facts).encode()).hexdigest()[:_DIGITS]
    with private_folder("lerobot") as folder, TemporaryDirectory(dir=folder) as new:
        for path, data in files.items():
            copy = Path(new) / name / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(data)
        with suppress(OSError):  # the same copy is there
            (Path(new) / name).rename(folder / name)
    return folder / name
