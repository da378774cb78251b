"""Frees what processes keep locked that stand still in the middle of a transaction.

PostgreSQL ends a transaction whose client has been silent for too long (`idle_in_transaction_session_timeout`), but
only between two statements. The driver sends a statement that is new to a connection in two steps, first its text, then
its values; for who stands still between the two there is no limit before PostgreSQL 17, and `statement_timeout` is not
looked at, either. So whoever is kept out ends such a transaction, which its owner does again when it wakes up.
"""

from __future__ import annotations

import logging

from sqlalchemy import Engine, bindparam, text
from sqlalchemy.exc import SQLAlchemyError

from swarmkeep.domain.wording import pluralize
from swarmkeep.store.ports.errors import StoreUnavailable
from swarmkeep.store.postgres.connections import STANDSTILL_SECONDS

log = logging.getLogger(__name__)

# Only what has locked something, as this program and this user: nobody else's transaction is ours to end.
_END = text(
    "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND usename = current_user AND backend_xid IS NOT NULL"
    " AND application_name = current_setting('application_name') AND pid <> pg_backend_pid()"
    " AND state = 'active' AND wait_event_type = 'Client' AND wait_event = 'ClientRead'"
    " AND state_change < clock_timestamp() - make_interval(secs => :seconds) AND query NOT ILIKE 'copy%'"
).bindparams(bindparam("seconds"))


def end_standing_transactions(engine: Engine) -> int:
    """End transactions of this program's that have waited too long for the rest of a statement; returns how many."""
    try:
        with engine.connect() as connection:
            ended = connection.scalar(_END, {"seconds": STANDSTILL_SECONDS}) or 0
    except (SQLAlchemyError, StoreUnavailable, OSError, TimeoutError) as error:
        log.warning("cannot look for stalled transactions: %s", type(error).__name__)
        return 0
    if ended:
        stalled = pluralize(ended, "transaction that was", "transactions that were")
        log.warning("ended %s stalled for more than %g s", stalled, STANDSTILL_SECONDS)
    return ended
