"""A step from `SchedulerOutput` to `ModelRunnerOutput`: flatten, forward, sample.

    update the batch -> copy blocks -> flatten -> metadata per group -> model.forward -> rows that sample -> logits
    -> tokens

In a pipeline the stages have their own layers: the hidden states come from the stage before, or go to the next one, and
the last samples.

There are no phases: a request computes n >= 1 of its tokens, whichever they are, and gets a next one when the last
known token is among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from octavo.attention.backend import AttentionLayer
from octavo.kv.specs import KVCacheConfig
from octavo.messages import ModelRunnerOutput, SchedulerOutput, TokenLogprobs
from octavo.worker.block_table import BlockTable
from octavo.worker.group_steps import DeviceStep, make_group_step
from octavo.worker.input_batch import InputBatch, StepInput
from octavo.worker.kv_memory import CacheGroup, CacheView, copy_blocks
from octavo.worker.pipeline import Pipeline
from octavo.worker.sampler import Sampler
from octavo.worker.token_masks import TokenMasks, gather_masks

PROMPT_LOGITS_BYTES = 32 * 2**20
"""Most bytes of logits in being at once while prompt log probabilities are computed."""


class RunnableModel(Protocol):
    """What the runner asks of a model; see `octavo.models.hf_adapter.LoadedModel`."""

    attention_layers: dict[str, AttentionLayer]
    vocab_size: int

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        query_start: torch.Tensor,
        seq_lens: torch.Tensor,
        received: torch.Tensor | None = None,
    ) -> torch.Tensor: ...

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


class ModelRunner:
    """Runs steps of one model on one device.

    Owns: the batch, the cache views and the groups its layers are bound to.
    Never: decides what runs or where it is kept, and never edits the plan.
    """

    def __init__(
        self,
        model: RunnableModel,
        config: KVCacheConfig,
        *,
        tensors: Sequence[torch.Tensor],
        views: dict[str, CacheView],
        groups: list[CacheGroup],
        device: torch.device,
        max_num_seqs: int,
        num_threads: int,
        seed: int,
        pipeline: Pipeline | None = None,
    ) -> None:
        """`pipeline` leads to the other stages; None where the model has all its layers."""
        self._pipeline = pipeline
        self.kv_caches = views
        """The container of cache views, by layer name."""
        self.groups = groups
        self._tensors = tensors
        self._num_blocks = config.num_blocks
        self.max_model_len = config.max_model_len
        self._model = model
        self._device = device
        tables = [
            BlockTable(
                num_rows=max_num_seqs,
                block_size=group.block_size,
                max_blocks=-(-config.max_model_len // group.block_size),
            )
            for group in groups
        ]
        self._group_steps = [
            make_group_step(group, table, self._to_device) for group, table in zip(groups, tables, strict=True)
        ]
        self.batch = InputBatch(num_rows=max_num_seqs, tables=tables, seed=seed)
        self._sampler = Sampler(vocab_size=model.vocab_size, num_threads=num_threads)

    @torch.inference_mode()
    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step.

        Raises `ExecutorError` when a logit is NaN, `InvariantError` when `step` contradicts what this rank holds.
        """
        batch, pipeline = self.batch, self._pipeline
        if pipeline is not None and not pipeline.is_last:
            batch.append_earlier(step.earlier_tokens)
        batch.update(step)
        if not step.num_scheduled_tokens:
            return ModelRunnerOutput(sampled={})
        copy_blocks(self._tensors, self._num_blocks, step.block_copies)
        inputs = batch.flatten(step)
        hidden = self._forward(inputs)
        if pipeline is not None and not pipeline.is_last:
            pipeline.send(hidden)
            return ModelRunnerOutput(sampled={})
        prompt_logprobs = self._prompt_logprobs(inputs, hidden)
        if not len(inputs.samplers):
            return ModelRunnerOutput(sampled={}, prompt_logprobs=prompt_logprobs)
        last = inputs.query_start[1:][inputs.samplers] - 1
        picked = hidden if len(last) == len(hidden) else hidden[self._to_device(last)]
        logits = self._model.compute_logits(picked)
        rows = inputs.rows[inputs.samplers]
        names = [batch.request_ids[row] for row in rows]
        masks = gather_masks(step.token_masks, names, self._model.vocab_size)
        tokens = self._sampler.sample(logits, batch.sampling, rows, batch.history, batch.num_tokens[rows], masks)
        batch.append_tokens(rows, tokens)
        return ModelRunnerOutput(
            sampled=dict(zip(names, tokens.tolist(), strict=True)),
            logprobs=self._logprobs(logits, rows, tokens, masks),
            prompt_logprobs=prompt_logprobs,
        )

    def _forward(self, inputs: StepInput) -> torch.Tensor:
        """Hidden states [T, hidden] of the step's tokens."""
        step = DeviceStep.of(inputs, self._to_device)
        for group_step in self._group_steps:
            group_step.begin(step)
        token_ids, positions = self._to_device(inputs.token_ids), self._to_device(inputs.positions)
        if self._pipeline is None or self._pipeline.is_first:
            return self._model.forward(token_ids, positions, step.query_start, step.seq_lens)
        received = self._pipeline.receive(len(token_ids))
        return self._model.forward(token_ids, positions, step.query_start, step.seq_lens, received)

    def _logprobs(
        self, logits: torch.Tensor, rows: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64], masks: TokenMasks
    ) -> dict[str, TokenLogprobs]:
        wanted = self.batch.sampling.num_logprobs[rows]
        asking = np.flatnonzero(wanted >= 0)
        if not len(asking):
            return {}
        if len(asking) < len(rows):
            logits = logits[self._to_device(asking)]
        found = self._sampler.describe(logits, tokens[asking], wanted[asking], masks.of(asking))
        names = [self.batch.request_ids[row] for row in rows[asking]]
        return dict(zip(names, found, strict=True))

    def _prompt_logprobs(self, inputs: StepInput, hidden: torch.Tensor) -> dict[str, list[TokenLogprobs]]:
        """For each request that asks: what the model said of the prompt tokens that follow the step's ones."""
        batch, found = self.batch, {}
        for request in np.flatnonzero(batch.num_prompt_logprobs[inputs.rows] >= 0).tolist():
            row = int(inputs.rows[request])
            start = int(inputs.query_start[request])
            first = int(inputs.positions[start])
            count = min(int(inputs.seq_lens[request]), int(batch.num_prompt[row]) - 1) - first
            if count > 0:
                targets = batch.history[row, first + 1 : first + 1 + count].astype(np.int64)
                found[batch.request_ids[row]] = self._describe(
                    hidden[start : start + count], targets, int(batch.num_prompt_logprobs[row])
                )
        return found

    def _describe(self, hidden: torch.Tensor, targets: npt.NDArray[np.int64], wanted: int) -> list[TokenLogprobs]:
        """Log probabilities after each row of `hidden`, a few rows of logits at a time."""
        at_once = max(1, PROMPT_LOGITS_BYTES // (self._model.vocab_size * 4))
        found: list[TokenLogprobs] = []
        for start in range(0, len(targets), at_once):
            logits = self._model.compute_logits(hidden[start : start + at_once])
            part = targets[start : start + at_once]
            found += self._sampler.describe(logits, part, np.full(len(part), wanted, dtype=np.int32))
        return found

    def _to_device(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """`array` as a tensor: the same memory on a CPU, a copy elsewhere."""
        tensor = torch.from_numpy(array)
        return tensor if self._device.type == "cpu" else tensor.to(self._device)
