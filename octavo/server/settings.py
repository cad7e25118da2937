"""What a server is told beside its engine."""

from __future__ import annotations

import msgspec

LOOPBACK = "127.0.0.1"


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where to listen, whom to serve, and how much."""

    host: str = LOOPBACK
    port: int = 8000
    uds: str | None = None
    """A Unix path to listen on instead of host and port."""
    served_model_names: tuple[str, ...] = ()
    """What requests may call the model, the first in answers; empty takes the name that the model was given by."""
    api_keys: tuple[str, ...] = ()
    """Requests must bring one of these; empty asks for none."""
    shares_prefixes: bool = False
    """Whether cached prefixes are shared between API keys."""
    max_waiting: int = 1000
    """Sequences beyond those that may run at once; more are refused with status 429."""
    request_timeout_s: float | None = None
    """A request that takes longer is ended."""
    watchdog_timeout_s: float = 60.0
    """Requests under way of which nothing comes for so long are reported; 0 reports none."""
    max_request_bytes: int = 16 * 2**20
    max_completions: int = 128
    """Greatest `n`, and most prompts of one request."""
    max_logprobs: int = 20
    """Most log probabilities at one place; -1 for no limit."""
    max_stops: int = 64
    """Most stop strings, and characters of each in hundreds."""
    chat_template: str | None = None
    """A Jinja source in place of the model's own."""
    tool_call_parser: str = "auto"
    """How tool calls are written: a name of `turn_reading.TOOL_CALL_PARSERS`."""
    reasoning_parser: str = "none"
    """What stands around reasoning that is split off: a name of `turn_reading.REASONING_PARSERS`."""
    drain_timeout_s: float = 60.0
    """How long a server that was told to end waits for requests under way."""
