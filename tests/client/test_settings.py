"""Where the server is and who asks: from arguments first, from the environment else; the key is never shown."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import httpx2
import pytest

from swarmkeep_client import AsyncClient, Client, Unauthenticated
from tests.client import samples
from tests.client.stub_server import StubServer, make_json_reply, make_problem_reply


def test_settings_come_from_the_environment(server: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARMKEEP_URL", server.url + "/")
    monkeypatch.setenv("SWARMKEEP_API_KEY", "sk_environment")
    server.script(make_json_reply(samples.make_session()), make_json_reply(samples.make_session()))
    with Client() as client:
        assert client.base_url == server.url
        client.sessions.get("s1")
    assert server.last.headers["authorization"] == "Bearer sk_environment"
    with Client(server.url, api_key="sk_argument") as client:
        client.sessions.get("s1")
    assert server.last.headers["authorization"] == "Bearer sk_argument"


def test_keyless_client_sends_no_key(server: StubServer, client: Client) -> None:
    server.script(make_json_reply(samples.make_session()))
    client.sessions.get("s1")
    assert "authorization" not in server.last.headers
    assert server.last.headers["user-agent"].startswith("swarmkeep-client/")


def test_default_server_is_the_local_one() -> None:
    with Client() as client:
        assert client.base_url == "http://127.0.0.1:8000"


def test_server_may_live_below_a_path(server: StubServer) -> None:
    server.script(make_json_reply(samples.make_session()))
    with Client(server.url + "/team/swarm/") as client:
        client.sessions.get("s1")
    assert server.lines == ["GET /team/swarm/v1/sessions/s1"]


async def test_key_is_never_shown(server: StubServer) -> None:
    server.script(
        make_problem_reply(401, "unauthenticated", detail="no such key"), make_json_reply(samples.make_session())
    )
    async with AsyncClient(server.url, api_key="sk_secret") as other:
        with Client(server.url, api_key="sk_secret") as client:
            with pytest.raises(Unauthenticated) as refused:
                client.sessions.get("s1")
            session = client.sessions.get("s1")
        shown = [client, other, session, client.sessions, refused.value, refused.value.problem, client._sender.settings]
    assert "sk_secret" not in repr(shown) + str(refused.value) + "".join(server.lines)


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://host", "http://", "http://h?key=1", "http://h#x", "http://h:x"]
)
def test_impossible_base_url_refused(url: str) -> None:
    with pytest.raises(ValueError, match="base URL"):
        Client(url)


def test_key_in_url_refused_unquoted() -> None:
    with pytest.raises(ValueError, match="pass it as api_key") as refused:
        Client("http://sk_secret@host")
    assert "sk_secret" not in str(refused.value)


@pytest.mark.parametrize("key", ["sk secret", "sk_sécret", "sk\nsecret"])
def test_unsendable_key_refused_unquoted(key: str) -> None:
    with pytest.raises(ValueError, match="API key") as refused:
        Client(api_key=key)
    assert key not in str(refused.value)


def test_timeouts_suit_long_runs() -> None:
    with Client() as client, Client(timeout=2) as hasty, Client(timeout=None) as patient:
        assert (client._sender.settings.timeout.connect, client._sender.settings.timeout.read) == (5, 600)
        assert (client._sender.settings.stream_timeout.connect, client._sender.settings.stream_timeout.read) == (5, 45)
        assert (hasty._sender.settings.timeout.connect, hasty._sender.settings.timeout.read) == (2, 2)
        assert (patient._sender.settings.timeout.connect, patient._sender.settings.timeout.read) == (5, None)
    with Client(timeout=httpx2.Timeout(7)) as exact:
        assert exact._sender.settings.timeout.connect == 7


FORKING = """
import os, sys
from swarmkeep_client import Client
client = Client(sys.argv[1], timeout=10, max_retries=0)
print(client.health().ready)
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    print(client.health().ready)
else:
    os._exit(0 if client.health().ready else 1)
"""
ALIVE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


def answer_request(connection: socket.socket) -> None:
    received = b""
    while not received.endswith(b"\r\n\r\n"):
        piece = connection.recv(65536)
        assert piece, "the program has ended"
        received += piece
    connection.sendall(ALIVE)


def test_forked_process_has_own_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        # A read that times out ends the program, should it ask where nobody answers.
        program = subprocess.Popen([sys.executable, "-c", FORKING, url], stdout=subprocess.PIPE, text=True)
        with program, listener.accept()[0] as parents:
            answer_request(parents)
            with listener.accept()[0] as childs:
                answer_request(childs)
            answer_request(parents)
            assert program.communicate()[0].split() == ["True", "True"]
    assert program.returncode == 0


def test_threads_share_a_client(server: StubServer, client: Client) -> None:
    server.answer = lambda request: make_json_reply(samples.make_session(id=request.path.rpartition("/")[2]))
    found: list[bool] = []

    def look_up(number: int) -> None:
        found.extend(client.sessions.get(f"t{number}-{i}").id == f"t{number}-{i}" for i in range(10))

    threads = [threading.Thread(target=look_up, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 80
