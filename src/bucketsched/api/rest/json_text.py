"""JSON, strictly, and with the text that each value was written as: a payload is kept as its bytes.

Refused beside what is not JSON: NaN and infinities, names that are given twice, more than DEPTH_MAX levels, halves of
surrogate pairs, and what is not UTF-8. Numbers may be of any size; as values they lose precision, as text they don't.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from json.decoder import scanstring  # type: ignore[attr-defined]
from json.scanner import make_scanner
from typing import Any, NamedTuple, NoReturn

from ...core.errors import InvalidArgument

DEPTH_MAX = 100
WHOLE_DIGITS_MAX = 20
"""Whole numbers of more digits are read as floats: no field takes one."""

_SPACE = re.compile(r"[ \t\n\r]*")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


class Written(NamedTuple):
    """A value, and the text that it was written as."""

    value: Any
    text: str


Members = dict[str, Written]


class _Refused(ValueError):
    """Valid JSON that is not taken."""


def members(raw: bytes) -> Members:
    """The members of the object that `raw` is. Raises InvalidArgument; its field is "" where all of it is at fault."""
    text = decoded(raw)
    found, at = _object(text, _skip(text, 0))
    if _skip(text, at) != len(text):
        _wrong("", at, "there is more behind the object")
    return found


def elements(written: Written, field: str) -> Iterator[Members]:
    """The members of each object in a list. Raises InvalidArgument."""
    text, at = written.text, 1
    if not text.startswith("["):
        raise InvalidArgument(field, "must be a list of objects")
    at = _skip(text, at)
    while text[at] != "]":  # the list was parsed before: it has an end, and commas where they belong
        if text[at] != "{":
            raise InvalidArgument(field, "must be a list of objects")
        found, at = _object(text, at)
        yield found
        at = _skip(text, at)
        at = _skip(text, at + 1) if text[at] == "," else at


def is_json(raw: bytes) -> bool:
    """True if these bytes are one JSON value that `members` would have taken."""
    try:
        text = decoded(raw)
        _, at = _value(text, _skip(text, 0), "")
    except InvalidArgument:
        return False
    return _skip(text, at) == len(text)


def decoded(raw: bytes) -> str:
    """Raises InvalidArgument where it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument("", f"the body must be UTF-8; byte {error.start} is not") from None


def _object(text: str, at: int) -> tuple[Members, int]:
    """The object that begins at `at`, and where it ends."""
    if text[at : at + 1] != "{":
        _wrong("", at, "an object must begin here")
    found: Members = {}
    at = _skip(text, at + 1)
    if text[at : at + 1] == "}":
        return found, at + 1
    while True:
        name, at = _name(text, at)
        if name in found:
            raise InvalidArgument(name, "is given twice")
        found[name], at = _value(text, at, name)
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            return found, at + 1
        if text[at : at + 1] != ",":
            _wrong(name, at, "a comma or the end of the object must follow")
        at = _skip(text, at + 1)


def _name(text: str, at: int) -> tuple[str, int]:
    """The name at `at`, and where its value begins."""
    if text[at : at + 1] != '"':
        _wrong("", at, "a name in double quotes must begin here")
    try:
        name, at = scanstring(text, at + 1, True)
    except json.JSONDecodeError as error:
        _wrong("", error.pos, error.msg)
    if _SURROGATE.search(name):
        _wrong("", at, "a name must not have half of a surrogate pair")
    at = _skip(text, at)
    if text[at : at + 1] != ":":
        _wrong(name, at, "a colon must follow")
    return name, _skip(text, at + 1)


def _value(text: str, at: int, field: str) -> tuple[Written, int]:
    """The value at `at`, and where it ends."""
    try:
        value, end = _scan(text, at)
        written = Written(value, text[at:end])
        _check(written)
    except StopIteration as error:
        _wrong(field, error.value, "a value must begin here")
    except json.JSONDecodeError as error:
        _wrong(field, error.pos, error.msg)
    except _Refused as error:
        raise InvalidArgument(field, str(error)) from None
    except RecursionError:
        raise InvalidArgument(field, f"must be at most {DEPTH_MAX} levels deep") from None
    return written, end


def _check(written: Written) -> None:
    level = _containers([written.value])
    for _ in range(DEPTH_MAX):
        if not level:
            break
        level = [child for parent in level for child in _containers(parent)]
    if level:
        raise _Refused(f"must be at most {DEPTH_MAX} levels deep")
    if _ESCAPED_SURROGATE.search(written.text):
        try:
            json.dumps(written.value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise _Refused("must not have half of a surrogate pair") from None


def _containers(parent: Any) -> list[Any]:
    """The lists and objects right within one."""
    children = parent.values() if isinstance(parent, dict) else parent
    return [child for child in children if isinstance(child, (dict, list))]


def _skip(text: str, at: int) -> int:
    """Where the white space from `at` on ends."""
    matched = _SPACE.match(text, at)
    assert matched is not None
    return matched.end()


def _wrong(field: str, at: int, what: str) -> NoReturn:
    raise InvalidArgument(field, f"the body is not valid JSON at character {at}: {what}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Refused(f"must not have the same name twice, has {json.dumps(twice)}")
    return found


def _no_constant(name: str) -> NoReturn:
    raise _Refused(f"must not be {name}, which is not JSON")


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= WHOLE_DIGITS_MAX else float(digits)


_decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_whole)
_scan = make_scanner(_decoder)  # type: ignore[arg-type]
