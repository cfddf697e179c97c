"""Removes signatures and passwords from what client libraries log of their requests."""

from __future__ import annotations

import logging
import re

__all__ = ["redact_logs"]

# Those that log URLs as they are: urllib3 at DEBUG every one, and what it tries again as a warning.
_LOGGERS = """
aiobotocore aiobotocore.endpoint aiohttp.client asyncio
azure.core.pipeline.policies.http_logging_policy azure.storage.blob._shared.policies
boto3 botocore botocore.auth botocore.endpoint botocore.hooks botocore.parsers botocore.regions
fsspec fsspec.http gcsfs google.auth google.auth.transport.requests google.oauth2
httpx httpx2 huggingface_hub.utils._http s3fs
urllib3.connectionpool urllib3.poolmanager urllib3.util.retry
"""
# What stays of each is its group.
_SECRETS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # A signature, as a query has it, in the URL or quoted into another.
        r"((?:sig|signature|token)(?:=|%3D))[^&\s'\"<>]+",
        r"(//)[^/\s'\"<>@]+(?=@)",
        r"((?:AccountKey|SharedAccessSignature)=)[^;\s'\"]+",
        # What S3's and GCS's clients send and log: headers, tokens in JSON, their own dicts.
        r"(Bearer\s+|Signature=|Credential=|x-amz-security-token:\s*)[^\s,'\"]+",
        (
            r"((?:secret|token|private_key|assertion|authorization|access_key)[\w-]*"
            r"['\"]?\s*[:=]\s*b?['\"])[^'\"]+"
        ),
    )
]


def redact_logs() -> None:
    """From now on, URLs in the logs of client libraries have no signature and no password.

    For the whole process, and as often as one likes.
    """
    for name in _LOGGERS.split():
        logging.getLogger(name).addFilter(_FILTER)


class _Redaction(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except Exception:
            return True  # whoever formats it will say so
        clean = _redacted(text)
        if clean != text:
            record.msg, record.args = clean, ()
        if record.exc_info and record.exc_info[1] is not None:
            # The formatter takes the text that is there.
            record.exc_text = _redacted(logging.Formatter().formatException(record.exc_info))
        return True


def _redacted(text: str) -> str:
    for pattern in _SECRETS:
        text = pattern.sub(r"\1…", text)
    return text


_FILTER = _Redaction()
