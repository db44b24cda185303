"""From text to what training reads: the data set, the draft vocabulary, and rows on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medusa_cli.decoding import tree_search
from medusa_cli.models.base_file import embedding_rows, output_rows
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.tables import print_table

from ..backbone.states import PromptStates
from ..heads import draft_vocab
from ..heads.rows import Contexts, FileRows, TextRows, TokenEmbeddings, matching_scale, teacher_rows
from ..heads.torch_setup import fastest
from ..mtp.fit import drafted_tokens
from ..recipes import MTP, STREAMS, WHOLE
from ..text import dataset, sources
from ..text.corpus import Corpus
from . import Setup

SCALE_ROWS = 4096
"""Hidden states to whose size token embeddings are scaled."""


@dataclass(frozen=True)
class DataSet:
    """tokens [N]: of the whole corpus; ranked: those that heads could draft, most frequent first; frequent: how many of
    them come more than once."""

    tokens: NDArray[np.int32]
    split: dataset.Split
    ranked: NDArray[np.int32]
    frequent: int
    shares: list[sources.SourceShare]


@dataclass(frozen=True)
class DraftVocabulary:
    """d2t [D]: token of each draft row; t2d [n_vocab]: the reverse; output [D, h]: their output rows on the device."""

    choice: draft_vocab.VocabularyChoice
    d2t: NDArray[np.int32]
    t2d: NDArray[np.int32]
    output: Tensor


@dataclass(frozen=True)
class Material:
    """Everything that training reads. source: the corpus's rows."""

    corpus: Corpus
    data: DataSet
    vocabulary: DraftVocabulary
    source: TextRows


def prepare(setup: Setup, corpus: Corpus) -> Material:
    """The material from a finished corpus. Stopped after Ctrl-C."""
    data = read_data(setup, corpus)
    vocabulary = pick_vocabulary(setup, data)
    return Material(corpus, data, vocabulary, open_rows(setup, corpus, data, vocabulary))


def read_data(setup: Setup, corpus: Corpus) -> DataSet:
    """Splits the text and counts its tokens. MedusaError if there is too little of it."""
    split = dataset.split_texts(corpus.texts, setup.options.tokens)
    tokens = corpus.load_tokens()
    limit, prompts = draft_vocab.SIZES[-1], corpus.prompts_by_row()
    ranked = dataset.draft_vocabulary(tokens, split.train, setup.base.n_vocab, limit, prompts)
    frequent = dataset.frequent_tokens(tokens, split.train)
    if not split.train or not split.score or frequent < 2 * tree_search.RANKS:
        raise MedusaError(
            f"only {corpus.tokens} tokens of usable text in {len(corpus.texts)} answers: "
            "give more time, more tokens or more prompts"
        )
    shares = sources.source_shares(corpus)
    print_table(sources.as_table(shares), setup.options.console)
    return DataSet(tokens, split, ranked, frequent, shares)


def pick_vocabulary(setup: Setup, data: DataSet) -> DraftVocabulary:
    """The most frequent tokens: as many as were asked for, else the best number for this machine."""
    options, base = setup.options, setup.base
    if options.kind == MTP:
        d2t = drafted_tokens(base.n_vocab, data.ranked[: data.frequent])
        choice = draft_vocab.VocabularyChoice(len(d2t), None, [])
    elif options.whole_vocabulary:
        choice = draft_vocab.VocabularyChoice(base.n_vocab, None, [])
    elif options.draft_vocab is not None:
        choice = draft_vocab.VocabularyChoice(min(options.draft_vocab, len(data.ranked)), None, [])
    else:
        choice = draft_vocab.choose(
            base,
            data.ranked[: draft_vocab.largest_size(data.frequent, len(data.tokens))],
            data.frequent,
            data.tokens,
            data.split.build or data.split.score,
            kind=options.kind,
            heads=options.heads,
            n_gpu_layers=options.n_gpu_layers,
            threads=options.threads,
            memory=setup.folder / f"{options.kind}.vocabulary.json",
        )
    if choice.rows:
        print_table(choice.as_table(), options.console)
    if options.kind != MTP:
        d2t = np.arange(base.n_vocab, dtype=np.int32) if options.whole_vocabulary else data.ranked[: choice.size]
    output = torch.from_numpy(output_rows(base, d2t)).to(setup.device)
    return DraftVocabulary(choice, d2t, dataset.token_to_draft(d2t, base.n_vocab), output)


def open_rows(setup: Setup, corpus: Corpus, data: DataSet, vocabulary: DraftVocabulary) -> TextRows:
    """Hidden states and, if the heads and the objective need them, token embeddings, the base's distributions and the
    states of prompts."""
    states, kind = FileRows(corpus.open_states(), setup.device), setup.options.kind
    as_stored = kind in (STREAMS, MTP)
    embeddings = _token_embeddings(setup, data, None if as_stored else states) if kind != "medusa" else None
    contexts = None
    if kind == MTP:
        assert embeddings is not None
        contexts = _pairs(setup, corpus, data, states, embeddings)
    elif kind != STREAMS and setup.options.recipe.prefix != "none":
        contexts = _states_before(setup, corpus, data, states)
    return TextRows(states, embeddings, _teacher(setup, data, vocabulary, states), contexts)


def _states_before(setup: Setup, corpus: Corpus, data: DataSet, states: FileRows) -> Contexts:
    """What a prefix layer sees. Stopped after Ctrl-C."""
    none = torch.zeros(0, setup.base.n_embd, dtype=torch.float16)
    if setup.options.recipe.prefix == "context":
        return Contexts(corpus.starts(), _read_prompts(setup, corpus, data), states.gather)
    return Contexts(corpus.starts(), lambda start: none, states.gather)


def _pairs(setup: Setup, corpus: Corpus, data: DataSet, states: FileRows, embeddings: TokenEmbeddings) -> Contexts:
    """What an MTP layer attends to: [P, 2h], each token's embedding, and the state before it, which is zero at the
    first. Stopped after Ctrl-C."""
    prompts, read = corpus.prompts_by_row(), _read_prompts(setup, corpus, data)

    def of_prompt(start: int) -> Tensor:
        embedded, before = torch.from_numpy(embedding_rows(setup.base, prompts[start])), read(start).float()
        return torch.cat((embedded, torch.cat((before.new_zeros(1, setup.base.n_embd), before))), dim=1)

    def of_rows(rows: Tensor) -> Tensor:
        return torch.cat((embeddings.drafted(rows, 1)[:, 0].float(), states.gather(rows).float()), dim=1)

    return Contexts(corpus.starts(), of_prompt, of_rows)


def _read_prompts(setup: Setup, corpus: Corpus, data: DataSet) -> Callable[[int], Tensor]:
    """The states of each answer's prompt, read unless an earlier run did. Stopped after Ctrl-C."""
    prompts = corpus.prompts_by_row()
    split = data.split
    spans = list({span.start: span for span in (*split.train, *split.build, *split.score)}.values())
    if not all(len(prompts[span.start]) for span in spans):
        raise MedusaError(f"{corpus.folder}: holds answers without their prompts, use another work_dir")
    read = PromptStates(setup.folder / "prompts", spans, prompts, setup.base.n_embd)
    if (total := read.missing_rows) > 0:
        with setup.counting("Reading prompts", "tokens", total) as on_rows:
            read.write(setup.open(), setup.options.threads, on_rows)
    return read.before


def _token_embeddings(setup: Setup, data: DataSet, states: FileRows | None) -> TokenEmbeddings:
    """Embeddings of the tokens in use, scaled to the size of `states`; without states, as stored."""
    used, place = dataset.token_places(data.tokens, setup.base.n_vocab)
    matrix = embedding_rows(setup.base, used)
    first = torch.arange(min(SCALE_ROWS, len(place)))
    scale = matching_scale(matrix, states.gather(first)) if states is not None else 1.0
    matrix = (matrix * np.float32(scale)).astype(np.float16)
    return TokenEmbeddings(torch.from_numpy(matrix).to(setup.device), place, scale)


def _teacher(
    setup: Setup, data: DataSet, vocabulary: DraftVocabulary, states: FileRows
) -> tuple[FileRows, FileRows] | Tensor | None:
    """The teacher for TextRows: the base's distribution at every row that is trained on. Stopped after Ctrl-C."""
    if setup.options.objective != "teacher":
        return None
    top = setup.options.teacher_top
    if top == WHOLE:
        return fastest(vocabulary.output)
    rows = max(span.start + span.length for span in data.split.train)
    with setup.counting("Teacher", "positions", rows) as on_rows:
        return teacher_rows(setup.folder, states, rows, vocabulary.d2t, fastest(vocabulary.output), on_rows, top)
