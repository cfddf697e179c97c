"""A stand-in for LeRobot's main branch, sufficient for a reader of datasets.

Names, signatures and calls are taken from reader_contract.json, which the plug-in compares with the
installed LeRobot.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from tests.kit.lerobot_stand_in import Metadata

PLUGIN = Path(__file__).parents[2] / "integrations" / "lerobot"
RECORDED = json.loads((PLUGIN / "lerobot_policy_seqrecord/reader_contract.json").read_text())


def write(folder: Path) -> Path:
    """Write the package `lerobot`; returns the folder of its modules."""
    modules = folder / "lerobot/datasets"
    modules.mkdir(parents=True)
    signatures, (make, localize) = RECORDED["signatures"], RECORDED["calls"]
    (modules / "storage.py").write_text(f"""
import importlib
modules = dict()
def register_dataset_reader{signatures["register_dataset_reader"]}:
    modules[storage_format] = module
def _reader_module(storage_format):
    return importlib.import_module(modules[storage_format])
def make_dataset_reader(storage_format, **kwargs):
    return {make}
def localize_remote_root(repo_id, root, revision, token, force_cache_sync):
    [storage_format] = modules
    return {localize}
""")
    lines = ["from abc import ABC, abstractmethod", "class BaseDatasetReader(ABC):"]
    methods = {name.partition(".")[2]: each for name, each in signatures.items() if "." in name}
    for name in sorted({*methods, *RECORDED["abstract"]}):
        lines += [] if name in methods else ["    @property"]
        lines += ["    @abstractmethod"] if name in RECORDED["abstract"] else []
        lines += [f"    def {name}{methods.get(name, '(self)')}:", "        raise AssertionError"]
    (modules / "dataset_reader.py").write_text("\n".join(lines) + "\n")
    return modules


class Dataset(torch.utils.data.Dataset[dict[str, Any]]):
    """Stands in for `LeRobotDataset`: delegates to a reader."""

    def __init__(self, repo_id: str, root: Any = None, **options: Any) -> None:
        from lerobot.datasets import storage

        revision, token = options.pop("revision", None), options.pop("token", None)
        is_url = "://" in str(root)
        here = (
            storage.localize_remote_root(repo_id, root, revision, token, False) if is_url else root
        )
        self.meta = Metadata(repo_id, here, revision)
        arguments = {"meta": self.meta, "root": root, "revision": revision, "token": token}
        defaults: dict[str, Any] = {
            "episodes": None,
            "delta_timestamps": None,
            "image_transforms": None,
        }
        defaults |= {"tolerance_s": 1e-4, "return_uint8": False, "depth_output_unit": "mm"}
        arguments |= {name: options.pop(name, value) for name, value in defaults.items()}
        assert not options
        assert arguments.keys() == {*RECORDED["arguments"]}
        info = json.loads((self.meta.root / "meta/info.json").read_text())
        self.reader = storage.make_dataset_reader(info["storage_format"], **arguments)
        self.episodes = self.reader.episodes
        for name in RECORDED["asked"]:
            getattr(self.reader, name)

    def __len__(self) -> int:
        count: int = self.reader.num_frames
        return count

    def __getitem__(self, number: int) -> Any:
        return self.reader.get_item(number)

    def __getitems__(self, numbers: Iterable[int]) -> Any:
        return self.reader.get_items(list(numbers))

    def set_image_transforms(self, transforms: Callable[..., Any] | None) -> None:
        self.reader.set_image_transforms(transforms)
