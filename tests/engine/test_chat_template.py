from __future__ import annotations

import datetime
from typing import Any

import pytest

from octavo.engine.chat_template import ChatTemplate
from octavo.errors import RequestError

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
USER = {"role": "user", "content": "Hi"}


def render(source: str, *messages: dict[str, Any], add_generation_prompt: bool = True, **more: Any) -> str:
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    return template.render(list(messages or (USER,)), add_generation_prompt=add_generation_prompt, **more)


def test_a_usual_template() -> None:
    assert render(CHATML) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == "<|im_start|>user\nHi<|im_end|>\n"


def test_blocks_leave_no_lines_behind() -> None:
    assert render("{% if true %}\n    {{ bos_token }}x\n    {% endif %}\n") == "    <s>x\n"


def test_variables_of_the_caller_and_tools() -> None:
    source = "{{ bos_token }}{% if thinking %}T{% endif %}{% if tools %}{{ tools[0].name }}{% else %}none{% endif %}"
    assert render(source) == "<s>none"
    assert render(source, thinking=True, tools=[{"name": "f"}]) == "<s>Tf"


def test_json_keeps_its_characters() -> None:
    assert render("{{ {'a': 'é<b>&'} | tojson }}") == '{"a": "é<b>&"}'
    assert render("{{ {'b': 1, 'a': [2]} | tojson(indent=1) }}") == '{\n "b": 1,\n "a": [\n  2\n ]\n}'
    assert render("{{ {'b': 1} | tojson(separators=(',', ':')) }}") == '{"b":1}'


def test_loop_controls_namespaces_and_the_date() -> None:
    source = (
        "{% for m in messages %}{% if m.content == 'skip' %}{% continue %}{% endif %}"
        "{{ m.content }}{% break %}{% endfor %}"
    )
    assert render(source, {"role": "u", "content": "skip"}, {"role": "u", "content": "x"}, USER) == "x"
    assert render("{{ strftime_now('%Y') }}") == str(datetime.datetime.now().year)
    assert render("{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}") == "2"


def test_generation_marks_are_passed_over() -> None:
    assert render("a{% generation %}b{{ 1 }}{% endgeneration %}c") == "ab1c"


def test_text_parts_become_one_text_unless_the_template_takes_parts() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert render("{{ messages[0].content }}", parts) == "a\nb"
    assert (
        render(
            "{% for p in messages[0].content %}{% if p['type'] == 'text' %}{{ p.text }}{% endif %}{% endfor %}", parts
        )
        == "ab"
    )
    assert parts["content"][0] == {"type": "text", "text": "a"}, "the caller's message was changed"


def test_parts_that_are_no_text_are_refused() -> None:
    with pytest.raises(RequestError, match="content that is not text"):
        render(CHATML, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]})


def test_the_templates_own_refusal_is_passed_on() -> None:
    with pytest.raises(RequestError, match=r"refuses the messages: only two roles"):
        render("{{ raise_exception('only two roles') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[7].content }}", "{{ messages[0].content + 1 }}", "{{ nothing.at.all }}", "{{ 1 // 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ 'x' | tojson(separators=3) }}",
    ],
)  # fmt: skip
def test_failures_inside_are_clean_errors(source: str) -> None:
    with pytest.raises(RequestError, match="chat template failed") as caught:
        render(source)
    assert caught.value.remedy


def test_a_source_that_is_no_template_is_refused_with_its_line() -> None:
    with pytest.raises(RequestError, match=r"not valid: .* in line 2"):
        render("a\n{% if %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ messages.append(1) }}",
        "{{ range(10000000) | list }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_template_is_kept_in_its_sandbox(source: str) -> None:
    with pytest.raises(RequestError):
        render(source)
