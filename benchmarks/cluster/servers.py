"""The servers of a cluster, and all that stands before and behind them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.cluster.services import DATABASE, Balancer, Pooler, PostgresNode, find_programs, make_folder
from benchmarks.processes import Process, free_port, start_stub_model
from swarmkeep.store.schema import upgrade

TEAM = Path(__file__).with_name("team.py")
HERE = str(TEAM.parents[2])
_COMPLAINT = re.compile(r"\S+ \S+ (?=(WARNING|ERROR|CRITICAL) )")
_NUMBER = re.compile(r"[\w-]*\d[\w-]*")


class Cluster:
    """Everything that runs. Servers have places, and each place a port of its own."""

    def __init__(self, stack: ExitStack, folder: Path, migrate: Callable[[str], None] = upgrade) -> None:
        programs = find_programs()
        self.effects = folder / "effects"
        self.primary = PostgresNode(programs, make_folder(folder, "primary"))
        stack.callback(lambda: self.primary.end())
        self.primary.sql(f"CREATE DATABASE {DATABASE}")
        migrate(self.primary.url)
        # Through a pooler servers cannot ask for these themselves.
        for name in ("idle_in_transaction_session_timeout", "lock_timeout"):
            self.primary.sql(f"ALTER DATABASE {DATABASE} SET {name} = '5s'")
        self.replica = PostgresNode(programs, make_folder(folder, "replica"), self.primary)
        stack.callback(self.replica.end)
        self.primary.wait_for_replica()
        self.pooler = Pooler(make_folder(folder, "pooler"), self.primary)
        stack.callback(self.pooler.end)
        self._model = stack.enter_context(start_stub_model())
        self.ports = [free_port() for _ in range(3)]
        self.servers: list[Process | None] = [None] * 3
        stack.callback(self._end_servers)
        self._complaints: Counter[str] = Counter()
        self.balancer = Balancer(make_folder(folder, "balancer"), self.ports)
        stack.callback(self.balancer.end)

    def start_server(self, place: int, path: str = HERE) -> None:
        """`path`: where Python finds the release that it is of."""
        env = {
            "OPENAI_BASE_URL": f"{self._model.url}/v1",
            "OPENAI_API_KEY": "bench",
            "CLUSTER_EFFECTS": str(self.effects),
            "SWARMKEEP_DATABASE_URL": self.pooler.url,
            "SWARMKEEP_LEASE_SECONDS": "5",
            "SWARMKEEP_LOG_LEVEL": "warning",
            "PYTHONPATH": path,
        }
        arguments = ["swarmkeep", "serve", "--agents", str(TEAM), "--port", str(self.ports[place])]
        self.servers[place] = Process(arguments, self.ports[place], env).__enter__()

    def kill_server(self, place: int) -> None:
        server = self.servers[place]
        assert server is not None
        self._note_log(server)
        server.kill()
        self.servers[place] = None

    def stop_server(self, place: int) -> None:
        """As an operator does, for an upgrade."""
        server = self.servers[place]
        assert server is not None
        self._note_log(server)
        server.__exit__()
        self.servers[place] = None

    def fail_over(self) -> None:
        self.primary.kill()
        self.replica.promote()
        self.pooler.lead_to(self.replica)

    def count_log_lines(self) -> dict[str, int]:
        """What servers have complained of, and how often."""
        for server in self.servers:
            if server is not None:
                self._note_log(server)
        return dict(self._complaints)

    def _note_log(self, server: Process) -> None:
        lines = (line.partition(" [")[0] for line in server.log.splitlines() if _COMPLAINT.match(line))
        self._complaints.update(_NUMBER.sub("…", _COMPLAINT.sub("", line))[:160] for line in lines)

    def _end_servers(self) -> None:
        for server in self.servers:
            if server is not None:
                server.__exit__()

    def measure_cpu(self) -> tuple[float, float]:
        """Of the servers, and of the primary."""
        return sum(server.cpu_seconds for server in self.servers if server), self.primary.cpu_seconds
