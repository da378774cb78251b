"""Fills an empty database with many sessions by SQL alone: through the server it would take hours."""

from __future__ import annotations

from sqlalchemy import Connection, text

from swarmkeep.store.records import label_of
from swarmkeep.store.search import join_words

_START = 1_767_225_600
_SECONDS_BETWEEN = 20
_ROWS_AT_ONCE = 200_000

TENANT, AGENT, RARE_AGENT = "default", "Triage", "Rare"
# Of the sessions each one, every third and every 3,000th have this metadata, with the value "yes".
LABELS = {"common": 1, "often": 3, "rare": 3_000}

# What the two databases write differently.
_WORDS = {
    "sqlite": {
        "time": "strftime('%Y-%m-%dT%H:%M:%S.000000Z', {0}, 'unixepoch')",
        "digest": "CAST({0} || '-32-bytes-that-look-like-a-hash!' AS BLOB)",
        "pad": "printf('%0{1}d', {0})",
        "bytes": "X'{0}'",
        "now": "(julianday('now') - 2440587.5) * 86400.0",
        "words": "{0}",
    },
    "postgresql": {
        "time": "to_char(to_timestamp({0}) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')",
        "digest": "convert_to({0} || '-32-bytes-that-look-like-a-hash!', 'UTF8')",
        "pad": "lpad(({0})::text, {1}, '0')",
        "bytes": "decode('{0}', 'hex')",
        "now": "extract(epoch FROM clock_timestamp())",
        "words": "array_to_tsvector(string_to_array({0}, ' '))",
    },
}


def fill_database(connection: Connection, sessions: int, events_per_session: int, calls_per_session: int) -> None:
    """Sessions of two tenants; one in 1,000 is running, one in 50 waits, and one in 5,000 has the rare agent."""
    words = _WORDS[connection.dialect.name]

    def say(word: str, *values: object) -> str:
        return words[word].format(*values)

    tenant = f"CASE WHEN n % 20 = 7 THEN 'other' ELSE '{TENANT}' END"
    name = f"'s' || {say('pad', 'n', 9)}"
    created = say("time", f"{_START} + n * {_SECONDS_BETWEEN}")
    agent = f"CASE WHEN n % 5000 = 3 THEN '{RARE_AGENT}' WHEN n % 10 = 0 THEN 'Refunds' ELSE '{AGENT}' END"
    status = "CASE WHEN n % 1000 = 1 THEN 'running' WHEN n % 50 = 2 THEN 'waiting' ELSE 'idle' END"
    last_run = "CASE WHEN n % 100 = 4 THEN 'failed' WHEN n % 5000 = 6 THEN 'interrupted' ELSE 'completed' END"
    held = "n % 1000 = 1 AND n % 30000 <> 1"
    session = f"""
        INSERT INTO sessions (tenant, id, head_seq, head_hash, agent, status, created_at, updated_at, active_at,
            last_run, view, lease_owner, lease_epoch, lease_expires_at, due_at)
        SELECT {tenant}, {name}, {events_per_session}, {say("digest", name)}, {agent}, {status},
            {created}, {created}, {created}, {last_run},
            '{{"metadata":{{}},"words":"' || {say("pad", "n", 400)} || '"}}',
            CASE WHEN {held} THEN 'another-server' END, 1, CASE WHEN {held} THEN {say("now")} + 86400 END,
            CASE WHEN n % 10000 = 2 THEN 1.0 WHEN n % 50 = 2 THEN {say("now")} + 86400 END
        FROM numbers
    """
    labels = " UNION ALL ".join(
        f"SELECT {say('bytes', label_of(key, 'yes').hex())} AS label, {every} AS every" for key, every in LABELS.items()
    )
    label = f"""
        INSERT INTO session_labels (tenant, session_id, label, created_at)
        SELECT {tenant}, {name}, label, {created} FROM numbers CROSS JOIN ({labels}) AS labels WHERE n % every = 0
    """
    in_session = "SELECT n / {0} AS s, n % {0} + 1 AS seq FROM numbers"
    run = f"'run_' || {say('pad', 'CAST(s AS BIGINT) * 7919 % 1000003', 8)} || {say('pad', 'seq', 8)}"
    of_session = tenant.replace("n %", "s %"), f"'s' || {say('pad', 's', 9)}"
    day = f"substr({say('time', f'{_START} + s * {_SECONDS_BETWEEN}')}, 1, 10)"
    event = f"""
        INSERT INTO events (tenant, session_id, seq, run_id, type, version, agent, recorded_at, payload, salt,
            commitment, hash)
        SELECT {", ".join(of_session)}, seq, {run}, 'message.added', 1, '{AGENT}',
            {say("time", f"{_START} + s * {_SECONDS_BETWEEN}")},
            '{{"message":{{"role":"user","content":"' || {say("pad", "seq", 60)} || '"}}}}',
            {say("digest", "''")}, {say("digest", "''")}, {say("digest", "s || '-' || seq")}
        FROM ({in_session.format(events_per_session)}) AS placed
    """
    call = f"""
        INSERT INTO usage (tenant, session_id, seq, day, run_id, agent, model, model_calls, tool_calls, prompt_tokens,
            completion_tokens, total_tokens, cached_tokens, reasoning_tokens, model_ms, tool_ms)
        SELECT {", ".join(of_session)}, seq, {day}, {run}, '{AGENT}', 'model', 1, 0, 900, 20, 920, 0, 0, 800.5, 0
        FROM ({in_session.format(calls_per_session)}) AS placed
    """
    ended = f"""
        INSERT INTO runs (tenant, session_id, seq, run_id, agent, model, status, stop_reason, error, created_at,
            finished_at, latency_ms, waited_ms, first_token_ms, model_calls, tool_calls, tool_errors, prompt_tokens,
            completion_tokens, total_tokens)
        SELECT {tenant}, {name}, 1, 'run_' || {say("pad", "n", 16)}, {agent},
            CASE WHEN n % 10 = 1 THEN 'small' ELSE 'model' END, {last_run}, 'end_turn', '',
            {created}, {created}, CAST(n AS BIGINT) * 7919 % 60000 + 0.5, 0,
            CASE WHEN n % 3 <> 0 THEN CAST(n AS BIGINT) * 7877 % 5000 + 0.5 END, 1, 0, 0, 900, 20,
            920 + CAST(n AS BIGINT) * 7919 % 10007
        FROM numbers
    """
    creation = (
        f"INSERT INTO creations (tenant, key, session_id) SELECT {tenant}, 'made-' || {name}, {name} FROM numbers"
    )
    record = f"""
        INSERT INTO idempotency (tenant, session_id, key, digest, run_id, seq)
        SELECT {tenant}, {name}, 'made-' || {name}, 'digest', NULL, 1 FROM numbers
    """
    for statement, rows in (
        (session, sessions),
        (creation, sessions),
        (record, sessions),
        (ended, sessions),
        (label, sessions),
        (event, sessions * events_per_session),
        (call, sessions * calls_per_session),
    ):
        _insert_numbered(connection, statement, rows)


def fill_search_index(connection: Connection, sessions: int, events_per_session: int) -> None:
    """The words of those sessions: in each message one of all, one that tells its place, and the session's id."""
    words = _WORDS[connection.dialect.name]
    marks = {tenant: join_words(tenant, [""]) for tenant in (TENANT, "other")}
    tenant = f"CASE WHEN s % 20 = 7 THEN 'other' ELSE '{TENANT}' END"
    mark = f"CASE WHEN s % 20 = 7 THEN '{marks['other']}' ELSE '{marks[TENANT]}' END"
    name = f"'s' || {words['pad'].format('s', 9)}"
    said = f"mark || 'common ' || mark || 'number' || seq || ' ' || mark || {name}"
    placed = f"SELECT n, n / {events_per_session} AS s, n % {events_per_session} + 1 AS seq FROM numbers"
    search = f"""
        INSERT INTO search (tenant, session_id, seq, number, words)
        SELECT {tenant}, {name}, seq, n, {words["words"].format(said)}
        FROM (SELECT n, s, seq, {mark} AS mark FROM ({placed}) AS placed) AS marked
    """
    done = f"""
        INSERT INTO search_marks (tenant, session_id, seq, done, round)
        SELECT {tenant}, {name}, {events_per_session}, {events_per_session}, 0 FROM (SELECT n AS s FROM numbers) AS each
    """
    _insert_numbered(connection, search, sessions * events_per_session)
    _insert_numbered(connection, done, sessions)


def _insert_numbered(connection: Connection, statement: str, rows: int) -> None:
    # In parts, because the driver of one database gives a statement no more than a minute.
    for first in range(0, rows, _ROWS_AT_ONCE):
        last = min(first + _ROWS_AT_ONCE, rows) - 1
        numbers = f"RECURSIVE numbers(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM numbers WHERE n < {last})"
        connection.execute(text(f"WITH {numbers} {statement}".replace(":", "\\:")))
