"""Conversations as the tokens a model continues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from medusa_cli.decoding import template
from medusa_cli.decoding.template import Message, Tools
from medusa_cli.support.errors import OptionError


class PromptTooLong(OptionError):
    """A prompt that leaves no room for an answer. values: its `tokens`, and those that the `context` holds."""


def check_fits(tokens: Sequence[int], context: int) -> None:
    """PromptTooLong for a prompt that a context of that many tokens does not hold together with an answer."""
    if len(tokens) >= context:
        raise PromptTooLong(
            "the prompt has {tokens} tokens, the context holds {context}: shorten it, or give a larger {ctx_size}",
            tokens=len(tokens),
            context=context,
        )


class Tokenizer(Protocol):
    """What is needed of native.Model."""

    @property
    def chat_template(self) -> str | None:
        """The model's own, in Jinja."""
        ...

    @property
    def bos_text(self) -> str:
        """The begin-of-text token, as text."""
        ...

    @property
    def eos_text(self) -> str:
        """The end-of-text token, as text."""
        ...

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of a text."""
        ...


def chat_tokens(
    model: Tokenizer, messages: Sequence[Message], *, bare_if_no_template: bool = False, tools: Tools | None = None
) -> list[int]:
    """Token ids of a conversation in the model's own template, up to where the assistant speaks.

    bare_if_no_template: a model without a template gets the texts alone. tools: for the template. MedusaError when the
    template does not render the conversation, or, without that, is missing.
    """
    if bare_if_no_template and not model.chat_template:
        return model.tokenize("\n\n".join(message["content"] for message in messages))
    return rendered_tokens(model, rendered(model, messages, tools))


def rendered(model: Tokenizer, messages: Sequence[Message], tools: Tools | None = None) -> str:
    """The text of a conversation in the model's own template. MedusaError when there is none, or it fails."""
    return template.render(model.chat_template, messages, tools=tools, bos_text=model.bos_text, eos_text=model.eos_text)


def rendered_tokens(model: Tokenizer, text: str) -> list[int]:
    """Token ids of rendered text: one begin-of-text token, also where the template writes its own."""
    has_bos = bool(model.bos_text) and text.startswith(model.bos_text)
    return model.tokenize(text, add_special=not has_bos, parse_special=True)
