"""The client's calls that remove and audit, and how their answers are read."""

from __future__ import annotations

from swarmkeep_client import AsyncClient, Checkpoint, Client, Head, RedactedCopy
from tests.client import samples
from tests.client.stub_server import StubServer, make_json_reply

DONE = {
    "session": samples.make_session(seq=5),
    "seqs": [3, 4],
    "seq": 5,
    "forks": [{"session_id": "s2", "seqs": [3], "redacted": False}],
}
ENTRY = {"seq": 1, "type": "session.deleted", "by": "Lee", "at": "", "data": {"session_id": "s1"}, "hash": "h"}
CHECKPOINT = {"number": 2, "origin": "o", "size": 6, "root": "r", "at": "", "note": "n", "public_key": None}
LEAF = {"index": 5, "session_id": None, "seq": 1, "hash": "h", "leaf": "{}"}
DUE = {"session_id": "s1", "seq": 1, "updated_at": "", "goes_at": "", "keep": "30d", "held": False}
PROOF = {
    **LEAF, "session_id": "s1", "checkpoint": CHECKPOINT, "newest": CHECKPOINT, "inclusion": ["11"], "consistency": [],
}  # fmt: skip
VALID = {"valid": True, "events": 1, "head": {"seq": 1, "hash": "h"}, "problems": [], "problem_count": 0}


def test_the_answers_are_values(server: StubServer) -> None:
    server.script(
        make_json_reply(samples.make_session()),
        make_json_reply(DONE),
        make_json_reply({**DONE, "seq": None}),
        make_json_reply(samples.make_page([samples.make_session(id="s2")], "c")),
        make_json_reply(samples.make_page([samples.make_session(id="s3")])),
        make_json_reply(VALID),
        make_json_reply(samples.make_page([ENTRY])),
        make_json_reply(VALID),
        make_json_reply({**CHECKPOINT, "consistency": ["00"]}),
        make_json_reply(samples.make_page([LEAF])),
        make_json_reply(PROOF),
        make_json_reply(samples.make_page([DUE])),
    )
    with Client(server.url, api_key=None) as client:
        session = client.sessions.get("s1")
        done = session.redact([3, 4], "asked for", include_forks=True)
        assert (done.session.seq, done.seqs, done.seq) == (5, [3, 4], 5)
        assert done.forks == [RedactedCopy(session_id="s2", seqs=[3])]
        assert session.redact([3], "asked for", dry_run=True).seq is None
        assert [fork.id for fork in session.forks(page_size=1)] == ["s2", "s3"]
        assert session.verify(head=Head(seq=1, hash="h")).head == Head(seq=1, hash="h")
        (entry,) = client.audit.list(after=0)
        assert (entry.by, entry.data) == ("Lee", {"session_id": "s1"})
        assert client.audit.verify(head=Head(seq=1, hash="h")).valid
        assert client.audit.checkpoint(2, since=3).consistency == ["00"]
        assert [leaf.session_id for leaf in client.audit.leaves(after=4)] == [None]
        assert session.proof(checkpoint=2).newest == Checkpoint(**CHECKPOINT)
        assert [due.keep for due in client.sessions.due(before="2100-01-01T00:00:00Z")] == ["30d"]
    assert server.lines == [
        "GET /v1/sessions/s1",
        "POST /v1/sessions/s1/redact",
        "POST /v1/sessions/s1/redact",
        "GET /v1/sessions/s1/forks?limit=1",
        "GET /v1/sessions/s1/forks?limit=1&cursor=c",
        "GET /v1/sessions/s1/verify?head=1%3Ah",
        "GET /v1/audit?after=0",
        "GET /v1/audit/verify?head=1%3Ah",
        "GET /v1/checkpoint?number=2&since=3",
        "GET /v1/checkpoint/leaves?after=4",
        "GET /v1/sessions/s1/proof?checkpoint=2",
        "GET /v1/retention?before=2100-01-01T00%3A00%3A00Z",
    ]


async def test_async_answers_are_values_too(server: StubServer) -> None:
    server.script(
        make_json_reply(samples.make_session()),
        make_json_reply(DONE),
        make_json_reply({**DONE, "seq": None}),
        make_json_reply(samples.make_page([samples.make_session(id="s2")])),
        make_json_reply(VALID),
        make_json_reply(samples.make_page([ENTRY])),
        make_json_reply(VALID),
        make_json_reply(CHECKPOINT),
        make_json_reply(samples.make_page([LEAF])),
        make_json_reply(PROOF),
        make_json_reply(samples.make_page([DUE])),
    )
    async with AsyncClient(server.url, api_key=None) as client:
        session = await client.sessions.get("s1")
        assert (await session.redact([3, 4], "asked for")).seqs == [3, 4]
        assert (await session.redact([3], "asked for", dry_run=True)).seq is None
        assert [fork.id async for fork in session.forks()] == ["s2"]
        assert (await session.verify(head=Head(seq=1, hash="h"))).valid
        assert [entry.seq async for entry in client.audit.list()] == [1]
        assert (await client.audit.verify()).valid
        assert (await client.audit.checkpoint()).public_key is None
        assert [leaf.index async for leaf in client.audit.leaves()] == [5]
        assert (await session.proof()).inclusion == ["11"]
        assert [due.held async for due in client.sessions.due()] == [False]
