"""Under a grammar, drafted text is plain text, bit for bit, and nothing that the grammar forbids is ever verified."""

from __future__ import annotations

import itertools
from typing import Any

import _native_testing as testing
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medusa_cli import native

PROMPT = [3, 1, 4, 1, 5]
GRAMMARS = {
    "list": 'root ::= "[" ( word ("," word)* )? "]"\nword ::= [A-H]{1,4}',
    "skeleton": 'root ::= "NAME=" word ";AGE=" [1-9]{1,2} ";END"\nword ::= [A-H]{1,6}',
    "nested": 'root ::= "(" root ")" | "[" root "]" | [A-F]{2,5}',
    "free": "root ::= [!-z]*",
}
RULES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "exact": {"temperature": 1.0, "seed": 11},
    "penalties": {"temperature": 0.8, "repeat_penalty": 1.5, "logit_bias": {40: 2.0}, "seed": 3},
    "greedy with biases": {"logit_bias": {35: 9.0, 36: -9.0}},
    "all tokens": {"temperature": 1.3, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 5},
}
DRAFTERS: dict[str, dict[str, Any]] = {
    "tree": {"tree": [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]},
    "chain": {"tree": [[0], [0, 0], [0, 0, 0]]},
    "dynamic": {"tree": [[0], [0, 0], [0, 0, 0]], "dynamic": True},
    "lookup": {"tree": [], "lookup": True},
    "recycling": {"tree": [], "recycling": True},
    "all": {"tree": [[0], [0, 0]], "dynamic": True, "lookup": True, "recycling": True},
    "draft model": {"tree": [[0], [0, 0], [0, 0, 0]], "draft_model": True},
    "recurrent": {"tree": [[0], [0, 0], [0, 0, 0]], "snapshots": 0, "lookup": True, "context_size": 256},
}
FAKE: dict[str, Any] = {"vocab_size": 90, "seed": 4, "sharpness": 8.0}


def session_of(drafter: str, **others: Any) -> testing.FakeSession:
    given_, tree = dict(DRAFTERS[drafter]), native.Tree(DRAFTERS[drafter]["tree"])
    del given_["tree"]
    return testing.FakeSession(tree, **{"acceptance": 0.6, **FAKE, **given_, **others})


def text(tokens: list[int]) -> str:
    return "".join(chr(ord("!") + token % 90) for token in tokens)


def follows(gbnf: str, data: str) -> bool:
    states = testing.GrammarStates(native.Grammar(gbnf))
    state = states.after(states.start, data.encode())
    return state >= 0 and states.accepts(state)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", GRAMMARS)
def test_drafted_is_plain(name: str, rule: str, drafter: str) -> None:
    sampling = native.Sampling(**RULES[rule])
    grammar = native.Grammar(GRAMMARS[name])
    drafted = session_of(drafter)
    for start in range(3):
        prompt = [*PROMPT, start]
        plain = testing.FakeSession(native.Tree([]), context_size=256, **FAKE)
        expected = plain.generate(prompt, max_tokens=30, sampling=sampling, grammar=grammar)
        found = drafted.generate(prompt, max_tokens=30, sampling=sampling, grammar=grammar)
        assert found.tokens == expected.tokens
        assert found.stop_reason == expected.stop_reason
        if found.stop_reason == "eos":
            assert follows(GRAMMARS[name], text(found.tokens)), found.text
        verified = testing.TokenGrammar(grammar, [text([token]).encode() for token in range(90)], [0])
        check_drafts(found, verified)


def check_drafts(found: native.Generation, grammar: testing.TokenGrammar) -> None:
    """No verified draft is forbidden where it stands."""
    state = grammar.start
    for parents, tokens, path in zip(found.parents, found.drafts, found.paths, strict=True):
        states = [grammar.after(state, tokens[0])]
        for parent, token in zip(parents[1:], tokens[1:], strict=True):
            states.append(grammar.after(states[parent], token))
            assert states[-1] != -1, text(tokens)
        state = states[path[-1]]


@given(
    st.sampled_from(list(GRAMMARS)),
    st.integers(0, 2**31),
    st.floats(0, 1),
    st.sampled_from([0.0, 0.7, 1.5]),
    st.sampled_from(list(DRAFTERS)),
)
@pytest.mark.hypothesis
def test_drafted_is_plain_whatever_is_drafted(
    name: str, seed: int, acceptance: float, temperature: float, drafter: str
) -> None:
    sampling = native.Sampling(temperature=temperature, seed=seed)
    grammar = native.Grammar(GRAMMARS[name])
    plain = testing.FakeSession(native.Tree([]), **{**FAKE, "seed": seed})
    expected = plain.generate(PROMPT, max_tokens=40, sampling=sampling, grammar=grammar)
    drafted = session_of(drafter, seed=seed, acceptance=acceptance)
    assert drafted.generate(PROMPT, max_tokens=40, sampling=sampling, grammar=grammar).tokens == expected.tokens


def test_the_mask_comes_before_the_chain() -> None:
    """Of the allowed tokens, the distribution is that of the chain over them alone."""
    grammar = native.Grammar("root ::= [A-H]+")
    allowed = [ord(c) - ord("!") for c in "ABCDEFGH"]
    fake = testing.FakeSession(native.Tree([]), **FAKE)
    logits = fake.logits_after(PROMPT)
    masked = [logit if token in allowed else float("-inf") for token, logit in enumerate(logits)]
    for top_k, top_p in ((0, 1.0), (3, 0.9), (40, 0.95)):
        kwargs: dict[str, Any] = {"temperature": 1.2, "top_k": top_k, "top_p": top_p, "min_p": 0.0}
        expected = dict(testing.distribution(masked, native.Sampling(**kwargs)))
        counts = dict.fromkeys(expected, 0)
        for seed in range(400):
            sampling = native.Sampling(**kwargs, seed=seed)
            counts[fake.generate(PROMPT, max_tokens=1, sampling=sampling, grammar=grammar).tokens[0]] += 1
            drawn, below = testing.uniform(seed, 0), list(itertools.accumulate(expected.values()))
            at = next((i for i, one in enumerate(below) if drawn < one), len(below) - 1)
            assert fake.last is not None
            assert fake.last.tokens == [list(expected)[at]]
        assert sum(counts.values()) == 400


def test_rejection_keeps_to_the_grammar() -> None:
    grammar = native.Grammar(GRAMMARS["list"])
    for seed in range(30):
        sampling = native.Sampling(temperature=1.0, seed=seed)
        found = session_of("dynamic").generate(
            PROMPT, max_tokens=60, sampling=sampling, accept=native.Accept("rejection"), grammar=grammar
        )
        assert found.stop_reason == "length" or follows(GRAMMARS["list"], found.text), found.text


def test_forced_text_goes_in_one_step() -> None:
    gbnf = 'root ::= "ABCDEFGHIJKL" [0-9] "MNOPQRS"'
    found = session_of("all").generate(PROMPT, grammar=native.Grammar(gbnf))
    assert follows(gbnf, found.text)
    assert found.stop_reason == "eos"
    plain = testing.FakeSession(native.Tree([]), **FAKE).generate(PROMPT, grammar=native.Grammar(gbnf))
    assert found.tokens == plain.tokens
    assert plain.stats["steps"] == 19
    assert found.stats["steps"] < 8


def test_an_answer_ends_once_it_is_complete() -> None:
    found = testing.FakeSession(native.Tree([]), **FAKE).generate(PROMPT, grammar=native.Grammar('root ::= "AB"'))
    assert (found.text, found.stop_reason) == ("AB", "eos")
    cut = testing.FakeSession(native.Tree([]), **FAKE).generate(
        PROMPT, max_tokens=1, grammar=native.Grammar('root ::= "AB"')
    )
    assert (cut.text, cut.stop_reason) == ("A", "length")


def test_what_cannot_be_written_is_an_error() -> None:
    fake = testing.FakeSession(native.Tree([]), **FAKE)
    with pytest.raises(native.NativeError, match="no token of the model continues"):
        fake.generate(PROMPT, grammar=native.Grammar('root ::= "A€"'))
    assert fake.last is not None
    assert fake.last.text == "A"
    assert fake.generate(PROMPT, max_tokens=3).tokens  # the session is as before


def test_rules_that_look_past_the_grammar_are_refused() -> None:
    fake, grammar = testing.FakeSession(native.Tree([]), **FAKE), native.Grammar("root ::= [A-Z]")
    warm = native.Sampling(temperature=1.0)
    for accept in (native.Accept("nucleus"), native.Accept("typical", model_alone=True)):
        with pytest.raises(native.NativeError, match="looks at the model alone"):
            fake.generate(PROMPT, sampling=warm, accept=accept, grammar=grammar)
    with pytest.raises(native.NativeError, match="where an answer ends"):
        fake.generate(PROMPT, ignore_eos=True, grammar=grammar)


@pytest.mark.parametrize("drafter", ["chain", "all"])
def test_a_grammar_that_is_too_much_ends_the_answer_with_an_error(drafter: str) -> None:
    too_much = native.Grammar("root ::= " + " ".join(['[A-D]? "E"?'] * 8000) + " [A-E]{400}")
    session = session_of(drafter)
    for _ in range(2):
        with pytest.raises(native.NativeError, match="too ambiguous"):
            session.generate(PROMPT, max_tokens=400, grammar=too_much)
    assert session.last is not None
    assert session.last.text
    grammar = native.Grammar(GRAMMARS["skeleton"])
    assert follows(GRAMMARS["skeleton"], session.generate(PROMPT, grammar=grammar).text)
