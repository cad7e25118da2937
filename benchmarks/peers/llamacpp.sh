#!/usr/bin/env bash
# Makes the environment of llama.cpp in FOLDER: built from source for this machine's own instructions, which takes a
# quarter of an hour on two cores and needs a C++ compiler. CMAKE_BUILD_PARALLEL_LEVEL says how many jobs may run.
# Usage: benchmarks/peers/llamacpp.sh FOLDER
set -euo pipefail
folder=${1:?usage: $0 FOLDER}
"${PYTHON:-python3}" -m venv "$folder"
pip() { "$folder/bin/python" -m pip "$@"; }
pip install -q --no-input numpy
# The switches that a careful user sets: every instruction of this CPU, no image models. All but one: its kernels for AMX
# crash on quantised weights (0.3.36: a segmentation fault in the first decode), and without them it uses AVX-512.
flags="-mno-amx-int8"
grep -q amx_int8 /proc/cpuinfo || flags=""
CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DCMAKE_C_FLAGS=$flags -DCMAKE_CXX_FLAGS=$flags" pip install --no-input --no-binary llama-cpp-python llama-cpp-python
"$folder/bin/python" -c 'import llama_cpp; print("llama-cpp-python", llama_cpp.__version__)'
