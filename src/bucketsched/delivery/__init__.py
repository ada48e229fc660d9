"""Hands what pollers dispatched to workers.

A `WorkerHub` lives in every deliver process. It has one `QueueFeed` for each queue to which at least one worker is
attached here: the feed subscribes to the queue's messages, leases each to the least loaded worker with a free place,
and acknowledges to the subscription what workers acknowledge. What a worker gives back (nack), lets expire or leaves
behind (disconnect) is the same attempt, offered again, oldest first. Everything that a feed knows is in memory: a
process that dies forgets it, and the subscription brings what was not acknowledged again, so delivery is at least once.
"""
