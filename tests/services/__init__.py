"""Services for tests: Azurite (Azure Blob), a FUSE mount of its containers, moto (S3), and nginx.

The fixtures are in `conftest.py`. If a program is missing, tests that need it are skipped with the
line that installs it; with `SEQRECORD_NEED_SERVICES=1`, as in CI, they fail instead.
"""

from __future__ import annotations

from tests.services.authority import Authority
from tests.services.azurite import Azurite
from tests.services.moto import Moto
from tests.services.mount import Mount
from tests.services.needs import need_azurite, need_moto, need_mount, need_nginx
from tests.services.nginx import Nginx

__all__ = [
    "Authority",
    "Azurite",
    "Moto",
    "Mount",
    "Nginx",
    "need_azurite",
    "need_moto",
    "need_mount",
    "need_nginx",
]
