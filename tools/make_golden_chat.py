"""Write tests/golden/chat/cases.json: what transformers renders for chat templates, for the Rust tests to read.

In a fresh virtual environment:

    pip install torch==2.15.0 transformers==5.22.2 jinja2==3.1.6
    python tools/make_golden_chat.py

The templates are our own. Together they use every construct of the public ones: a short one for each construct (`WORDS`),
and whole ones (`WHOLE`) that are built like those of the field. Each is rendered over conversations; the clock stands at NOW. A case
is {"name", "template", "variables", and "text" or "refused" or "fails"}: the text, what `raise_exception` was told, or true where
transformers fails in another way.

No public template uses `%` between a string and a tuple, `varargs` and `kwargs` of macros, a macro's argument as the default of
another, or `namespace` of a dict; neither do these, because our engine has none of them.
"""

import json
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import jinja2
from transformers.utils import chat_template_utils

VERSIONS = {"transformers": "5.22.2", "jinja2": "3.1.6"}
OUT = Path(__file__).resolve().parent.parent / "tests" / "golden" / "chat" / "cases.json"
NOW = datetime(2026, 3, 7, 4, 5, 9, 123456)

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "How it is <outside> & \"near\" — été",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "Where"},
                "days": {"type": "integer", "default": 1, "enum": [1, 2, 3]},
                "units": {"type": ["string", "null"], "nullable": True},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["place"],
        },
    },
}
TALK = [
    {"role": "system", "content": "  You are kind.\n"},
    {"role": "user", "content": "Hello, wörld! {{ 1 }} <|x|>"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi there. "},
    {"role": "user", "content": "And now?"},
]
CALLS = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I should look.",
        "tool_calls": [
            {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": {"place": "Bonn", "days": 2, "warm": True, "x": None}}}
        ],
    },
    {"role": "tool", "tool_call_id": "call00001", "name": "weather", "content": "{\"sun\": true}"},
    {"role": "tool", "tool_call_id": "call00002", "name": "weather", "content": "rain"},
    {"role": "assistant", "content": "It is fine."},
    {"role": "user", "content": [{"type": "text", "text": "Thanks"}, {"type": "image"}, {"type": "text", "text": "!"}]},
]
DOCUMENTS = [{"title": "One", "text": "First\ntext"}, {"title": "Two", "text": "Second"}]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

# What a template may be given beside the conversation, for the short ones.
EXTRA = {
    "text": "  The quick-brown fox's  \n den\tis\u00a0here \u001f",
    "mixed": "ßTraße ÉCOLE ǆ 12a",
    "empty": "",
    "numbers": [3, 1, 2, 10, 1],
    "floats": [0.1, 1e16, 1e-5, 123456789.125, 1e22, -0.0, 2.0, 1.5e300],
    "nested": {"b": 1, "a": [True, None, {"k": "it's \"q\""}], "": "é\n\t\\ \u0001 \u2028 😀"},
    "people": [{"name": "Ann", "age": 31, "in": {"city": "Rome"}}, {"name": "bob", "age": 7, "in": {"city": "Oslo"}}, {"name": "Cy", "age": 31, "in": {"city": "Rome"}}],
    "yes": True,
    "nothing": None,
    "lines": "a\nb\r\nc\x0bd\u2028e\n",
}

WORDS = {
    # Whitespace: trimmed blocks, stripped indents, hyphens and plus signs.
    "trim_blocks": "a\n  {% if true %}\n    b\n  {% endif %}\nc\n",
    "hyphens": "a  \n {%- if true -%}  b {{- ' c ' -}}  d {%- endif %}  \n e",
    "plus_signs": "a\n  {%+ if true %}\n b\n{% endif +%}\n c",
    "comments": "a {# one #} b\n{# two #}\nc {#- three -#} d",
    "last_newline": "a\n\n",
    "raw": "{% raw %}{{ x }} {% generation %}{% endraw %}\n",
    "crlf": "a\r\n{% if true %}\r\nb{% endif %}\r\n",
    "block_in_line": "x {% if true %}y{% endif %} z\n{% set q = 1 %}w",
    # Printing.
    "constants": "{{ true }} {{ True }} {{ false }} {{ none }} {{ None }} {{ missing }} {{ 1 }} {{ 1.0 }} {{ -3 }} {{ 'a' }}",
    "floats": "{% for x in floats %}{{ x }} {{ x|string }} {{ x|tojson }} {% endfor %}{{ floats }}",
    "containers": "{{ nested }} {{ numbers }} {{ people[0] }} {{ (1, 'a') }} {{ (1,) }} {{ [] }} {{ {} }}",
    "joined_containers": "{{ 'x' ~ people[0] ~ numbers ~ none ~ 1.5 ~ true }} {{ nested|string }} {{ numbers|join(', ') }} {{ [1, none, true]|join('-') }}",
    "quotes": "{{ ['a', \"it's\", 'say \"x\"', 'both \\'\"', 'new\\nline', 'tab\\t', '\\\\', 'é', '\u200b'] }}",
    "escapes": "{{ 'a\\nb\\tc\\\\d\\x41\\u00e9\\'' }}",
    "html_is_not_escaped": "{{ '<b> & \"' }} {{ '<b>'|safe }} {{ '<b>'|escape }} {{ '<b>'|e }}",
    "adjacent_strings": "{{ 'a' 'b' \"c\" }}",
    # JSON.
    "tojson": "{{ nested|tojson }}\n{{ tools|tojson }}\n{{ text|tojson }} {{ 1|tojson }} {{ none|tojson }} {{ 'ü'|tojson }}",
    "tojson_indent": "{{ nested|tojson(indent=2) }}\n{{ tools|tojson(indent=4) }} {{ []|tojson(indent=2) }} {{ {}|tojson(indent=2) }} {{ [[]]|tojson(indent=1) }}",
    "tojson_options": "{{ nested|tojson(ensure_ascii=True) }} {{ nested|tojson(sort_keys=true) }} {{ numbers|tojson(separators=(',', ':')) }} {{ nested|tojson(indent=2, separators=(',', ': ')) }} {{ '😀'|tojson(ensure_ascii=true) }}",
    "tojson_positions": "{{ 'é'|tojson(true) }} {{ [1]|tojson(false, 2) }} {{ {1: 2, false: 3, none: 4, 1.5: 5}|tojson }}",
    "tojson_is_text": "{{ ('<' ~ [1]|tojson ~ '>')|length }} {{ [1, 2]|tojson|replace(',', ';') }} {{ ([1]|tojson)|tojson }}",
    "tojson_of_undefined": "{{ missing|tojson }}",
    # Strings.
    "strip": "[{{ text.strip() }}] [{{ text.lstrip() }}] [{{ text.rstrip() }}] [{{ text|trim }}] [{{ 'xxaxx'.strip('x') }}] [{{ 'abcba'.lstrip('ab') }}] [{{ 'a!?'|trim('?!') }}]",
    "split": "{{ text.split() }} {{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ 'a b  c'.split(None, 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ''.split(',') }} {{ ''.split() }} {{ 'a,b,c'.split(',', maxsplit=1) }} {{ 'x</think>y'.split('</think>')[-1] }}",
    "splitlines": "{{ lines.splitlines() }} {{ lines.splitlines(true) }} {{ ''.splitlines() }}",
    "cases": "{{ mixed.upper() }} {{ mixed.lower() }} {{ mixed.title() }} {{ mixed.capitalize() }} {{ mixed|upper }} {{ mixed|lower }} {{ text|title }} {{ mixed|capitalize }} {{ 'aB'.swapcase() }} {{ \"they're\".title() }} {{ \"they're x-y\"|title }}",
    "starts": "{{ 'abc'.startswith('ab') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith('bc') }} {{ 'abc'.endswith('x') }} {{ ''.startswith('') }}",
    "replace": "{{ 'aaa'.replace('a', 'b') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'aaa'|replace('a', 'c') }} {{ 'aaa'|replace('a', 'c', 1) }} {{ 'abc'.replace('', '-') }}",
    "find": "{{ 'naïve é'.find('é') }} {{ 'abcb'.rfind('b') }} {{ 'abc'.find('x') }} {{ 'abcb'.count('b') }} {{ 'abc'.index('c') }} {{ 'abcb'.find('b', 2) }}",
    "affixes": "{{ 'prefix-a'.removeprefix('prefix-') }} {{ 'a.txt'.removesuffix('.txt') }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'a'.partition('=') }} {{ 'a'.rpartition('=') }}",
    "padding": "{{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} [{{ 'a'.ljust(3) }}] [{{ 'a'.rjust(3, '.') }}] [{{ 'ab'.center(5, '*') }}]",
    "asking": "{{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ 'ab'.isalpha() }} {{ 'AB'.isupper() }} {{ 'ab'.islower() }} {{ ' '.isspace() }} {{ ''.isspace() }} {{ '١'.isdecimal() }} {{ 'é'.isascii() }}",
    "join_method": "{{ ', '.join(['a', 'b']) }} {{ ''.join([]) }} {{ '-'.join('abc') }}",
    "format": "{{ '{} and {}'.format(1, 'x') }} {{ '{0}{1}{0}'.format('a', 'b') }} {{ '{name}: {n:03d} {f:.2f}'.format(name='q', n=7, f=1.005) }} {{ '%s has %d of %5.1f%%'|format('x', 3, 2.25) }} {{ '{{}}'.format() }}",
    "indent": "{{ 'a\\nb\\n\\nc'|indent }}|{{ 'a\\nb'|indent(2) }}|{{ 'a\\nb'|indent(2, true) }}|{{ 'a\\n\\nb'|indent(width=2, first=false, blank=true) }}",
    "repeat": "{{ '-' * 5 }} {{ 'ab' * 0 }} {{ [1, 2] * 2 }}",
    "slices": "{{ 'héllo'[0] }} {{ 'héllo'[-1] }} {{ 'héllo'[1:3] }} {{ 'héllo'[::-1] }} {{ 'héllo'[:-2] }} {{ numbers[1:] }} {{ numbers[::-1] }} {{ numbers[-2:] }} {{ numbers[::2] }} {{ numbers[99:] }} {{ (1, 2, 3)[1:] }}",
    "in_text": "{{ 'a' in 'abc' }} {{ 'x' not in 'abc' }} {{ '' in 'abc' }} {{ 'é' in 'né' }}",
    "filters_of_text": "{{ 'a b c'|wordcount }} [{{ 'a'|center(5) }}] {{ 'abc'|list }} {{ 'abc'|reverse }} {{ 'abc'|first }} {{ 'abc'|last }} {{ 'abc'|length }} {{ 'hello world foo'|truncate(9) }} {{ 'hello world foo'|truncate(9, true, '…') }}",
    # Lists and dicts.
    "list_filters": "{{ numbers|sort }} {{ numbers|sort(reverse=true) }} {{ numbers|unique|list }} {{ numbers|first }} {{ numbers|last }} {{ numbers|length }} {{ numbers|count }} {{ numbers|sum }} {{ numbers|min }} {{ numbers|max }} {{ numbers|reverse|list }} {{ numbers|list }} {{ []|first }} {{ ['b', 'A', 'c']|sort }} {{ ['b', 'B', 'a']|unique|join }}",
    "batches": "{{ numbers|batch(2)|list }} {{ numbers|batch(2, 'x')|list }} {{ numbers|slice(2)|list }}",
    "map_select": "{{ people|map(attribute='name')|list }} {{ people|map(attribute='in.city')|unique|join(',') }} {{ people|selectattr('age', 'equalto', 31)|map(attribute='name')|list }} {{ people|rejectattr('age', 'gt', 10)|list|length }} {{ numbers|select('odd')|list }} {{ numbers|reject('greaterthan', 2)|list }} {{ ['a', 'b']|map('upper')|join }} {{ people|map(attribute='nick', default='none')|list }} {{ people|selectattr('age')|list|length }} {{ people|sum(attribute='age') }} {{ people|map(attribute='age')|max }}",
    "sort_by": "{{ people|sort(attribute='name')|map(attribute='name')|list }} {{ people|sort(attribute='age,name')|map(attribute='name')|list }} {{ people|sort(attribute='name', case_sensitive=true)|map(attribute='name')|list }}",
    "groups": "{% for city, rows in people|groupby('in.city') %}{{ city }}={{ rows|map(attribute='name')|join('+') }};{% endfor %}",
    "dicts": "{{ nested.b }} {{ nested['b'] }} {{ nested.get('zz') }} {{ nested.get('zz', 5) }} {{ nested.keys()|list }} {{ nested.values()|list|length }} {% for k, v in nested.items() %}{{ k }}:{{ v }};{% endfor %} {% for k, v in nested|items %}{{ k }};{% endfor %} {{ nested|length }} {{ 'b' in nested }} {{ 'zz' not in nested }} {{ nested|list }}",
    "dictsort": "{% for k, v in {'b': 1, 'A': 3, 'c': 2}|dictsort %}{{ k }}={{ v }} {% endfor %}{% for k, v in {'b': 1, 'A': 3}|dictsort(by='value') %}{{ k }} {% endfor %}{% for k, v in {'b': 1, 'A': 3}|dictsort(true, reverse=true) %}{{ k }} {% endfor %}",
    "dict_global": "{{ dict(a=1, b='x') }} {{ dict({'a': 1}, b=2) }} {{ {'a': 1, 'b': {'c': [1]}}.b.c[0] }}",
    "method_wins_over_key": "{{ {'items': 1}['items'] }} {% for k, v in {'items': 1}.items() %}{{ k }}{% endfor %}",
    "adding_lists": "{{ [1] + [2] }} {{ messages[1:] + [messages[0]] == messages }} {% set all = [] %}{% for n in numbers %}{% set all = all + [n] %}{% endfor %}{{ all }}",
    "comparing": "{{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ [1, 2] == [1, 2] }} {{ {'a': 1} == {'a': 1} }} {{ 1 in [1, 2] }} {{ none == none }} {{ 1 != 2 }} {{ 3 >= 3 }} {{ 1 < 2 < 3 }} {{ true == 1 }}",
    "arithmetic": "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 4 / 2 }} {{ 2 ** 3 }} {{ 2 ** -1 }} {{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 10 - 2 - 3 }} {{ 7.5 // 2 }} {{ 1e3 }} {{ 1_000 }}",
    "numbers": "{{ 3.7|int }} {{ '42'|int }} {{ 'x'|int(5) }} {{ '1.5'|float }} {{ 2.567|round(1) }} {{ 2.5|round }} {{ 7|round }} {{ -3|abs }} {{ 'ff'|int(0, 16) }} {{ 2.4|round(0, 'ceil') }}",
    "logic": "{{ 'a' if yes else 'b' }} {{ 'a' if not yes }} {{ missing or 'x' }} {{ yes and 'y' }} {{ empty or nothing or 0 or 'z' }} {{ not empty }} {{ (not missing) and yes }}",
    "default": "{{ missing|default('d') }} {{ empty|default('d') }} {{ empty|default('d', true) }} {{ nothing|default('d') }} {{ nothing|default('d', boolean=true) }} {{ missing|d('q') }} {{ nested.zz|default([])|length }}",
    # Tests.
    "tests": "{% for x in ['s', 1, 1.5, true, none, [1], {'a': 1}, (1, 2), missing] %}{{ x is string }} {{ x is number }} {{ x is integer }} {{ x is float }} {{ x is boolean }} {{ x is none }} {{ x is mapping }} {{ x is iterable }} {{ x is sequence }} {{ x is defined }} {{ x is true }} {{ x is false }}\n{% endfor %}",
    "more_tests": "{{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 'a' is lower }} {{ 'A' is upper }} {{ 1 is eq 1 }} {{ 1 is in [1] }} {{ 1 is not none }} {{ yes is sameas true }} {{ missing is undefined }} {{ 2 is gt 1 }} {{ nested.b is defined }} {{ nested.c is defined }} {{ 'x' is equalto 'x' }} {{ raise_exception is callable }} {{ 1 is callable }}",
    # Statements.
    "loops": "{% for x in ['a', 'b', 'c'] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('x', 'y') }}{{ loop.depth }};{% else %}none{% endfor %}",
    "loop_else": "{% for x in [] %}{{ x }}{% else %}empty{% endfor %}{% for x in missing %}a{% else %}undefined{% endfor %}",
    "loop_if": "{% for m in messages if m.role != 'system' %}{{ loop.index }}{{ m.role }}{{ ',' if not loop.last }}{% endfor %}",
    "loop_control": "{% for n in numbers %}{% if n == 1 %}{% continue %}{% endif %}{% if n == 10 %}{% break %}{% endif %}{{ n }} {% endfor %}",
    "loop_unpack": "{% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }} {% endfor %}{% for i, (a, b) in [(0, (1, 2))] %}{{ i }}{{ a }}{{ b }}{% endfor %}",
    "loop_recursive": "{% for x in [[1, [2]], [3]] recursive %}{{ '<' }}{% if x is sequence and x is not string %}{{ loop(x) }}{% else %}{{ x }}{% endif %}{{ '>' }}{% endfor %}",
    "loop_changed": "{% for n in [1, 1, 2] %}{% if loop.changed(n) %}{{ n }}{% endif %}{% endfor %}",
    "loop_scope": "{% set x = 1 %}{% for n in [1, 2] %}{% set x = x + n %}{{ x }} {% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}",
    "ranges": "{{ range(3)|list }} {{ range(1, 4)|list }} {{ range(5, 0, -2)|list }} {% for i in range(2) %}{{ i }}{% endfor %} {{ range(0)|list }}",
    "namespace": "{% set ns = namespace(found=false, n=0, items=[]) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% if m.role == 'user' %}{% set ns.found = true %}{% set ns.items = ns.items + [loop.index0] %}{% endif %}{% endfor %}{{ ns.found }} {{ ns.n }} {{ ns.items }} {{ ns.other is defined }}",
    "set_block": "{% set x %}a {{ 1 }}\n{% endset %}[{{ x }}]{% set y | upper %}abc{% endset %}{{ y }} {{ x|length }}",
    "set_many": "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t = 1, 2 %}{{ t }}",
    "if_elif": "{% if nothing %}a{% elif yes %}b{% else %}c{% endif %}{% if [] %}x{% endif %}{% if '0' %}y{% endif %}{% if 0.0 %}z{% endif %}",
    "with": "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
    "filter_block": "{% filter upper %}abc {{ 'd' }}{% endfilter %}",
    "macros": "{% macro show(x, y='d', z=none) %}[{{ x }}|{{ y }}|{{ z }}]{% endmacro %}{{ show(1) }}{{ show(1, 2, 3) }}{{ show(1, z=4) }}{{ show(y=5, x=6) }} {{ show(1)|length }} {{ show('a') ~ 'b' }}",
    "macro_recursive": "{% macro tree(x, d=0) %}{% if x is mapping %}{% for k, v in x.items() %}{{ '  ' * d }}{{ k }}:\n{{ tree(v, d + 1) }}{% endfor %}{% elif x is iterable and x is not string %}{% for v in x %}{{ tree(v, d + 1) }}{% endfor %}{% else %}{{ '  ' * d }}{{ x }}\n{% endif %}{% endmacro %}{{ tree(nested) }}",
    "macro_missing_argument": "{% macro f(a) %}[{{ a }}{{ a is defined }}]{% endmacro %}{{ f() }}",
    "macro_sees_globals": "{% set g = 1 %}{% macro f() %}{{ g }}{{ bos_token }}{% endmacro %}{{ f() }}{% set g = 2 %}{{ f() }}",
    "call_block": "{% macro f(n) %}<{{ caller(n) }}>{% endmacro %}{% call(x) f(3) %}got {{ x }}{% endcall %}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.role }}{% endif %}\n{% endfor %}",
    "generation_trimmed": "a\n  {%- generation -%}\n  b {% set q = 1 %}\n  {%- endgeneration -%}\n c{{ q is defined }}",
    "do_nothing": "{%- set _ = 1 -%}{{ 'x' }}",
    "strftime": "{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%A %B %-d, %Y %H:%M:%S %p %I %j %y %m %%') }}|{{ strftime_now('%Y-%m-%d') }}|{{ strftime_now('%a %e %U %w %u %f') }}|{{ strftime_now('%c') }}|{{ strftime_now('%x %X %D %F %T %R') }}",
    "cycler_joiner": "{% set j = joiner(', ') %}{% for n in numbers %}{{ j() }}{{ n }}{% endfor %}{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}",
    "attributes": "{{ messages[0].role }} {{ messages[0]['role'] }} {{ messages[-1].content }} {{ messages[0].nope }} {{ messages[0]|attr('role') }} {{ messages|length }}",
    "undefined_in": "{{ 'a' in missing|default('') }} {{ missing is defined and missing.x }} {{ (missing|default({})).x }}",
    "in_undefined": "{{ 'a' in missing }}",
    "named_variables": "{{ tools is none }} {{ tools is defined }} {{ documents is defined }} {{ add_generation_prompt }} {{ bos_token }}{{ eos_token }} {{ unk_token is defined }} {{ custom }}",
    "line_numbers": "{{ 1 }}\n{{ 2 }}\n\n{{ 3 }}",
    "sentences": "{{ messages|map(attribute='content')|select('string')|join(eos_token) }}",
    # Refusals and failures.
    "raise": "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported: ' ~ messages[0].role) }}{% endif %}",
    "attribute_of_undefined": "{{ missing.x }}",
    "item_of_undefined": "{{ missing['x'] }}",
    "call_of_undefined": "{{ missing() }}",
    "no_such_method": "{{ 'a'.nope() }}",
    "no_such_filter": "{{ 'a'|nope }}",
    "no_such_test": "{{ 'a' is nope }}",
    "text_plus_number": "{{ 'a' + 1 }}",
    "text_plus_none": "{{ 'a' + none }}",
    "text_plus_undefined": "{{ 'a' + missing }}",
    "division_by_zero": "{{ 1 / 0 }}",
    "unclosed": "{% if true %}a",
    "stray_end": "a{% endif %}",
    "includes": "{% include 'x' %}",
    "changes_a_list": "{% set x = [] %}{{ x.append(1) }}",
    "changes_a_dict": "{% set x = {} %}{{ x.update({'a': 1}) }}",
    "index_out_of_range": "{{ numbers[99] }}|",
}

WHOLE = {
    "marked_turns": (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
        "{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] if message['content'] is string else message['content']|tojson) + '<|im_end|>' + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "thinking_turns": """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\nYou may call one or more functions.\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index or reasoning_content %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    "header_turns": """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{#- The system message goes first. -#}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {%- if message.content is string %}{{- message['content'] | trim + '<|eot_id|>' }}
        {%- else %}{%- for part in message.content %}{%- if part.type == 'text' %}{{- part.text }}{%- else %}{{- '<|' ~ part['type'] ~ '|>' }}{%- endif %}{%- endfor %}{{- '<|eot_id|>' }}{%- endif %}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "bracket_turns": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{#- Turns must alternate. #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"]|string + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"]|string + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported!") }}
    {%- endif %}
{%- endfor %}
""",
    "typed_tools": """{%- macro type_of(spec, required=[], nullable=false) -%}
    {%- if spec.type == "array" -%}
        {%- if spec['items'] -%}{{ type_of(spec['items']) ~ "[]" }}{%- else -%}{{- "any[]" }}{%- endif -%}
    {%- elif spec.type is iterable and spec.type is not string and spec.type[0] -%}
        {{- spec.type | join(" | ") }}
    {%- elif spec.enum -%}
        {{- '"' + spec.enum|map('string')|join('" | "') + '"' -}}
    {%- elif spec.type == "object" -%}
        {{- "{\\n" }}
        {%- for name, param in spec.properties.items() -%}
            {{- name ~ ("?" if name not in (spec.required or []) else "") ~ ": " ~ type_of(param, spec.required or []) }}
            {%- if param.default is defined %}{{- " // default: " ~ param.default|tojson }}{%- endif %}
            {{- ",\\n" if not loop.last else "\\n" }}
        {%- endfor -%}
        {{- "}" }}
    {%- else -%}
        {{- spec.type|default('any') }}
    {%- endif -%}
{%- endmacro -%}
{%- macro section(title) %}
<|start|>{{ title|upper }}<|message|>{{ caller() }}<|end|>
{% endmacro -%}
{% call section('system') %}Now: {{ strftime_now("%Y-%m-%d") }}{% endcall %}
{%- for tool in tools or [] %}
type {{ tool.function.name }} = (_: {{ type_of(tool.function.parameters) }}) => any;
{% endfor %}
{%- for document in documents or [] %}
[{{ loop.index }}] {{ document['title'] }}
{{ document.text | indent(2, first=true) }}
{%+ endfor %}
{%- for message in messages %}
{%- if message.role in ['user', 'assistant'] %}
<|start|>{{ message.role }}<|message|>{% if message.content is mapping %}{{ message.content|tojson }}{% elif message.content is iterable and message.content is not string %}{% for part in message.content %}{{ part.text if part.type == 'text' else '[' ~ part.type ~ ']' }}{% endfor %}{% else %}{{ message.content or '' }}{% endif %}<|end|>
{%- endif %}
{%- endfor %}
{% if add_generation_prompt %}<|start|>assistant{% endif %}""",
    "tracked": """{% for message in messages %}
{% if message['role'] == 'assistant' %}
<|assistant|>
{% generation %}
{{ message['content'] ~ eos_token }}
{% endgeneration %}
{%- elif message['role'] in ('user', 'system') %}
<|{{ message['role'] }}|>
{{ message['content'] }}{{ eos_token }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
<|assistant|>
{% endif %}""",
    "no_system": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}",
}

CONVERSATIONS = {
    "talk": {"messages": TALK, "add_generation_prompt": True},
    "without_system": {"messages": TALK[1:], "add_generation_prompt": True},
    "finished": {"messages": TALK[1:3], "add_generation_prompt": False},
    "calls": {"messages": CALLS, "tools": [TOOL], "add_generation_prompt": True},
    "documents": {"messages": TALK[:2], "documents": DOCUMENTS, "add_generation_prompt": True, "enable_thinking": False},
}


class Clock(datetime):
    """A clock that stands."""

    @classmethod
    def now(cls, tz=None):
        return NOW


def render(template: str, variables: dict) -> dict:
    """What transformers makes of a template."""
    given = dict(variables)
    messages = given.pop("messages")
    try:
        rendered, _ = chat_template_utils.render_jinja_template(conversations=[messages], chat_template=template, **given)
    except jinja2.exceptions.TemplateError as error:
        is_raised = type(error) is jinja2.exceptions.TemplateError
        return {"refused": str(error)} if is_raised else {"fails": True}
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return {"fails": True}
    return {"text": rendered[0]}


def main() -> None:
    for package, wanted in VERSIONS.items():
        if version(package) != wanted:
            raise SystemExit(f"{package} {wanted} is needed, this is {version(package)}")
    chat_template_utils.datetime = Clock
    cases = []
    short = {"messages": TALK, "tools": [TOOL], "add_generation_prompt": True, **SPECIAL, **EXTRA}
    for name, template in WORDS.items():
        variables = dict(short)
        if name == "named_variables":
            variables = {"messages": TALK, "custom": 7, **SPECIAL}
        cases.append({"name": name, "template": template, **render(template, variables)})
        if name == "named_variables":
            cases[-1]["variables"] = variables
    for name, template in WHOLE.items():
        for which, variables in CONVERSATIONS.items():
            variables = {**variables, **SPECIAL}
            cases.append({"name": f"{name}/{which}", "template": name, "conversation": which, **render(template, variables)})
    golden = {
        "versions": VERSIONS,
        "now": NOW.isoformat(),
        "variables": short,
        "templates": WHOLE,
        "conversations": {name: {**variables, **SPECIAL} for name, variables in CONVERSATIONS.items()},
        "cases": cases,
    }
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    counts = {kind: sum(kind in case for case in cases) for kind in ("text", "refused", "fails")}
    print(f"{OUT}: {len(cases)} cases, {counts}")


if __name__ == "__main__":
    main()
