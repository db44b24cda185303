"""Templates that would compute for ever or fill the memory end with an error."""

from __future__ import annotations

import threading
import time
import tracemalloc

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from medusa_cli.decoding import prompts, template_bounds
from medusa_cli.support.errors import MedusaError

USER = {"role": "user", "content": "Hi"}

ENDLESS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "recursive loop": "{% for a in range(99) recursive %}{% if loop.depth < 9 %}{{ loop(range(99)) }}{% endif %}"
    "{% endfor %}",
    "macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "filters": "{{ ([range(99999)] * 9999) | map('join') | map('length') | sum }}",
}
NEST = "{%% set n = namespace(x=1) %%}{%% for a in range(60) %%}{%% set n.x = %s %%}{%% endfor %%}"
LARGE = {
    "output": "{% set x = 'x' * 999999 %}{% for a in range(99999) %}{{ x }}{% endfor %}",
    "block": "{% set x = 'x' * 999999 %}{% set y %}{% for a in range(99999) %}{{ x }}{% endfor %}{% endset %}",
    "doubled": "{% set n = namespace(x='x') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "added": "{% set n = namespace(x='x') %}{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "list": "{% set n = namespace(x=[1]) %}{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "nested lists": f"{NEST % '[n.x, n.x]'}{{{{ n.x }}}}",
    "nested tuples": f"{NEST % '(n.x, n.x)'}{{{{ n.x | string }}}}",
    "nested dictionaries": f"{NEST % '{1: n.x, 2: n.x}'}{{{{ n.x | tojson }}}}",
    "nested by a function": f"{NEST % 'dict(a=n.x, b=n.x)'}{{{{ n.x | length }}}}",
    "nested and compared": f"{NEST % '[n.x, n.x]'}{{% set a = n.x %}}{NEST % '[n.x, n.x]'}{{{{ a == n.x }}}}",
    "nested by a filter": f"{NEST % '([n.x] * 2) | list'}{{{{ '%s' % n.x }}}}",
    "nested views": NEST % "{'p': n.x, 'q': n.x}.values()" + "{{ n.x }}",
    "nested items": NEST % "{'p': n.x, 'q': n.x}.items()" + "{{ n.x }}",
    "nested keys": NEST % "[{(n.x, n.x): 1}]" + "{{ n.x }}",
    "long text in lists": "{% set x = 'x' * 30000000 %}{{ [x] * 100 }}",
    "times": "{{ 'x' * 10**12 }}",
    "times, turned": "{{ 10**12 * 'x' }}",
    "list times": "{{ ([1] * 10**12) | length }}",
    "center": "{{ 'x' | center(10**12) }}",
    "method": "{{ 'x'.center(10**12) }}",
    "named": "{{ 'x' | center(width=10**12) }}",
    "format": "{{ '%999999999999d' | format(1) }}",
    "percent": "{{ '%999999999999d' % 1 }}",
    "star": "{{ '%*d' % (10**12, 1) }}",
    "method format": "{{ '{:999999999999}'.format(1) }}",
    "nested format": "{{ '{:{}}'.format(1, 10**12) }}",
    "replace": "{{ ('x' * 9999999) | replace('x', 'y' * 9999999) }}",
    "method replace": "{{ ('x' * 9999999).replace('x', 'y' * 9999999) }}",
    "join": "{{ range(99999) | join('x' * 9999999) }}",
    "method join": "{{ ('x' * 9999999).join(['a'] * 99999) }}",
    "indent": "{{ [1] | tojson(indent=10**12) }}",
    "number": "{{ 10**100000 }}",
    "product": "{% set n = namespace(x=9) %}{% for a in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "lipsum": "{{ lipsum(n=10**9) }}",
}


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
def test_a_template_that_does_not_end(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_bounds, "SECONDS", 0.3)
    begun = time.monotonic()
    with pytest.raises(MedusaError, match="it takes too long"):
        prompts.render(source, [USER])
    assert time.monotonic() - begun < 3


@pytest.mark.parametrize("source", LARGE.values(), ids=LARGE)
def test_a_template_that_makes_too_much(source: str) -> None:
    begun = time.monotonic()
    with pytest.raises(MedusaError, match="chat template failed") as error:
        prompts.render(source, [USER])
    assert len(str(error.value).splitlines()) == 1
    assert time.monotonic() - begun < 3


ORDINARY = """
{%- for m in messages if m.role != 'tool' %}
{%- if loop.first %}{{ 'first of ' ~ loop.length ~ ', ' }}{% endif %}
{{- '%s: ' % m.role + m.content | trim | upper }}{{ '{} of {:>5}'.format(loop.index, 'x') }}
{{- ['a', 'b'] | join('-') }}{{ m.content.replace('H', 'J') | replace('J', 'K') }}{{ '-' * 10 }}{{ 2 ** 10 * 3 }}
{{- {'a': 5 % 3} | tojson(indent=4) }}{{ ' '.join(['x', 'y']) }}{{ [1, 2] + [3] }}{{ 'x' | center(9) }}
{%- if loop.last %}{{ messages | map(attribute='role') | list }}{{ m.missing | default('none') }}{% endif %}
{%- else %}nobody{% endfor %}
{%- macro tag(name) %}<{{ name }}>{{ caller() if caller }}</{{ name }}>{% endmacro %}
{%- call tag('b') %}text{% endcall %}{{ tag('i') }}{{ ns.x if ns is defined }}{{ loop is defined }}
{%- for a in [[1, [2]], [3]] recursive %}{% if a is iterable %}({{ loop(a) }}){% else %}{{ a }}{% endif %}{% endfor %}
"""


def test_an_ordinary_template_renders_as_in_the_sandbox_of_jinja() -> None:
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    plain.filters["tojson"] = prompts._to_json
    messages = [USER, {"role": "tool", "content": "no"}, {"role": "assistant", "content": " Yes "}]
    for some in (messages, messages[:1], messages[1:2], []):
        expected = plain.from_string(ORDINARY).render(messages=some, add_generation_prompt=True)
        assert prompts.render(ORDINARY, some) == expected


def test_one_rendering_does_not_bound_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_bounds, "SECONDS", 0.5)

    def fails() -> None:
        with pytest.raises(MedusaError):
            prompts.render(ENDLESS["loops"], [USER])

    slow = threading.Thread(target=fails)
    slow.start()
    while slow.is_alive():
        assert prompts.render("{% for m in messages %}{{ m.content }}{% endfor %}", [USER]) == "Hi"
    time.sleep(0.1)
    assert prompts.render("{% for m in messages %}{{ m.content }}{% endfor %}", [USER]) == "Hi"


def test_namespaces_do_not_print_what_is_in_them() -> None:
    nested = "".join("{% set a = namespace(x=a, y=a) %}" for _ in range(60))
    assert prompts.render("{% set a = 1 %}" + nested + "{{ a }}", [USER]) == "<Namespace>"


def test_lists_that_grow_in_a_loop_do_not_stay_in_memory() -> None:
    grow = "{% for a in range(5000) %}{% set n.l = n.l + [[a]] %}{% endfor %}"
    source = "{% set n = namespace(l=[]) %}" + grow + "{{ n.l | length }}"
    tracemalloc.start()
    try:
        assert prompts.render(source, [USER]) == "5000"
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
