"""Sort one model type: it runs as transformers does, or is refused by a property. Anything else is a failure."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from octavo.config import CacheConfig, EngineConfig, ModelSource, ParallelConfig, SchedulerConfig
from octavo.engine.core import EngineCore
from octavo.errors import UnsupportedModelError
from octavo.formats.hf_config import model_config_from_hf
from octavo.formats.kv_specs import kv_cache_specs
from octavo.kv.specs import LayerSpec
from octavo.kv.stages import split_layers
from octavo.messages import EngineCoreRequest
from octavo.request import SamplingParams
from tests.models.walk.sizes import CHUNK, FIRST_TOKEN, VOCAB_SIZE, WINDOW
from tests.models.walk.tiny_model import save_tiny_model
from tests.parity.reference import Greedy, count_excused, greedy
from tests.parity.staged import StagedExecutor
from tests.thread_executor import ThreadExecutor

BLOCK_SIZE = 4
NUM_TOKENS = 8
MAX_MODEL_LEN = 64
STEP_TOKENS = 40
"""Tokens of one step: the lone prompt fits, the mixed batch's longest one and all together do not."""

SPREADS = (0.15, 0.3, 0.5, 0.08, 1.0, 0.25)
"""Standard deviations of random weights, tried until greedy outputs are varied."""

LEAST_VARIED = 7
"""Different tokens in the outputs of all prompts."""


@dataclass(frozen=True)
class Outcome:
    """What became of one model type."""

    name: str
    architecture: str
    """The class that transformers builds; empty when the config cannot be read."""
    layers: str
    """The tiny model's layers by kind, as read from its config."""
    num_groups: int
    """Groups of its KV cache; 0 when it was refused."""
    refusal: str
    """The sentence that names the property; empty when it runs."""
    num_excused: int = 0
    """Outputs that leave the reference where its two best logits are closer than `EXCUSED_MARGIN`."""

    @property
    def runs(self) -> bool:
        return not self.refusal


def walk(name: str, folder: Path, *, num_stages: int = 1, num_ranks: int = 1) -> Outcome:
    """Build a tiny model of this type (or variant) in `folder`, run it through Octavo, compare with transformers.

    With several stages, its layers are divided over them. Several ranks divide each layer: construct models
    `thread_executor.one_at_a_time` then.

    Raises `AssertionError` when it runs and is wrong, or is refused without naming a property; whatever else Octavo
    raises, too: no model may fail with a traceback.
    """
    prompts = make_prompts()
    for spread in SPREADS:
        model = save_tiny_model(name, folder, spread=spread)
        architecture, layers = _describe(folder)
        try:
            run = _Run(folder, num_stages, num_ranks)
        except UnsupportedModelError as error:
            _check_refusal(error)
            return Outcome(name, architecture, layers, 0, error.fact)
        with closing(run):
            assert model is not None, f"{name} runs, but transformers cannot build it"
            references = [greedy(model, prompt, NUM_TOKENS) for prompt in prompts]
            if num_different(references) >= LEAST_VARIED:
                num_excused = run.compare(prompts, references)
                return Outcome(name, architecture, layers, run.num_groups, "", num_excused)
    raise AssertionError(f"the outputs of {name} are not varied")


def make_prompts() -> list[list[int]]:
    """One that runs alone first, one that begins as it does, and three others; longer than windows and chunks."""
    generator = random.Random(7)

    def tokens(length: int) -> list[int]:
        return [generator.randrange(FIRST_TOKEN, VOCAB_SIZE) for _ in range(length)]

    alone = tokens(37)
    prompts = [alone, alone + tokens(6), tokens(49), tokens(3), tokens(14)]
    assert len(alone) > 3 * max(WINDOW, CHUNK)
    assert max(map(len, prompts)) + NUM_TOKENS <= MAX_MODEL_LEN
    assert len(alone) <= STEP_TOKENS < len(prompts[2])
    return prompts


def num_different(references: Sequence[Greedy]) -> int:
    return len({token for reference in references for token in reference.token_ids})


class _Run:
    """Octavo's own way from a folder to tokens. Owns: an engine core in this process."""

    def __init__(self, folder: Path, num_stages: int, num_ranks: int) -> None:
        config = EngineConfig(
            model=ModelSource(model=str(folder), dtype="float32", max_model_len=MAX_MODEL_LEN),
            cache=CacheConfig(block_size=BLOCK_SIZE, kv_memory_bytes=16 << 20),
            scheduler=SchedulerConfig(max_num_batched_tokens=STEP_TOKENS),
            parallel=ParallelConfig(tensor_parallel_size=num_ranks, pipeline_parallel_size=num_stages),
        )
        self._num_ranks = num_ranks
        self._executor = StagedExecutor(config) if num_ranks == 1 else ThreadExecutor(config)
        self._core = EngineCore(config, executor=self._executor)
        self.num_groups = len(self._core.plan.configs[0].groups)
        self._num_cached: dict[str, int] = {}

    def close(self) -> None:
        self._core.shutdown()

    def compare(self, prompts: Sequence[list[int]], references: Sequence[Greedy]) -> int:
        """Run the first prompt alone, then the others together; how many outputs differ within the excused margin."""
        self._check_specs()
        outputs = self._generate({"alone": prompts[0]})
        outputs |= self._generate({f"mixed {index}": prompt for index, prompt in enumerate(prompts[1:])})
        assert self._num_cached["alone"] == 0
        if all(group.spec.block_size < len(prompts[0]) for group in self._core.plan.groups):
            assert self._num_cached["mixed 0"] > 0, "the shared beginning was not found in the prefix cache"
        self._check_calls()
        return count_excused(list(outputs.values()), list(references))

    def _generate(self, prompts: dict[str, list[int]]) -> dict[str, list[int]]:
        outputs: dict[str, list[int]] = {request_id: [] for request_id in prompts}
        sampling = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
        for request_id, prompt in prompts.items():
            self._core.add_request(
                EngineCoreRequest(request_id=request_id, prompt_token_ids=list(prompt), sampling=sampling)
            )
        while self._core.has_unfinished_requests():
            for output in self._core.step().outputs:
                assert output.error is None, output.error
                outputs[output.request_id] += output.new_token_ids
                self._num_cached[output.request_id] = output.num_cached_tokens
        return outputs

    def _check_specs(self) -> None:
        """What the config promised is what the loaded layers report."""
        specs, shared = self._specs()
        by_rank = self._executor.get_kv_cache_specs(), self._executor.get_shared_layers()
        stages = split_layers(self._core.model_config.num_layers, len(by_rank[0]) // self._num_ranks)
        for promised, reported in zip((specs, shared), by_rank, strict=True):
            parted = [{name: promised[name] for name in promised if index_of(name) in stage} for stage in stages]
            assert reported == [part for part in parted for _ in range(self._num_ranks)]

    def _check_calls(self) -> None:
        """Every layer that has a cache, its own or another's, went through it."""
        specs, shared = self._specs()
        models = [worker._loaded() for worker in self._executor.workers]
        calls = [(name, layer.num_calls) for model in models for name, layer in model.cache_layers.items()]
        assert len(calls) == self._num_ranks * len({*specs, *shared})
        assert {name for name, _ in calls} == {*specs, *shared}
        assert all(count for _, count in calls), calls

    def _specs(self) -> tuple[dict[str, LayerSpec], dict[str, str]]:
        """What the config says that a rank keeps of all layers."""
        return kv_cache_specs(
            self._core.model_config, block_size=BLOCK_SIZE, dtype="float32", tensor_parallel_size=self._num_ranks
        )


def index_of(name: str) -> int:
    """Of the layer that a name in specs and plans stands for."""
    return int(name.split(".")[1])


KIND_WORDS = {
    "full": "full",
    "sliding_window": "window",
    "chunked_local": "chunk",
    "mla": "latent",
    "mamba": "state",
    "none": "no cache",
}


def _describe(folder: Path) -> tuple[str, str]:
    """(class, `2 window, 2 full`): the layers in the order in which their kinds first come; empty when unreadable."""
    try:
        config = model_config_from_hf(json.loads((folder / "config.json").read_text("utf-8")), name=folder.name)
    except UnsupportedModelError:
        return "", ""
    counts: dict[str, int] = {}
    for layer in config.layers:
        word = KIND_WORDS.get(layer.kind, layer.kind.replace("_", " "))
        word += " (shared)" if layer.kv_sharing_target is not None else ""
        counts[word] = counts.get(word, 0) + 1
    return config.architecture, ", ".join(f"{count} {word}" for word, count in counts.items())


def _check_refusal(error: UnsupportedModelError) -> None:
    """One sentence, in Octavo's own words."""
    assert error.remedy
    assert error.fact.endswith(".") and "\n" not in error.fact, error.fact
    assert not re.search(r"\b[A-Z]\w*(Error|Exception)\b", error.fact), f"not a property: {error.fact}"
