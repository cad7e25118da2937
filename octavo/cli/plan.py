"""`octavo plan`: what a machine will hold of a model's KV cache, before there is the machine."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

from octavo.cli import flags
from octavo.cli.help_text import TextHelp
from octavo.cli.outcome import exit_codes

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_MACHINE, _MODEL, _CACHE, _STEP, _RANKS, _OUTPUT = "Machine", "Model", "KV cache", "Scheduling", "Ranks", "Output"

Model = Annotated[
    str | None,
    typer.Argument(
        help="demo, demo-smollm2, a folder, a config.json, a .gguf file, or a hub id (its config only).",
        metavar="MODEL",
    ),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="The same.", rich_help_panel=_MODEL, metavar="MODEL")
]
KVMemory = Annotated[
    Any,
    typer.Option(
        "--kv-memory",
        "--kv-cache-memory-bytes",
        help="Bytes of the KV cache per rank; with commas one for each pipeline stage or rank.",
        parser=flags.parse_sizes,
        metavar="SIZE,...",
        rich_help_panel=_MACHINE,
    ),
]
CacheFormat = Annotated[
    str,
    typer.Option(
        "--kv-cache-dtype",
        help="auto (the compute dtype), bfloat16, float16, float32, fp8 (fp8_e4m3, fp8_e5m2), int8_per_token_head or "
        "fp8_per_token_head.",
        metavar="DTYPE",
        rich_help_panel=_CACHE,
    ),
]
Gpu = Annotated[
    str | None,
    typer.Option("--gpu", help="A device by name, and how many: h200x8.", metavar="NAMExN", rich_help_panel=_MACHINE),
]
Memory = Annotated[
    Any,
    typer.Option(
        "--memory",
        help="Memory of each device, such as 24GiB; with commas one for each pipeline stage or rank.",
        parser=flags.parse_sizes,
        metavar="SIZE,...",
        rich_help_panel=_MACHINE,
    ),
]
Utilization = Annotated[
    float,
    typer.Option(
        "--memory-utilization",
        "--gpu-memory-utilization",
        help="The share of a device's memory that the engine may take.",
        rich_help_panel=_MACHINE,
    ),
]
Weights = Annotated[
    int | None,
    typer.Option(
        "--weights",
        help="Bytes of all weights together, where no file and no config tells.",
        parser=flags.parse_size,
        metavar="SIZE",
        rich_help_panel=_MACHINE,
    ),
]
Runtime = Annotated[
    int | None,
    typer.Option(
        "--runtime-memory",
        help="What a rank needs beside weights and cache, instead of the estimate.",
        parser=flags.parse_size,
        metavar="SIZE",
        rich_help_panel=_MACHINE,
    ),
]
Devices = Annotated[
    Path | None,
    typer.Option("--devices", help="A JSON file with devices of your own.", metavar="FILE", rich_help_panel=_MACHINE),
]
Lengths = Annotated[
    Any,
    typer.Option(
        "--lengths",
        help="Further lengths to tell the concurrency of: 4K,32K.",
        parser=flags.parse_counts,
        metavar="N,...",
        rich_help_panel=_OUTPUT,
    ),
]
Hybrid = Annotated[
    bool,
    typer.Option(
        "--hybrid/--disable-hybrid-kv-cache-manager",
        help="Off: windowed layers beside full ones are planned as full.",
        rich_help_panel=_CACHE,
    ),
]
MaxChunkTokens = Annotated[
    int | None,
    typer.Option(
        "--max-chunk-tokens",
        help="Most tokens one request is given in one step.",
        parser=flags.parse_count,
        metavar="N",
        rich_help_panel=_STEP,
    ),
]
MaxInFlightTokens = Annotated[
    int | None,
    typer.Option(
        "--max-in-flight-tokens",
        help="Tokens in flight as the reference engine counts them; by default --max-num-batched-tokens.",
        parser=flags.parse_count,
        metavar="N",
        rich_help_panel=_STEP,
    ),
]
TensorParallelSize = Annotated[
    int | None,
    typer.Option(
        "--tensor-parallel-size",
        "-tp",
        help="Ranks that share each layer; by default every device of a stage.",
        rich_help_panel=_RANKS,
    ),
]
PipelineParallelSize = Annotated[
    int, typer.Option("--pipeline-parallel-size", "-pp", help="Stages of layers.", rich_help_panel=_RANKS)
]
PipelineLayers = Annotated[
    Any,
    typer.Option(
        "--pipeline-layers",
        help="Layers of each stage, where they shall not be equal: 16,32.",
        parser=flags.parse_counts,
        metavar="N,...",
        rich_help_panel=_RANKS,
    ),
]
Compare = Annotated[
    list[str] | None,
    typer.Option(
        "--compare",
        help="A table over values of one setting: tp=1,2,4 or pp, kv-dtype, block-size, max-len, step-tokens, gpu, "
        "memory, kv-memory, model. May be given several times.",
        metavar="SETTING=V,V,...",
        rich_help_panel=_OUTPUT,
    ),
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Each number with its formula and inputs.", rich_help_panel=_OUTPUT)
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", help="Draw it into FILE: .svg, .png or .html.", metavar="FILE", rich_help_panel=_OUTPUT),
]
Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Start the engine here with the plan's bytes, and compare what it allocates.",
        rich_help_panel=_OUTPUT,
    ),
]
Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        help="With --check: compare with this running server instead, planned from the settings that it reports.",
        metavar="URL",
        rich_help_panel=_OUTPUT,
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option("--api-key", help="The key of that server.", metavar="KEY", rich_help_panel=_OUTPUT),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else.", rich_help_panel=_OUTPUT)]


@app.command(cls=TextHelp)
def plan(
    model: Model = None,
    model_option: ModelOption = None,
    revision: flags.Revision = None,
    kv_memory: KVMemory = None,
    gpu: Gpu = None,
    memory: Memory = None,
    memory_utilization: Utilization = 0.92,
    weights: Weights = None,
    runtime_memory: Runtime = None,
    devices: Devices = None,
    dtype: flags.Dtype = "auto",
    max_model_len: flags.MaxModelLen = None,
    kv_cache_dtype: CacheFormat = "auto",
    block_size: flags.BlockSize = 16,
    num_blocks_override: flags.NumBlocksOverride = None,
    max_num_batched_tokens: flags.MaxNumBatchedTokens = 2048,
    max_num_seqs: flags.MaxNumSeqs = 128,
    max_chunk_tokens: MaxChunkTokens = None,
    max_in_flight_tokens: MaxInFlightTokens = None,
    tensor_parallel_size: TensorParallelSize = None,
    pipeline_parallel_size: PipelineParallelSize = 1,
    pipeline_layers: PipelineLayers = None,
    lengths: Lengths = None,
    compare: Compare = None,
    plot: Plot = None,
    server: Server = None,
    api_key: ApiKey = None,
    *,
    enable_prefix_caching: flags.PrefixCaching = True,
    hybrid: Hybrid = True,
    explain: Explain = False,
    check: Check = False,
    json: Json = False,
) -> None:
    """Say what a machine will hold of a model's KV cache: needs no GPU, no weights and no torch.

    Exits with 2 where one request does not fit.
    """
    given: dict[str, Any] = dict(locals())
    with exit_codes():
        importlib.import_module("octavo.cli.planning").run(given)
