"""When there is doubt about a server, when it counts as cut off, and for how long doubt outlasts that."""

from __future__ import annotations

from bucketsched.core.contact import Contact, ContactLimits

LIMITS = ContactLimits(doubt_s=1, cut_off_s=3, steady_s=15)


def reached() -> Contact:
    contact = Contact(LIMITS)
    contact.ask(0)
    contact.answer(0)
    return contact


def test_before_the_first_answer_there_is_doubt_and_nothing_to_be_left() -> None:
    contact = Contact(LIMITS)
    assert contact.doubtful(0)
    contact.ask(0)
    assert contact.doubtful(100)
    assert not contact.cut_off(100)
    contact.answer(100)
    assert not contact.doubtful(100), "it was not cut off, it had not begun"


def test_silence_counts_from_the_first_question_without_an_answer() -> None:
    contact = reached()
    contact.ask(10)
    contact.ask(12)
    assert not reached().doubtful(12)
    assert contact.silent_s(12) == 2
    assert (contact.doubtful(10.9), contact.doubtful(11)) == (False, True)
    assert (contact.cut_off(12.9), contact.cut_off(13)) == (False, True)
    contact.answer(13)
    assert contact.silent_s(14) == 0


def test_a_short_silence_leaves_no_doubt_behind() -> None:
    contact = reached()
    contact.ask(10)
    contact.answer(12.9)
    assert not contact.doubtful(12.9)


def test_after_it_was_cut_off_it_must_answer_for_a_while() -> None:
    contact = reached()
    contact.ask(10)
    contact.answer(13)
    assert not contact.cut_off(13), "it can work again"
    assert contact.doubtful(27.9)
    contact.ask(20)
    contact.answer(20.5)
    assert not contact.doubtful(28)


def test_a_silence_meanwhile_begins_the_while_anew() -> None:
    contact = reached()
    contact.ask(10)
    contact.answer(13)
    contact.ask(20)
    contact.answer(21)
    assert contact.doubtful(35.9)
    assert not contact.doubtful(36)
