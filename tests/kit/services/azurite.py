"""Azurite: the Azure Blob service on this machine, with its default account."""

from __future__ import annotations

import datetime
import itertools
import os
import re
from pathlib import Path
from typing import Any

from tests.kit.services.needs import AZURITE
from tests.kit.services.process import Program

__all__ = ["ACCOUNT", "KEY", "Azurite"]

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Azurite:
    """A running Azurite with its data in `folder`, on a free port of 127.0.0.1.

    `key` may differ from the default one, for tests that search for it.
    """

    def __init__(self, folder: Path, *, key: str = KEY) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.account, self.key = ACCOUNT, key
        self.port = 0
        self._folder = folder
        self._numbers = itertools.count()
        self._start()

    @property
    def host(self) -> str:
        """Address `127.0.0.1:PORT`."""
        return f"127.0.0.1:{self.port}"

    @property
    def endpoint(self) -> str:
        """URL of the account."""
        return f"http://{self.host}/{self.account}"

    @property
    def connection_string(self) -> str:
        return self.connection_string_at(self.endpoint)

    def connection_string_at(self, endpoint: str) -> str:
        """Connection string with another endpoint, such as a proxy's."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={self.account};"
            f"AccountKey={self.key};BlobEndpoint={endpoint};"
        )

    def new_container(self) -> str:
        """Make an empty container; returns its name."""
        name = f"container-{os.getpid()}-{next(self._numbers)}"
        with self.client() as client:
            client.create_container(name)
        return name

    def client(self) -> Any:
        """An `azure.storage.blob.BlobServiceClient`; close it, or use `with`."""
        from azure.storage.blob import BlobServiceClient

        return BlobServiceClient.from_connection_string(self.connection_string)

    def put(self, container: str, name: str, data: bytes) -> None:
        """Store a blob."""
        with self.client() as client:
            client.get_blob_client(container, name).upload_blob(data, overwrite=True)

    def get(self, container: str, name: str) -> bytes:
        """A blob's bytes."""
        with self.client() as client:
            data: bytes = client.get_blob_client(container, name).download_blob().readall()
        return data

    def sas(self, container: str, permission: str = "racwdl", *, minutes: float = 60) -> str:
        """A container's shared access signature, expired if `minutes` is negative."""
        from azure.storage.blob import generate_container_sas

        now = datetime.datetime.now(datetime.timezone.utc)
        token: str = generate_container_sas(
            self.account,
            container,
            account_key=self.key,
            permission=permission,
            start=now - datetime.timedelta(hours=2),
            expiry=now + datetime.timedelta(minutes=minutes),
        )
        return token

    def sas_url(self, container: str, permission: str = "racwdl") -> str:
        """The container's URL with its signature."""
        return f"{self.endpoint}/{container}?{self.sas(container, permission)}"

    def stop(self) -> None:
        self._program.stop()

    def _start(self) -> None:
        command = [str(AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(self.port)]
        command += ["--location", str(self._folder), "--silent"]
        command += ["--skipApiVersionCheck", "--disableTelemetry"]
        environment = {**os.environ, "AZURITE_ACCOUNTS": f"{self.account}:{self.key}"}
        self._program = Program(command, self._folder / "azurite.log", environment)
        try:
            self._program.wait_until(lambda: self._listening() is not None)
        except BaseException:
            self._program.stop()
            raise
        self.port = self._listening() or self.port

    def _listening(self) -> int | None:
        """The port in its output."""
        found = re.search(r"successfully listens on http://\S+:(\d+)\s", self._program.output)
        return int(found[1]) if found else None
