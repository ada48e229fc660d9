"""What the settings of an SQS queue may be."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from .errors import InvalidArgument
from .sqs import FIFO, GROUP_LENGTH_MAX, Sqs, is_group
from .validation import check_range

URL_LENGTH_MAX = 2_048
TIMEOUT_MS_MIN, TIMEOUT_MS_MAX = 100, 300_000
CONCURRENCY_MAX = 1_000

_URL = re.compile(r"[!-~]+")
_REGION = re.compile(r"[a-z0-9-]{1,64}")


def check_sqs(sqs: Sqs) -> None:
    """Raises InvalidArgument with the field at fault."""
    _check_url(sqs.queue_url, "sqs.queue_url")
    if sqs.endpoint_url:
        _check_url(sqs.endpoint_url, "sqs.endpoint_url")
    if not _REGION.fullmatch(sqs.region):
        raise InvalidArgument("sqs.region", "must be a region such as eu-central-1")
    if (sqs.group or sqs.group_key) and not sqs.fifo:
        raise InvalidArgument("sqs.group", f"must be empty: only queues whose URL ends in {FIFO} have groups")
    if sqs.group and not is_group(sqs.group):
        raise InvalidArgument("sqs.group", f"must be at most {GROUP_LENGTH_MAX} visible ASCII characters")
    if len(sqs.group_key) > GROUP_LENGTH_MAX:
        raise InvalidArgument("sqs.group_key", f"must be at most {GROUP_LENGTH_MAX} characters")
    check_range(sqs.timeout_ms, TIMEOUT_MS_MIN, TIMEOUT_MS_MAX, "sqs.timeout")
    check_range(sqs.concurrency, 1, CONCURRENCY_MAX, "sqs.concurrency")


def _check_url(url: str, field: str) -> None:
    if len(url) > URL_LENGTH_MAX or not _URL.fullmatch(url):
        raise InvalidArgument(field, f"must be 1 to {URL_LENGTH_MAX} visible ASCII characters")
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good or "@" in parts.netloc or parts.query or parts.fragment:
        raise InvalidArgument(field, "must be https://... or http://..., without user, password, query and fragment")
