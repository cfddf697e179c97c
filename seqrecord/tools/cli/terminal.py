"""Shared behavior of commands: errors on one line, exit codes, `--debug`, progress bars."""

from __future__ import annotations

import io
import json
import math
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click

from seqrecord.errors import SeqRecordError
from seqrecord.store.lazy import import_part, lack_of, missing_part
from seqrecord.store.text import one_line, without_secrets
from seqrecord.store.units import Progress

if TYPE_CHECKING:
    from tqdm import tqdm

PROGRAM = "seqrecord"

_FAILED, _MISUSED, _INTERRUPTED = 1, 2, 130

_received: list[int] = []
"""The signal that interrupted the command."""


class Interrupted(click.ClickException):
    """Ctrl-C or another signal, with a message about the unfinished work."""

    exit_code = _INTERRUPTED


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP interrupt a command as Ctrl-C does; `nohup` still ignores SIGHUP."""

    # As Ctrl-C, so that finished episodes are kept:
    # tests/tools/test_cli.py::test_a_signal_keeps_finished_episodes
    def interrupt(number: int, _: object) -> None:
        if not _received:  # terminals and supervisors may send several
            _received.append(number)
            raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    numbers = [signal.SIGTERM, signal.SIGHUP] if is_main else []
    handlers = [(n, signal.getsignal(n)) for n in numbers]
    handlers = [(n, handler) for n, handler in handlers if handler == signal.SIG_DFL]
    try:
        for n, _ in handlers:
            signal.signal(n, interrupt)
        yield
    finally:
        for n, handler in handlers:
            signal.signal(n, handler)
        _received.clear()


class Command(click.Command):
    """A command that refuses an option given twice; click would ignore the first value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Parsed twice, since click keeps the last value only.
        # tests/tools/test_cli.py::test_no_option_is_ignored_if_it_is_given_twice
        _, _, params = self.make_parser(ctx).parse_args(args=[*args])
        for param in params:
            takes_one = isinstance(param, click.Option) and not (param.multiple or param.is_flag)
            if takes_one and params.count(param) > 1 and not ctx.resilient_parsing:
                raise click.UsageError(f"{param.opts[-1]} is given twice; expected once", ctx)
        return super().parse_args(ctx, args)


class Group(click.Group):
    """A group whose commands have `--debug`; `Commands` evaluates it."""

    command_class = Command

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        help_text = "Show tracebacks of errors."
        cmd.params.append(
            click.Option(["--debug"], is_flag=True, expose_value=False, help=help_text)
        )
        super().add_command(cmd, name)


class Commands(Group):
    """The root group. Prints errors as one line, `seqrecord: error: …`, and sets the exit code.

    The exit code is 2 for usage errors, 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP, and 1 for
    other errors. Exceptions other than `SeqRecordError`, `OSError` and click's are bugs: they keep
    their traceback. `--debug` prints the traceback of all errors.

    Args:
        modules: command name to module of this package, imported on demand.
    """

    def __init__(
        self, *args: Any, modules: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._modules = modules or {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - signature of click
        return sorted({*self.commands, *self._modules})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._modules and cmd_name not in self.commands:
            package = __name__.rpartition(".")[0]
            module = import_part(f"{package}.{self._modules[cmd_name]}")
            self.add_command(getattr(module, cmd_name), cmd_name)
        return super().get_command(ctx, cmd_name)

    @_interruptible()
    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> NoReturn:
        words = list(sys.argv[1:] if args is None else args)
        for stream in (sys.stdout, sys.stderr):
            # Paths may contain invalid UTF-8, and terminals may lack characters.
            if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
                stream.reconfigure(errors="backslashreplace")
        debug = "--debug" in words
        try:
            code = super().main(words, **{**extra, "prog_name": PROGRAM, "standalone_mode": False})
            sys.exit(code if isinstance(code, int) else 0)
        except click.UsageError as error:
            context = f"; see {error.ctx.command_path} --help" if error.ctx else ""
            message = without_secrets(error.format_message().rstrip("."))
            _fail(f"{message}{context}", _MISUSED, debug)
        except click.ClickException as error:
            _fail(without_secrets(error.format_message()), error.exit_code, debug)
        except click.Abort:
            _fail("interrupted", _INTERRUPTED, debug)
        except SeqRecordError as error:
            _fail(str(error), _FAILED, debug)
        except ModuleNotFoundError as error:  # of an import inside a function
            if (part := missing_part(error)) is None:
                raise
            _fail(lack_of(part), _FAILED, debug)
        except BrokenExecutor:
            _fail(
                "a worker process died, possibly out of memory: use fewer --workers and continue "
                "with --resume",
                _FAILED,
                debug,
            )
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            file = f"; file: {error.filename}" if error.filename else ""
            _fail(f"{reason}{file}", _FAILED, debug)


def _fail(message: str, code: int, debug: bool) -> NoReturn:
    if debug:
        click.echo(without_secrets(traceback.format_exc()), err=True)
    click.echo(f"{PROGRAM}: error: {one_line(message)}", err=True)
    sys.exit(128 + _received[0] if _received else code)


def echo_json(value: Any) -> None:
    """Print a value as JSON; NaN and infinities, which JSON lacks, as `null`."""
    click.echo(json.dumps(_finite(value), indent=1))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [*map(_finite, value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class ProgressBar:
    """A context manager with a progress bar on stderr: amount, perhaps the speed, time left.

    It is the `progress` of a function. Without a terminal it prints a line every 10 seconds. With
    `resumes`, the function commits at its end, and the message of an interruption recommends
    `--resume`. With `scale`, the unit is bytes.
    """

    def __init__(
        self,
        unit: str,
        *,
        scale: bool = False,
        speed: bool = False,
        quiet: bool = False,
        resumes: bool = False,
    ) -> None:
        self._unit, self._scale, self._quiet, self._resumes = unit, scale, quiet, resumes
        self._has_speed = speed or scale
        self.last = Progress(0, 0)
        self._begin = time.perf_counter()
        self._bar: tqdm[NoReturn] | None = None

    @property
    def seconds(self) -> float:
        """Seconds since the start of the command."""
        return time.perf_counter() - self._begin

    @property
    def speed(self) -> str:
        """Mean speed so far, as text."""
        nbytes, seconds = self.last.raw_bytes, max(self.seconds, 1e-3)
        if self._scale:
            nbytes = self.last.done
        elif not nbytes:
            return f"{self.last.done / seconds:.1f}/s"
        return f"{nbytes / seconds / 1e6:.0f} MB/s"

    def __call__(self, progress: Progress) -> None:
        """Update the bar; the first call displays it."""
        self.last = progress
        if self._quiet:
            return
        if self._bar is None:
            self._bar = self._make(progress.total)
        is_done = progress.done == progress.total  # work after it, such as a commit, takes time
        notes = [self.speed] * self._has_speed + ["committing"] * (is_done and self._resumes)
        self._bar.set_postfix_str(", ".join(notes), refresh=False)
        self._bar.update(progress.done - self._bar.n)
        if is_done:
            self._bar.refresh()

    def _make(self, total: int) -> tqdm[NoReturn]:
        from tqdm import tqdm

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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
        # A signal to the process group also kills workers.
        is_stopped = kind is not None and (_received or issubclass(kind, KeyboardInterrupt))
        if self._resumes and is_stopped:
            raise Interrupted(
                "interrupted; the same command with --resume continues after the finished episodes"
            ) from None
