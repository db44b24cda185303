"""Conversations as the tokens a model continues."""

from __future__ import annotations

from medusa_cli import native
from medusa_cli.decoding import template

Message = dict[str, str]


def tokenize_rendered(model: native.Model, text: str) -> list[int]:
    """Rendered text as tokens, with one begin-of-text token also where the template writes its own."""
    starts = bool(model.bos_text) and text.startswith(model.bos_text)
    return model.tokenize(text, add_special=not starts, parse_special=True)


def prompt_tokens(model: native.Model, messages: list[Message]) -> list[int]:
    """Token ids of a conversation up to where the answer begins.

    A model without a chat template gets the texts alone. MedusaError when the template does not render them.
    """
    if model.chat_template is None:
        return model.tokenize("\n\n".join(message["content"] for message in messages))
    text = template.render(model.chat_template, messages, bos_text=model.bos_text, eos_text=model.eos_text)
    return tokenize_rendered(model, text)
