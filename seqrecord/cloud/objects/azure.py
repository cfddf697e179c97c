"""Azure Blob containers: account, endpoint and credential from URL, options and environment.

`Blobfiles` reads with blobfile, by its public functions.
"""

from __future__ import annotations

import base64
import datetime
import hmac
import importlib
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from seqrecord.cloud.failures import is_busy
from seqrecord.cloud.objects.bucket import (
    Bucket,
    Names,
    canonical_settings,
    check_endpoint,
    check_token_endpoint,
    is_true,
    one_kind,
)
from seqrecord.cloud.objects.http import Fetch, Signer, cached_credential
from seqrecord.errors import AccessError, LocationError, TransientError
from seqrecord.store.storage.ranges import MAX_REQUEST_BYTES
from seqrecord.store.storage.url import Location, is_blob_service, named_place

# Our name of each setting, then those of obstore, adlfs, blobfile and az CLI. Environment variables
# have the prefix AZURE_STORAGE_, for identities also AZURE_.
_NAMES = {
    "account": ("account_name", "account"),
    "endpoint": ("endpoint", "blob_endpoint", "azure_endpoint"),
    "connection_string": ("connection_string",),
    "account_key": ("account_key", "key", "access_key", "master_key"),
    "sas_token": ("sas_token", "sas_key"),
    "sas_token_file": ("sas_token_file",),
    "tenant_id": ("tenant_id", "authority_id"),
    "client_id": ("client_id",),
    "client_secret": ("client_secret",),
    "anonymous": ("anonymous", "anon", "skip_signature"),
}
_OPTIONS = {**_NAMES, "credential_provider": ("credential_provider",)}
_IDENTITY = ("client_secret", "tenant_id", "client_id")
_ENVIRONMENT = {
    setting: tuple(f"AZURE_STORAGE_{name.upper()}" for name in names)
    + ((f"AZURE_{setting.upper()}",) if setting in _IDENTITY else ())
    for setting, names in _NAMES.items()
}
_ACCOUNT_CREDENTIALS = ("account_key", "sas_token", "sas_token_file")
# In order of precedence in the environment.
_KINDS = (*_ACCOUNT_CREDENTIALS, "client_secret", "anonymous", "credential_provider")
_VERSION = "2022-11-02"  # of the service's API
_SCOPE = "https://storage.azure.com/.default"

# Azurite's credential, published by Microsoft and equal for everyone: not a secret.
_EMULATOR = {
    "accountname": "devstoreaccount1",
    "accountkey": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr"
    "/KBHBeksoGMGw==",
    "blobendpoint": "http://127.0.0.1:10000/devstoreaccount1",
}


@dataclass(frozen=True, kw_only=True)
class AzureContainer(Bucket):
    """An Azure container and a path in it.

    Attributes:
        account: name of the storage account.
        endpoint: URL of its blob service without a final slash, by default
            `https://ACCOUNT.blob.core.windows.net`.
        from_environment: whether the credential is from the environment; then each client reads it
            again.

    `config` has the credential: `account_key`, `sas_token` (without a question mark),
    `sas_token_file`, `credential_provider`, the three parts of a client secret, `anonymous`, or at
    most a `client_id` for the default chain.
    """

    account: str
    endpoint: str
    from_environment: bool = False

    @classmethod
    def resolve(
        cls, location: Location, options: Mapping[str, Any], environ: Mapping[str, str]
    ) -> AzureContainer:
        """Resolve a location: settings of its URL, then `storage_options`, then the environment.

        The environment's credential applies if neither URL nor options have one, and only if it is
        for this account. Raises `LocationError` for a missing account, an unknown option, and
        credentials of two kinds.
        """
        shown = location.shown
        url_settings = _settings(location.options, _OPTIONS, shown)
        option_settings = _settings(options, _OPTIONS, shown, prefix="azure_")
        environment_settings = _environment_settings(environ, shown)
        account = (
            url_settings.get("account")
            or option_settings.get("account")
            or environment_settings.get("account")
        )
        container, _, root = location.root.strip("/").partition("/")
        if account is None:
            raise LocationError(
                "the URL does not contain the account",
                file=shown,
                expected="https://ACCOUNT.blob.core.windows.net/CONTAINER/PATH, or "
                "az://CONTAINER/PATH with storage_options={'account_name': …} or "
                "AZURE_STORAGE_ACCOUNT_NAME",
            )
        if option_settings.get("account", account) != account:
            accounts = f"{account}, and {option_settings['account']} in storage_options"
            raise LocationError("the URL is of another account", file=shown, got=accounts)
        host = f"https://{account}.blob.core.windows.net"
        if container == account and shown.startswith("az://"):
            message = "an unclear URL: is its first part the account or the container?"
            raise LocationError(message, expected=f"{host}/CONTAINER/PATH", got=shown)
        if (
            environment_settings.get("account", account) != account
        ):  # its endpoint and credential do not apply
            environment_settings = {
                n: v
                for n, v in environment_settings.items()
                if n not in ("endpoint", *_ACCOUNT_CREDENTIALS)
            }
        credential = _credential(url_settings | option_settings, shown)
        return cls(
            bucket=container,
            root=root,
            shown=shown,
            config=credential or _credential(environment_settings, shown),
            account=account,
            endpoint=({"endpoint": host} | environment_settings | url_settings | option_settings)[
                "endpoint"
            ].rstrip("/"),
            from_environment=not credential,
        )

    @property
    def is_reread(self) -> bool:
        reread_names = ("sas_token_file", "credential_provider")
        return self.from_environment or any(name in self.config for name in reread_names)

    @property
    def place(self) -> str:
        place_options = {"account_name": self.account, "endpoint": self.endpoint}
        if is_blob_service(self.endpoint, self.account):
            return named_place(f"{self.endpoint}/{self.bucket}/{self.root}", {})
        return named_place(f"az://{self.bucket}/{self.root}", place_options)

    def credential(self) -> Fetch | None:
        """Current key, SAS or token, read again from the environment or its file."""
        credential = self.config
        if self.from_environment:
            settings = _environment_settings(os.environ, self.shown)
            if settings.get("account", self.account) == self.account:
                credential = _credential(settings, self.shown) or credential
        if credential.get("anonymous"):
            return None
        if key := credential.get("account_key"):
            return lambda: {"access_key": key, "expires_at": None}
        file = credential.get("sas_token_file")
        if sas := _read(file, self.shown) if file else credential.get("sas_token"):
            return lambda: {"sas_token": sas, "expires_at": None}
        return lambda: self._token(credential)

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

    def signer(self) -> Signer:
        fetch = cached_credential(self.fetch())

        def sign(_: str, path: str) -> tuple[str, dict[str, str]]:
            credential, headers = fetch(), {"x-ms-version": _VERSION}
            sas = credential.get("sas_token", "")
            query = sas if isinstance(sas, str) else urlencode(sas)  # pairs, as in obstore
            if key := credential.get("access_key"):
                query = self._sas(key)
            elif token := credential.get("token"):
                check_token_endpoint(self.endpoint, self.endpoint)
                headers["Authorization"] = f"Bearer {token}"
            url = f"{self.endpoint}/{self.bucket}/{quote(self.key(path))}"
            return f"{url}?{query}" if query else url, headers

        return sign

    def _sas(self, key: str) -> str:
        """SAS for reading during one hour (learn.microsoft.com, "Create a service SAS")."""
        expiry = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
        parameters = {"sp": "r", "se": f"{expiry:%Y-%m-%dT%H:%M:%SZ}", "sv": _VERSION, "sr": "c"}
        resource = f"/blob/{self.account}/{self.bucket}"
        lines = ["r", "", parameters["se"], resource, "", "", "", _VERSION, "c", *[""] * 7]
        try:
            secret = base64.b64decode(key, validate=True)
        except ValueError:
            secret = b""
        if not secret:
            raise AccessError("the account key is not base64", file=self.shown)
        digest = hmac.digest(secret, "\n".join(lines).encode(), "sha256")
        return urlencode({**parameters, "sig": base64.b64encode(digest).decode()})

    def identity(self, credential: Mapping[str, Any], **settings: Any) -> Any:
        """Create a credential of azure-identity: for a client secret, or the default chain.

        A `client_id` alone selects a managed or workload identity; `settings` are passed on. Raises
        `LocationError` if a token would be sent over plain http.
        """
        identity = importlib.import_module("azure.identity")
        # Without a credential, each request for a token would log the same fifteen lines.
        logging.getLogger(identity.ChainedTokenCredential.__module__).addFilter(_ONCE)
        check_token_endpoint(self.endpoint, self.endpoint)
        if "client_secret" in credential:
            names = {name: credential[name] for name in _IDENTITY}
            return identity.ClientSecretCredential(**names, **settings)
        if client_id := credential.get("client_id"):
            id_options = ("managed_identity_client_id", "workload_identity_client_id")
            settings |= dict.fromkeys(id_options, client_id)
        return identity.DefaultAzureCredential(**settings)

    def _token(self, credential: Mapping[str, Any]) -> dict[str, Any]:
        """Request a token, from a new identity because msal caches failures."""
        statuses: list[int] = []
        identity = self.identity(
            credential,
            retry_total=0,  # the request that needs the token is retried
            raw_response_hook=lambda answer: statuses.append(answer.http_response.status_code),
        )
        try:
            token = identity.get_token(_SCOPE)
        except Exception:
            # The exception of the default chain has only text.
            busy_statuses = [status for status in statuses if is_busy(status)]
            if not busy_statuses:
                raise
        else:
            expires = datetime.datetime.fromtimestamp(token.expires_on, datetime.timezone.utc)
            return {"token": token.token, "expires_at": expires}
        raise TransientError(f"no token received: HTTP status {busy_statuses[-1]}", file=self.shown)


def adlfs_options(
    location: Location, options: Mapping[str, Any], environ: Mapping[str, str]
) -> dict[str, Any]:
    """Return the options of adlfs for a location: `options`, then the URL's.

    Raises `LocationError` for a connection string of another account, also in the environment:
    adlfs prefers it to the URL's account.
    """
    url_options = dict(location.options)
    if endpoint := url_options.pop("endpoint", None):
        url_options["account_host"] = endpoint.removeprefix("https://")
    adlfs_settings = {**url_options, **options}
    account = adlfs_settings.get("account_name")
    text = options.get("connection_string") or environ.get("AZURE_STORAGE_CONNECTION_STRING")
    if account and text and (other := _connection(str(text), location.shown)["account"]) != account:
        raise LocationError(
            "the connection string is of another account, which adlfs would read",
            file=location.shown,
            expected=account,
            got=other,
        )
    return adlfs_settings


class _Once(logging.Filter):
    """Log filter: drops a repetition of the last line within a minute."""

    _last_line: tuple[str, float] = ("", 0.0)

    def filter(self, record: logging.LogRecord) -> bool:
        (text, last_time), message = self._last_line, record.getMessage()
        if is_new := text != message or record.created > last_time + 60:
            self._last_line = (message, record.created)
        return is_new


_ONCE = _Once()


def _read(file: str, shown: str) -> str:
    """Read a SAS. An empty file is being written: no other credential takes its place."""
    sas: str | None = None
    with suppress(OSError, UnicodeError):
        sas = Path(file).read_text("utf-8-sig").strip().removeprefix("?")
    if sas is None:
        raise AccessError("the file of the SAS cannot be read", file=shown, got=file)
    if not sas:
        raise TransientError(f"the file of the SAS is empty: {file}", file=shown)
    return sas


def _settings(
    values: Mapping[str, Any], names: Names, shown: str, *, prefix: str | None = None
) -> dict[str, Any]:
    """Checked settings, including those in a connection string.

    Settings beside a connection string take precedence.
    """
    settings = canonical_settings(values, names, shown, prefix=prefix)
    for name in set(settings) - {"credential_provider"}:
        if not isinstance(settings[name], (str, int)):
            raise LocationError(f"storage option {name} is not text", file=shown)
        # The command line converts texts of digits to numbers.
        settings[name] = is_true(settings[name]) if name == "anonymous" else str(settings[name])
    if "connection_string" in settings:
        settings = _connection(settings.pop("connection_string"), shown) | settings
    if "sas_token" in settings:
        settings["sas_token"] = settings["sas_token"].removeprefix("?")
    if "endpoint" in settings:
        check_endpoint(settings["endpoint"], is_bare=True)
    return settings


def _connection(text: str, shown: str) -> dict[str, str]:
    pairs = (pair.split("=", 1) for pair in text.split(";") if "=" in pair)
    parts = {name.strip().lower(): value.strip() for name, value in pairs}
    if parts.get("usedevelopmentstorage", "").lower() == "true":
        parts = _EMULATOR | parts
    account, endpoint = parts.get("accountname"), parts.get("blobendpoint")
    if endpoint is not None:
        check_endpoint(endpoint, is_bare=True)
        url = urlsplit(endpoint)  # https://ACCOUNT.blob… or an emulator's http://HOST:PORT/ACCOUNT
        path_account = url.path.strip("/").partition("/")[0]
        account = account or path_account or (url.hostname or "").partition(".")[0]
    elif account is not None and "endpointsuffix" in parts:
        protocol = parts.get("defaultendpointsprotocol", "https")
        endpoint = f"{protocol}://{account}.blob.{parts['endpointsuffix']}"
    if account is None:
        raise LocationError(
            "a connection string without an account",
            file=shown,
            expected="AccountName=…;AccountKey=…, or BlobEndpoint=…;SharedAccessSignature=…",
        )
    settings = {"account": account, "endpoint": endpoint, "account_key": parts.get("accountkey")}
    if "accountkey" not in parts:
        settings["sas_token"] = parts.get("sharedaccesssignature")
    return {name: value for name, value in settings.items() if value}


def _credential(settings: Mapping[str, Any], shown: str) -> dict[str, Any]:
    """The credential in settings, if any; raises `LocationError` for two or an incomplete one."""
    credential = one_kind(_KINDS, settings, shown)
    if "client_secret" in credential:
        credential = {name: settings[name] for name in _IDENTITY if settings.get(name)}
        if len(credential) < len(_IDENTITY):
            raise LocationError("a client secret needs tenant_id and client_id", file=shown)
    elif not credential and settings.get("client_id"):
        credential["client_id"] = settings["client_id"]
    return credential


def _environment_settings(environ: Mapping[str, str], shown: str) -> dict[str, Any]:
    """Settings of the environment, with the first of several credentials."""
    settings = _settings(environ, _ENVIRONMENT, shown)
    if not set(_IDENTITY) <= set(settings):
        settings.pop("client_secret", None)
    for kind in [name for name in _KINDS if settings.get(name)][1:]:
        del settings[kind]
    return settings


class Blobfiles:
    """A subset of fsspec's interface for Azure with blobfile; paths are ACCOUNT/CONTAINER/PATH.

    blobfile has its own credentials: `AZURE_STORAGE_KEY`, a service principal, `az login`. Does not
    retry. `pool` makes a urllib3 pool that replaces blobfile's own.
    """

    def __init__(self, pool: Callable[[], Any] | None) -> None:
        import blobfile

        self._context = blobfile.create_context(
            retry_limit=0,
            save_access_token_to_disk=False,
            log_callback=lambda _: None,
            get_http_pool=pool,
        )

    def info(self, path: str) -> dict[str, Any]:
        return {"size": self._context.stat(f"az://{path}").size}

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        if end - start > MAX_REQUEST_BYTES:  # the range of a whole file may exceed it
            end = min(end, self.info(path)["size"])
        # With a given size, blobfile does not request it, and reads no further.
        with self._context.BlobFile(
            f"az://{path}", "rb", streaming=True, file_size=end, buffer_size=max(1, end - start)
        ) as file:
            file.seek(start)
            return b"".join(iter(lambda: file.read(end - start), b""))
