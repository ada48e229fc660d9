"""bucketsched.v1.QueueService and bucketsched.v1.NamespaceService."""

from __future__ import annotations

from ..core.catalog import DEFAULT_NAMESPACE, Namespace, Queue, QueueKind
from ..core.errors import InvalidArgument
from ..core.queue_policy import NO_POLICY, QueuePolicy
from ..service.namespaces import NamespaceService
from ..service.queues import NewQueue, QueueService
from ..stubs.v1 import queue_pb2 as pb
from .errors import Context
from .instants import timestamp
from .mail import email_message, email_of
from .notices import notice_messages, notices_of
from .retries import retry_message, retry_of
from .rpc import Service, unary, unary_service
from .sqs import sqs_message, sqs_of
from .webhooks import webhook_message, webhook_of

_KINDS = {
    pb.QUEUE_KIND_KAFKA: QueueKind.KAFKA,
    pb.QUEUE_KIND_WORKER: QueueKind.WORKER,
    pb.QUEUE_KIND_WEBHOOK: QueueKind.WEBHOOK,
    pb.QUEUE_KIND_SQS: QueueKind.SQS,
    pb.QUEUE_KIND_EMAIL: QueueKind.EMAIL,
}
UPDATABLE = frozenset({"retry", "notices"})
"""What an update mask may name."""
_KIND_NUMBERS = {kind: number for number, kind in _KINDS.items()}


class QueueServicer:
    """Serves the use cases of queues."""

    def __init__(self, queues: QueueService) -> None:
        self._queues = queues

    def service(self) -> Service:
        """To be added to a server."""
        return unary_service(
            "bucketsched.v1.QueueService",
            {
                "CreateQueue": unary(self.create_queue, pb.CreateQueueRequest),
                "GetQueue": unary(self.get_queue, pb.GetQueueRequest),
                "ListQueues": unary(self.list_queues, pb.ListQueuesRequest),
                "UpdateQueue": unary(self.update_queue, pb.UpdateQueueRequest),
                "UpdateSettings": unary(self.update_settings, pb.UpdateSettingsRequest),
                "UpdateWebhook": unary(self.update_webhook, pb.UpdateWebhookRequest),
            },
        )

    async def create_queue(self, request: pb.CreateQueueRequest, context: Context) -> pb.CreateQueueResponse:
        """The queue as it is stored."""
        return pb.CreateQueueResponse(queue=_message(await self._queues.create(_new_queue(request.queue))))

    async def get_queue(self, request: pb.GetQueueRequest, context: Context) -> pb.GetQueueResponse:
        """One queue."""
        queue = await self._queues.get(request.namespace or DEFAULT_NAMESPACE, request.name)
        return pb.GetQueueResponse(queue=_message(queue))

    async def list_queues(self, request: pb.ListQueuesRequest, context: Context) -> pb.ListQueuesResponse:
        """A page of queues by name."""
        queues, following = await self._queues.list(
            request.namespace or DEFAULT_NAMESPACE, request.page_token, request.page_size
        )
        return pb.ListQueuesResponse(queues=[_message(queue) for queue in queues], next_page_token=following)

    async def update_queue(self, request: pb.UpdateQueueRequest, context: Context) -> pb.UpdateQueueResponse:
        """The queue as it is from now on."""
        paths = set(request.update_mask.paths)
        if not paths or paths - UPDATABLE:
            raise InvalidArgument("update_mask", f"must name {' or '.join(sorted(UPDATABLE))}, and nothing else")
        policy = _policy(request.policy)
        queue = await self._queues.update_policy(request.namespace or DEFAULT_NAMESPACE, request.name, policy, paths)
        return pb.UpdateQueueResponse(queue=_message(queue))

    async def update_settings(self, request: pb.UpdateSettingsRequest, context: Context) -> pb.UpdateSettingsResponse:
        """The queue as it is from now on."""
        if not request.WhichOneof("settings"):
            raise InvalidArgument("settings", "must be given")
        settings = sqs_of(request.sqs) if request.HasField("sqs") else email_of(request.email)
        queue = await self._queues.update_settings(request.namespace or DEFAULT_NAMESPACE, request.name, settings)
        return pb.UpdateSettingsResponse(queue=_message(queue))

    async def update_webhook(self, request: pb.UpdateWebhookRequest, context: Context) -> pb.UpdateWebhookResponse:
        """The queue as it is from now on."""
        webhook = webhook_of(request.webhook)
        queue = await self._queues.update_webhook(request.namespace or DEFAULT_NAMESPACE, request.name, webhook)
        return pb.UpdateWebhookResponse(queue=_message(queue))


class NamespaceServicer:
    """Serves the use cases of namespaces."""

    def __init__(self, namespaces: NamespaceService) -> None:
        self._namespaces = namespaces

    def service(self) -> Service:
        """To be added to a server."""
        return unary_service(
            "bucketsched.v1.NamespaceService",
            {
                "CreateNamespace": unary(self.create_namespace, pb.CreateNamespaceRequest),
                "ListNamespaces": unary(self.list_namespaces, pb.ListNamespacesRequest),
            },
        )

    async def create_namespace(
        self, request: pb.CreateNamespaceRequest, context: Context
    ) -> pb.CreateNamespaceResponse:
        """The namespace as it is stored."""
        namespace = await self._namespaces.create(request.name)
        return pb.CreateNamespaceResponse(namespace=_namespace_message(namespace))

    async def list_namespaces(self, request: pb.ListNamespacesRequest, context: Context) -> pb.ListNamespacesResponse:
        """All of them."""
        namespaces = await self._namespaces.list()
        return pb.ListNamespacesResponse(namespaces=[_namespace_message(namespace) for namespace in namespaces])


def _new_queue(message: pb.Queue) -> NewQueue:
    kind = _KINDS.get(message.kind)
    if kind is None:
        raise InvalidArgument("kind", "must be KAFKA, WORKER, WEBHOOK, SQS or EMAIL")
    return NewQueue(
        message.name,
        kind,
        message.namespace or DEFAULT_NAMESPACE,
        message.topic,
        message.partitions,
        message.replication,
        message.priority_topics,
        webhook_of(message.webhook) if message.HasField("webhook") else None,
        _policy(message.policy),
        sqs_of(message.sqs) if message.HasField("sqs") else None,
        email_of(message.email) if message.HasField("email") else None,
    )


def _policy(message: pb.QueuePolicy) -> QueuePolicy:
    retry = retry_of(message.retry, "retry") if message.HasField("retry") else None
    return QueuePolicy(retry, notices_of(message.notices))


def _policy_message(policy: QueuePolicy) -> pb.QueuePolicy | None:
    if policy == NO_POLICY:
        return None
    return pb.QueuePolicy(retry=retry_message(policy.retry), notices=notice_messages(policy.notices))


def _message(queue: Queue) -> pb.Queue:
    return pb.Queue(
        namespace=queue.namespace,
        name=queue.name,
        kind=_KIND_NUMBERS[queue.kind],
        topic=queue.topic,
        partitions=queue.partitions,
        replication=queue.replication,
        priority_topics=queue.priority_topics,
        create_time=timestamp(queue.created_ms),
        webhook=webhook_message(queue.webhook),
        sqs=sqs_message(queue.sqs),
        email=email_message(queue.email),
        policy=_policy_message(queue.policy),
    )


def _namespace_message(namespace: Namespace) -> pb.Namespace:
    return pb.Namespace(name=namespace.name, create_time=timestamp(namespace.created_ms))
