"""`admin range accept-loss` and `admin fsck` on the command line."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest

from bucketsched import app
from bucketsched.app.recovery import Checked
from bucketsched.cli import main
from bucketsched.cli.recovery import RangeList
from bucketsched.core import task_id as ids
from bucketsched.core.errors import FailedPrecondition
from bucketsched.core.task import RowRef
from bucketsched.recovery.differences import Difference, Kind
from bucketsched.recovery.fsck import Report
from bucketsched.recovery.loss import Finding

NAMESPACE = b"n" * 16
DUE_MS = 1_764_472_099_123
TASK = ids.mint(DUE_MS, 3, 99)
LOST = Difference(Kind.LOST, RowRef(DUE_MS, NAMESPACE, TASK, 0, 1).pack(), 1, "no fact, no record")
FINDING = Finding(7, "its checkpoint ends with record 5", 1, 2, 10, {}, 0, 3, 4, 0, 6)


def patched(monkeypatch: pytest.MonkeyPatch, name: str, answer: object) -> list[tuple[Any, ...]]:
    """Calls of a function of `app` from now on."""
    calls: list[tuple[Any, ...]] = []

    def call(settings: object, *arguments: Any) -> object:
        calls.append(arguments)
        arguments[-1]("some progress")
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(app, name, call)
    return calls


def checked(*differences: Difference, done: str = "") -> Checked:
    report = Report(DUE_MS - 1_000, DUE_MS + 1_000, rows=5, facts=4, buckets=1, differences=list(differences))
    return Checked(report, [done] * len(differences), {NAMESPACE: "shop"})


def test_fsck_says_that_nothing_differs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    calls = patched(monkeypatch, "fsck", checked())
    assert main(["admin", "fsck"]) == 0
    out, err = capsys.readouterr()
    assert "5 rows, 4 facts of the journal, 1 buckets: nothing differs" in out
    assert "some progress" in err
    assert calls[0][:4] == (0, None, None, False)


def test_fsck_names_what_differs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    calls = patched(monkeypatch, "fsck", checked(LOST, done="dispatched by its owner"))
    window = ["--from", "2025-11-30T03:00:00Z", "--to", "2025-11-30T04:00:00Z", "--ranges", "0-2,5"]
    assert main(["admin", "fsck", *window, "--repair", "--output", "json"]) == 1
    out = json.loads(capsys.readouterr().out)
    assert calls[0][:4] == (1_764_471_600_000, 1_764_475_200_000, [0, 1, 2, 5], True)
    assert out["differences"] == [
        {
            "kind": "lost",
            "task_id": ids.text(TASK),
            "namespace": "shop",
            "due": "2025-11-30T03:08:19.123Z",
            "generation": 0,
            "attempt": 1,
            "range": 1,
            "detail": "no fact, no record",
            "done": "dispatched by its owner",
        }
    ]
    assert (out["rows"], out["facts"], out["more"], out["unreadable_records"]) == (5, 4, False, [])


def test_fsck_tells_of_records_that_can_not_be_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = checked()
    answer.report.unreadable.append((2, 17))
    patched(monkeypatch, "fsck", answer)
    assert main(["admin", "fsck"]) == 1
    assert "lane 2, offset 17" in capsys.readouterr().out


def test_fsck_refuses_a_window_that_ends_before_it_begins(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["admin", "fsck", "--from", "2025-11-30T03:00:00Z", "--to", "2025-11-30T03:00:00Z"]) == 2
    assert "--from must be before --to" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "0-999999999", "1,,2"])
def test_ranges_that_are_none(text: str) -> None:
    with pytest.raises(click.BadParameter, match="0-7,12"):
        RangeList().convert(text, None, None)


@pytest.mark.parametrize("yes", [False, True])
def test_a_loss_is_shown_and_accepted_only_if_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], yes: bool
) -> None:
    calls = patched(monkeypatch, "review_losses", [FINDING])
    given = ["--yes"] if yes else []
    assert main(["admin", "range", "accept-loss", "7", *given, "--output", "json"]) == 0
    out, err = capsys.readouterr()
    assert calls[0][:3] == ((7,), None, yes)
    assert json.loads(out)["ranges"] == [
        {
            "range": 7,
            "problem": "its checkpoint ends with record 5",
            "lane": 2,
            "records_left": 3,
            "rows_settled_by_them": 4,
            "unreadable": 0,
            "due_without_a_fact": 6,
            "accepted": yes,
        }
    ]
    assert ("Nothing was changed. To accept: give --yes." in err) is not yes


def test_where_nothing_is_lost_nothing_is_accepted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    patched(monkeypatch, "review_losses", FailedPrecondition("range", "7: its checkpoint matches its journal"))
    assert main(["admin", "range", "accept-loss", "7", "--yes"]) == 4
    assert "matches its journal" in capsys.readouterr().err
