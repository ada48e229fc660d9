"""The fault rig: real processes on real servers under load, with faults drawn from a seed, and a checker behind them.

    python -m tests.faults --seconds 180 --seed 7          one run; `make faults SECONDS=180 SEED=7`
    python -m tests.faults --scenario NAME --seed 7        faults that are fixed beforehand, see `scenarios.py`

A run starts servers of its own (three Cassandra nodes, three Kafka brokers or one, ZooKeeper), a cluster of two api
processes, three pollers, coordinators among them, and a deliver process; then a load, a consumer and a worker, each a
process of its own. Every connection between processes and servers passes a proxy of the rig (`links.py`), which can
cut, stop or slow down the links of one process. A schedule (`schedule.py`) is a pure function of seed and length.

What goes in, what comes out and which faults there were is written down from outside, fsynced, by one clock
(`history.py`). When everything has drained, the journal, the topics and the rows are read, and the checker
(`checker.py`), which is pure, looks for whatever must not be. The last line of stdout is a JSON object; the exit code
is 0 if nothing was found. A history with a violation is kept, with the processes' logs.
"""
