"""The offline model, asked through the openai package's own clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from openai import AsyncOpenAI, OpenAI

from swarmkeep.models.offline.server import make_offline_client, make_sync_offline_client
from tests.runs.models.offline.tools import BACK, DISCOUNT, REFUND, TO_REFUNDS, TO_SALES, MiniatureRun


@pytest.fixture
def client() -> Iterator[OpenAI]:
    with make_sync_offline_client() as made:
        yield made


@pytest.fixture
async def async_client() -> AsyncIterator[AsyncOpenAI]:
    async with make_offline_client() as made:
        yield made


@pytest.fixture
def shop(client: OpenAI) -> MiniatureRun:
    conversation = MiniatureRun(client, [TO_SALES, TO_REFUNDS], "Find out who can help, and hand over.")
    conversation.agents = {
        "transfer_to_sales": ("Sales Agent", "Be enthusiastic about bees.", [BACK]),
        "transfer_to_refunds": ("Refunds Agent", "You are a refunds agent.", [REFUND, DISCOUNT, BACK]),
        "transfer_back_to_triage": ("Triage Agent", "Find out who can help.", [TO_SALES, TO_REFUNDS]),
    }
    return conversation
