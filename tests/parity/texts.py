"""Real text with varied tokens, from what ships with Python, in several lengths and scripts."""

from __future__ import annotations

import inspect
import itertools
import json.decoder
from pydoc_data.topics import topics

PROMPT_LENGTHS = (5, 9, 17, 33, 64, 100, 200, 300, 400, 511, 512, 513, 600, 777, 1000, 1024, 1500, 2000, 2500, 3000)
"""Below, at and past the demo model's window of 512 tokens."""

SCRIPTS = (
    "Быстрая коричневая лиса прыгает через ленивую собаку, а потом долго спит под деревом у реки.",
    "敏捷的棕色狐狸跳过了懒狗，然后在河边的树下睡了很久。今天天气很好，我们去公园散步。",
    "الثعلب البني السريع يقفز فوق الكلب الكسول ثم ينام طويلا تحت الشجرة.",
    "तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है और फिर नदी के किनारे सो जाती है।",
    "Ο γρήγορος καφές αλεπού πηδάει πάνω από το τεμπέλικο σκυλί. 👩‍👩‍👧 🎉 naïve façade",
)


def documents() -> list[str]:
    """Distinct texts of several thousand tokens each: prose, code, and several scripts mixed in."""
    prose = [text for _, text in sorted(topics.items()) if len(text) > 2000]
    code = inspect.getsource(json.decoder)
    scripts = itertools.cycle(SCRIPTS)
    mixed = [next(scripts) + "\n" + text for text in prose]
    return [*mixed[:12], code, *mixed[12:]]


def prompts_of_lengths(encode: object, lengths: tuple[int, ...] = PROMPT_LENGTHS) -> list[list[int]]:
    """Token ids of prompts with exactly these lengths, each from another place of another text."""
    texts = itertools.cycle(documents())
    prompts = []
    for index, length in enumerate(lengths):
        ids: list[int] = []
        while len(ids) < length:
            ids += encode(next(texts)[37 * index :])  # type: ignore[operator]
        prompts.append(ids[:length])
    return prompts
