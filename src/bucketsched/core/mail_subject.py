"""Subjects of mails: a text with names in braces, of a fixed set, and nothing else that braces could mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Formatter

from .errors import InvalidArgument

NAMES = frozenset({"type", "task_id", "event", "queue", "namespace"})
TEMPLATE_LENGTH_MAX = 200
SUBJECT_LENGTH_MAX = 200
_GAPS = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def check_subject(template: str) -> None:
    """Raises InvalidArgument."""
    if not template.strip() or len(template) > TEMPLATE_LENGTH_MAX:
        raise InvalidArgument("email.subject", f"must be 1 to {TEMPLATE_LENGTH_MAX} characters")
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise InvalidArgument("email.subject", f"has braces that do not fit: {error}") from error
    for _, name, form, conversion in parts:
        if name is not None and (name not in NAMES or form or conversion):
            raise InvalidArgument("email.subject", f"may have in braces {', '.join(sorted(NAMES))}, and nothing else")


def subject_of(template: str, values: Mapping[str, str]) -> str:
    """One line: what could end a header, and gaps that empty values leave, become one space each."""
    text = "".join(before + values.get(name or "", "") for before, name, _, _ in Formatter().parse(template))
    return _GAPS.sub(" ", text).strip()[:SUBJECT_LENGTH_MAX]
