"""Says in LeRobot's own metadata that seqrecord reads a dataset."""

from __future__ import annotations

import json
import shutil
from os import PathLike
from pathlib import Path

from seqrecord.errors import SourceError
from seqrecord.sources.lerobot.layout import INFO, read_info

STORAGE_FORMAT = "seqrecord"


def mark_dataset(root: str | PathLike[str], original: str | PathLike[str] | None = None) -> None:
    """Let LeRobot's main branch read the dataset in the folder `root` by seqrecord.

    `meta/info.json` there gets `"storage_format": "seqrecord"`, which LeRobot 0.6.1 ignores.

    Args:
        root: LeRobot's own files, or records.
        original: the LeRobot dataset of v3.0 that records were written from; its `meta/` is copied.

    Raises `SourceError` where there is no `meta/info.json` of v3.0.
    """
    path = Path(root) / INFO
    if original is not None:
        shutil.copytree(Path(original) / path.parent.name, path.parent, dirs_exist_ok=True)
    if read_info(Path(root)).version != 3:
        raise SourceError("LeRobot's main branch reads v3.0 alone", file=str(path))
    info = json.loads(path.read_text()) | {"storage_format": STORAGE_FORMAT}
    new = path.with_suffix(".new")
    new.write_text(json.dumps(info, indent=4))
    new.replace(path)
