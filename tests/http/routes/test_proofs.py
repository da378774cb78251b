"""Checkpoints of the log of heads, and what is proven from them, over HTTP."""

from __future__ import annotations

from swarmkeep.events.codec import decode, encode
from swarmkeep.history.proofs import Proof, TreeHash, parse_note
from tests.history.test_proofs import check
from tests.http.server import RunningServer, check_problem


async def test_sessions_are_proven_over_http(service: RunningServer) -> None:
    check_problem(await service.get("/v1/sessions/absent/proof"), 404, "checkpoint_not_found")
    first = await service.session()
    kept = (await service.get("/v1/checkpoint")).json()
    assert (kept["number"], kept["size"], kept["origin"], kept["public_key"]) == (1, 1, "swarmkeep/default", None)
    assert (await service.get("/v1/checkpoint")).json() == kept
    assert "consistency" not in kept
    await service.post(f"{first}/messages", {"messages": [{"role": "user", "content": "hello"}]})
    second = await service.session()
    newest = (await service.get("/v1/checkpoint?since=1")).json()
    assert (newest["number"], newest["size"]) == (2, 3)
    assert (await service.get("/v1/checkpoint?number=1")).json() == kept
    leaves = (await service.get("/v1/checkpoint/leaves?limit=2")).json()
    leaves["data"] += (await service.get(f"/v1/checkpoint/leaves?cursor={leaves['next_cursor']}")).json()["data"]
    tree = TreeHash()
    for leaf in leaves["data"]:
        tree.add(leaf["leaf"].encode())
    assert tree.root == parse_note(newest["note"].encode()).root
    for path in (f"{first}/proof?checkpoint=1", f"{first}/proof", f"{second}/proof"):
        proof = (await service.get(path)).json()
        check(decode(encode(proof), Proof))
        state = (await service.get(path.partition("/proof")[0])).json()
        assert path.endswith("1") or proof["hash"] == state["hash"]
    check_problem(await service.get(f"{second}/proof?checkpoint=1"), 404, "not_in_checkpoint")
    check_problem(await service.get(f"{second}/proof?checkpoint=3"), 404, "checkpoint_not_found")
    check_problem(await service.get("/v1/sessions/absent/proof"), 404, "session_not_found")
    check_problem(await service.get("/v1/checkpoint?number=9"), 404, "checkpoint_not_found")
    refused = check_problem(await service.get("/v1/checkpoint?since=4"), 400, "invalid_request")
    assert refused["errors"][0]["pointer"] == "/query/since"
