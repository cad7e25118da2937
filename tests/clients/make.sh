#!/bin/sh
# An environment with the clients: tests/clients/make.sh DIR
set -eu
[ $# -eq 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
python3 -m venv "$1"
"$1/bin/pip" install --quiet --upgrade pip
"$1/bin/pip" install --quiet litellm langchain-openai llm schemathesis guidellm "lm-eval[api]>=0.4.9,<0.5"
