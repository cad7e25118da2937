"""`octavo generate`: prompts in, texts out."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer

from octavo.cli import flags
from octavo.cli.help_text import TextHelp
from octavo.cli.outcome import exit_codes
from octavo.importing import hurry

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_PROMPT, _SAMPLING, _OUTPUT = "Prompts", "Sampling", "Output"

Prompts = Annotated[
    list[str] | None, typer.Argument(help="One or more prompts; - reads standard input.", metavar="PROMPT")
]
PromptFile = Annotated[
    list[str] | None,
    typer.Option(
        "--prompt-file",
        "-f",
        help="A text file is one prompt; a .jsonl file has one a line: a JSON text, or an object with prompt, "
        "prompt_token_ids or messages. May be given several times; - reads standard input.",
        metavar="FILE",
        rich_help_panel=_PROMPT,
    ),
]
PromptLines = Annotated[
    bool,
    typer.Option(
        "--prompt-lines",
        help="Every line of a text file, and of standard input, that is not blank is a prompt.",
        rich_help_panel=_PROMPT,
    ),
]
Chat = Annotated[
    bool, typer.Option("--chat", help="Prompts are turns of a user: apply the chat template.", rich_help_panel=_PROMPT)
]
System = Annotated[
    str | None, typer.Option(help="With --chat: the system's turn before each prompt.", rich_help_panel=_PROMPT)
]
CacheSalt = Annotated[
    str | None,
    typer.Option(help="Share cached prefixes only under the same salt.", metavar="TEXT", rich_help_panel=_PROMPT),
]

MaxTokens = Annotated[
    int,
    typer.Option(
        "--max-tokens",
        help="Longest completion in tokens; 0 for as many as --max-model-len leaves.",
        parser=flags.parse_count,
        metavar="N",
        rich_help_panel=_SAMPLING,
    ),
]
MinTokens = Annotated[int, typer.Option(help="Do not stop before this many tokens.", rich_help_panel=_SAMPLING)]
NumCompletions = Annotated[int, typer.Option("--n", "-n", help="Completions per prompt.", rich_help_panel=_SAMPLING)]
Temperature = Annotated[
    float, typer.Option("--temperature", "-t", help="0 always takes the most likely token.", rich_help_panel=_SAMPLING)
]
TopK = Annotated[int, typer.Option(help="Only the k most likely tokens; 0 is all.", rich_help_panel=_SAMPLING)]
TopP = Annotated[
    float, typer.Option(help="Only the most likely tokens that make up this probability.", rich_help_panel=_SAMPLING)
]
MinP = Annotated[
    float, typer.Option(help="Only tokens at least this share as likely as the best.", rich_help_panel=_SAMPLING)
]
RepetitionPenalty = Annotated[
    float, typer.Option(help="Above 1 makes tokens seen before less likely.", rich_help_panel=_SAMPLING)
]
PresencePenalty = Annotated[
    float, typer.Option(help="Subtracted once from tokens of the output.", rich_help_panel=_SAMPLING)
]
FrequencyPenalty = Annotated[
    float, typer.Option(help="Subtracted for each time a token is in the output.", rich_help_panel=_SAMPLING)
]
Seed = Annotated[int | None, typer.Option(help="Same seed, same draws.", rich_help_panel=_SAMPLING)]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="End at this text; may be given several times.", metavar="TEXT", rich_help_panel=_SAMPLING),
]
StopTokenId = Annotated[
    list[int] | None,
    typer.Option(
        "--stop-token-id",
        help="End at this token; may be given several times.",
        metavar="ID",
        rich_help_panel=_SAMPLING,
    ),
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on after the end-of-sequence token.", rich_help_panel=_SAMPLING)
]
Logprobs = Annotated[
    int | None,
    typer.Option(
        help="With --json: log probabilities of the N best tokens at each place.",
        metavar="N",
        rich_help_panel=_SAMPLING,
    ),
]

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else.", rich_help_panel=_OUTPUT)]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Each step of the start-up, with its time and result.", rich_help_panel=_OUTPUT
    ),
]

FIGURES = """
Figures, in the closing line and under --json: load_s is the time from the start of the process until the engine was
ready; ttft_s from handing in the prompts to the first token (mean over prompts); wall_s to the last token;
prefill_tokens_per_s counts prompt tokens that were computed, per second of the steps that computed any;
decode_tokens_per_s counts output tokens of all other steps, per second of those; output_tokens_per_s is all output
over wall_s; hit_tokens are prompt tokens that the prefix cache held; num_blocks includes the null block.
"""


@app.command(cls=TextHelp, epilog=FIGURES)
def generate(
    prompts: Prompts = None,
    model: flags.ModelName = "demo",
    tokenizer: flags.Tokenizer = None,
    revision: flags.Revision = None,
    dtype: flags.Dtype = "auto",
    quantization: flags.Quantization = "auto",
    max_model_len: flags.MaxModelLen = None,
    load_format: flags.LoadFormat = "auto",
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
    max_num_batched_tokens: flags.MaxNumBatchedTokens = None,
    max_num_seqs: flags.MaxNumSeqs = None,
    prompt_file: PromptFile = None,
    system: System = None,
    cache_salt: CacheSalt = None,
    max_tokens: MaxTokens = 128,
    min_tokens: MinTokens = 0,
    n: NumCompletions = 1,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    presence_penalty: PresencePenalty = 0.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    seed: Seed = None,
    stop: Stop = None,
    stop_token_ids: StopTokenId = None,
    logprobs: Logprobs = None,
    *,
    trust_remote_code: flags.TrustRemoteCode = False,
    enable_prefix_caching: flags.PrefixCaching = True,
    prompt_lines: PromptLines = False,
    chat: Chat = False,
    ignore_eos: IgnoreEos = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Complete prompts with a model, greedily and up to 128 tokens unless told otherwise."""
    given: dict[str, Any] = dict(locals())
    with exit_codes(), hurry():
        importlib.import_module("octavo.cli.generation").run(given)
