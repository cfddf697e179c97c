"""A container of Azure Blob: whose account it is, and the one credential that opens it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from seqrecord.errors import AccessError, LocationError, TransientError
from seqrecord.storage.failures import is_busy
from seqrecord.storage.objects.settings import is_true, named, one_of, split_client_options
from seqrecord.storage.objects.source import Bucket, Fetch, place_of
from seqrecord.storage.packages import check_token_endpoint, missing
from seqrecord.storage.url import Location

__all__ = ["AzureContainer"]

# Our name, then those of obstore, adlfs, blobfile and az CLI. In the environment they have
# AZURE_STORAGE_ before them, an identity's also AZURE_ alone.
_NAMES = {
    "account": ("account_name", "account"),
    "endpoint": ("endpoint", "blob_endpoint", "azure_endpoint"),
    "connection_string": ("connection_string",),
    "account_key": ("account_key", "key", "access_key", "master_key"),
    "sas_token": ("sas_token", "sas_key"),
    "sas_token_file": ("sas_token_file",),
    "credential_provider": ("credential_provider",),
    "tenant_id": ("tenant_id", "authority_id"),
    "client_id": ("client_id",),
    "client_secret": ("client_secret",),
    "anonymous": ("anonymous", "anon", "skip_signature"),
}
_ENVIRONMENT = {
    ours: tuple(f"AZURE_STORAGE_{name.upper()}" for name in names)
    for ours, names in _NAMES.items()
    if ours != "credential_provider"
}
_IDENTITY = ("client_secret", "tenant_id", "client_id")
_ENVIRONMENT |= {ours: (*_ENVIRONMENT[ours], f"AZURE_{ours.upper()}") for ours in _IDENTITY}
_KINDS = (  # in the order that the environment's have
    "account_key",
    "sas_token",
    "sas_token_file",
    "client_secret",
    "anonymous",
    "credential_provider",
)

# Azurite's, the same for everyone and published by Microsoft: no secret.
_EMULATOR = "devstoreaccount1"
_EMULATOR_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@dataclass(frozen=True, kw_only=True)
class AzureContainer(Bucket):
    """A container and a path in it.

    `endpoint` is the account's blob service, `https://ACCOUNT.blob.core.windows.net` unless told
    otherwise, without a slash at its end. `config` is the credential: `account_key`, `sas_token`
    (without a question mark), `sas_token_file`, `credential_provider`, the three of a client
    secret, `anonymous`, or at most a `client_id` for the default chain. `from_environment` says
    that it was found there, and is looked for again by each client.
    """

    package = "adlfs"

    account: str
    endpoint: str
    from_environment: bool = False

    @classmethod
    def resolve(
        cls,
        location: Location,
        options: Mapping[str, Any],
        environ: Mapping[str, str],
    ) -> AzureContainer:
        """The container of a location: from its URL, then `storage_options`, then the environment.

        The environment's credential counts where neither URL nor options hold one, and where it is
        of this account. Raises `LocationError` for an unknown account, for an option that nobody
        knows, and for credentials of two kinds.
        """
        shown = location.shown
        client_options, options = split_client_options(options, shown)
        said = _settings(named(location.options, _NAMES, shown), shown)
        given = _settings(named(options, _NAMES, shown, prefix="azure_"), shown)
        found = _found(environ, shown)
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
            found.pop("endpoint", None)
        default = f"https://{account}.blob.core.windows.net"
        endpoints = [each.get("endpoint") for each in (given, said, found)]
        credential = _credential(said | given, shown)
        return cls(
            bucket=container,
            root=root,
            shown=shown,
            config=credential or _of_account(found, account, shown),
            client_options=client_options,
            account=account,
            endpoint=next(filter(None, endpoints), default).rstrip("/"),
            from_environment=not credential,
        )

    @property
    def is_reread(self) -> bool:
        return self.from_environment or bool(
            {"sas_token_file", "credential_provider"} & set(self.config)
        )

    def current(self) -> Mapping[str, Any]:
        """The credential as it is now, in the environment or its file."""
        held = self.config
        if self.from_environment:
            found = _found(os.environ, self.shown)
            held = _of_account(found, self.account, self.shown) or held
        file = held.get("sas_token_file")
        if file is None:
            return held
        try:
            return {"sas_token": Path(file).read_text().strip().removeprefix("?")}
        except (OSError, UnicodeError):
            pass
        raise AccessError("the file of the SAS cannot be read", file=self.shown, got=file)

    @property
    def place(self) -> str:
        return place_of(self.endpoint, self.path)

    def credential(self) -> Fetch | None:
        held = self.current()
        for ours, theirs in (("account_key", "access_key"), ("sas_token", "sas_token")):
            if ours in held:
                static = {theirs: held[ours], "expires_at": None}
                return lambda: static
        if held.get("anonymous"):
            return None
        from obstore.auth.azure import AzureCredentialProvider

        statuses: list[int] = []

        def new() -> AzureCredentialProvider:
            identity = self.identity(
                held,
                # What fails is repeated with the request that needs the token.
                retry_total=0,
                raw_response_hook=lambda answer: statuses.append(answer.http_response.status_code),
            )
            return AzureCredentialProvider(identity)

        provider: AzureCredentialProvider | None = new()

        def fetch() -> Any:
            nonlocal provider
            provider = provider or new()
            statuses.clear()
            try:
                return provider()
            except Exception:
                provider = None  # msal gives a failure again for some seconds, and asks nobody
                # The default chain's exception has nothing but text of what each of it said.
                busy = [status for status in statuses if is_busy(status)]
                if not busy:
                    raise
            raise TransientError(f"there was no token: HTTP status {busy[-1]}", file=self.shown)

        return fetch

    def store(self, **settings: Any) -> Any:
        from obstore.store import AzureStore

        if "credential_provider" not in settings:
            settings["skip_signature"] = True
        return AzureStore(
            container_name=self.bucket,
            account_name=self.account,
            endpoint=self.endpoint,
            use_emulator=False,
            **settings,
        )

    def filesystem(self, timeout: float) -> Any:
        from adlfs import AzureBlobFileSystem
        from azure.storage.blob.aio import BlobServiceClient

        filesystem = AzureBlobFileSystem(
            # Else it would take what it finds in the environment.
            connection_string=f"AccountName={self.account};BlobEndpoint={self.endpoint}",
            account_name=self.account,
            anon=True,
            max_concurrency=1,
            skip_instance_cache=True,
        )
        filesystem.service_client = BlobServiceClient(
            self.endpoint,
            credential=self._async_credential(),
            retry_total=0,
            connection_timeout=min(10.0, timeout),
            read_timeout=timeout,
            max_single_get_size=64 << 20,  # a request is one, whatever its length
        )
        return filesystem

    def identity(self, held: Mapping[str, Any], *, is_async: bool = False, **settings: Any) -> Any:
        """A new credential of azure-identity: a client secret's, or the default chain.

        A `client_id` alone chooses among managed and workload identities; `settings` go to it.
        Raises `LocationError` without azure-identity, and where a token would go over plain http.
        """
        try:
            identity = importlib.import_module("azure.identity" + (".aio" if is_async else ""))
        except ImportError:
            raise LocationError(
                f"a package is missing: {missing('azure-identity')}", file=self.endpoint
            ) from None
        check_token_endpoint(self.endpoint, self.endpoint)
        if "client_secret" in held:
            names = {name: held[name] for name in _IDENTITY}
            return identity.ClientSecretCredential(**names, **settings)
        chosen = ("managed_identity_client_id", "workload_identity_client_id")
        client_id = held.get("client_id")
        return identity.DefaultAzureCredential(
            **(dict.fromkeys(chosen, client_id) if client_id else {}), **settings
        )

    def _async_credential(self) -> Any:
        """What azure-storage-blob's clients take as their `credential`."""
        held = self.current()
        if "credential_provider" in held:
            given = held["credential_provider"]()
            if "token" in given:
                raise LocationError(
                    "adlfs takes no token from a credential_provider",
                    file=self.shown,
                    expected='workers that are not forked (multiprocessing_context="forkserver")',
                )
            names = {"access_key": "account_key"}
            held = {names.get(name, name): value for name, value in given.items()}
        if "account_key" in held:
            return {"account_name": self.account, "account_key": held["account_key"]}
        if "sas_token" in held:
            from azure.core.credentials import AzureSasCredential

            return AzureSasCredential(held["sas_token"])
        return None if held.get("anonymous") else self.identity(held, is_async=True)


def _settings(found: dict[str, Any], shown: str) -> dict[str, Any]:
    """Settings that are checked, with those that a connection string holds.

    What is named beside a connection string comes first.
    """
    for name, value in found.items():
        if name == "anonymous":
            found[name] = is_true(value)
        elif type(value) is int:  # the command line takes what looks like a number for one
            found[name] = str(value)
        elif not isinstance(value, str) and name != "credential_provider":
            raise LocationError(f"storage option {name} is not text", got=type(value).__name__)
    if "sas_token" in found:
        found["sas_token"] = found["sas_token"].removeprefix("?")
    if "connection_string" in found:
        found = _connection(found.pop("connection_string"), shown) | found
    if "endpoint" in found:
        _check_endpoint(found["endpoint"])
    return found


def _connection(text: str, shown: str) -> dict[str, str]:
    pairs = (item.split("=", 1) for item in text.split(";") if "=" in item)
    parts = {name.strip().lower(): value.strip() for name, value in pairs}
    if parts.get("usedevelopmentstorage", "").lower() == "true":
        parts = {
            "accountname": _EMULATOR,
            "accountkey": _EMULATOR_KEY,
            "blobendpoint": f"http://127.0.0.1:10000/{_EMULATOR}",
        } | parts
    account, endpoint = parts.get("accountname"), parts.get("blobendpoint")
    if endpoint is not None:
        _check_endpoint(endpoint)
        account = account or _account_of(endpoint)
    elif account is not None and "endpointsuffix" in parts:
        protocol = parts.get("defaultendpointsprotocol", "https")
        endpoint = f"{protocol}://{account}.blob.{parts['endpointsuffix']}"
    if account is None:
        raise LocationError(
            "a connection string without an account",
            file=shown,
            expected="AccountName=…;AccountKey=…, or BlobEndpoint=…;SharedAccessSignature=…",
        )
    held = {"account": account, "endpoint": endpoint, "account_key": parts.get("accountkey")}
    if "accountkey" not in parts:
        held["sas_token"] = parts.get("sharedaccesssignature", "").removeprefix("?")
    return {name: value for name, value in held.items() if value}


def _credential(settings: Mapping[str, Any], shown: str) -> dict[str, Any]:
    """The credential among settings, or none; `LocationError` for two kinds, or for half of one."""
    held = one_of(_KINDS, settings, shown)
    if "client_secret" not in held:
        names = ["client_id"] if not held and settings.get("client_id") else []
        return held | {name: settings[name] for name in names}
    if absent := [name for name in _IDENTITY if not settings.get(name)]:
        raise LocationError(
            "a client secret needs tenant_id and client_id",
            file=shown,
            got=f"no {' and no '.join(absent)}",
        )
    return {name: settings[name] for name in _IDENTITY}


def _found(environ: Mapping[str, str], shown: str) -> dict[str, Any]:
    """Settings of the environment, where several tools may have left credentials: the first."""
    found = _settings(named(environ, _ENVIRONMENT, shown, strict=False), shown)
    if not all(name in found for name in _IDENTITY):
        found.pop("client_secret", None)
    for kind in [name for name in _KINDS if found.get(name)][1:]:
        del found[kind]
    return found


def _of_account(found: Mapping[str, Any], account: str, shown: str) -> dict[str, Any]:
    """The environment's credential, without a key or SAS that is of another account."""
    if found.get("account", account) != account:
        others = ("account_key", "sas_token", "sas_token_file")
        found = {name: value for name, value in found.items() if name not in others}
    return _credential(found, shown)


def _check_endpoint(endpoint: str) -> None:
    try:
        parts = urlsplit(endpoint)
        clear = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
        clear = clear and not parts.query and not parts.fragment
    except ValueError:
        clear = False
    if not clear:  # not shown: it may hold a SAS
        raise LocationError(
            "an endpoint that is not clear",
            expected="https://HOST or http://HOST:PORT/ACCOUNT, without a query",
        )


def _account_of(endpoint: str) -> str:
    """`https://ACCOUNT.blob…` or, of an emulator, `http://HOST:PORT/ACCOUNT`."""
    parts = urlsplit(endpoint)
    path = parts.path.strip("/")
    return path.partition("/")[0] if path else (parts.hostname or "").partition(".")[0]


def _no_account(shown: str) -> LocationError:
    return LocationError(
        "the URL does not say which account",
        file=shown,
        expected="https://ACCOUNT.blob.core.windows.net/CONTAINER/PATH, or az://CONTAINER/PATH "
        "with storage_options={'account_name': …} or AZURE_STORAGE_ACCOUNT_NAME, or "
        "blobfile+az://ACCOUNT/CONTAINER/PATH",
    )
