"""Marks a dataset in LeRobot's metadata as readable by seqrecord."""

from __future__ import annotations

import json
import shutil
from os import PathLike
from pathlib import Path

from seqrecord.errors import SourceError
from seqrecord.sources.lerobot.layout import INFO, read_info

STORAGE_FORMAT = "seqrecord"


def mark_dataset(root: str | PathLike[str], original: str | PathLike[str] | None = None) -> None:
    """Mark the dataset in the folder `root`, so that LeRobot's main branch reads it by seqrecord.

    Sets `"storage_format": "seqrecord"` in `meta/info.json`; LeRobot 0.6.1 ignores it.

    Args:
        root: folder of LeRobot's files, or of records.
        original: the LeRobot dataset of v3.0 from which the records were written; its `meta/` is
            copied.

    Raises `SourceError` without a `meta/info.json` of v3.0.

    Usage::

        seqrecord.lerobot.mark_dataset("lerobot/")
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
