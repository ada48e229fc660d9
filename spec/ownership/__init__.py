"""Ownership: leases, fencing, replay, checkpoints, hand-over; dispatch and cancel beside them.

`state` says what stands for what, `services` what ZooKeeper, Kafka and Cassandra do, `lane` and `ranges` what a process
does, `model` what may go wrong at any moment.
"""
