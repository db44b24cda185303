"""Chat templates: rendered like Hugging Face renders them, in a sandbox, with errors of one line."""

from __future__ import annotations

import datetime

import pytest

from medusa_cli.decoding import prompts
from medusa_cli.support.errors import MedusaError

CHATML = (
    "{% for message in messages %}\n"
    "    {% if loop.first and message['role'] != 'system' %}\n"
    "<|im_start|>system\nBe brief.<|im_end|>\n"
    "    {% endif %}\n"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
USER = {"role": "user", "content": "Hi <b> & {{ 7 }}"}


def test_whitespace_of_blocks_is_trimmed_and_content_is_left_alone() -> None:
    text = prompts.render(CHATML, [USER])
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <b> & {{ 7 }}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_special_texts_and_extensions_are_there() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}"
        "{{ m | tojson }}{% endfor %}{{ eos_token }}{{ strftime_now('%Y') }}"
    )
    text = prompts.render(source, [USER, USER], bos_text="<s>", eos_text="</s>")
    year = datetime.datetime.now().year
    assert text == '<s>{"role": "user", "content": "Hi <b> & {{ 7 }}"}</s>' + str(year)


def test_no_template_names_the_raw_flag() -> None:
    for missing in (None, ""):
        with pytest.raises(MedusaError, match=r"no chat template.*--raw"):
            prompts.render(missing, [USER])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for %}", "does not parse"),
        ("{{ messages[0].missing.attribute }}", "failed"),
        ("{{ 1 / 0 }}", "failed"),
        ("{{ ''.__class__.__mro__ }}", "failed"),
        ("{{ messages.append(1) }}", "failed"),
        ("{{ raise_exception('Only\nuser turns') }}", "refused"),
    ],
)
def test_a_broken_or_hostile_template_is_one_error(source: str, message: str) -> None:
    with pytest.raises(MedusaError, match=message):
        prompts.render(source, [USER])


def test_a_template_that_refuses_system_messages_gets_them_in_the_user_turn() -> None:
    source = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    messages = [{"role": "system", "content": "Rhyme."}, {"role": "user", "content": "Hi"}]
    assert prompts.render(source, messages) == "[user]Rhyme.\n\nHi"
    assert messages[0]["role"] == "system"
