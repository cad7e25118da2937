"""litellm: completions and chats, whole and in a stream."""

import os

import litellm

litellm.telemetry = False
BASE = {"api_base": os.environ["OCTAVO_URL"] + "/v1", "api_key": "none", "max_tokens": 12, "temperature": 0}
MODEL = os.environ["OCTAVO_MODEL"]
messages = [{"role": "user", "content": "Say hello."}]

for provider in ("openai", "hosted_vllm"):
    whole = litellm.completion(model=f"{provider}/{MODEL}", messages=messages, **BASE)
    text = whole.choices[0].message.content
    assert text, whole
    assert whole.usage.completion_tokens == 12, whole.usage
    stream = litellm.completion(model=f"{provider}/{MODEL}", messages=messages, stream=True, **BASE)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text
done = litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt="One, two,", **BASE)
assert done.choices[0].text
print(f"{litellm.__name__}: {text!r}")
