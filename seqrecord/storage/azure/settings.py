"""What `storage_options` and the environment say of an Azure account, under one set of names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from seqrecord.errors import LocationError

__all__ = ["azure_settings", "one_credential"]

# Names in storage_options, and in the environment: those of adlfs, obstore, blobfile and az CLI.
_OPTIONS = {
    "account": ("account_name", "account"),
    "endpoint": ("endpoint", "blob_endpoint", "azure_endpoint"),
    "connection_string": ("connection_string",),
    "account_key": ("account_key", "access_key", "master_key"),
    "sas_token": ("sas_token", "sas_key"),
    "tenant_id": ("tenant_id", "authority_id"),
    "client_id": ("client_id",),
    "client_secret": ("client_secret",),
    "anonymous": ("anonymous", "anon", "skip_signature"),
}
_ENVIRONMENT = {
    "account": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"),
    "endpoint": ("AZURE_STORAGE_ENDPOINT",),
    "connection_string": ("AZURE_STORAGE_CONNECTION_STRING",),
    "account_key": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY"),
    "sas_token": ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"),
    "tenant_id": ("AZURE_STORAGE_TENANT_ID", "AZURE_TENANT_ID"),
    "client_id": ("AZURE_STORAGE_CLIENT_ID", "AZURE_CLIENT_ID"),
    "client_secret": ("AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET"),
    "anonymous": ("AZURE_STORAGE_ANON",),
}
_KNOWN = frozenset(name for names in _OPTIONS.values() for name in names)

_KINDS = ("account_key", "sas_token", "client_secret", "anonymous")  # the environment's order
_TRIO = ("client_secret", "tenant_id", "client_id")

# Azurite's, the same for everyone and published by Microsoft: no secret.
_EMULATOR = "devstoreaccount1"
_EMULATOR_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


def azure_settings(
    values: Mapping[str, Any], shown: str, *, environment: bool = False
) -> dict[str, Any]:
    """Settings by the names of `AzureAccount`'s fields, without the empty ones.

    What a connection string holds is among them; what is named beside it comes first. Of an
    environment, which may hold credentials set by several tools, only the first kind is taken, and
    what is not ours is passed over; of anything else an unknown name is a `LocationError`.
    """
    if environment:
        return _strongest(_expanded(_named(values, _ENVIRONMENT), shown))
    if unknown := sorted(set(values) - _KNOWN):
        raise LocationError(
            "an unknown storage option",
            file=shown,
            expected=f"some of {', '.join(sorted(_KNOWN))}",
            got=", ".join(unknown),
        )
    return _expanded(_named(values, _OPTIONS), shown)


def one_credential(settings: Mapping[str, Any], shown: str) -> dict[str, Any]:
    """The credential among settings, or none; `LocationError` for two kinds, or for half of one."""
    kinds = [name for name in _KINDS if settings.get(name)]
    if len(kinds) > 1:
        raise LocationError(
            "credentials of more than one kind", file=shown, expected="one", got=", ".join(kinds)
        )
    if kinds != ["client_secret"]:
        alone = ["client_id"] if not kinds and settings.get("client_id") else []
        return {name: settings[name] for name in kinds + alone}
    if missing := [name for name in _TRIO if not settings.get(name)]:
        raise LocationError(
            "a client secret needs tenant_id and client_id",
            file=shown,
            got=f"no {' and no '.join(missing)}",
        )
    return {name: settings[name] for name in _TRIO}


def _named(values: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for ours, theirs in names.items():
        for name in theirs:
            value = values.get(name)
            if value is None or value == "" or ours in found:
                continue
            if ours == "anonymous":
                value = str(value).lower() in ("true", "1", "yes")
            elif type(value) is int:  # the command line takes what looks like a number for one
                value = str(value)
            elif not isinstance(value, str):
                raise LocationError(f"storage option {name} is not text", got=type(value).__name__)
            found[ours] = value
    if "sas_token" in found:
        found["sas_token"] = found["sas_token"].removeprefix("?")
    if "endpoint" in found:
        _check_endpoint(found["endpoint"])
    return found


def _expanded(found: dict[str, Any], shown: str) -> dict[str, Any]:
    text = found.pop("connection_string", None)
    if text is None:
        return found
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
    return {name: value for name, value in held.items() if value} | found


def _strongest(found: dict[str, Any]) -> dict[str, Any]:
    if not all(name in found for name in _TRIO):
        found.pop("client_secret", None)
    for kind in [name for name in _KINDS if found.get(name)][1:]:
        del found[kind]
    return found


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
