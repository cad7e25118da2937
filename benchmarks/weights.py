"""A demo model's weights in every form that a peer reads, so that all engines compute with the same numbers.

    python -m benchmarks.weights --model demo --out FOLDER

makes in FOLDER

    hf/            config.json, tokenizer, model.safetensors in bfloat16: Octavo, vLLM, transformers, OpenVINO
    bf16.gguf      matrices in bfloat16, vectors in float32 as llama.cpp has them: llama.cpp
    packed.gguf    a link to the demo's own quantised file: Octavo and llama.cpp, for the packed comparison
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

from octavo.config import ModelSource, read_environment
from octavo.errors import OctavoError
from octavo.formats.dequantize import dequantize
from octavo.formats.gguf import GGUFFile
from octavo.formats.model_config import read_hf_config
from octavo.formats.open_files import open_gguf
from octavo.formats.source import ModelFiles, locate
from octavo.models.gguf_weights import read_gguf_weights
from octavo.models.zoo import find_model

HF, BF16, PACKED = "hf", "bf16.gguf", "packed.gguf"
_MOSTLY_BF16 = 32
"""GGUF's `general.file_type` of a file whose matrices are bfloat16."""


def prepare(model: str, out: Path) -> Path:
    """`out` with all forms of the demo model `model`; what is there already is kept.

    Raises `OctavoError` when `model` is no GGUF file that Octavo can read.
    """
    files = locate(ModelSource(model=model), read_environment())
    if files.kind != "gguf":
        raise OctavoError(f"{model} is no GGUF file.", remedy="Give demo, demo-smollm2 or a .gguf file.")
    out.mkdir(parents=True, exist_ok=True)
    for name, write in ((HF, _write_folder), (BF16, _write_gguf), (PACKED, _link)):
        if not (out / name).exists():
            sys.stderr.write(f"writing {out / name}\n")
            # Under another name until it is whole, so that half of one is never taken for it.
            unfinished = out / f"unfinished-{name}"
            write(files, unfinished)
            unfinished.rename(out / name)
    return out


def _link(files: ModelFiles, path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(files.path.resolve())


def _write_folder(files: ModelFiles, path: Path) -> None:
    path.mkdir(exist_ok=True)
    fields = read_hf_config(files)
    config, model_class = find_model(fields)
    with torch.device("meta"):
        shapes = {name: parameter.shape for name, parameter in model_class(config).state_dict().items()}
    weights = read_gguf_weights(files.weight_paths, shapes, config, torch.bfloat16)
    if weights.rotary_factors is not None:
        raise OctavoError(f"{files.path} brings rotary factors, which a folder has no place for.")
    parameters = {name: tensor.contiguous() for name, tensor in weights.parameters.items()}
    save_file(parameters, path / "model.safetensors", metadata={"format": "pt"})
    # Not all that `config` holds: these are the names that older versions of transformers know, too.
    fields |= {"architectures": [model_class.__name__], "torch_dtype": "bfloat16"}
    (path / "config.json").write_text(json.dumps(fields, indent=1), encoding="utf-8")
    auto: Any = importlib.import_module("transformers").AutoTokenizer
    auto.from_pretrained(files.path.parent, gguf_file=files.path.name).save_pretrained(path)


def _write_gguf(files: ModelFiles, path: Path) -> None:
    source = open_gguf(files.path)
    writer = gguf.GGUFWriter(path, source.get("general.architecture", str))
    _copy_metadata(gguf.GGUFReader(files.path), writer)
    for name, info in source.tensors.items():
        _add_tensor(writer, source, name, is_matrix=len(info.shape) > 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for name, field in reader.fields.items():
        # The writer counts for itself, and has written the architecture.
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = _MOSTLY_BF16 if name == "general.file_type" else field.contents()
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(name, value, field.types[0], sub_type=field.types[-1] if is_array else None)


def _add_tensor(writer: gguf.GGUFWriter, source: GGUFFile, name: str, *, is_matrix: bool) -> None:
    info = source.tensors[name]
    dtype, kind = ("bfloat16", gguf.GGMLQuantizationType.BF16) if is_matrix else ("float32", None)
    values = dequantize(np.asarray(source.raw(name)), info.type, info.shape, dtype=dtype)
    writer.add_tensor(name, values.view(np.uint8) if is_matrix else values, raw_dtype=kind)


def main() -> None:
    """Write what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    try:
        print(prepare(given.model, given.out))
    except OctavoError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
