"""What of LeRobot the plug-in relies on, as recorded from the version that it was made for.

`python -m lerobot_policy_seqrecord` prints what the installed version has. For 0.6.1 that is
contract.json, which is compared at each start, and which the tests of seqrecord hold its class to.
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

__all__ = ["RECORDED", "ContractError", "check", "described"]

RECORDED = Path(__file__).with_name("contract.json")
_DATASETS = {"dataset", "eval_dataset", "full_dataset", "train_dataset", "ds"}


class ContractError(SeqRecordError):
    """The installed LeRobot is not one that this plug-in knows."""


def check(factory: ModuleType, training: ModuleType) -> None:
    """Raise `ContractError` unless LeRobot asks for what it asked for when it was recorded."""
    recorded, found = json.loads(RECORDED.read_text()), described(factory, training)
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
                (factory, "make_train_eval_datasets"),
                (training, "EpisodeAwareSampler"),
                (training, "compute_sampler_state"),
            )
        },
        "calls": {
            name: sorted({ast.unparse(node) for node in nodes if _name(node) == name})
            for name in ("LeRobotDataset", "make_train_eval_datasets", "EpisodeAwareSampler")
        },
        "asked": {
            "dataset": _asked(nodes, _DATASETS),
            "sampler": _asked(nodes, {"sampler"}),
        },
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
