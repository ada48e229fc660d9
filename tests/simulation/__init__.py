"""The whole service in one thread, on virtual time, over servers that fail: one seed is one run, and replays exactly.

    loop        an event loop without real time, and processes that can be killed or stopped between any two callbacks
    network     messages between processes and servers: slow, lost, late, cut off
    broker      Kafka: transactions, fencing, time-outs; consumers        replicas   Cassandra: three replicas, quorums
    ensemble    ZooKeeper: sessions, leases, members, the plan            clock      each node's own reading of the time
    processes   nodes, built of the product's own parts                   world      all of it together
    workload    clients, and what they were told                          faults     what goes wrong, and when
    invariants  what must hold, at each commit and at the end             trace      what happened, and its hash
    runner      runs seeds                                                planted    guards taken out, to be found

`python -m tests.simulation --help`.
"""
