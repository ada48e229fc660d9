"""What SQS's answers mean: sent, to be tried again, or final."""

from __future__ import annotations

from dataclasses import dataclass

FINAL_CODES = frozenset(
    {"InvalidMessageContents", "InvalidParameterValue", "InvalidAttributeValue", "BatchRequestTooLong"}
)
"""What is wrong is the message. All else may be set right by others, or passes: rights, a missing queue, throttling."""
_NAMESPACE = "AWS.SimpleQueueService."


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of one message. `code`: SQS's word for what was wrong, or ours; empty: it is sent, as `said`."""

    code: str = ""
    said: str = ""

    @property
    def final(self) -> bool:
        """True if sending the same again would end in the same way."""
        return self.code.removeprefix(_NAMESPACE) in FINAL_CODES

    def __str__(self) -> str:
        return f"{self.code}: {self.said}".removesuffix(": ") if self.code else f"message {self.said}"


@dataclass(frozen=True, slots=True)
class SqsAnswer:
    """What became of the messages of one request, in their order. `whole`: it failed as a whole."""

    sent: tuple[Sent, ...]
    host_failed: bool = False
    whole: bool = False

    @classmethod
    def failed(cls, count: int, code: str, said: str, host_failed: bool = False) -> SqsAnswer:
        """One that says the same of `count` messages."""
        return cls((Sent(code, said),) * count, host_failed, whole=True)
