"""`octavo serve`: an HTTP server with OpenAI's API."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer

from octavo.cli import flags
from octavo.cli.help_text import TextHelp
from octavo.cli.outcome import exit_codes

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_SERVER, _LIMITS, _LOGS = "Server", "Limits", "Logs"

Model = Annotated[
    str | None, typer.Argument(help="demo, demo-smollm2, a folder, a .gguf file, or a hub id.", metavar="MODEL")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="The same, as a flag.", metavar="MODEL", rich_help_panel="Model")
]
Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all of them.", rich_help_panel=_SERVER)]
Port = Annotated[
    int,
    typer.Option(
        help="Port to listen on; 0 takes a free one.", metavar="N", min=0, max=65_535, rich_help_panel=_SERVER
    ),
]
Uds = Annotated[
    str | None, typer.Option(help="Listen on this Unix path instead.", metavar="PATH", rich_help_panel=_SERVER)
]
ServedModelName = Annotated[
    list[str] | None,
    typer.Option(
        help="What requests call the model; may be given several times. By default MODEL as it was given.",
        metavar="NAME",
        rich_help_panel=_SERVER,
    ),
]
ApiKey = Annotated[
    list[str] | None,
    typer.Option(
        help="Requests must bring one of these; may be given several times. OCTAVO_API_KEY keeps them out of the "
        "process list.",
        metavar="KEY",
        rich_help_panel=_SERVER,
    ),
]
SharePrefixes = Annotated[
    bool, typer.Option("--share-prefixes", help="Share cached prefixes between API keys.", rich_help_panel=_SERVER)
]
ChatTemplate = Annotated[
    str | None,
    typer.Option(help="A file with a Jinja template in place of the model's.", metavar="FILE", rich_help_panel=_SERVER),
]
ToolCallParser = Annotated[
    str,
    typer.Option(
        help="How tool calls are written: hermes, mistral, llama3_json, none, or auto, as the chat template has it.",
        rich_help_panel=_SERVER,
    ),
]
ReasoningParser = Annotated[
    str,
    typer.Option(
        help="Split reasoning from content: think, magistral, none, or auto, as the chat template has it. A request "
        "can ask for it, too.",
        rich_help_panel=_SERVER,
    ),
]
MaxRestarts = Annotated[
    int,
    typer.Option(
        help="How often in a row a crashed engine core is restarted.", metavar="N", min=0, rich_help_panel=_SERVER
    ),
]
MaxWaiting = Annotated[
    int,
    typer.Option(
        help="Sequences that may wait beside those that run; more are answered with 429.",
        metavar="N",
        min=0,
        rich_help_panel=_LIMITS,
    ),
]
RequestTimeout = Annotated[
    float | None,
    typer.Option(help="End requests that take longer, in seconds.", metavar="S", min=0.001, rich_help_panel=_LIMITS),
]
WatchdogTimeout = Annotated[
    float,
    typer.Option(
        help="Report requests under way of which nothing comes for so many seconds; 0: never.",
        metavar="S",
        min=0,
        rich_help_panel=_LOGS,
    ),
]
MaxLogprobs = Annotated[
    int,
    typer.Option(
        help="Most log probabilities at one place; -1 for no limit.", metavar="N", min=-1, rich_help_panel=_LIMITS
    ),
]
DrainTimeout = Annotated[
    float,
    typer.Option(
        help="How long requests may go on after SIGTERM, in seconds.", metavar="S", min=0, rich_help_panel=_LIMITS
    ),
]
SchedulingPolicy = Annotated[
    str, typer.Option(help="fcfs, or priority: smaller priority first.", rich_help_panel="Scheduling")
]
LogFormat = Annotated[str, typer.Option(help="text or json.", rich_help_panel=_LOGS)]
AccessLog = Annotated[
    bool, typer.Option("--access-log/--no-access-log", help="A line for each HTTP request.", rich_help_panel=_LOGS)
]


@app.command(cls=TextHelp)
def serve(
    model: Model = None,
    model_option: ModelOption = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    uds: Uds = None,
    served_model_name: ServedModelName = None,
    api_key: ApiKey = None,
    chat_template: ChatTemplate = None,
    tool_call_parser: ToolCallParser = "auto",
    reasoning_parser: ReasoningParser = "none",
    max_restarts: MaxRestarts = 3,
    max_waiting: MaxWaiting = 1000,
    request_timeout: RequestTimeout = None,
    watchdog_timeout: WatchdogTimeout = 60.0,
    max_logprobs: MaxLogprobs = 20,
    drain_timeout: DrainTimeout = 60.0,
    log_format: LogFormat = "text",
    tokenizer: flags.Tokenizer = None,
    revision: flags.Revision = None,
    dtype: flags.Dtype = "auto",
    quantization: flags.Quantization = "auto",
    max_model_len: flags.MaxModelLen = None,
    load_format: flags.LoadFormat = "auto",
    generation_config: flags.GenerationConfig = "auto",
    device: flags.Device = "auto",
    tensor_parallel_size: flags.TensorParallelSize = 1,
    data_parallel_size: flags.DataParallelSize = 1,
    pipeline_parallel_size: flags.PipelineParallelSize = 1,
    pipeline_layers: flags.PipelineLayers = None,
    distributed_executor_backend: flags.ExecutorBackend = None,
    kv_memory: flags.KVMemory = None,
    memory_utilization: flags.MemoryUtilization = None,
    block_size: flags.BlockSize = None,
    num_blocks_override: flags.NumBlocksOverride = None,
    kv_cache_dtype: flags.KVCacheDtype = "auto",
    kv_cache_metrics_sample: flags.KVCacheMetricsSample = 0.01,
    max_num_batched_tokens: flags.MaxNumBatchedTokens = None,
    max_num_seqs: flags.MaxNumSeqs = None,
    scheduling_policy: SchedulingPolicy = "fcfs",
    *,
    share_prefixes: SharePrefixes = False,
    access_log: AccessLog = True,
    trust_remote_code: flags.TrustRemoteCode = False,
    enable_prefix_caching: flags.PrefixCaching = True,
    kv_cache_metrics: flags.KVCacheMetrics = False,
) -> None:
    """Serve a model over HTTP, with OpenAI's API."""
    given: dict[str, Any] = dict(locals())
    with exit_codes():
        importlib.import_module("octavo.cli.serving").run(given)
