"""Command line for tests: `run` in this process, `COMMAND` as a process of its own."""

from __future__ import annotations

import sys
from inspect import signature
from typing import Any

import click.testing

from seqrecord.cli import main

__all__ = ["COMMAND", "fail", "main", "run", "separate_outputs"]

COMMAND = [sys.executable, "-m", "seqrecord"]


def run(*arguments: object, code: int = 0) -> click.testing.Result:
    """Run a command in this process; it must exit with `code`."""
    result = click.testing.CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, (SystemExit, type(None))), result.exception
    return result


def fail(*arguments: object, code: int = 1) -> str:
    """The error line of a command that must fail and print nothing else."""
    result = run(*arguments, code=code)
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith("seqrecord: error: ")
    assert "Traceback" not in line
    return line.removeprefix("seqrecord: error: ")


def separate_outputs() -> None:
    """Make `CliRunner` before click 8.2 separate stdout and stderr, with both in `output`."""
    runner: Any = click.testing.CliRunner
    if "mix_stderr" not in signature(runner).parameters:
        return

    class Both(click.testing.Result):
        @property
        def output(self) -> str:
            return self.stdout + self.stderr

    class Runner(runner):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(mix_stderr=False, **options)

        def invoke(self, *arguments: Any, **options: Any) -> click.testing.Result:
            result: click.testing.Result = super().invoke(*arguments, **options)
            result.__class__ = Both
            return result

    click.testing.CliRunner = Runner  # type: ignore[assignment, misc]
