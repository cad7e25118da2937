"""Every remedy is carried out."""

from __future__ import annotations

import msgspec
import pytest

from octavo.planning.devices import find_devices, known_devices
from octavo.planning.forecast import Forecast, Subject, forecast
from octavo.planning.inquiry import Inquiry
from octavo.planning.machine import Machine
from octavo.planning.remedies import find_remedies, longest_length, memory_needed
from tests.planning.build import GIB, inquiry, planned, subject

H200 = known_devices()["h200"]


def carry_out(asked_of: Subject, asked: Inquiry, flags: str) -> Forecast:
    """What the flags of a remedy say, read as the command line reads them."""
    words = flags.split()
    machine, changed = asked.machine, {}
    for flag, value in zip(words[::2], words[1::2], strict=True):
        if flag == "--gpu":
            device, count = find_devices(value, known_devices())
            machine = msgspec.structs.replace(machine, device=device, num_devices=count, memory_bytes=())
            changed["tensor_parallel_size"] = None
        elif flag == "--memory":
            machine = msgspec.structs.replace(machine, device=None, memory_bytes=(int(value),))
        elif flag == "--kv-memory":
            machine = msgspec.structs.replace(machine, kv_memory_bytes=(int(value),))
        else:
            name = flag.removeprefix("--").replace("-", "_")
            changed[name] = int(value) if value.isdigit() else value
    return forecast(asked_of, msgspec.structs.replace(asked, machine=machine, **changed))


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("Gemma-3-27b", inquiry(4 * GIB, max_model_len=131072)),
        ("Llama-3.1-70B", Inquiry(machine=Machine(memory_bytes=(80 * GIB,), weight_bytes=141 * 10**9))),
        ("Llama-3.1-8B", Inquiry(machine=Machine(device=known_devices()["l4"], weight_bytes=16 * 10**9))),
        ("DeepSeek-V3", Inquiry(machine=Machine(device=H200, num_devices=4, weight_bytes=689 * 10**9))),
        ("gpt-oss-20b", inquiry(10 * 2**20)),
    ],
)  # fmt: skip
def test_there_are_three_things_to_try_and_each_does_what_it_says(model: str, asked: Inquiry) -> None:
    about = subject(model)
    first = forecast(about, asked)
    assert not first.fits
    remedies = find_remedies(about, first)
    assert len(remedies) == 3
    assert remedies[0].fits
    for remedy in remedies:
        done = carry_out(about, asked, remedy.flags)
        assert done.fits == remedy.fits
        if remedy.fits:
            assert done.plan.figures.max_concurrency == remedy.max_concurrency
            assert f"{remedy.max_concurrency:.2f}" in remedy.effect
        else:
            assert longest_length(done) == remedy.max_model_len


def test_the_longest_length_and_the_smallest_memory_are_borders() -> None:
    about = subject("Gemma-3-27b")
    machine = Machine(memory_bytes=(64 * GIB,), weight_bytes=55 * 10**9, runtime_bytes=2 * GIB)
    asked = forecast(about, Inquiry(machine=machine, max_model_len=131072))
    longest, memory = longest_length(asked), memory_needed(asked)
    for length, fits in ((longest, True), (longest + 1, False)):
        assert forecast(about, msgspec.structs.replace(asked.inquiry, max_model_len=length)).fits == fits
    for size, fits in ((memory, True), (memory - 2, False)):
        more = msgspec.structs.replace(machine, memory_bytes=(size,))
        assert forecast(about, msgspec.structs.replace(asked.inquiry, machine=more)).fits == fits


def test_a_plan_that_fits_needs_no_remedy() -> None:
    assert find_remedies(subject("Llama-3.1-8B"), planned("Llama-3.1-8B", max_model_len=64)) == ()
