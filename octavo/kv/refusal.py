"""What to tell the user when a plan is impossible.

Each refusal says what is needed, what is there and where the rest went, the longest length that fits and the smallest
budget that works. Both remedies are computed by the functions that accept a plan, so that following one succeeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from octavo.config import format_bytes
from octavo.errors import AutoFitError, BlocksOverrideError, CacheTooSmallError, NoCacheMemoryError, PlanError
from octavo.kv.budget import Budget, Reservation, longest_length, smallest_budget
from octavo.kv.grouping import Fold


class Question(NamedTuple):
    """Which of `folds` holds a request of `max_model_len` tokens within `budget`?"""

    folds: Sequence[Fold]
    budget: Budget
    reservation: Reservation
    max_model_len: int
    by_rank: bool
    """Judge one rank after the other and report on the first that fails, as the reference does."""

    def longest(self) -> int:
        """The longest length up to `max_model_len` that some fold holds; 0 where none does."""
        return max(
            longest_length(fold, self.reservation, num_blocks=self.budget.num_blocks(fold), ceiling=self.max_model_len)
            for fold in self.folds
        )

    def thriftiest(self, num_tokens: int) -> Fold:
        """The fold that holds one request of `num_tokens` in the smallest budget."""
        return min(self.folds, key=lambda fold: self.smallest(fold, num_tokens))

    def smallest(self, fold: Fold, num_tokens: int) -> int:
        """The least bytes per rank in which `fold` holds one request of `num_tokens`."""
        return smallest_budget(fold, self.reservation.blocks(fold, num_tokens) + 1)


def refuse_length(question: Question) -> PlanError:
    """The error for a request of `max_model_len` tokens that no fold holds."""
    budget, length = question.budget, question.max_model_len
    fold = question.thriftiest(length)
    blocks = question.reservation.blocks(fold, length)
    rank, longest = budget.scarcest(fold), question.longest()
    estimate = longest
    if question.by_rank:
        # The reference estimates by the first rank that fails; the remedy heeds all of them.
        counts = [budget.blocks_of_rank(fold, r) for r in range(len(budget.available))]
        rank = next(r for r, count in enumerate(counts) if count is not None and count <= blocks)
        estimate = longest_length(fold, question.reservation, num_blocks=counts[rank] or 0, ceiling=length)
    share = _Share.of(budget, fold, rank)
    smallest = question.smallest(fold, length)
    numbers = share.numbers() | {
        "max_model_len": length,
        "needed_bytes": blocks * share.block_bytes,
        "needed_blocks": blocks + 1,
        "estimated_max_model_len": estimate,
        "smallest_budget_bytes": smallest,
    }
    fact = f"One request of {length} tokens needs {share.request_text(blocks)}, but {share.has_text()}"
    enlarge = _enlarge(budget, smallest, blocks + 1)
    # The reference speaks of "no memory" only where not a byte is left beside the null block.
    if share.available <= share.block_bytes if question.by_rank else share.num_blocks < 2:
        return NoCacheMemoryError(
            f"{fact}: not one usable block beside the null block, so that no length fits.",
            remedy=f"Raise {enlarge}.",
            **numbers,
        )
    nothing = "" if longest else f"; no length fits in {_blocks(share.num_usable, 'usable')}"
    return CacheTooSmallError(
        f"{fact}: {share.parts_text()}{nothing}.",
        remedy=f"Lower --max-model-len to {longest}, or raise {enlarge}." if longest else f"Raise {enlarge}.",
        **numbers,
    )


def refuse_fit(question: Question) -> AutoFitError:
    """The error for a budget that holds no length at all."""
    fold = question.thriftiest(1)
    blocks = question.reservation.blocks(fold, 1)
    share = _Share.of(question.budget, fold, question.budget.scarcest(fold))
    smallest = question.smallest(fold, 1)
    return AutoFitError(
        f"No max_model_len fits: one token needs {share.request_text(blocks)}, but {share.has_text()}.",
        remedy=f"Raise {_enlarge(question.budget, smallest, blocks + 1)}.",
        needed_bytes=blocks * share.block_bytes,
        needed_blocks=blocks + 1,
        estimated_max_model_len=0,
        smallest_budget_bytes=smallest,
        **share.numbers(),
    )


def refuse_override(question: Question, fold: Fold) -> BlocksOverrideError:
    """The error for an overriding number of blocks that the budget does not hold."""
    override = question.budget.override or 0
    budget = question.budget._replace(override=None)
    share = _Share.of(budget, fold, budget.scarcest(fold))
    smallest = smallest_budget(fold, override)
    enough = share.num_blocks > question.reservation.blocks(fold, question.max_model_len)
    lower = f"Lower --num-blocks-override to {share.num_blocks}, or raise" if enough else "Raise"
    return BlocksOverrideError(
        f"--num-blocks-override {override} needs {share.override_text(override)}, but {share.has_text()}.",
        remedy=f"{lower} --kv-memory to {smallest} ({format_bytes(smallest)}).",
        num_blocks_override=override,
        needed_bytes=override * share.block_bytes,
        smallest_budget_bytes=smallest,
        **share.numbers(),
    )


class _Share(NamedTuple):
    """One rank's budget, taken apart."""

    rank: int
    owner: str
    available: int
    block_bytes: int
    num_blocks: int

    @classmethod
    def of(cls, budget: Budget, fold: Fold, rank: int) -> _Share:
        cost, count = budget.block_bytes(fold, rank), budget.blocks_of_rank(fold, rank) or 0
        if budget.override is not None:
            return cls(rank, f"--num-blocks-override {count} is", cost * count, cost, count)
        owner = "the KV cache has" if len(budget.available) == 1 else f"rank {rank} has"
        return cls(rank, owner, budget.available[rank], cost, count)

    @property
    def usable(self) -> int:
        return self.num_usable * self.block_bytes

    @property
    def num_usable(self) -> int:
        return max(self.num_blocks - 1, 0)

    @property
    def unused(self) -> int:
        return self.available - self.num_blocks * self.block_bytes

    def has_text(self) -> str:
        return f"{self.owner} {self.available:,} bytes ({format_bytes(self.available)})"

    def request_text(self, num_blocks: int) -> str:
        """What a request of `num_blocks` takes, the null block included, to be held against what is there."""
        needed = (num_blocks + 1) * self.block_bytes
        each = f"{self.block_bytes:,} bytes each"
        return f"{needed:,} bytes ({format_bytes(needed)}: {_blocks(num_blocks)} and the null block, {each})"

    def override_text(self, num_blocks: int) -> str:
        """What `num_blocks` take of which one is the null block."""
        needed = num_blocks * self.block_bytes
        blocks = f"{_blocks(num_blocks)} of {self.block_bytes:,} bytes"
        return f"{needed:,} bytes ({format_bytes(needed)}: {blocks})"

    def parts_text(self) -> str:
        """Where all that is there goes, to the byte: rounded sizes would hide what decides."""
        usable = f"{self.usable:,} bytes in {_blocks(self.num_usable, 'usable')}"
        parts = f"{usable}, {self.block_bytes:,} bytes for the null block"
        return f"{parts}, {self.unused:,} bytes left over" if self.unused else parts

    def numbers(self) -> dict[str, int]:
        return {
            "rank": self.rank,
            "available_bytes": self.available,
            "bytes_per_block": self.block_bytes,
            "num_blocks": self.num_blocks,
            "usable_bytes": self.usable,
            "null_block_bytes": min(self.block_bytes, self.available),
            "unused_bytes": self.unused,
        }


def _blocks(count: int, kind: str = "") -> str:
    return f"{count} {kind}{' ' if kind else ''}{'block' if count == 1 else 'blocks'}"


def _enlarge(budget: Budget, smallest: int, num_blocks: int) -> str:
    memory = f"--kv-memory to {smallest} ({format_bytes(smallest)})"
    if budget.override is None:
        return memory
    return f"--num-blocks-override to {num_blocks}, which takes {memory.replace(' to ', ' of at least ')}"
