"""The command line: what it prints, and how it ends."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import click
import pytest
from delivery_world import DeliveryWorld, KeptOutcomes, Names
from fake_server import FakeServer

import bucketsched
from bucketsched import app
from bucketsched.adapters.system_clock import SystemClock
from bucketsched.api.worker import WorkerServicer
from bucketsched.cli import connection, main
from bucketsched.cli.parameters import INSTANT, LENGTH
from bucketsched.core.cluster import ClusterConstants
from bucketsched.delivery.hub import WorkerHub
from bucketsched.stubs.v1 import task_pb2


class Background:
    """A server in an event loop of its own, as commands run theirs."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.server = FakeServer()
        self.world = DeliveryWorld()
        self.thread = threading.Thread(target=self.loop.run_forever)

    def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def awaited() -> Any:
            return await work()

        return asyncio.run_coroutine_threadsafe(awaited(), self.loop).result(20)

    async def start(self) -> None:
        self.hub = WorkerHub(self.world.deliveries, KeptOutcomes(), SystemClock())
        servicer = WorkerServicer(self.hub, Names(), lambda: [self.server.address])
        self.server.more_services = [servicer.service()]
        await self.server.start()

    async def stop(self) -> None:
        await self.hub.drain(0)
        await self.server.stop()

    async def dispatch(self, count: int) -> None:
        self.world.dispatch(count, due_ms=SystemClock().now_ms())


@pytest.fixture
def background(monkeypatch: pytest.MonkeyPatch) -> Iterator[Background]:
    background = Background()
    background.thread.start()
    background.run(background.start)
    monkeypatch.setenv("BUCKETSCHED_ADDRESS", background.server.address)
    yield background
    background.run(background.stop)
    background.loop.call_soon_threadsafe(background.loop.stop)
    background.thread.join(10)


Outcome = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Outcome:
    """Runs a command: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        out, err = capfd.readouterr()
        return code, out, err

    return run


# ---------------------------------------------------------------- tasks


def test_create_get_and_cancel_in_json(background: Background, cli: Outcome) -> None:
    code, out, err = cli("--output", "json", "task", "create", "--type", "t", "--payload", "hé", "--delay", "1h",
                         "--queue", "mails", "--priority", "high", "--metadata", "a=b=c",
                         "--metadata", "x=")  # fmt: skip
    assert (code, err) == (0, "")
    created = json.loads(out)
    assert created["state"] == "PENDING"
    (item,) = background.server.tasks.values()
    assert (item.queue, item.payload, dict(item.metadata)) == ("mails", "hé".encode(), {"a": "b=c", "x": ""})
    assert item.priority == task_pb2.PRIORITY_HIGH
    due = datetime.fromisoformat(created["due"])
    assert timedelta(minutes=59) < due - datetime.now(UTC) < timedelta(minutes=61)

    code, out, _ = cli("task", "get", created["task_id"], "--output", "json")
    shown = json.loads(out)
    assert (code, shown["payload"], shown["due"], shown["cancelled"]) == (0, "hé", created["due"], None)

    code, out, _ = cli("--output", "json", "task", "cancel", created["task_id"])
    assert (code, json.loads(out)["outcome"]) == (4, "ALREADY_DISPATCHED")
    background.server.cancel_outcome = task_pb2.CANCEL_OUTCOME_CANCELLED
    code, out, _ = cli("--output", "json", "task", "cancel", created["task_id"])
    assert (code, json.loads(out)["outcome"]) == (0, "CANCELLED")


def test_tables_are_plain_in_pipes(background: Background, cli: Outcome) -> None:
    code, out, _ = cli("task", "create", "--type", "t", "--payload", "[bold]not markup[/bold]")
    assert code == 0
    assert "\x1b" not in out
    (task_id,) = background.server.tasks
    assert f"task id  {task_id}" in out
    _, out, _ = cli("task", "get", task_id)
    assert "[bold]not markup[/bold]" in out


def test_payloads_come_from_files_and_standard_input(
    background: Background, cli: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p").write_bytes(b"\xff\x00")
    assert cli("task", "create", "--type", "t", "--payload-file", str(tmp_path / "p"))[0] == 0
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"piped\n")))
    assert cli("task", "create", "--type", "t", "--payload-file", "-")[0] == 0
    first, second = background.server.tasks.values()
    assert (first.payload, second.payload) == (b"\xff\x00", b"piped\n")
    _, out, _ = cli("--output", "json", "task", "get", first.task_id)
    assert json.loads(out)["payload_base64"] == "/wA="


def test_due_and_task_id(background: Background, cli: Outcome) -> None:
    code, out, _ = cli("--output", "json", "task", "create", "--type", "t", "--due", "2026-12-24T18:00:00.0001+01:00")
    assert (code, json.loads(out)["due"]) == (0, "2026-12-24T17:00:00.001Z")
    again = cli("--output", "json", "task", "create", "--type", "t", "--task-id", json.loads(out)["task_id"])
    assert json.loads(again[1]) == json.loads(out)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--delay=-5s",),
        ("--delay", "soon"),
        ("--delay", "nan"),
        ("--delay", "999999999999w"),
        ("--delay", "401d"),
        ("--due", "2026-12-24T18:00:00"),
        ("--due", "2026-13-24T18:00:00Z"),
        ("--due", "9999-12-31T23:59:59Z"),
        ("--delay", "1s", "--due", "2026-12-24T18:00:00Z"),
        ("--payload", "a", "--payload-file", "-"),
        ("--payload-file", "/does/not/exist"),
        ("--metadata", "no-value"),
        ("--metadata", "a=1", "--metadata", "a=2"),
        ("--priority", "urgent"),
        ("--task-id", "x"),
        ("--timeout", "0"),
        ("--queue", "\udcff"),
    ],
)
def test_wrong_input_ends_with_2(background: Background, cli: Outcome, arguments: tuple[str, ...]) -> None:
    code, out, err = cli("task", "create", "--type", "t", *arguments)
    assert (code, out) == (2, "")
    assert err
    assert "Traceback" not in err
    assert not background.server.batches


def test_what_is_not_there_ends_with_3(background: Background, cli: Outcome) -> None:
    for command in (("task", "get", "missing"), ("task", "cancel", "missing"), ("queue", "get", "nope")):
        code, out, err = cli("--output", "json", *command)
        assert (code, out) == (3, "")
        assert err.startswith("bucketsched: ")
        assert err.count("\n") == 1


def test_a_server_that_is_away_ends_with_5(background: Background, cli: Outcome) -> None:
    background.run(background.server.stop)
    code, out, err = cli("--timeout", "0.2", "task", "get", "x")
    assert (code, out) == (5, "")
    assert err.count("\n") == 1


def test_the_nearest_address_wins(background: Background, cli: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    address = background.server.address
    monkeypatch.setenv("BUCKETSCHED_ADDRESS", "127.0.0.1:1")
    assert cli("--address", address, "queue", "list")[0] == 0
    assert cli("--address", "127.0.0.1:2", "queue", "list", "--address", address)[0] == 0
    assert cli("--timeout", "0.1", "queue", "list")[0] == 5


def test_the_namespace_is_sent(background: Background, cli: Outcome) -> None:
    assert cli("task", "create", "--type", "t", "--namespace", "acme")[0] == 0
    (item,) = background.server.tasks.values()
    assert item.namespace == "acme"


# ---------------------------------------------------------------- queues and workers


def test_queues(background: Background, cli: Outcome) -> None:
    code, out, _ = cli(
        "--output", "json", "queue", "create", "ev", "--kind", "kafka", "--topic", "t", "--partitions", "3"
    )
    assert code == 0
    assert {"name": "ev", "kind": "KAFKA", "topic": "t", "partitions": 3}.items() <= json.loads(out).items()
    assert cli("queue", "create", "ev")[0] == 4
    assert cli("queue", "create", "jobs")[0] == 0
    assert [queue["name"] for queue in json.loads(cli("queue", "list", "--output", "json")[1])["queues"]] == [
        "ev",
        "jobs",
    ]
    code, out, _ = cli("queue", "list")
    assert code == 0
    assert "KAFKA" in out
    assert json.loads(cli("queue", "get", "ev", "--output", "json")[1])["topic"] == "t"


def test_echo_prints_each_task_and_acknowledges_it(background: Background, cli: Outcome) -> None:
    background.run(lambda: background.dispatch(5))
    code, out, _ = cli("worker", "echo", "--queue", "jobs", "--count", "3", "--lease", "5s")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, len(lines)) == (0, 3)
    assert len({line["task_id"] for line in lines}) == 3
    assert {line["payload"] for line in lines} == {"hello"}
    assert all(0 <= line["lateness_ms"] < 60_000 for line in lines)
    code, out, _ = cli("worker", "echo", "--queue", "jobs", "--count", "2")
    rest = [json.loads(line)["task_id"] for line in out.splitlines()]
    assert len({*rest, *(line["task_id"] for line in lines)}) == 5  # none was lost, none came twice
    assert background.world.undelivered == 0


def test_echo_of_a_queue_that_has_no_workers(background: Background, cli: Outcome) -> None:
    assert cli("worker", "echo", "--queue", "nowhere")[0] == 3
    assert cli("worker", "echo", "--queue", "events")[0] == 4
    assert cli("worker", "echo", "--queue", "jobs", "--lease", "0.5s")[0] == 2


# ---------------------------------------------------------------- servers


def test_dev_and_node_are_given_what_was_asked_for(cli: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def run_dev(
        data_dir: str,
        grpc_address: str,
        metrics_address: str,
        reserve: int,
        limit: int,
        ready: Callable[[str, str], None],
        http_address: str | None,
    ) -> int:
        ready("127.0.0.1:7", "127.0.0.1:70")
        seen.append((data_dir, grpc_address, metrics_address, reserve, limit, http_address))
        return 1

    def run_node(settings: Any, ready: Callable[[str, str], None]) -> int:
        ready("127.0.0.1:8", "127.0.0.1:80")
        seen.append(settings)
        return 0

    monkeypatch.setattr(app, "run_dev", run_dev)
    monkeypatch.setattr(app, "run_node", run_node)
    code, out, _ = cli("--output", "json", "dev", "--data-dir", "d", "--grpc-address", "127.0.0.1:0",
                       "--metrics-address", "", "--reserve-mib", "8", "--max-mib", "99")  # fmt: skip
    told = {"address": "127.0.0.1:7", "http_address": "127.0.0.1:70", "data_dir": "d"}
    assert (code, json.loads(out)) == (1, told)
    code, out, _ = cli("node", "--roles", "api, poller", "--set", "node.weight=7", "--set", "kafka.bootstrap=a:1,b:2",
                       "--set", 'cassandra.contact_points=["c:1"]')  # fmt: skip
    assert code == 0
    assert "127.0.0.1:8, REST at http://127.0.0.1:80, as api, poller" in out
    assert seen[0] == ("d", "127.0.0.1:0", "", 8, 99, None)
    settings = seen[1]
    assert (settings.node.roles, settings.node.weight) == (("api", "poller"), 7)
    assert (settings.kafka.bootstrap, settings.cassandra.contact_points) == ("a:1,b:2", ("c:1",))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--set", "poller.x=1"), "poller.x"),
        (("--set", "nowhere.x=1"), "nowhere"),
        (("--set", "node.weight=0"), "node.weight"),
        (("--set", "weight=1"), "SECTION.KEY"),
        (("--roles", "king"), "node.roles"),
        (("--roles", ""), "node.roles"),
        (("--config", "/does/not/exist"), "/does/not/exist"),
    ],
)
def test_wrong_settings_end_with_one_line(cli: Outcome, arguments: tuple[str, ...], named: str) -> None:
    code, out, err = cli("node", *arguments)
    assert (code, out) == (2, "")
    assert named in err.splitlines()[-1]
    assert "Traceback" not in err


def test_migrate_passes_constants_in_milliseconds(cli: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, int] = {}

    def migrate(settings: Any, **constants: int) -> Any:
        given.update(constants)
        made = ClusterConstants(UUID(int=7), **constants)
        return SimpleNamespace(applied=("0001",), constants=made, checkpoints_written=8)

    monkeypatch.setattr(app, "migrate", migrate)
    code, out, _ = cli("--output", "json", "admin", "migrate", "--shards", "16", "--ranges", "8", "--horizon", "30s",
                       "--grace", "PT1M", "--retention", "7d")  # fmt: skip
    assert code == 0
    assert given == {"shards": 16, "ranges": 8, "horizon_ms": 30_000, "grace_ms": 60_000, "retention_ms": 604_800_000}
    assert {"cluster_id": str(UUID(int=7)), "applied": ["0001"], "checkpoints_written": 8}.items() <= json.loads(
        out
    ).items()
    assert cli("admin", "migrate", "--shards", "16", "--ranges", "3")[0] == 2


def test_secrets_are_not_shown(cli: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKETSCHED_CASSANDRA__PASSWORD", "hunter2")
    for output in ("table", "json"):
        code, out, err = cli("--output", output, "config", "show", "--set", "zookeeper.auth=me:hunter2")
        assert code == 0
        assert "hunter2" not in out + err
    assert json.loads(out)["cassandra"]["password"] == "**********"


def test_version(cli: Outcome) -> None:
    assert cli("version") == (0, f"bucketsched {bucketsched.__version__}\n", "")
    assert json.loads(cli("version", "--output", "json")[1]) == {"version": bucketsched.__version__}


# ---------------------------------------------------------------- the frame


def test_every_command_has_help(cli: Outcome) -> None:
    from bucketsched.cli.root import root

    def walk(command: click.Command, path: tuple[str, ...]) -> None:
        code, out, _ = cli(*path, "--help")
        assert code == 0
        assert "Usage" in out
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                walk(inner, (*path, name))

    walk(root, ())
    assert "Exit codes: 0 done" in cli("--help")[1]


def test_wrong_usage_ends_with_2(cli: Outcome) -> None:
    for arguments in (("nothing",), ("task", "create"), ("--output", "xml", "version"), ("task", "get")):
        code, out, err = cli(*arguments)
        assert (code, out) == (2, "")
        assert err


def run_module(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, **more)


def test_starting_is_cheap() -> None:
    code = (
        "import sys; from bucketsched.cli import main; main(['version']); "
        "print([m for m in ('grpc', 'pydantic', 'rich', 'cassandra', 'aiokafka') if m in sys.modules])"
    )
    assert run_module("-c", code).stdout.splitlines()[-1] == "[]"
    code = code.replace("['version']", "['dev', '--help']")
    assert run_module("-c", code).stdout.splitlines()[-1] == "[]"


def test_the_module_runs_and_ends_with_the_code() -> None:
    done = run_module("-m", "bucketsched", "--timeout", "0.1", "--address", "127.0.0.1:1", "task", "get", "x")
    assert done.returncode == 5
    assert done.stderr.count("\n") == 1


def test_a_command_that_waits_for_its_server_says_so(cli: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PATIENCE_S", 0.05)
    code, out, err = cli("--timeout", "0.5", "--address", "127.0.0.1:1", "task", "get", "x")
    waiting, failed = err.splitlines()
    assert (code, out) == (5, "")
    assert "127.0.0.1:1" in waiting
    assert "0.5 s" in waiting
    assert "UNAVAILABLE" in failed


def test_an_address_is_no_url(cli: Outcome) -> None:
    code, _, err = cli("--address", "http://127.0.0.1:7400", "task", "get", "x")
    assert code == 2
    assert "must be host:port" in err


@pytest.mark.parametrize("command", [["dev"], ["node"], ["config", "show"], ["version"], ["admin", "migrate"]])
def test_a_command_that_calls_no_server_takes_no_address(cli: Outcome, command: list[str]) -> None:
    code, _, err = cli(*command, "--address", "127.0.0.1:1")
    assert code == 2
    assert "--address" in err


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_reader_that_has_seen_enough_gets_no_complaint(output: str) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "bucketsched", "config", "show", "--output", output]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


def test_colours_are_for_terminals_that_want_them(background: Background) -> None:
    code = "import sys; sys.stdout.isatty = lambda: True; from bucketsched.cli import main; main(['queue', 'list'])"
    coloured = run_module("-c", code, env={**os.environ, "TERM": "xterm-256color", "FORCE_COLOR": "1", "NO_COLOR": ""})
    plain = run_module("-c", code, env={**os.environ, "TERM": "xterm-256color", "NO_COLOR": "1"})
    assert "\x1b[" in coloured.stdout
    assert "\x1b[3" not in plain.stdout  # no colour; bold is none


def test_shell_completion() -> None:
    done = run_module("-m", "bucketsched", env={**os.environ, "_BUCKETSCHED_COMPLETE": "bash_source"})
    assert "_bucketsched_completion" in done.stdout


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("5s", timedelta(seconds=5)),
        ("5", timedelta(seconds=5)),
        ("0", timedelta()),
        ("1h30m", timedelta(minutes=90)),
        ("250ms", timedelta(milliseconds=250)),
        ("1.5h", timedelta(minutes=90)),
        ("2d", timedelta(days=2)),
        ("1w", timedelta(weeks=1)),
        ("PT5S", timedelta(seconds=5)),
        ("P1DT2H3M4.5S", timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
        ("0.0000001s", timedelta(microseconds=1)),
    ],
)
def test_lengths(text: str, length: timedelta) -> None:
    assert LENGTH.convert(text, None, None) == length


@pytest.mark.parametrize("text", ["", "s", "-1s", "1x", "1 h", "P", "PT", "1e5", "inf", "1s2", "P1Y", "9" * 19])
def test_what_is_no_length(text: str) -> None:
    with pytest.raises(click.BadParameter):
        LENGTH.convert(text, None, None)


def test_instants() -> None:
    assert INSTANT.convert("2026-01-02T03:04:05.123456789Z", None, None) == datetime(
        2026, 1, 2, 3, 4, 5, 123_457, tzinfo=UTC
    )
    assert INSTANT.convert("2026-01-02 03:04+02:00", None, None) == datetime(2026, 1, 2, 1, 4, tzinfo=UTC)
    for text in ("2026-01-02", "2026-01-02T03:04:05", "now", "20260102T030405Z", "2026-01-02T25:00:00Z"):
        with pytest.raises(click.BadParameter):
            INSTANT.convert(text, None, None)
