from __future__ import annotations

from octavo.engine.codec import END_OF_TURN_MARKS, end_of_turn_ids


class MarkCodec:
    """Knows the marks alone: mark i is id i, anything else two ids."""

    vocab_size = len(END_OF_TURN_MARKS)

    def encode(self, text: str) -> list[int]:
        return [END_OF_TURN_MARKS.index(text)] if text in END_OF_TURN_MARKS[:3] else [0, 1]

    def decode(self, ids: object) -> str:
        return ""


def test_only_marks_that_the_template_writes_and_the_vocabulary_has_count() -> None:
    special = frozenset({0, 2})
    template = "".join(END_OF_TURN_MARKS)
    assert end_of_turn_ids(MarkCodec(), special, {}) == ()
    assert end_of_turn_ids(MarkCodec(), special, {"default": "none"}) == ()
    assert end_of_turn_ids(MarkCodec(), special, {"default": END_OF_TURN_MARKS[2]}) == (2,)
    assert end_of_turn_ids(MarkCodec(), special, {"a": "x", "b": template}) == (0, 2)
