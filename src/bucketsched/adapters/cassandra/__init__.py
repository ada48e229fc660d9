"""TaskStore, CheckpointStore and Catalog over Cassandra 5, and its migrations.

`session` is the only module that talks to the driver; it translates the driver's errors and hands results to the event
loop. `group_commit` decides which rows travel together. `store`, `checkpoints` and `catalog` know one table group each.
Everything is read and written at LOCAL_QUORUM: all processes of a cluster live in one data centre.

The driver is imported when a session is opened, not before.
"""
