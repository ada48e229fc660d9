"""The servers' starter, without servers: whom it signals, which ports it takes, what is left when a run is killed."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tools.stack import ROOT, Addresses, Stack, StackError
from tools.stack.ports import HIGH, LOW, choose, free_port, is_free
from tools.stack.process import Process, saved, spawn

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]
DEAF = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)",
]


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Process]:
    process = spawn(SLEEPER, tmp_path / "log" / "out", tmp_path)
    yield process
    process.signal(signal.SIGKILL)
    assert process.wait_gone(10)


def test_a_process_ends_when_asked(sleeper: Process) -> None:
    assert sleeper.alive
    sleeper.end(polite_s=10)
    assert not sleeper.alive


def test_a_paused_process_ends_when_asked(sleeper: Process) -> None:
    sleeper.signal(signal.SIGSTOP)
    sleeper.end(polite_s=10)
    assert not sleeper.alive


def test_a_deaf_process_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = spawn(DEAF, log, tmp_path)
    while "deaf" not in log.read_text():
        assert process.alive
    process.end(polite_s=0.2)
    assert not process.alive


def test_another_process_with_the_same_pid_is_left_alone(sleeper: Process) -> None:
    other = replace(sleeper, born="some other time")
    assert not other.alive
    other.end(polite_s=0)
    other.signal(signal.SIGKILL)
    assert sleeper.alive


def test_a_process_is_found_again_from_its_file(sleeper: Process, tmp_path: Path) -> None:
    sleeper.save(tmp_path / "process.json")
    assert saved(tmp_path / "process.json") == sleeper
    (tmp_path / "process.json").write_text("{")
    assert saved(tmp_path / "process.json") is None
    assert saved(tmp_path / "none.json") is None


def test_a_port_for_a_server_is_none_that_the_kernel_gives_to_outgoing_connections() -> None:
    low, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert all(is_free(port) and LOW <= port < min(HIGH, low) for port in (free_port() for _ in range(50)))


def test_ports_are_kept_where_they_are_free() -> None:
    first = choose(["a", "b"], {}, taken=set())
    assert len(set(first.values())) == 2
    assert all(LOW <= port < HIGH for port in first.values())
    assert choose(["a", "b"], first, taken=set()) == first


def test_a_port_that_is_in_use_is_replaced() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert not is_free(port)
        assert choose(["a"], {"a": port}, taken=set())["a"] != port


def test_a_port_that_was_promised_is_not_given_again() -> None:
    port = choose(["a"], {}, taken=set())["a"]
    assert choose(["b"], {"b": port}, taken={port})["b"] != port


def test_the_servers_end_when_their_starter_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    stack = Stack(folder)
    server = spawn(SLEEPER, stack.kafka.log, tmp_path)
    server.save(stack.kafka.folder / "process.json")
    starter = subprocess.Popen(
        [sys.executable, "-c",
         "import sys, time\nfrom pathlib import Path\nfrom tools.stack.guard import Guard\n"
         "guard = Guard(Path(sys.argv[1]))\nprint('guarded', flush=True)\ntime.sleep(60)", str(folder)],
        cwd=ROOT, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert starter.stdout is not None
    assert starter.stdout.readline() == b"guarded\n"
    assert server.alive
    starter.kill()
    starter.wait(10)
    starter.stdout.close()
    assert server.wait_gone(30)


def test_settings_that_do_not_tell_are_refused(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    with pytest.raises(StackError, match=r"settings\.toml"):
        Addresses.read(settings)
    settings.write_text('[kafka]\nbootstrap = "127.0.0.1:1"\n')
    with pytest.raises(StackError, match="cassandra"):
        Addresses.read(settings)


def test_a_stack_that_never_ran_is_down(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "none")
    assert not stack.healthy()
    stack.down()
    assert not stack.folder.exists()
    with pytest.raises(StackError, match="no server 'redis'"):
        stack.server("redis")


def test_missing_tools_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    stack = Stack(tmp_path / "none")
    stack.cassandra.jars = replace(stack.cassandra.jars, folder=tmp_path / "jars")
    with pytest.raises(StackError, match=r"no Java .*apt-get install openjdk-17"):
        stack.cassandra.start()
    with pytest.raises(StackError, match=r"no Maven .*apt-get install .*maven"):
        stack.cassandra.class_path()
