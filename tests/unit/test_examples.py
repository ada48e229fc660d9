"""The examples: they compile, import without doing anything, say how to be called, and those for one process run."""

from __future__ import annotations

import importlib.util
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from delivery_world import DeliveryWorld

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def imported(path: Path) -> ModuleType:
    """The module, as if another imported it."""
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_are_there() -> None:
    known = {
        "quickstart",
        "worker",
        "batch",
        "cancel",
        "kafka_consumer",
        "list",
        "notifications",
        "retries",
        "update",
        "webhook",
    }
    assert {path.stem for path in EXAMPLES} >= known


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_imports_and_is_documented(path: Path) -> None:
    module = imported(path)
    assert module.__doc__
    assert f"python examples/{path.name}" in module.__doc__
    assert module.main.__doc__


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_says_how_to_be_called(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    assert "--target" in capsys.readouterr().out


def test_the_consumer_reads_the_messages_that_pollers_write() -> None:
    message = DeliveryWorld().message("report", b"7", due_ms=1_000_000)
    record = SimpleNamespace(headers=message.headers, value=message.value, timestamp=1_000_020)
    described = imported(ROOT / "examples" / "kafka_consumer.py").describe(record)
    assert described.endswith("/0/1 report b'7' {'k': 'v'} written 20 ms after its due time")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An embedded server in a process of its own."""
    command = [sys.executable, "-m", "bucketsched", "dev", "--grpc-address", "127.0.0.1:0"]
    command += ["--metrics-address", "127.0.0.1:0"]
    data = str(tmp_path_factory.mktemp("data"))
    with subprocess.Popen([*command, "--data-dir", data], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split("ready at ")[1].split(",")[0]
        finally:
            server.terminate()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("quickstart", (), "hello 4: due"),
        ("batch", ("--count", "500"), "create_many: 500 tasks"),
        ("cancel", (), "due at once: ALREADY_DISPATCHED"),
        ("list", (), "left after cancelling those of today: ['48']"),
        (
            "notifications",
            (),
            "bucketsched.dead-lettered: order 2, attempt 2: ConnectionError: the bank does not answer",
        ),
        ("retries", (), "left: 0 dead letters"),
        ("sync", (), "threads: 200 tasks"),
        ("update", (), "too late: ALREADY_DISPATCHED"),
        ("webhook", (), "order 2, signed by us, at the try 2"),
    ],
)
def test_it_runs(target: str, name: str, arguments: tuple[str, ...], said: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--target", target, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout
