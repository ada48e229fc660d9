"""Kafka: where tasks go, the journal of each lane, the topics of queues, and what workers' deliveries are read from.

`KafkaJournal` writes. A lane is a transactional id; its `Stream` speaks the transaction protocol over aiokafka's client
(sockets, TLS, SASL, framing), not over aiokafka's producer. So no background task retries: EndTxn is sent once, every
batch is answered before it, and each failure is one of refused (stream sound), ownership lost, or outcome unknown.
`Reader` reads committed records up to a snapshot. `KafkaTopics` makes topics, `KafkaDeliveries` consumes worker queues.

What goes wrong in this neighbourhood, and what stands against it:

- A transaction commits although a batch of it failed: `Stream._produce_all` aborts on any failure.
- A late EndTxn ends a later transaction: sent once; unanswered means a new epoch (`Stream._end`).
- Fencing and a coordinator's time-out look alike: both are OwnershipLost, never "there is a new owner".
- Sequence gaps after a refused batch: numbers move only for batches that are in the log.
- A batch that arrives after its transaction: re-sent until its fate is known, else the epoch is given up.
- An open transaction holds back readers: `close` aborts it, and its time-out is 10 s.
- A reader waits for an end that a transaction marker occupies: `Reader.read` goes by position passed, not reached.
- A commit is answered before its markers are written: `Reader.end` is the high watermark, and reading waits.
- The first request after a commit meets CONCURRENT_TRANSACTIONS: repeated after 2 ms (`CONCURRENT_BACKOFF_S`).
- A transactional id expires when idle: InvalidProducerIdMapping is OwnershipLost, and `init` follows.
- `read_uncommitted` is the default of consumers: `KafkaDeliveries` sets `read_committed`.
- Slow handlers lose the group: reading ahead is a task of its own, and the poll interval has no bound.
- Offsets are never sent to transactions: that part of aiokafka can kill its sender.
- A consumer's stop hangs, or raises CancelledError, when the broker is gone: `KafkaSubscription._stop_consumer`.
"""
