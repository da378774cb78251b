"""Webhooks over HTTP: signed events of the feed at an address, again and again until they are taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_structured_event
from cloudevents.core.formats.json import JSONFormat
from openai import OpenAI
from standardwebhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from swarmkeep.runs import webhooks as sending
from swarmkeep.store.feed import BEGINNING
from swarmkeep.store.records import StoreUnavailable
from tests.http.auth.keys import create_key
from tests.http.server import RunningServer, check_problem, scripted, start_server
from tests.support.certificates import Authority
from tests.support.receiver import Received, Receiver, receiving
from tests.support.scripted import ScriptedModel
from tests.support.waiting import wait_until

LOOPBACK = ("127.0.0.0/8",)
HOOKS = "/v1/webhooks"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "PAUSES_SECONDS", (0.05,) * 4)


@pytest.fixture
async def server(ready_url: str, model: ScriptedModel) -> AsyncIterator[RunningServer]:
    async with start_server(scripted(ready_url, model, webhook_networks=LOOPBACK)) as found:
        yield found


async def make_hook(server: RunningServer, receiver: Receiver, path: str = "/hook", **given: Any) -> dict[str, Any]:
    answer = await server.post(HOOKS, {"url": receiver.url + path, **given})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_events_are_signed_cloudevents(server: RunningServer, model: ScriptedModel, receiver: Receiver) -> None:
    made = await make_hook(server, receiver)
    model.say("Grüße \U0001f600")
    session = await server.session()
    await server.run(session)
    events = await server.events(session)
    await receiver.wait_until(lambda: len(receiver.taken) == len(events))
    client = OpenAI(api_key="none", webhook_secret=made["secret"])
    for event, got in zip(events, receiver.taken, strict=True):
        Verifier(made["secret"]).verify(got.body, dict(got.headers))
        assert client.webhooks.unwrap(got.body, dict(got.headers)) is not None
        parsed = from_structured_event(HTTPMessage(dict(got.headers), got.body), JSONFormat())
        assert (parsed.get_type(), parsed.get_id()) == (event["type"], event["hash"])
        assert parsed.get_source() == session
        assert got.event["data"] == event
        assert got.headers["user-agent"] == "Swarmkeep"
    assert len({got.headers["webhook-id"] for got in receiver.taken}) == len(events)
    with pytest.raises(WebhookVerificationError):
        Verifier(made["secret"]).verify(receiver.taken[0].body + b" ", dict(receiver.taken[0].headers))
    shown = (await server.get(f"{HOOKS}/{made['id']}")).json()
    assert shown.keys() == made.keys() - {"secret"}
    listed = (await server.get(HOOKS)).json()
    assert ([one["id"] for one in listed["data"]], listed["next_cursor"]) == ([made["id"]], None)


async def test_filters_choose_events(server: RunningServer, model: ScriptedModel, receiver: Receiver) -> None:
    await make_hook(server, receiver, types=["run.completed"], metadata={"customer": "c1"})
    await make_hook(server, receiver, "/nobody", agents=["Nobody"])
    for customer in ("c2", "c1"):
        model.say("Hello.")
        await server.run(await server.session(id=customer, metadata={"customer": customer}))
    await receiver.wait_until(lambda: bool(receiver.received))
    await server.session(id="later")
    assert [(got.path, got.event["type"], got.place[0]) for got in receiver.received] == [
        ("/hook", "run.completed", "c1")
    ]


async def test_failures_are_tried_again_in_order(server: RunningServer, receiver: Receiver) -> None:
    await make_hook(server, receiver)
    bad = 3

    async def answer(got: Received) -> int:
        nonlocal bad
        if got.place == ("a", 2) and bad:
            bad -= 1
            return 500
        return 200

    receiver.answer = answer  # type: ignore[method-assign]
    for name in "ab":
        path = await server.session(id=name)
        for _ in range(3):
            await server.patch(path, {"metadata": {"n": str(_)}})
    await receiver.wait_until(lambda: len(receiver.taken) == 8)
    for name in "ab":
        assert [got.place[1] for got in receiver.taken if got.place[0] == name] == [1, 2, 3, 4]
    again = [got for got in receiver.received if got.place == ("a", 2)]
    assert len(again) == 4
    assert len({got.headers["webhook-id"] for got in again}) == 1


async def test_dead_letters_are_listed_and_sent_again(
    server: RunningServer, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "PAUSES_SECONDS", (0.0,))
    made = await make_hook(server, receiver)
    listed = f"{HOOKS}/{made['id']}/deliveries"
    takes = False

    async def answer(got: Received) -> int:
        return 200 if takes or got.place[1] != 1 else 503

    receiver.answer = answer  # type: ignore[method-assign]
    path = await server.session(id="a")
    await server.patch(path, {"metadata": {"n": "1"}})
    await receiver.wait_until(lambda: [got.place[1] for got in receiver.received] == [1, 1, 2])
    # What came after it goes on once it is given up.
    assert [got.place[1] for got in receiver.taken] == [2]
    while not (dead := (await server.get(f"{listed}?state=dead")).json()["data"]):
        pass
    [one] = dead
    assert {**one, "updated_at": "", "cursor": ""} == {
        "cursor": "", "session_id": "a", "seq": 1, "state": "dead", "attempts": 2, "next_at": None,
        "error": "the answer was 503", "updated_at": "",
    }  # fmt: skip
    # It was taken, which is recorded a moment later.
    while (await server.get(f"{listed}?state=waiting")).json()["data"]:
        pass
    metrics = (await server.get("/metrics")).text
    assert f'swarmkeep_webhook_dead{{tenant="default",webhook="{made["id"]}"}} 1.0' in metrics
    assert 'swarmkeep_webhook_attempts_total{outcome="dead"} 1.0' in metrics
    takes = True
    again = await server.post(f"{listed}/{one['cursor']}/resend")
    assert (again.status_code, again.json()["state"], again.json()["attempts"]) == (200, "waiting", 0)
    await receiver.wait_until(lambda: [got.place[1] for got in receiver.taken] == [2, 1])
    while (await server.get(listed)).json()["data"]:
        pass
    check_problem(await server.post(f"{listed}/{one['cursor']}/resend"), 404, "delivery_not_found")
    check_problem(await server.post(f"{listed}/x/resend"), 400, "invalid_request")
    check_problem(await server.get(f"{HOOKS}/wh_none/deliveries"), 404, "webhook_not_found")


async def test_redacted_content_is_not_sent(server: RunningServer, model: ScriptedModel, receiver: Receiver) -> None:
    made = await make_hook(server, receiver, types=["message.added"])
    takes = False

    async def answer(got: Received) -> int:
        return 200 if takes else 500

    receiver.answer = answer  # type: ignore[method-assign]
    model.say("fine")
    session = await server.session()
    await server.run(session, "my canary")
    await receiver.wait_until(lambda: bool(receiver.received))
    assert b"canary" in receiver.received[0].body
    seqs = [event["seq"] for event in await server.events(session) if event["type"] == "message.added"]
    await server.patch(f"{HOOKS}/{made['id']}", {"state": "paused"})
    assert (await server.post(f"{session}/redact", {"seqs": seqs, "reason": "asked"})).status_code == 200
    receiver.received.clear()
    takes = True
    await server.patch(f"{HOOKS}/{made['id']}", {"state": "enabled"})
    await receiver.wait_until(lambda: len(receiver.taken) == 2)
    for got in receiver.taken:
        assert got.event["data"]["data"]["redacted"] is True
        assert b"canary" not in got.body
    # What is gone is not sent, and nothing waits for it.
    takes = False
    model.say("fine")
    other = await server.session(id="gone")
    await server.run(other)
    await receiver.wait_until(lambda: any(got.place[0] == "gone" for got in receiver.received))
    assert (await server.delete(other)).status_code == 204
    while (await server.get(f"{HOOKS}/{made['id']}/deliveries")).json()["data"]:
        pass


async def test_both_secrets_sign_while_they_change_over(server: RunningServer, receiver: Receiver) -> None:
    key = {"Idempotency-Key": "once"}
    made = (await server.post(HOOKS, {"url": receiver.url}, headers=key)).json()
    assert (await server.post(HOOKS, {"url": receiver.url}, headers=key)).json()["secret"] == made["secret"]
    check_problem(await server.post(HOOKS, {"url": f"{receiver.url}/x"}, headers=key), 422, "idempotency_mismatch")
    path = f"{HOOKS}/{made['id']}"
    rotated = (await server.post(f"{path}/rotate", headers={"Idempotency-Key": "r"})).json()
    assert rotated["secret"] != made["secret"]
    again = await server.post(f"{path}/rotate", headers={"Idempotency-Key": "r"})
    assert again.json()["secret"] == rotated["secret"]
    tested = (await server.post(f"{path}/test")).json()
    assert (tested["delivered"], tested["status"], tested["error"]) == (True, 204, None)
    [got] = receiver.received
    assert got.event["type"] == "webhook.test"
    for secret in (made["secret"], rotated["secret"]):
        Verifier(secret).verify(got.body, dict(got.headers))
        OpenAI(api_key="none").webhooks.unwrap(got.body, dict(got.headers), secret=secret)
    last = (await server.post(f"{path}/rotate", {"keep_seconds": 0})).json()
    await server.post(f"{path}/test")
    got = receiver.received[-1]
    Verifier(last["secret"]).verify(got.body, dict(got.headers))
    for secret in (made["secret"], rotated["secret"]):
        with pytest.raises(WebhookVerificationError):
            Verifier(secret).verify(got.body, dict(got.headers))
    check_problem(await server.post(f"{path}/rotate", {"keep_seconds": -1}), 400, "invalid_request")


async def test_receiver_that_is_gone_gets_nothing_more(server: RunningServer, receiver: Receiver) -> None:
    made = await make_hook(server, receiver)
    path = f"{HOOKS}/{made['id']}"

    async def answer(_: Received) -> int:
        return 410

    receiver.answer = answer  # type: ignore[method-assign]
    await server.session(id="a")
    while (await server.get(path)).json()["state"] != "gone":
        pass
    assert len(receiver.received) == 1
    del receiver.answer
    await server.patch(path, {"state": "enabled"})
    await receiver.wait_until(lambda: [got.place for got in receiver.taken] == [("a", 1)])
    audit = (await server.get("/v1/audit")).json()["data"]
    told = [(one["type"], one["data"]["url"]) for one in audit if one["type"].startswith("webhook.")]
    assert told == [(f"webhook.{what}", receiver.url) for what in ("created", "disabled", "updated")]
    assert (await server.delete(path)).status_code == 204
    check_problem(await server.get(path), 404, "webhook_not_found")


async def test_large_event_is_referred_to(ready_url: str, model: ScriptedModel, receiver: Receiver) -> None:
    given = scripted(ready_url, model, webhook_networks=LOOPBACK, max_webhook_bytes=1_000)
    async with start_server(given) as server:
        await make_hook(server, receiver, types=["message.added"])
        await server.session(id="a", messages=[{"role": "user", "content": "x" * 2_000}])
        await receiver.wait_until(lambda: bool(receiver.taken))
        event = receiver.taken[0].event
        assert "data" not in event
        [found] = (await server.get(event["dataref"])).json()["data"]
        assert found["hash"] == event["id"]


async def test_only_allowed_addresses_are_sent_to(ready_url: str, model: ScriptedModel, receiver: Receiver) -> None:
    port = receiver.url.rpartition(":")[2]
    async with start_server(scripted(ready_url, model)) as server:
        for url in (
            f"http://127.0.0.1:{port}/", f"https://127.0.0.1:{port}/", "https://[::1]/", "https://[::ffff:10.0.0.1]/",
            "https://169.254.169.254/latest", "https://10.0.0.1/", "https://[fe80::1]/", "https://[fec0::1]/",
            "https://[64:ff9b::7f00:1]/", "https://[2002:7f00:1::]/", "https://224.0.0.1/", "https://0.0.0.0/",
            "http://example.com/", "https://user@example.com/", "https://example.com/#x", "ftp://example.com/", "x",
            "https://example.com:99999/", "https:///", "https://exa mple.com/", "https://[::1/", "https://é.example/",
            "https://example.com/" + "x" * 2_000,
        ):  # fmt: skip
            problem = check_problem(await server.post(HOOKS, {"url": url}), 400, "invalid_request")
            assert problem["errors"][0]["pointer"] == "/url", url
        # Names and other ways to write an address are looked up when it is sent to.
        for url in (f"https://localhost:{port}/", f"https://LOCALHOST:{port}/"):
            made = (await server.post(HOOKS, {"url": url})).json()
            tested = (await server.post(f"{HOOKS}/{made['id']}/test")).json()
            assert (tested["delivered"], tested["status"]) == (False, None)
            assert "SWARMKEEP_WEBHOOK_NETWORKS" in tested["error"], url
        for url in (
            f"https://localhost.:{port}/",
            f"https://2130706433:{port}/",
            f"https://0x7f.1:{port}/",
            f"https://127.1:{port}/",
        ):
            made = (await server.post(HOOKS, {"url": url})).json()
            assert not (await server.post(f"{HOOKS}/{made['id']}/test")).json()["delivered"], url
    async with start_server(scripted(ready_url, model, webhook_networks=("127.0.0.1/32",))) as server:
        for location, error in (
            ("http://127.0.0.2:1/", "use https"), ("https://10.0.0.1/", "not public"), ("/again", "3 redirects"),
            ("https://localhost.invalid/", "cannot be made"),
        ):  # fmt: skip

            async def answer(_: Received, location: str = location) -> tuple[int, Mapping[str, str]]:
                return 307, {"location": location}

            receiver.answer = answer  # type: ignore[method-assign]
            made = await make_hook(server, receiver)
            tested = (await server.post(f"{HOOKS}/{made['id']}/test")).json()
            assert not tested["delivered"]
            assert error in tested["error"]

        async def once(got: Received) -> int | tuple[int, Mapping[str, str]]:
            return 200 if got.path == "/new" else (308, {"location": "/new"})

        receiver.answer = once  # type: ignore[method-assign]
        assert (await server.post(f"{HOOKS}/{made['id']}/test")).json()["delivered"]


async def test_outage_of_the_database_loses_nothing(
    server: RunningServer, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_hook(server, receiver)
    read_one, failures = server.engine.feed.read_one, [StoreUnavailable("the database is away")] * 3

    async def fail_first(*given: Any) -> Any:
        if failures:
            raise failures.pop()
        return await read_one(*given)

    monkeypatch.setattr(server.engine.feed, "read_one", fail_first)
    for name in "abcd":
        await server.session(id=name)
    await receiver.wait_until(lambda: {got.place[0] for got in list(receiver.taken)} == set("abcd"))


async def test_slow_receiver_is_given_up_on(ready_url: str, model: ScriptedModel, receiver: Receiver) -> None:
    async def answer(_: Received) -> int:
        await asyncio.Event().wait()
        return 200

    receiver.answer = answer  # type: ignore[method-assign]
    given = scripted(ready_url, model, webhook_networks=LOOPBACK, webhook_seconds=0.1)
    async with start_server(given) as server:
        made = await make_hook(server, receiver)
        tested = (await server.post(f"{HOOKS}/{made['id']}/test")).json()
        assert tested["error"] == "no answer within 0.1 s"


async def test_silent_receivers_delay_no_other_tenant(ready_url: str, model: ScriptedModel, receiver: Receiver) -> None:
    silent: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def answer(got: Received) -> int:
        if got.path != "/good":
            silent.append((asyncio.get_running_loop(), asyncio.Event()))
            await silent[-1][1].wait()
        return 204

    receiver.answer = answer  # type: ignore[method-assign, assignment]
    given = scripted(ready_url, model, webhook_networks=LOOPBACK, webhook_seconds=60)
    async with start_server(given) as server:
        bad = [await create_key(server, name, role="admin") for name in ("one", "two")]
        good = await create_key(server, "good", role="admin")
        for key in bad:
            for number in range(20):
                await server.post(HOOKS, {"url": f"{receiver.url}/{number}"}, headers=key)
            for number in range(8):
                await server.post("/v1/sessions", {"id": f"s{number}"}, headers=key)
        await wait_until(lambda: len(silent) >= 2 * 8)
        # One that waits for its turn is sent to where it is to be sent to then.
        waiting = (await server.get(HOOKS, headers=bad[0])).json()["data"]
        for hook in waiting:
            await server.client.patch(f"{HOOKS}/{hook['id']}", json={"url": f"{receiver.url}/moved"}, headers=bad[0])
        await server.post(HOOKS, {"url": f"{receiver.url}/good"}, headers=good)
        await server.post("/v1/sessions", {"id": "ours"}, headers=good)
        await receiver.wait_until(lambda: [got.path for got in receiver.taken] == ["/good"])
        released = len(silent)
        for loop, answered in silent[:released]:
            loop.call_soon_threadsafe(answered.set)
        await wait_until(lambda: any(got.path == "/moved" for got in receiver.received))
    for loop, answered in silent[released:]:
        loop.call_soon_threadsafe(answered.set)


async def test_two_servers_send_each_event_once(ready_url: str, model: ScriptedModel, receiver: Receiver) -> None:
    given = scripted(ready_url, model, webhook_networks=LOOPBACK)
    async with AsyncExitStack() as opened:
        one, other = [await opened.enter_async_context(start_server(given)) for _ in range(2)]
        await make_hook(one, receiver)
        for number in range(20):
            await (one, other)[number % 2].session(id=f"s{number}")
        await receiver.wait_until(lambda: len(receiver.taken) >= 20)
        await make_hook(other, receiver, "/all", after=str(BEGINNING))
        await receiver.wait_until(lambda: len(receiver.taken) >= 40)
    # What was under way when they stopped is recorded.
    places = [(got.path, got.place) for got in receiver.received]
    assert sorted(places) == sorted((path, (f"s{n}", 1)) for n in range(20) for path in ("/hook", "/all"))


async def test_webhooks_are_admins_and_bounded(ready_url: str, model: ScriptedModel, receiver: Receiver) -> None:
    given = scripted(ready_url, model, webhook_networks=LOOPBACK, max_webhooks=1)
    async with start_server(given) as server:
        admin = await create_key(server, "acme", role="admin")
        writer = await create_key(server, "acme", role="write")
        other = await create_key(server, "other", role="admin")
        check_problem(await server.get(HOOKS, headers=writer), 403, "forbidden")
        made = (await server.post(HOOKS, {"url": receiver.url}, headers=admin)).json()
        refused = await server.post(HOOKS, {"url": receiver.url}, headers=admin)
        assert "SWARMKEEP_MAX_WEBHOOKS" in check_problem(refused, 429, "quota_exceeded")["detail"]
        check_problem(await server.get(f"{HOOKS}/{made['id']}", headers=other), 404, "webhook_not_found")
        await server.post("/v1/sessions", {"id": "theirs"}, headers=other)
        await server.post("/v1/sessions", {"id": "ours"}, headers=admin)
        await receiver.wait_until(lambda: bool(receiver.received))
        assert {got.place[0] for got in receiver.received} == {"ours"}
        for body in ({}, {"url": receiver.url, "types": ["x"] * 51}, {"url": receiver.url, "after": "99-0"}):
            check_problem(await server.post(HOOKS, body, headers=other), 400, "invalid_request")


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """One that this process trusts, and no other."""
    found = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(found.file))
    return found


async def test_events_are_delivered_over_tls(server: RunningServer, authority: Authority) -> None:
    asked: list[str | None] = []
    context = authority.make_context("localhost")
    context.sni_callback = lambda _socket, name, _context: asked.append(name)
    with receiving(context) as receiver:
        made = await make_hook(server, receiver)
        assert receiver.url.startswith("https://localhost:")
        await server.session(id="a")
        await receiver.wait_until(lambda: [got.place for got in receiver.taken] == [("a", 1)])
        [got] = receiver.taken
        Verifier(made["secret"]).verify(got.body, dict(got.headers))
        # The connection is to an address; the name is what the certificate has to be of.
        assert set(asked) == {"localhost"}
        assert got.headers["host"] == receiver.url.removeprefix("https://")


@pytest.mark.parametrize("wrong", ["name", "authority", "age"])
async def test_wrong_certificate_is_refused_until_it_is_right(
    server: RunningServer, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    made_of = {
        "name": lambda: authority.make_context("elsewhere.example"),
        "authority": lambda: Authority(tmp_path, "unknown").make_context("localhost"),
        "age": lambda: authority.make_context("localhost", days=-1),
    }
    monkeypatch.setattr(sending, "PAUSES_SECONDS", (0.05,) * 200)
    right, context, handshakes, is_wrong = authority.make_context("localhost"), made_of[wrong](), 0, True

    def choose(tls: Any, _name: str | None, _context: Any) -> None:
        nonlocal handshakes
        handshakes += 1
        if not is_wrong:
            tls.context = right

    context.sni_callback = choose
    with receiving(context) as receiver:
        made = await make_hook(server, receiver)
        path = f"{HOOKS}/{made['id']}"
        tested = (await server.post(f"{path}/test")).json()
        assert (tested["delivered"], tested["status"], handshakes) == (False, None, 1)
        assert tested["error"].startswith("the certificate is refused: ")
        await server.session(id="a")
        while (shown := (await server.get(path)).json())["failures"] < 2:
            pass
        assert shown["error"] == tested["error"]
        assert handshakes >= 3
        assert receiver.received == []
        is_wrong = False
        await receiver.wait_until(lambda: [got.place for got in receiver.taken] == [("a", 1)])
