"""What `octavo serve` does once its flags are read."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo import __version__
from octavo.cli.plan_view import capacity_line
from octavo.cli.startup import ENGINE_FLAGS
from octavo.config import read_api_keys
from octavo.engine.engine_args import engine_config_from
from octavo.errors import ConfigError
from octavo.messages import StageReport

LOOPBACKS = ("127.0.0.1", "localhost", "::1")

logger = logging.getLogger(__name__)


def run(flags: Mapping[str, Any]) -> None:
    """Serve until a signal. Raises `OctavoError` for every mistake of the user."""
    model = _model(flags)
    options = {
        name: flags[name] for name in (*ENGINE_FLAGS, "generation_config", "scheduling_policy") if name in flags
    } | {"model": model}
    if flags["kv_cache_metrics"]:
        options["kv_cache_metrics_sample"] = flags["kv_cache_metrics_sample"]
    engine_config_from(options)
    if flags["log_format"] not in ("text", "json"):
        raise ConfigError(f"--log-format is {flags['log_format']}.", remedy="It must be text or json.")
    try:
        serving = importlib.import_module("octavo.server.serving")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"To serve needs the library {error.name}, which is not installed.",
            remedy='Install it with: pip install "octavo[serve]"',
        ) from None
    _check_parsers(flags)
    importlib.import_module("octavo.engine.log_format").set_up_logging(flags["log_format"], access=flags["access_log"])
    settings = importlib.import_module("octavo.server.settings").ServerSettings(
        host="127.0.0.1" if flags["host"] == "localhost" else flags["host"],
        port=flags["port"],
        uds=flags["uds"],
        served_model_names=tuple(flags["served_model_name"] or (model,)),
        api_keys=_api_keys(flags),
        shares_prefixes=flags["share_prefixes"],
        max_waiting=flags["max_waiting"],
        request_timeout_s=flags["request_timeout"],
        watchdog_timeout_s=flags["watchdog_timeout"],
        max_logprobs=flags["max_logprobs"],
        chat_template=_read(flags["chat_template"]),
        tool_call_parser=flags["tool_call_parser"],
        reasoning_parser=flags["reasoning_parser"],
        drain_timeout_s=flags["drain_timeout"],
    )
    _warn(flags, settings)
    where = settings.uds or f"http://{settings.host}:{settings.port}"

    def on_ready(engine: Any) -> None:
        logger.info("%s", capacity_line(engine.plan, device="GPU" if flags["device"] == "cuda" else "CPU"))
        _tell_defaults(engine.sampling_defaults)
        logger.info("Octavo %s serves %s at %s", __version__, ", ".join(settings.served_model_names), where)

    serve = serving.serve(
        options,
        settings,
        version=__version__,
        max_restarts=flags["max_restarts"],
        on_stage=_tell_stage,
        on_ready=on_ready,
    )
    asyncio.run(serve)


def _check_parsers(flags: Mapping[str, Any]) -> None:
    reading = importlib.import_module("octavo.server.turn_reading")
    for name, known in (
        ("tool_call_parser", reading.TOOL_CALL_PARSERS),
        ("reasoning_parser", reading.REASONING_PARSERS),
    ):
        if flags[name] not in known:
            raise ConfigError(
                f"--{name.replace('_', '-')} is {flags[name]}.", remedy=f"It must be one of {', '.join(known)}."
            )


def _model(flags: Mapping[str, Any]) -> str:
    positional, option = flags["model"], flags["model_option"]
    if positional is not None and option is not None and positional != option:
        raise ConfigError(f"Two models are given: {positional} and {option}.", remedy="Give one of them.")
    model = positional or option
    if not model:
        raise ConfigError("No model is given.", remedy="Name one, e.g. octavo serve demo")
    return str(model)


def _api_keys(flags: Mapping[str, Any]) -> tuple[str, ...]:
    keys = tuple(flags["api_key"] or read_api_keys())
    if not all(key.strip() for key in keys):
        raise ConfigError(
            "An --api-key is empty, so that whoever sends none could pass for its owner.",
            remedy="Give a key, or leave the flag out.",
        )
    return keys


def _read(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--chat-template {path} cannot be read: {error}.", remedy="Name a text file.") from None


def _warn(flags: Mapping[str, Any], settings: Any) -> None:
    if flags["trust_remote_code"]:
        logger.warning("--trust-remote-code: Python code of the model's repository runs in this server.")
    if settings.uds is None and settings.host not in LOOPBACKS and not settings.api_keys:
        logger.warning("Anybody who can reach %s can use this server: it asks for no --api-key.", settings.host)


def _tell_defaults(defaults: Mapping[str, Any]) -> None:
    if defaults:
        told = ", ".join(f"{name} {value}" for name, value in defaults.items())
        logger.info("Sampling defaults of the model: %s (--generation-config vllm leaves them out)", told)


def _tell_stage(stage: StageReport) -> None:
    logger.info("%s: %s (%.2f s)", stage.name, stage.result, stage.seconds)
    if stage.name == "determine_available_memory":
        logger.info("Available KV cache memory: %s", stage.result.removesuffix(" per rank"))
