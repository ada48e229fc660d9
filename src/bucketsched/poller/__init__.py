"""A lane and its ranges: from rows in buckets to fenced transactions.

One `Lane` per process (a lane is a transactional stream, see ports.Journal). It takes ranges (`takeover`), keeps what
each knows in an `OwnedRange`, and runs these loops over all of them:

    loader        reads whole buckets ahead of time, page by page within a budget, into the due heaps
    dispatcher    moves what is due into the ready queue and commits it, a transaction at a time, journaled
    marker        writes facts beside the rows, lazily and in the order of the journal
    checkpointer  stores each range's progress, so that a taker replays little
    rescanner     reads the window around now again: hints make it fast, the scan makes it sure
    closer        reads a bucket one last time after its grace and journals that it is closed

Everything that changes what a range knows is synchronous code in `OwnedRange`; the loops only do the waiting.
"""
