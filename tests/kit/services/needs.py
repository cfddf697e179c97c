"""Requirements of the services on this machine, and the lines that install them."""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path

import pytest

AZURITE = Path(__file__).parent / "node_modules" / ".bin" / "azurite-blob"

_AZURITE = "{}: `apt-get install nodejs npm && make services` installs it"
_MOUNT = "{}: `apt-get install rclone fuse3` installs it"
_NGINX = "no nginx: `apt-get install nginx-light` installs it, in /usr/sbin, which must be in PATH"

# Each skips the test if a service cannot be started, or fails it if services are required.


def need_azurite() -> None:
    _need(shutil.which("node"), _AZURITE.format("no node, which runs Azurite"))
    _need(AZURITE.exists(), _AZURITE.format("no Azurite"))
    _need_packages("azure.storage.blob", package="azure-storage-blob")


def need_moto() -> None:
    _need_packages("moto", "flask", "boto3", package="'moto[server]'")


def need_mount() -> None:
    for program in ("rclone", "fusermount3"):
        _need(shutil.which(program), _MOUNT.format(f"no {program}"))
    reason = "no /dev/fuse: `docker run --device /dev/fuse --cap-add SYS_ADMIN` gives it"
    _need(os.access("/dev/fuse", os.R_OK | os.W_OK), reason)


def need_nginx() -> None:
    _need(shutil.which("nginx"), _NGINX)
    _need_packages("cryptography", package="cryptography")  # makes its certificate


def _need_packages(*names: str, package: str) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            _need(False, f"no {name}: `pip install {package}` installs it")


def _need(is_available: object, reason: str) -> None:
    if is_available:
        return
    if os.environ.get("SEQRECORD_NEED_SERVICES") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
