"""Azurite: the Azure Blob service on this machine, with its default account."""

from __future__ import annotations

import datetime
import itertools
import os
from pathlib import Path
from typing import Any

from tests.kit.processes import Program
from tests.kit.services.needs import AZURITE

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Azurite:
    """A running Azurite with its data in `folder`, at `host`, a free port of 127.0.0.1.

    `key` may differ from the default one, for tests that search for it.
    """

    def __init__(self, folder: Path, *, key: str = KEY) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.account, self.key = ACCOUNT, key
        self._numbers = itertools.count()
        command = [str(AZURITE), "--blobHost", "127.0.0.1", "--blobPort", "0"]
        command += ["--location", str(folder), "--silent"]
        command += ["--skipApiVersionCheck", "--disableTelemetry"]
        environment = {**os.environ, "AZURITE_ACCOUNTS": f"{self.account}:{self.key}"}
        log, listens = folder / "azurite.log", r"successfully listens on http://(\S+:\d+)\s"
        self.program = Program(command, log, environment, lambda it: it.find(listens))
        self.host = self.program.find(listens)

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

    def sas(self, container: str, permission: str = "racwdl", *, minutes: float = 1440) -> str:
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
        self.program.stop()
