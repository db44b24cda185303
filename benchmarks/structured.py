"""Answers by JSON schemas: valid, equal to plain decoding, and how much faster.

    python benchmarks/structured.py MODEL [--count N]

100 made-up letters and a schema for each: nested objects, lists, enums, numbers with limits, formats, optional fields,
anyOf, $ref and recursion. Each is answered twice by the same grammar, plainly and with the model's usual drafts, in
turns; ratios are those of the time after the first token.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Iterator
from typing import Any

from rich.console import Console

NAMES = ["Anna Schmidt", "Bob Miller", "Chiara Rossi", "David Okafor", "Elena Petrova", "Farid Khan", "Grace Lee"]
CITIES = ["Berlin", "Boston", "Lagos", "Milan", "Oslo", "Paris", "Seoul", "Toronto"]
GOODS = ["desk lamp", "notebook", "phone case", "office chair", "water bottle", "keyboard", "backpack"]
PERSON = {
    "type": "object",
    "properties": {
        "full_name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"type": "string", "maxLength": 30},
    },
    "required": ["full_name", "age", "city"],
}
ITEM = {
    "type": "object",
    "properties": {
        "product": {"type": "string", "maxLength": 30},
        "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
        "unit_price": {"type": "number", "minimum": 0, "maximum": 10000},
    },
    "required": ["product", "quantity", "unit_price"],
}
SCHEMAS: list[Any] = [
    PERSON,
    {
        "type": "object",
        "properties": {
            "customer": PERSON,
            "order_items": {"type": "array", "items": ITEM, "minItems": 1, "maxItems": 3},
            "payment_method": {"enum": ["credit_card", "invoice", "bank_transfer"]},
        },
        "required": ["customer", "order_items", "payment_method"],
    },
    {
        "type": "object",
        "properties": {
            "appointment_date": {"type": "string", "format": "date"},
            "contact_person": {"type": "string", "maxLength": 40},
            "is_confirmed": {"type": "boolean"},
            "remarks": {"anyOf": [{"type": "string", "maxLength": 60}, {"type": "null"}]},
        },
        "required": ["appointment_date", "contact_person", "is_confirmed", "remarks"],
    },
    {
        "$defs": {"person": PERSON},
        "type": "object",
        "properties": {
            "sender": {"$ref": "#/$defs/person"},
            "sentiment": {"enum": ["positive", "neutral", "negative"]},
            "satisfaction_score": {"type": "number", "minimum": 0, "maximum": 1},
        },
        "required": ["sender", "sentiment", "satisfaction_score"],
    },
    {
        "$defs": {
            "task": {
                "type": "object",
                "properties": {
                    "task_title": {"type": "string", "maxLength": 40},
                    "subtasks": {"type": "array", "items": {"$ref": "#/$defs/task"}, "maxItems": 2},
                },
                "required": ["task_title"],
            }
        },
        "$ref": "#/$defs/task",
    },
]


def letters(count: int) -> Iterator[tuple[str, Any]]:
    """(prompt, schema)."""
    rng = random.Random(8)
    for i in range(count):
        name, city, goods = rng.choice(NAMES), rng.choice(CITIES), rng.sample(GOODS, 2)
        letter = (
            f"Dear team, I am {name}, {rng.randrange(18, 90)} years old, from {city}. I would like "
            f"{rng.randrange(1, 9)} of the {goods[0]} at {rng.randrange(5, 90)}.50 each and one {goods[1]} for "
            f"{rng.randrange(5, 90)} dollars. Please send an invoice. Let us meet on 2026-0{rng.randrange(1, 10)}-1"
            f"{rng.randrange(10)} to plan the delivery. Thank you, your service has been great."
        )
        schema = SCHEMAS[i % len(SCHEMAS)]
        yield f"Fill in the form as JSON from this letter.\n\n{letter}\n\nSchema: {json.dumps(schema)}", schema


def forced_share(schema: Any, text: str) -> float:
    """Of the answer's bytes, those of which the grammar leaves no choice."""
    import _native_testing as testing

    from medusa_cli.decoding import structure

    states = testing.GrammarStates(structure.compiled(structure.gbnf_of(json.dumps(schema))))
    state, forced, data = states.start, 0, text.encode()
    for byte in data:
        forced += states.forced(state) >= 0
        state = states.after(state, bytes([byte]))
    return forced / max(len(data), 1)


def parser() -> argparse.ArgumentParser:
    """Its command line."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("model")
    found.add_argument("--count", type=int, default=100, help="letters")
    found.add_argument("--max-tokens", type=int, default=200, help="of an answer")
    found.add_argument("--verbose", action="store_true", help="show the answers")
    return found


def main() -> None:
    """Runs all letters and prints one line of figures."""
    asked = parser().parse_args()
    import jsonschema  # type: ignore[import-untyped]

    from medusa_cli.decoding import structure
    from medusa_cli.decoding.options import DraftOptions, EngineOptions
    from medusa_cli.decoding.runtime import open_engine, open_session

    engine = open_engine(asked.model, EngineOptions(), DraftOptions(), Console(stderr=True))
    plain = open_session(engine.model, None, None, engine.options)
    ended = valid = equal = 0
    plain_ms = drafted_ms = steps = tokens = 0.0
    ratios, shares = [], []
    for prompt, schema in letters(asked.count):
        ids = engine.chat_tokens([{"role": "user", "content": prompt}])
        grammar = structure.compiled(structure.gbnf_of(json.dumps(schema)))
        first, second = (
            one.generate(ids, max_tokens=asked.max_tokens, grammar=grammar) for one in (plain, engine.session)
        )
        equal += first.tokens == second.tokens
        times = [sum(one.stats["timings_ms"].values()) for one in (first, second)]
        plain_ms, drafted_ms = plain_ms + times[0], drafted_ms + times[1]
        ratios.append(times[0] / times[1])
        steps, tokens = steps + second.stats["steps"], tokens + len(second.tokens)
        shares.append(forced_share(schema, second.text))
        if second.stop_reason == "eos":
            ended += 1
            valid += jsonschema.Draft202012Validator(
                schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
            ).is_valid(json.loads(second.text))
        if asked.verbose:
            print(second.stop_reason, second.text, f"{ratios[-1]:.2f}", flush=True)
    print(
        f"{asked.count} answers: {ended} ended by themselves, {valid} of these valid; {equal} equal to plain decoding; "
        f"{plain_ms / drafted_ms:.2f} times plain (median {statistics.median(ratios):.2f}); "
        f"{tokens / steps:.2f} tokens per step; forced: {statistics.mean(shares):.0%} of the bytes"
    )


if __name__ == "__main__":
    main()
