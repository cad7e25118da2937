"""`octavo bench serve`: its flags, which are those of `vllm bench serve` where they mean the same."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer

from octavo.cli import flags
from octavo.cli.generate import Json
from octavo.cli.help_text import TextHelp
from octavo.cli.outcome import exit_codes

_SERVER, _TRAFFIC, _PACE, _REPORT = "Server", "Traffic", "Pace", "Report"


def _option(text: str, *names: str, panel: str, metavar: str | None = None, count: bool = False) -> Any:
    parser = flags.parse_count if count else None
    return typer.Option(*names, help=text, rich_help_panel=panel, metavar="N" if count else metavar, parser=parser)


BaseUrl = Annotated[str, _option("Address of the server.", "--base-url", panel=_SERVER, metavar="URL")]
ServedModel = Annotated[
    str | None, _option("Which of its models; by default the first.", "--model", "-m", panel=_SERVER, metavar="NAME")
]
ApiKey = Annotated[
    str | None, _option("Its key; by default OCTAVO_API_KEY.", "--api-key", panel=_SERVER, metavar="KEY")
]
ReadyTimeout = Annotated[
    float,
    _option("Seconds to wait for a healthy server.", "--ready-check-timeout-sec", panel=_SERVER, metavar="S"),
]
Timeout = Annotated[float, _option("Seconds that one request may take.", "--timeout", panel=_SERVER, metavar="S")]
VocabSize = Annotated[
    int | None,
    _option(
        "Draw token ids below this; by default the server's /tokenizer_info tells.",
        "--vocab-size",
        panel=_SERVER,
        count=True,
    ),
]

Dataset = Annotated[
    str, _option("random, prefix, sharegpt or trace.", "--dataset-name", panel=_TRAFFIC, metavar="NAME")
]
DatasetPath = Annotated[
    str | None,
    _option(
        "A JSON of conversations, or a trace: .jsonl with timestamp, input_length, output_length, hash_ids; or .csv "
        "with TIMESTAMP, ContextTokens, GeneratedTokens.",
        "--dataset-path",
        panel=_TRAFFIC,
        metavar="FILE",
    ),
]
NumPrompts = Annotated[int, _option("How many requests.", "--num-prompts", panel=_TRAFFIC, count=True)]
InputLen = Annotated[
    int,
    _option(
        "Mean tokens of a prompt, behind its prefix.", "--input-len", "--random-input-len", panel=_TRAFFIC, count=True
    ),
]
OutputLen = Annotated[
    int, _option("Mean tokens of an output.", "--output-len", "--random-output-len", panel=_TRAFFIC, count=True)
]
RangeRatio = Annotated[
    float,
    _option(
        "Lengths vary by this share of their mean.", "--range-ratio", "--random-range-ratio", panel=_TRAFFIC,
        metavar="R",
    ),
]  # fmt: skip
PrefixLen = Annotated[
    int,
    _option(
        "Tokens that prompts share at their beginning.", "--prefix-len", "--random-prefix-len",
        "--prefix-repetition-prefix-len", panel=_TRAFFIC, count=True,
    ),
]  # fmt: skip
NumPrefixes = Annotated[
    int,
    _option(
        "With the dataset prefix: how many different ones.", "--num-prefixes", "--prefix-repetition-num-prefixes",
        panel=_TRAFFIC, count=True,
    ),
]  # fmt: skip
Seed = Annotated[int, _option("Same seed, same traffic.", "--seed", panel=_TRAFFIC)]
IgnoreEos = Annotated[
    bool, _option("Outputs have exactly the wanted length.", "--ignore-eos/--no-ignore-eos", panel=_TRAFFIC)
]
Temperature = Annotated[float, _option("0 always takes the most likely token.", "--temperature", panel=_TRAFFIC)]

RequestRate = Annotated[
    float, _option("Requests a second on average; inf hands all in at once.", "--request-rate", panel=_PACE)
]
Burstiness = Annotated[
    float,
    _option("1 is a Poisson process; less comes in bursts, more is more even.", "--burstiness", panel=_PACE),
]
MaxConcurrency = Annotated[
    int | None, _option("Requests under way at most.", "--max-concurrency", panel=_PACE, count=True)
]
TraceSpeed = Annotated[
    float, _option("With the dataset trace: so many times as fast as it was.", "--trace-speed", panel=_PACE)
]
NumWarmups = Annotated[
    int, _option("Requests that are sent before and not counted.", "--num-warmups", panel=_PACE, count=True)
]

Percentiles = Annotated[
    str, _option("Percentiles to tell, with commas between them.", "--metric-percentiles", panel=_REPORT, metavar="P,P")
]
Goodput = Annotated[
    list[str] | None,
    _option(
        "NAME:MS, such as ttft:500 (or tpot, itl, e2el): count the requests that keep it. May be given several times.",
        "--goodput",
        panel=_REPORT,
        metavar="GOAL",
    ),
]
ResultFile = Annotated[
    str | None,
    _option("Write the JSON document there, too.", "--result-filename", panel=_REPORT, metavar="FILE"),
]
SaveResult = Annotated[
    bool,
    _option("Write the JSON document to a file named after rate, model and time.", "--save-result", panel=_REPORT),
]
ResultDir = Annotated[str | None, _option("The folder of that file.", "--result-dir", panel=_REPORT, metavar="DIR")]
Plot = Annotated[
    str | None, _option("Draw the distributions of latencies, as SVG.", "--plot", panel=_REPORT, metavar="FILE")
]

FIGURES = """
ttft is the time from sending a request to its first token, tpot the mean time of its later ones, itl the time between
two pieces of its stream, e2el the time to its last token; all in milliseconds. A request held back by
--max-concurrency is sent, and its clock started, when its turn comes.
"""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(cls=TextHelp, epilog=FIGURES)(serve)


def serve(
    base_url: BaseUrl = "http://127.0.0.1:8000",
    model: ServedModel = None,
    api_key: ApiKey = None,
    ready_timeout: ReadyTimeout = 30.0,
    timeout: Timeout = 3600.0,
    vocab_size: VocabSize = None,
    dataset: Dataset = "random",
    dataset_path: DatasetPath = None,
    num_prompts: NumPrompts = 100,
    input_len: InputLen = 1024,
    output_len: OutputLen = 128,
    range_ratio: RangeRatio = 0.0,
    prefix_len: PrefixLen = 0,
    num_prefixes: NumPrefixes = 10,
    seed: Seed = 0,
    temperature: Temperature = 0.0,
    request_rate: RequestRate = float("inf"),
    burstiness: Burstiness = 1.0,
    max_concurrency: MaxConcurrency = None,
    trace_speed: TraceSpeed = 1.0,
    num_warmups: NumWarmups = 0,
    percentiles: Percentiles = "50,90,99",
    goodput: Goodput = None,
    result_file: ResultFile = None,
    result_dir: ResultDir = None,
    plot: Plot = None,
    *,
    ignore_eos: IgnoreEos = True,
    save_result: SaveResult = False,
    json: Json = False,
) -> None:
    """Send traffic to a running server, and measure what its clients would feel."""
    given: dict[str, Any] = dict(locals())
    with exit_codes():
        importlib.import_module("octavo.cli.bench_serving").run(given)
