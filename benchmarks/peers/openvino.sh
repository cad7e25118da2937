#!/usr/bin/env bash
# Makes the environment of OpenVINO GenAI in FOLDER, with what it needs to convert a model folder.
# Usage: benchmarks/peers/openvino.sh FOLDER
set -euo pipefail
folder=${1:?usage: $0 FOLDER}
"${PYTHON:-python3}" -m venv "$folder"
pip() { "$folder/bin/python" -m pip "$@"; }
# The converter does not know transformers 5, and would bring torch's build for GPUs; torchvision is for images, and
# its build on PyPI does not load beside torch's build for CPUs.
pip install -q --no-input "torch==2.13.0" "transformers>=4.57,<5" openvino-genai "optimum-intel[openvino]"
pip uninstall -q -y torchvision
"$folder/bin/python" -c 'import openvino_genai; print("openvino-genai", openvino_genai.__version__)'
