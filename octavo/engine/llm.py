"""`LLM`: the whole engine as one Python object, with the names that users of vLLM know."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, Unpack

from rich.console import Console
from rich.progress import Progress

from octavo.engine.beam_search import BeamRun
from octavo.engine.client_registry import start_client
from octavo.engine.conversation import Message
from octavo.engine.engine_args import EngineOptions, engine_config_from
from octavo.engine.figures import Figures
from octavo.engine.input_processor import InputProcessor, Prompt
from octavo.engine.output_processor import OutputProcessor, describe_beams
from octavo.engine.outputs import BeamSearchOutput, RequestOutput
from octavo.engine.preparation import OnStage, Prepared, find_files, read_tokenizer, render_chat
from octavo.engine.run import Run
from octavo.engine.sampling_defaults import read_sampling_defaults
from octavo.engine.tokenizer import Tokenizer
from octavo.engine.turn import Turn
from octavo.errors import RequestError
from octavo.kv.planner import KVCachePlan
from octavo.messages import SchedulerStats, StageReport
from octavo.request import BeamSearchParams, SamplingParams
from octavo.worker.device import choose_device


class LLM:
    """A loaded model with its KV cache, ready to generate.

    Owns: the engine core (in this process, unless there are several), the tokenizer. Never: runs between calls, or two
    calls at once: calls from several threads run one after the other.

    Parameters:
        model: `demo`, `demo-smollm2`, a folder, a `.gguf` file, or a hub id.
        on_stage: called with each finished step of the start-up.
        prepared: what was read of the model already; None reads it now.
        options: see `EngineOptions`; an unknown one raises `ConfigError` with the nearest known names.

    Raises `ConfigError`, `ModelFileError`, `UnsupportedModelError` or `PlanError`, each with a remedy. Messages call
    options as the command line does: `--max-model-len` is the keyword `max_model_len`, and so on.
    Use it as a context manager, or call `shutdown()`, to free its memory before the object goes; from then on it raises
    `OctavoError` when asked for anything.
    """

    def __init__(
        self,
        model: str,
        *,
        on_stage: OnStage | None = None,
        prepared: Prepared | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        started = time.perf_counter()
        config = engine_config_from({"model": model, **options})
        self.device = choose_device(config.parallel.device, 0).type
        """`cpu` or `cuda`."""
        report = on_stage or _silent
        # The tokenizer needs nothing of the model, and its parsing leaves this thread free while weights are read.
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer") as pool:
            if prepared is None:
                files = find_files(config, report)
                self._defaults = read_sampling_defaults(config.model.generation_config, files)
                reading = pool.submit(read_tokenizer, config, files, report)
            else:
                self._defaults = prepared.sampling_defaults
                reading = pool.submit(lambda: prepared.tokenizer)
            self._client = start_client(config, report)
            try:
                self._tokenizer: Tokenizer = reading.result()
            except BaseException:
                self._client.shutdown()
                raise
        self._inputs = InputProcessor(
            self._tokenizer,
            max_model_len=self.max_model_len,
            max_position=self._client.model_config.max_position,
            vocab_size=self._client.model_config.vocab_size,
            defaults=self._defaults,
        )
        self._client.share_grammars(self._inputs.grammars)
        self._outputs = OutputProcessor(self._tokenizer)
        self._turn = Turn()
        self._max_num_seqs = config.scheduler.max_num_seqs
        self.figures: Figures | None = None
        """Figures of the last `generate` or `chat`; None before the first."""
        self.load_s = time.perf_counter() - started
        """Seconds that this constructor took."""

    @property
    def plan(self) -> KVCachePlan:
        """What the KV cache is made of, and what it holds."""
        return self._client.plan

    @property
    def model_name(self) -> str:
        """The model's name, for people."""
        return self._client.model_config.name

    @property
    def max_model_len(self) -> int:
        """Longest prompt + output in tokens."""
        return self._client.max_model_len

    def get_default_sampling_params(self) -> SamplingParams:
        """What prompts without parameters of their own get: those of the model's `generation_config.json`."""
        return SamplingParams(**self._defaults)

    def get_tokenizer(self) -> Tokenizer:
        """The tokenizer that prompts go through."""
        return self._tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: object = None,
        priority: int | Sequence[int] = 0,
    ) -> list[RequestOutput]:
        """Complete `prompts`; one output per prompt, in their order.

        Parameters:
            prompts: one prompt or a sequence: a text, token ids, `{"prompt": text}` or `{"prompt_token_ids": ids}`; a
                dict may also hold a `"cache_salt"`.
            sampling_params: for all prompts, or one for each; None is `get_default_sampling_params()`.
            use_tqdm: show progress on stderr where that is a terminal.
            lora_request: must be None: adapters are not supported.
            priority: for all prompts, or one for each; smaller runs first under the priority policy.

        Raises `RequestError`, which names the prompt, when one cannot run; then nothing of the others goes on, and the
        engine can be used as before.
        """
        _refuse_adapter(lora_request)
        run = self.start_run(prompts, sampling_params, priority=priority)
        return self._finish(run, show_progress=use_tqdm)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        use_tqdm: bool = False,
        lora_request: object = None,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The `params.beam_width` most likely continuations of each prompt, in their order; `octavo.engine.beam_search`
        has the exact definition.

        Parameters:
            concurrency_limit: prompts searched for at the same time; None is as many as `max_num_seqs` lets run.

        Raises as `generate`.
        """
        _refuse_adapter(lora_request)
        if not isinstance(params, BeamSearchParams):
            raise RequestError(
                f"A beam search is asked for with {type(params).__name__}.",
                remedy="Give BeamSearchParams(beam_width=..., max_tokens=...).",
            )
        self._turn.require_open()
        sampling = SamplingParams(max_tokens=params.max_tokens)
        requests = self._inputs.process(prompts, sampling)
        run = BeamRun(
            self._client,
            requests,
            params,
            vocab_size=self._client.model_config.vocab_size,
            num_at_once=concurrency_limit or max(1, self._max_num_seqs // params.beam_width),
        )
        with self._turn.taken(), _progress(len(requests), show=use_tqdm) as advance:
            run.run(advance)
        return [
            describe_beams(request.prompt_token_ids, search.finished(), self._tokenizer, params)
            for request, search in zip(requests, run.searches, strict=True)
        ]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
    ) -> list[RequestOutput]:
        """The model's next turn in one conversation, or in each of several. Raises as `generate` and
        `render_chat`."""
        self._turn.require_open()
        run = self.start_run(
            self.render_chat(messages, add_generation_prompt=add_generation_prompt),
            sampling_params,
            add_special_tokens=False,
        )
        return self._finish(run, show_progress=use_tqdm)

    def render_chat(
        self, messages: Sequence[Message] | Sequence[Sequence[Message]], *, add_generation_prompt: bool = True
    ) -> list[Prompt]:
        """The prompts that the model's chat template makes of one conversation, or of several.

        Raises `RequestError` when a message is none, when the model has no template, or the template refuses them.
        """
        return render_chat(self._tokenizer, messages, add_generation_prompt=add_generation_prompt)

    def start_run(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        add_special_tokens: bool = True,
    ) -> Run:
        """Check all prompts; a `Run` whose `updates()` gives the text as it comes. Raises as `generate`."""
        self._turn.require_open()
        requests = self._inputs.process(
            prompts, sampling_params, priority=priority, add_special_tokens=add_special_tokens
        )
        return Run(self._client, self._outputs, requests, turn=self._turn)

    def stats(self) -> SchedulerStats:
        """Where the engine stands: requests, blocks by state, preemptions and prefix hits so far."""
        self._turn.require_open()
        return self._client.stats()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False when blocks are in use: then nothing changes."""
        with self._turn.shared():
            return self._client.reset_prefix_cache()

    def shutdown(self) -> None:
        """Free the model and the cache, once the call of another thread has ended. May be called twice."""
        with self._turn.last():
            self._client.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _finish(self, run: Run, *, show_progress: bool) -> list[RequestOutput]:
        with _progress(run.meter.num_sequences, show=show_progress) as advance:
            for update in run.updates():
                if update.finish_reason is not None:
                    advance()
        self.figures = run.figures(load_s=self.load_s, num_blocks=self.plan.configs[0].num_blocks)
        return run.outputs()


def _refuse_adapter(lora_request: object) -> None:
    if lora_request is not None:
        raise RequestError("LoRA adapters are not supported.", remedy="Merge the adapter into the model's weights.")


class _progress:  # noqa: N801
    """A progress bar over `total`, on stderr where that is a terminal; else nothing. Entering gives `advance`."""

    def __init__(self, total: int, *, show: bool) -> None:
        self._bar = Progress(console=Console(stderr=True), disable=not (show and sys.stderr.isatty()))
        self._task = self._bar.add_task("Generating", total=total)

    def __enter__(self) -> Callable[[], None]:
        self._bar.start()
        return lambda: self._bar.advance(self._task)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def _silent(report: StageReport) -> None:
    """Nobody watches the start-up."""
