r"""All small changes of a module, as replacements of a few bytes of its source.

| kind | before | after |
|---|---|---|
| comparison | `a < b`, `a == b`, `a in b` | `a <= b`, `a != b`, `a not in b` |
| constant | `8`, `0.5`, `True` | `9` and `7`, `1.5` and `-0.5`, `False` |
| arithmetic | `a + b`, `a * b`, `a << b`, `a & b` | `a - b`, `a // b`, `a >> b`, `(a \| b)` |
| sign | `-a` | `a` |
| and/or | `a and b` | `a or b` |
| condition | `if a:`, `not a` | `if not (a):`, `a` |
| arguments | `f(a, b)` | `f(b, a)` |
| opposite | `min(a, b)`, `any(a)`, `np.floor(a)` | `max(a, b)`, `all(a)`, `np.ceil(a)` |
| slice | `a[i:j]` | `a[:j]` and `a[i:]` |
| statement | `f(a)`, `a += b`, `self.a = b`, `raise E`, `break` | `pass` |

Excluded is code that no test could cover: annotations, type aliases, `cast`, docstrings, `__all__`,
`if TYPE_CHECKING`, assertions, decorators, text (f-strings, the arguments of errors, warnings and
log calls), and log calls below a warning.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Change", "Edit", "changed", "changes_of"]

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
"""By operator: a regular expression of its source, and the replacement."""

ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "//"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}

_PAIRS = ("min max", "any all", "minimum maximum", "argmin argmax", "floor ceil")
OPPOSITES = {
    word: other
    for pair in _PAIRS
    for words in [pair.split()]
    for word, other in [words, reversed(words)]
}

SYMMETRIC = {"array_equal", "cast", "gcd", "isinstance", "issubclass", "lcm", *OPPOSITES}
"""Functions with arguments in any order, or with types as arguments."""

TYPES = {"NewType", "ParamSpec", "TypeVar", "getLogger"}
"""Calls that only matter to a type checker, or name a logger."""

LOGS = {"debug", "info", "log", "warning", "warn", "error", "exception"}
QUIET = {"debug", "info", "log"}


@dataclass(frozen=True)
class Edit:
    """The bytes [`start`, `end`) of a source become `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Change:
    """One change of a module.

    `line` is the line of the change, `statement` the first line of the statement around it.
    `scope` is the dotted name of the function or class, "" in the module; `deferred` is true in a
    function, where the statement does not run at import.
    """

    kind: str
    line: int
    statement: int
    scope: str
    deferred: bool
    edits: tuple[Edit, ...]


def changed(source: bytes, change: Change) -> bytes:
    """The source after a change."""
    for edit in sorted(change.edits, key=lambda edit: edit.start, reverse=True):
        source = source[: edit.start] + edit.text.encode() + source[edit.end :]
    return source


def changes_of(source: bytes) -> list[Change]:
    """Every possible change of a module, from its first line to its last."""
    return list(_Finder(source).of_body(ast.parse(source).body, _Place()))


@dataclass(frozen=True)
class _Place:
    scope: str = ""
    deferred: bool = False
    statement: int = 0

    def inside(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> _Place:
        scope = f"{self.scope}.{node.name}" if self.scope else node.name
        return _Place(scope, self.deferred or not isinstance(node, ast.ClassDef))


class _Finder:
    """Walks a module and finds the position of each node in its bytes."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._last: set[ast.stmt] = set()
        """Final `return` statements of functions: without them, every test would fail."""

    # Statements

    def of_body(
        self, body: Sequence[ast.stmt], place: _Place, bound: set[str] | None = None
    ) -> Iterator[Change]:
        """Changes of a body; `bound` are the names with a value before it runs."""
        for statement in body:
            yield from self._of_statement(statement, place, bound)
            if bound is not None:
                bound |= _stored(statement)

    def _of_statement(
        self, node: ast.stmt, place: _Place, bound: set[str] | None
    ) -> Iterator[Change]:
        here = _Place(place.scope, place.deferred, node.lineno)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if any(_name(each) == "overload" for each in node.decorator_list):
                return
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    yield from self._of(default, here)
            names = {arg.arg for arg in ast.walk(node.args) if isinstance(arg, ast.arg)}
            self._last.add(node.body[-1])
            yield from self.of_body(node.body, place.inside(node), names)
            return
        if isinstance(node, ast.ClassDef):
            if not any(_name(base) == "Protocol" for base in node.bases):
                yield from self.of_body(node.body, place.inside(node))
            return
        if isinstance(node, ast.Assert) or _is_typing(node, in_module=not place.scope):
            return
        if _may_be_dropped(node, bound, last=node in self._last):
            yield self._change("statement", here, self._replaced(node, "pass"))
        if isinstance(node, ast.Raise):
            return
        if isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING":
            yield from self.of_body(node.orelse, place, bound)
            return
        if isinstance(node, ast.AugAssign):
            yield from self._of_operator(node, node.target, node.op, node.value, here)
        if isinstance(node, (ast.If, ast.While)):
            yield from self._negated(node.test, here)
        yield from self._of_parts(node, here, place, bound)

    def _of_parts(
        self, node: ast.AST, here: _Place, place: _Place, bound: set[str] | None
    ) -> Iterator[Change]:
        """Changes inside a statement: expressions belong to it, bodies have their own."""
        for name, value in ast.iter_fields(node):
            if name == "annotation":
                continue
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.stmt):
                    yield from self.of_body([each], place, bound)
                elif isinstance(each, ast.expr):
                    yield from self._of(each, here)
                elif isinstance(each, ast.match_case):
                    if each.guard is not None:
                        yield from self._negated(each.guard, here)
                        yield from self._of(each.guard, here)
                    yield from self.of_body(each.body, place, bound)
                elif isinstance(each, (ast.ExceptHandler, ast.withitem)):
                    yield from self._of_parts(each, here, place, bound)

    # Expressions

    def _of(self, node: ast.expr, here: _Place) -> Iterator[Change]:
        """Changes of an expression and of all inside it."""
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and _is_text(node)):
            return
        if isinstance(node, ast.Constant):
            yield from self._of_constant(node, here)
        elif isinstance(node, ast.Compare):
            yield from self._of_comparison(node, here)
        elif isinstance(node, ast.BinOp):
            yield from self._of_operator(node, node.left, node.op, node.right, here)
        elif isinstance(node, ast.BoolOp):
            yield self._other_junction(node, here)
        elif isinstance(node, ast.UnaryOp):
            if isinstance(node.op, ast.USub):
                yield self._without_prefix("sign", node, b"-", here)
            elif isinstance(node.op, ast.Not):
                yield self._without_prefix("condition", node, b"not", here)
        elif isinstance(node, ast.IfExp):
            yield from self._negated(node.test, here)
        elif isinstance(node, ast.Slice):
            yield from self._shorter_slice(node, here)
        elif isinstance(node, ast.Call):
            yield from self._of_call(node, here)
        for each in _parts(node):
            if isinstance(each, ast.expr):
                yield from self._of(each, here)
            elif isinstance(each, ast.keyword):
                yield from self._of(each.value, here)
            elif isinstance(each, ast.arguments):
                for default in (*each.defaults, *each.kw_defaults):
                    if default is not None:
                        yield from self._of(default, here)
            elif isinstance(each, ast.comprehension):
                yield from self._of(each.iter, here)
                for condition in each.ifs:
                    yield from self._negated(condition, here)
                    yield from self._of(condition, here)

    def _of_constant(self, node: ast.Constant, here: _Place) -> Iterator[Change]:
        value = node.value
        if isinstance(value, bool):
            yield self._change("constant", here, self._replaced(node, str(not value)))
        elif isinstance(value, (int, float)):
            for other in (value + 1, value - 1):
                if other != value:  # equal for 1e30, for example
                    yield self._change("constant", here, self._replaced(node, repr(other)))

    def _of_comparison(self, node: ast.Compare, here: _Place) -> Iterator[Change]:
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            pattern, other = COMPARISONS[type(operator)]
            edit = self._between(left, right, pattern, other)
            yield self._change("comparison", here, edit)

    def _of_operator(
        self,
        node: ast.BinOp | ast.AugAssign,
        left: ast.expr,
        operator: ast.operator,
        right: ast.expr,
        here: _Place,
    ) -> Iterator[Change]:
        if type(operator) not in ARITHMETIC or _is_sequence(left) or _is_sequence(right):
            return
        symbol, other = ARITHMETIC[type(operator)]
        edit = self._between(left, right, re.escape(symbol), other)
        if isinstance(node, ast.BinOp) and symbol in "&|":  # their precedence differs
            start, end = self._range(node)
            edit = (Edit(start, start, "("), *edit, Edit(end, end, ")"))
        yield self._change("arithmetic", here, edit)

    def _other_junction(self, node: ast.BoolOp, here: _Place) -> Change:
        words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        edits: list[Edit] = []
        for left, right in zip(node.values, node.values[1:], strict=False):
            edits += self._between(left, right, *words)
        return self._change("and/or", here, tuple(edits))

    def _without_prefix(self, kind: str, node: ast.UnaryOp, prefix: bytes, here: _Place) -> Change:
        start, _ = self._range(node)
        assert self._source.startswith(prefix, start)
        return self._change(kind, here, (Edit(start, start + len(prefix), ""),))

    def _negated(self, test: ast.expr, here: _Place) -> Iterator[Change]:
        """A negated condition, unless another kind of change does the same."""
        match test:
            case ast.Constant() | ast.UnaryOp(op=ast.Not()):
                return
            case ast.Compare(ops=[ast.Eq() | ast.NotEq() | ast.Is() | ast.IsNot() | ast.In()]):
                return
            case ast.Compare(ops=[ast.NotIn()]):
                return
        start, end = self._range(test)
        edits = (Edit(start, start, "not ("), Edit(end, end, ")"))
        yield self._change("condition", here, edits)

    def _shorter_slice(self, node: ast.Slice, here: _Place) -> Iterator[Change]:
        for bound in (node.lower, node.upper):
            if bound is None or (isinstance(bound, ast.Constant) and bound.value in (0, None)):
                continue
            yield self._change("slice", here, self._replaced(self._in_parens(bound), ""))

    def _of_call(self, node: ast.Call, here: _Place) -> Iterator[Change]:
        name = _name(node.func)
        if name in OPPOSITES:
            end = self._range(node.func)[1]
            edit = Edit(end - len(name), end, OPPOSITES[name])
            yield self._change("opposite", here, (edit,))
        if name in SYMMETRIC:
            return
        for first, second in zip(node.args, node.args[1:], strict=False):
            if isinstance(first, ast.Starred) or isinstance(second, ast.Starred):
                continue
            if ast.dump(first) != ast.dump(second):
                edits = self._replaced(first, self._text(second))
                edits += self._replaced(second, self._text(first))
                yield self._change("arguments", here, edits)

    # Positions in the source

    def _change(self, kind: str, here: _Place, edits: tuple[Edit, ...]) -> Change:
        line = min(edits, key=lambda edit: edit.start).start
        number = self._source.count(b"\n", 0, line) + 1
        return Change(kind, number, here.statement, here.scope, here.deferred, edits)

    def _range(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._lines[node.lineno - 1] + node.col_offset
        return start, self._lines[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr) -> str:
        start, end = self._range(node)
        return self._source[start:end].decode()

    def _replaced(self, node: ast.expr | ast.stmt | tuple[int, int], text: str) -> tuple[Edit, ...]:
        start, end = node if isinstance(node, tuple) else self._range(node)
        return (Edit(start, end, text),)

    def _in_parens(self, node: ast.expr) -> tuple[int, int]:
        """The node's range with surrounding parentheses, which belong to no node."""
        start, end = self._range(node)
        while True:
            before = self._source[:start].rstrip()
            after = len(self._source) - len(self._source[end:].lstrip())
            if not before.endswith(b"(") or self._source[after : after + 1] != b")":
                return start, end
            start, end = len(before) - 1, after + 1

    def _between(
        self, left: ast.expr, right: ast.expr, pattern: str, other: str
    ) -> tuple[Edit, ...]:
        """Replace the operator between two operands; keeps space, parentheses and comments."""
        start, end = self._range(left)[1], self._range(right)[0]
        gap = re.sub(rb"#[^\n]*", lambda found: b" " * len(found[0]), self._source[start:end])
        found = re.search(pattern.encode(), gap)
        assert found is not None
        return (Edit(start + found.start(), start + found.end(), other),)


def _name(node: ast.expr) -> str:
    """The last part of a dotted name or of a called function's name, "" for anything else."""
    if isinstance(node, ast.Call):
        return _name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_log(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    base = _name(node.func.value)
    return node.func.attr in LOGS and (base == "warnings" or base.strip("_").startswith("log"))


def _is_text(node: ast.Call) -> bool:
    """Whether the arguments are a message or types."""
    name = _name(node.func)
    return _is_log(node) or name in TYPES or name.endswith(("Error", "Warning"))


def _is_sequence(node: ast.expr) -> bool:
    """Text and literals of sequences: operators other than + would always fail."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, bytes))
    return isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple))


def _is_typing(node: ast.stmt, in_module: bool) -> bool:
    """Whether a statement names a type, or lists the names of a module or class."""
    if isinstance(node, ast.AnnAssign):
        targets: list[ast.expr] = [node.target]
        if _name(node.annotation) in ("TypeAlias", "ClassVar"):
            return _name(node.annotation) == "TypeAlias"
    elif isinstance(node, ast.Assign):
        targets = node.targets
    else:
        return False
    names = [_name(target) for target in targets]
    if "__all__" in names or "__slots__" in names:
        return True
    # `Mode = Literal[1, 2]` and `_Row = A | B`: names in mixed case are types.
    return in_module and all(re.fullmatch(r"_?[A-Z]\w*[a-z]\w*", name) for name in names)


def _may_be_dropped(node: ast.stmt, bound: set[str] | None, last: bool) -> bool:
    """Whether the module still compiles, with all names bound, without a statement."""
    if isinstance(node, ast.Expr):
        if _is_log(node.value):
            return _name(node.value) not in QUIET
        return isinstance(node.value, (ast.Call, ast.Yield, ast.YieldFrom, ast.Await))
    if isinstance(node, (ast.AugAssign, ast.Raise, ast.Break, ast.Continue)):
        return True
    if isinstance(node, ast.Delete):
        return not all(isinstance(target, ast.Name) for target in node.targets)
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        if node.value is None:
            return False
        names = [
            each
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            for each in (target.elts if isinstance(target, ast.Tuple) else [target])
        ]
        return all(
            isinstance(each, (ast.Attribute, ast.Subscript))
            or (bound is not None and _name(each) in bound)
            for each in names
        )
    return isinstance(node, ast.Return) and not last


def _stored(node: ast.AST) -> set[str]:
    return {
        each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }


def _parts(node: ast.expr) -> Sequence[ast.AST]:
    """Direct parts of an expression, without types."""
    if isinstance(node, ast.Call) and _name(node.func) in ("isinstance", "issubclass"):
        return node.args[:1]
    if isinstance(node, ast.Call) and _name(node.func) == "cast":
        return node.args[1:]
    return list(ast.iter_child_nodes(node))
