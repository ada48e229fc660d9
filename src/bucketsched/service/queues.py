"""Creating and showing queues. A queue's topics are made before its row, so that no task is sent into the void."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from ..core.catalog import DEFAULT_NAMESPACE, Namespace, Queue, QueueKind
from ..core.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from ..core.mail import Email
from ..core.mail_check import check_email
from ..core.notice_check import check_events, check_not_itself, check_notices
from ..core.queue_policy import NO_POLICY, QueuePolicy
from ..core.retry_check import check_retry
from ..core.sqs import Sqs
from ..core.sqs_check import check_sqs
from ..core.validation import PARTITIONS_MAX, REPLICATION_MAX, check_name, check_range, check_topic
from ..core.webhook import Webhook
from ..core.webhook_check import check_webhook
from ..ports import Catalog, Clock, Topics
from .directory import Directory
from .notice_queues import check_targets

PAGE_DEFAULT = 100
PAGE_MAX = 1_000


@dataclass(frozen=True, slots=True)
class NewQueue:
    """A queue as it was asked for. Empty `topic`: a name is made; 0 partitions, replication: the server's default."""

    name: str
    kind: QueueKind
    namespace: str = DEFAULT_NAMESPACE
    topic: str = ""
    partitions: int = 0
    replication: int = 0
    priority_topics: bool = False
    webhook: Webhook | None = None
    policy: QueuePolicy = NO_POLICY
    sqs: Sqs | None = None
    email: Email | None = None


class QueueService:
    """The use cases of queues. Without `topics` (embedded mode) there are no Kafka queues.

    `on_pushed`: called with each queue that is created or changed here and whose tasks are pushed.
    """

    def __init__(self, catalog: Catalog, directory: Directory, topics: Topics | None, clock: Clock) -> None:
        self._catalog = catalog
        self._directory = directory
        self._topics = topics
        self._clock = clock
        self.on_pushed: Callable[[Queue], None] = lambda queue: None

    async def create(self, new: NewQueue) -> Queue:
        """The queue as it is stored. One of the same name and settings is returned as it is.

        Raises InvalidArgument, NotFound (namespace), AlreadyExists (other settings) or Unavailable.
        """
        _check(new)
        namespace = await self._directory.namespace(new.namespace)
        wanted = self._wanted(new, namespace)
        check_events(wanted.policy.notices, wanted)
        await check_targets(self._directory, new.namespace, wanted.policy.notices)
        stored = await self._catalog.get_queue(namespace.namespace_id, new.name)
        if stored is None:
            stored = await self._catalog.create_queue(await self._with_topics(wanted))
        _check_same(wanted, stored)
        if stored.pushed_at_once:
            self.on_pushed(stored)
        return stored

    async def update_webhook(self, namespace: str, name: str, webhook: Webhook) -> Queue:
        """The queue with its settings replaced; without secrets in them it keeps those that it has.

        Raises InvalidArgument, NotFound, FailedPrecondition (another kind) or Unavailable.
        """
        check_name(namespace, "namespace")
        check_name(name, "name")
        check_webhook(webhook)
        stored = await self._stored(namespace, name)
        if stored.webhook is None:
            raise FailedPrecondition("kind", f"queue {name!r} is of kind {stored.kind}, not WEBHOOK")
        changed = replace(stored, webhook=replace(webhook, secrets=webhook.secrets or stored.webhook.secrets))
        await self._catalog.update_webhook(changed)
        self._directory.learn(changed)
        self.on_pushed(changed)
        return changed

    async def update_settings(self, namespace: str, name: str, settings: Sqs | Email) -> Queue:
        """The queue with its settings replaced.

        Raises InvalidArgument, NotFound, FailedPrecondition (another kind, FIFO or not FIFO) or Unavailable.
        """
        check_name(namespace, "namespace")
        check_name(name, "name")
        stored = await self._stored(namespace, name)
        changed = _with_settings(stored, settings)
        await self._catalog.update_settings(changed)
        self._directory.learn(changed)
        self.on_pushed(changed)
        return changed

    async def update_policy(self, namespace: str, name: str, policy: QueuePolicy, fields: Collection[str]) -> Queue:
        """The queue with another policy, as far as `fields` of it are meant: `retry`, `notices`.

        Owners follow within seconds. Raises InvalidArgument, NotFound (also a queue that gets notices),
        FailedPrecondition (a retry policy where nobody says of its tasks how they end) or Unavailable.
        """
        check_name(namespace, "namespace")
        check_name(name, "name")
        meant = {field: getattr(policy, field) for field in fields}
        stored = await self._stored(namespace, name)
        changed = replace(stored, policy=replace(stored.policy, **meant))
        if "retry" in meant:
            _check_changed_retry(changed)
        if "notices" in meant:
            _check_notices(changed.policy, name)
            check_events(changed.policy.notices, changed)
            await check_targets(self._directory, namespace, changed.policy.notices)
        await self._catalog.update_policy(changed)
        self._directory.learn(changed)
        return changed

    async def _stored(self, namespace: str, name: str) -> Queue:
        """As the catalog has it now. Raises NotFound or Unavailable."""
        namespace_id = (await self._directory.namespace(namespace)).namespace_id
        stored = await self._catalog.get_queue(namespace_id, name)
        if stored is None:
            raise NotFound("name", f"queue {name!r} does not exist in namespace {namespace!r}")
        return stored

    async def get(self, namespace: str, name: str) -> Queue:
        """Raises InvalidArgument, NotFound or Unavailable."""
        check_name(namespace, "namespace")
        check_name(name, "name")
        return await self._directory.queue(namespace, name)

    async def list(self, namespace: str, after: str = "", limit: int = 0) -> tuple[list[Queue], str]:
        """A page of queues by name behind `after`, and where the next one begins ("": there is none)."""
        check_name(namespace, "namespace")
        check_range(limit, 0, PAGE_MAX, "page_size")
        if after:
            check_name(after, "page_token")
        limit = limit or PAGE_DEFAULT
        namespace_id = (await self._directory.namespace(namespace)).namespace_id
        queues = await self._catalog.list_queues(namespace_id, after, limit)
        return queues, queues[-1].name if len(queues) == limit else ""

    def _wanted(self, new: NewQueue, namespace: Namespace) -> Queue:
        queue = Queue(
            namespace.namespace_id,
            new.namespace,
            new.name,
            new.kind,
            priority_topics=new.priority_topics,
            created_ms=self._clock.now_ms(),
            webhook=new.webhook,
            policy=new.policy,
            sqs=new.sqs,
            email=new.email,
        )
        if self._topics is None:
            _check_embedded(new)
            return queue
        topic = new.topic or (f"{new.namespace}.{new.name}" if new.kind is QueueKind.KAFKA else "")
        return replace(queue, topic=topic, partitions=new.partitions, replication=new.replication)

    async def _with_topics(self, queue: Queue) -> Queue:
        if self._topics is None:
            return queue
        if queue.topic:
            await self._check_topics_are_free(queue)
        made = await self._topics.ensure(queue)
        if queue.partitions not in (0, made.partitions):
            raise InvalidArgument("partitions", f"must be 0 or {made.partitions}, as topic {made.topic} has it already")
        return made

    async def _check_topics_are_free(self, queue: Queue) -> None:
        """Refuses topics that another queue got by default: a.b + c and a + b.c would share one."""
        for namespace_name, name in sorted({pair for topic in queue.topics for pair in _default_owners(topic)}):
            namespace = await self._catalog.get_namespace(namespace_name)
            other = namespace and await self._catalog.get_queue(namespace.namespace_id, name)
            if not other or (namespace_name, name) == (queue.namespace, queue.name):
                continue
            if not set(other.topics).isdisjoint(queue.topics):
                raise AlreadyExists("topic", f"is that of queue {name!r} in namespace {namespace_name!r}")


def _with_settings(stored: Queue, settings: Sqs | Email) -> Queue:
    """Raises InvalidArgument, FailedPrecondition."""
    if isinstance(settings, Sqs):
        check_sqs(settings)
        if stored.sqs is None:
            raise FailedPrecondition("kind", f"queue {stored.name!r} is of kind {stored.kind}, not SQS")
        if settings.fifo != stored.sqs.fifo:
            raise FailedPrecondition("sqs.queue_url", "must be of a FIFO queue exactly if the former one is")
        return replace(stored, sqs=settings)
    check_email(settings)
    if stored.email is None:
        raise FailedPrecondition("kind", f"queue {stored.name!r} is of kind {stored.kind}, not EMAIL")
    return replace(stored, email=settings)


def _check(new: NewQueue) -> None:
    check_name(new.namespace, "namespace")
    check_name(new.name, "name")
    check_range(new.partitions, 0, PARTITIONS_MAX, "partitions")
    check_range(new.replication, 0, REPLICATION_MAX, "replication")
    if new.topic and new.kind is not QueueKind.KAFKA:
        raise InvalidArgument("topic", f"is chosen by the server for {new.kind.lower()} queues")
    if new.topic:
        check_topic(new.topic)
    if new.webhook is not None:
        check_webhook(new.webhook)
    if (new.webhook is not None) != (new.kind is QueueKind.WEBHOOK):
        raise InvalidArgument("webhook", "must be given for kind WEBHOOK, and for no other")
    if new.sqs is not None:
        check_sqs(new.sqs)
    if (new.sqs is not None) != (new.kind is QueueKind.SQS):
        raise InvalidArgument("sqs", "must be given for kind SQS, and for no other")
    if new.email is not None:
        check_email(new.email)
    if (new.email is not None) != (new.kind is QueueKind.EMAIL):
        raise InvalidArgument("email", "must be given for kind EMAIL, and for no other")
    if new.policy.retry is not None:
        if new.kind is QueueKind.KAFKA:
            raise InvalidArgument("retry", "must not be given for kind KAFKA: nobody says how its tasks end")
        check_retry(new.policy.retry, "retry")
    _check_notices(new.policy, new.name)


def _check_notices(policy: QueuePolicy, name: str) -> None:
    check_notices(policy.notices)
    check_not_itself(policy.notices, name)


def _check_changed_retry(queue: Queue) -> None:
    if queue.policy.retry is None:
        return
    check_retry(queue.policy.retry, "retry")
    if not queue.tracks_outcomes:
        raise FailedPrecondition("kind", f"queue {queue.name!r} is of kind {queue.kind}: nobody says how its tasks end")


def _check_embedded(new: NewQueue) -> None:
    if new.kind is QueueKind.KAFKA:
        raise InvalidArgument("kind", "must not be KAFKA: Kafka queues need cluster mode")
    for value, field in ((new.partitions, "partitions"), (new.replication, "replication")):
        if value:
            raise InvalidArgument(field, "must be 0: there are no topics in embedded mode")


def _default_owners(topic: str) -> Iterator[tuple[str, str]]:
    """The queues that would have this topic by default, as their own or as that of a priority."""
    for name in {topic, topic.removesuffix(".high"), topic.removesuffix(".low")}:
        for at, character in enumerate(name):
            if character == ".":
                yield name[:at], name[at + 1 :]


def _check_same(wanted: Queue, stored: Queue) -> None:
    """What was not asked for explicitly may be as it is."""
    for field, asked, has in (
        ("kind", wanted.kind, stored.kind),
        ("topic", wanted.topic or stored.topic, stored.topic),
        ("partitions", wanted.partitions or stored.partitions, stored.partitions),
        ("replication", wanted.replication or stored.replication, stored.replication),
        ("priority_topics", wanted.priority_topics, stored.priority_topics),
    ):
        if asked != has:
            raise AlreadyExists(field, f"queue {stored.name!r} exists with {has}, not {asked}")
    if wanted.policy not in (NO_POLICY, stored.policy):
        raise AlreadyExists("policy", f"queue {stored.name!r} exists with another one: change it by UpdateQueue")
    for kind, given, kept in (("sqs", wanted.sqs, stored.sqs), ("email", wanted.email, stored.email)):
        if given != kept:
            raise AlreadyExists(kind, f"queue {stored.name!r} exists with other settings")
    if wanted.webhook != stored.webhook:
        raise AlreadyExists(
            "webhook", f"queue {stored.name!r} exists with other settings: change them by UpdateWebhook"
        )
