"""Who owns what: one process plans, every poller follows.

Any process with the role may become the coordinator; the lease service elects one. It looks at the members, decides
which lane shall own which range (core.assignment) and writes the plan as a whole, at the version that it read and only
while it is elected, so that neither a crash half-way nor a coordinator that has been replaced leaves a torn or stale
plan. The plan is a wish: ownership itself is the lease, which a poller takes range by range. A coordinator that is down
changes nothing for who owns something; only nobody is told to take over.

Every poller has a `RangeFollower`: it takes what the plan gives to its lane as soon as the lease is free, and gives up
what the plan gives to others.
"""
