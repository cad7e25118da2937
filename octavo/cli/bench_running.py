"""What `octavo bench throughput` and `octavo bench latency` do once their flags are read."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.cli.bench_offline import measure
from octavo.cli.bench_serving import parse_percentiles, traffic_options
from octavo.cli.startup import start
from octavo.cli.traffic import TrafficOptions, TrafficRequest, check_traffic, draw_traffic
from octavo.cli.workload import Workload, WorkloadRequest
from octavo.request import SamplingParams


def run_throughput(flags: Mapping[str, Any]) -> None:
    """Measure and print as `octavo bench offline` does. Raises `OctavoError` for every mistake of the user."""
    options = traffic_options(flags)

    def make(prepared: Any) -> Workload:
        asked, longest = flags["max_model_len"], prepared.model_config.max_position
        fitted = longest if asked is None or asked < 0 else min(asked, longest)
        requests = _in_ids(prepared, options, fitted)
        return Workload(
            name=flags["dataset"],
            seed=flags["seed"],
            requests=[WorkloadRequest(prompt=ids, max_tokens=request.max_tokens) for ids, request in requests],
        )

    measure(flags, make)


def _in_ids(prepared: Any, options: TrafficOptions, longest: int) -> list[tuple[list[int], TrafficRequest]]:
    """Each request's token ids; a text is encoded as the model was trained to see it."""
    texts: dict[str, list[int]] = {}

    def count(text: str) -> int:
        texts[text] = prepared.tokenizer.encode(text)
        return len(texts[text])

    drawn = TrafficOptions(
        **{name: getattr(options, name) for name in options.__struct_fields__} | {"max_len": longest}
    )
    requests = draw_traffic(drawn, prepared.model_config.vocab_size, count)
    return [
        (texts[request.prompt] if isinstance(request.prompt, str) else request.prompt, request) for request in requests
    ]


def run_latency(flags: Mapping[str, Any]) -> None:
    """Measure and print. Raises `OctavoError` for every mistake of the user."""
    percentiles = parse_percentiles(flags["percentiles"])
    options = TrafficOptions(
        num_prompts=flags["batch_size"] * (flags["num_iters"] + flags["num_iters_warmup"]),
        input_len=flags["input_len"],
        output_len=flags["output_len"],
        seed=flags["seed"],
    )
    check_traffic(options)
    llm, batches = start(
        flags,
        lambda prepared, _: draw_traffic(options, prepared.model_config.vocab_size, len),
        verbose=flags["verbose"],
        quiet=flags["json"],
    )
    params = SamplingParams(temperature=0.0, max_tokens=flags["output_len"], ignore_eos=True, detokenize=False)
    seconds = []
    with llm:
        for first in range(0, len(batches), flags["batch_size"]):
            batch = [{"prompt_token_ids": one.prompt} for one in batches[first : first + flags["batch_size"]]]
            began = time.perf_counter()
            llm.start_run(batch, params).finish()
            seconds.append(time.perf_counter() - began)
    counted = seconds[flags["num_iters_warmup"] :]
    document = {
        "model": flags["model"],
        **{name: flags[name] for name in ("input_len", "output_len", "batch_size", "num_iters")},
        "avg_latency_s": float(np.mean(counted)),
        "latencies_s": counted,
        "percentiles_s": {f"{one:g}": float(np.percentile(counted, one)) for one in percentiles},
    }
    if flags["json"]:
        sys.stdout.write(json.dumps(document) + "\n")
        return
    lines = [f"  average         {document['avg_latency_s']:.4f} s of {len(counted)} runs"]
    lines += [f"  p{name.ljust(15)}{value:.4f} s" for name, value in document["percentiles_s"].items()]
    sys.stdout.write("\n".join(lines) + "\n")
