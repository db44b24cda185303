"""Answers that a file gives, as text to learn from (Medusa 2.2.1, 3.1): each after its own prompt, with the states that
the model has there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medusa_cli import native
from medusa_cli.decoding.prompts import Message, chat_tokens, rendered, rendered_tokens
from medusa_cli.prompts.seeds.prompts import Conversation
from medusa_cli.support.errors import MedusaError

from ..recipes import TextRecipe
from .corpus import Corpus, Text
from .filter import TextFilter
from .records import read_dialogs

SOURCE = "given"
BETWEEN = "\n\n"
"""Between the texts of a conversation, for models without a chat template."""


@dataclass(frozen=True)
class Dialog:
    """A conversation with answers. where: its place in the file."""

    where: str
    messages: list[Message]

    @property
    def group(self) -> str:
        """As Conversation.group."""
        return Conversation(tuple(one["content"] for one in self.messages if one["role"] == "user")[:1]).group

    def answers(self) -> Iterator[tuple[list[Message], str]]:
        """Each answer, and the messages before it, up to a message that is neither a text nor of the usual roles."""
        for at, message in enumerate(self.messages):
            if message["role"] not in ("system", "user", "assistant") or not isinstance(message["content"], str):
                return
            if message["role"] == "assistant" and message["content"].strip():
                yield self.messages[:at], message["content"]


def load_dialogs(path: Path) -> list[Dialog]:
    """MedusaError as from records, and for a file without any answer."""
    found = [Dialog(where, messages) for where, messages in read_dialogs(path)]
    if not any(True for dialog in found for _ in dialog.answers()):
        raise MedusaError(f"{path}: holds no answers: give messages of the assistant, or leave out --answers given")
    return found


class GivenTexts:
    """Fills a corpus with the answers of dialogs, once, in their order."""

    def __init__(
        self, model: native.Model, corpus: Corpus, dialogs: Sequence[Dialog], recipe: TextRecipe, threads: int
    ) -> None:
        self.model, self.corpus, self.dialogs = model, corpus, dialogs
        self.filter = TextFilter(model, corpus)
        self.longest = model.n_ctx_train
        self.max_answer = min(recipe.longest_answer, self.longest - 1)
        self.reader = native.StatesReader(model, self.longest, outputs=True, n_threads=threads)
        self.too_long = 0
        """How many answers were left out because their prompts leave no room for them."""

    @property
    def max_prompt(self) -> int:
        """Tokens of the longest prompt."""
        return self.longest - self.max_answer

    def run(
        self,
        tokens_left: Callable[[], float],
        should_stop: Callable[[], bool],
        on_tokens: Callable[[int], None] = lambda count: None,
        time_is_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Reads until tokens_left() <= 0, the file is used up, time_is_up() or should_stop(). on_tokens(0) follows each
        answer.

        What has been read is on disk when this returns or raises. MedusaError, with the place in the file, for a
        conversation that the model's template refuses.
        """
        try:
            for dialog in self.dialogs[self.corpus.state.get("dialogs", 0) :]:
                if should_stop() or time_is_up() or tokens_left() <= 0:
                    return
                for messages, answer in dialog.answers():
                    self._read(dialog, messages, answer)
                    on_tokens(0)
                self.corpus.state["dialogs"] = self.corpus.state.get("dialogs", 0) + 1
        finally:
            self.corpus.flush()

    def _read(self, dialog: Dialog, messages: Sequence[Message], answer: str) -> None:
        try:
            prompt, tokens = rows_of(self.model, messages, answer)
        except MedusaError as error:
            raise MedusaError(f"{dialog.where}: {error}") from error
        tokens = tokens[: self.max_answer]
        if not prompt or len(prompt) > self.max_prompt:
            self.too_long += 1
            return
        states = self.reader.read([*prompt, *tokens[:-1]], outputs_from=len(prompt) - 1).post_norm
        assert states is not None
        job = self.corpus.state.get("answers", 0)
        self.corpus.state["answers"] = job + 1
        text = Text(job, dialog.group, len(tokens), False, SOURCE, None, len(prompt))
        self.filter.keep(text, prompt, tokens, np.asarray(states, np.float16))


def rows_of(model: native.Model, messages: Sequence[Message], answer: str) -> tuple[list[int], list[int]]:
    """The tokens of a prompt, as the model gets it, and those of an answer to it with what ends it, as the template
    writes it. MedusaError if the template refuses the conversation."""
    prompt = chat_tokens(model, messages, bare_if_no_template=True)
    if model.chat_template:
        asked, whole = (
            rendered(model, some) for some in (messages, [*messages, {"role": "assistant", "content": answer}])
        )
        written = whole.removeprefix(asked) if whole.startswith(asked) else f"{answer}{model.eos_text}"
        together = rendered_tokens(model, asked + written)
    else:
        written = f"{BETWEEN}{answer}{model.eos_text}"
        together = model.tokenize(BETWEEN.join(message["content"] for message in messages) + written)
    # The answer begins where the prompt's tokens end; a token across both would be one that no answer begins with.
    tokens = together[len(prompt) :]
    if together[: len(prompt)] != prompt:
        tokens = model.tokenize(written, add_special=False)
    ends = next((at for at, token in enumerate(tokens) if model.is_eog(token)), len(tokens) - 1)
    return prompt, tokens[: ends + 1]
