"""Private names in syntax trees: names that code reads from other modules, and patches of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

FOREIGN = {
    "_exit",  # os
    "_replace",  # named tuples
    "_pin_memory",  # torch.ops.aten
    "_schema",  # torch.ops.aten
    "_sleep",  # torch.cuda
    "_shutdown_workers",  # an iterator of torch's DataLoader
    "_datapipe",  # the dataset of torch's DataLoader
    "_repr_html_",  # read by IPython from any object
    "_repr_png_",
    "_worker_info",  # torch.utils.data.get_worker_info
}

ACCESSES = {"getattr", "setattr", "delattr", "hasattr", "patch"}
PATCHES = {"setattr", "delattr", "setitem", "delitem", "patch"}
_OF_TORCH = re.compile(r"(torch|torchdata|accelerate)(\.\w+)*\._[^_]")
OTHERS = "seqrecord", "torch", "torchdata", "multiprocessing", "jax", "accelerate", "lightning"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def found_in(tree: ast.Module) -> Iterator[str]:
    """Private names read from other objects, and patches of the package."""
    nodes = list(ast.walk(tree))
    own = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node)
    } | {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    ours: set[str] = set()  # names imported from the package
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "seqrecord":
            ours |= {alias.asname or alias.name for alias in node.names}
            yield from (alias.name for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Import):
            ours |= {
                alias.asname or "seqrecord"
                for alias in node.names
                if alias.name.split(".")[0] == "seqrecord"
            }
    for node in nodes:
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not is_self(node):
            if node.attr not in own | FOREIGN:
                yield node.attr
        elif isinstance(node, ast.Call):
            is_method = isinstance(node.func, ast.Attribute)
            function = getattr(node.func, "attr" if is_method else "id", "")
            if function not in ACCESSES | PATCHES:
                continue
            words = [
                part
                for item in node.args
                if isinstance(item, ast.Constant) and isinstance(item.value, str)
                for part in item.value.split(".")
            ]
            if function in ACCESSES:
                yield from (word for word in words if is_private(word) and word not in FOREIGN)
            if function in PATCHES and node.args and is_method:
                first = node.args[0]
                if words[:1] == ["seqrecord"] or ast.unparse(first).split(".")[0] in ours:
                    yield "a patch of " + ".".join([ast.unparse(first).strip("'\""), *words[:1]])


def is_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def own_names(tree: ast.Module) -> Iterator[str]:
    """Private names that code defines: functions, classes, variables, fields and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node):
            yield node.attr


def private_in(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """Private names of other modules and packages: imports, attributes, and names in texts."""
    others: set[str] = set()  # names imported from them
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            of = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                if (words := f"{of}{alias.name}".split("."))[0] in OTHERS:
                    others.add((alias.asname or alias.name).split(".")[0])
                    yield from filter(is_private, words)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.split(".")
            is_name = words[0] in OTHERS and " " not in node.value
            yield from filter(is_private, words) if is_name else ()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not is_self(node):
            root = ast.unparse(node.value).split(".")[0].split("(")[0]
            if root in others or node.attr not in own:
                yield node.attr
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ACCESSES:
            for item in node.args:
                if isinstance(item, ast.Constant) and isinstance(item.value, str):
                    yield from {item.value} - own if is_private(item.value) else ()


def private_imports(tree: ast.Module) -> Iterator[str]:
    """Private modules of torch, which any release may change."""
    for node in ast.walk(tree):
        found: list[str] = []
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names]
            case ast.ImportFrom(module=str() as module, names=names):
                found = [f"{module}.{alias.name}" for alias in names]
            case ast.Call(args=[ast.Constant(value=str() as name), *_]) if _OF_TORCH.match(name):
                found = [name] if ast.unparse(node.func).endswith("import_module") else []
        yield from filter(_OF_TORCH.match, found)
