"""A decoder's step over few tokens as one program: one call for all layers.

    embed, look up angles | join, product, rotate, write, attend, product, join, product, gate, product | ... | norm

Between parts lie buffers of `MAX_ROWS` rows that all layers share. What changes from step to step is written into one
array; the program copies it into the jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from octavo.attention.backend import AttentionGroup, AttentionLayer
from octavo.attention.numba_cpu import NumbaCPU, RowPlaces, element_of
from octavo.attention.numba_kernels import vector_paths
from octavo.attention.numba_memory import Record
from octavo.attention.program import KernelCall, Program
from octavo.models.attention_interface import BoundAttention, hook_of
from octavo.models.decoder import Decoder, RotaryCall
from octavo.models.modules.decoder_layer import LayerForm
from octavo.models.modules.linear import PackedLinear
from octavo.models.modules.norm_kernels import NORM_JOB, norm_kernel
from octavo.models.modules.rms_norm import FastRMSNorm
from octavo.models.modules.row_kernels import TEAM
from octavo.models.modules.weights import FewRows, Weight, ask_ahead

MAX_ROWS = 64
"""Most tokens of a step that a program takes; products may set a lower limit."""

_FIRST_POSITIONS = 1024


class Places(NamedTuple):
    """Rows of a buffer."""

    address: int
    row_bytes: int


class AngleTable:
    """Cosines and sines of the positions seen so far, as the model's own rotary module computes them.

    Owns: the table, and the rows of the step under way.
    """

    def __init__(self, rotary: RotaryCall, size: int, dtype: torch.dtype) -> None:
        self._rotary = rotary
        self._table = torch.empty(0, 2, size, dtype=dtype)
        self._rows = torch.zeros(MAX_ROWS, 2, size, dtype=dtype)
        self.cosines = Places(self._rows.data_ptr(), 2 * size * dtype.itemsize)
        self.sines = Places(self._rows[:, 1].data_ptr(), 2 * size * dtype.itemsize)

    def look_up(self, positions: torch.Tensor, end: int) -> None:
        """Fetch the rows of `positions`, all of them below `end`."""
        if end > len(self._table):
            length = max(_FIRST_POSITIONS, 1 << (end - 1).bit_length())
            self._table = torch.stack(self._rotary.angles(torch.arange(length)), dim=1)
        torch.index_select(self._table, 0, positions, out=self._rows[: len(positions)])


class DecoderProgram:
    """The program of a decoder whose layers are bound. Owns: buffers, jobs, and tables of angles."""

    def __init__(self, decoder: Decoder, layers: Sequence[AttentionLayer]) -> None:
        """`layers` are those of the decoder's attention modules, in order."""
        self.max_rows = min((few.max_rows for few in _products(decoder)), default=0)
        self.max_rows = min(self.max_rows, MAX_ROWS)
        self._embedding = decoder.embedding
        self._layers = layers
        self._bindings = [(layer.kv_cache, layer.group) for layer in layers]
        self._groups: list[AttentionGroup] = []
        for layer in layers:
            if layer.group is not None and not any(layer.group is group for group in self._groups):
                self._groups.append(layer.group)
        self._num_threads = torch.get_num_threads()
        builder = _Builder(decoder, layers, self._groups, self._num_threads)
        self._step, self._tables, self._out = builder.step, builder.tables, builder.out
        self._memory = builder.memory
        self._program = Program(builder.calls, builder.copies, TEAM)

    def is_current(self) -> bool:
        """Whether the layers are bound, and the threads as many, as when it was made."""
        for layer, (cache, group) in zip(self._layers, self._bindings, strict=True):
            if layer.kv_cache is not cache or layer.group is not group:
                return False
        return self._num_threads == torch.get_num_threads()

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, received: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Hidden states [T, hidden size] after the last norm, or a stage's last layer, which stay as they are until the
        next call; `received` are those of the stage before."""
        num_tokens = len(token_ids)
        if self._embedding is not None:
            received = self._embedding(token_ids[None])
        if received is None:
            raise RuntimeError("a stage that has no embedding received no hidden states")
        hidden = received.contiguous()
        numbers = [num_tokens, hidden.data_ptr()]
        end = 0
        for group in self._groups:
            metadata = group.metadata
            if metadata is None:
                raise RuntimeError(f"group {group.index} was not told of the step")
            end = metadata.max_seq_len
            numbers += (
                metadata.query_start.data_ptr(),
                metadata.seq_lens.data_ptr(),
                metadata.num_requests,
                metadata.slot_mapping.data_ptr(),
                metadata.block_table.data_ptr(),
                metadata.block_table.stride(0),
            )
        for table in self._tables:
            table.look_up(positions, end)
        self._step[:] = numbers
        for layer in self._layers:
            layer.num_calls += 1
        self._program.run(self._num_threads)
        return self._out[:num_tokens]


class FewTokens:
    """Steps of few tokens of a model. Owns: the program, made anew when the layers are bound to another cache."""

    def __init__(self, decoder: Decoder | None) -> None:
        """None is a model that is of no kind known here: it has no program."""
        hooks = [] if decoder is None else [hook_of(form.attention) for form in decoder.layers]
        self._layers = [hook.layer for hook in hooks if type(hook) is BoundAttention]
        self._decoder = decoder if decoder is not None and len(self._layers) == len(hooks) else None
        if self._decoder is not None and not _can_be_program(self._decoder, self._layers):
            self._decoder = None
        self._program: DecoderProgram | None = None

    def program(self, num_tokens: int) -> DecoderProgram | None:
        """What computes a step of `num_tokens` tokens; None where the model's own modules do."""
        if self._decoder is None or num_tokens > MAX_ROWS:
            return None
        if self._program is None or not self._program.is_current():
            if any(layer.kv_cache is None or layer.group is None for layer in self._layers):
                return None
            self._program = DecoderProgram(self._decoder, self._layers)
        return self._program if num_tokens <= self._program.max_rows else None


def _can_be_program(decoder: Decoder, layers: Sequence[AttentionLayer]) -> bool:
    if any(type(layer.backend) is not NumbaCPU or layer.kv_sharing_target is not None for layer in layers):
        return False
    return not any(_few_rows(weight) is None for form in decoder.layers for weight in _weights(form))


def _weights(form: LayerForm) -> list[Weight | None]:
    outputs = (form.attention.output, form.mlp.output)
    packed = [output.packed if isinstance(output, PackedLinear) else None for output in outputs]
    return [form.attention.inputs, packed[0], form.mlp.inputs, packed[1]]


def _few_rows(weight: Weight | None) -> FewRows | None:
    return None if weight is None else weight.few_rows


def _products(decoder: Decoder) -> list[FewRows]:
    found = [_few_rows(weight) for form in decoder.layers for weight in _weights(form)]
    return [few for few in found if few is not None]


_STEP_FIELDS = 2
_GROUP_FIELDS = ("query_start", "seq_lens", "num_requests", "slot_mapping", "block_table", "block_table_width")


class _Builder:
    """Puts the calls of a program together. Owns: what is handed over to it."""

    def __init__(
        self, decoder: Decoder, layers: Sequence[AttentionLayer], groups: list[AttentionGroup], num_threads: int
    ) -> None:
        self.calls: list[KernelCall] = []
        self.copies: list[tuple[int, int]] = []
        self.memory: list[torch.Tensor] = []
        self.step = np.zeros(_STEP_FIELDS + len(_GROUP_FIELDS) * len(groups), np.int64)
        self._groups, self._num_threads = groups, num_threads
        self._dtype = decoder.layers[0].attention.inputs.dtype
        self._norm_kernel = norm_kernel(vector_paths()[0], element_of(self._dtype))
        self._size = decoder.hidden_size
        self.tables = [
            AngleTable(
                rotary,
                max(f.attention.rotary_size for f, r in zip(decoder.layers, decoder.rotary_of, strict=True) if r == n),
                self._dtype,
            )
            for n, rotary in enumerate(decoder.rotaries)
            if n in decoder.rotary_of
        ]
        self._numbers_of_tables = sorted({number for number in decoder.rotary_of if number is not None})
        widths = [_widths(form) for form in decoder.layers]
        self._joint, self._attended, self._gates, self._gated = (
            self._buffer(max(width[part] for width in widths)) for part in range(4)
        )
        hidden = self._tensor(self._size)
        self._hidden = hidden.data_ptr()
        self._normed, self._part = (self._buffer(self._size) for _ in range(2))
        self.out = hidden if decoder.norm is None else self._tensor(self._size)
        self._build(decoder, layers)

    def _build(self, decoder: Decoder, layers: Sequence[AttentionLayer]) -> None:
        behind: FastRMSNorm | None = None
        multiplier = decoder.multiplier
        for form, number, layer in zip(decoder.layers, decoder.rotary_of, layers, strict=True):
            rows = self._join(behind, form.before_attention, multiplier)
            multiplier = form.multiplier
            self._attend(form, layer, rows, number)
            rows = self._join(form.after_attention, form.before_mlp, form.multiplier)
            self._feed_forward(form, rows)
            behind = form.after_mlp
        out = Places(self.out.data_ptr(), self._size * self._dtype.itemsize)
        self._join(behind, decoder.norm, multiplier, out)
        ask_ahead(self.calls)

    def _tensor(self, width: int) -> torch.Tensor:
        tensor = torch.zeros(MAX_ROWS, width, dtype=self._dtype)
        self.memory.append(tensor)
        return tensor

    def _buffer(self, width: int) -> int:
        return self._tensor(width).data_ptr()

    def _add(self, call: KernelCall, copies: dict[str, int]) -> None:
        """Add a call; `copies` are the fields that change, and which number of the step each is."""
        self.calls.append(call)
        start = self.step.ctypes.data
        self.copies += [(call.field(name), start + 8 * index) for name, index in copies.items()]

    def _places(self, address: int, width: int) -> Places:
        return Places(address, width * self._dtype.itemsize)

    def _join(
        self, behind: FastRMSNorm | None, before: FastRMSNorm | None, multiplier: float, out: Places | None = None
    ) -> Places:
        """The pass between two parts; where the rows of the next part lie. Without a part before it, rows are those of
        the step."""
        is_first = not self.calls
        hidden, normed = self._places(self._hidden, self._size), out or self._places(self._normed, self._size)
        fields: dict[str, float] = {
            "rows": self._part,
            "row_bytes": hidden.row_bytes,
            "out": normed.address,
            "out_bytes": normed.row_bytes,
            "joined": hidden.address,
            "joined_bytes": hidden.row_bytes,
            "adds": 0 if is_first else 1,
            "size": self._size,
            "multiplier": multiplier,
        }
        for norm, name in ((behind, "first"), (before, "last")):
            if norm is not None:
                fields |= {
                    f"{name}_factors": norm.get_buffer("factors").data_ptr(),
                    f"{name}_rounds": norm.rounds_first,
                    f"{name}_epsilon": norm.epsilon,
                }
        record = Record(NORM_JOB, fields)
        record.keep(behind, before)
        self._add(KernelCall(self._norm_kernel, record), {"num_rows": 0} | ({"rows": 1} if is_first else {}))
        return hidden if before is None else normed

    def _multiply(self, weight: Weight | None, rows: Places, out: Places) -> None:
        few_rows = _few_rows(weight)
        if few_rows is None:
            raise RuntimeError("a product without kernels is in a program")
        for call in few_rows.calls():
            call.record.fill(
                {"rows": rows.address, "row_bytes": rows.row_bytes, "out": out.address, "out_bytes": out.row_bytes}
            )
            self._add(call, {"num_rows": 0})

    def _attend(self, form: LayerForm, layer: AttentionLayer, rows: Places, rotary: int | None) -> None:
        attention, width = form.attention, self._dtype.itemsize
        heads = attention.heads
        joint_width, attended_width, _, _ = _widths(form)
        joint = self._places(self._joint, joint_width)
        attended = self._places(self._attended, attended_width)
        self._multiply(attention.inputs, rows, joint)
        if not attention.passive:
            record = attention.rotation()
            fields: dict[str, float] = {"rows": joint.address, "row_bytes": joint.row_bytes, "unit_tokens": 1}
            if rotary is not None:
                table = self.tables[self._numbers_of_tables.index(rotary)]
                fields |= {"cosines": table.cosines.address, "sines": table.sines.address}
                fields["angle_bytes"] = table.cosines.row_bytes
            record.fill(fields)
            self._add(KernelCall(attention.kernel, record), {"num_tokens": 0})
        key = joint.address + heads.num_heads * heads.head_size * width
        value = key + heads.num_kv_heads * heads.head_size * width
        places = RowPlaces(joint.address, key, value, joint.row_bytes, attended.address)
        backend = layer.backend
        if not isinstance(backend, NumbaCPU):
            raise RuntimeError(f"attention layer {layer.name} of a program is computed by {backend.name}")
        write, attend = backend.calls(layer, self._dtype, places, self._num_threads)
        group = next(number for number, group in enumerate(self._groups) if group is layer.group)
        first = _STEP_FIELDS + group * len(_GROUP_FIELDS)
        step = {name: first + index for index, name in enumerate(_GROUP_FIELDS)}
        self._add(write, {"num_tokens": 0, "slot_mapping": step.pop("slot_mapping")})
        self._add(attend, {"num_tokens": 0} | step)
        self._multiply(_weights(form)[1], attended, self._places(self._part, self._size))

    def _feed_forward(self, form: LayerForm, rows: Places) -> None:
        mlp = form.mlp
        gates, gated = self._places(self._gates, 2 * mlp.size), self._places(self._gated, mlp.size)
        self._multiply(mlp.inputs, rows, gates)
        record = mlp.gating()
        record.fill(
            {
                "gates": gates.address,
                "ups": gates.address + gated.row_bytes,
                "row_bytes": gates.row_bytes,
                "out": gated.address,
                "out_bytes": gated.row_bytes,
                "unit_rows": 1,
            }
        )
        self._add(KernelCall(mlp.kernel, record), {"num_rows": 0})
        self._multiply(_weights(form)[3], gated, self._places(self._part, self._size))


def _widths(form: LayerForm) -> tuple[int, int, int, int]:
    """Numbers in a row of: queries, keys and values; what attention returns; gates and what they gate; the gated."""
    heads = form.attention.heads
    joint = (heads.num_heads + heads.num_kv_heads) * heads.head_size + heads.num_kv_heads * heads.value_size
    return joint, heads.num_heads * heads.value_size, 2 * form.mlp.size, form.mlp.size
