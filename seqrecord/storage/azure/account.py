"""An Azure Blob account, a container in it, and the one credential that opens them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from seqrecord.errors import LocationError
from seqrecord.storage.azure.settings import azure_settings, one_credential
from seqrecord.storage.fsspec_reader import PARTIAL
from seqrecord.storage.packages import check_token_endpoint, missing
from seqrecord.storage.url import Location

__all__ = ["PARTIAL", "SCOPE", "AzureAccount", "CredentialKind"]

CredentialKind: TypeAlias = Literal[
    "account key", "SAS", "client secret", "anonymous", "default chain"
]

SCOPE = "https://storage.azure.com/.default"


@dataclass(frozen=True)
class AzureAccount:
    """Where an Azure location's requests go, and with what credential.

    `endpoint` is the account's blob service, `https://ACCOUNT.blob.core.windows.net` unless told
    otherwise, without a slash at its end; `root` the path in the container, `""` for all of it. At
    most one kind of credential is set. `sas_token` has no question mark. A pickle of it holds the
    credential; nothing that it prints does.
    """

    account: str
    endpoint: str
    container: str
    root: str
    account_key: str | None = field(default=None, repr=False)
    sas_token: str | None = field(default=None, repr=False)
    tenant_id: str | None = field(default=None, repr=False)
    client_id: str | None = field(default=None, repr=False)
    client_secret: str | None = field(default=None, repr=False)
    anonymous: bool = False

    @classmethod
    def resolve(
        cls, location: Location, options: Mapping[str, Any], environ: Mapping[str, str]
    ) -> AzureAccount:
        """The account of a location: from its URL, then `storage_options`, then the environment.

        The environment's credential counts where neither URL nor options hold one, and where it is
        of this account. Raises `LocationError` for an unknown account, for an option that nobody
        knows, and for credentials of two kinds.
        """
        shown = location.shown
        said = azure_settings(location.options, shown)
        given = azure_settings(options, shown)
        found = azure_settings(environ, shown, environment=True)
        account = said.get("account") or given.get("account") or found.get("account")
        container, _, root = location.root.strip("/").partition("/")
        if account is None:
            raise _no_account(shown)
        if given.get("account", account) != account:
            raise LocationError(
                "the URL is of one account and storage_options of another",
                file=shown,
                expected=account,
                got=given["account"],
            )
        if container == account and shown.startswith("az://"):
            raise LocationError(
                "an unclear URL: is its first part the account or the container?",
                expected=f"https://{account}.blob.core.windows.net/CONTAINER/PATH",
                got=shown,
            )
        if found.get("account", account) != account:
            for name in ("endpoint", "account_key", "sas_token"):
                found.pop(name, None)
        endpoints = (given, said, found)
        endpoint = next(
            (settings["endpoint"] for settings in endpoints if "endpoint" in settings),
            f"https://{account}.blob.core.windows.net",
        )
        credential = one_credential(said | given, shown) or one_credential(found, shown)
        return cls(account, endpoint.rstrip("/"), container, root, **credential)

    @property
    def credential_kind(self) -> CredentialKind:
        if self.account_key is not None:
            return "account key"
        if self.sas_token is not None:
            return "SAS"
        if self.client_secret is not None:
            return "client secret"
        return "anonymous" if self.anonymous else "default chain"

    def full(self, path: str) -> str:
        """The blob's name in the container, of a path below the root."""
        return f"{self.root}/{path}" if self.root else path

    def token_credential(self, *, is_async: bool = False) -> Any:
        """A new azure-identity credential, for `client secret` and `default chain` alone.

        It fetches tokens when it is first asked and keeps them, so keep it for as long as the
        client, and make another in another process. A `client_id` alone chooses among managed and
        workload identities. Raises `LocationError` without azure-identity, and where a token would
        go over plain http.
        """
        try:
            identity = importlib.import_module("azure.identity" + (".aio" if is_async else ""))
        except ImportError:
            raise LocationError(
                f"a package is missing: {missing('azure-identity')}", file=self.endpoint
            ) from None
        check_token_endpoint(self.endpoint, self.endpoint)
        if self.client_secret is None:
            chosen = ("managed_identity_client_id", "workload_identity_client_id")
            return identity.DefaultAzureCredential(
                **(dict.fromkeys(chosen, self.client_id) if self.client_id else {})
            )
        assert self.tenant_id is not None, "resolve wants all three"
        assert self.client_id is not None, "resolve wants all three"
        return identity.ClientSecretCredential(self.tenant_id, self.client_id, self.client_secret)

    def client_credential(self, *, is_async: bool = False) -> Any:
        """What azure-storage-blob's clients take as their `credential`."""
        if self.account_key is not None:
            return {"account_name": self.account, "account_key": self.account_key}
        if self.sas_token is not None:
            from azure.core.credentials import AzureSasCredential

            return AzureSasCredential(self.sas_token)
        return None if self.anonymous else self.token_credential(is_async=is_async)


def _no_account(shown: str) -> LocationError:
    return LocationError(
        "the URL does not say which account",
        file=shown,
        expected="https://ACCOUNT.blob.core.windows.net/CONTAINER/PATH, or az://CONTAINER/PATH "
        "with storage_options={'account_name': …} or AZURE_STORAGE_ACCOUNT_NAME, or "
        "blobfile+az://ACCOUNT/CONTAINER/PATH",
    )
