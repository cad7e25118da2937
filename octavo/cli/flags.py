"""The flags that commands share: names, help and how a value is read. vLLM's names work as aliases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from octavo.cli.plain_values import written
from octavo.config import parse_bytes
from octavo.errors import ConfigError

_MULTIPLES = {"k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}


def parse_count(text: str | int) -> int:
    """A whole number for people: `1000`, `1_000`, `1k` is 1000, `1K` is 1024, and so on with m, M, g, G; `2.5k` too.

    A number, such as a flag's default, is itself. Raises `typer.BadParameter` for anything else.
    """
    if isinstance(text, int):
        return text
    digits, multiple = (text[:-1], _MULTIPLES[text[-1]]) if text[-1:] in _MULTIPLES else (text, 1)
    try:
        value = float(digits) * multiple if "." in digits else int(digits) * multiple
    except ValueError:
        value = 0.5
    if value != int(value):
        raise typer.BadParameter(f"is {written(text)}. It must be a whole number: 4096, 4k (4000) or 4K (4096).")
    return int(value)


def parse_length(text: str) -> int:
    """A count, or `auto` for -1: the longest that fits."""
    return -1 if text == "auto" else parse_count(text)


def parse_size(text: str) -> int:
    """Bytes, as `octavo.config.parse_bytes` reads them."""
    try:
        return parse_bytes(text)
    except ConfigError as error:
        raise typer.BadParameter(f"is {written(text)}. {error.remedy}") from None


def parse_sizes(text: str) -> tuple[int, ...]:
    """Sizes with commas between them."""
    return _each(text, parse_size)


def parse_counts(text: str) -> tuple[int, ...]:
    """Counts with commas between them."""
    return _each(text, parse_count)


def _each(text: str, parse: Callable[[str], int]) -> tuple[int, ...]:
    """What is between commas, each part parsed."""
    parts = text.split(",")
    try:
        return tuple(map(parse, parts))
    except typer.BadParameter as error:
        if len(parts) > 1 and error.message.startswith("is "):
            fault, _, remedy = error.message.removeprefix("is ").partition(". ")
            raise typer.BadParameter(f"has {fault} between commas. {remedy}") from None
        raise


_MODEL, _CACHE, _STEP = "Model", "KV cache", "Scheduling"

ModelName = Annotated[
    str,
    typer.Option(
        "--model", "-m", help="demo, demo-smollm2, a folder, a .gguf file, or a hub id.", rich_help_panel=_MODEL
    ),
]
Tokenizer = Annotated[
    str | None, typer.Option(help="Folder or hub id of another tokenizer.", rich_help_panel=_MODEL, metavar="MODEL")
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub id.", rich_help_panel=_MODEL)]
Dtype = Annotated[
    str,
    typer.Option(help="Compute dtype: auto, bfloat16, float16 or float32.", rich_help_panel=_MODEL, metavar="DTYPE"),
]
Quantization = Annotated[
    str,
    typer.Option(
        "--quantization",
        "-q",
        help="How weights are kept: auto, none (in the compute dtype), gguf (as a .gguf file has them) or int8.",
        rich_help_panel=_MODEL,
        metavar="NAME",
    ),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        "--max-model-len",
        help="Longest prompt + output in tokens: the model's own maximum; auto (-1) is the longest that fits.",
        parser=parse_length,
        metavar="N",
        rich_help_panel=_MODEL,
    ),
]
LoadFormat = Annotated[
    str, typer.Option(help="auto, or dummy for random weights from the config alone.", rich_help_panel=_MODEL)
]
GenerationConfig = Annotated[
    str,
    typer.Option(
        "--generation-config",
        help="Sampling defaults of requests: auto is the model's generation_config.json, vllm none, else a folder.",
        rich_help_panel=_MODEL,
        metavar="PATH",
    ),
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that the model brings along.", rich_help_panel=_MODEL)
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.", rich_help_panel=_MODEL)]
TensorParallelSize = Annotated[
    int, typer.Option("--tensor-parallel-size", "-tp", help="Ranks that share each layer.", rich_help_panel=_MODEL)
]
PipelineParallelSize = Annotated[
    int,
    typer.Option("--pipeline-parallel-size", "-pp", help="Stages of layers, a rank each.", rich_help_panel=_MODEL),
]
PipelineLayers = Annotated[
    Any,
    typer.Option(
        "--pipeline-layers",
        help="Layers of each stage, where they shall not be equal: 16,32.",
        parser=parse_counts,
        metavar="N,...",
        rich_help_panel=_MODEL,
    ),
]
ExecutorBackend = Annotated[
    str | None,
    typer.Option(
        "--distributed-executor-backend",
        help="Where ranks live: mp (processes of this machine), ray (a cluster, at RAY_ADDRESS), or inproc (here). By "
        "default mp for several, inproc for one.",
        rich_help_panel=_MODEL,
        metavar="NAME",
    ),
]
DataParallelSize = Annotated[
    int,
    typer.Option(
        "--data-parallel-size",
        "-dp",
        help="Engine cores, each with ranks and a cache of its own; requests go where their prefix is cached.",
        rich_help_panel=_MODEL,
    ),
]

KVMemory = Annotated[
    Any,
    typer.Option(
        "--kv-memory",
        "--kv-cache-memory-bytes",
        help="Bytes of the KV cache per rank, such as 1GiB, with commas one for each pipeline stage or rank; by "
        "default a share of the free memory.",
        parser=parse_sizes,
        metavar="SIZE,...",
        rich_help_panel=_CACHE,
    ),
]
MemoryUtilization = Annotated[
    float | None,
    typer.Option(
        "--memory-utilization",
        "--gpu-memory-utilization",
        help="Without --kv-memory: the share of the free memory that the KV cache takes, above 0 and at most 1.",
        rich_help_panel=_CACHE,
    ),
]
BlockSize = Annotated[
    int | None,
    typer.Option("--block-size", help="Tokens of one block.", parser=parse_count, metavar="N", rich_help_panel=_CACHE),
]
NumBlocksOverride = Annotated[
    int | None,
    typer.Option(
        "--num-blocks-override",
        "--num-gpu-blocks-override",
        help="Exactly this many blocks, the null block included, instead of as many as fit.",
        parser=parse_count,
        metavar="N",
        rich_help_panel=_CACHE,
    ),
]
KVCacheDtype = Annotated[
    str,
    typer.Option(
        "--kv-cache-dtype",
        help="What K and V are kept in: auto (the compute dtype), bfloat16, float16 or float32.",
        metavar="DTYPE",
        rich_help_panel=_CACHE,
    ),
]
PrefixCaching = Annotated[
    bool,
    typer.Option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        help="Reuse blocks of equal prompt beginnings.",
        rich_help_panel=_CACHE,
    ),
]
KVCacheMetrics = Annotated[
    bool,
    typer.Option(
        "--kv-cache-metrics/--no-kv-cache-metrics",
        help="Measure how long cached blocks live, lie idle and wait for the next use.",
        rich_help_panel=_CACHE,
    ),
]
KVCacheMetricsSample = Annotated[
    float,
    typer.Option(
        "--kv-cache-metrics-sample",
        help="With --kv-cache-metrics: the share of the blocks that are measured, above 0 and at most 1.",
        rich_help_panel=_CACHE,
    ),
]

MaxNumBatchedTokens = Annotated[
    int | None,
    typer.Option(
        "--max-num-batched-tokens",
        help="Token budget of one step.",
        parser=parse_count,
        metavar="N",
        rich_help_panel=_STEP,
    ),
]
MaxNumSeqs = Annotated[
    int | None,
    typer.Option(
        "--max-num-seqs",
        help="Sequences that may run at once.",
        parser=parse_count,
        metavar="N",
        rich_help_panel=_STEP,
    ),
]
