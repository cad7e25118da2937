"""Each rank's part of a model, without starting ranks."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from octavo.models.loader import _empty_model
from octavo.models.parallel.division import find_part
from octavo.models.parallel.rank_part import RankPart
from octavo.models.transformers_api import quiet
from tests.models.test_peers import make_peers

_CONSTRUCTING = threading.RLock()
"""transformers' modules change while a model is constructed: one thread at a time."""


def build(model_class: Any, config: Any) -> Any:
    """The model without values, as it is loaded."""
    with _CONSTRUCTING:
        return _empty_model(model_class, config, None)


def parts_of(model_class: Any, config: Any, num_ranks: int) -> list[RankPart]:
    """The part of each rank; raises what `find_part` does."""

    def find(peers: Any) -> RankPart:
        return find_part(config, lambda changed: build(model_class, changed), peers, torch.device("cpu"))

    with quiet(), ThreadPoolExecutor(num_ranks) as pool:
        return list(pool.map(find, make_peers(num_ranks)))
