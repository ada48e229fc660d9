"""What a member may get, as it says itself and as operators have ordered."""

from __future__ import annotations

from ..core.assignment import Standing
from ..ports import Member, NodeOrder


def standing_of(member: Member, order: NodeOrder) -> Standing:
    """Whether it flaps is another matter: only a coordinator that watches knows."""
    if order.drained or member.leaving:
        return Standing.DRAINED
    if member.ailing:
        return Standing.AILING
    return Standing.CORDONED if order.cordoned else Standing.OPEN
