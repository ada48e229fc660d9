"""What goes wrong in a run, and when: drawn from the seed, noted in the trace with a "!"."""

from __future__ import annotations

import random
from collections.abc import Callable

from bucketsched.core import failpoints

from .broker import KAFKA, Trouble
from .client import CLIENT
from .ensemble import ZOOKEEPER
from .loop import CURRENT, Crashed, Process
from .mix import DOOMED_AT
from .network import Weather, owner_of
from .processes import Node
from .replicas import CASSANDRA, Lag, newest_checkpoint
from .world import World

SERVERS = (KAFKA, ZOOKEEPER, CASSANDRA)


class Faults:
    """The faults of one run. `begin` plans them all; `heal` ends them all."""

    def __init__(self, world: World, until_s: float) -> None:
        self._world, self._until_s = world, until_s
        self._rng, self._mix = random.Random(world.seed ^ 0x5EED), world.mix
        self._healed = False
        self._doomed: dict[str, tuple[str, int]] = {}
        self._dooms: list[str] = []
        self._stalls: dict[str, str] = {}
        self._waking: dict[Process, str] = {}
        for node in world.nodes:
            node.on_death = self._died

    # ---- the schedule

    def begin(self) -> None:
        """Sets the weather, and a time for every fault."""
        rng, world = self._rng, self._world
        failpoints.install(self._reached)
        if rng.random() < 0.6:
            self._set_weather()
        world.servers.cassandra.lag.slow_reads = self._mix.slow_reads
        for _ in range(rng.choice(self._mix.faults)):
            kind: Callable[[], None] = getattr(self, f"_{rng.choice(self._mix.kinds)}")
            at = rng.uniform(2, self._until_s)
            if rng.random() < 0.6:
                at = rng.choice(world.hot_s) + rng.uniform(-1.5, 1.5)
            world.loop.at(at, self._unless_healed, kind)

    def _unless_healed(self, fault: Callable[[], None]) -> None:
        if not self._healed:
            fault()

    def _set_weather(self) -> None:
        rng, servers = self._rng, self._world.servers
        pick = rng.choice
        servers.network.weather = Weather(
            lost=pick((0, 0.002, 0.01)),
            slow=pick((0.02, 0.2)),
            slow_s_max=self._mix.slow_s_max,
            late=pick((0, 0.002, 0.01)),
            late_s_max=pick((2.0, 8.0)),
        )
        servers.broker.trouble = Trouble(
            refuses=pick((0, 0.02)), fences=pick((0, 0.01)), unknown=pick((0, 0.02, 0.1)),
            transaction_s_max=pick((2.0, 6.0)),
        )  # fmt: skip
        servers.cassandra.lag = Lag(late=pick((0, 0.05, 0.2)), late_s_max=pick((1.0, 8.0)), missed=pick((0, 0.02)))
        servers.ensemble.lateness_s_max = pick((0, 0, 5.0))

    def heal(self) -> None:
        """From now on all is well."""
        self._healed = self._world.servers.healed = True
        self._doomed.clear()
        self._dooms.clear()
        self._stalls.clear()
        failpoints.install(None)
        world, servers = self._world, self._world.servers
        world.trace.note("!", "all faults are healed")
        servers.network.heal()
        servers.broker.trouble = Trouble()
        servers.broker.sick_topics.clear()
        servers.cassandra.lag = Lag()
        servers.ensemble.lateness_s_max = 0.0
        for replica in servers.cassandra.replicas:
            servers.cassandra.restart(replica)
        for node in world.nodes:
            node.objection = ""
            if node.life is None:
                node.start()
            elif node.life.process.paused:
                self._wake(node.life.process.name, node)
            else:
                node.life.process.fatal_step = 0

    def _note(self, what: str) -> None:
        self._world.trace.note("!", what)

    def _later(self, least_s: float, most_s: float, action: Callable[..., None], *arguments: object) -> None:
        self._world.loop.after(self._rng.uniform(least_s, most_s), action, *arguments)

    def _a_node(self) -> Node:
        return self._rng.choice(self._world.nodes)

    def _an_owner(self) -> Node:
        """One that may own ranges; in a broad mix any."""
        nodes = self._world.nodes
        return self._rng.choice([n for n in nodes if "poller" in n.settings.roles] if self._mix.pollers else nodes)

    # ---- processes

    def _died(self, node: Node) -> None:
        """Somebody starts it again."""
        if self._healed:
            self._world.loop.after(0.5, node.start)
        else:
            self._later(*self._mix.restarts_s, node.start)

    def _crash(self) -> None:
        node = self._a_node()
        if node.life is not None:
            self._note(f"! kill {node.life.process}")
            node.life.process.kill()

    def _crash_soon(self) -> None:
        """At some await that follows."""
        node = self._a_node()
        if node.life is not None:
            process = node.life.process
            process.fatal_step = process.steps + self._rng.randrange(1, 400)
            self._note(f"! kill {process} at step {process.fatal_step}")

    def _crash_at_failpoint(self) -> None:
        node = self._an_owner()
        name = self._rng.choice(self._mix.doomed_at or sorted(failpoints.NAMES))
        self._doomed[node.name] = (name, self._rng.choice((1, 1, 2, 3)))
        self._note(f"! kill {node.name} at {name}")
        if "takeover" in name and not self._mix.doomed_at:
            self._crash()

    def _doom_a_taker(self) -> None:
        """Whoever comes to some point of a takeover next."""
        self._dooms.append(self._rng.choice(self._mix.doomed_at or DOOMED_AT))
        self._note(f"! whoever comes to {self._dooms[-1]} is killed")

    def _reached(self, name: str) -> None:
        process = CURRENT.get()
        if process is None:
            return
        process.check()
        node = owner_of(process)
        wanted, left = self._doomed.get(node, ("", 0))
        if name in self._dooms:
            self._dooms.remove(name)
            wanted, left = name, 1
        elif self._wake_those_that_wait_for(process, name) and self._rng.random() < self._mix.relays:
            self._stop_for(process, self._rng.uniform(*self._mix.relays_s))
        if self._stalls.get(node) == name:
            del self._stalls[node]
            self._stop_here(process)
        if wanted == name:
            if left > 1:
                self._doomed[node] = (name, left - 1)
                return
            self._doomed.pop(node, None)
            process.kill()
            raise Crashed(name)

    def _pause(self) -> None:
        node = self._a_node()
        if node.life is not None and not node.life.process.paused:
            process = node.life.process
            seconds = self._rng.choice((self._rng.uniform(0.05, 1.5), self._rng.uniform(2, 20)))
            self._note(f"! pause {process} for {seconds:.2f} s")
            process.paused = True
            self._world.loop.after(seconds, self._wake, process.name, node)

    def _stall(self) -> None:
        """Stands still at a failpoint, perhaps until another process has come to some other."""
        node = self._an_owner()
        self._stalls[node.name] = self._rng.choice(self._mix.stalled_at)
        self._note(f"! {node.name} is to stall at {self._stalls[node.name]}")

    def _stop_here(self, process: Process) -> None:
        seconds = self._rng.choice([self._rng.uniform(*span) for span in self._mix.stalls_s])
        self._stop_for(process, seconds)
        if self._rng.random() < self._mix.awaits:
            self._waking[process] = self._rng.choice(self._mix.wakened_at)
        if self._rng.random() < self._mix.session_ends:
            self._world.loop.after(self._rng.uniform(0.01, 0.5), self._end_session_of, process)

    def _stop_for(self, process: Process, seconds: float) -> None:
        if not process.paused:
            self._note(f"! {process} stalls, at most {seconds:.2f} s")
            process.paused = True
            self._world.loop.after(seconds, self._wake, process.name, self._world.node(owner_of(process)))

    def _end_session_of(self, process: Process) -> None:
        if process.paused:
            self._note(f"! the sessions of {process} end")
            self._world.servers.ensemble.end_those_of(process)

    def _wake_those_that_wait_for(self, process: Process, name: str) -> bool:
        """True if there are any."""
        waking = [stalled for stalled, awaited in self._waking.items() if awaited == name and stalled is not process]
        for stalled in waking:
            del self._waking[stalled]
            node = self._world.node(owner_of(stalled))
            self._world.loop.after(self._rng.choice((0, 0.0005, 0.002)), self._wake, stalled.name, node)
        return bool(waking)

    def _wake(self, name: str, node: Node) -> None:
        life = node.life
        if life is not None and life.process.name == name and life.process.paused:
            self._note(f"! {name} goes on")
            self._world.loop.resume(life.process)

    def _graceful_stop(self) -> None:
        node = self._a_node()
        if node.life is not None and not node.life.process.paused:
            self._note(f"! stop {node.life.process}")
            node.life.stop()
            self._later(5, 10, self._end, node.life.process.name, node)

    def _end(self, name: str, node: Node) -> None:
        """A stop has a bound."""
        if node.life is not None and node.life.process.name == name:
            node.life.process.kill()

    def _shift_clock(self) -> None:
        """Within its bound: back and forth."""
        clock = self._a_node().clock
        clock.offset_ms = self._rng.uniform(-clock.error_ms, clock.error_ms)

    def _object(self) -> None:
        """Its clock is found to be wrong, for a while: it must step aside."""
        node = self._a_node()
        self._note(f"! the clock of {node.name} is objected to")
        node.objection = "it is wrong"
        self._later(1, 15, setattr, node, "objection", "")

    # ---- links

    def _cut_link(self, one: str, other: str, seconds: float) -> None:
        link = self._world.servers.network.link(one, other)
        link.cut, link.refuses = True, self._rng.random() < 0.5
        self._note(f"! cut {one}-{other} for {seconds:.2f} s")
        self._world.loop.after(seconds, self._mend, one, other)

    def _mend(self, one: str, other: str) -> None:
        link = self._world.servers.network.link(one, other)
        if link.cut:
            link.cut = False
            self._note(f"! mend {one}-{other}")

    def _seconds(self) -> float:
        return self._rng.choice((self._rng.uniform(0.05, 1), self._rng.uniform(1, 5), self._rng.uniform(5, 25)))

    def _cut(self) -> None:
        node = self._a_node()
        others = [*SERVERS, CLIENT, *(other.name for other in self._world.nodes if other is not node)]
        self._cut_link(node.name, self._rng.choice(others), self._seconds())

    def _isolate(self) -> None:
        node, seconds = self._a_node(), self._seconds()
        for other in (*SERVERS, CLIENT, *(other.name for other in self._world.nodes if other is not node)):
            if self._rng.random() < 0.8:
                self._cut_link(node.name, other, seconds)

    def _mute(self) -> None:
        """An api whose hints get lost, and that dies before they are repeated."""
        api = self._rng.choice([node for node in self._world.nodes if "api" in node.settings.roles])
        seconds = self._rng.uniform(*self._mix.mutes_s)
        for other in self._world.nodes:
            if other is not api:
                self._cut_link(api.name, other.name, seconds)
        if api.life is not None:
            self._later(0.2, seconds, self._kill, api.life.process)

    def _kill(self, process: Process) -> None:
        if process.alive and not self._healed:
            self._note(f"! kill {process}")
            process.kill()

    def _outage(self) -> None:
        server, seconds = self._rng.choice(SERVERS), self._seconds()
        for node in self._world.nodes:
            self._cut_link(node.name, server, seconds)

    # ---- servers

    def _expire(self) -> None:
        sessions = self._world.servers.ensemble.living()
        if sessions:
            self._note("! a session ends early")
            self._world.servers.ensemble.end(self._rng.choice(sessions))

    def _restore_zookeeper(self) -> None:
        self._note("! ZooKeeper is restored empty")
        servers = self._world.servers
        one, other = self._rng.sample(servers.cassandra.replicas, 2)
        found = {r: newest_checkpoint(one, other, r) for r in range(self._world.constants.ranges)}
        checkpoints = {r: checkpoint for r, checkpoint in found.items() if checkpoint}
        servers.ensemble.restore_empty(checkpoints)
        servers.invariants.restored({r: checkpoint.epoch for r, checkpoint in checkpoints.items()})

    def _spurious_fence(self) -> None:
        lane = self._rng.randrange(3)
        self._note(f"! lane {lane} is fenced for nothing")
        self._world.servers.broker.take(lane)

    def _replica_down(self) -> None:
        replica = self._rng.choice(self._world.servers.cassandra.replicas)
        self._note("! a replica goes down")
        replica.up = False
        self._later(0.5, 15, self._world.servers.cassandra.restart, replica)

    def _sick_topic(self) -> None:
        topic = self._rng.choice(("default.one", "default.two", "other.one"))
        self._note(f"! topic {topic} has no leader")
        sick = self._world.servers.broker.sick_topics
        sick.add(topic)
        self._later(0.5, 8, sick.discard, topic)

    def _shuffle(self) -> None:
        """An operator moves ranges."""
        ensemble, rng = self._world.servers.ensemble, self._rng
        lanes = sorted(ensemble.slots)
        if lanes:
            plan = ensemble.plan
            moved = {r: rng.choice(lanes) for r in range(self._world.constants.ranges) if rng.random() < 0.7}
            self._note(f"! ranges are moved: {moved}")
            ensemble.plan = type(plan)(plan.version + 1, {**plan.assignment, **moved})
            ensemble.change()
