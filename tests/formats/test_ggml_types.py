from __future__ import annotations

import pytest

from octavo.formats.ggml_types import GGML_TYPES


def test_the_type_table_is_the_formats_own() -> None:
    gguf = pytest.importorskip("gguf")
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert {type_id: tuple(kind) for type_id, kind in GGML_TYPES.items()} == theirs
