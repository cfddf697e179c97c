"""The services that other tests stand on: they start, die, come back and are gone afterwards."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.services import Azurite, Mount, needs
from tests.services.process import wait_for

LOCK = Path(__file__).parent / "services" / "package-lock.json"


def test_the_lock_file_names_no_address() -> None:
    text = LOCK.read_text()
    assert '"node_modules/azurite"' in text
    assert "integrity" in text
    assert "://" not in text


def test_what_is_missing_skips_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("SEQRECORD_NEED_SERVICES", raising=False)
    with pytest.raises(pytest.skip.Exception, match="make services"):
        needs.need_azurite()
    with pytest.raises(pytest.skip.Exception, match="apt-get install rclone fuse3"):
        needs.need_mount()
    with pytest.raises(pytest.skip.Exception, match="apt-get install nginx-light"):
        needs.need_nginx()


def test_what_is_missing_fails_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("SEQRECORD_NEED_SERVICES", "1")
    with pytest.raises(pytest.fail.Exception, match="make services"):
        needs.need_azurite()
    with pytest.raises(pytest.fail.Exception, match="apt-get install rclone fuse3"):
        needs.need_mount()
    with pytest.raises(pytest.fail.Exception, match="apt-get install nginx-light"):
        needs.need_nginx()


def test_azurite_keeps_its_data_over_a_kill(mortal_azurite: Azurite) -> None:
    azurite = mortal_azurite
    container, port = azurite.new_container(), azurite.port
    azurite.put(container, "folder/blob", b"data")
    azurite.save()
    azurite.kill()
    azurite.restart()
    assert azurite.port == port
    assert azurite.get(container, "folder/blob") == b"data"


def test_a_signature_opens_its_container_until_it_expires(azurite: Azurite, container: str) -> None:
    from azure.core.exceptions import HttpResponseError
    from azure.storage.blob import ContainerClient

    url = f"{azurite.endpoint}/{container}"
    with ContainerClient.from_container_url(f"{url}?{azurite.sas(container)}") as client:
        client.upload_blob("a", b"x")
        assert list(client.list_blob_names()) == ["a"]
    expired = azurite.sas(container, minutes=-1)
    with (
        ContainerClient.from_container_url(f"{url}?{expired}", retry_total=0) as client,
        pytest.raises(HttpResponseError) as refused,
    ):
        client.download_blob("a")
    assert refused.value.status_code == 403


def test_a_mount_shows_the_container(
    azurite: Azurite, container: str, mount: Callable[..., Mount]
) -> None:
    data = os.urandom(1_000_000)
    azurite.put(container, "folder/blob", data)
    mounted = mount(azurite, container)
    assert (mounted.path / "folder" / "blob").read_bytes() == data
    with pytest.raises(OSError, match="Read-only"):
        (mounted.path / "new").write_bytes(b"x")


def test_what_a_mount_is_given_reaches_the_container(
    azurite: Azurite, container: str, mount: Callable[..., Mount]
) -> None:
    mounted = mount(azurite, container, writable=True)
    (mounted.path / "blob").write_bytes(b"through FUSE")
    with azurite.client() as client:
        wait_for(client.get_blob_client(container, "blob").exists)
    mounted.close()
    assert azurite.get(container, "blob") == b"through FUSE"
    assert not mounted.path.is_mount()


def test_a_killed_mount_answers_and_can_be_closed(
    azurite: Azurite, container: str, mount: Callable[..., Mount]
) -> None:
    mounted = mount(azurite, container)
    mounted.kill()
    with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
        list(mounted.path.iterdir())
    mounted.close()
    assert list(mounted.path.iterdir()) == []


KILLED = """
import os, sys
from pathlib import Path
from tests.services import Azurite, Mount

azurite = Azurite(Path(sys.argv[1]) / "azurite")
mount = Mount(azurite, azurite.new_container(), Path(sys.argv[1]) / "mount")
print(azurite._program._process.pid, mount._program._process.pid, mount.path, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.service
def test_services_end_with_a_killed_process(tmp_path: Path) -> None:
    needs.need_azurite()
    needs.need_mount()
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    first, second, path = done.stdout.split()
    wait_for(lambda: not Path("/proc", first).exists() and not Path("/proc", second).exists())
    assert not Path(path).is_mount()
