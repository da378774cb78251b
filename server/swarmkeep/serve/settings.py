"""The server's settings: from the environment, a `.env` file, or the flags of a command, in rising precedence."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

if TYPE_CHECKING:
    from swarmkeep.store.opening import StoreOptions

T = TypeVar("T")

_BASE_URL = re.compile(r"https?://[^/\s]", re.IGNORECASE)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\sA-Z]+")


def _split_names(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("["):
        try:
            return json.loads(text)
        except ValueError:
            raise ValueError(
                "it starts with [ but is not a valid JSON list; fix it, or separate the names with commas"
            ) from None
    if info.field_name == "agents" and "," not in text and not Path(text).exists():
        text = text.replace(os.pathsep, ",")
    return [part.strip() for part in text.split(",") if part.strip()]


def _read_none(value: object) -> object:
    return None if isinstance(value, str) and value.strip().lower() == "none" else value


def _lower_case(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _check_network(text: str) -> str:
    return str(ip_network(text, strict=False))


ListOf = Annotated[tuple[T, ...], NoDecode, BeforeValidator(_split_names)]
NoneOr = Annotated[T | None, BeforeValidator(_read_none)]
AnyCase = Annotated[T, BeforeValidator(_lower_case)]
Names = ListOf[str]
# What lies further ahead may have no date.
_HUNDRED_YEARS = 3_155_760_000
Seconds = Annotated[float, Field(gt=0, le=_HUNDRED_YEARS)]
Network = Annotated[str, AfterValidator(_check_network)]
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")]


class Settings(BaseSettings):
    """Each field is read from `SWARMKEEP_` and its name in capitals, unless it names another variable itself.

    An empty variable counts as absent.
    """

    model_config = SettingsConfigDict(
        env_prefix="SWARMKEEP_",
        env_file=".env",
        env_file_encoding="utf-8",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )

    database_url: str = Field(default="sqlite:///swarmkeep.db", repr=False)
    """Where sessions are kept: `sqlite:///FILE` or `postgresql://USER:PASSWORD@HOST/DATABASE`."""
    agents: Names = ("swarmkeep_agents.triage",)
    """Files, folders or modules that define the agents, separated by commas (or as in PATH), or a JSON list. The first
    agent of the first one is the default."""
    host: str = "127.0.0.1"
    """The address to listen on; without an API key, only a loopback address."""
    port: int = Field(default=8000, ge=0, le=65535)
    """The port to listen on; 0 takes any free one."""
    workers: int = Field(default=1, ge=1, le=256)
    """How many processes serve the port, each with a share of the requests; more than one on PostgreSQL only."""
    model: str | None = None
    """The model for agents that do not name one."""
    model_profile: str | None = None
    """How models want to be asked: a JSON object of fields, or of such objects by patterns of names."""
    offline: bool = False
    """Use the built-in offline model. It is not an LLM and needs no key."""
    openai_api_key: SecretStr | None = Field(
        default=None, validation_alias=AliasChoices("OPENAI_API_KEY", "openai_api_key")
    )
    """The key for the model provider."""
    openai_base_url: str | None = Field(
        default=None, validation_alias=AliasChoices("OPENAI_BASE_URL", "openai_base_url")
    )
    """The base URL of any server that speaks Chat Completions; by default OpenAI's. A key in the environment is never
    sent to a base URL from `.env`: set this in the environment, too."""
    model_timeout_seconds: Seconds = 120.0
    """How long a model may be silent: until its answer begins, and between two pieces of it. A connection has to be
    made within 10 seconds."""
    model_retries: int = Field(default=2, ge=0)
    """How often a model call is retried after a temporary failure."""
    lease_seconds: Seconds = 15.0
    """How long a server that gives no sign of life keeps its runs; then another server takes them over."""
    grace_seconds: float = Field(default=10.0, ge=0, le=_HUNDRED_YEARS)
    """How long running runs may go on after the server is asked to stop."""
    run_seconds: NoneOr[Seconds] = 3600.0
    """How long a run may take. Time spent waiting for a person does not count, and a take-over restarts the clock;
    `none` means no limit."""
    tool_seconds: NoneOr[Seconds] = 300.0
    """The time-out of functions without one of their own; `none` means no limit."""
    approval_seconds: NoneOr[Seconds] = None
    """How long to wait for an approval before the call is denied; no limit by default."""
    loop_turns: NoneOr[Annotated[int, Field(ge=3)]] = 10
    """A run whose last so many turns go in a circle (the same calls or handoffs again) is ended; at least 3, and `none`
    means no limit."""
    history_turns: NoneOr[Annotated[int, Field(ge=1)]] = None
    """How many of a session's last turns are sent to a model; by default all of them."""
    read_seconds: Seconds = 10.0
    """How long a list, a sum or a search may take in the database; then the answer is 503 `overloaded`."""
    search: AnyCase[Literal["on", "off"]] = "on"
    """`on` indexes messages for searches, a moment behind. With `off`, searches are refused, and nothing is indexed
    until it is on again."""
    state_cache_bytes: int = Field(default=2**26, ge=0)
    """About how much memory each worker uses for the states of recently used sessions, counted as four times the bytes
    of their events. Other sessions are read from their events for each request."""
    # Streams give their signs of life at a poll, and owe one every 15 seconds.
    poll_seconds: float = Field(default=0.5, gt=0, le=7)
    """How soon, at the latest, a stream shows what another server has recorded; 7 at most."""
    max_body_bytes: int = Field(default=10_000_000, ge=1)
    """The largest request body that is read."""
    max_body_values: int = Field(default=200_000, ge=1)
    """How many JSON values a request body or frame may hold, at all levels together."""
    max_messages: int = Field(default=10_000, ge=1)
    """How many messages a new session's history, or a run's input, may have."""
    max_context_bytes: int = Field(default=1_000_000, ge=2)
    """How large the context variables of a session may be, as JSON. Every append writes them again."""
    max_metadata_bytes: int = Field(default=65_536, ge=2)
    """How large a session's metadata may be, as JSON."""
    max_message_bytes: int = Field(default=8_000_000, ge=1)
    """How large a message in a request, a function's result, or a run's `instructions` may be, as JSON."""
    max_blob_bytes: int = Field(default=5_000_000, ge=1, le=40_000_000)
    """How large a file or picture in a message may be, decoded; 40,000,000 at most."""
    max_message_blob_bytes: int = Field(default=20_000_000, ge=1)
    """How large the files and pictures of one message may be together."""
    max_message_blobs: int = Field(default=100, ge=1)
    """How many files and pictures a message may have."""
    blob_types: Names = ("image/png", "image/jpeg", "image/gif", "image/webp", "audio/*", "text/*", "application/*")
    """The media types of files and pictures that messages may have, separated by commas; `audio/*` is all of audio."""
    max_queued_runs: int = Field(default=100, ge=1)
    """How many runs may wait in a session's queue."""
    max_runs_per_tenant: int = Field(default=1_000, ge=1)
    """How many runs of one tenant may be active on each server; a take-over is not refused."""
    max_forks_per_minute: int = Field(default=600, ge=1)
    """How many forks one tenant may make in a minute, on each server."""
    max_session_events: int = Field(default=1_000_000, ge=1)
    """How many events a session may have; beyond that, it accepts no run and no change."""
    max_sessions: int = Field(default=10_000_000, ge=1)
    """How many sessions a tenant may have."""
    max_stored_bytes: int = Field(default=100_000_000_000, ge=1)
    """How many bytes a tenant's sessions may hold: the payloads of their events, and the texts that these refer to."""
    max_tokens_per_day: NoneOr[Annotated[int, Field(ge=1)]] = None
    """How many tokens a tenant's model calls may take in a UTC day; no limit by default."""
    prices: str | None = None
    """What models cost: JSON, or a file (`.json`, `.toml`)."""
    currency: str = Field(default="USD", pattern=r"^[A-Z]{3}$")
    """The currency of the prices, three letters."""
    max_import_bytes: int = Field(default=1_000_000_000, ge=1)
    """The largest file that is imported."""
    rate_limit_per_minute: NoneOr[int] = Field(default=None, ge=1)
    """How many requests under `/v1` each API key (or address, without keys) may make in a minute, on each server; no
    limit by default."""
    allowed_hosts: Names = ()
    """Names by which a server without API keys may be addressed, beside its own, separated by commas."""
    separate_approvers: bool = False
    """With `true`, the API key that started a run may not decide on its approvals; by default it may."""
    forwarded_allow_ips: Names = ()
    """Addresses or networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed, separated by
    commas; `*` for any. By default none."""
    openai_session_headers: ListOf[HeaderName] = ()
    """Request headers that name the session of a chat completion, beside `X-Session-Id` and `X-OpenWebUI-Chat-Id`,
    separated by commas."""
    metrics_token: SecretStr | None = None
    """The token that `/metrics` requires; once the server has API keys, `/metrics` needs one."""
    cors_origins: Names = ()
    """Origins of web pages that may call the API, as in `https://desk.example`, separated by commas; `*` for any. By
    default none."""
    integrity_key: SecretStr | None = None
    """A secret that the end of each session's log is signed with, so that write access to the database is not enough to
    compute another history. Several, separated by commas: the first signs, and all are accepted; the word `unstamped`
    among them accepts sessions without a stamp, while servers get the first key."""
    retention: str | None = None
    """How long sessions are kept after their last change, as `180d`; or rules by tenant and metadata: JSON, or a file
    (`.json`, `.toml`)."""
    max_webhooks: int = Field(default=20, ge=0, le=1_000)
    """How many webhooks a tenant may have."""
    max_webhook_bytes: int = Field(default=1_000_000, ge=1_000)
    """How large a message to a webhook may be; one about a larger event says where that is instead."""
    webhook_seconds: float = Field(default=15.0, gt=0, le=60)
    """How long the receiver of a webhook may take to answer; 60 at most."""
    webhook_networks: ListOf[Network] = ()
    """Private addresses or networks that webhooks may be sent to, also by plain http, separated by commas, as in
    `10.1.0.0/16`; by default none, and `https` to public addresses only."""
    archive: str | None = None
    """Where sessions are archived: `s3://BUCKET/PREFIX` (with the `AWS_…` variables, of which `AWS_ENDPOINT_URL` names
    another server than Amazon's), `gs://…`, `az://…`, or a folder as `file:///…`. Needs the extra `archive`."""
    archive_after: str | None = None
    """How long after its last change a session is moved to the archive, as `90d`; not set: none is."""
    person: str | None = Field(default=None, max_length=200)
    """The metadata key whose value names the person that a session belongs to: what is recorded of such a session is
    encrypted by that person's key, until `swarmkeep erase` erases that; not set: nothing is."""
    person_keys: str | None = None
    """Where people's keys are kept: `database`, which its backups hold, too; a folder; or `MODULE:NAME` of a function
    that gives an object with `read(id)`, `write(id, secret)` and `erase(id)`."""
    signing_key: Path | None = None
    """A PEM file with the Ed25519 private key that checkpoints are signed with."""
    log_origin: str = Field(default="swarmkeep", pattern=r"^[^\s+/]+(/[^\s+/]+)*$", max_length=200)
    """The name of the log of heads in checkpoints, as in `example.com/support`; each tenant's log is below it.
    Witnesses know a log by its name."""
    log_level: AnyCase[Literal["debug", "info", "warning", "error", "critical"]] = "info"
    """Which log lines are written to standard error: `debug`, `info`, `warning`, `error` or `critical`, and what is
    above."""
    log_format: AnyCase[Literal["text", "json"]] = "text"
    """How log lines are written: as `text`, or as `json`, one object per line."""
    access_log: bool = True
    """Write a line for each request, at the level `info`."""
    traces: AnyCase[Literal["auto", "on", "off"]] = "auto"
    """Whether to make OpenTelemetry traces: `on`, `off`, or `auto`: only if the environment names a collector
    (OTEL_EXPORTER_OTLP_ENDPOINT) and the extra `otel` is installed."""
    migrate: bool = False
    """Migrate a PostgreSQL database at start. A SQLite file is always migrated."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        def read_file() -> dict[str, Any]:
            found = dotenv_settings()
            if found:
                _check_destination({**env_settings(), **init_settings()}, found)
            return found

        return init_settings, env_settings, cast(PydanticBaseSettingsSource, read_file)

    @field_validator("forwarded_allow_ips")
    @classmethod
    def _check_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for network in value:
            if network != "*":
                ip_network(network)
        return value

    @field_validator("openai_base_url")
    @classmethod
    def _check_base_url(cls, value: str | None) -> str | None:
        # The value is not repeated: it may have a password.
        if value is not None and not _BASE_URL.match(value):
            raise ValueError("begin it with http:// or https://, as in http://127.0.0.1:11434/v1")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        # One that no browser sends would let no client in, without a word.
        for origin in value:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is not an origin: write https://HOST or https://HOST:PORT, or * for any")
        return value

    @property
    def integrity_keys(self) -> str | None:
        """The text of `integrity_key`."""
        return None if self.integrity_key is None else self.integrity_key.get_secret_value()

    @property
    def store_options(self) -> StoreOptions:
        """The options that each opening of the database needs."""
        return {"integrity_key": self.integrity_keys, "person": self.person, "person_keys": self.person_keys}

    def resolve_address(self) -> tuple[str, int]:
        """Return the address to listen on; of several addresses that a name has, one of IPv4. Raises OSError and
        UnicodeError."""
        # URLs have an address of IPv6 in brackets.
        found = socket.getaddrinfo(self.host.strip("[]"), self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        chosen = min(found, key=lambda info: info[0] != socket.AF_INET)[4]
        return str(chosen[0]), int(chosen[1])


def _check_destination(given: Mapping[str, Any], file: Mapping[str, Any]) -> None:
    """Refuse a `.env` that would send the environment's key somewhere else: the folder may be a stranger's."""
    key, place = "OPENAI_API_KEY", "OPENAI_BASE_URL"
    if file.get(place) and not given.get(place) and given.get(key):
        raise SettingsError(
            f"the file .env sets {place}, so the key in the environment variable {key} would be sent there; set "
            f"{place} in the environment, too, or move the key into .env"
        )
