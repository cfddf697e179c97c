"""What LeRobot's main branch imports for a dataset with `"storage_format": "seqrecord"`.

Its interface came after 0.6.1, with pull request 4363 in August 2026, and was read in stored copies
of https://github.com/huggingface/lerobot:

- `src/lerobot/datasets/storage.py`, commit 6cd1e5e646be87aa293c0e9a38f547e85210b199:
  `register_dataset_reader(storage_format, module)` names the module that serves a format. The
  module has `DATASET_READER`, and `localize_root`, which is asked of each format in turn where the
  root is a URL: after `FileNotFoundError` comes the next.
- `src/lerobot/datasets/dataset_reader.py`, commit 0201803db23ee42ed1952e84f8ed9d6ab1eb3b92:
  `BaseDatasetReader`.
- `src/lerobot/datasets/lerobot_dataset.py`, as Jixingyue/lerobot has it at commit
  e62f19b922c0b58ff7ace969f436f511703f3687: `LeRobotDataset` reads `meta/`, makes the reader that
  `storage_format` in `info.json` names, and leaves items and counts to it. `root` is what the user
  gave, a URL too, or `None`.

What is relied on is in reader_contract.json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from lerobot.datasets import dataset_reader, storage

import seqrecord
from lerobot_policy_seqrecord.contract import check_reader
from seqrecord.errors import LocationError, NotFoundError
from seqrecord.formats.sources.video.streams import TOLERANCE
from seqrecord.lerobot import LeRobotDataset
from seqrecord.robots.lerobot.dataset import has_all_files, index_tolerance
from seqrecord.robots.lerobot.marking import STORAGE_FORMAT
from seqrecord.robots.lerobot.meta_folder import kept_folder
from seqrecord.store.format.manifest import MANIFEST
from seqrecord.store.storage.base import Storage, entries_of
from seqrecord.store.storage.opening import open_storage
from seqrecord.store.storage.url import parse_location

__all__ = ["DATASET_READER", "SeqRecordReader", "address", "localize_root"]

_META = "meta"
_INFO = "meta/info.json"
_MOST_BYTES = 1 << 30  # of a file in `meta`
_HUB = re.compile(r"hf://datasets/[^/@]+/[^/@]+")

check_reader(storage, dataset_reader)


class SeqRecordReader(LeRobotDataset, dataset_reader.BaseDatasetReader):
    """Reads a dataset for `LeRobotDataset`: one that is packed, or LeRobot's files in place.

    It lies at `root`, by default in the folder of `meta`, or on the Hub where `meta` alone is
    there. `PlannedSampler(dataset.reader, …)` gives the order that decodes each frame once.

    Raises as `seqrecord.lerobot.LeRobotDataset` and `seqrecord.open` do.

    Args:
        meta: LeRobot's, loaded already.
        options: `delta_timestamps`, `image_transforms`, `return_uint8` and `depth_output_unit`, as
            LeRobot's class takes them.
    """

    def __init__(
        self,
        meta: Any,
        root: str | Path | None = None,
        episodes: Sequence[int] | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        tolerance_s: float = TOLERANCE,
        **options: Any,
    ) -> None:
        if episodes is not None:
            episodes = [number for number in episodes if 0 <= number < meta.total_episodes]
        place = meta.root if root is None else root
        is_here = "://" in str(place) or (Path(place) / MANIFEST).exists()
        if not is_here and not has_all_files(Path(place)):
            place, revision = f"hf://datasets/{meta.repo_id}", meta.revision
        url, of_url = address(place, revision, token)
        tolerance = index_tolerance(tolerance_s)
        records = seqrecord.open(url, storage_options=of_url, tolerance=tolerance)
        options |= {"tolerance_s": tolerance_s, "meta": meta, "records": records}
        super().__init__(meta.repo_id, episodes=episodes, **options)

    def get_item(self, idx: int) -> dict[str, Any]:
        return self[idx]

    get_items = LeRobotDataset.__getitems__


DATASET_READER = SeqRecordReader


def localize_root(
    repo_id: str | None,
    root: str | Path,
    revision: str | None = None,
    token: str | bool | None = None,
    force_cache_sync: bool = False,
) -> Path:
    """The local folder of a copy of `meta/` of the dataset at a URL, as it is now.

    The copy is in `SEQRECORD_HOME`. Raises `FileNotFoundError` where there is no dataset whose
    `meta/info.json` says `"storage_format": "seqrecord"`.
    """
    del repo_id, force_cache_sync
    url, options = address(root, revision, token)
    try:
        with closing(open_storage(url, options)) as files:
            info = json.loads(files.read_whole(_INFO, _MOST_BYTES)[0])
            if not isinstance(info, dict) or info.get("storage_format") != STORAGE_FORMAT:
                raise FileNotFoundError(
                    f"{files.url}: another storage_format than {STORAGE_FORMAT}"
                )
            found = {path: files.read_whole(path, _MOST_BYTES)[0] for path in _below(_META, files)}
    except (LocationError, NotFoundError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FileNotFoundError(str(error)) from error
    return kept_folder(found)


def address(
    place: str | Path, revision: str | None, token: str | bool | None
) -> tuple[str, dict[str, Any] | None]:
    """A location and its `storage_options`."""
    url, options = str(place), None
    if url.startswith("file://"):
        return parse_location(url).root, None
    if hub := _HUB.match(url):
        options = None if token is None else {"token": token}
        if revision is not None and url[hub.end() :][:1] != "@":
            url = f"{hub[0]}@{revision}{url[hub.end() :]}"
    return url, options


def _below(folder: str, files: Storage) -> Iterator[str]:
    for entry in entries_of(files, folder):
        path = f"{folder}/{entry.name}"
        if entry.is_folder:
            yield from _below(path, files)
        else:
            yield path
