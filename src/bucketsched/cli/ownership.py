"""`bucketsched admin ranges`, `lanes`, `nodes`, `drain`, `cordon` and `rebalance`: who owns what, and who shall."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..core.rebalancing import AT_ONCE_DEFAULT, AT_ONCE_MAX, expected_pause_ms
from .connection import Connection, output_options
from .exit_code import ExitCode
from .output import show, show_all
from .settings import settings_options

if TYPE_CHECKING:
    from ..app.ownership import Ownership
    from ..coordinator.administration import NodeStatus, Picture
    from ..core.assignment import Move
    from ..ports import RangeReport

Result = TypeVar("Result")
Load = Callable[..., Any]

RANGE_COLUMNS = ("range", "shards", "node", "lane", "held", "epoch", "released", "unfenced", "planned_lane", "rows")
LANE_COLUMNS = ("lane", "node", "held", "planned", "share", "coming", "going", "weight", "zone", "state")
NODE_COLUMNS = (
    "node", "state", "roles", "lane", "held", "planned", "zone", "weight", "internal_address", "worker_address",
    "member",
)  # fmt: skip
MOVE_COLUMNS = ("range", "from_lane", "from_node", "to_lane", "to_node", "rows", "expected_pause_ms")


def _say(line: str) -> None:
    click.echo(line, err=True)


def _in_ownership(load: Load, work: Callable[[Ownership], Awaitable[Result]]) -> Result:
    from .. import app

    return app.in_ownership(load(), work, _say)


# ---------------------------------------------------------------- what there is


@click.command()
@settings_options
@output_options
def ranges(connection: Connection, load: Load) -> None:
    """Show every range: its shards, who has it, and who shall have it. `rows`: tasks of it in its owner's memory."""

    async def look(ownership: Ownership) -> list[dict[str, Any]]:
        picture = await ownership.administration.look()
        reports = await ownership.reports(picture)
        return [_range(ownership, picture, reports, at) for at in range(len(picture.ranges))]

    show_all(connection, "ranges", RANGE_COLUMNS, _in_ownership(load, look))


def _range(ownership: Ownership, picture: Picture, reports: Mapping[int, RangeReport], at: int) -> dict[str, Any]:
    status = picture.ranges[at]
    owner, report = picture.lanes.get(status.lane) if status.held else None, reports.get(at)
    shards = ownership.constants.shards_of(at) if ownership.shards_known else []
    return {
        "range": at,
        "shards": f"{shards[0]}-{shards[-1]}" if shards else None,
        "node": owner.node if owner else None,
        "lane": status.lane if status.lane >= 0 else None,
        "held": status.held,
        "epoch": status.epoch,
        "released": status.released,
        "unfenced": list(status.predecessors),
        "planned_lane": picture.plan.assignment.get(at),
        "rows": report.rows if report else None,
        "phase": report.phase if report else None,
    }


@click.command()
@settings_options
@output_options
def lanes(connection: Connection, load: Load) -> None:
    """Show every lane that is taken: its ranges, its fair share, and what is to come and to go."""

    async def look(ownership: Ownership) -> list[dict[str, Any]]:
        picture = await ownership.administration.look()
        coming, going = _on_the_way(picture)
        statuses = [s for s in picture.nodes() if s.member is not None and s.member.lane >= 0]
        return sorted((_lane(s, coming, going) for s in statuses), key=lambda row: int(row["lane"]))

    show_all(connection, "lanes", LANE_COLUMNS, _in_ownership(load, look))


def _on_the_way(picture: Picture) -> tuple[Counter[int], Counter[int]]:
    """How many ranges each lane is still to get, and to give up."""
    moves = [(picture.held.get(r), lane) for r, lane in picture.plan.assignment.items()]
    going = Counter(source for source, target in moves if source is not None and source != target)
    return Counter(target for source, target in moves if source != target), going


def _lane(status: NodeStatus, coming: Counter[int], going: Counter[int]) -> dict[str, Any]:
    assert status.member is not None
    member = status.member
    return {
        "lane": member.lane,
        "node": status.name,
        "held": status.held,
        "planned": status.planned,
        "share": round(status.share, 1),
        "coming": coming[member.lane],
        "going": going[member.lane],
        "weight": member.weight,
        "zone": member.zone,
        "state": status.state,
    }


@click.command()
@settings_options
@output_options
def nodes(connection: Connection, load: Load) -> None:
    """Show every process of the cluster, and the nodes that have orders and are not there."""

    async def look(ownership: Ownership) -> list[dict[str, Any]]:
        return [_node(status) for status in (await ownership.administration.look()).nodes()]

    show_all(connection, "nodes", NODE_COLUMNS, _in_ownership(load, look))


def _node(status: NodeStatus) -> dict[str, Any]:
    member = status.member
    return {
        "node": status.name,
        "state": status.state,
        "cordoned": status.order.cordoned,
        "drained": status.order.drained,
        "roles": list(member.roles) if member else [],
        "lane": member.lane if member and member.lane >= 0 else None,
        "held": status.held,
        "planned": status.planned,
        "zone": member.zone if member else None,
        "weight": member.weight if member else None,
        "internal_address": member.internal_address if member else None,
        "worker_address": member.worker_address if member else None,
        "member": member.member_id if member else None,
    }


# ---------------------------------------------------------------- orders for a node


@click.command()
@click.argument("node")
@click.option("--undo", is_flag=True, help="Take the order back.")
@settings_options
@output_options
def cordon(connection: Connection, load: Load, node: str, undo: bool) -> None:
    """Give nothing new to NODE (its name, member id or lane): it keeps the ranges that it has. Holds until undone."""
    status = _in_ownership(load, lambda ownership: ownership.administration.cordon(node, undo))
    show(connection, _node(status))


@click.command()
@click.argument("node")
@click.option("--undo", is_flag=True, help="Take the order back: the node gets its share again.")
@click.option("--wait", is_flag=True, help="Until it has no range any more. Ctrl-C ends the waiting, not the order.")
@settings_options
@output_options
def drain(connection: Connection, load: Load, node: str, undo: bool, wait: bool) -> None:
    """Move all ranges of NODE (its name, member id or lane) to others, and give it nothing. Holds until undone."""

    async def work(ownership: Ownership) -> NodeStatus:
        status = await ownership.administration.drain(node, undo)
        if wait and not undo:
            await ownership.until_drained(status.name, _say)
            found = [s for s in (await ownership.administration.look()).nodes() if s.name == status.name]
            return found[0] if found else status
        return status

    show(connection, _node(_in_ownership(load, work)))


# ---------------------------------------------------------------- rebalance


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be moved.")
@click.option("--wait", is_flag=True, help="Until all is moved. Ctrl-C cancels the rebalance.")
@click.option("--max-moves", type=click.IntRange(1), metavar="N", help="No more than so many ranges [all].")
@click.option(
    "--at-once",
    type=click.IntRange(1, AT_ONCE_MAX),
    default=AT_ONCE_DEFAULT,
    show_default=True,
    metavar="N",
    help="So many ranges may be on the way at the same time.",
)
@click.option("--cancel", is_flag=True, help="Begin no more moves of the one that runs; its plan stays sound.")
@settings_options
@output_options
def rebalance(
    connection: Connection,
    load: Load,
    dry_run: bool,
    wait: bool,
    max_moves: int | None,
    at_once: int,
    cancel: bool,
) -> int:
    """Move ranges until every lane has its share by weight and zone. Small imbalances are otherwise left alone.

    Shows the moves with what each costs: `rows` in memory that the new owner loads before, and for how long dispatch of
    the range is expected to pause. The same command again joins a rebalance that runs. Exit code 4: it was cancelled,
    or some moves were skipped or failed.
    """
    if cancel and (dry_run or wait or max_moves):
        raise click.UsageError("--cancel goes with no other option")
    if cancel:
        return _cancel(connection, load)

    async def work(ownership: Ownership) -> dict[str, Any]:
        return await _rebalance(connection, ownership, dry_run, wait, max_moves, at_once)

    result = _in_ownership(load, work)
    show(connection, result) if connection.output == "json" else _say(_summary(result))
    complete = (
        result["state"] in ("balanced", "proposed", "running", "done") and not result["skipped"] + result["failed"]
    )
    return ExitCode.OK if complete else ExitCode.CONFLICT


async def _rebalance(
    connection: Connection, ownership: Ownership, dry_run: bool, wait: bool, max_moves: int | None, at_once: int
) -> dict[str, Any]:
    picture = await ownership.administration.look()
    running = picture.running()
    moves = list(running.moves) if running else await ownership.administration.propose(max_moves)
    rows = _moves(picture, await ownership.reports(picture), moves, running.at_once if running else at_once)
    result: dict[str, Any] = {"rebalance": running.rebalance_id if running else None, "moves": rows}
    result |= {"state": "running" if running else "proposed" if moves else "balanced"}
    result |= {"done": 0, "moving": 0, "waiting": len(moves), "skipped": 0, "failed": 0}
    if connection.output == "table" and moves:
        show_all(connection, "moves", MOVE_COLUMNS, rows)
    if dry_run or not moves:
        return result
    ordered = await ownership.administration.begin(moves, at_once)
    result |= {"rebalance": ordered.rebalance_id, "state": ordered.state.value}
    if not wait:
        return result
    state, found = await ownership.until_rebalanced(ordered, _say)
    counts = {name: len(getattr(found, name)) for name in ("done", "moving", "waiting", "skipped", "failed")}
    return result | counts | {"state": state.value}


def _moves(
    picture: Picture, reports: Mapping[int, RangeReport], moves: Sequence[Move], at_once: int
) -> list[dict[str, Any]]:
    names = {lane: member.node for lane, member in picture.lanes.items()}
    pause_ms = expected_pause_ms(min(at_once, len(moves)))
    return [
        {
            "range": move.range_id,
            "from_lane": move.source,
            "from_node": names.get(move.source),
            "to_lane": move.target,
            "to_node": names.get(move.target),
            "rows": reports[move.range_id].rows if move.range_id in reports else None,
            "expected_pause_ms": pause_ms,
        }
        for move in moves
    ]


def _cancel(connection: Connection, load: Load) -> int:
    cancelled = _in_ownership(load, lambda ownership: ownership.administration.cancel())
    if cancelled is None:
        _say("no rebalance is running")
    show(connection, {"cancelled": cancelled.rebalance_id if cancelled else None})
    sys.stdout.flush()
    return ExitCode.OK


def _summary(result: Mapping[str, Any]) -> str:
    moves = len(result["moves"])
    return {
        "balanced": "every lane has its share: nothing to move",
        "proposed": f"{moves} moves; nothing was changed",
        "running": f"rebalance {result['rebalance']} is running: {moves} moves",
        "done": f"rebalance {result['rebalance']}: {result['done']} of {moves} moved, {result['skipped']} skipped, "
        f"{result['failed']} failed",
        "cancelled": f"rebalance {result['rebalance']} was cancelled: {result['done']} of {moves} moved",
    }[result["state"]]
