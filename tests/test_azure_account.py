from __future__ import annotations

import pickle
import sys
import uuid
from contextlib import closing
from typing import Any

import pytest

from seqrecord.errors import AccessError, LocationError
from seqrecord.storage import open_storage, parse_location
from seqrecord.storage.failures import call
from seqrecord.storage.objects.azure import AzureContainer

SECRET = "MARKED-S3CRET"
HTTPS = "https://acme.blob.core.windows.net/box/path/to"
TRIO = {"tenant_id": "t", "client_id": "c", "client_secret": SECRET}


def resolve(
    url: str, options: dict[str, Any] | None = None, environ: dict[str, str] | None = None
) -> AzureContainer:
    return AzureContainer.resolve(parse_location(url), options or {}, environ or {})


def kind_of(container: AzureContainer) -> str:
    """Of the one credential that is held."""
    names = {"account_key": "account key", "sas_token": "SAS", "anonymous": "anonymous"}
    if "client_secret" in container.config:
        return "client secret"
    [kind] = [names[name] for name in container.config] or ["default chain"]
    return kind


@pytest.mark.parametrize("url", [HTTPS, "abfs://box@acme.dfs.core.windows.net/path/to/"])
def test_a_url_that_names_its_host(url: str) -> None:
    account = resolve(url)
    assert (account.account, account.bucket, account.root) == ("acme", "box", "path/to")
    assert account.endpoint == "https://acme.blob.core.windows.net"
    assert kind_of(account) == "default chain"
    assert account.key("records/a") == "path/to/records/a"


def test_a_whole_container() -> None:
    account = resolve("https://acme.blob.core.windows.net/box")
    assert (account.bucket, account.root) == ("box", "")
    assert account.key("manifest.json") == "manifest.json"


@pytest.mark.parametrize(
    ("options", "environ"),
    [
        ({"account_name": "acme"}, {}),
        ({"account": "acme"}, {}),
        ({}, {"AZURE_STORAGE_ACCOUNT_NAME": "acme"}),
        ({}, {"AZURE_STORAGE_ACCOUNT": "acme"}),
        ({"account_name": "acme"}, {"AZURE_STORAGE_ACCOUNT_NAME": "other"}),
        ({"connection_string": f"AccountName=acme;AccountKey={SECRET}"}, {}),
        ({}, {"AZURE_STORAGE_CONNECTION_STRING": f"AccountName=acme;AccountKey={SECRET}=="}),
    ],
)
def test_where_the_account_of_an_az_url_comes_from(
    options: dict[str, Any], environ: dict[str, str]
) -> None:
    account = resolve("az://box/path", options, environ)
    assert (account.account, account.bucket, account.root) == ("acme", "box", "path")
    assert account.endpoint == "https://acme.blob.core.windows.net"


def test_a_container_may_be_called_as_its_account_is() -> None:
    assert resolve("https://acme.blob.core.windows.net/acme/path").bucket == "acme"


@pytest.mark.parametrize(
    ("url", "options", "environ", "kind"),
    [
        (f"{HTTPS}?sig={SECRET}", {}, {}, "SAS"),
        (HTTPS, {"sas_token": f"?sig={SECRET}"}, {}, "SAS"),
        (HTTPS, {"account_key": SECRET}, {}, "account key"),
        (HTTPS, TRIO, {}, "client secret"),
        (HTTPS, {"anonymous": True}, {}, "anonymous"),
        (HTTPS, {"anon": "true"}, {}, "anonymous"),
        (HTTPS, {}, {"AZURE_STORAGE_ACCOUNT_KEY": SECRET}, "account key"),
        (HTTPS, {}, {"AZURE_STORAGE_KEY": SECRET}, "account key"),
        (HTTPS, {}, {"AZURE_STORAGE_SAS_TOKEN": SECRET}, "SAS"),
        (
            HTTPS,
            {},
            {f"AZURE_{name.upper()}": value for name, value in TRIO.items()},
            "client secret",
        ),
        (HTTPS, {"account_key": SECRET}, {"AZURE_STORAGE_SAS_TOKEN": "other"}, "account key"),
        (f"{HTTPS}?sig={SECRET}", {}, {"AZURE_STORAGE_ACCOUNT_KEY": "other"}, "SAS"),
        # Several tools may have left theirs.
        (HTTPS, {}, {"AZURE_STORAGE_KEY": SECRET, "AZURE_STORAGE_SAS_TOKEN": "x"}, "account key"),
        (HTTPS, {}, {"AZURE_CLIENT_SECRET": SECRET}, "default chain"),
        # Of another account.
        (
            HTTPS,
            {},
            {"AZURE_STORAGE_ACCOUNT_NAME": "other", "AZURE_STORAGE_ACCOUNT_KEY": SECRET},
            "default chain",
        ),
        (
            HTTPS,
            {},
            {"AZURE_STORAGE_CONNECTION_STRING": f"AccountName=other;AccountKey={SECRET}"},
            "default chain",
        ),
    ],
)
def test_the_credential(
    url: str, options: dict[str, Any], environ: dict[str, str], kind: str
) -> None:
    account = resolve(url, options, environ)
    assert kind_of(account) == kind
    assert set(account.config.values()) <= {SECRET, f"sig={SECRET}", "t", "c", True}
    assert SECRET not in repr(account) + str(account)
    assert pickle.loads(pickle.dumps(account)) == account


def test_connection_strings() -> None:
    development = resolve("az://box/path", {"connection_string": "UseDevelopmentStorage=true"})
    assert development.endpoint == "http://127.0.0.1:10000/devstoreaccount1"
    assert kind_of(development) == "account key"
    signed = resolve(
        "az://box/path",
        {
            "connection_string": "BlobEndpoint=https://acme.blob.core.windows.net/;"
            f"SharedAccessSignature=?sv=1&sig={SECRET}%3D"
        },
    )
    assert signed.account == "acme"
    assert signed.config["sas_token"] == f"sv=1&sig={SECRET}%3D"
    assert signed.endpoint == "https://acme.blob.core.windows.net"
    china = resolve(
        "az://box/path",
        {"connection_string": "AccountName=a;AccountKey=k;EndpointSuffix=core.chinacloudapi.cn"},
    )
    assert china.endpoint == "https://a.blob.core.chinacloudapi.cn"


def test_an_endpoint_of_the_options_comes_first() -> None:
    for environ in ({}, {"AZURE_STORAGE_ENDPOINT": "http://elsewhere:1/acme"}):
        account = resolve(HTTPS, {"endpoint": "http://127.0.0.1:1/acme/"}, environ)
        assert account.endpoint == "http://127.0.0.1:1/acme"
        assert resolve(HTTPS, {}, environ).endpoint == "https://acme.blob.core.windows.net"
    assert (
        resolve("az://b/p", {"account_name": "acme"}, {"AZURE_STORAGE_ENDPOINT": "http://h:1/acme"})
    ).endpoint == "http://h:1/acme"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(LocationError, match=": pip install azure-identity;"):
        call("file", resolve(HTTPS).identity, {})


def test_what_no_credential_of_the_chain_has_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not for each request that needs a token: it is fifteen lines."""
    identity = pytest.importorskip("azure.identity")
    name = f"Credential{uuid.uuid4().hex}"
    none = type(name, (identity.EnvironmentCredential,), {})
    monkeypatch.setattr(
        identity, "DefaultAzureCredential", lambda **_: identity.ChainedTokenCredential(none())
    )
    options = {"account_name": "acme", "endpoint": "https://127.0.0.1:9", "deadline": 0.3}
    with closing(open_storage("az://box/p", options)) as storage:
        for _ in range(3):
            with pytest.raises(AccessError):
                storage.size("a")
    assert sum(name in record.getMessage() for record in caplog.records) == 1
