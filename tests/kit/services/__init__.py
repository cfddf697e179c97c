"""Services for tests: Azurite (Azure Blob), a FUSE mount of its containers, moto (S3), and nginx.

The fixtures are in `conftest.py`. If a program is missing, tests that need it are skipped with the
line that installs it; with `SEQRECORD_NEED_SERVICES=1`, as in CI, they fail instead.
"""

from __future__ import annotations

from tests.kit.services.authority import Authority
from tests.kit.services.azurite import Azurite
from tests.kit.services.moto import Moto
from tests.kit.services.mount import Mount
from tests.kit.services.needs import need_azurite, need_moto, need_mount, need_nginx
from tests.kit.services.nginx import Nginx

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
