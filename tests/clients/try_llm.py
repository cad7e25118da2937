"""The `llm` command: a prompt through extra-openai-models.yaml."""

import os
import subprocess
import sys
from pathlib import Path

folder = Path(os.environ["OCTAVO_FOLDER"]) / "llm"
folder.mkdir()
(folder / "extra-openai-models.yaml").write_text(
    f"- model_id: octavo\n  model_name: {os.environ['OCTAVO_MODEL']}\n  api_base: {os.environ['OCTAVO_URL']}/v1\n"
)
command = [Path(sys.executable).with_name("llm"), "-m", "octavo", "-o", "max_tokens", "12", "Say hello."]
environment = os.environ | {"LLM_USER_PATH": str(folder), "OPENAI_API_KEY": "none"}
texts = []
for more in ([], ["--no-stream"]):
    done = subprocess.run([*command, *more], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    texts.append(done.stdout.strip())
assert all(texts), texts
print(repr(texts[0]))
