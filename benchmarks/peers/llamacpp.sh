#!/usr/bin/env bash
# Makes the environment of llama.cpp in FOLDER: built from source for this machine's own instructions, which takes a
# quarter of an hour on two cores and needs a C++ compiler. CMAKE_BUILD_PARALLEL_LEVEL says how many jobs may run.
# Usage: benchmarks/peers/llamacpp.sh FOLDER
set -euo pipefail
folder=${1:?usage: $0 FOLDER}
"${PYTHON:-python3}" -m venv "$folder"
pip() { "$folder/bin/python" -m pip "$@"; }
pip install -q --no-input numpy
# The switches that a careful user sets: every instruction of this CPU, no image models.
CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" pip install --no-input --no-binary llama-cpp-python llama-cpp-python
"$folder/bin/python" -c 'import llama_cpp; print("llama-cpp-python", llama_cpp.__version__)'
