"""Which replica a request goes to: where most of its beginning is cached, unless too much waits there already.

The rule. The load of a replica is the number of tokens, prompt and output, of its unfinished requests. A replica may
take a request while its load with it is at most `(1 + TOLERANCE) * mean + slack`, where the mean is over replicas, with
the request, and the slack is some steps' worth of tokens. Among those that may, the one that holds the longest prefix
takes it; of several, the one with the least load, and of those the one that holds least. The least loaded replica
always may.

Replicas are not asked. The router notes what it sent where (`PrefixView`), and what came back: how much of each prompt
was found in the cache, and what was generated.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from octavo.engine.prefix_view import PrefixChain, PrefixView
from octavo.kv.planner import KVCachePlan
from octavo.messages import EngineCoreOutput, EngineCoreRequest

TOLERANCE = 0.25
"""How much more than the mean a replica may have to do for the sake of a cached prefix."""

SLACK_STEPS = 4
"""Steps' worth of tokens that it may have on top: where little is under way, shares mean nothing."""

LEAST_GRANULE = 16
"""Tokens of a granule at least: blocks may be smaller, and then several of them make one."""

MOST_PARENTS = 65_536
"""Ended requests whose replica is remembered for children to come."""


class RouterLimits:
    """What a router must know of replicas, which are all alike. Owns: nothing.

    Parameters:
        block_size: tokens of a block of their caches.
        capacity_tokens: tokens that the cache of one holds.
        step_tokens: most tokens of one step.
    """

    def __init__(self, *, block_size: int, capacity_tokens: int, step_tokens: int) -> None:
        self.granule = block_size * -(-LEAST_GRANULE // block_size)
        self.capacity = capacity_tokens // self.granule
        self.slack_tokens = SLACK_STEPS * step_tokens

    @classmethod
    def of(cls, plan: KVCachePlan, step_tokens: int) -> RouterLimits:
        """The limits of replicas with this plan."""
        groups = plan.configs[0].groups
        return cls(
            block_size=groups[0].spec.block_size if groups else LEAST_GRANULE,
            capacity_tokens=plan.figures.capacity_tokens,
            step_tokens=step_tokens,
        )


class _Routed:
    """One unfinished request: where it is, and what is known of it."""

    __slots__ = ("chain", "has_news", "keeps_blocks", "replica", "uses")

    def __init__(self, replica: int, chain: PrefixChain, uses: array[int], *, keeps_blocks: bool) -> None:
        self.replica = replica
        self.chain = chain
        self.uses = uses
        """When the granules that its replica should have had were last used."""
        self.keeps_blocks = keeps_blocks
        self.has_news = False


class PrefixRouter:
    """Chooses among replicas by what they hold and what they have to do.

    Owns: a view of each replica's cache, the replica of each unfinished request, the loads.
    Never: asks a replica, or holds more than a replica's cache in digests of each.

    Parameters:
        tolerance: how much more than the mean a replica may have to do for the sake of a cached prefix.
    """

    def __init__(self, num_replicas: int, limits: RouterLimits, *, tolerance: float = TOLERANCE) -> None:
        self._limits = limits
        self._tolerance = tolerance
        self._views = [PrefixView(limits.capacity) for _ in range(num_replicas)]
        self._requests: dict[str, _Routed] = {}
        self._parents: OrderedDict[str, int] = OrderedDict()
        """Ended requests that keep their blocks -> their replica."""
        self.loads = [0] * num_replicas
        """Tokens of the unfinished requests of each replica."""

    def owner(self, request_id: str) -> int | None:
        """The replica of an unfinished request, or of an ended one that keeps its blocks; None for any other."""
        routed = self._requests.get(request_id)
        return self._parents.get(request_id) if routed is None else routed.replica

    def route(self, request: EngineCoreRequest, replicas: Sequence[int]) -> int:
        """The one of `replicas`, which are alive, that takes `request`; it counts as sent there.

        A child goes where its parent is, whatever the load: it goes on from its parent's blocks.
        """
        chain = PrefixChain(request.prompt_token_ids, salt=request.cache_salt, granule=self._limits.granule)
        parent = None if request.parent_id is None else self.owner(request.parent_id)
        replica = self.choose(chain, replicas) if parent is None or parent not in replicas else parent
        view, prompt = self._views[replica], chain.settled()
        uses = view.sure_uses(prompt if _reads_cache(request) else ())
        view.expect(prompt)
        self._requests[request.request_id] = _Routed(replica, chain, uses, keeps_blocks=request.keep_blocks)
        self.loads[replica] += chain.num_tokens
        return replica

    def choose(self, chain: PrefixChain, replicas: Sequence[int]) -> int:
        """The best of `replicas` for a sequence, by the rule above."""
        mean = (sum(self.loads[replica] for replica in replicas) + chain.num_tokens) / len(replicas)
        most = (1 + self._tolerance) * mean + self._limits.slack_tokens
        least = min(self.loads[replica] for replica in replicas)
        able = [
            replica
            for replica in replicas
            if self.loads[replica] == least or self.loads[replica] + chain.num_tokens <= most
        ]
        digests = chain.settled()

        def goodness(replica: int) -> tuple[int, int, int]:
            view = self._views[replica]
            return view.match(digests), -self.loads[replica], -len(view)

        return max(able, key=goodness)

    def take_outputs(self, outputs: Sequence[EngineCoreOutput]) -> None:
        """News of one step."""
        for output in outputs:
            routed = self._requests.get(output.request_id)
            if routed is None:
                continue
            if not routed.has_news and output.new_token_ids:
                self._take_first(routed, output)
            routed.chain.extend(output.new_token_ids)
            self.loads[routed.replica] += len(output.new_token_ids)
            if output.finish_reason is not None:
                if routed.has_news:
                    self._views[routed.replica].confirm(routed.chain.settled())
                self._end(output.request_id, routed)
                if routed.keeps_blocks:
                    self._keep(output.request_id, routed.replica)

    def forget(self, request_id: str) -> None:
        """A request was aborted or refused, or an ended one gives its blocks back; unknown ones are passed over."""
        self._parents.pop(request_id, None)
        routed = self._requests.get(request_id)
        if routed is not None:
            self._end(request_id, routed)

    def lose(self, replica: int) -> list[str]:
        """A replica is gone with all that it held; the requests that it had."""
        lost = [request_id for request_id, routed in self._requests.items() if routed.replica == replica]
        for request_id in lost:
            self._end(request_id, self._requests[request_id])
        for request_id in [request_id for request_id, owner in self._parents.items() if owner == replica]:
            del self._parents[request_id]
        self._views[replica].clear()
        return lost

    def reset(self, replica: int) -> None:
        """A replica has forgotten its cached prefixes."""
        self._views[replica].clear()

    def _take_first(self, routed: _Routed, output: EngineCoreOutput) -> None:
        """The prompt was computed: how much of it had been in the cache?"""
        routed.has_news = True
        num_found = output.num_cached_tokens // self._limits.granule
        view = self._views[routed.replica]
        if num_found < len(routed.uses):
            view.forget_until(routed.uses[num_found])
        routed.uses = array("q")
        view.confirm(routed.chain.settled())

    def _end(self, request_id: str, routed: _Routed) -> None:
        del self._requests[request_id]
        self.loads[routed.replica] -= routed.chain.num_tokens

    def _keep(self, request_id: str, replica: int) -> None:
        self._parents[request_id] = replica
        if len(self._parents) > MOST_PARENTS:
            self._parents.popitem(last=False)


def _reads_cache(request: EngineCoreRequest) -> bool:
    """Whether what is found tells what the cache holds: who wants log probabilities of the prompt has all of it
    computed."""
    sampling = request.sampling
    return sampling.prompt_logprobs is None and not sampling.skip_reading_prefix_cache
