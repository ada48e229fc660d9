"""Who is dead, told by TCP: the kernel closes what a killed process had open, and refuses its port from then on.

One plain connection is kept to each peer's internal address. Nothing is ever sent: a gRPC server closes such a
connection after some minutes, and a new one is made then. What proves a death is a connection that was established and
has ended, and then two refusals in a row from the very address and port that it led to. A host that is gone, paused or
cut off refuses nothing, and a port that forwards to somewhere else still accepts: those are left to the session's end.
"""

from __future__ import annotations

import asyncio
import time

REFUSALS = 2
REFUSAL_PAUSE_S = 0.005
CONNECT_S_MAX = 2.0
RETRY_S_MIN, RETRY_S_MAX = 0.005, 1.0
"""Between connections, doubled each time while they are refused, fail or end early."""
STEADY_S = 5.0
"""A connection that stood so long was no early end."""
READ_BYTES = 4_096

Where = tuple[str, int]


class TcpPeers:
    """ports.Peers."""

    async def died(self, address: str) -> None:
        """See ports.Peers."""
        host, _, port = address.rpartition(":")
        asked: Where = (host.strip("[]"), int(port))
        found: Where | None = None
        refusals, pause = 0, RETRY_S_MIN
        while True:
            try:
                found, stood_s = await _attend(found or asked)
                refusals, pause = 0, RETRY_S_MIN if stood_s >= STEADY_S else pause
            except ConnectionRefusedError:
                refusals += 1
                if found is not None and refusals >= REFUSALS:
                    return
            except (OSError, TimeoutError):
                refusals = 0
            await asyncio.sleep(REFUSAL_PAUSE_S if refusals and found else pause)
            pause = min(2 * pause, RETRY_S_MAX)


async def _attend(where: Where) -> tuple[Where, float]:
    """Returns at the end of a connection; where it led, and for how long. Raises OSError where there is none."""
    async with asyncio.timeout(CONNECT_S_MAX):
        reader, writer = await asyncio.open_connection(*where)
    began = time.monotonic()
    try:
        peer = writer.get_extra_info("peername")
        while await reader.read(READ_BYTES):
            pass
    except OSError:
        pass
    finally:
        writer.close()
    return (peer[0], peer[1]), time.monotonic() - began
