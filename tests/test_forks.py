"""What a forked process does not take over, and what it knows of hooks that failed."""

from __future__ import annotations

import pytest

from tests.torch_process import run_code

HOOKS = """
import os, sys
from seqrecord.processes.forks import at_fork, check_fork
from seqrecord.errors import SeqRecordError

when, said = sys.argv[1:], []

def fails():
    if when:
        said.append(when[0])
        raise OSError(24, "no more files")

at_fork(**{name: fails for name in when})
for number in range(2):
    if not os.fork():
        try:
            check_fork()
        except SeqRecordError as error:
            assert "no more files" in str(error), error
            assert isinstance(error.__cause__, OSError)
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
    check_fork()  # the parent goes on
    when.clear()
"""


@pytest.mark.parametrize("when", ["before", "after_in_child"])
def test_a_process_knows_of_a_hook_that_failed(when: str) -> None:
    done = run_code(HOOKS, when)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "0"]  # the next fork is another one
