"""The help centre: articles, searched with SQLite's full-text index; tickets, and e-mails to be sent.

All of it is in `support_bot.db`. Another program would take e-mails from the table `outbox`; none are sent from here.
"""

import re
import sqlite3
from pathlib import Path
from typing import Any

from swarmkeep_agents.records import Records

ARTICLES = Path(__file__).parent / "articles"
MOST_FOUND = 3

TABLES = (
    # Words are compared by their stems: "invoices" finds "invoice".
    "CREATE VIRTUAL TABLE articles USING fts5(article_id UNINDEXED, title, body, tokenize = 'porter unicode61')",
    """CREATE TABLE tickets (
        ticket_id INTEGER PRIMARY KEY, email TEXT NOT NULL, summary TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'open',
        opened_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)""",
    """CREATE TABLE outbox (
        email_id INTEGER PRIMARY KEY, recipient TEXT NOT NULL, subject TEXT NOT NULL, body TEXT NOT NULL,
        status TEXT NOT NULL DEFAULT 'waiting', written_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)""",
)
# In questions, these say nothing of what is meant.
_FILLERS = re.compile(
    r"a|an|and|are|at|can|do|does|for|how|i|in|is|it|my|of|on|or|please|the|to|was|what|when|why", re.IGNORECASE
)


def _fill(connection: sqlite3.Connection) -> None:
    for file in sorted(ARTICLES.glob("*.md")):
        title, _, body = file.read_text(encoding="utf-8").partition("\n")
        values = (file.stem, title.removeprefix("# "), " ".join(body.split()))
        connection.execute("INSERT INTO articles (article_id, title, body) VALUES (?, ?, ?)", values)


records = Records("support_bot.db", TABLES, _fill)


def search_articles(question: str) -> list[dict[str, Any]]:
    """The articles that fit a question best, each with the passage that does; a word in a title counts five times."""
    words = [word for word in re.findall(r"\w+", question.casefold()) if not _FILLERS.fullmatch(word)]
    if not words:
        return []
    # Each word in quotes, so that none of them is taken for an operator.
    query = " OR ".join(f'"{word}"' for word in words)
    return records.rows(
        "SELECT article_id, title, snippet(articles, 2, '', '', '…', 40) AS passage FROM articles "
        "WHERE articles MATCH ? ORDER BY bm25(articles, 0, 5, 1) LIMIT ?",
        query,
        MOST_FOUND,
    )


def find_article(article_id: str) -> dict[str, Any] | None:
    return records.row("SELECT article_id, title, body FROM articles WHERE article_id = ?", article_id.strip().lower())


def list_article_ids() -> list[str]:
    return [row["article_id"] for row in records.rows("SELECT article_id FROM articles ORDER BY article_id")]


def find_ticket(ticket_id: str) -> dict[str, Any] | None:
    found = re.search(r"\d{1,15}", ticket_id)
    query = "SELECT 'TICKET-' || ticket_id AS ticket_id, email, summary, status FROM tickets WHERE ticket_id = ?"
    return records.row(query, int(found.group())) if found else None
