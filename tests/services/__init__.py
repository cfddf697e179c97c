"""Real services for tests: Azurite, which is Azure Blob, and a FUSE mount of its containers.

The fixtures are in `tests/conftest.py`. Where a part is missing, tests that need it are skipped
with the line that installs it; with `SEQRECORD_NEED_SERVICES=1`, as in CI, they fail instead.
"""

from __future__ import annotations

from tests.services.azurite import Azurite
from tests.services.mount import Mount
from tests.services.needs import need_azurite, need_mount

__all__ = ["Azurite", "Mount", "need_azurite", "need_mount"]
