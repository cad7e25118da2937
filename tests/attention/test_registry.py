from __future__ import annotations

from pathlib import Path

import pytest

from octavo.attention.numba_cpu import NumbaCPU
from octavo.attention.registry import backend_names, get_backend
from octavo.attention.torch_reference import TorchReference
from octavo.errors import ConfigError


def test_the_default_is_chosen_by_device() -> None:
    assert isinstance(get_backend("", "cpu"), NumbaCPU)
    assert isinstance(get_backend("", "cuda"), TorchReference)


@pytest.mark.parametrize("name", backend_names("cpu"))
def test_a_backend_bears_the_name_it_is_asked_by(name: str) -> None:
    assert get_backend(name, "cpu", 1).name == name


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'flash' is not an attention backend.*torch_reference, numba_cpu") as caught:
        get_backend("flash", "cpu")
    for name in backend_names("cpu"):
        assert name in caught.value.remedy


def test_a_backend_of_another_device_is_refused_with_those_that_run_there() -> None:
    with pytest.raises(ConfigError, match=r"numba_cpu does not run on a cuda device.*torch_reference") as caught:
        get_backend("numba_cpu", "cuda")
    remedy = caught.value.remedy.rstrip(".").rsplit(" ", 1)[-1]
    assert get_backend(remedy, "cuda").name == remedy


def test_kernels_are_kept_where_one_says(tmp_path: Path) -> None:
    get_backend("", "cpu", 1, tmp_path)
    assert not list(tmp_path.iterdir())  # compiled when first used, not before
    other = get_backend("torch_reference", "cpu", 1, tmp_path)
    assert isinstance(other, TorchReference)
