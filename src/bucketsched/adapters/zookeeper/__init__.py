"""Ownership in ZooKeeper: members, lane slots, election, plan and range leases.

    <root>/<cluster id>/
      members/<member id>      ephemeral; the member as JSON
      slots/<lane>             the member that took the lane last; its version rises at each taking
      slots/<lane>/holder      ephemeral; there while the lane is taken
      election/<nonce>-<n>     ephemeral, sequential; the member's id; the lowest is the coordinator
      plan                     the whole plan as JSON; its version is the plan's
      orders                   what operators have ordered for nodes, and the last rebalance, as JSON
      ranges/<range>           epoch, lane, released, unfenced predecessors; its version rises with each change of them
      ranges/<range>/lease     ephemeral; there while the lease stands

One `ZooKeeperSession` is one ZooKeeper session and never another: what was proved by it can't be confused with what a
later one does. Whether a lease stands is decided by the server, in one multi that checks the version of the range and
of the slot together with the write; nothing that was read before, and no state of the client, is a proof.

ZooKeeper's being down changes nothing for who owns something: the session counts as over only when a server said so, or
the slot was found gone. Until then reads are answered from a cache that watches keep current.
"""
