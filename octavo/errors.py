"""Every error that Octavo raises on purpose.

    OctavoError                    a mistake that the caller can mend
    ├── ConfigError                a flag or field has an impossible value
    ├── ModelFileError             a model file is missing, corrupt or unreadable
    ├── UnsupportedModelError      a property of the model that Octavo cannot compute
    ├── PlanError                  the KV cache cannot be planned
    │   ├── NoCacheMemoryError     not even one usable block fits
    │   ├── CacheTooSmallError     one request of max_model_len does not fit
    │   ├── AutoFitError           no length at all fits
    │   ├── BlocksOverrideError    num_blocks_override asks for more than the budget
    │   └── LayoutError            the memory layout cannot express the specs
    ├── RequestError               one request is refused; nobody else is touched
    ├── BindError                  the loaded model disagrees with the plan
    ├── ExecutorError              a rank failed, died or hung
    └── EngineDeadError            the process of the engine core has ended
    InvariantError                 a bug in Octavo: internal state contradicts itself
    └── StuckError                 requests wait, and none of them can run

Each error carries the fact (with its numbers) and the remedy; `str(error)` is one sentence for each.
"""

from __future__ import annotations

from typing import Any


class OctavoError(Exception):
    """A mistake that the caller can mend.

    Parameters:
        fact: what is wrong, with the numbers, as one sentence.
        remedy: what to do about it, as one sentence; empty when there is nothing to do.
        numbers: the same numbers for programs, e.g. `{"needed_bytes": 1, "available_bytes": 0}`.
    """

    def __init__(self, fact: str, *, remedy: str = "", **numbers: Any) -> None:
        super().__init__(f"{fact} {remedy}" if remedy else fact)
        self.fact = fact
        self.remedy = remedy
        self.numbers = numbers


class ConfigError(OctavoError, ValueError):
    """A flag or field has an impossible value."""


class ModelFileError(OctavoError):
    """A model file is missing, corrupt or unreadable."""


class UnsupportedModelError(OctavoError):
    """The model has a property that Octavo cannot compute; the message names the property."""


class PlanError(OctavoError):
    """The KV cache cannot be planned."""


class NoCacheMemoryError(PlanError):
    """The budget does not hold even one usable block beside the null block."""


class CacheTooSmallError(PlanError):
    """One request of `max_model_len` tokens does not fit into the budget."""


class AutoFitError(PlanError):
    """`max_model_len` was to be fitted to the budget, and no length fits."""


class BlocksOverrideError(PlanError):
    """`num_blocks_override` asks for more bytes than the budget has."""


class LayoutError(PlanError):
    """The memory layout cannot express the given specs."""


class RequestError(OctavoError, ValueError):
    """One request is refused. Nothing of it was kept, and no other request is touched.

    Parameters:
        parameter: the field of the sampling parameters that is wrong, where it is one; `fact` names it.
    """

    def __init__(self, fact: str, *, remedy: str = "", parameter: str | None = None, **numbers: Any) -> None:
        super().__init__(fact, remedy=remedy, **numbers)
        self.parameter = parameter

    def naming(self, parameter: str) -> RequestError:
        """The same error with its parameter called `parameter`, as a command line calls it by its flag."""
        if self.parameter is None:
            return self
        fact = self.fact.replace(self.parameter, parameter, 1)
        return RequestError(fact, remedy=self.remedy, parameter=self.parameter, **self.numbers)


class BindError(OctavoError):
    """The loaded model's attention layers disagree with the plan (missing, extra or misshapen)."""


class ExecutorError(OctavoError):
    """A rank failed, died or hung; the message holds the rank and the original error."""


class EngineDeadError(OctavoError):
    """The process of the engine core has ended, and with it every request that it had; the message says how."""


class InvariantError(RuntimeError):
    """A bug in Octavo: internal state contradicts itself. Never a user's mistake."""


class StuckError(InvariantError):
    """Requests wait and none of them can run, which must never be.

    Parameters:
        fact: how many wait, what is free, and who is first, as one sentence.
        state: a `messages.CoreState`.
    """

    def __init__(self, fact: str, state: Any) -> None:
        super().__init__(fact)
        self.state = state
