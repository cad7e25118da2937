"""What `octavo bench serve` does once its flags are read."""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from octavo.cli.traffic import TrafficOptions, TrafficRequest, arrivals, check_traffic, draw_traffic
from octavo.config import read_api_keys
from octavo.errors import ConfigError

DATASETS = {"random": "random", "prefix": "prefix", "prefix_repetition": "prefix", "sharegpt": "sharegpt",
            "trace": "trace", "timed_trace": "trace"}  # fmt: skip


def run(flags: Mapping[str, Any]) -> None:
    """Measure and print. Raises `OctavoError` for every mistake of the user, and when no request was answered."""
    percentiles = parse_percentiles(flags["percentiles"])
    goals = _goals(flags["goodput"] or [])
    traffic_options(flags)
    _check_pace(flags)
    if flags["plot"] and not flags["plot"].endswith(".svg"):
        raise ConfigError(f"--plot is {flags['plot']}.", remedy="Let its name end in .svg")
    try:
        load_client = importlib.import_module("octavo.cli.load_client")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"To send traffic needs the library {error.name}, which is not installed.",
            remedy='Install it with: pip install "octavo[bench]"',
        ) from None
    load_report = importlib.import_module("octavo.cli.load_report")
    model, sent = asyncio.run(_measure(flags, load_client))
    shown = ("base_url", "dataset", "num_prompts", "request_rate", "burstiness", "max_concurrency", "seed")
    settings = {name: flags[name] for name in shown} | {"model": model}
    settings["request_rate"] = None if math.isinf(flags["request_rate"]) else flags["request_rate"]
    document = load_report.report(sent, percentiles=percentiles, goals=goals, settings=settings)
    whole = json.dumps({**document, "requests": msgspec.to_builtins(sent)})
    if (path := _result_path(flags, model)) is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(whole + "\n", "utf-8")
    if flags["plot"]:
        load_report.write_plot(sent, Path(flags["plot"]))
    sys.stdout.write(whole + "\n" if flags["json"] else load_report.in_lines(document))
    if not document["completed"]:
        raise ConfigError("No request was answered.", remedy="What the server said is above.")


def _result_path(flags: Mapping[str, Any], model: str) -> Path | None:
    """The file that keeps the document, too; None where neither a name nor --save-result asks for one."""
    name = flags["result_file"]
    if name is None and not flags["save_result"]:
        return None
    made = f"{flags['request_rate']:g}qps-{model.replace('/', '-')}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    return Path(flags["result_dir"] or ".") / (name or made)


async def _measure(flags: Mapping[str, Any], load_client: Any) -> tuple[str, Sequence[Any]]:
    key = flags["api_key"] or next(iter(read_api_keys()), None)
    async with load_client.LoadClient(flags["base_url"], api_key=key, timeout_s=flags["timeout"]) as client:
        await client.wait_until_ready(flags["ready_timeout"])
        cards = ((await client.get("/v1/models")) or {}).get("data") or []
        names = [card["id"] for card in cards]
        model = flags["model"] or (names[0] if names else "")
        if model not in names:
            raise ConfigError(f"--model is {model}, and the server has {', '.join(names) or 'none'}.")
        max_len = next((card.get("max_model_len") for card in cards if card["id"] == model), None)
        requests = await _traffic(flags, client, model, max_len)
        times = arrivals(
            requests, rate=flags["request_rate"], burstiness=flags["burstiness"], seed=flags["seed"],
            speed=flags["trace_speed"],
        )  # fmt: skip
        more = {"ignore_eos": flags["ignore_eos"], "temperature": flags["temperature"]}
        warming = [requests[index % len(requests)] for index in range(flags["num_warmups"])]
        if warming:
            await load_client.run_load(
                client, model, warming, [0.0] * len(warming), more, max_concurrency=None, on_done=lambda _: None
            )
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("requests", total=len(requests))
            sent = await load_client.run_load(
                client, model, requests, times, more, max_concurrency=flags["max_concurrency"],
                on_done=lambda _: progress.advance(task),
            )  # fmt: skip
    return model, sent


async def _traffic(flags: Mapping[str, Any], client: Any, model: str, max_len: int | None) -> list[TrafficRequest]:
    options = msgspec.structs.replace(traffic_options(flags), max_len=max_len)
    vocab_size = flags["vocab_size"]
    if vocab_size is None and options.dataset != "sharegpt":
        vocab_size = ((await client.get("/tokenizer_info")) or {}).get("vocab_size")
        if vocab_size is None:
            raise ConfigError("The server does not tell its vocabulary's size.", remedy="Give --vocab-size.")
    counts: dict[str, int] = {}
    if options.dataset == "sharegpt":
        draw_traffic(options, 1, lambda text: counts.setdefault(text, 0))  # which texts there are
        for text in counts:
            count = await client.count_tokens(model, text)
            counts[text] = len(text) // 4 if count is None else count
    return draw_traffic(options, vocab_size or 1, lambda text: counts.get(text, len(text) // 4))


def traffic_options(flags: Mapping[str, Any]) -> TrafficOptions:
    """What flags say of the traffic. Raises `ConfigError` where nothing can be drawn so."""
    if flags["dataset"] not in DATASETS:
        raise ConfigError(
            f"--dataset-name is {flags['dataset']}.", remedy="It must be random, prefix, sharegpt or trace."
        )
    options = TrafficOptions(
        dataset=DATASETS[flags["dataset"]],
        path=Path(flags["dataset_path"]) if flags["dataset_path"] else None,
        **{
            name: flags[name]
            for name in ("num_prompts", "seed", "input_len", "output_len", "range_ratio", "prefix_len", "num_prefixes")
        },
    )
    check_traffic(options)
    return options


def parse_percentiles(text: str) -> list[float]:
    """Numbers with commas between them. Raises `ConfigError`."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= percentile <= 100 for percentile in found):
        raise ConfigError(f"--metric-percentiles is {text}.", remedy="Write numbers from 0 to 100, such as 50,90,99")
    return found


def _goals(texts: Sequence[str]) -> dict[str, float]:
    goals = {}
    for text in (part for given in texts for part in given.split()):
        name, _, number = text.partition(":")
        try:
            goals[name] = float(number)
        except ValueError:
            goals[name] = -1.0
        if name not in ("ttft", "tpot", "itl", "e2el") or not goals[name] >= 0:
            raise ConfigError(
                f"--goodput is {text}.", remedy="Write ttft, tpot, itl or e2el, and milliseconds: ttft:500"
            )
    return goals


def _check_pace(flags: Mapping[str, Any]) -> None:
    for name in ("burstiness", "trace_speed", "timeout"):
        if not 0 < flags[name] < math.inf:
            raise ConfigError(f"--{name.replace('_', '-')} is {flags[name]}.", remedy="It must be above 0, and finite.")
    if not flags["request_rate"] > 0:
        raise ConfigError(f"--request-rate is {flags['request_rate']}.", remedy="It must be above 0; inf is allowed.")
    for name, flag in (("ready_timeout", "--ready-check-timeout-sec"), ("temperature", "--temperature")):
        if not 0 <= flags[name] < math.inf:
            raise ConfigError(f"{flag} is {flags[name]}.", remedy="It must be 0 or more, and finite.")
    for name, least in (("max_concurrency", 1), ("vocab_size", 2), ("num_warmups", 0)):
        if flags[name] is not None and flags[name] < least:
            raise ConfigError(f"--{name.replace('_', '-')} is {flags[name]}.", remedy=f"It must be at least {least}.")
