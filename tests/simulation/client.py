"""What one client does about one task: it creates, cancels, changes and reads it, and asks again where it must."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from bucketsched.core import task_id as ids
from bucketsched.core.errors import NotFound, RequestError, Unavailable
from bucketsched.core.task import StoredTask
from bucketsched.core.validation import NewTask
from bucketsched.ports import CancelResult, Changed
from bucketsched.service.tasks import Created, CreateResult, CreateUnavailable, TaskService

from .answers import Answers
from .clock import WorldTime
from .network import NotSent, Unanswered
from .processes import Life, Node, NodeDown
from .requests import Request, Wish
from .servers import Servers

Result = TypeVar("Result")
CLIENT = "client"
REQUEST_S = 6.0
TRIES_MAX = 12


class Client:
    """All of them. They are of the world itself: they never fail."""

    def __init__(self, servers: Servers, time: WorldTime, nodes: list[Node], rng: random.Random) -> None:
        self._servers, self._time, self._rng = servers, time, rng
        self._answers = Answers(servers.invariants, time)
        self._apis = [node for node in nodes if "api" in node.settings.roles]

    # ---- creating

    def _minted(self, request: Request) -> bytes:
        home_ms = max(request.due_ms, math.floor(self._time.ms() + self._rng.uniform(-50, 50)))
        shard = self._rng.randrange(self._servers.constants.shards)
        return ids.mint(home_ms, shard, self._rng.getrandbits(62))

    def _task(self, request: Request) -> NewTask:
        return NewTask(
            request.type if not request.spoiled else "",
            request.namespace,
            request.queue,
            request.payload,
            request.metadata,
            due_ms=request.due_ms if request.delay_ms is None else None,
            delay_ms=request.delay_ms,
            priority=request.priority,
            task_id=ids.text(request.task_id) if request.task_id and not request.key else "",
            idempotency_key=request.key,
        )

    async def create(self, request: Request, late_s: float = 0.0) -> None:
        """Until it is confirmed or rejected, or no longer wanted. `late_s`: long after it was asked for first."""
        rng = self._rng
        if request.twin_of is not None:
            request.task_id = request.twin_of.task_id
        if not request.task_id and not request.key and rng.random() < 0.6:
            request.task_id = self._minted(request)
        if late_s and request.task_id and rng.random() < 0.6:
            await asyncio.sleep(late_s)  # long after its id was minted
            late_s = 0.0
        for tries in range(TRIES_MAX):
            timeout_s = rng.uniform(0.001, 0.1) if late_s and not tries else REQUEST_S
            answer = await self._create_once(self._task(request), timeout_s)
            if isinstance(answer, list):
                if self._told(request, answer[0]):
                    return
            elif not request.task_id and not request.key:
                return  # nobody can tell which task that was
            await asyncio.sleep(late_s if late_s and not tries else rng.uniform(0.05, 1.0))

    async def _create_once(self, task: NewTask, timeout_s: float) -> list[CreateResult] | Exception:
        return await self._ask(lambda tasks: tasks.create_many([task]), timeout_s)

    def _told(self, request: Request, result: CreateResult) -> bool:
        """True if there is nothing left to ask."""
        note = self._servers.trace.note
        if isinstance(result, Created):
            self._answers.created(request, result)
            name = f"{result.task_id[-4:].hex()} due {request.due_ms - self._time.begins_ms}"
            note(CLIENT, f"{request.name} is acknowledged: {name}")
            return True
        if isinstance(result, CreateUnavailable):
            if not request.key:
                request.task_id = result.task_id
            note(CLIENT, f"{request.name} ({result.task_id[-4:].hex()}) is not confirmed")
            return False
        if isinstance(result, RequestError):
            self._answers.refused(request, result)
            note(CLIENT, f"{request.name} is rejected: {result}")
            return True
        return False

    # ---- changing

    async def cancel(self, request: Request) -> None:
        """Until it is answered, or given up."""
        if not request.task_id:
            return
        text, began = ids.text(request.task_id), self._answers.begin(request)
        for _ in range(self._rng.randrange(1, 5)):
            answer = await self._ask(lambda tasks: tasks.cancel(request.namespace, text), REQUEST_S)
            what = answer.value if isinstance(answer, CancelResult) else repr(answer)
            self._servers.trace.note(CLIENT, f"{request.name}: cancel {text[-8:]} is answered: {what}")
            if isinstance(answer, CancelResult):
                self._answers.cancelled(request, answer)
                return
            if isinstance(answer, NotFound):
                self._answers.not_found(request, began)
                return
            await asyncio.sleep(self._rng.uniform(0.05, 1.0))

    async def change(self, request: Request, wish: Wish) -> None:
        """The same."""
        if not request.task_id:
            return
        text, began = ids.text(request.task_id), self._answers.begin(request)
        request.wishes.append(wish)
        for _ in range(self._rng.randrange(1, 5)):
            answer = await self._ask(lambda tasks: _changed(tasks, request, text, wish), REQUEST_S)
            self._servers.trace.note(CLIENT, f"{request.name}: change {text[-8:]} is answered: {_said(answer)}")
            if isinstance(answer, Changed):
                self._answers.changed(request, wish, began, answer)
                return
            if isinstance(answer, RequestError):
                self._answers.not_changed(request, wish, began, answer)
                return
            await asyncio.sleep(self._rng.uniform(0.05, 1.0))

    async def look(self, request: Request) -> None:
        """Reads the task once."""
        if not request.task_id:
            return
        text, began = ids.text(request.task_id), self._answers.begin(request)
        answer = await self._ask(lambda tasks: tasks.get(request.namespace, text), REQUEST_S)
        if isinstance(answer, StoredTask):
            self._answers.shown(request, began, answer)
        elif isinstance(answer, NotFound):
            self._answers.not_found(request, began)

    # ---- asking

    async def _ask(
        self, question: Callable[[TaskService], Coroutine[Any, Any, Result]], timeout_s: float
    ) -> Result | Exception:
        """The answer of some api, or the error."""
        node = self._rng.choice(self._apis)
        under_way: list[asyncio.Task[Result]] = []

        async def serve(life: Life) -> Result:
            if life.tasks is None:
                raise NodeDown(node.name)
            return await question(life.tasks)

        def effect() -> asyncio.Task[Result]:
            under_way.append(node.serve(serve))
            return under_way[0]

        try:
            result: Result = await self._servers.network.call(CLIENT, node.name, effect, timeout_s)
            return result
        except (NotSent, Unanswered, NodeDown, Unavailable, RequestError) as error:
            if isinstance(error, Unanswered) and self._rng.random() < 0.5:
                for task in under_way:
                    if not task.done():
                        self._servers.loop.after(0.001, task.cancel)
            return error


async def _changed(tasks: TaskService, request: Request, text: str, wish: Wish) -> Changed:
    if wish.update is None:
        return await tasks.run_now(request.namespace, text)
    return await tasks.update(request.namespace, text, wish.update)


def _said(answer: Changed | Exception) -> str:
    if isinstance(answer, Changed):
        row = answer.row
        return answer.result.value + (f", generation {row.generation} due {row.due_ms}" if row else "")
    return repr(answer)
