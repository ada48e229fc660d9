"""Histories: written whole and in order, read while they grow, put together again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.faults import assembling
from tests.faults.assembling import assemble
from tests.faults.history import Event, HistoryReader, HistoryWriter, read
from tests.faults.model import (
    Body,
    Change,
    Dispatch,
    EntryKind,
    Fact,
    Op,
    Outcome,
    Request,
    Row,
    Section,
    Span,
    Version,
)
from tests.faults.report import summary

BODY = Body("f", "p", "m", "text/plain", 1, 500)
CHANGE = Change(payload="p", expected=0)
ASKED: list[Event] = [
    {"e": "start", "n": 1, "op": "create", "id": "a", "t": 100, "queue": "orders", "body": BODY},
    {"e": "start", "n": 2, "op": "cancel", "id": "a", "t": 110},
    {"e": "end", "n": 1, "outcome": "ok", "t": 120},
    {"e": "start", "n": 3, "op": "create", "id": "", "t": 130, "body": BODY, "key": "k", "delay": 50},
    {"e": "start", "n": 4, "op": "update", "id": "a", "t": 130, "change": CHANGE},
    {"e": "end", "n": 3, "outcome": "ok", "t": 140, "id": "b", "due": 185},
    {"e": "end", "n": 4, "outcome": "updated", "t": 140, "version": [1, BODY]},
]


async def test_what_is_recorded_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "history"
    writer = HistoryWriter(path)
    await asyncio.gather(*(writer.record({"e": "x", "n": number}) for number in range(200)))
    assert sorted(event["n"] for event in read(path)) == list(range(200))
    writer.note({"e": "last"})
    writer.close()
    assert read(path)[-1] == {"e": "last"}


def test_a_reader_goes_on_where_it_was_and_waits_for_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "history"
    reader = HistoryReader(path)
    assert not list(reader.fresh())
    path.write_bytes(b'{"n":1}\n{"n":2}\n{"n"')
    assert [event["n"] for event in reader.fresh()] == [1, 2]
    with path.open("ab") as file:
        file.write(b":3}\n")
    assert [event["n"] for event in reader.fresh()] == [3]


def test_a_run_is_put_together(tmp_path: Path) -> None:
    sent = {
        "e": "message",
        "place": ["orders", 0, 4],
        "dispatch": ["a", 0, 1],
        "body": BODY,
        "append": 510,
    }
    section = Section(
        2,
        9,
        510,
        1,
        7,
        (Fact(EntryKind.DISPATCHED, Dispatch("a", 1, 1), 500), Fact(EntryKind.MOVED, Dispatch("a", 0, 1), 400, BODY)),
        (3,),
    )
    row = Row(1, 3, Dispatch("a", 0, 1), True, frozenset({EntryKind.DISPATCHED}))
    unseen = sent | {"place": ["orders", 0, 5]}
    files: dict[str, list[Event]] = {
        assembling.LOAD: ASKED,
        assembling.MESSAGES: [sent | {"seen": 515}],
        assembling.DELIVERIES: [{"e": "delivery", "dispatch": ["a", 0, 1], "body": BODY, "began": 530}],
        assembling.FAULTS: [
            {"e": "fault", "kind": "kill", "target": "api-1", "begin": 200, "end": 300},
            {
                "e": "fault",
                "kind": "drain",
                "target": "poller-1",
                "begin": 200,
                "end": 300,
                "problem": "no such command",
            },
            {"e": "exit", "process": "api-1", "code": -9, "t": 200},
        ],
        assembling.END: [
            sent,
            unseen,
            {"e": "difference", "id": "a", "text": "lost"},
            assembling.section_event(section),
            assembling.row_event(row),
        ],
    }
    for name, events in files.items():
        writer = HistoryWriter(tmp_path / name)
        for event in events:
            writer.note(event)
        writer.close()
    history = assemble(tmp_path, frozenset({"jobs"}))
    assert history.requests == [
        Request(Op.CREATE, "a", 100, 120, Outcome.OK, "orders", BODY),
        Request(Op.CANCEL, "a", 110),
        Request(Op.CREATE, "b", 130, 140, Outcome.OK, body=BODY, key="k", delay_ms=50, due_ms=185),
        Request(Op.UPDATE, "a", 130, 140, Outcome.UPDATED, change=CHANGE, version=Version(1, BODY)),
    ]
    assert [(message.offset, message.seen_ms) for message in history.messages] == [(4, 515), (5, None)]
    assert history.journal == [section]
    assert history.rows == [row]
    assert history.differences == [("a", "lost")]
    assert history.faults == [Span("kill", "api-1", 200, 300)]
    line = summary(history, [])
    assert (line["ops"], line["faults"], line["lost"], line["max_late_ms"]) == (4, 1, 0, 15)
    assert line["calm_late_ms"] == 0
    assert line["by_fault"] == {"kill": {"count": 1, "worst_late_ms": 15}}
