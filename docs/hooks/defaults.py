"""A griffe extension: the reference shows default values in place of the code that makes them.

Pages are made from the source, where a default may be a name or a call:
`clip_len: int | None = _checked(None, _check_clip_len)`. The module is imported, and the value that
`inspect.signature` has is shown. Expressions of literals and builtins stay as written: `3 / 4`.
"""

from __future__ import annotations

import builtins
import dataclasses
import inspect
from importlib import import_module
from operator import attrgetter
from typing import Any

from griffe import Class, Expr, ExprName, Extension, Function, Module, Object, Parameters


class Defaults(Extension):
    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Called once when all of the package has been read, after `dataclasses`."""
        _show_defaults(pkg)


def _show_defaults(item: Object) -> None:
    for member in item.members.values():
        if member.is_alias:
            continue
        if isinstance(member, (Class, Module)):
            _show_defaults(member)
        if isinstance(member, Function):
            parameters = [one for one in member.parameters if not _is_private(one.name)]
            for parameter in parameters:
                if _has_names(parameter.default):
                    parameter.default = _text_of(_default(member, parameter.name))
            member.parameters = Parameters(*parameters)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _has_names(default: str | Expr | None) -> bool:
    """Whether the expression has other names than those of builtins."""
    if isinstance(default, str) or default is None:
        return False
    names = [default] if isinstance(default, ExprName) else default.iterate()
    return any(isinstance(one, ExprName) and not hasattr(builtins, one.name) for one in names)


def _default(function: Function, parameter: str) -> Any:
    module = import_module(function.module.path)
    path = function.path.removeprefix(f"{function.module.path}.")
    owner = attrgetter(path.removesuffix(".__init__"))(module)  # a class's signature: its fields
    default = inspect.signature(owner).parameters[parameter].default
    if isinstance(default, dataclasses.Field):
        return default.default
    return default


def _text_of(value: Any) -> str:
    """Code of a value; functions and classes are named."""
    return value.__name__ if hasattr(value, "__name__") else repr(value)
