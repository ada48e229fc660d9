"""Takes out one guard at a time and expects the tests to notice.

    python -m tests.mutants             every guard
    python -m tests.mutants NAME ...    only these
    python -m tests.mutants --list

A guard is a piece of source, what it becomes without it, and the tests that must turn red. The code is mutated in a
copy, never in place.
"""
