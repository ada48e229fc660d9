"""Demos and measurements: real processes, loads that are fixed beforehand, figures that are taken where a user stands.

    python -m bench.demo           the embedded scheduler; needs no servers
    python -m bench.demo_cluster   a small cluster, one of its pollers killed; needs Cassandra, ZooKeeper and Kafka
    python -m bench.failover       pollers killed, or paused, one after the other: what each death costs
    python -m bench.quick          rates and lateness, in one run, beside what the bare drivers do

A load is open: due times are drawn before it begins, and tasks are created some seconds ahead of them at the pace at
which they are due, whatever the scheduler does. Whoever receives runs in a process of its own and writes down what came
when; what was acknowledged and what came are compared afterwards, task by task.

Every server process is a child that runs the command line as a user would. Children speak JSON lines on stdout, and
what they say on stderr is kept until the end; if one fails, its last lines are shown. All of it, with keyspace, topics
and folders, is gone afterwards.
"""
