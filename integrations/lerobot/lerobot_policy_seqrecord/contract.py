"""What of LeRobot the plug-in relies on, as recorded from the version that it was run with.

contract.json has three parts: `dataset`, what `SEQRECORD_LEROBOT=class` replaces; `order`, what `1`
replaces besides; `mix`, what a mix replaces besides. Each has signatures and calls of the replaced
names, the attributes that LeRobot reads from what takes their place, and hashes of sources: of code
whose results the plug-in repeats, or whose steps it counts. A training compares the parts of its
mode with the installed LeRobot, and not the version. `python -m lerobot_policy_seqrecord` prints
all three.

reader_contract.json is what was read of the main branch, and is compared before its reader is used.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from seqrecord.errors import SeqRecordError

__all__ = [
    "RECORDED",
    "ContractError",
    "check",
    "check_reader",
    "described",
    "described_reader",
]

RECORDED = Path(__file__).with_name("contract.json")
_READER = RECORDED.with_name("reader_contract.json")
_FACTORY, _TRAINING = "lerobot.datasets.factory", "lerobot.scripts.lerobot_train"


@dataclass(frozen=True)
class _Part:
    """Names that are replaced or called, by module, and functions and classes to hash.

    `variables` of LeRobot's modules hold what takes the place of the names.
    """

    names: dict[str, tuple[str, ...]]
    variables: frozenset[str] = frozenset()
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)


_PARTS = {
    "dataset": _Part(
        {_FACTORY: ("LeRobotDataset",), _TRAINING: ("make_train_eval_datasets", "submit_to_hf")},
        variables=frozenset({"dataset", "eval_dataset", "full_dataset", "train_dataset", "ds"}),
        # Items are to equal those that this code makes.
        sources={
            "lerobot.datasets.dataset_reader": ("DatasetReader",),
            "lerobot.datasets.video_utils": ("decode_video_frames", "decode_video_frames_pyav"),
            "lerobot.datasets.depth_utils": ("dequantize_depth",),
        },
    ),
    "order": _Part(
        {_TRAINING: ("EpisodeAwareSampler", "save_checkpoint")},
        variables=frozenset({"sampler"}),
        # `Progress` counts the batches that a step of this function takes from the sampler.
        sources={_TRAINING: ("train",)},
    ),
    "mix": _Part(
        {_FACTORY: ("LeRobotDatasetMetadata", "make_dataset")},
        # A mix makes its datasets by the first function, and splits them as the second one does.
        sources={_FACTORY: ("make_dataset", "make_train_eval_datasets")},
    ),
}
_PARTS_OF_MODES = {
    "class": ("dataset",),
    "1": ("dataset", "order"),
    "mix": ("dataset", "order", "mix"),
}


class ContractError(SeqRecordError):
    """The installed LeRobot differs in what this plug-in relies on."""


def check(factory: ModuleType, training: ModuleType, mode: str) -> None:
    """Compare what a mode replaces with the recorded contract.

    Raises `ContractError` with all differences.
    """
    recorded, found = json.loads(RECORDED.read_text()), described(factory, training)
    parts = _PARTS_OF_MODES[mode]
    remedy = f"; pip install 'lerobot=={recorded['version']}', with which it was run"
    _compare(
        {name: recorded[name] for name in parts}, {name: found[name] for name in parts}, remedy
    )


def check_reader(storage: ModuleType, dataset_reader: ModuleType) -> None:
    """Compare what readers of datasets must be; additional methods are no difference."""
    recorded, found = json.loads(_READER.read_text()), described_reader(storage, dataset_reader)
    known_signatures = found["signatures"]
    found["signatures"] = {name: known_signatures.get(name) for name in recorded["signatures"]}
    _compare({"reader": {name: recorded[name] for name in found}}, {"reader": found}, "")


def described(factory: ModuleType, training: ModuleType) -> dict[str, Any]:
    """Return the contract of the installed LeRobot.

    `training` is the module of `lerobot-train`, under any name.
    """
    modules = {_FACTORY: factory, _TRAINING: training}
    trees = {place: ast.parse(inspect.getsource(module)) for place, module in modules.items()}
    nodes = {place: [*ast.walk(tree)] for place, tree in trees.items()}
    contract: dict[str, Any] = {"version": _version()}
    for part_name, part in _PARTS.items():
        places = [(place, name) for place, names in part.names.items() for name in names]
        contract[part_name] = {
            "signature": {name: _signature(modules[place], name) for place, name in places},
            # A name is replaced in one module, so calls in the other one do not count.
            "call": {name: _calls(nodes[place], name) for place, name in places},
            "attribute": _attributes([*nodes[_FACTORY], *nodes[_TRAINING]], part.variables),
            "source": {
                name: _hash(trees[place] if place in trees else _tree(place), name)
                for place, names in part.sources.items()
                for name in names
            },
        }
    return contract


def described_reader(storage: ModuleType, dataset_reader: ModuleType) -> dict[str, Any]:
    """Return what readers of datasets must be, and how they are called."""
    base = dataset_reader.BaseDatasetReader
    names = [name for name, value in vars(base).items() if callable(value)]
    signatures = {f"BaseDatasetReader.{name}": _signature(base, name) for name in names}
    signatures["register_dataset_reader"] = _signature(storage, "register_dataset_reader")
    calls = (
        ast.unparse(node)
        for node in ast.walk(ast.parse(inspect.getsource(storage)))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("DATASET_READER", "localize_root")
    )
    return {
        "signatures": signatures,
        "abstract": sorted(base.__abstractmethods__),
        "calls": sorted(calls),
    }


def _compare(recorded: dict[str, Any], found: dict[str, Any], remedy: str) -> None:
    expected_facts, found_facts = set(_facts(recorded)), set(_facts(found))
    if expected_facts != found_facts:
        raise ContractError(
            f"lerobot {_version()} differs in what this plug-in relies on{remedy}",
            expected=_text(expected_facts - found_facts),
            got=_text(found_facts - expected_facts),
        )


def _facts(contract: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The values of a contract, each with its title."""
    for part_name, part in contract.items():
        for kind, values in part.items():
            named = values if isinstance(values, dict) else {f"the {part_name}": values}
            for name, value in named.items():
                for text in value if isinstance(value, list) else [value]:
                    yield f"{kind} of {name}", str(text)


def _version() -> str:
    try:
        return version("lerobot")
    except PackageNotFoundError:  # a folder of its sources
        return "without a version"


def _text(facts: set[tuple[str, str]]) -> str:
    return " | ".join(f"{title}: {text}" for title, text in sorted(facts)) or "nothing else"


def _signature(owner: Any, name: str) -> str | None:
    """Names, kinds and defaults of parameters; how annotations are printed depends on Python."""
    value = getattr(owner, name, None)
    if value is None:
        return None
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # no function, or one without a signature
        return f"of type {type(value).__name__}"
    empty = inspect.Parameter.empty
    plain = [one.replace(annotation=empty) for one in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=empty))


def _calls(nodes: list[ast.AST], name: str) -> list[str]:
    calls = (node for node in nodes if isinstance(node, ast.Call))
    return sorted(
        {
            ast.unparse(call)
            for call in calls
            if isinstance(call.func, ast.Name) and call.func.id == name
        }
    )


def _attributes(nodes: list[ast.AST], variables: frozenset[str]) -> list[str]:
    """Attributes that are read from variables of these names."""
    return sorted(
        {
            node.attr
            for node in nodes
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in variables
        }
    )


def _tree(module: str) -> ast.Module:
    """The parsed source of a module; of one that does not exist, nothing."""
    try:
        return ast.parse(inspect.getsource(importlib.import_module(module)))
    except ModuleNotFoundError:
        return ast.Module([], [])


def _hash(tree: ast.Module, name: str) -> str | None:
    """SHA-256 of a function or class of a module, without comments, layout and docstrings."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for definition in tree.body:
        if isinstance(definition, kinds) and definition.name == name:
            definition = ast.parse(ast.unparse(definition)).body[0]
            for node in ast.walk(definition):
                if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
                    node.body = node.body[1:] or [ast.Pass()]
            return hashlib.sha256(ast.unparse(definition).encode()).hexdigest()[:16]
    return None
