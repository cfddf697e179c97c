"""The command line's manners: one-line errors, exit codes, progress bars, parsed options."""

from __future__ import annotations

import json
import re
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from types import TracebackType
from typing import Any, NoReturn

import click
from tqdm import tqdm

from seqrecord.errors import SeqRecordError
from seqrecord.units import parse_duration, parse_size
from seqrecord.wording import one_line

__all__ = [
    "PROGRAM",
    "ByteSize",
    "Commands",
    "Duration",
    "FrameRange",
    "Interrupted",
    "Names",
    "ProgressBar",
    "parse_codecs",
    "parse_storage_options",
]

PROGRAM = "seqrecord"

_FAILED, _MISUSED, _INTERRUPTED = 1, 2, 130
_FEATURE = re.compile(r"[\w.-]*", re.ASCII)  # no character that tells a codec from a name


class Interrupted(click.ClickException):
    """Ctrl-C, with a message that says what it leaves behind."""

    exit_code = _INTERRUPTED


class Commands(click.Group):
    """Commands whose errors are one line, `seqrecord: error: …`, and an exit code.

    2 for a wrong use of the command line, 130 for Ctrl-C, 1 for anything else that went wrong.
    Errors that are neither this package's nor the system's are defects and keep their traceback,
    and with `--debug` all do.
    """

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,  # noqa: ARG002 - click's signature
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: ARG002
        windows_expand_args: bool = True,  # noqa: ARG002
        **extra: Any,
    ) -> NoReturn:
        words = list(sys.argv[1:] if args is None else args)
        debug = "--debug" in words
        try:
            code = super().main(words, PROGRAM, complete_var, standalone_mode=False, **extra)
            sys.exit(code if isinstance(code, int) else 0)
        except click.UsageError as error:
            context = f"; see {error.ctx.command_path} --help" if error.ctx else ""
            _fail(f"{error.format_message().rstrip('.')}{context}", _MISUSED, debug)
        except click.ClickException as error:
            _fail(error.format_message(), error.exit_code, debug)
        except click.Abort:
            _fail("interrupted", _INTERRUPTED, debug)
        except SeqRecordError as error:
            _fail(str(error), _FAILED, debug)
        except BrokenExecutor:
            _fail(
                "a worker process died, perhaps for lack of memory; fewer --workers need less, "
                "and --resume goes on",
                _FAILED,
                debug,
            )
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            file = f"; file: {error.filename}" if error.filename else ""
            _fail(f"{reason}{file}", _FAILED, debug)


def _fail(message: str, code: int, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    click.echo(f"{PROGRAM}: error: {one_line(message)}", err=True)
    sys.exit(code)


class ProgressBar:
    """One bar on stderr: how much is done, a note such as the speed, the time left.

    A context manager. Where stderr is no terminal it writes a line now and then.
    """

    def __init__(self, unit: str, *, scale: bool = False, quiet: bool = False) -> None:
        self._unit = unit
        self._scale = scale
        self._quiet = quiet
        self._begin = time.perf_counter()
        self._bar: tqdm[NoReturn] | None = None

    @property
    def seconds(self) -> float:
        """Since the bar was made."""
        return time.perf_counter() - self._begin

    def show(self, done: int, total: int, note: str) -> None:
        """Move the bar, which is there from the first call on."""
        if self._quiet:
            return
        if self._bar is None:
            self._bar = self._make(total)
        self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(done - self._bar.n)

    def _make(self, total: int) -> tqdm[NoReturn]:
        count = (
            "{n_fmt}iB/{total_fmt}iB" if self._scale else f"{{n_fmt}}/{{total_fmt}} {self._unit}"
        )
        return tqdm(
            total=total,
            unit_scale=self._scale,
            unit_divisor=1024,
            file=sys.stderr,
            mininterval=0.2 if sys.stderr.isatty() else 10.0,
            bar_format=f"{{percentage:3.0f}}% |{{bar}}| {count}{{postfix}}, {{remaining}} left",
            dynamic_ncols=True,
        )

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()


class _Parsed(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """An option that a function parses; its `ValueError` is a wrong use."""

    parse: Callable[[str], Any]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return type(self).parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class ByteSize(_Parsed):
    """`1GiB`, `500MB`, or a number of bytes."""

    name = "size"
    parse = staticmethod(parse_size)


class Duration(_Parsed):
    """`30m`, `12h`, `7d`, or a number of seconds."""

    name = "duration"
    parse = staticmethod(parse_duration)


def _parse_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError(f"not a list of names: {text!r}; write a,b,c")
    return names


class Names(_Parsed):
    """`a,b,c`."""

    name = "names"
    parse = staticmethod(_parse_names)


def _parse_range(text: str) -> slice:
    try:
        numbers = [int(part) if part else None for part in text.split(":")]
        if len(numbers) in (2, 3) and numbers[2:] != [0]:
            return slice(*numbers)
    except ValueError:
        pass
    raise ValueError(f"not a range of frames: {text!r}; write START:STOP or START:STOP:STEP")


class FrameRange(_Parsed):
    """`START:STOP` or `START:STOP:STEP`, as Python's slices."""

    name = "range"
    parse = staticmethod(_parse_range)


def parse_codecs(
    values: Sequence[str], features: Callable[[], Sequence[str]]
) -> str | dict[str, Any] | None:
    """What repeated `--codec` options ask for: codecs by feature, beside one for all others.

    `features` tells which others there are; it is called only where that matters.
    """
    bare: list[str] = []
    named: dict[str, Any] = {}
    for value in values:
        name, equals, codec = value.partition("=")
        if not equals or not _FEATURE.fullmatch(name):  # jpeg:quality=90, or JSON
            bare.append(value)
        elif name in named:
            raise click.BadParameter(f"two codecs for {name}")
        else:
            named[name] = _parse_codec(codec)
    if len(bare) > 1:
        raise click.BadParameter(f"two codecs for all features: {' and '.join(bare)}")
    others = _parse_codec(bare[0]) if bare else None
    if not named and not isinstance(others, list):
        return others
    return {**dict.fromkeys(features() if bare else (), others), **named}


def _parse_codec(text: str) -> Any:
    if not text.startswith("["):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"a codec chain that is not JSON: {error}") from error


def parse_storage_options(values: Sequence[str]) -> dict[str, Any] | None:
    """`KEY=VALUE` options; a value that is a JSON number, `true`, `false` or `null` is that."""
    options: dict[str, Any] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise click.BadParameter("not KEY=VALUE")  # not shown: it may be a secret
        try:
            parsed = json.loads(text)
        except ValueError:
            parsed = text
        options[key] = text if isinstance(parsed, (list, dict)) else parsed
    return options or None
