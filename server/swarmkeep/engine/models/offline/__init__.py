"""The built-in offline model: Chat Completions without a network, a key or an LLM.

It answers by rules, always the same way: it matches the words of the last user message with the names and descriptions
of the functions on offer, takes their arguments from what was said, and quotes what they return. It is also strict: a
request that a provider might refuse is refused here.
"""

from swarmkeep.engine.models.offline.clients import make_offline_client, make_sync_offline_client
from swarmkeep.engine.models.offline.transport import OfflineTransport
from swarmkeep.engine.models.offline.wire import OFFLINE_MODEL

__all__ = ["OFFLINE_MODEL", "OfflineTransport", "make_offline_client", "make_sync_offline_client"]
