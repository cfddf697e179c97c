"""Services used by other tests: installation hints, and their end with the test process."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.kit.processes import ROOT, run_python, wait_for
from tests.kit.services import needs

LOCK = ROOT / "tests/kit/services/package-lock.json"


def test_the_lock_file_has_no_urls() -> None:
    text = LOCK.read_text()
    assert '"node_modules/azurite"' in text
    assert "integrity" in text
    assert "://" not in text


@pytest.mark.parametrize(
    ("needed", "raised"), [("0", pytest.skip.Exception), ("1", pytest.fail.Exception)]
)
def test_a_missing_service_is_named_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch, needed: str, raised: type[BaseException]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("SEQRECORD_NEED_SERVICES", needed)
    for need, line in (
        (needs.need_azurite, "make services"),
        (needs.need_mount, "apt-get install rclone fuse3"),
        (needs.need_nginx, "apt-get install nginx-light"),
    ):
        with pytest.raises(raised, match=line):
            need()


KILLED = """
import os, sys
from pathlib import Path
from tests.kit.services import Azurite, Mount

azurite = Azurite(Path(sys.argv[1]) / "azurite")
mount = Mount(azurite, azurite.new_container(), Path(sys.argv[1]) / "mount")
print(azurite.program.pid, mount.program.pid, mount.path, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.service
def test_services_end_with_a_killed_process(tmp_path: Path) -> None:
    needs.need_azurite()
    needs.need_mount()
    done = run_python("-c", KILLED, tmp_path, status=-signal.SIGKILL)
    first, second, path = done.stdout.split()
    wait_for(lambda: not Path("/proc", first).exists() and not Path("/proc", second).exists())
    assert not Path(path).is_mount()
