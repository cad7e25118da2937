from __future__ import annotations

from typing import Any

import pytest
import torch

from octavo.errors import UnsupportedModelError
from octavo.kv.specs import MambaSpec
from octavo.models.state_probe import NUM_PROBE_TOKENS, ProbedMixer, find_mixers
from tests.models.toy_mixer import KERNEL, SIZE, ToyMixer, toy

SPEC = MambaSpec(block_size=4, shapes=((KERNEL - 1, SIZE), (SIZE,)), dtypes=("float32", "float32"))


def probed(**faults: Any) -> ProbedMixer:
    hidden = torch.randn(1, NUM_PROBE_TOKENS, SIZE, generator=torch.Generator().manual_seed(0))
    return ProbedMixer(toy(ToyMixer(**faults), hidden), SPEC)


@torch.inference_mode()
def test_a_module_that_goes_on_with_several_tokens_is_let_do_so() -> None:
    assert probed().continues_runs()


@torch.inference_mode()
def test_a_module_whose_weights_have_become_constants_is_probed_too() -> None:
    mixer = ToyMixer()
    weight = mixer.weight.data
    del mixer.weight
    mixer.weight = weight  # type: ignore[assignment]
    hidden = torch.randn(1, NUM_PROBE_TOKENS, SIZE, generator=torch.Generator().manual_seed(0))
    assert ProbedMixer(toy(mixer, hidden), SPEC).continues_runs()


@torch.inference_mode()
def test_one_that_ignores_the_state_then_is_given_one_after_the_other() -> None:
    assert not probed(forgets=True).continues_runs()


@torch.inference_mode()
def test_one_that_does_not_keep_what_it_needs_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="Layer 4's ToyMixer computes something else, one token after the"):
        probed(stays=True).continues_runs()


@torch.inference_mode()
def test_one_that_looks_at_other_requests_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="lets a request depend on the others"):
        probed(sees_others=True).continues_runs()


class Model(torch.nn.Module):
    """Owns: two layers that mix."""

    def __init__(self, *, is_shared: bool = False) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, SIZE)
        self.first = ToyMixer()
        self.second = self.first if is_shared else ToyMixer()
        self.second.layer_idx = 4 if is_shared else 7
        self.device = torch.device("cpu")

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> torch.Tensor:
        hidden = self.first(self.embedding(input_ids), attention_mask=None)
        output: torch.Tensor = self.second(hidden, None)
        return output


@torch.inference_mode()
def test_the_modules_that_keep_something_are_found() -> None:
    model = Model()
    mixers = find_mixers(model, 50)
    assert [(mixer.module, mixer.layer_index) for mixer in mixers] == [(model.first, 4), (model.second, 7)]
    assert [state.page_shape for state in mixers[0].states] == [(KERNEL - 1, SIZE), (SIZE,)]
    assert not model.first._forward_hooks


@torch.inference_mode()
def test_a_module_that_is_called_twice_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="more than once in a forward"):
        find_mixers(Model(is_shared=True), 50)
