"""Records the lines that each test runs, once for each version of code and tests."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from development.mutation.covering import Covering
from development.mutation.instrumenting import write_instrumented
from development.mutation.trees import copy_tree, digest, project_files, restore

__all__ = ["Recording"]


class Recording:
    """Copies of the project at one version, and what its tests run, in a folder of `work`.

    Tests recorded for one set of tests are not run again for another set.
    """

    def __init__(self, root: Path, work: Path, processes: int) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self._lock = (work / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # another run changes the copies: wait for its end
        files = project_files(root)
        self.folder = work / digest(root, files, [])
        self.source = self.folder / "source"
        self._code, self._records = self.folder / "code", self.folder / "records"
        self._processes = processes
        copied = self.folder / "copied"
        if not copied.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            copy_tree(root, files, self.source)
            write_instrumented(self.source, self._code)
            self._records.mkdir()
            copied.write_text("\n".join(files))
        files = copied.read_text().split("\n")  # development tools may have others now
        self.copies = [self.folder / f"copy-{number}" for number in range(processes)]
        for copy in self.copies:
            if not (copy / "seqrecord").exists():
                copy_tree(self.source, files, copy)
            restore(self.source, copy)

    def selected(self, arguments: Sequence[str]) -> list[str]:
        """Names of the tests that pytest selects by its arguments."""
        output = self._pytest(
            ["--collect-only", "-W", "ignore", *arguments], stdout=subprocess.PIPE
        )
        names = output.split("\n\n")[0].splitlines()
        names = [name for name in names if "::" in name]
        if not names:
            sys.exit(f"pytest selects no tests by {' '.join(arguments)}")
        return names

    def covering(self, names: Sequence[str], arguments: Sequence[str]) -> Covering:
        """The lines of these tests; runs tests that were not recorded yet.

        `arguments` selected them; options such as `-m ''` are needed to run them, too.
        """
        known = set()
        for path in self._records.glob("*.jsonl"):
            known |= {json.loads(line)["test"] for line in path.read_text().splitlines()}
        if missing := [name for name in names if name not in known]:
            chosen = self.folder / "missing.txt"
            chosen.write_text("\n".join(missing) + "\n")
            options = [*arguments, f"@{chosen}", "-p", "development.mutation.recording"]
            options += ["-n", str(self._processes), "--dist", "loadfile"]
            self._pytest(
                options, MUTATION_CODE=str(self._code), MUTATION_RECORDS=str(self._records)
            )
        return Covering(self.source, self._code, self._records)

    def _pytest(self, arguments: Sequence[str], stdout: int | None = None, **variables: str) -> str:
        tool = self.source / "development" / "mutation" / "on_path"
        path = os.pathsep.join([*([str(tool)] if variables else []), str(self.source)])
        environment = {
            **os.environ,
            "PYTHONPATH": path,
            "PYTHONDONTWRITEBYTECODE": "1",
            **variables,
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(
            command, cwd=self.source, env=environment, stdout=stdout, text=True, check=False
        )
        if done.returncode not in (0, 1):  # failing tests are excluded
            sys.exit(f"the tests could not be run: pytest ended with {done.returncode}")
        return done.stdout or ""
