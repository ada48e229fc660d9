"""Every case from the field is tried by a test that exists, or says why it can't be yet."""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASES: list[dict[str, Any]] = [
    json.loads(line) for line in (ROOT / "tests" / "cases" / "field_reports.jsonl").read_text().splitlines()
]
CASES_MIN = 44


@cache
def names_in(path: str) -> set[str]:
    """The names of a file's tests."""
    tree = ast.parse((ROOT / path).read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({case["id"] for case in CASES}) == len(CASES) >= CASES_MIN


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["id"]))
def test_a_case_is_tried_or_says_why_not(case: dict[str, Any]) -> None:
    assert case["source"]
    assert case["situation"]
    assert ("tests" in case) != ("later" in case)
    if "later" in case:
        assert case["later"]
        return
    assert case["expected"]
    assert case["tests"]
    for test in case["tests"]:
        path, _, name = test.partition("::")
        assert name in names_in(path), f"there is no {test}"


def test_what_is_tried_here_belongs_to_a_case() -> None:
    path = "tests/unit/test_field_reports.py"
    named = {test.partition("::")[2] for case in CASES for test in case.get("tests", []) if test.startswith(path)}
    assert named == names_in(path)
