"""What aiokafka makes of a write to a socket that is closed.

asyncio drops such a write, or raises OSError, which aiokafka expects. uvloop raises RuntimeError,
which it does not: its metadata task ends for good, and whoever closes the client later gets that error. So it becomes
what aiokafka would have made of an OSError: the connection is closed, and the request was not sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaConnectionError

_METHODS = ("send", "_send_sasl_token")
_MARK = "_minds_closed_sockets"


def mind_closed_sockets() -> None:
    """For all connections of this process, once."""
    if getattr(AIOKafkaConnection, _MARK, False):
        return
    for name in _METHODS:
        setattr(AIOKafkaConnection, name, _minding(getattr(AIOKafkaConnection, name)))
    setattr(AIOKafkaConnection, _MARK, True)


def _minding(send: Callable[..., Any]) -> Callable[..., Any]:
    def minding(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return send(self, *arguments, **named)
        except RuntimeError as error:
            self.close(reason=CloseReason.CONNECTION_BROKEN)
            raise KafkaConnectionError(f"connection to a broker is closed: {error}") from error

    return minding
