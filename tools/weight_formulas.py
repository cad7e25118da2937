"""Sizes of tensors as sums of products of config fields, found from three models with other numbers in each field."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

Sizes = tuple[int, ...]
"""One size, in each of the models."""

MAX_CONSTANT = 8192
"""A size that is the same in all models is a number of the code; larger ones are not believed."""


class Explainer:
    """Formulas for sizes. **Owns:** the formulas that it can try. **Never:** takes one that fails in any model."""

    def __init__(self, atoms: Mapping[str, Sizes]) -> None:
        """`atoms` are the fields, and their values in each of the models."""
        self._known: dict[Sizes, str] = {}
        products: dict[str, Sizes] = {}
        for factor in (1, 2, 3, 4):
            for name, values in atoms.items():
                self._add(products, factor, name, values)
        for factor in (1, 2, 3):
            for first, second in itertools.combinations_with_replacement(atoms, 2):
                values = tuple(a * b for a, b in zip(atoms[first], atoms[second], strict=True))
                self._add(products, factor, f"{first}*{second}", values)
        for name, values in atoms.items():
            for more in (1, 2):
                self._known.setdefault(tuple(value + more for value in values), f"{name}+{more}")
        for (first, left), (second, right) in itertools.combinations(list(products.items()), 2):
            self._known.setdefault(tuple(a + b for a, b in zip(left, right, strict=True)), f"{first}+{second}")

    def _add(self, products: dict[str, Sizes], factor: int, name: str, values: Sizes) -> None:
        text = f"{factor}*{name}" if factor > 1 else name
        products[text] = tuple(factor * value for value in values)
        self._known.setdefault(products[text], text)

    def expression(self, sizes: Sizes) -> str:
        """The formula of a size. Raises `ValueError` where there is none."""
        if sizes in self._known:
            return self._known[sizes]
        if len(set(sizes)) == 1 and sizes[0] <= MAX_CONSTANT:
            return str(sizes[0])
        raise ValueError(f"no formula gives {sizes}")
