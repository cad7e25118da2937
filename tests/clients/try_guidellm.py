"""guidellm: a load of concurrent requests, none of which may fail."""

import json
import os
import subprocess
import sys
from pathlib import Path

out = Path(os.environ["OCTAVO_FOLDER"]) / "guidellm.json"
command = [Path(sys.executable).with_name("guidellm"), "run", "--disable-progress"]
command += ["--backend", f"kind=openai_http,target={os.environ['OCTAVO_URL']}"]
command += ["--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=12"]
command += ["--tokenizer", f"kind=hf_auto,model={os.environ['OCTAVO_TOKENIZER']}"]
command += ["--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=16"]
command += ["--output", f"kind=json,path={out}"]
assert os.environ["OCTAVO_TOKENIZER"], "give --tokenizer: guidellm makes its prompts with one"
done = subprocess.run(command, capture_output=True, text=True, check=False)
assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
(benchmark,) = json.loads(out.read_text())["benchmarks"]
totals = benchmark["metrics"]["request_totals"]
assert totals["successful"] >= 12, totals
assert not totals["errored"], totals
print(totals)
