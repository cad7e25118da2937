"""SentencePiece's other model: of all ways to cut a text into pieces the one with the best sum of scores.

The tokenizers library does the work; it takes the pieces with their scores as a GGUF file lists them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers

from octavo.engine.byte_level_bpe import add_marks
from octavo.engine.sentencepiece_bpe import BYTE, SPACE_MARK
from octavo.errors import ModelFileError

_REMEDY = "Download the file again, or convert the model again."


def build_unigram(
    tokens: Sequence[str],
    scores: Sequence[float],
    kinds: Sequence[int],
    *,
    unknown_id: int,
    character_map: bytes,
    add_space_prefix: bool,
    remove_extra_spaces: bool,
) -> Tokenizer:
    """The library's tokenizer for a unigram vocabulary.

    `character_map` is SentencePiece's compiled table of what each character becomes before the text is cut; empty for
    none. Raises `ModelFileError` when it is damaged, or the pieces make no model.
    """
    if character_map:
        check_character_map(character_map)
    try:
        model = models.Unigram(list(zip(tokens, scores, strict=True)), unknown_id, byte_fallback=BYTE in kinds)
        steps: list[Any] = [normalizers.Precompiled(character_map)] if character_map else []
    except Exception as error:  # the library raises nothing narrower
        raise ModelFileError(f"The unigram vocabulary of the GGUF file is damaged: {error}.", remedy=_REMEDY) from None
    if remove_extra_spaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    steps += [normalizers.Prepend(SPACE_MARK)] if add_space_prefix else []
    steps.append(normalizers.Replace(" ", SPACE_MARK))
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(steps)
    back: list[Any] = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)] if add_space_prefix else back)
    add_marks(tokenizer, tokens, kinds)
    return tokenizer


def check_character_map(character_map: bytes) -> None:
    """Raises `ModelFileError` unless a walk over the map stays inside it, whatever the text.

    The map is: bytes of the trie u32 | the trie, u32 units | texts that end in a zero byte. A unit is a value, with bit
    31 set, the place of a text; or a node, whose child for byte c lies at its own index ^ offset ^ c, where the
    offset is bits 10 and up, shifted by 8 more when bit 9 is set (the layout of Darts-clone). The library does not look
    where it steps.
    """
    size = int.from_bytes(character_map[:4], "little")
    texts = character_map[4 + size :]
    is_sound = size % 4 == 0 and 0 < size <= len(character_map) - 4 and texts.endswith(b"\0")
    if is_sound:
        units = np.frombuffer(character_map, dtype="<u4", offset=4, count=size // 4).astype(np.int64)
        is_value = units >= 1 << 31
        nodes = np.flatnonzero(~is_value)
        offsets = (units[nodes] >> 10) << ((units[nodes] & (1 << 9)) >> 6)
        places = units[is_value] & 0x7FFFFFFF
        text_bytes = np.frombuffer(b"\0" + texts, dtype=np.uint8)
        is_sound = (
            bool((((nodes ^ offsets) | 255) < units.size).all())
            and bool((places < len(texts)).all())
            and not text_bytes[places].any()
            and _is_utf8(texts)
        )
    if not is_sound:
        raise ModelFileError("The character map of the GGUF file's tokenizer is damaged.", remedy=_REMEDY)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
