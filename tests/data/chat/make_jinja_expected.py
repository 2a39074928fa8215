"""Writes tests/fixtures/jinja.json: what transformers makes of small templates, for jinja_test.cpp.

make_jinja_expected.py OUT. Needs transformers and jinja2 (pip).
"""
import datetime
import json
import sys
from pathlib import Path

import transformers
from transformers.utils import chat_template_utils

TEMPLATES = r'''
{% for m in messages %}
  {% if loop.first %}
 A {% endif %}
{{ m.role }}: {{ m.content|trim }}
{% endfor %}

===
{# c #}
{%+ if true %}
  keep
{%+ endif +%}
{{- ' y ' -}}
 z {{ 'a' if false }}{{ 'a' 'b' }}{{ "\u00e9\x41\n\q" }}
===
{% macro f(x, y='d') %}
[{{ x }}-{{ y }}]
{% endmacro %}
{{ f(1) }}{{ f('a', y=2.50) }}{{ messages|length // 2 }} {{ -7 // 2 }} {{ 7 % -3 }} {{ 7/2 }} {{ 1e3 }} {{ 1.5e-7 }} {{ 2 * 3 - -1 }}
===
{%- set ns = namespace(a=1, b='x') -%}{%- for i in range(3) -%}{%- set ns.a = ns.a + i -%}{%- endfor -%}{{ ns.a ~ ns.b ~ [1,'a',none,true,1.0] ~ {'k': 'v\'s'} }}
===
{{ messages[-1].content[:3] }}|{{ messages[::-1][0].role }}|{{ 'abcdef'[1:-1:2] }}|{{ 'abc'[::-1] }}|{{ messages|map(attribute='role')|join(',') }}|{{ 'añb'[1] }}{{ 'añb'|length }}
===
{% for m in messages if m.role != 'system' %}{% if loop.index0 == 2 %}{% break %}{% endif %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}!{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ loop.revindex }}{% else %}none{% endfor %}
===
{% for x in [] %}a{% else %}none{% endfor %}{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{{ loop.previtem }}{{ loop.nextitem }},{% endfor %}
===
{{ messages|tojson(indent=2) }}{{ {'b':1,'a':[]}|tojson(sort_keys=true) }}{{ 'é\u2028<&>"\\'|tojson }}{{ 'é\U0001f600'|tojson(ensure_ascii=true) }}{{ []|tojson(indent=2) }}{{ {'a': 1.0}|tojson(separators=[',', ':']) }}
===
{{ messages | selectattr('role','equalto','user') | list | length }}{{ messages|rejectattr('role','eq','user')|map(attribute='content')|first }}{{ undefined_thing|default('D') }}{{ ''|default('E', true) }}{{ x is defined }}{{ x is not defined and true }}
===
{% set x %}
 blk {{ 1 }}
{% endset %}[{{ x }}]{% set a, b = [1, 2] %}{{ a + b }}{% for k, v in {'p': 1, 'q': 2}.items() %}{{ k }}={{ v }};{% endfor %}{{ 'a,b,,c'.split(',') }}{{ ' a  b '.split() }}{{ 'a,b,c'.rsplit(',', 1) }}{{ 'aXbXc'.replace('X', '-', 1) }}{{ ' a b c'.split(none, 1) }}
===
{{ 'hello wORLD-x'|title }}{{ 'hello wORLD'|capitalize }}{{ "a b'c".title() }}{{ 'x'.upper() }}{{ [3,1,2]|sort|join }}{{ ['b','A','c']|sort }}{{ [1,1,2]|unique|list }}{{ [1,2]|sum }}{{ '5'|int + 1 }}{{ 'q'|int }}{{ 3|float }}{{ 'a
b'|indent(2) }}{{ 'a

b
'|indent(2, true) }}{{ [1,2,3]|reverse|list }}{{ [2,1]|max }}{{ {'b':2,'a':1}|dictsort|map('first')|join }}
===
{{ 1 < 2 < 3 }}{{ 1 in [1] }}{{ 'a' not in 'bc' }}{{ not 1 == 1 }}{{ 1 == 1.0 }}{{ none is none }}{{ 'a' is string }}{{ 4 is divisibleby 2 }}{{ 3 is odd }}{{ messages is sequence }}{{ messages[0] is mapping }}{{ 'role' in messages[0] }}{{ messages[99] is defined }}{{ true is true }}{{ 'b' is in ['a', 'b'] }}
===
{% if messages[0].role == 'system' %}S{% elif messages|length > 2 %}L{% else %}E{% endif %}{{ 'ab' * 2 }} {{ messages|last|tojson }} {{ 'x'.startswith('x') }}{{ 'xyz'.endswith('z') }}{{ ' x'.lstrip() }}{{ 'xx-'.strip('x') }}{{ 'abc'.find('c') }}{{ 'aXa'.count('a') }}
===
{% for c in 'añb' %}{{ c }}.{% endfor %}{{ strftime_now('%d %b %Y') }}{{ 'a' ~ 1 ~ none }}{{ [1, 2] + [3] }}{{ {'a': 1}.get('b', 5) }}{{ {'a': {'b': 7}}.a.b }}{{ messages|selectattr('name', 'defined')|list }}{{ tools is none }}{{ {'items': 1}['items'] }}
===
{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}{% macro show() %}{{ x }}{% endmacro %}{% set x = 9 %}{{ show() }}{{ (1 if x > 5 else 2) + 1 }}{{ [messages[0].nothing, 'a']|select|list }}
'''
DATE = datetime.datetime(2026, 1, 31)


class Frozen(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return DATE


chat_template_utils.datetime = Frozen
messages = [{"role": "user", "content": " Hi\n"}, {"role": "assistant", "content": "Hello é."}, {"role": "user", "content": "Bye"}]
made = []
for template in TEMPLATES[1:-1].split("\n===\n"):
    compiled = chat_template_utils._compile_jinja_template(template)
    values = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": False}
    spans = []
    if "{% generation %}" in template:
        text, spans = chat_template_utils._render_with_assistant_indices(compiled_template=compiled, **values)
        spans = [[len(text[:first].encode()), len(text[:last].encode())] for first, last in spans]
    else:
        text = compiled.render(**values)
    made.append({"template": template, "text": text, "generated": spans})
Path(sys.argv[1]).write_text("\n".join(["{", f'"transformers": "{transformers.__version__}", "messages": {json.dumps(messages, ensure_ascii=False)}, "templates": [',
                                        ",\n".join(json.dumps(one, ensure_ascii=False) for one in made), "]}", ""]), encoding="utf-8")
