"""Names in docstrings that the code does not have: `python -m tests.project.docstring_names`.

Entries of `Args:` are parameters of the function or class, those of `Attributes:` members of the
class. A name in backticks exists in the code of its own function, class or module, or in the
package as a definition, a member of a class, an import, a module, a public name or its parameter,
or a whole string, such as a column or key. These count as names:

- identifiers: `clip_len`, `Resize`, `start`;
- arguments: `device=` and `mode="append"`;
- calls: `stats()` and `set_epoch(batches=…)`;
- dotted names that begin with a class, an import, a name of the own code, or a part, room or module
  of the package: `Dataset.select`, `engine.crops`.

Other text is not checked: expressions, shapes, shell commands, files, and dotted names of features.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import keyword
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any

from tests.project.source_code import PACKAGE, PUBLIC_FILES, module_name, parse

FOREIGN = {
    *("SensReader", "aggregate_datasets", "ctts", "eXIf", "iphone.prepare_iphone_data"),
    *("cat", "floor", "fork", "forkserver"),
    *("ClassLabel", "DistributedSampler", "EpisodeAwareSampler", "LeRobotDatasetMetadata"),
    *("LightningEnvironment", "RawArray", "StatefulDataLoader"),
    *("persistent_workers=", "prefetch_factor", "sharding_filter"),  # torch, torchdata
    *("AV_INPUT_BUFFER_PADDING_SIZE", "FileDescriptorSet", "IndexEntry", "VideoFrame", "avcC"),
    *("Axes.imshow", "UsageError", "crc32_combine", "tfra"),
    *("pathlib", "write_text", "nohup"),  # Python, shell
    *("AccountKey", "AZURE_STORAGE_KEY", "Date", "KB", "applied_transform", "script"),
    # Features and files of datasets
    *("_lcam_front", "_rcam_front", "_right", "camera.color.image_raw", "camera.image_raw"),
    *("camera_link", "depth_left", "image_cam0"),
    *("image_cam1", "image_lcam_front", "image_rcam_front", "next_obs", "points.ring", "ring"),
    *("seg_left", "task_embedding", "c2", "cls", "flo", "pfm"),
    *("frame0007", "frame_n", "freiburg1", "freiburg2", "freiburg3", "image_left", "image_right"),
}
"""Names of other packages, programs and datasets, which no code here has."""

COMPOSED = {
    *("cache_bytes", "cache_busy", "cache_damaged", "cache_evictions", "cache_failures"),
    *("cache_hits", "cache_misses", "SEQRECORD_FRAME_CACHE_LIMIT", "chunks0", "header_time"),
    *("action_dim_is_pad", "camera_scale_is_missing", "front_crop"),
    *("depth_intrinsics", "image_intrinsics", "mask_intrinsics"),
}
"""Names that code composes of parts."""

_PACKAGES = {*sys.stdlib_module_names, "numpy", "torch", "torchdata"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NO_MEMBERS = {"ABC", "Generic", "NamedTuple", "Protocol", "TypedDict", "object"}  # as base classes

_SECTION = re.compile(r"^( *)(Args|Attributes):\n((?:\1 +.*\n|\s*\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^\*{0,2}(\w+(?:, \*{0,2}\w+)*)(?: \([^)]*\))?:")
_CODE = re.compile(r"^( *)```.*?^\1```|^ *(?:>>>|\.\.\.)[^\n]*$", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w+")  # a single letter is an index or a size
_ARGUMENT = re.compile(r"([a-z]\w*)=.*", re.DOTALL)
_CALL = re.compile(r"\.?([A-Za-z_][\w.]*)\((.*)\)", re.DOTALL)
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_EXAMPLE = re.compile(r"\w+_\d+|[A-Z]_\w+|\w+_[A-Z](_\w+)?")  # `frame_2`, `X_intrinsics`
_FILE = re.compile(r".*\.(bin|html|json|jsonl|md|mp4|npy|npz|parquet|png|py|txt|yaml|zip)")


@dataclass
class Members:
    """Members, parameters and base classes of the classes of one name."""

    names: set[str] = field(default_factory=set)
    parameters: set[str] = field(default_factory=set)
    bases: set[str] = field(default_factory=set)


class Package:
    """Names of modules, from their syntax trees by dotted name."""

    def __init__(self, trees: Mapping[str, ast.Module], public_names: Iterable[str] = ()) -> None:
        self.trees = trees
        self.globals = {module: {*_global_names(tree)} for module, tree in trees.items()}
        self.classes: dict[str, Members] = {}
        self.modules: dict[str, list[str]] = {}  # by the last components of their names
        self.names = {*public_names, *vars(builtins), *keyword.kwlist}
        for module, tree in trees.items():
            parts = module.split(".")
            for first in range(len(parts)):
                self.modules.setdefault(".".join(parts[first:]), []).append(module)
            self.names |= {*parts, *_imports(tree), *_strings(tree)} | self.globals[module]
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    self._add_class(node)

    def _add_class(self, node: ast.ClassDef) -> None:
        members = self.classes.setdefault(node.name, Members())
        members.names |= {*_member_names(node)}
        members.parameters |= {*_class_parameters(node)}
        members.bases |= {_last_name(base) for base in node.bases} - {node.name}
        self.names |= members.names

    def members_of(self, name: str) -> Members | None:
        """Members of a class and its base classes; `None` if one is of another package."""
        if (members := self.classes.get(name)) is None:
            return Members() if name in _NO_MEMBERS else None
        found = Members(members.names | {*vars(object)}, {*members.parameters})
        for base in members.bases:
            if (inherited := self.members_of(base)) is None:
                return None
            found.names |= inherited.names
            found.parameters |= inherited.parameters
        return found

    def stale_names(self) -> Iterator[tuple[str, int, str]]:
        """Yield module, line and name of each name in a docstring that does not exist."""
        for module, tree in self.trees.items():
            imports = _imports(tree)
            for owners, text in _docstrings(tree):
                scope = _Scope(self, module, imports, owners)
                for name in (*scope.stale_entries(text.value), *scope.stale_quotes(text.value)):
                    yield module, text.lineno, name


class _Scope:
    """Names that a docstring of the last of `owners`, modules, classes and functions, may use."""

    def __init__(
        self, package: Package, module: str, imports: dict[str, str], owners: list[ast.AST]
    ) -> None:
        self.package, self.module, self.imports = package, module, imports
        self.owners, self.owner = owners, owners[-1]
        self.classes = [owner.name for owner in owners if isinstance(owner, ast.ClassDef)]

    @cached_property
    def own(self) -> set[str]:
        """Names of the function, class or module; most docstrings need none of them."""
        functions = (owner for owner in self.owners if isinstance(owner, _FUNCTIONS))
        names = {*_identifiers(next(functions, self.owner))}
        return names | {*self.imports} | self.package.globals[self.module]

    def stale_entries(self, text: str) -> Iterator[str]:
        members = self.package.members_of(self.classes[-1]) if self.classes else None
        for section, name in _entries(text):
            known: set[str] | None = None
            if section == "Args" and isinstance(self.owner, _FUNCTIONS):
                known = {*_parameters(self.owner)}
            elif members is not None:
                known = members.parameters if section == "Args" else members.names
            if known is not None and name not in known:
                yield name

    def stale_quotes(self, text: str) -> Iterator[str]:
        for quoted in _QUOTED.findall(_CODE.sub("", text)):
            for name in _names(" ".join(quoted.split())):
                if not self._exists(name):
                    yield name

    def _exists(self, name: str) -> bool:
        if _DOTTED.fullmatch(name):
            return self._path_exists(name)
        name = name.rstrip("=")
        return name in self.package.names or bool(_EXAMPLE.fullmatch(name)) or name in self.own

    def _path_exists(self, path: str) -> bool:
        first, second, *_ = parts = [*path.removeprefix("seqrecord.").split("."), ""]
        last = parts[-2]
        if not second:  # `seqrecord.open`
            return first in self.package.names
        if f"{first}.{second}" in self.package.names or _FILE.fullmatch(path):
            return True
        if first in self.package.classes:
            members = self.package.members_of(first)
            return members is None or second in members.names
        if first in self.imports:
            if _can_import(self.imports[first], parts[1:-1]):
                return True
        elif first in self.package.modules:
            if self._is_in_module(parts[:-1]):
                return True
        elif first in _PACKAGES:
            if _can_import(first, parts[1:-1]):
                return True
        elif first not in self.own:  # of a feature, or a placeholder
            return not first[0].isupper() or first.isupper()
        return first in self.own and self._exists(last)

    def _is_in_module(self, parts: list[str]) -> bool:
        for count in range(len(parts), 0, -1):
            for module in self.package.modules.get(".".join(parts[:count]), ()):
                if count == len(parts) or parts[count] in self.package.globals[module]:
                    return True
        return False


def _names(text: str) -> Iterator[str]:
    """Names in the text between backticks: `name`, `name=` or `first.second`."""
    if call := _CALL.fullmatch(text):
        yield call[1]
        yield from re.findall(r"(?:^|, )([a-z]\w*=)", call[2])
    elif argument := _ARGUMENT.fullmatch(text):
        yield f"{argument[1]}="
    elif _DOTTED.fullmatch(text) or _IDENTIFIER.fullmatch(text):
        yield text


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Section and name of each entry of the sections `Args:` and `Attributes:`."""
    for _, section, body in _SECTION.findall(text + "\n"):
        lines = [line for line in body.splitlines() if line.strip()]
        indentation = min((len(line) - len(line.lstrip()) for line in lines), default=0)
        for line in lines:
            if entry := _ENTRY.match(line[indentation:]):
                yield from ((section, name.strip("*")) for name in entry[1].split(", "))


def _docstrings(tree: ast.AST) -> Iterator[tuple[list[ast.AST], Any]]:
    """Owners and string of each docstring, also of those below fields and constants."""

    def below(node: ast.AST, owners: list[ast.AST]) -> Iterator[tuple[list[ast.AST], Any]]:
        for child in getattr(node, "body", ()):
            if isinstance(child, (ast.ClassDef, *_FUNCTIONS)):
                yield from below(child, [*owners, child])
            elif isinstance(child, (ast.If, ast.With, ast.Try)):
                yield from below(child, owners)
            elif isinstance(child, ast.Expr) and _is_string(child.value):
                yield owners, child.value

    return below(tree, [tree])


def _is_string(node: Any) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _strings(tree: ast.AST) -> Iterator[str]:
    documentation = {id(text) for _, text in _docstrings(tree)}
    nodes: Iterator[Any] = ast.walk(tree)
    yield from (node.value for node in nodes if _is_string(node) and id(node) not in documentation)


def _identifiers(node: ast.AST) -> Iterator[str]:
    """Names that code uses or binds, and words of its strings."""
    for text in _strings(node):
        yield from re.findall(r"\w+", text)
    for part in ast.walk(node):
        for attribute in ("id", "attr", "arg", "name"):
            if isinstance(name := getattr(part, attribute, None), str):
                yield name


def _global_names(tree: ast.AST) -> Iterator[str]:
    """Names that a module or a class binds."""
    for node in getattr(tree, "body", ()):
        if isinstance(node, (ast.ClassDef, *_FUNCTIONS)):
            yield node.name
        elif isinstance(node, (ast.If, ast.Try)):
            yield from _global_names(node)
        else:
            names = (part for part in ast.walk(node) if isinstance(part, ast.Name))
            yield from (name.id for name in names if isinstance(name.ctx, ast.Store))


def _member_names(node: ast.ClassDef) -> Iterator[str]:
    yield from _global_names(node)
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            yield from [part.attr] if _last_name(part.value) in ("self", "cls") else []


def _class_parameters(node: ast.ClassDef) -> Iterator[str]:
    for child in node.body:
        if isinstance(child, _FUNCTIONS) and child.name in ("__init__", "__new__"):
            yield from _parameters(child)
        elif isinstance(child, ast.AnnAssign):
            yield _last_name(child.target)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    return (part.arg for part in ast.walk(function.args) if isinstance(part, ast.arg))


def _last_name(node: ast.expr) -> str:
    """`C` of `C`, `module.C` and `C[int]`."""
    match node:
        case ast.Subscript(value=value):
            return _last_name(value)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _imports(tree: ast.AST) -> dict[str, str]:
    """Imported names, to `module` or `module:name`."""
    imports: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                imports[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                imports[alias.asname or alias.name] = f"{node.module}:{alias.name}"
    return imports


def _can_import(target: str, names: list[str]) -> bool:
    """Whether a module or `module:name` has these attributes; yes if it is not installed."""
    module, _, attribute = target.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for name in (*filter(None, [attribute]), *names):
            if isinstance(value, ModuleType) and not hasattr(value, name):
                importlib.import_module(f"{value.__name__}.{name}")
            value = getattr(value, name)
    except ModuleNotFoundError as error:
        return error.name == module.partition(".")[0]
    except AttributeError:
        return False
    return True


def public_names() -> Iterator[str]:
    """Names of the public modules, also as `module.name`, and parameters of what they name."""
    for file in sorted({*PUBLIC_FILES, "errors"} - {"__main__", "cli"}):
        module = importlib.import_module(f"seqrecord.{file}".removesuffix(".__init__"))
        for name in getattr(module, "__all__", dir(module)):
            value = getattr(module, name)
            yield from (name, f"{file}.{name}", *_parameter_names(value))
            for member in dir(value) if isinstance(value, type) else ():
                yield from (member, *_parameter_names(getattr(value, member, None)))


def _parameter_names(value: Any) -> Iterable[str]:
    try:
        return inspect.signature(value).parameters if callable(value) else ()
    except (TypeError, ValueError):
        return ()


def package() -> Package:
    trees = {module_name(path): parse(path) for path in sorted(PACKAGE.rglob("*.py"))}
    return Package(trees, public_names())


def _main() -> None:
    for module, line, name in package().stale_names():
        if name not in FOREIGN | COMPOSED:
            sys.stdout.write(f"{module}:{line}: {name}\n")


if __name__ == "__main__":
    _main()
