#!/usr/bin/env bash
# Makes the environment of transformers' own continuous batching in FOLDER.
# Usage: benchmarks/peers/transformers.sh FOLDER
set -euo pipefail
folder=${1:?usage: $0 FOLDER}
"${PYTHON:-python3}" -m venv "$folder"
pip() { "$folder/bin/python" -m pip "$@"; }
pip install -q --no-input "torch==2.13.0" "transformers>=5.24,<5.25" accelerate
"$folder/bin/python" -c 'import transformers; print("transformers", transformers.__version__)'
