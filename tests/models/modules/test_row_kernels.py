"""The kernels over rows against the same arithmetic in float64, on every path that this CPU can take."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from octavo.attention.numba_cpu import element_of
from octavo.attention.numba_emit import VectorPath
from octavo.attention.numba_kernels import vector_paths
from octavo.attention.numba_memory import Record
from octavo.models.modules.row_kernels import (
    ACTIVATIONS,
    GATE_JOB,
    ROTATE_JOB,
    TEAM,
    gate_kernel,
    num_threads_for,
    rotate_kernel,
)

PATHS = [path for path in vector_paths() if path.name in ("plain", "avx2")] + [vector_paths()[0]]
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}

pytestmark = pytest.mark.slow  # compiles kernels once per path


def rotate(path: VectorPath, rows: torch.Tensor, angles: torch.Tensor | None, **fields: Any) -> torch.Tensor:
    """`rows` [tokens, width] with their heads rotated in place by the kernel."""
    rows = rows.clone()
    cosines, sines = (angles.cos(), angles.sin()) if angles is not None else (torch.zeros(1), torch.zeros(1))
    cosines, sines = cosines.to(rows.dtype).contiguous(), sines.to(rows.dtype).contiguous()
    width = rows.element_size()
    record = Record(
        ROTATE_JOB,
        {
            "rows": rows.data_ptr(),
            "row_bytes": rows.stride(0) * width,
            "num_tokens": len(rows),
            "cosines": cosines.data_ptr(),
            "sines": sines.data_ptr(),
            "angle_bytes": cosines.shape[-1] * width if angles is not None else 0,
            "rotary_size": 0 if angles is None else angles.shape[1],
            "unit_tokens": 2,
            **fields,
        },
    )
    TEAM.run(rotate_kernel(path, element_of(rows.dtype)), record.address, 2)
    return rows


def expected_heads(heads: torch.Tensor, angles: torch.Tensor | None, factors: torch.Tensor | None) -> torch.Tensor:
    """float64 [tokens, heads, size]: root-mean-square norm, then rotation of pairs half the rotary size apart."""
    heads = heads.double()
    if factors is not None:
        heads = heads / (heads.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * factors.double()
    if angles is None:
        return heads
    size = angles.shape[1]
    turned, kept = heads[..., :size], heads[..., size:]
    left, right = turned.chunk(2, dim=-1)
    cosines, sines = angles.double().cos()[:, None], angles.double().sin()[:, None]
    turned = turned * cosines + torch.cat((-right, left), dim=-1) * sines
    return torch.cat((turned, kept), dim=-1)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_heads_are_normed_and_rotated(path: VectorPath, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for size, rotary_size, num_heads, num_keys, num_tokens, has_norm in (
        (64, 64, 3, 1, 5, True),
        (64, 64, 2, 2, 1, False),
        (80, 32, 2, 1, 3, True),
        (40, 24, 1, 1, 17, False),
        (10, 6, 2, 1, 2, True),
        (16, 0, 2, 1, 3, True),
    ):
        width = (num_heads + num_keys + 2) * size
        rows = torch.randn(num_tokens, width, generator=generator).to(dtype)
        # Both halves have the same angles in most models; here each number has its own.
        angles = torch.rand(num_tokens, rotary_size, generator=generator) * 6 if rotary_size else None
        if angles is not None:
            rounded = torch.atan2(angles.sin().to(dtype).float(), angles.cos().to(dtype).float())
            if dtype == torch.float32:
                angles = rounded
        factors = [torch.rand(size, generator=generator) + 0.5 for _ in range(2)] if has_norm else [None, None]
        addresses = [0 if factor is None else factor.data_ptr() for factor in factors]
        found = rotate(
            path,
            rows,
            angles,
            num_query_heads=num_heads,
            num_key_heads=num_keys,
            head_size=size,
            query_factors=addresses[0],
            key_factors=addresses[1],
            epsilon=1e-6,
        )
        heads = rows[:, : (num_heads + num_keys) * size].view(num_tokens, num_heads + num_keys, size)
        expected = torch.cat(
            (
                expected_heads(heads[:, :num_heads], angles, factors[0]),
                expected_heads(heads[:, num_heads:], angles, factors[1]),
            ),
            dim=1,
        )
        mine = found[:, : (num_heads + num_keys) * size].view_as(heads).double()
        assert float((mine - expected).norm() / expected.norm()) < TOLERANCE[dtype], (size, rotary_size)
        assert torch.equal(found[:, (num_heads + num_keys) * size :], rows[:, (num_heads + num_keys) * size :])


def activation(name: str, x: torch.Tensor) -> torch.Tensor:
    functions = {
        "silu": torch.nn.functional.silu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "relu": torch.relu,
    }
    return functions[name](x.double())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_gates_are_applied(path: VectorPath, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    for name, (num_rows, size) in itertools.product(ACTIVATIONS, ((1, 64), (3, 37), (23, 100), (2, 1))):
        joint = (4 * torch.randn(num_rows, 2 * size, generator=generator)).to(dtype)
        joint[0, 0] = -200.0  # far beyond where the exponential ends
        joint[-1, -1] = 200.0
        out = torch.full((num_rows, size), torch.nan, dtype=dtype)
        width = joint.element_size()
        record = Record(
            GATE_JOB,
            {
                "gates": joint.data_ptr(),
                "ups": joint.data_ptr() + size * width,
                "row_bytes": 2 * size * width,
                "out": out.data_ptr(),
                "out_bytes": size * width,
                "num_rows": num_rows,
                "size": size,
                "unit_rows": 2,
                "activation": ACTIVATIONS[name],
            },
        )
        TEAM.run(gate_kernel(path, element_of(dtype)), record.address, 2)
        expected = activation(name, joint[:, :size]) * joint[:, size:].double()
        error = float((out.double() - expected).norm())
        assert error <= TOLERANCE[dtype] * float(expected.norm()), (name, num_rows, size)


def test_few_rows_wake_no_thread() -> None:
    assert num_threads_for(4, 4) == 1
    assert num_threads_for(1000, 4) == torch.get_num_threads()
