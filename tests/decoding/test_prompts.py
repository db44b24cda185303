"""Chat tokens: one begin-of-text token whatever the template writes, and what becomes of models without a template."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fixtures import tiny_base

from medusa_cli import native
from medusa_cli.decoding.described_tools import DESCRIPTION
from medusa_cli.decoding.options import EngineOptions
from medusa_cli.decoding.prompts import chat_tokens, render, rendered_tokens
from medusa_cli.support.errors import MedusaError

BOS, EOS = 1, 2
TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}[assistant]"
HELLO = [{"role": "user", "content": "Hello"}]


@dataclass
class FakeModel:
    """Tokenizes as llama.cpp does: `add_special` adds the begin-of-text token where the vocabulary says so."""

    chat_template: str | None = TURNS
    bos_text: str = "<s>"
    eos_text: str = "</s>"
    add_bos: bool = True

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        special = {self.bos_text: BOS, self.eos_text: EOS}
        parts = re.findall(r"<s>|</s>|.", text, re.DOTALL) if parse_special else list(text)
        tokens = [special[part] if part in special else ord(part) for part in parts]
        return [BOS, *tokens] if add_special and self.add_bos else tokens


def codes(text: str) -> list[int]:
    return [ord(character) for character in text]


EXPECTED = [*codes("[user]Hello"), EOS, *codes("[assistant]")]


@pytest.mark.parametrize("template", [TURNS, "{{ bos_token }}" + TURNS, "<s>" + TURNS])
def test_begin_of_text_comes_exactly_once(template: str) -> None:
    assert chat_tokens(FakeModel(template), HELLO) == [BOS, *EXPECTED]
    assert chat_tokens(FakeModel(template), HELLO, bare_if_no_template=True) == [BOS, *EXPECTED]


def test_a_vocabulary_that_adds_none_has_what_the_template_writes() -> None:
    assert chat_tokens(FakeModel(add_bos=False), HELLO) == EXPECTED
    assert chat_tokens(FakeModel("{{ bos_token }}" + TURNS, add_bos=False), HELLO) == [BOS, *EXPECTED]
    # Without a text of its own, no template can write it.
    assert chat_tokens(FakeModel("{{ bos_token }}" + TURNS, bos_text=""), HELLO) == [BOS, *EXPECTED]


def test_begin_of_text_in_the_middle_is_none_of_the_prompts() -> None:
    assert rendered_tokens(FakeModel(), "a<s>b") == [BOS, ord("a"), BOS, ord("b")]
    assert rendered_tokens(FakeModel(), "<s>ab") == [BOS, ord("a"), ord("b")]


@pytest.mark.parametrize("template", [None, ""])
def test_without_a_template_the_texts_come_alone_where_that_is_asked_for(template: str | None) -> None:
    more = [*HELLO, {"role": "assistant", "content": "Hi"}]
    assert chat_tokens(FakeModel(template), more, bare_if_no_template=True) == [BOS, *codes("Hello\n\nHi")]
    with pytest.raises(MedusaError, match="has no chat template: use `medusa generate --raw`"):
        chat_tokens(FakeModel(template), more)


@pytest.mark.parametrize("template", [TURNS, "{{ bos_token }}" + TURNS])
def test_llama_cpp_s_own_driver_asks_the_same_as_our_engine(tmp_path: Path, template: str) -> None:
    import llama_cpp

    from medusa_cli.bench.llama_cpp_driver import LlamaTokenizer, load

    path = str(tiny_base(tmp_path / "base.gguf", chat_template=template))
    tokens = chat_tokens(native.Model(path), HELLO)
    assert (tokens[0], tokens.count(BOS), tokens.count(EOS)) == (BOS, 1, 1)
    llama = load(path, EngineOptions(ctx_size=64, threads=1))
    assert chat_tokens(LlamaTokenizer(llama, llama_cpp.llama_model_get_vocab(llama.model)), HELLO) == tokens


def test_what_templates_of_today_write() -> None:
    marked = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert render(marked, HELLO) == "Hello"
    tools = [{"type": "function", "function": {"name": "now"}}]
    mapped = "{{ tools | map(attribute='function') | tojson }}"
    assert render(mapped, HELLO, tools=tools) == '[{"name": "now"}]'
    with pytest.raises(MedusaError, match="failed"):
        render("{{ messages.append | tojson }}", HELLO)


def test_earlier_calls_where_a_template_leaves_them_out() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": {"at": 1}}}
    said = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
    texts = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}"
    assert render(f"{texts}<|tool_call|>", [*HELLO, said]).startswith(
        'HelloI look.<|tool_call|>[{"name": "now", "arguments": {"at": 1}}]'
    )
    assert render(f"List of tools: [{texts}", [*HELLO, said]).startswith(
        "List of tools: [HelloI look.<|tool_call_start|>[now(at=1)]<|tool_call_end|>"
    )
    assert render(texts, [*HELLO, said]) == "HelloI look."


TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "now", "strict": True}}]
CALL = {"id": "1", "type": "function", "function": {"name": "now", "arguments": {"at": 1}}}
ROLES = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
DESCRIBED = DESCRIPTION.format(tools='{"type": "function", "function": {"name": "now"}}')


def test_tools_are_described_where_a_template_says_nothing_of_them() -> None:
    assert render(ROLES, HELLO, tools=TOOLS) == f"[system]{DESCRIBED}[user]Hello"
    system = {"role": "system", "content": "Be brief."}
    assert render(ROLES, [system, *HELLO], tools=TOOLS) == f"[system]Be brief.\n\n{DESCRIBED}[user]Hello"
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + ROLES
    assert render(refuses, HELLO, tools=TOOLS) == f"[user]{DESCRIBED}\n\nHello"
    with pytest.raises(MedusaError, match="does not support tools"):
        render(ROLES + "{{ messages[0].tool_calls }}", HELLO, tools=TOOLS)


def test_calls_and_results_where_a_template_says_nothing_of_them() -> None:
    """Roles alternate, as many templates want them to; the same without tools in the request."""
    said = {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}
    results = [{"role": "tool", "tool_call_id": "1", "content": text} for text in ("noon", "one")]
    call = '<tool_call>\n{"name": "now", "arguments": {"at": 1}}\n</tool_call>'
    told = "<tool_response>\nnoon\n</tool_response>\n<tool_response>\none\n</tool_response>\nSo?"
    messages: list[dict[str, Any]] = [
        *HELLO,
        said,
        *results,
        {"role": "user", "content": "So?"},
        {"role": "assistant", "content": "Late."},
    ]
    talk = f"[user]Hello[assistant]{call}\n{call}[user]{told}[assistant]Late.[user]Hello"
    assert render(ROLES, [*messages, *HELLO]) == talk
    assert render(ROLES, [*messages, *HELLO], tools=TOOLS) == f"[system]{DESCRIBED}{talk}"


@pytest.mark.parametrize(
    ("template", "said", "found"),
    [
        ("{{ messages[0].reasoning_content }}", "b", "a"),
        ("{{ messages[0].reasoning }}", "b", "a"),
        ("{% set message = messages[0] %}{{ message.thinking }}/{{ message.content }}", "b", "a/b"),
        ("{% for b in messages[0]['content'] %}{{ b['thinking'] }}{{ b['text'] }}{% endfor %}", "b", "ab"),
        ("{% for b in messages[0]['content'] %}{{ b['thinking'] }}{{ b['text'] }}{% endfor %}", "", "a"),
        ("{{ messages[0].content }}", "b", "b"),
    ],
)
def test_earlier_thinking_where_templates_look_for_it(template: str, said: str, found: str) -> None:
    assert render(template, [{"role": "assistant", "content": said, "reasoning_content": "a"}]) == found


def test_harmony_takes_one_text_before_a_call() -> None:
    template = "{% set message = messages[0] %}{{ message.thinking }}/{{ message.content }}/{{ message.tool_calls }}"
    said = {"role": "assistant", "content": "b", "reasoning_content": "a", "tool_calls": [1]}
    assert render(template, [said]) == "a\n\nb//[1]"
