"""What of LeRobot the plug-in relies on, as recorded from the version that it was made for.

`python -m lerobot_policy_seqrecord` prints what the installed version has. For 0.6.1 that is
contract.json, which is compared at each start, and which the tests of seqrecord hold its class to.
reader_contract.json is what was read of the main branch, and is compared before its reader is used.
"""

from __future__ import annotations

import ast
import inspect
import json
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from seqrecord.errors import SeqRecordError

__all__ = ["RECORDED", "ContractError", "check", "check_reader", "described", "described_reader"]

RECORDED = Path(__file__).with_name("contract.json")
_READER = RECORDED.with_name("reader_contract.json")
_DATASETS = {"dataset", "eval_dataset", "full_dataset", "train_dataset", "ds"}


class ContractError(SeqRecordError):
    """The installed LeRobot is not one that this plug-in knows."""


def check(factory: ModuleType, training: ModuleType) -> None:
    """Raise `ContractError` unless LeRobot asks for what it asked for when it was recorded."""
    _compare(json.loads(RECORDED.read_text()), described(factory, training))


def check_reader(storage: ModuleType, dataset_reader: ModuleType) -> None:
    """The same of what readers of datasets must be; that more is there is no difference."""
    recorded, found = json.loads(_READER.read_text()), described_reader(storage, dataset_reader)
    known = found["signatures"]
    found["signatures"] = {name: known.get(name) for name in recorded["signatures"]}
    _compare({name: recorded[name] for name in found}, found)


def _compare(recorded: dict[str, Any], found: dict[str, Any]) -> None:
    for name, expected in recorded.items():
        if found[name] != expected:
            message = f"this plug-in does not fit the installed lerobot: {name} differs"
            raise ContractError(message, expected=expected, got=found[name])


def described(factory: ModuleType, training: ModuleType) -> dict[str, Any]:
    """How these modules make datasets and the sampler, and what they ask of them."""
    trees = [ast.parse(inspect.getsource(module)) for module in (factory, training)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    return {
        "version": version("lerobot"),
        "signatures": {
            name: _signature(getattr(module, name, None))
            for module, name in (
                (factory, "LeRobotDataset"),
                (factory, "LeRobotDatasetMetadata"),
                (factory, "make_dataset"),
                (factory, "make_train_eval_datasets"),
                (training, "EpisodeAwareSampler"),
                (training, "compute_sampler_state"),
                (training, "save_checkpoint"),
            )
        },
        "calls": {
            name: sorted({ast.unparse(node) for node in nodes if _name(node) == name})
            for name in (
                "LeRobotDataset",
                "LeRobotDatasetMetadata",
                "make_dataset",
                "make_train_eval_datasets",
                "EpisodeAwareSampler",
                "save_checkpoint",
            )
        },
        "asked": {
            "dataset": _asked(nodes, _DATASETS),
            "sampler": _asked(nodes, {"sampler"}),
        },
    }


def described_reader(storage: ModuleType, dataset_reader: ModuleType) -> dict[str, Any]:
    """What readers of datasets must be, and how they are called."""
    base = dataset_reader.BaseDatasetReader
    methods = {f"BaseDatasetReader.{name}": each for name, each in vars(base).items()}
    methods["register_dataset_reader"] = storage.register_dataset_reader
    calls = (
        ast.unparse(node)
        for node in ast.walk(ast.parse(inspect.getsource(storage)))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("DATASET_READER", "localize_root")
    )
    return {
        "signatures": {name: _signature(each) for name, each in methods.items() if callable(each)},
        "abstract": sorted(base.__abstractmethods__),
        "calls": sorted(calls),
    }


def _signature(value: Any) -> str | None:
    """Names, kinds and defaults; how annotations are printed depends on Python."""
    if value is None:
        return None
    signature = inspect.signature(value)
    empty = inspect.Parameter.empty
    plain = [one.replace(annotation=empty) for one in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=empty))


def _name(node: ast.AST) -> str | None:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None


def _asked(nodes: list[ast.AST], names: set[str]) -> list[str]:
    """Attributes that are asked of variables of these names."""
    return sorted(
        {
            node.attr
            for node in nodes
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in names
        }
    )
