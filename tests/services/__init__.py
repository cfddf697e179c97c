"""Services for tests: Azurite, which is Azure Blob, a FUSE mount of its containers, and moto (S3).

The fixtures are in `tests/conftest.py`. Where a part is missing, tests that need it are skipped
with the line that installs it; with `SEQRECORD_NEED_SERVICES=1`, as in CI, they fail instead.
"""

from __future__ import annotations

from tests.services.azurite import Azurite
from tests.services.moto import Moto
from tests.services.mount import Mount
from tests.services.needs import need_azurite, need_mount

__all__ = ["Azurite", "Moto", "Mount", "need_azurite", "need_mount"]
