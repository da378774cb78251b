"""PostgreSQL with a synchronous replica, pgbouncer and haproxy, from Debian's packages, in a folder of their own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from benchmarks.processes import free_port, measure_cpu_seconds

DATABASE = "swarmkeep"
# PostgreSQL and pgbouncer refuse to run as root.
_USER = "postgres"
_PATIENCE_SECONDS = 60.0
_SEARCH_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"


def wait_until(what: str, holds: Callable[[], bool], seconds: float = _PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"after {seconds:g} s still not: {what}")
        time.sleep(0.05)


def find_programs() -> Path:
    """PostgreSQL's programs; raises where a package is missing."""
    missing = [name for name in ("haproxy", "pgbouncer") if shutil.which(name, path=_SEARCH_PATH) is None]
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if missing or not folders:
        raise SystemExit("it needs Debian's packages: apt-get install haproxy pgbouncer postgresql")
    return folders[-1].parent


def make_folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        shutil.chown(folder, _USER, _USER)
    return folder


def run_as_user(command: Sequence[str | Path], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, **_user())
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


def _user() -> dict[str, str]:
    return {"user": _USER, "group": _USER} if os.geteuid() == 0 else {}


class Service:
    """A program in the background, with a log file."""

    def __init__(self, command: Sequence[str | Path], folder: Path, *, as_user: bool = True) -> None:
        self._log = (folder / "log").open("ab")
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            **(_user() if as_user else {}),
        )

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()


class PostgresNode:
    """One PostgreSQL server: the primary, or a replica of it."""

    def __init__(self, programs: Path, folder: Path, primary: PostgresNode | None = None) -> None:
        self._programs = programs
        self._folder = folder
        self.data = folder / "data"
        self.port = free_port()
        if primary is None:
            run_as_user([programs / "initdb", "-D", self.data, "-A", "trust", "-U", _USER, "-E", "UTF8"], folder)
        else:
            source = f"host=127.0.0.1 port={primary.port} user={_USER} application_name=replica"
            run_as_user([programs / "pg_basebackup", "-D", self.data, "-R", "-X", "stream", "-d", source], folder)
        settings = {
            "listen_addresses": "'127.0.0.1'",
            "port": str(self.port),
            "unix_socket_directories": "''",
            "max_connections": "200",
            "wal_level": "replica",
            "max_wal_senders": "10",
            "wal_keep_size": "'256MB'",
            "hot_standby": "on",
        }
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())
        self._service = Service([programs / "postgres", "-D", self.data], folder)
        wait_until("PostgreSQL accepts connections", self._accepts)

    def _accepts(self) -> bool:
        command = [self._programs / "pg_isready", "-h", "127.0.0.1", "-p", str(self.port), "-q"]
        return subprocess.run(command, check=False).returncode == 0

    @property
    def url(self) -> str:
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/{DATABASE}"

    @property
    def cpu_seconds(self) -> float:
        return measure_cpu_seconds(psutil.Process(self._service.process.pid))

    def sql(self, statement: str, database: str = "postgres") -> str:
        place = ["-h", "127.0.0.1", "-p", str(self.port), "-U", _USER, "-d", database]
        done = subprocess.run(
            [self._programs / "psql", *place, "-XAtqc", statement], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def wait_for_replica(self) -> None:
        """Have every commit wait for the replica from now on."""
        self.sql("ALTER SYSTEM SET synchronous_standby_names = 'replica'")
        self.sql("SELECT pg_reload_conf()")
        states = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        wait_until("the replica is synchronous", lambda: self.sql(states) == "1")

    def kill(self) -> None:
        """End it as a power failure would: all its processes at once."""
        processes = psutil.Process(self._service.process.pid).children(recursive=True)
        self._service.process.kill()
        for process in processes:
            if process.is_running():
                process.kill()
        self._service.process.wait()

    def promote(self) -> None:
        run_as_user([self._programs / "pg_ctl", "promote", "-D", self.data, "-w"], self._folder)

    def end(self) -> None:
        self._service.end(signal.SIGINT)


class Pooler:
    """pgbouncer in transaction mode."""

    def __init__(self, folder: Path, database: PostgresNode) -> None:
        self._folder = folder
        self.port = free_port()
        (folder / "users").write_text(f'"{_USER}" ""\n')
        self._write(database)
        self._service = Service([_find("pgbouncer"), folder / "pgbouncer.ini"], folder)
        wait_until("pgbouncer listens", lambda: listens(self.port))

    def _write(self, database: PostgresNode) -> None:
        lines = [
            "[databases]",
            f"{DATABASE} = host=127.0.0.1 port={database.port} dbname={DATABASE}",
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            f"listen_port = {self.port}",
            "unix_socket_dir =",
            "auth_type = trust",
            f"auth_file = {self._folder / 'users'}",
            "pool_mode = transaction",
            "max_client_conn = 500",
            "default_pool_size = 20",
            "server_login_retry = 1",
            "server_connect_timeout = 3",
        ]
        (self._folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n")

    @property
    def url(self) -> str:
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/{DATABASE}?statement_cache_size=0"

    def lead_to(self, database: PostgresNode) -> None:
        """Re-point it: what a failover manager does once it has promoted a replica."""
        self._write(database)
        self._service.process.send_signal(signal.SIGHUP)

    def end(self) -> None:
        self._service.end()


class Balancer:
    """haproxy, which asks each server whether it is ready. At a second port it balances by session."""

    def __init__(self, folder: Path, ports: Sequence[int]) -> None:
        self.port, self._port_by_session = free_port(), free_port()
        servers = [f"    server s{number} 127.0.0.1:{port} check" for number, port in enumerate(ports)]
        tracked = [f"    server s{number} 127.0.0.1:{port} track any/s{number}" for number, port in enumerate(ports)]
        lines = [
            "defaults",
            "    mode http",
            "    timeout connect 2s",
            "    timeout client 10m",
            "    timeout server 10m",
            "    retries 3",
            "    option redispatch",
            "    default-server inter 1s fall 2 rise 1",
            "frontend callers",
            f"    bind 127.0.0.1:{self.port}",
            "    default_backend any",
            "frontend callers_by_session",
            f"    bind 127.0.0.1:{self._port_by_session}",
            "    use_backend by_session if { path_reg ^/v1/sessions/[^/]+ }",
            "    default_backend any",
            "backend any",
            "    balance leastconn",
            "    option httpchk GET /health/ready",
            *servers,
            "backend by_session",
            # The first three parts of the path name a session.
            "    balance uri depth 3",
            "    hash-type consistent",
            *tracked,
        ]
        (folder / "haproxy.cfg").write_text("\n".join(lines) + "\n")
        self._service = Service([_find("haproxy"), "-db", "-f", folder / "haproxy.cfg"], folder, as_user=False)
        wait_until("haproxy listens", lambda: listens(self.port))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url_by_session(self) -> str:
        return f"http://127.0.0.1:{self._port_by_session}"

    def end(self) -> None:
        self._service.end()


def _find(name: str) -> str:
    found = shutil.which(name, path=_SEARCH_PATH)
    assert found is not None
    return found


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
