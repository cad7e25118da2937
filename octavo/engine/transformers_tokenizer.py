"""The slow way in: a tokenizer that only transformers can read (`tokenizer.model`, vocab files, code in the folder)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.engine.codec import SpecialTokens, TokenizerParts
from octavo.engine.folder_tokenizer import chat_templates, end_ids, read_json
from octavo.engine.token_bytes import decoded_token_bytes, library_token_bytes
from octavo.errors import ModelFileError
from octavo.models.transformers_api import auto_tokenizer

_PROBE = "a"
"""A text that every tokenizer has tokens for."""
_REMEDY = "Put the model's tokenizer.json there, or name another with --tokenizer."


class TransformersCodec:
    """**Owns:** one tokenizer of transformers. **Never:** adds anything to what it encodes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @property
    def vocab_size(self) -> int:
        return len(self._tokenizer)

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        known = [token_id for token_id in ids if 0 <= token_id < len(self._tokenizer)]
        return str(self._tokenizer.decode(known, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def token_bytes(self) -> list[bytes]:
        library = getattr(self._tokenizer, "backend_tokenizer", None)
        if library is not None:
            return library_token_bytes(library)
        return decoded_token_bytes(self.decode, self.vocab_size, self.encode(_PROBE))


def load_transformers_tokenizer(folder: Path, *, trust_remote_code: bool) -> TokenizerParts:
    """Raises `ModelFileError` when the folder holds no tokenizer that transformers can read."""
    try:
        tokenizer: Any = auto_tokenizer().from_pretrained(
            str(folder), trust_remote_code=trust_remote_code, local_files_only=True
        )
    except Exception as error:  # transformers raises whatever its readers meet
        reason = str(error).strip().split("\n")[0].rstrip(": ")
        raise ModelFileError(f"{folder} holds no tokenizer that can be read: {reason}.", remedy=_REMEDY) from None
    codec = TransformersCodec(tokenizer)
    if not codec.encode(_PROBE):
        # Some classes make an empty tokenizer of a folder that has none.
        raise ModelFileError(f"{folder} holds no tokenizer: nothing in it gives {_PROBE!r} a token.", remedy=_REMEDY)
    added = (
        tokenizer.build_inputs_with_special_tokens([]) if hasattr(tokenizer, "build_inputs_with_special_tokens") else []
    )
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    return TokenizerParts(
        codec,
        SpecialTokens(
            bos_token_id=bos,
            eos_token_ids=end_ids(folder, eos),
            special_ids=frozenset(tokenizer.all_special_ids),
            prefix_ids=(bos,) if bos is not None and bos in added else (),
            suffix_ids=(eos,) if eos is not None and eos in added and eos != bos else (),
        ),
        chat_templates(folder, read_json(folder / "tokenizer_config.json")),
    )
