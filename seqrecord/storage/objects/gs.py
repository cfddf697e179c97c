"""A bucket of Google Cloud Storage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seqrecord.errors import AccessError
from seqrecord.storage.objects.settings import is_true, named, one_of, split_client_options
from seqrecord.storage.objects.source import Bucket, Fetch, place_of
from seqrecord.storage.packages import check_token_endpoint, is_installed
from seqrecord.storage.url import Location

__all__ = ["GcsBucket"]

# obstore's names, with and without `google_`, then gcsfs's.
_NAMES = {
    "service_account": ("service_account", "service_account_path"),
    "service_account_key": ("service_account_key",),
    "application_credentials": ("application_credentials",),
    "bearer_token": ("bearer_token",),
    "skip_signature": ("skip_signature", "anonymous", "anon"),
    "credential_provider": ("credential_provider",),
    "base_url": ("base_url", "endpoint_url", "endpoint"),
    "project": ("project",),
    "token": ("token",),
}
_ENVIRONMENT = {
    "service_account": ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"),
    "service_account_key": ("GOOGLE_SERVICE_ACCOUNT_KEY",),
    "application_credentials": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "base_url": ("GOOGLE_BASE_URL", "STORAGE_EMULATOR_HOST"),
}
_KINDS = (
    "skip_signature",
    "credential_provider",
    "bearer_token",
    "service_account_key",
    "service_account",
    "application_credentials",
)
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


@dataclass(frozen=True, kw_only=True)
class GcsBucket(Bucket):
    """A bucket and a path in it.

    `config` has at most one credential. Without one it is opened with what google-auth finds where
    it is installed, else with what obstore finds: gcloud's, or the machine's.
    """

    package = "gcsfs"

    @classmethod
    def resolve(
        cls, location: Location, options: Mapping[str, Any], environ: Mapping[str, str]
    ) -> GcsBucket:
        """The bucket of a location: what options say, then the environment."""
        client_options, rest = split_client_options(options, location.shown)
        given = named(rest, _NAMES, location.shown, prefix="google_")
        token = given.pop("token", None)  # as gcsfs has it
        if token == "anon":  # noqa: S105 - its name for none
            given["skip_signature"] = True
        elif isinstance(token, dict):
            given["service_account_key"] = json.dumps(token)
        elif token is not None:
            given["service_account"] = token
        if "skip_signature" in given:
            given["skip_signature"] = is_true(given["skip_signature"])
        found = named(environ, _ENVIRONMENT, location.shown, strict=False)
        first = [name for name in _KINDS if found.get(name)][:1]
        credential = one_of(_KINDS, given, location.shown) or {name: found[name] for name in first}
        others = {name: v for name, v in (found | given).items() if name not in _KINDS}
        url = others.get("base_url")
        if url is not None and "://" not in url:
            others["base_url"] = url = f"http://{url}"
        if not credential.get("skip_signature"):
            check_token_endpoint(url, location.shown)
        bucket, _, root = location.root.strip("/").partition("/")
        return cls(
            bucket=bucket,
            root=root.strip("/"),
            shown=location.shown,
            config=others | credential,
            client_options=client_options,
        )

    @property
    def is_reread(self) -> bool:
        fixed = ("skip_signature", "bearer_token", "service_account_key")
        return not any(self.config.get(name) for name in fixed)

    @property
    def place(self) -> str:
        endpoint = self.config.get("base_url")
        return place_of(endpoint, self.path) if endpoint else f"gs://{self.path}"

    def credential(self) -> Fetch | None:
        """google-auth's, for what obstore does not know: federation, impersonation."""
        if not self.is_reread or "service_account" in self.config:
            return None
        if not is_installed("google.auth"):
            return None
        import google.auth
        from obstore.auth.google import GoogleCredentialProvider

        file = self.config.get("application_credentials")
        try:
            if file is not None:
                load = google.auth.load_credentials_from_file
                found = load(file, scopes=[_SCOPE])[0]  # type: ignore[no-untyped-call]
            else:
                found = google.auth.default(scopes=[_SCOPE])[0]
        except google.auth.exceptions.DefaultCredentialsError:
            found = None
        if found is None:
            raise AccessError(
                "no credential was found: give service_account, GOOGLE_APPLICATION_CREDENTIALS, "
                "`gcloud auth application-default login`, or skip_signature for a public bucket",
                file=self.shown,
            )
        return GoogleCredentialProvider(found)

    def store(self, **settings: Any) -> Any:
        from obstore.store import GCSStore

        config = {name: value for name, value in self.config.items() if name != "project"}
        if "credential_provider" in settings:
            config = {name: config[name] for name in ("base_url",) if name in config}
        return GCSStore(self.bucket, **config, **settings)

    def filesystem(self, timeout: float) -> Any:
        """It asks nobody what kind of bucket it is."""
        from aiohttp import ClientTimeout
        from gcsfs.core import GCSFileSystem

        config = self.config
        token: Any = config.get("service_account") or config.get("application_credentials")
        bearer = config.get("bearer_token")
        if fetch := config.get("credential_provider"):
            bearer = fetch()["token"]
        if config.get("skip_signature"):
            token = "anon"  # noqa: S105 - its name for none
        elif "service_account_key" in config:
            token = json.loads(config["service_account_key"])
        elif bearer is not None:
            from google.oauth2.credentials import Credentials

            token = Credentials(bearer)  # type: ignore[no-untyped-call]
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
