"""Redirects blobfile's requests for Azure to a local service, through blobfile's public hook."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import urllib3


class _Pool(urllib3.PoolManager):
    def __init__(self, host: str) -> None:
        super().__init__()
        self._to = host

    def urlopen(  # type: ignore[override]
        self, method: str, url: str, redirect: bool = True, **kw: Any
    ) -> Any:
        parts = urlsplit(url)
        # Azurite reads the account from the host name, as Azure does.
        kw["headers"] = {**(kw.get("headers") or {}), "Host": parts.netloc}
        url = parts._replace(scheme="http", netloc=self._to).geturl()
        return super().urlopen(method, url, redirect=redirect, **kw)


def pool_to(host: str) -> urllib3.PoolManager:
    """Value for the storage option `get_http_pool`: `partial(pool_to, "127.0.0.1:PORT")`."""
    return _Pool(host)
