"""A container of Azure Blob, to its readers."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from seqrecord.storage.azure.account import SCOPE, AzureAccount
from seqrecord.storage.objects.source import Client, Provider, client_settings

__all__ = ["AzureContainer"]


@dataclass(frozen=True)
class AzureContainer:
    """The container of an account, with the account's one credential."""

    account: AzureAccount
    client_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    without_obstore = "pip install adlfs"

    def key(self, path: str) -> str:
        return self.account.full(path)

    @property
    def path(self) -> str:
        """The root as fsspec has it."""
        return f"{self.account.container}/{self.account.root}".rstrip("/")

    def client(self, timeout: float) -> Client:
        from obstore.store import AzureStore

        account = self.account
        provider = None if account.anonymous else Provider(self._fetch(), account.endpoint)
        # A provider comes before what obstore itself finds in the environment.
        credential = {"credential_provider": provider} if provider else {"skip_signature": True}
        store = AzureStore(
            container_name=account.container,
            account_name=account.account,
            endpoint=account.endpoint,
            use_emulator=False,
            **client_settings(timeout, account.endpoint, self.client_options),
            **credential,
        )
        return Client(store, provider)

    def filesystem(self, timeout: float) -> Any:
        """A new filesystem of adlfs, which repeats nothing by itself."""
        from adlfs import AzureBlobFileSystem
        from azure.storage.blob.aio import BlobServiceClient

        account = self.account
        filesystem = AzureBlobFileSystem(
            # Else it would take what it finds in the environment.
            connection_string=f"AccountName={account.account};BlobEndpoint={account.endpoint}",
            account_name=account.account,
            anon=True,
            max_concurrency=1,
            skip_instance_cache=True,
        )
        filesystem.service_client = BlobServiceClient(
            account.endpoint,
            credential=account.client_credential(is_async=True),
            retry_total=0,
            connection_timeout=min(10.0, timeout),
            read_timeout=timeout,
            max_single_get_size=64 << 20,  # a request is one, whatever its length
        )
        return filesystem

    def _fetch(self) -> Callable[[], Any]:
        account = self.account
        if account.account_key is not None:
            key = {"access_key": account.account_key, "expires_at": None}
            return lambda: key
        if account.sas_token is not None:
            sas = {"sas_token": account.sas_token, "expires_at": None}
            return lambda: sas
        credential = account.token_credential()

        def bearer() -> dict[str, Any]:
            token = credential.get_token(SCOPE)
            expires = datetime.datetime.fromtimestamp(token.expires_on, datetime.timezone.utc)
            return {"token": token.token, "expires_at": expires}

        return bearer
