"""Choice of device, dtype and threads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from octavo.errors import ConfigError
from octavo.worker import device as module
from octavo.worker.device import check_cache_dtype, choose_device, choose_dtype, choose_num_threads

CPU = torch.device("cpu")


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int, *, has_bfloat16: bool = True) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: has_bfloat16)


def cpuinfo(root: Path, line: str) -> Path:
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/cpuinfo").write_text(f"processor\t: 0\n{line}\nprocessor\t: 1\nflags\t\t: other\n")
    return root


def test_the_local_rank_picks_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 4)
    assert choose_device("cuda", 3) == choose_device("auto", 3) == torch.device("cuda", 3)
    assert choose_device("cpu", 3) == CPU


def test_auto_without_a_gpu_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 0)
    assert choose_device("auto", 0) == CPU


@pytest.mark.parametrize(("count", "local_rank"), [(0, 0), (2, 2)])
def test_too_few_gpus_are_named(count: int, local_rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, count)
    with pytest.raises(ConfigError, match=f"local rank {local_rank} needs .* sees {count}") as caught:
        choose_device("cuda", local_rank)
    assert "--device cpu" in caught.value.remedy


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--device is 'tpu'.* cpu, cuda or auto"):
        choose_device("tpu", 0)


@pytest.mark.parametrize(
    ("line", "dtype"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_bf16", torch.bfloat16),
        ("flags\t\t: fpu amx_bf16", torch.bfloat16),
        ("Features\t: asimd bf16", torch.bfloat16),
        ("flags\t\t: fpu avx2 avx512f avx512dq", torch.bfloat16),
        ("flags\t\t: fpu avx2", torch.bfloat16),
        ("flags\t\t: fpu avx", torch.float32),
        ("model name\t: an avx512_bf16 by name only", torch.float32),
    ],
)
def test_auto_is_bfloat16_where_the_cpu_is_fastest_in_it(line: str, dtype: torch.dtype, tmp_path: Path) -> None:
    assert choose_dtype("auto", CPU, cpuinfo(tmp_path, line)) is dtype


def test_auto_is_float32_on_a_cpu_that_tells_nothing(tmp_path: Path) -> None:
    assert choose_dtype("auto", CPU, tmp_path) is torch.float32


@pytest.mark.parametrize(("has_bfloat16", "dtype"), [(True, torch.bfloat16), (False, torch.float16)])
def test_auto_on_a_gpu(has_bfloat16: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 1, has_bfloat16=has_bfloat16)
    assert choose_dtype("auto", torch.device("cuda", 0)) is dtype


def test_a_named_dtype_is_taken_and_an_unknown_one_refused() -> None:
    assert choose_dtype("float16", CPU) is torch.float16
    with pytest.raises(ConfigError, match=r"--dtype is int4.*bfloat16"):
        choose_dtype("int4", CPU)


def test_cache_dtypes() -> None:
    check_cache_dtype("auto")
    check_cache_dtype("bfloat16")
    with pytest.raises(ConfigError, match=r"--kv-cache-dtype is fp8.*auto, bfloat16, float16, float32"):
        check_cache_dtype("fp8")


def test_threads_are_what_was_asked_or_a_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    assert choose_num_threads(3, 1) == 3
    assert choose_num_threads(0, 1) == 8
    assert choose_num_threads(0, 3) == 2
    assert choose_num_threads(0, 20) == 1
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert choose_num_threads(0, 1) == 4, "the user's OMP_NUM_THREADS is heeded"
