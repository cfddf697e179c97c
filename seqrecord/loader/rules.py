"""Rules: arguments that exclude or need each other, as tables of conditions and errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from seqrecord.errors import ClipError

_Options = TypeVar("_Options")
_Text: TypeAlias = str | Callable[[_Options], str]


@dataclass(frozen=True)
class Rule(Generic[_Options]):
    """A combination of arguments that is refused.

    Attributes:
        is_broken: whether options have this combination.
        problem, expected, got: of the error; a function makes the text from the options.
        arguments: the rule is kept while all of these have their defaults. `is_broken` is then not
            called: most loaders set few arguments.
    """

    is_broken: Callable[[_Options], object]
    problem: _Text[_Options]
    expected: _Text[_Options]
    got: Callable[[_Options], object] | None = None
    arguments: tuple[str, ...] = ()

    def concerns(self, options: _Options) -> bool:
        """Whether any of `arguments` has another value than its default, or there are none.

        `options` is a dataclass, whose class has the defaults as attributes.
        """
        usual = type(options)
        for name in self.arguments:
            if getattr(options, name) is not getattr(usual, name):
                return True
        return not self.arguments

    def error(self, options: _Options) -> ClipError:
        """The error for options with the combination."""
        problem, expected = (
            text if isinstance(text, str) else text(options)
            for text in (self.problem, self.expected)
        )
        return ClipError(problem, expected=expected, got=self.got and self.got(options))
