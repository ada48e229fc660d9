"""Real Cassandra, Kafka and ZooKeeper on this machine, without containers: JVMs on loopback ports.

The jars come from Maven Central once (`Jars`), each server knows its own configuration, command line and how to tell
that it answers (`Cassandra`, `Kafka`, `ZooKeeper`), and a `Stack` keeps one of each, or several by another `Layout`,
with their ports and their files in one folder. Servers are told by process id and start time, so that nothing else is
ever signalled. They outlive whoever started them, except those of `own_stack`, which end with its user, however it
ends. So does an `own_elasticmq`, which speaks SQS for the tests of such queues, and is no part of a stack.

Only the standard library is used, so that a stack can be started before anything is installed.
"""

from .addresses import Addresses
from .errors import StackError
from .layout import Layout
from .server import Server
from .servers import Cassandra, Kafka, ZooKeeper
from .stack import DEFAULT_FOLDER, ROOT, Stack
from .use import any_stack, own_elasticmq, own_stack, running

__all__ = [
    "DEFAULT_FOLDER",
    "ROOT",
    "Addresses",
    "Cassandra",
    "Kafka",
    "Layout",
    "Server",
    "Stack",
    "StackError",
    "ZooKeeper",
    "any_stack",
    "own_elasticmq",
    "own_stack",
    "running",
]
