"""The list of what was forked from a session."""

from __future__ import annotations

from tests.http.server import RunningServer, check_problem


async def test_session_pages_its_own_forks(service: RunningServer) -> None:
    session = await service.session(metadata={"title": "Where it began"})
    origin = session.rpartition("/")[2]
    for name in ("one", "two", "three"):
        made = await service.post(f"{session}/fork", {"id": f"{origin}-{name}"})
        assert made.status_code == 201
    below = await service.post(f"{session}-two/fork", {"id": f"{origin}-below"})
    assert below.status_code == 201
    assert (await service.delete(f"{session}-three")).status_code == 204
    found, cursor, pages = [], "", 0
    while cursor is not None:
        page = (await service.get(f"{session}/forks?limit=1{cursor and f'&cursor={cursor}'}")).json()
        found += page["data"]
        cursor, pages = page["next_cursor"], pages + 1
    assert [one["id"] for one in found] == [f"{origin}-two", f"{origin}-one"]
    assert found[0]["forked_from"]["session_id"] == origin
    assert "context_variables" not in found[0]
    assert pages == 4, "the fork's own fork is passed over, and an empty page is the last"
    (last,) = (await service.get(f"{session}-two/forks")).json()["data"]
    assert last["id"] == f"{origin}-below"
    assert (await service.get(f"{session}-below/forks")).json() == {"data": [], "next_cursor": None}
    check_problem(await service.get("/v1/sessions/nobody/forks"), 404, "session_not_found")
    check_problem(await service.get(f"{session}/forks?cursor=x"), 400, "invalid_request")
