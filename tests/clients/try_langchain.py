"""langchain-openai: a chat, a stream with usage, bound tools."""

import os

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

chat = ChatOpenAI(
    model=os.environ["OCTAVO_MODEL"], base_url=os.environ["OCTAVO_URL"] + "/v1", api_key="none", temperature=0,
    max_tokens=12, stream_usage=True,
)  # fmt: skip
answer = chat.invoke("Say hello.")
assert answer.content, answer
assert answer.usage_metadata["output_tokens"] == 12
pieces = list(chat.stream("Say hello."))
assert "".join(piece.content for piece in pieces) == answer.content
assert any(piece.usage_metadata for piece in pieces)


@tool
def look(word: str) -> str:
    """Look a word up."""
    return word


assert chat.bind_tools([look]).invoke("Say hello.") is not None
print(repr(answer.content))
