"""Everything of one process in one SQLite file: rows, checkpoints, catalog, journal, outbox, leases.

A `Database` owns a data directory. All writes go through its one writer thread, which commits together whatever piled
up during the last commit and syncs once for all; reads have a connection and a thread of their own and see what was
answered before they began. A dispatch is a row of the journal and rows of the outbox in one transaction, so both are
there or neither. The lock on the directory stands for fencing between processes.
"""
