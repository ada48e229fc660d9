"""The pure core: what a task is, where it lives, when it goes, and who owns it.

Nothing here does I/O, reads a clock or knows a vendor. Times are integers: milliseconds since the Unix epoch (`_ms`).
"""
