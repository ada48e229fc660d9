"""What a mail server's words mean: sent, to be tried again, or final."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MailAnswer:
    """How a mail ended: with the server's last `code`, or with a `trouble`, and in words in `said`.

    `about_us`: the server's word is about who sends, such as a password, which operators can set right.
    """

    code: int = 0
    said: str = ""
    trouble: str = ""
    about_us: bool = False
    host_failed: bool = False

    @property
    def sent(self) -> bool:
        """True if the server has taken it."""
        return not self.trouble and 200 <= self.code < 300

    @property
    def final(self) -> bool:
        """True if sending the same again would end in the same way: 5xx, as SMTP has it."""
        return not self.about_us and 500 <= self.code < 600

    @property
    def kind(self) -> str:
        """In a word."""
        return self.trouble or str(self.code)

    def __str__(self) -> str:
        return f"{self.kind}: {self.said}".removesuffix(": ")
