"""What the services need on this machine, and the line that installs what is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

__all__ = ["AZURITE", "need_azurite", "need_moto", "need_mount", "need_nginx"]

AZURITE = Path(__file__).parent / "node_modules" / ".bin" / "azurite-blob"

_AZURITE = "{}: `apt-get install nodejs npm && make services` installs it"
_MOUNT = "{}: `apt-get install rclone fuse3` installs it"
_NGINX = "no nginx: `apt-get install nginx-light` installs it, in /usr/sbin, which PATH has to name"


def need_azurite() -> None:
    """Skip the test where Azurite cannot be started; fail it where it has to be."""
    if shutil.which("node") is None:
        _give_up(_AZURITE.format("no node, which runs Azurite"))
    if not AZURITE.exists():
        _give_up(_AZURITE.format("no Azurite"))
    try:
        import azure.storage.blob  # noqa: F401 - what talks to it
    except ImportError:
        _give_up("no azure-storage-blob: `pip install azure-storage-blob` installs it")


def need_moto() -> None:
    """Skip the test where moto's server cannot be started; fail it where it has to be."""
    if not all(map(importlib.util.find_spec, ("moto", "flask", "boto3"))):
        _give_up("no moto: `pip install 'moto[server]'` installs it")


def need_mount() -> None:
    """Skip the test where nothing can be mounted; fail it where it has to be."""
    for program in ("rclone", "fusermount3"):
        if shutil.which(program) is None:
            _give_up(_MOUNT.format(f"no {program}"))
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        _give_up("no /dev/fuse: `docker run --device /dev/fuse --cap-add SYS_ADMIN` gives it")


def need_nginx() -> None:
    """Skip the test where nginx cannot be started; fail it where it has to be."""
    if shutil.which("nginx") is None:
        _give_up(_NGINX)
    try:
        import cryptography  # noqa: F401 - what makes its certificate
    except ImportError:
        _give_up("no cryptography: `pip install cryptography` installs it")


def _give_up(reason: str) -> None:
    if os.environ.get("SEQRECORD_NEED_SERVICES") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
