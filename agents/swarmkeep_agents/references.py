"""Reference numbers that a repeated call gets again."""

from hashlib import sha256

from swarmkeep import ToolCallId


def make_reference(prefix: str, tool_call_id: ToolCallId) -> str:
    """A number such as ORD-402117, always the same for the same call: trying a call again repeats nothing."""
    return (
        f"{prefix}-{int.from_bytes(sha256(tool_call_id.encode('utf-8', 'surrogatepass')).digest()[:8]) % 1_000_000:06d}"
    )
