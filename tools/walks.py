"""The two walks of docs/architecture.md: `config_walk.md` and `token_walk.md` beside this file, filled with the numbers
of a toy run that has just been made."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

import torch

from octavo.config import format_bytes
from octavo.kv.layout import LayerPlacement, placements, slot_bytes, slot_of
from octavo.kv.specs import AttentionSpec, LayerSpec
from octavo.messages import SchedulerOutput
from tools.toy_run import (
    BLOCK_SIZE,
    FOLLOWED,
    FOLLOWED_REQUEST,
    KV_MEMORY_BYTES,
    NEIGHBOUR,
    NUM_PROMPT_TOKENS,
    WINDOW,
    ToyRun,
)

LINE_LENGTH = 120

_HERE = Path(__file__).resolve().parent


def config_walk(run: ToyRun) -> str:
    """Walk A: a config from the engine core to a bound view."""
    config, figures, model = run.sent[0], run.plan.figures, run.model_config
    spec = run.specs["layers.3"]
    assert isinstance(spec, AttentionSpec)
    place = placements(config)["layers.3"]
    shape, strides, key_start, value_start = run.views["layers.3"]
    assert (key_start, value_start) == run.views["layers.2"][2:]
    tensors = (
        f"tensor {index}, {tensor.size_bytes:,} bytes, is shared by {_names(tensor.shared_by)}"
        for index, tensor in enumerate(config.tensors)
    )
    return _fill(
        "config_walk.md",
        num_layers=model.num_layers,
        kinds=", ".join(layer.kind.replace("_", " ") for layer in model.layers),
        num_kv_heads=spec.num_kv_heads,
        head_size=spec.head_size,
        value_size=spec.value_size,
        window=WINDOW,
        max_position=model.max_position,
        token_bytes=spec.token_bytes,
        block_size=BLOCK_SIZE,
        page_bytes=f"{spec.page_bytes:,}",
        available_bytes=f"{run.available_bytes:,}",
        kv_memory=format_bytes(KV_MEMORY_BYTES).replace(" ", ""),
        groups="; ".join(
            f"group {index} is {_names(group.layer_names)} ({_kind(group.spec)})"
            for index, group in enumerate(config.groups)
        ),
        num_tensors=len(config.tensors),
        bytes_per_block=f"{figures.ranks[0].bytes_per_block:,}",
        num_blocks=config.num_blocks,
        tensors="; ".join(tensors).capitalize(),
        max_model_len=config.max_model_len,
        held=" + ".join(str(blocks) for blocks in figures.blocks_per_request),
        usable_blocks=figures.usable_blocks,
        blocks_per_request=sum(figures.blocks_per_request),
        max_concurrency=f"{figures.max_concurrency:.2f}",
        num_sent=len(run.sent),
        num_allocated=len(run.tensors),
        shape=list(shape),
        strides=list(strides),
        key_start=key_start,
        value_start=value_start,
        tensor_index=place.tensor_index,
        slot_index=place.slot_index,
        num_groups=len(config.groups),
        stages=", ".join(f"`{name}`" for name in dict.fromkeys(stage.name for stage in run.stages)),
    )


def token_walk(run: ToyRun) -> str:
    """Walk B: one token from the request to its slot and back."""
    places = placements(run.sent[0])
    number = next(index for index, step in enumerate(run.steps) if _starts_at(step, FOLLOWED))
    first, before, step = run.steps[0], run.steps[number - 1], run.steps[number]
    table, window_table = run.tables[FOLLOWED_REQUEST]
    slots = [slot_of(blocks, FOLLOWED, BLOCK_SIZE) for blocks in (table, window_table)]
    column, offset = divmod(FOLLOWED, BLOCK_SIZE)
    place = places["layers.2"]
    start, stop = slot_bytes(place, slots[0])
    written = run.tensors[place.tensor_index][start:stop].view(torch.float32)
    admitted = next(request for request in first.new_requests if request.request_id == FOLLOWED_REQUEST)
    continued = before.cached_requests.new_block_ids[FOLLOWED_REQUEST]
    return _fill(
        "token_walk.md",
        request=FOLLOWED_REQUEST,
        neighbour=NEIGHBOUR,
        num_prompt_tokens=NUM_PROMPT_TOKENS,
        position=FOLLOWED,
        budget=first.num_tokens,
        first_step=first.step,
        first_tokens=first.num_scheduled_tokens,
        before_step=before.step,
        before_tokens=before.num_scheduled_tokens,
        step=step.step,
        tokens=step.num_scheduled_tokens,
        first_blocks=_blocks(admitted.block_ids),
        chunk=first.num_scheduled_tokens[FOLLOWED_REQUEST],
        more_blocks=_blocks(continued),
        table=table,
        window_table=window_table,
        window=WINDOW,
        oldest=FOLLOWED - WINDOW + 1,
        last_of_block=BLOCK_SIZE - 1,
        column=column,
        offset=offset,
        block_size=BLOCK_SIZE,
        block=table[column],
        slot=slots[0],
        window_block=window_table[column],
        window_slot=slots[1],
        layers="\n".join(_row(place, slots[place.group_index]) for _, place in sorted(places.items())),
        start=f"{start:,}",
        last=f"{stop - 1:,}",
        tensor_index=place.tensor_index,
        num_floats=written.numel(),
        num_written=int(written.count_nonzero()),
        sampled=" and ".join(f"`{name}`" for name in run.answers[number].sampled),
    )


def _fill(name: str, **numbers: object) -> str:
    return wrap((_HERE / name).read_text(encoding="utf-8").format_map(numbers))


def wrap(text: str) -> str:
    """`text` with its paragraphs and list items wrapped to `LINE_LENGTH`; tables stay as they are."""
    wrapped: list[str] = []
    for block in re.split(r"\n(?=\d+\. |\n)", text.rstrip("\n")):
        lines = block.strip("\n").split("\n")
        start = "\n" if block.startswith("\n") else ""
        if lines[0].lstrip().startswith("|"):
            wrapped.append(start + "\n".join(lines))
            continue
        first = re.match(r" *", lines[0])[0]  # type: ignore[index]
        rest = "   " if re.match(r"\d+\. ", lines[0]) else first
        paragraph = " ".join(line.strip() for line in lines)
        filled = textwrap.wrap(
            paragraph, LINE_LENGTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False,
            break_long_words=False,
        )  # fmt: skip
        wrapped.append(start + "\n".join(filled))
    return "\n".join(wrapped) + "\n"


def _starts_at(step: SchedulerOutput, position: int) -> bool:
    cached = step.cached_requests
    return (FOLLOWED_REQUEST, position) in zip(cached.request_ids, cached.num_computed_tokens, strict=True)


def _kind(spec: LayerSpec) -> str:
    window = getattr(spec, "window", None)
    return "full attention" if window is None else f"a window of {window}"


def _names(layer_names: Iterable[str]) -> str:
    return "layers " + " and ".join(name.removeprefix("layers.") for name in layer_names)


def _blocks(by_group: Iterable[list[int]]) -> str:
    return " and ".join(
        f"block{'s' if len(ids) > 1 else ''} {' and '.join(map(str, ids))} in group {index}"
        for index, ids in enumerate(by_group)
    )


def _row(place: LayerPlacement, slot: int) -> str:
    start, stop = slot_bytes(place, slot)
    cells = (place.layer_name.removeprefix("layers."), place.group_index, place.slot_index, place.tensor_index, slot)
    return "   | " + " | ".join(map(str, cells)) + f" | {start:,} to {stop - 1:,} |"
