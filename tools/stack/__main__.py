"""The commands: python -m tools.stack --help."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from .errors import StackError
from .guard import watch
from .layout import Layout
from .stack import DEFAULT_FOLDER, Stack
from .use import NAMED, any_stack

COMMANDS = """\
commands:
  up                 start what does not run; prints the settings file that reaches the servers
  down               stop what runs; the data stays
  wipe               stop what runs and remove the data
  status             what runs; exits 0 only if all three answer
  restart SERVER     stop and start cassandra, kafka, zookeeper or one of several, such as cassandra-2
  jars               only fetch the jars
  run COMMAND ...    run a command with BUCKETSCHED_CONFIG naming the running servers, or own ones for that long
"""


def say(line: str) -> None:
    """Progress goes to stderr at once."""
    print(line, file=sys.stderr, flush=True)


def up(stack: Stack, _: list[str]) -> int:
    """Starts all; the settings file's path goes to stdout."""
    stack.up()
    print(stack.settings)
    return 0


def down(stack: Stack, _: list[str]) -> int:
    """Stops all."""
    if not stack.running():
        say("nothing runs")
    stack.down()
    return 0


def wipe(stack: Stack, _: list[str]) -> int:
    """Stops all and removes their data."""
    stack.wipe()
    return 0


def status(stack: Stack, _: list[str]) -> int:
    """Says what runs; exits 0 only if all answer."""
    for server in stack.servers:
        process = server.process
        state = "down" if not process else "answers" if server.answers() else "does not answer"
        print(f"{server.name:10} {state:16}" + (f" {server.address:16} pid {process.pid}" if process else ""))
    return 0 if stack.healthy() else 1


def restart(stack: Stack, names: list[str]) -> int:
    """Stops and starts the named ones."""
    for server in [stack.server(name) for name in names]:
        server.restart()
        say(f"{server.name}: answers on {server.address}")
    return 0


def jars(stack: Stack, _: list[str]) -> int:
    """Fetches the jars."""
    for server in stack.known:
        server.jars.of(server.kind)
    return 0


def run(_: Stack, command: list[str]) -> int:
    """Runs a command with servers; its exit code. Whoever asks this process to end asks the command."""
    if not command:
        raise StackError("run needs a command")
    with any_stack(say) as servers:
        named = {NAMED: str(servers.settings), "BUCKETSCHED_CONFIG": str(servers.settings)}
        child = subprocess.Popen(command, env={**os.environ, **named})
        signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
        while True:
            try:
                code = child.wait()
                return code if code >= 0 else 128 - code  # as a shell says it of a signal
            except KeyboardInterrupt:  # the terminal has told the child as well
                continue


def guard(stack: Stack, _: list[str]) -> int:
    """Not for people: see tools/stack/guard.py."""
    watch(stack)
    return 0


WORK = {f.__name__: f for f in (up, down, wipe, status, restart, jars, run, guard)}


def main() -> int:
    """Exit code 1: could not be done, the reason is printed."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.stack",
        description="Cassandra, Kafka and ZooKeeper on loopback ports of this machine.",
        epilog=COMMANDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dir", type=Path, default=DEFAULT_FOLDER, help="where their files are (default: .stack)")
    parser.add_argument("--cassandra-nodes", type=int, default=1, metavar="N", help="default: 1; more need Linux")
    parser.add_argument("--kafka-brokers", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument("--fronted", action="store_true", help="servers name the addresses of proxies to clients")
    parser.add_argument("command", choices=WORK, metavar="COMMAND")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...")
    given = parser.parse_args()
    try:
        layout = Layout(given.cassandra_nodes, given.kafka_brokers, given.fronted)
        return WORK[given.command](Stack(given.dir, say, layout), given.rest)
    except StackError as error:
        say(f"stack: {error}")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
