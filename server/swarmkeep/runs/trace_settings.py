"""The settings that all spans are made with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Tracer

from swarmkeep.models.clients import ModelSettings
from swarmkeep.models.secrets import NO_SECRETS, Secrets
from swarmkeep.runs.spans import clean_attributes

_DEFAULT_PORTS = {"https": 443, "http": 80}
# The names that the GenAI conventions give to the services whose hosts end like this.
_PROVIDERS = {
    "openai.azure.com": "azure.ai.openai",
    "inference.ai.azure.com": "azure.ai.inference",
    "anthropic.com": "anthropic",
    "groq.com": "groq",
    "mistral.ai": "mistral_ai",
    "deepseek.com": "deepseek",
    "perplexity.ai": "perplexity",
    "x.ai": "x_ai",
    "cohere.ai": "cohere",
    "cohere.com": "cohere",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "amazonaws.com": "aws.bedrock",
}


class SpanSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`provider`: the attributes that tell who is asked. `has_content`: whether spans say what was said."""

    tracer: Tracer
    provider: Mapping[str, Any] = {}
    secrets: Secrets = NO_SECRETS
    has_content: bool = False

    def start_span(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        parent: Context | None = None,
        links: Sequence[Link] = (),
    ) -> Span:
        """A span that has these attributes from its beginning: samplers decide by them."""
        clean = clean_attributes(attributes, self.secrets)
        return self.tracer.start_span(name, parent, kind, clean, links)


def describe_provider(settings: ModelSettings) -> dict[str, Any]:
    """Describe the provider that is asked. A server that is none of those with a name counts as `openai`, whose
    language it speaks."""
    if settings.offline:
        return {"gen_ai.provider.name": "swarmkeep.offline"}
    address = urlsplit(settings.openai_base_url or "https://api.openai.com/v1")
    host = (address.hostname or "").rstrip(".")
    names = (name for end, name in _PROVIDERS.items() if host == end or host.endswith("." + end))
    return {
        "gen_ai.provider.name": next(names, "openai"),
        "server.address": host or None,
        "server.port": _read_port(address),
    }


def _read_port(address: SplitResult) -> int | None:
    try:
        return address.port or _DEFAULT_PORTS.get(address.scheme)
    except ValueError:
        # The client of the model says that it is none, at the first call.
        return None
