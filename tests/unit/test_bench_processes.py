"""The children of a demo: spoken to, ended, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench import processes
from bench.processes import ROOT, Child, ChildFailed, Children, run, run_once

ECHO = """
import asyncio
from bench.answering import answer
async def work(asked):
    return {"got": asked}
asyncio.run(answer(work))
"""
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('"ready"', flush=True)
time.sleep(600)
"""
FAILING = """
import sys
sys.exit("no such thing")
"""
PARENT = """
import asyncio, sys
from pathlib import Path
from bench.processes import Children, run
async def main():
    async with Children(Path(sys.argv[1])) as children:
        child = await children.start("child", "deaf")
        await child.line(20)
        print(child.pid, flush=True)
        await asyncio.sleep(600)
    return 0
sys.exit(run(main()))
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules that children can be started from."""
    for name, text in {"echo": ECHO, "deaf": DEAF, "failing": FAILING, "parent": PARENT}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def gone_in_time(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


async def test_a_child_answers(programs: Path) -> None:
    async with Children(programs) as children:
        child = await children.start("echo", "echo")
        assert await child.line(20) == "ready"
        assert await child.ask({"n": 1}, 20) == {"got": {"n": 1}}
        assert child.cpu_s() > 0
    assert not alive(child.pid)


async def test_a_child_that_fails_is_quoted(programs: Path) -> None:
    async with Children(programs) as children:
        child = await children.start("failing", "failing")
        with pytest.raises(ChildFailed, match=r"(?s)failing ended with code 1.*no such thing"):
            await child.line(20)


async def test_a_silent_child_is_told_on(programs: Path) -> None:
    async with Children(programs) as children:
        child = await children.start("echo", "echo")
        await child.line(20)
        with pytest.raises(ChildFailed, match="said nothing"):
            await child.line(0.05)


async def test_a_child_that_ignores_sigterm_is_killed(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "POLITE_S", 0.2)
    async with Children(programs) as children:
        child = await children.start("deaf", "deaf")
        await child.line(20)
    assert not alive(child.pid)


async def test_children_end_when_the_block_fails(programs: Path) -> None:
    found: list[Child] = []

    async def fail() -> None:
        async with Children(programs) as children:
            found.append(await children.start("echo", "echo"))
            raise RuntimeError("something went wrong")

    with pytest.raises(RuntimeError):
        await fail()
    assert not alive(found[0].pid)


async def test_a_killed_child_is_gone_at_once(programs: Path) -> None:
    async with Children(programs) as children:
        child = await children.start("deaf", "deaf")
        await child.line(20)
        await child.kill()
        assert not alive(child.pid)


async def test_a_command_that_is_run_once(programs: Path) -> None:
    assert "0.1" in await run_once("version", "bucketsched", "version", env={}, timeout_s=20)
    with pytest.raises(ChildFailed, match="no such thing"):
        await run_once("failing", "failing", env={}, timeout_s=20)
    with pytest.raises(ChildFailed, match="did not end"):
        await run_once("deaf", "deaf", env={}, timeout_s=0.3)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_children_do_not_outlive_their_parent(programs: Path, number: signal.Signals) -> None:
    """By SIGKILL nobody can clean up: the kernel does it. The child ignores SIGTERM and would stay."""
    code = (
        "import runpy, signal; from bench import processes; processes.POLITE_S = 0.2; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "  # ignored in whatever a shell began with &
        "runpy.run_module('parent')"
    )
    env = {**os.environ, "PYTHONPATH": f"{programs}:{ROOT}"}
    parent = subprocess.Popen([sys.executable, "-c", code, str(programs)], stdout=subprocess.PIPE, text=True, env=env)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert alive(child)
    parent.send_signal(number)
    assert parent.wait(20) == (-number if number is signal.SIGKILL else 130)
    parent.stdout.close()
    assert gone_in_time(child)


def test_the_exit_code_is_the_works(capsys: pytest.CaptureFixture[str]) -> None:
    async def work(code: int) -> int:
        await asyncio.sleep(0)
        if code < 0:
            raise ChildFailed("poller-1 ended with code 1")
        return code

    assert run(work(0)) == 0
    assert run(work(1)) == 1
    assert run(work(-1)) == 1
    assert "poller-1 ended" in capsys.readouterr().err
