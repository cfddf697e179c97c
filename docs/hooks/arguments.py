"""A griffe extension: the reference shows the loaders' arguments, and examples as Python code.

The pages are made from the source, in which `@takes_arguments(Options)` stands for the fields of a
dataclass. The extension inserts these fields and their text, as `inspect.signature` and `help` do.
It also puts the block below `Example:` or `Usage::` into a fence, and drops a `::` alone.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

from griffe import Class, Docstring, Extension, Function, Module, Object, Parameters

_EXAMPLE = re.compile(r"^(Example:|.*[^:\n]::)\n((?: +\S.*\n|\s*\n)+)", re.M)
_LITERAL = re.compile(r"^::\n\n", re.M)  # of reStructuredText; Markdown needs the indent alone
_DECORATORS = ("takes_arguments", "init_takes_arguments")


class Arguments(Extension):
    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Called once when all of the package has been read."""
        shown = 0
        for item in _all_of(pkg):
            if item.docstring is not None:
                text = _LITERAL.sub("", item.docstring.value + "\n")
                item.docstring.value = _EXAMPLE.sub(_fenced, text).rstrip()
            for decorator in getattr(item, "decorators", ()):
                name, _, options = str(decorator.value).rstrip(")").partition("(")
                if name in _DECORATORS:
                    self._show(item, pkg[item.module.resolve(options).split(".", 1)[1]], name)
                    shown += 1
        if not shown:
            raise RuntimeError(f"nothing in {pkg.name} has one of the decorators {_DECORATORS}")

    def _show(self, item: Class | Function, options: Class, decorator: str) -> None:
        if isinstance(item, Function):
            first = list(item.parameters)[:-1]
            own = [parameter for parameter in options.parameters if parameter.name != "self"]
            item.parameters = Parameters(*first, *own)
        if decorator != "init_takes_arguments" and item.docstring is not None:
            item.docstring = Docstring(
                "\n".join([item.docstring.value, *_texts(options)]), parent=item, parser="google"
            )


def _fenced(example: re.Match[str]) -> str:
    title, code = example[1].rstrip(":"), textwrap.dedent(example[2]).strip("\n")
    return f"{title}:\n\n```python\n{code}\n```\n\n"


def _texts(options: Class) -> list[str]:
    """The text of each of the options, of the base classes first."""
    classes = [cls for cls in reversed([options, *options.mro()]) if cls.docstring is not None]
    return [cls.docstring.value.partition("Args:\n")[2] for cls in classes]


def _all_of(item: Object) -> list[Any]:
    found: list[Any] = []
    for member in item.members.values():
        if member.is_alias:
            continue
        if isinstance(member, (Class, Function, Module)):
            found.append(member)
        if isinstance(member, (Class, Module)):
            found += _all_of(member)
    return found
