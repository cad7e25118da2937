"""Chat templates: a model's own Jinja text that turns messages into its prompt format.

Templates come with model files, so they run in a sandbox. The functions and options they expect are those that
transformers gives them.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.errors import RequestError

_WANTS_PARTS = re.compile(r"""\[['"]type['"]\]|\.type\b""")
"""A template that asks for the type of content parts takes a list; others take one text."""


class _RaisedByTemplate(TemplateError):
    """The template itself found the messages wrong."""


class _Generation(Extension):
    """`{% generation %}` marks the model's part for training; for serving it is its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template. **Owns:** nothing else. **Never:** reads files or the environment.

    Raises `RequestError` when the source is not a Jinja template.
    """

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise RequestError(
                f"The chat template is not valid: {error.message} in line {error.lineno}.",
                remedy="Give another one, or write the prompt yourself.",
            ) from None
        self._variables = dict(variables)
        self._wants_parts = bool(_WANTS_PARTS.search(source))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt text. Raises `RequestError` with the template's own words when it refuses the messages."""
        values = self._variables | variables
        try:
            return self._template.render(
                messages=[self._message(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=list(tools) if tools else None,
                **values,
            )
        except _RaisedByTemplate as error:
            raise RequestError(f"The model's chat template refuses the messages: {error}.") from None
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise RequestError(
                f"The model's chat template failed: {type(error).__name__}: {error}.",
                remedy="Check the messages' roles and contents, or write the prompt yourself.",
            ) from None

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The message; a list of text parts becomes one text unless the template wants the list."""
        copy = dict(message)
        content = copy.get("content")
        if isinstance(content, list) and not self._wants_parts:
            parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
            texts = [part for part in parts if isinstance(part, str)]
            if len(texts) < len(parts):
                raise RequestError(
                    "A message has content that is not text.", remedy="This model takes text alone: send text parts."
                )
            copy["content"] = "\n".join(texts)
        return copy


def _raise_exception(message: str) -> NoReturn:
    raise _RaisedByTemplate(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _to_json(value: Any, **options: Any) -> str:
    """JSON as it is: Jinja's own filter would escape characters for HTML."""
    options.setdefault("ensure_ascii", False)
    return json.dumps(value, **options)
