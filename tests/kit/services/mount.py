"""An `rclone mount` of an Azurite container: access through FUSE, like blobfuse."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.kit.processes import Program, wait_for
from tests.kit.services.azurite import Azurite


class Mount:
    """A container as the folder `path`; rclone's files are in `folder`.

    Read-only unless `writable`, which enables rclone's write cache: a file is uploaded a second
    after it is closed, and `close` does not wait for that.
    `options` are further options of `rclone mount`.
    """

    def __init__(
        self,
        azurite: Azurite,
        container: str,
        folder: Path,
        *,
        writable: bool = False,
        options: tuple[str, ...] = (),
    ) -> None:
        self.path = folder / "mount"
        self.path.mkdir(parents=True)
        self._folder = folder
        command = ["rclone", "mount", f"azurite:{container}", str(self.path)]
        command += ["--config", "", "--cache-dir", str(folder / "cache")]
        command += ["--dir-cache-time", "0s", "--vfs-read-chunk-size", "16M"]
        command += ["--low-level-retries", "1", "--retries", "1"]
        command += ["--vfs-cache-mode", "writes", "--vfs-write-back", "1s"] if writable else []
        command += [] if writable else ["--read-only"]
        self._command = [*command, *options]
        self._environment = {
            **os.environ,
            "RCLONE_CONFIG_AZURITE_TYPE": "azureblob",
            "RCLONE_CONFIG_AZURITE_SAS_URL": azurite.sas_url(container),
        }
        self._start()

    def kill(self) -> None:
        """Kill the mount's process: open files fail with ENOTCONN from now on."""
        self.program.kill()

    def restart(self) -> None:
        """Mount it again after `close`."""
        self._start()

    def close(self) -> None:
        """Unmount it; lazily if a file is still open."""
        self._leave()
        self.program.stop()

    def _start(self) -> None:
        log = self._folder / "rclone.log"
        try:
            self.program = Program(
                self._command, log, self._environment, lambda _: self.path.is_mount()
            )
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        if self._mounted() and not self._unmount():
            self._unmount("-z")
        wait_for(lambda: not self._mounted())

    def _mounted(self) -> bool:
        # Not by a look into the folder, which fails if the mount's process has died.
        return f" {self.path} " in Path("/proc/self/mountinfo").read_text()

    def _unmount(self, *how: str) -> bool:
        command = ["fusermount3", "-u", *how, str(self.path)]
        return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0
