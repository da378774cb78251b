"""The metrics of a server with several workers: whichever is asked answers for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

log = logging.getLogger(__name__)

# One that stands still is left out.
_ANSWER_SECONDS = 1.0
_MAX_BYTES = 16_000_000


class WorkerMetrics:
    """One worker's place among those that share `folder`, where each answers on a socket named by its number."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self._number = number

    @asynccontextmanager
    async def answer(self, render: Callable[[], bytes]) -> AsyncIterator[None]:
        """Answer the other workers with this one's metrics, for as long as the block lasts."""
        path = self._folder / str(self._number)
        # A worker that was killed has left its own.
        path.unlink(missing_ok=True)

        async def send(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                writer.write(render())
                await writer.drain()
            writer.close()

        async with await asyncio.start_unix_server(send, path):
            yield

    async def combine(self, own: bytes) -> bytes:
        """What all workers count, each with its number as a label."""
        numbers = [int(path.name) for path in self._folder.iterdir() if path.name != str(self._number)]
        answers = await asyncio.gather(*map(self._ask, numbers))
        texts = {number: text for number, text in zip(numbers, answers, strict=True) if text is not None}
        return await asyncio.to_thread(label_and_join, {self._number: own, **texts})

    async def _ask(self, number: int) -> bytes | None:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                reader, writer = await asyncio.open_unix_connection(self._folder / str(number), limit=_MAX_BYTES)
                try:
                    return await reader.read()
                finally:
                    writer.close()
        except (OSError, TimeoutError) as error:
            log.debug("worker %d reports no metrics: %s", number, error)
            return None


def label_and_join(texts: Mapping[int, bytes]) -> bytes:
    """Texts of several workers as one, in which each line has its worker's number as the label `worker`.

    Not summed: when a worker is replaced, its counts begin anew, and in a sum that would look like a reset of all.
    """
    families: dict[str, Metric] = {}
    for number, text in sorted(texts.items()):
        for family in text_string_to_metric_families(text.decode()):
            joined = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                joined.samples.append(sample._replace(labels={**sample.labels, "worker": str(number)}))
    return generate_latest(_Collected(list(families.values())))


class _Collected:
    """Metrics that have been collected already, as a registry gives them."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families
