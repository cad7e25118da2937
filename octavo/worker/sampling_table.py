"""What each request of the batch asks of the sampler, as arrays with a row per request."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.messages import NewRequestData

OPTIONS = np.dtype(
    [
        ("temperature", np.float64),
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("repetition", np.float64),
        ("presence", np.float64),
        ("frequency", np.float64),
        ("top_k", np.int64),
        ("key", np.uint64),
        ("row", np.int64),
        ("num_prompt", np.int64),
        ("num_tokens", np.int64),
        ("edit_start", np.int64),
        ("edit_stop", np.int64),
        ("allow_start", np.int64),
        ("allow_stop", np.int64),
    ]
)
"""One row as the kernels see it. In the table `key` is the request's; in a step it is mixed with the output position.
`row` is the row of the token ids, and the last four are places in the step's `Rules`; both are filled per step."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


class RowRules:
    """The rules of one request that name single tokens: biases, bans, and the allowed set.

    Owns: nothing that changes. Never: looks at logits.
    """

    def __init__(self, data: NewRequestData) -> None:
        sampling = data.sampling
        bias = sampling.logit_bias or {}
        self.bias_ids = np.fromiter(bias.keys(), dtype=np.int32, count=len(bias))
        self.bias_values = np.fromiter(bias.values(), dtype=np.float32, count=len(bias))
        self.allowed = np.array(sampling.allowed_token_ids or (), dtype=np.int32)
        self.min_tokens = sampling.min_tokens
        self.stop_ids = tuple({*data.eos_token_ids, *sampling.stop_token_ids})
        self.bad_words = tuple(tuple(word) for word in sampling.bad_words_token_ids if word)

    def __bool__(self) -> bool:
        """Whether there is any rule."""
        return bool(self.bias_ids.size or self.allowed.size or self.min_tokens or self.bad_words)

    def banned(self, output: Int32Array) -> list[int]:
        """Tokens that may not follow `output`: stop tokens before `min_tokens`, and the last token of each bad word
        whose other tokens end the output."""
        banned = list(self.stop_ids) if output.size < self.min_tokens else []
        for word in self.bad_words:
            head = word[:-1]
            if len(head) <= output.size and tuple(output[output.size - len(head) :].tolist()) == head:
                banned.append(word[-1])
        return banned


class SamplingTable:
    """Sampling parameters of the requests in the batch.

    Owns: a record of `OPTIONS` per row, and the rules of the rows that have any. Never: random state; a draw depends
    only on the request's key and the output position.
    """

    def __init__(self, *, num_rows: int, seed: int) -> None:
        self._seed = seed
        self.options: npt.NDArray[Any] = np.zeros(num_rows, dtype=OPTIONS)
        self.is_plain = np.ones(num_rows, dtype=np.bool_)
        """Rows whose token is the arg max of the logits as they are."""
        self.num_logprobs: Int32Array = np.full(num_rows, -1, dtype=np.int32)
        """Best tokens whose log probabilities are reported beside the chosen one's; -1 reports none."""
        self.rules: list[RowRules | None] = [None] * num_rows

    def set_row(self, row: int, data: NewRequestData) -> None:
        """Make `row` speak of the request of `data`."""
        sampling = data.sampling
        options = self.options[row]
        options["temperature"] = sampling.temperature
        options["top_p"] = sampling.top_p
        options["min_p"] = sampling.min_p
        options["top_k"] = sampling.top_k
        options["repetition"] = sampling.repetition_penalty
        options["presence"] = sampling.presence_penalty
        options["frequency"] = sampling.frequency_penalty
        options["key"] = request_key(data.request_id, sampling.seed, self._seed)
        options["num_prompt"] = data.num_prompt_tokens
        rules = RowRules(data)
        self.rules[row] = rules if rules else None
        penalised = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (1, 0, 0)
        self.is_plain[row] = sampling.temperature == 0.0 and not rules and not penalised
        self.num_logprobs[row] = -1 if sampling.logprobs is None else sampling.logprobs

    def move_row(self, source: int, target: int) -> None:
        """Let row `target` be what row `source` is."""
        self.options[target] = self.options[source]
        self.is_plain[target] = self.is_plain[source]
        self.num_logprobs[target] = self.num_logprobs[source]
        self.rules[target], self.rules[source] = self.rules[source], None

    def clear_row(self, row: int) -> None:
        """Let go of what a removed request left in `row`."""
        self.rules[row] = None

    def step_options(self, rows: Int64Array, num_tokens: Int64Array) -> npt.NDArray[Any]:
        """The records of `rows`, which hold `num_tokens` tokens each, with this step's keys; rules' places are 0."""
        options = self.options[rows]
        options["row"] = rows
        options["num_tokens"] = num_tokens
        options["key"] = position_keys(options["key"], num_tokens - options["num_prompt"])
        return options


def request_key(request_id: str, seed: int | None, engine_seed: int) -> int:
    """64 bits that decide a request's draws: from its own seed, or else from the engine's seed and the request's id."""
    text = f"seed {seed}" if seed is not None else f"engine {engine_seed} request {request_id}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def position_keys(keys: npt.NDArray[np.uint64], positions: Int64Array) -> npt.NDArray[np.uint64]:
    """Each request's key mixed with its output position: the state and the output function of splitmix64."""
    x = keys + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed
