"""The seams: what the core logic needs from the world, as Protocols.

Every adapter of a port passes the port's conformance suite (tests/conformance). Errors that cross a port are
`bucketsched.core.errors`, never a vendor's: NotWritten, OwnershipLost, OutcomeUnknown, Unavailable.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from .core.assignment import Move
from .core.catalog import Namespace, Queue
from .core.checkpoint import Checkpoint
from .core.clock_discipline import Testimony
from .core.cluster import ClusterConstants
from .core.errors import NotWritten, OutcomeUnknown
from .core.execution import Attempt, AttemptReport, EndResult
from .core.idempotency import Claim
from .core.message import Headers, Message
from .core.owner_answers import CancelResult as CancelResult
from .core.owner_answers import HintAnswer as HintAnswer
from .core.presence import Partition
from .core.task import Mark, StoredTask, TaskRow
from .core.task_change import ChangeResult, TaskChange

# ---------------------------------------------------------------- time


class Clock(Protocol):
    """The only reader of time. The kernel's clock is off by at most an error bound epsilon."""

    def now_ms(self) -> int:
        """Best estimate, rounded down."""
        ...

    def earliest_ms(self) -> int:
        """Certainly not earlier than this: now - epsilon, rounded down. A task may go when this reaches its due."""
        ...

    def latest_ms(self) -> int:
        """It is certainly not later than this: now + epsilon, rounded up."""
        ...

    def monotonic(self) -> float:
        """Seconds, for durations and deadlines."""
        ...

    async def sleep(self, seconds: float) -> None:
        """May return a little early or late: check the clock again."""
        ...


class TimeWitness(Protocol):
    """Other machines' clocks, to tell whether one's own is right."""

    async def testify(self, boot_ns: Callable[[], int]) -> list[Testimony]:
        """Asks them now, `boot_ns` telling when; one testimony a machine that answers. Raises Unavailable."""
        ...

    async def close(self) -> None:
        """Lets go of them."""
        ...


# ---------------------------------------------------------------- rows


@dataclass(slots=True)
class Page:
    """Rows of one partition in clustering order. `complete`: the read reached `until_ms` or the partition's end."""

    tasks: list[StoredTask]
    complete: bool


ATTEMPTS_READ_MAX = 1_000


class TaskStore(Protocol):
    """Task rows, keyed by (bucket, shard), in due order within a partition."""

    async def insert(self, rows: Sequence[TaskRow]) -> list[NotWritten | OutcomeUnknown | None]:
        """Writes rows durably, grouped with other callers' rows; one answer a row, None = stored. Idempotent.

        Never writes facts: a row that exists keeps its facts. The row expires at due + retention.
        """
        ...

    async def get(self, due_ms: int, namespace_id: bytes, task_id: bytes) -> StoredTask | None:
        """The row at this place, or None. Raises Unavailable.

        Where only facts are stored, without a body: the row with NO_BODY if one of them says where the task moved,
        else None.
        """
        ...

    async def read_partition(self, bucket: int, shard: int, after: bytes | None, until_ms: int, limit: int) -> Page:
        """Rows with due < `until_ms` strictly behind the packed ref `after` in clustering order, at most `limit`.

        Sees every insert and mark that was answered before the read began. Settled rows are included. Rows whose
        body can't be decoded come with `facts.failed_reason` empty and body type "" (see encoding.UNDECODABLE).
        Raises Unavailable.
        """
        ...

    async def pending_refs(self, bucket: int, shards: Sequence[int], from_ms: int, until_ms: int) -> list[bytes]:
        """Packed refs of the rows with from <= due < until that have a body and no fact. Raises Unavailable."""
        ...

    async def partitions(
        self, namespace_id: bytes, queue: str, from_bucket: int, until_bucket: int, limit: int, descending: bool = False
    ) -> list[Partition]:
        """The first `limit` partitions with from <= bucket < until that hold rows of the queue, by (bucket, shard).

        `descending`: the last ones, in reverse. Every partition of a row whose insert was answered before the read
        began is among them, and some may be that hold none (any more). Raises Unavailable.
        """
        ...

    async def scan(
        self, partitions: Sequence[Partition], start: bytes, limit: int, descending: bool = False
    ) -> list[Page]:
        """For each partition, in their order, its first `limit` rows strictly behind the packed ref `start`.

        `descending`: strictly before it, in reverse order; a page is complete then if it reached the partition's
        beginning. A page may be shorter than `limit`, but is not empty unless it is complete. What is read, and what
        of it, is as in `read_partition`. Raises Unavailable.
        """
        ...

    async def mark(self, marks: Sequence[Mark]) -> None:
        """Adds facts durably. All or an error; idempotent, so it is simply repeated. Raises Unavailable.

        A later MOVED (or RETRIED, which is stored as one) replaces an earlier one; it outlives the row at the new
        place. The stage in a reference makes no difference.
        """
        ...

    async def record_attempts(self, attempts: Sequence[Attempt]) -> None:
        """Adds what is set in these to the execution log, durably. All or an error; idempotent. Raises Unavailable.

        An entry expires a retention after its latest time.
        """
        ...

    async def attempts(self, namespace_id: bytes, task_id: bytes, limit: int = ATTEMPTS_READ_MAX) -> list[Attempt]:
        """The execution log of a task, by generation and attempt: the last `limit` entries, ATTEMPTS_READ_MAX at most.

        Raises Unavailable.
        """
        ...


class KeyStore(Protocol):
    """Idempotency keys: which task each stands for."""

    async def claim(self, namespace_id: bytes, key: str, claim: Claim, expires_ms: int) -> Claim:
        """What stands under this key afterwards: the given claim, or the one that was there before and is kept.

        Durable on return. The key is forgotten at about `expires_ms`. Raises Unavailable: claim it again.
        """
        ...


class CheckpointStore(Protocol):
    """One checkpoint per range, ordered by (epoch, sequence) whatever the order of arrival."""

    async def load(self, range_id: int) -> Checkpoint | None:
        """The checkpoint of highest order. Raises Unavailable, CheckpointCorrupt."""
        ...

    async def save(self, range_id: int, checkpoint: Checkpoint) -> None:
        """Writes durably; without effect where a higher order is stored. Raises Unavailable (then unknown)."""
        ...


class Catalog(Protocol):
    """Cluster constants, namespaces and queues. Reads raise Unavailable."""

    async def constants(self) -> ClusterConstants | None:
        """None: nobody has migrated this store yet."""
        ...

    async def get_namespace(self, name: str) -> Namespace | None: ...

    async def list_namespaces(self) -> list[Namespace]: ...

    async def create_namespace(self, namespace: Namespace) -> Namespace:
        """What is stored afterwards under this name: the given one, or the one that was there before."""
        ...

    async def get_queue(self, namespace_id: bytes, name: str) -> Queue | None: ...

    async def list_queues(self, namespace_id: bytes, after: str, limit: int) -> list[Queue]:
        """By name, strictly after `after`."""
        ...

    async def create_queue(self, queue: Queue) -> Queue:
        """What is stored afterwards under this name: the given one, or the one that was there before."""
        ...

    async def update_webhook(self, queue: Queue) -> None:
        """Stores the queue's `webhook` in place of the former one, where there is such a queue of kind WEBHOOK.

        Raises Unavailable, then unknown: repeat it.
        """
        ...

    async def update_settings(self, queue: Queue) -> None:
        """Stores the queue's `sqs` or `email` in place of the former ones, where there is such a queue of its kind.

        Raises likewise.
        """
        ...

    async def update_policy(self, queue: Queue) -> None:
        """Stores the queue's `policy` in place of the former one, where there is such a queue. Raises likewise."""
        ...


# ---------------------------------------------------------------- the journal of a lane


@dataclass(slots=True)
class JournalEntry:
    """A committed record and its place."""

    offset: int
    value: bytes


class CommitRefused(Exception):
    """Nothing was committed and the stream is sound. `culprits`: indices of messages that can never be sent, and why.

    Without culprits it is a passing trouble, and the same batch may be committed later: of `sick_topics` if they are
    named, so that what goes to other topics need not wait for them.
    """

    def __init__(
        self, reason: str, culprits: dict[int, str] | None = None, sick_topics: Collection[str] = frozenset()
    ) -> None:
        super().__init__(reason)
        self.culprits = culprits or {}
        self.sick_topics = frozenset(sick_topics)


class Journal(Protocol):
    """The stream of one lane: its transactions, and everybody's committed records.

    Exactly one process may write it: whoever called `init` last. One commit at a time.
    """

    @property
    def name(self) -> str:
        """Of the whole journal (all lanes), as a checkpoint keeps it."""
        ...

    @property
    def lane(self) -> int: ...

    async def init(self) -> None:
        """Takes the lane's stream: aborts its open transaction and fences whoever wrote before. Raises Unavailable."""
        ...

    async def commit(self, messages: Sequence[Message], record: bytes) -> int:
        """Commits the messages and the journal record in one transaction; the offset of the record.

        Raises CommitRefused (nothing committed; carry on), OwnershipLost (fenced, or looks like it: `init`, validate,
        and read the journal before anything else) or OutcomeUnknown (likewise).
        """
        ...

    async def fence(self, lane: int) -> None:
        """Aborts the open transaction of another lane and fences its writer. Raises Unavailable."""
        ...

    async def start(self, lane: int) -> int:
        """The first offset that trimming has left. Raises Unavailable."""
        ...

    async def end(self, lane: int) -> int:
        """An offset behind every record committed so far. Raises Unavailable."""
        ...

    def read(self, lane: int, start: int) -> AsyncIterator[list[JournalEntry]]:
        """Committed records from `start` to the end as it stands at the call. Raises Unavailable."""
        ...

    async def find(self, lane: int, at_ms: int) -> int | None:
        """The offset of the first committed record of this instant or later; None: there is none. Raises Unavailable.

        Records are packed ones (core.journal_record); by which clock their time is told may be off by a second.
        """
        ...

    async def trim(self, lane: int, before: int) -> bool:
        """Forgets records before an offset; True if there is more to forget: call again. Offsets stay as they are.

        What may be forgotten is the caller's business (coordinator.trimmer). Raises Unavailable.
        """
        ...

    async def close(self) -> None:
        """Aborts what is open and lets go, within a bounded time."""
        ...


# ---------------------------------------------------------------- ownership


@dataclass(slots=True)
class Lease:
    """The ownership of one range by one lane. `predecessors`: lanes that may still write for it, to be fenced."""

    range_id: int
    epoch: int
    predecessors: tuple[int, ...]


class LeaseHeld(Exception):
    """Somebody else's lease on the range stands."""


class Leases(Protocol):
    """The leases of one joined lane. Ownership is proved by versioned writes only.

    Raises Unavailable where the service can't be reached, OwnershipLost where session or slot are gone.
    """

    async def acquire(self, range_id: int) -> Lease:
        """Takes the range: epoch + 1, the former lane appended to the predecessors unless it released.

        Raises LeaseHeld.
        """
        ...

    async def clear_predecessors(self, lease: Lease) -> None:
        """Versioned. Raises OwnershipLost where the lease no longer stands."""
        ...

    async def validate(self, leases: Sequence[Lease]) -> set[int]:
        """Proves slot and leases by versioned writes; the ranges that still are ours.

        Raises OwnershipLost where slot or session are gone.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Versioned: marks the range as cleanly released and drops the lease. Raises OwnershipLost."""
        ...


@dataclass(frozen=True, slots=True)
class Member:
    """A process of the cluster. `lane` -1: it has no poller. Addresses are host:port, "" where a role is missing."""

    member_id: str
    roles: tuple[str, ...]
    lane: int = -1
    internal_address: str = ""
    worker_address: str = ""
    weight: int = 1
    zone: str = ""
    leaving: bool = False
    """It is about to end: its lane is to be given nothing, and its ranges to others."""
    name: str = ""
    """The node's name, by which operators and orders know it; "": the member id."""
    ailing: str = ""
    """What it can't reach, or has not reached yet, and needs to serve ranges: its lane is to be given nothing new."""
    incarnation: int = field(default=0, compare=False)
    """Which of the process's joinings this is, as the service numbers them; 0: it has not joined."""

    @property
    def node(self) -> str:
        """What the node is called."""
        return self.name or self.member_id


@dataclass(frozen=True, slots=True)
class Plan:
    """Which lane shall own which range; written as a whole. `version` is the store's, for the next write."""

    version: int
    assignment: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RangeStatus:
    """What the lease service knows of a range. `held`: a living lease stands."""

    range_id: int
    epoch: int
    lane: int
    held: bool
    released: bool
    predecessors: tuple[int, ...]


class Membership(Protocol):
    """One process's place in the cluster, and its view of the others, cached by watches.

    Reads answer from the cache when the service can't be reached.
    """

    async def join(self, member: Member, wants_lane: bool) -> Member:
        """Announces the member; with `wants_lane` it gets the lowest free slot. Raises Unavailable."""
        ...

    def members(self) -> list[Member]: ...

    def plan(self) -> Plan: ...

    def owner_of(self, range_id: int) -> Member | None:
        """The member whose lane holds the lease of the range, as far as is known."""
        ...

    async def changed(self, seen: int | None = None) -> int:
        """Returns after members, plan or leases changed since the call that answered `seen`; the next `seen`.

        At once if they did meanwhile. None: since anybody's last call without `seen`; for one caller alone.
        """
        ...

    async def announce_leaving(self, leaving: bool = True) -> None:
        """Tells all others that this member is `leaving`, or that it stays after all.

        Raises Unavailable, OwnershipLost (it is no member).
        """
        ...

    async def announce_ailing(self, ailing: str) -> None:
        """Tells all others what this member can't reach, "" where nothing is wrong. Raises likewise."""
        ...

    def session_lost(self) -> bool:
        """True once this member's session is known to be over: its slot and leases are gone. Join anew."""
        ...

    async def leave(self) -> None: ...


class PlanStore(Protocol):
    """Election and plan, for coordinators."""

    async def campaign(self) -> None:
        """Returns when this process is the elected coordinator. Raises Unavailable."""
        ...

    async def read(self) -> tuple[Plan, list[Member], list[RangeStatus]]:
        """Everything that a plan is made from. Raises Unavailable."""
        ...

    async def read_plan(self) -> tuple[Plan, list[Member]]:
        """Less than `read`: for a plan that names all ranges, the ranges themselves need not be read."""
        ...

    async def write(self, plan: Plan) -> Plan:
        """Replaces the plan if its version is `plan.version` and this process still is elected.

        Raises OwnershipLost.
        """
        ...

    async def evict(self, member: Member) -> bool:
        """Removes at once what a dead process holds, as the end of its sessions would: its place among the members,
        lane, leases and candidacy. A member that has joined anew since (another incarnation) keeps all but the last.

        Only the elected coordinator may, or the candidate next behind the dead one. False: nothing was removed.
        Of a process that lives after all, the session is lost. Raises Unavailable.
        """
        ...

    async def resign(self) -> None: ...


@dataclass(frozen=True, slots=True)
class NodeOrder:
    """What operators have ordered for a node. It holds for every process of this name, until it is taken back."""

    cordoned: bool = False
    """It keeps its ranges and gets nothing new."""
    drained: bool = False
    """It gets nothing and loses its ranges to others."""


class RebalanceState(Enum):
    """Of ordered moves."""

    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    """What had begun is carried out, nothing else is begun."""


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Moves that an operator has ordered, begun in this order, `at_once` of them at a time."""

    rebalance_id: str
    moves: tuple[Move, ...]
    at_once: int
    state: RebalanceState = RebalanceState.RUNNING
    failed: tuple[int, ...] = ()
    """The ranges whose new owner did not take them in time: they were planned back."""


@dataclass(frozen=True, slots=True)
class Orders:
    """Everything that operators have ordered, written as a whole. `version` is the store's, for the next write."""

    version: int = 0
    nodes: dict[str, NodeOrder] = field(default_factory=dict)
    """By the node's name; those without an order are left out."""
    rebalance: Rebalance | None = None
    """The last one."""


@dataclass(frozen=True, slots=True)
class RangeReport:
    """What its owner says of a range."""

    range_id: int
    epoch: int
    phase: str
    """recovering, active, stopping or alarmed."""
    rows: int
    """In memory."""


class OrderStore(Protocol):
    """Where operators leave orders, and coordinators find them. Both raise Unavailable."""

    async def read_orders(self) -> Orders:
        """As they stand."""
        ...

    async def write_orders(self, orders: Orders) -> Orders | None:
        """Replaces them if their version is `orders.version`. None: somebody has written since; read again."""
        ...


class Peers(Protocol):
    """Who is dead, of the processes that listen at an internal address."""

    async def died(self, address: str) -> None:
        """Returns once the process that listened at host:port is dead: an established connection ended, and the port
        refuses new ones. Silence, unreachable hosts and a port that still accepts are no proof: then it waits."""
        ...


# ---------------------------------------------------------------- from api to owner


class Changed(NamedTuple):
    """What became of a change. `row`: the task's newest row; None: there is none."""

    result: ChangeResult
    row: TaskRow | None = None


class Owners(Protocol):
    """The owners of all ranges, wherever they are. Every call raises Unavailable where no owner can be reached."""

    async def hint(self, rows: Sequence[TaskRow]) -> list[HintAnswer | None]:
        """Tells the owners that these rows were written; one answer a row, None: not reached. Never raises."""
        ...

    async def admit(self, row: TaskRow) -> HintAnswer:
        """Asks the owner to make sure that this stored row, whose bucket is over, is dispatched."""
        ...

    async def cancel(self, namespace_id: bytes, task_id: bytes) -> CancelResult: ...

    async def change(self, namespace_id: bytes, task_id: bytes, change: TaskChange) -> Changed:
        """Makes the task what the change says, unless it was settled before. Repeating it does nothing more."""
        ...

    async def finish(self, reports: Sequence[AttemptReport]) -> list[EndResult | None]:
        """Tells the owners how attempts have ended; one answer a report. None: not known, report it again.

        The first report of an attempt counts, and it is taken again when it is repeated. Never raises.
        """
        ...


class RangeOwner(Protocol):
    """A poller seen from the internal API: the same questions, answered for its own ranges only."""

    async def hint(self, rows: Sequence[TaskRow]) -> list[HintAnswer]: ...

    async def admit(self, row: TaskRow) -> HintAnswer: ...

    async def cancel(self, namespace_id: bytes, task_id: bytes) -> CancelResult | HintAnswer:
        """A HintAnswer where this process does not own the range, or is not ready."""
        ...

    async def change(self, namespace_id: bytes, task_id: bytes, change: TaskChange) -> Changed | HintAnswer:
        """Likewise."""
        ...

    async def finish(self, reports: Sequence[AttemptReport]) -> list[EndResult | HintAnswer]:
        """Likewise, for each report."""
        ...

    async def ready(self, range_ids: Sequence[int], lane: int) -> None:
        """That lane has read these ranges ahead and would take them now, if the plan gives them to it."""
        ...


class ReadyCalls(Protocol):
    """How a taker reaches the owners of ranges."""

    async def ready(self, owner: Member, range_ids: Sequence[int], lane: int) -> bool:
        """Asks RangeOwner.ready of another process; False where it was not reached. Never raises."""
        ...


# ---------------------------------------------------------------- queues' destinations and deliveries


class Topics(Protocol):
    """Makes the topics of queues."""

    async def ensure(self, queue: Queue) -> Queue:
        """Creates the queue's topics where missing; the queue with what it got filled in.

        Raises InvalidArgument where a setting is not possible, Unavailable.
        """
        ...


@dataclass(slots=True)
class Delivery:
    """A dispatched message to be handed to a worker. `token` names it within its subscription."""

    token: int
    headers: Headers
    value: bytes


class Subscription(Protocol):
    """The undelivered messages of one worker queue, for one process."""

    async def fetch(self, limit: int) -> list[Delivery]:
        """Waits for messages that were not fetched yet, oldest first; 1 to `limit`. Raises Unavailable."""
        ...

    async def ack(self, tokens: Sequence[int]) -> None:
        """These are done: this subscription won't bring them again. Raises Unavailable.

        Durable on return; on Kafka as soon as everything older in their partition is done, too.
        """
        ...

    async def close(self) -> None:
        """What was fetched and not acknowledged will come again, here or elsewhere."""
        ...


class Deliveries(Protocol):
    """Where deliver processes get messages from."""

    async def subscribe(self, queue: Queue) -> Subscription:
        """Raises Unavailable."""
        ...
