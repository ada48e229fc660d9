"""Puts a `History` together from the files of a run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .history import Event, read
from .model import (
    Body,
    Change,
    Delivery,
    Dispatch,
    EntryKind,
    Fact,
    History,
    Message,
    Op,
    Outcome,
    Request,
    Row,
    Section,
    Span,
    Version,
)

LOAD, MESSAGES, DELIVERIES, FAULTS, END = (
    "load.jsonl",
    "messages.jsonl",
    "deliveries.jsonl",
    "faults.jsonl",
    "end.jsonl",
)


def requests_of(events: Iterable[Event]) -> list[Request]:
    """Those of a load, answered or not."""
    found: dict[int, Request] = {}
    for event in events:
        if event["e"] == "start":
            found[event["n"]] = Request(
                Op(event["op"]),
                event["id"],
                event["t"],
                queue=event.get("queue", ""),
                body=Body(*event["body"]) if "body" in event else None,
                key=event.get("key", ""),
                delay_ms=event.get("delay"),
                change=Change(*event["change"]) if "change" in event else None,
            )
        elif event["e"] == "end":
            request = found[event["n"]]
            request.end_ms, request.outcome = event["t"], Outcome(event["outcome"])
            request.task_id = event.get("id", request.task_id)
            request.due_ms = event.get("due", 0)
            if "version" in event:
                generation, body = event["version"]
                request.version = Version(generation, Body(*body))
    return list(found.values())


def message_of(event: Event) -> Message:
    topic, partition, offset = event["place"]
    dispatch = Dispatch(*event["dispatch"])
    return Message(topic, partition, offset, dispatch, Body(*event["body"]), event["append"], event.get("seen"))


def messages_of(seen: Iterable[Event], read_later: Iterable[Event]) -> list[Message]:
    """Those that were seen during the run, and those that only the reading at its end has found."""
    found = {tuple(event["place"]): message_of(event) for event in seen}
    for event in read_later:
        found.setdefault(tuple(event["place"]), message_of(event))
    return list(found.values())


def section_event(section: Section) -> Event:
    """As it is written down."""
    facts = [[fact.kind, list(fact.dispatch), *fact[2:]] for fact in section.facts]
    place = [section.partition, section.offset, section.append_ms, section.range_id, section.epoch]
    return {"e": "section", "place": place, "facts": facts, "closed": list(section.closed)}


def section_of(event: Event) -> Section:
    """Reverse of `section_event`."""
    facts = tuple(
        Fact(EntryKind(kind), Dispatch(*dispatch), due_ms, Body(*body) if body else None, next_due_ms)
        for kind, dispatch, due_ms, body, next_due_ms in event["facts"]
    )
    partition, offset, append_ms, range_id, epoch = event["place"]
    return Section(partition, offset, append_ms, range_id, epoch, facts, tuple(event["closed"]))


def row_event(row: Row) -> Event:
    """As it is written down."""
    place = [row.range_id, row.bucket, list(row.dispatch), row.has_body]
    return {"e": "row", "place": place, "facts": sorted(row.facts)}


def row_of(event: Event) -> Row:
    """Reverse of `row_event`."""
    range_id, bucket, dispatch, has_body = event["place"]
    return Row(range_id, bucket, Dispatch(*dispatch), has_body, frozenset(EntryKind(kind) for kind in event["facts"]))


def assemble(folder: Path, worker_queues: frozenset[str]) -> History:
    """The history that a run has left in its folder."""
    end = read(folder / END)
    spans = [event for event in read(folder / FAULTS) if event["e"] == "fault" and not event.get("problem")]
    return History(
        requests=requests_of(read(folder / LOAD)),
        messages=messages_of(read(folder / MESSAGES), (event for event in end if event["e"] == "message")),
        deliveries=[
            Delivery(Dispatch(*event["dispatch"]), Body(*event["body"]), event["began"])
            for event in read(folder / DELIVERIES)
        ],
        journal=[section_of(event) for event in end if event["e"] == "section"],
        rows=[row_of(event) for event in end if event["e"] == "row"],
        faults=[Span(event["kind"], event["target"], event["begin"], event["end"]) for event in spans],
        worker_queues=worker_queues,
        differences=[(event["id"], event["text"]) for event in end if event["e"] == "difference"],
    )
