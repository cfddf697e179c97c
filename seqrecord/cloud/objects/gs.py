"""Google Cloud Storage buckets."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote

from seqrecord.cloud.objects.bucket import Bucket, Names, check_token_endpoint, is_true, one_kind
from seqrecord.cloud.objects.http import Fetch, Signer, cached_credential

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


@dataclass(frozen=True, kw_only=True)
class GcsBucket(Bucket):
    """A GCS bucket and a path in it.

    `config` has at most one credential; without one, google-auth looks for a default.
    """

    endpoint_option = "base_url"
    fixed = ("skip_signature", "bearer_token")
    # obstore's names, with or without `google_`, for kinds of credentials and the endpoint.
    names: ClassVar[Names] = {
        "skip_signature": ("skip_signature", "anonymous", "anon"),
        "credential_provider": ("credential_provider",),
        "bearer_token": ("bearer_token",),
        "service_account_key": ("service_account_key",),
        "service_account": ("service_account", "service_account_path"),
        "application_credentials": ("application_credentials",),
        "base_url": ("base_url", "endpoint_url", "endpoint"),
    }
    environment: ClassVar[Names] = {
        "service_account_key": ("GOOGLE_SERVICE_ACCOUNT_KEY",),
        "service_account": ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"),
        "application_credentials": ("GOOGLE_APPLICATION_CREDENTIALS",),
        "base_url": ("GOOGLE_BASE_URL", "STORAGE_EMULATOR_HOST"),
    }
    prefix = "google_"
    scheme = "gs"

    @classmethod
    def configured(
        cls, option_settings: dict[str, Any], environment_settings: dict[str, Any], shown: str
    ) -> dict[str, Any]:
        if "skip_signature" in option_settings:
            option_settings["skip_signature"] = is_true(option_settings["skip_signature"])
        kinds = tuple(cls.names)[:-1]
        environment_credential = {
            name: environment_settings[name]
            for name in [n for n in kinds if n in environment_settings][:1]
        }
        config = one_kind(kinds, option_settings, shown) or environment_credential
        if url := option_settings.get("base_url") or environment_settings.get("base_url"):
            config["base_url"] = url if "://" in url else f"http://{url}"
        if not config.get("skip_signature"):
            check_token_endpoint(config.get("base_url"), shown)
        return config

    def credential(self) -> Fetch | None:
        """Credential of google-auth: from a key file or its text, or the default."""
        if self.config.get("skip_signature"):
            return None
        if bearer := self.config.get("bearer_token"):
            return lambda: {"token": bearer, "expires_at": None}
        from obstore.auth.google import GoogleCredentialProvider

        google: Any = importlib.import_module("google.auth")

        key = self.config.get("service_account_key")
        file = self.config.get("service_account") or self.config.get("application_credentials")
        if key is not None:
            credential_project = google.load_credentials_from_dict(json.loads(key), scopes=[_SCOPE])
        elif file is not None:
            credential_project = google.load_credentials_from_file(file, scopes=[_SCOPE])
        else:
            credential_project = google.default(scopes=[_SCOPE])
        return GoogleCredentialProvider(credential_project[0])

    def store(self, **settings: Any) -> Any:
        from obstore.store import GCSStore

        if "credential_provider" not in settings:
            settings["skip_signature"] = True
        if "base_url" in self.config:
            settings["base_url"] = self.config["base_url"]
        return GCSStore(self.bucket, **settings)

    def signer(self) -> Signer:
        fetch = cached_credential(self.fetch())
        url = self.config.get("base_url", "https://storage.googleapis.com").rstrip("/")

        def sign(_: str, path: str) -> tuple[str, dict[str, str]]:
            credential = fetch()
            headers = {"Authorization": f"Bearer {credential['token']}"} if credential else {}
            return f"{url}/{self.bucket}/{quote(self.key(path))}", headers

        return sign
