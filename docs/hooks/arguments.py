"""Shows in the reference what the loaders take, as `inspect.signature` and `help` do.

The pages are made from the source, where `@takes_arguments(Options)` and its like stand for the
fields of a dataclass. This extension of griffe puts them, and their text, where they stand.
"""

from __future__ import annotations

from typing import Any

from griffe import Class, Docstring, Extension, Function, Module, Object, Parameters

_DECORATORS = ("takes_arguments", "init_takes_arguments")


class Arguments(Extension):
    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Called once when all of the package has been read."""
        shown = 0
        for item in _all_of(pkg):
            for decorator in item.decorators:
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


def _texts(options: Class) -> list[str]:
    """The text of each of the options, of the base classes first."""
    classes = [cls for cls in reversed([options, *options.mro()]) if cls.docstring is not None]
    return [cls.docstring.value.partition("Args:\n")[2] for cls in classes]


def _all_of(item: Object) -> list[Any]:
    found: list[Any] = []
    for member in item.members.values():
        if member.is_alias:
            continue
        if isinstance(member, (Class, Function)):
            found.append(member)
        if isinstance(member, (Class, Module)):
            found += _all_of(member)
    return found
