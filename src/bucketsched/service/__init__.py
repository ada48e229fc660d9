"""The use cases: what the ways in (gRPC, REST, CLI) ask of the scheduler.

A create validates, resolves the queue, stores the rows, tells the owners of those that are due soon, and only then
answers. Storing makes it durable; the owner's answer, or the rescan that follows in any case, makes it be on time.
Nothing here talks to a vendor's library: rows, names and owners are reached through `bucketsched.ports`.
"""
