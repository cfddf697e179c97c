"""A bucket of Google Cloud Storage."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from seqrecord.errors import AccessError, LocationError
from seqrecord.storage.objects.source import (
    Client,
    Provider,
    client_settings,
    named,
    split_client_options,
)
from seqrecord.storage.packages import check_token_endpoint, is_installed
from seqrecord.storage.url import Location

__all__ = ["GcsBucket"]

# obstore's names, with and without `google_`, then gcsfs's.
_OPTIONS = {
    "service_account": (
        "service_account",
        "service_account_path",
        "google_service_account",
        "google_service_account_path",
    ),
    "service_account_key": ("service_account_key", "google_service_account_key"),
    "application_credentials": ("application_credentials", "google_application_credentials"),
    "bearer_token": ("bearer_token", "google_bearer_token"),
    "skip_signature": ("skip_signature", "anonymous", "anon", "google_skip_signature"),
    "base_url": ("base_url", "google_base_url", "endpoint_url", "endpoint"),
    "project": ("project",),
    "token": ("token",),
}
_ENVIRONMENT = {
    "service_account": ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"),
    "service_account_key": ("GOOGLE_SERVICE_ACCOUNT_KEY",),
    "application_credentials": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "base_url": ("GOOGLE_BASE_URL", "STORAGE_EMULATOR_HOST"),
}
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_CREDENTIALS = (
    "skip_signature",
    "bearer_token",
    "service_account_key",
    "service_account",
    "application_credentials",
)


@dataclass(frozen=True)
class GcsBucket:
    """A bucket and a path in it.

    Without a credential in `config` it is opened with what google-auth finds where it is
    installed, else with what obstore finds: gcloud's, or the machine's.
    """

    bucket: str
    root: str
    shown: str
    config: Mapping[str, Any] = field(repr=False)
    client_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    without_obstore = "pip install gcsfs"

    @classmethod
    def resolve(
        cls, location: Location, options: Mapping[str, Any], environ: Mapping[str, str]
    ) -> GcsBucket:
        """The bucket of a location: what options say, then the environment."""
        client_options, rest = split_client_options(options, location.shown)
        given = named(rest, _OPTIONS, location.shown)
        token = given.pop("token", None)  # as gcsfs has it
        if token == "anon":  # noqa: S105 - its name for none
            given["skip_signature"] = True
        elif isinstance(token, dict):
            given["service_account_key"] = json.dumps(token)
        elif token is not None:
            given["service_account"] = token
        if "skip_signature" in given:
            given["skip_signature"] = str(given["skip_signature"]).lower() in ("true", "1", "yes")
        found = named(environ, _ENVIRONMENT, location.shown, strict=False)
        if any(given.get(name) for name in _CREDENTIALS):
            found = {name: value for name, value in found.items() if name not in _CREDENTIALS}
        config = found | given
        kinds = [name for name in _CREDENTIALS if config.get(name)]
        if given and len([name for name in _CREDENTIALS if given.get(name)]) > 1:
            raise LocationError(
                "credentials of more than one kind",
                file=location.shown,
                expected="one",
                got=", ".join(kinds),
            )
        for name in kinds[1:]:
            del config[name]
        url = config.get("base_url")
        if url is not None and "://" not in url:
            config["base_url"] = url = f"http://{url}"
        if not config.get("skip_signature"):
            check_token_endpoint(url, location.shown)
        bucket, _, root = location.root.strip("/").partition("/")
        return cls(bucket, root.strip("/"), location.shown, config, client_options)

    def key(self, path: str) -> str:
        return f"{self.root}/{path}" if self.root else path

    @property
    def path(self) -> str:
        """The root as fsspec has it."""
        return f"{self.bucket}/{self.root}".rstrip("/")

    def client(self, timeout: float) -> Client:
        from obstore.store import GCSStore

        config = {name: value for name, value in self.config.items() if name != "project"}
        provider = self._provider()
        if provider is not None:
            config = {name: config[name] for name in ("base_url",) if name in config}
            config["credential_provider"] = provider
        settings = client_settings(timeout, config.get("base_url"), self.client_options)
        return Client(GCSStore(self.bucket, **config, **settings), provider)

    def filesystem(self, timeout: float) -> Any:
        """A new filesystem of gcsfs, which asks nobody what kind of bucket it is."""
        from aiohttp import ClientTimeout
        from gcsfs.core import GCSFileSystem

        config = self.config
        token: Any = config.get("service_account") or config.get("application_credentials")
        if config.get("skip_signature"):
            token = "anon"  # noqa: S105 - its name for none
        elif "service_account_key" in config:
            token = json.loads(config["service_account_key"])
        elif "bearer_token" in config:
            from google.oauth2.credentials import Credentials

            token = Credentials(config["bearer_token"])  # type: ignore[no-untyped-call]
        return GCSFileSystem(
            project=config.get("project", "-"),  # it warns of none
            token=token,
            endpoint_url=config.get("base_url"),
            session_kwargs={
                "timeout": ClientTimeout(
                    total=None, sock_connect=min(10.0, timeout), sock_read=timeout
                ),
                "trust_env": True,
            },
            skip_instance_cache=True,
        )

    def _provider(self) -> Provider | None:
        """google-auth for what obstore does not know: federation, impersonation."""
        config = self.config
        file = config.get("application_credentials")
        if any(config.get(name) for name in _CREDENTIALS if name != "application_credentials"):
            return None
        if not is_installed("google.auth"):
            return None
        import google.auth
        import google.auth.transport.requests

        def found() -> Any:
            if file is not None:
                load = google.auth.load_credentials_from_file
                return load(file, scopes=[_SCOPE])[0]  # type: ignore[no-untyped-call]
            return google.auth.default(scopes=[_SCOPE])[0]

        held: list[Any] = []

        def fetch() -> dict[str, Any]:
            if not held:
                with suppress(google.auth.exceptions.DefaultCredentialsError):
                    held.append(found())
            if not held:
                raise AccessError(
                    "no credential was found: give service_account, GOOGLE_APPLICATION_CREDENTIALS,"
                    " `gcloud auth application-default login`, or skip_signature for a public "
                    "bucket",
                    file=self.shown,
                )
            held[0].refresh(google.auth.transport.requests.Request())
            expiry = held[0].expiry
            if expiry is not None and expiry.tzinfo is None:
                expiry = expiry.replace(tzinfo=datetime.timezone.utc)
            return {"token": held[0].token, "expires_at": expiry}

        return Provider(fetch, self.shown)
