"""JSON Schema's own test suite: how many schemas are enforced, how many refused, and whether an invalid value gets in.

    pip download --no-deps --no-binary jsonschema jsonschema && tar xzf jsonschema-*.tar.gz
    python benchmarks/schema_suite.py jsonschema-*/json/tests/draft2020-12

Values are written as answers are: compact, properties in the order of the suite. Needs the tests' native module.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console

from medusa_cli import native
from medusa_cli.grammars.rules import dumped
from medusa_cli.grammars.schema import grammar_of
from medusa_cli.support.errors import MedusaError


def admitted(grammar: native.Grammar, value: Any) -> bool:
    """Whether an answer may be this value."""
    import _native_testing as testing

    states = testing.GrammarStates(grammar)
    state = states.after(states.start, dumped(value).encode())
    return state >= 0 and states.accepts(state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with the suite's files")
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    console = Console(soft_wrap=True, highlight=False)
    for path in sorted(parser.parse_args().folder.glob("*.json")):
        for case in json.loads(path.read_text()):
            try:
                grammar = native.Grammar(grammar_of(case["schema"]))
            except (MedusaError, native.NativeError) as error:
                counts["refused"] += 1
                named = re.search(r"'([^']+)'", str(error))
                reasons[named[1] if named else "matches nothing"] += 1
                continue
            counts["enforced"] += 1
            for test in case["tests"]:
                kind = "valid" if test["valid"] else "invalid"
                counts[kind] += 1
                if admitted(grammar, test["data"]):
                    counts[f"{kind} admitted"] += 1
                    if kind == "invalid":
                        console.print(f"{path.name}: {case['description']}: {test['description']}")
    console.print(f"{counts['enforced']} schemas enforced, {counts['refused']} refused")
    for kind in ("valid", "invalid"):
        console.print(f"{counts[f'{kind} admitted']} of {counts[kind]} {kind} values admitted")
    console.print("refused for: " + ", ".join(f"{name} {count}" for name, count in reasons.most_common()))


if __name__ == "__main__":
    main()
