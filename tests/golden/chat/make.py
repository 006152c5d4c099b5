#!/usr/bin/env python3
"""Makes the expected outputs of the chat templates in this directory with the real Jinja2, set up as
transformers (4.57, utils/chat_template_utils.py) sets it up. Run it after changing a template, an
input or a construct; the tests in C read what it wrote and need no Python.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install jinja2==3.1.6 && /tmp/venv/bin/python make.py

The templates were written for these tests, in the constructs that the published templates of the
families they are named after use; none is a copy of a published file.

inputs.json      conversations, by name: the variables of a rendering
NAME.json        of NAME.jinja: the prompt for each input, or {"error": message}; the message is there
                 when the template itself refused the input
constructs.json  small templates, one construct each, over the variables VARIABLES below
"""
import datetime
import json
import pathlib

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
NOW = 1735787045  # 2025-01-02 03:04:05 UTC; test_chat.c has the same
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(lineno)

    def _body(self, caller):
        return caller()


class Refused(jinja2.exceptions.TemplateError):
    pass


def environment():
    def raise_exception(message):
        raise Refused(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def strftime_now(fmt):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(
            tzinfo=None).strftime(fmt)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


ENV = environment()


def render(template, variables):
    given = {"tools": None, "documents": None, "add_generation_prompt": False, **variables}
    try:
        return ENV.from_string(template).render(**given)
    except Refused as e:
        return {"error": e.message}
    except Exception:
        return {"error": None}


def tool(name, properties, required, description="Gets it & <more>"):
    return {"type": "function",
            "function": {"name": name, "description": description,
                         "parameters": {"type": "object", "properties": properties,
                                        "required": required}}}


TOOLS = [
    tool("get_weather", {"city": {"type": "string", "description": "The city"},
                         "unit": {"type": "string", "enum": ["c", "f"], "default": "c"}}, ["city"]),
    tool("search", {
        "words": {"type": "array", "items": {"type": "string"}, "description": "Wörter"},
        "limit": {"type": "integer", "nullable": True, "default": 10},
        "box": {"type": "object", "properties": {
            "corner": {"type": "array", "items": {"type": "number"}},
            "label": {"type": ["string", "null"]}}, "required": ["corner"]},
        "either": {"oneOf": [{"type": "string", "default": "é"}, {"type": "boolean"}]}}, ["words"]),
    tool("now", {}, []),
]


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, id_):
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


WEATHER = call("get_weather", {"city": "Zürich \"HB\"", "unit": "c"}, "call00001")
SEARCH = call("search", {"words": ["a", "b"], "limit": None, "box": {"corner": [1, 2.5]},
                         "deep": True}, "call00002")
CONVERSATIONS = {
    "one_turn": {"messages": [say("user", "Hello, who are you?")]},
    "system": {"messages": [say("system", "Be kind.\n"), say("user", " Hi "), say("assistant", "Yes?"),
                            say("user", "Bye")]},
    "thoughts": {"messages": [
        say("user", "1+1?"), say("assistant", "<think>\nAdd.\n</think>\n\n2"),
        say("user", "2+2?"), say("assistant", "4", reasoning_content="Add again.\n", thinking="Add.")]},
    "tools": {"tools": TOOLS, "messages": [
        say("system", "Use tools."), say("user", "Weather?"),
        say("assistant", None, tool_calls=[WEATHER]),
        say("tool", "{\"degrees\": 20}", tool_call_id="call00001"), say("assistant", "20 degrees."),
        say("user", "Search!"), say("assistant", "Searching.", tool_calls=[SEARCH, WEATHER]),
        say("tool", "first", tool_call_id="call00002"), say("tool", "second\n", tool_call_id="call00001")]},
    "tools_unused": {"tools": TOOLS[:1], "messages": [say("user", "Hello")]},
    "string_arguments": {"messages": [
        say("user", "Weather?"),
        say("assistant", None, tool_calls=[call("get_weather", "{\"city\": \"Bern\"}", "call00003")]),
        say("tool", "rain", tool_call_id="call00003")]},
    "parts": {"messages": [say("user", [{"type": "text", "text": "Look:"}, {"type": "image"},
                                        {"type": "text", "text": " well?"}])]},
    "documents": {"messages": [say("user", "What do they say?")],
                  "documents": [{"doc_id": 1, "text": "One.\r\nTwo. "}, {"doc_id": "b", "text": "Three"}],
                  "controls": {"citations": True, "length": "short"}},
    "out_of_turn": {"messages": [say("assistant", "I begin."), say("user", "Why?")]},
    "developer": {"messages": [say("developer", "Speak French."), say("user", "Hi")],
                  "reasoning_effort": "high", "builtin_tools": ["python", "browser"],
                  "model_identity": "You are somebody."},
    "no_thinking": {"messages": [say("user", "Quick!")], "enable_thinking": False, "thinking": False},
    "thinking": {"messages": [say("user", "Slow.")], "enable_thinking": True, "thinking": True},
    "unicode": {"messages": [say("system", "日本語で。"), say("user", "😀 tab\t\r\n\u2028<b>&'\"</b>"),
                             say("assistant", "ñandú"), say("user", "﷽")]},
    "no_messages": {"messages": []},
    "channel_tags": {"messages": [say("user", "q"), say("assistant", "<|channel|>final<|message|>a"),
                                  say("user", "r")]},
}

VARIABLES = {
    "i": 7, "neg": -3, "zero": 0, "f": 2.5, "big": 1e20, "small": 1e-7, "yes": True, "no": False,
    "nothing": None, "s": "Hello World", "empty": "", "padded": "  two  words\n", "u": "éÀ中😀ß",
    "quote": "it's \"so\" \\ \n\t\u0007\u200b", "html": "<a href='x'>&\"</a>",
    "l": [1, 2, 3], "words": ["b", "A", "c", "a"], "nested": [[1, 2], [3, 4]], "none_left": [],
    "d": {"x": 1, "Y": "two", "items": [1, {"k": None}], "z": {"deep": [{"v": 1}, {"v": 2}]}},
    "msgs": [{"role": "user", "content": "hi"},
             {"role": "assistant", "content": None, "n": 2, "calls": [{"name": "f"}]},
             {"role": "tool", "content": "r", "n": 1}],
    "mixed": [1, "1", 1.0, True, None, [1], {"a": 1}],
}

# A template a line.
CONSTRUCTS = r"""
plain text
{{ s }}
{{ i }} {{ neg }} {{ f }} {{ big }} {{ small }} {{ yes }} {{ no }} {{ nothing }} {{ 1e16 }} {{ 123456789.125 }} {{ 0.1 + 0.2 }}
{{ missing }}|{{ d.missing }}|{{ d['missing'] }}|{{ l[9] }}|{{ 'x' if no }}
{{ missing.more }}
{{ d.missing.more }}
{{ missing() }}
{{ missing + 1 }}
{{ missing == other_missing }} {{ missing == none }} {{ missing in l }} {{ 1 in missing }} {{ missing|length }} {{ not missing }}
{% for x in missing %}never{% else %}empty{% endfor %}
{{ l }} {{ d }} {{ (1,) }} {{ () }} {{ (1, 'a', none) }} {{ mixed }} {{ quote }} {{ [quote, u, '\x7f', 1e300, missing] }}
{{ 1, 2 }}
{{ [1, 'two', 3.0, [none], {'a': true},] }} {{ {'a': 1, 2: 'b', none: 3.5, 'a': 9} }} {{ {} }} {{ [] }}
{{ 1 + 2 * 3 - 4 }} {{ 7 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }}
{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1.0 * 3 }} {{ 4 / 2 }} {{ true + 1 }} {{ +i }} {{ -f }} {{ 1_000 }}
{{ 1 / 0 }}
{{ 1 // 0.0 }}
{{ 1 % 0 }}
{{ 'a' + 'b' }} {{ 'a' ~ 1 ~ none ~ [1] }} {{ 'ab' * 3 }} {{ [0] * 2 }} {{ l + [4] }} {{ (1,) + (2,) }} {{ 1 ~ 2 + 3 ~ 4 }}
{{ 'a' + 1 }}
{{ s + nothing }}
{{ l + (1,) }}
{{ 'one ' 'string' }} {{ "\n\t\\\'\"\x41\u00e9\U0001F600\101" }} {{ '\d\q' }}
{{ 1 == 1.0 }} {{ true == 1 }} {{ '1' == 1 }} {{ l == [1, 2, 3] }} {{ (1, 2) == [1, 2] }} {{ {'a': 1} == {'a': 1.0} }} {{ none == false }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ 'é' > 'z' }} {{ [1, 2] < [1, 3] }} {{ 2.5 >= 2 }} {{ 1 != 2 }} {{ 3 > 2 > 1 == 1 }}
{{ 1 < 'a' }}
{{ none < 1 }}
{{ yes and 'x' }} {{ no and 'x' }} {{ empty or 'y' }} {{ 'z' or 1/0 }} {{ not yes }} {{ not no and not empty }} {{ not not 1 }}
{{ 'a' if yes else 'b' }} {{ 'a' if no else 'b' if no else 'c' }} {{ ('x' if no) is defined }}
{{ 'ell' in s }} {{ 'x' not in s }} {{ 2 in l }} {{ 'x' in d }} {{ 'two' in d }} {{ 1 in (1, 2) }} {{ 3 in range(5) }} {{ '' in s }} {{ 'Y' in d.keys() }}
{{ 1 in s }}
{{ 1 in i }}
{{ l in d }}
{{ d.x }} {{ d['Y'] }} {{ d.z.deep[1].v }} {{ d.z['deep'][0]['v'] }} {{ nested[1][0] }} {{ l[-1] }} {{ s[0] }} {{ s[-1] }} {{ u[2] }} {{ u[-2] }} {{ l.1 }} {{ msgs[1].calls[0].name }}
{{ d['items'] }} {{ d.items is callable }} {{ msgs[0]['items'] is defined }} {{ msgs[0]['items']['type'] is defined }} {{ msgs[0].keys is string }}
{{ l[1:] }} {{ l[:-1] }} {{ l[::-1] }} {{ l[::2] }} {{ l[5:] }} {{ l[-2:] }} {{ l[2:0:-1] }} {{ s[:5] }} {{ s[6:] }} {{ u[1:3] }} {{ u[::-1] }} {{ (1, 2, 3)[1:] }} {{ range(10)[2:8:3]|list }} {{ l[none:2] }}
{{ i[1:] }}
{{ d[1:] }}
{{ l[::0] }}
{{ l['a':] }}
{% if i == 7 %}seven{% elif i == 8 %}eight{% else %}other{% endif %}
{% if no %}a{% elif yes %}b{% else %}c{% endif %}{% if none_left %}x{% endif %}{% if d %}y{% endif %}
{% for x in l %}{{ x }},{% endfor %}
{% for x in s[:3] %}{{ x }}.{% endfor %}{% for k in d %}{{ k }};{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}{% for a, b in nested %}{{ a + b }} {% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in l %}{% endfor %}
{% for a, b in [[1, 2, 3]] %}{% endfor %}
{% for x in i %}{% endfor %}
{% for x in none_left %}a{% else %}none{% endfor %}{% for x in l if x > 5 %}a{% else %}none{% endfor %}
{% for x in l if x != 2 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% endfor %}
{% for x in l %}{{ loop.index0 }}{{ loop.index }}{{ loop.revindex0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }} {% endfor %}
{% for x in l %}[{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}]{% endfor %}{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}
{% for x in l %}{{ loop.cycle('odd', 'even') }}{{ loop.changed(x // 2) }} {% endfor %}
{% for x in l %}{% for y in words %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}
{% for x in l %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}{% for x in l %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in [1] %}{% continue %}{% else %}else after continue{% endfor %}{% for x in [1] %}{% break %}{% else %}else after break{% endfor %}
{% set ns = namespace(stop=false) %}{% for x in l if not ns.stop %}{{ x }}{% if x == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}
{% for x in range(3) %}{{ x }}{% endfor %}{{ range(2, 5)|list }}{{ range(5, 0, -2)|list }}{{ range(0)|length }}{{ range(3) }}{{ range(1, 9, 2)[1] }}
{% set x = 1 %}{% set y, z = 2, 'c' %}{{ x }}{{ y }}{{ z }}{% set x = x + 1 %}{{ x }}
{% set x = 1 %}{% for y in l %}{{ x }}{% set x = y %}{{ x }}{% endfor %}{{ x }}
{% set x = 1 %}{% if yes %}{% set x = 2 %}{% endif %}{{ x }}{% if no %}{% set w = 2 %}{% endif %}{{ w is defined }}
{% set x %}block {{ i }}{% endset %}[{{ x }}]{% set x | upper | trim %} block {{ i }} {% endset %}[{{ x }}]
{% set ns = namespace(a=1, b='x') %}{% for x in l %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}{% set ns.c = 3 %}{{ ns.c }}{{ ns['a'] }}{{ ns }}
{% set d.x = 1 %}
{% set ns = namespace({'k': 1}, j=2) %}{{ ns.k }}{{ ns.j }}{{ ns is mapping }}
{% with a = 1, b = i %}{{ a }}{{ b }}{% set a = 2 %}{{ a }}{% endwith %}{{ a is defined }}
{% macro m(a, b=2, c='x') %}({{ a }}|{{ b }}|{{ c }}){% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(c=1, a=2) }}{{ m() }}{{ m(1)|upper }}{{ m('a') ~ m('b') }}
{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, b=2) }}{% macro v() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ v(1, 2, x=3) }}{{ m(*[5, 6]) }}{{ m(**{'a': 7}) }}
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(b=2) }}
{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}
{% macro down(n) %}{{ n }}{% if n > 0 %},{{ down(n - 1) }}{% endif %}{% endmacro %}{{ down(5) }}
{% macro tree(x) %}{% if x is mapping %}{ {%- for k, v in x.items() %}{{ k }}:{{ tree(v) }};{% endfor -%} }{% elif x is sequence and x is not string %}[{% for y in x %}{{ tree(y) }},{% endfor %}]{% else %}{{ x|tojson }}{% endif %}{% endmacro %}{{ tree(d) }}
{% set x = 1 %}{% macro m() %}{{ x }}{% set x = 5 %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}{{ x }}{% for x in [9] %}{{ m() }}{% endfor %}
{% macro m() %}{{ loop is defined }}{{ i }}{% endmacro %}{% for x in [1] %}{{ m() }}{{ loop is defined }}{% endfor %}
{% macro box(t) %}<{{ t }}>{{ caller('in') }}</{{ t }}>{% endmacro %}{% call(x) box('b') %}{{ x }} body {{ i }}{% endcall %}
{% filter upper %}text {{ s }}{% endfilter %}{% filter replace('a', 'b') | trim %} banana {% endfilter %}
{% generation %}inside {{ i }}{% set g = 1 %}{% endgeneration %}{{ g is defined }}
{% raw %}{{ not run }} {% nor this %} {# nor #}{% endraw %}
{%- raw -%}  x  {%- endraw -%}  y
a {# comment #} b {#- trimmed -#} c
a {{- s -}} b {{ s }}  c {%- if yes -%} d {%- endif -%} e
x {% if yes %}y{% endif %} {{ '{{' }} {{ "%}" }} {{ {'a': {'b': 1}}['a']['b'] }}
{{ missing is defined }} {{ s is defined }} {{ missing is undefined }} {{ nothing is none }} {{ s is string }} {{ i is number }} {{ f is number }} {{ yes is number }} {{ i is integer }} {{ yes is integer }} {{ f is float }} {{ yes is boolean }} {{ d is mapping }} {{ l is mapping }}
{{ s is iterable }} {{ i is iterable }} {{ d is iterable }} {{ missing is iterable }} {{ l is sequence }} {{ s is sequence }} {{ d is sequence }} {{ i is sequence }} {{ range(2) is sequence }} {{ (d|items) is sequence }} {{ yes is true }} {{ 1 is true }} {{ no is false }} {{ 0 is false }}
{{ i is odd }} {{ i is even }} {{ i is divisibleby 7 }} {{ i is divisibleby(2) }} {{ i is equalto 7 }} {{ i is eq(7) }} {{ i is ne 7 }} {{ i is gt 6 }} {{ i is lt 6 }} {{ i is ge 7 }} {{ i is le 7 }} {{ i is in l }} {{ 2 is in(l) }} {{ nothing is sameas none }} {{ s is not none }} {{ s is lower }} {{ 'ab' is lower }} {{ range is callable }}
{{ padded|trim }}| {{ 'xxaxx'|trim('x') }} {{ s|upper }} {{ s|lower }} {{ 'heLLO wORLD-foo (bar'|title }} {{ 'heLLO'|capitalize }} {{ u|upper }} {{ u|lower }} {{ i|string + 'x' }} {{ i|upper }}
{{ l|length }} {{ s|length }} {{ u|length }} {{ d|count }} {{ d|length }}
{{ i|length }}
{{ l|join }} {{ l|join(', ') }} {{ msgs|join('-', attribute='role') }} {{ s|join('.') }} {{ [none, 1.5, 'a']|join('|') }} {{ ''|join }}
{{ d|items|list }} {{ missing|items|list }} {{ d.keys()|list }} {{ d.values()|list }} {{ d.items()|list|length }} {{ d.keys() }} {{ d.items()|length }}
{{ missing|default('d') }} {{ empty|default('d') }} {{ empty|default('d', true) }} {{ nothing|default('d') }} {{ nothing|default('d', boolean=true) }} {{ missing|default }} {{ missing|d(1) }} {{ d.missing|default(l) }}
{{ msgs|map(attribute='role')|join(',') }} {{ words|map('upper')|list }} {{ msgs|map(attribute='n', default=0)|list }} {{ msgs[1:2]|map(attribute='calls.0.name')|list }} {{ nested|map('length')|list }} {{ words|map('replace', 'a', 'o')|join }} {{ nested|map(attribute=0)|list }} {{ nested|map(attribute='1')|list }}
{{ msgs|selectattr('n')|map(attribute='role')|list }} {{ msgs|selectattr('role', 'equalto', 'user')|list|length }} {{ msgs|selectattr('content', 'none')|list|length }} {{ msgs|rejectattr('role', 'in', ['user', 'tool'])|map(attribute='role')|first }} {{ msgs|selectattr('role', '==', 'tool')|first }} {{ mixed|select('string')|list }} {{ l|select('odd')|list }} {{ l|reject('gt', 1)|list }} {{ mixed|select|list }} {{ msgs|selectattr('n', 'defined')|list|length }}
{{ 'non-empty' if none_left|selectattr('x') else 'empty' }} {{ nothing|selectattr('x')|list }}
{{ s|list }} {{ d|list }} {{ l|first }} {{ l|last }} {{ none_left|first is defined }} {{ s|first }}{{ s|last }} {{ l|reverse|list }} {{ s|reverse }} {{ words|unique|list }} {{ [1, 1.0, '1', true]|unique|list }}
{{ words|sort }} {{ words|sort(case_sensitive=true) }} {{ l|sort(reverse=true) }} {{ msgs|sort(attribute='role')|map(attribute='role')|list }} {{ d|dictsort }} {{ {'b': 1, 'A': 2}|dictsort(true) }} {{ {'b': 1, 'A': 2}|dictsort(by='value', reverse=true) }}
{{ mixed|sort }}
{{ l|sum }} {{ nested|sum(start=[]) }} {{ msgs|selectattr('n')|sum(attribute='n') }} {{ l|min }} {{ l|max }} {{ words|max }} {{ none_left|max is defined }}
{{ '42'|int }} {{ ' -7 '|int }} {{ '3.9'|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ 3.99|int }} {{ nothing|int }} {{ true|int }} {{ '1e3'|int }} {{ '2.5'|float }} {{ 'x'|float }} {{ 'x'|float(1.5) }} {{ i|float }} {{ neg|abs }} {{ (-2.5)|abs }} {{ 2.675|round(2) }} {{ 2.5|round }} {{ 3.5|round }} {{ 7|round }} {{ 2.31|round(1, 'ceil') }} {{ 2.39|round(1, 'floor') }}
{{ s|replace('o', '0') }} {{ s|replace('o', '0', 1) }} {{ 'aaa'|replace('', '-') }} {{ i|replace(7, 8) }} {{ html|safe }} {{ html|escape }} {{ ('<b>'|safe) + '<c>' }} {{ '<c>' + ('<b>'|safe) }} {{ ('<b>'|safe) ~ '<c>' }} {{ ('<b>'|escape)|e }}
{{ 'a\n\nb\nc'|indent }}|{{ 'a\n\nb'|indent(2, true) }}|{{ 'a\n\nb'|indent(width='> ', first=true, blank=true) }}|{{ 'a\n'|indent }}
{{ d|tojson }} {{ html|tojson }} {{ u|tojson }} {{ quote|tojson }} {{ u|tojson(ensure_ascii=true) }} {{ mixed|tojson }} {{ [big, small, 1.0]|tojson }} {{ (1, 2)|tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 6}|tojson }}
{{ d|tojson(indent=2) }} {{ []|tojson(indent=2) }} {{ {}|tojson(indent=2) }} {{ d|tojson(indent='--') }} {{ [1, [2]]|tojson(indent=0) }}
{{ d|tojson(separators=(',', ':')) }} {{ {'b': 1, 'a': {'d': 1, 'c': 2}}|tojson(sort_keys=true) }} {{ l|tojson(indent=1, separators=(';', '=')) }} {{ d|tojson(False, 4) }}
{{ missing|tojson }}
{{ range(3)|tojson }}
{{ [missing]|tojson }}
{{ padded.strip() }}| {{ padded.lstrip() }}| {{ padded.rstrip() }}| {{ 'xyaxy'.strip('xy') }} {{ 'xya'.lstrip('yx') }} {{ 'a\n\n'.rstrip('\n') }}| {{ '\u3000é\u00a0'.strip() }} {{ u.strip('ß😀') }}
{{ 'a,b,,c'.split(',') }} {{ padded.split() }} {{ 'a b c'.split(' ', 1) }} {{ ' a  b c '.split(none, 1) }} {{ 'a b c'.rsplit(' ', 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a</think>b'.split('</think>')[-1] }} {{ 'x'.split('x') }} {{ ' a b '.rsplit(none, 1) }} {{ 'a b c'.split(sep=' ', maxsplit=1) }}
{{ s.split('') }}
{{ s.startswith('Hell') }} {{ s.endswith('ld') }} {{ s.startswith(('x', 'H')) }} {{ s.endswith('x') }} {{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ u.replace('', '.') }} {{ s.upper() }} {{ s.lower() }} {{ 'it\'s a dog'.title() }} {{ 'aBC'.capitalize() }} {{ s.find('o') }} {{ s.rfind('o') }} {{ s.find('x') }} {{ u.find('😀') }} {{ s.count('l') }} {{ s.index('W') }} {{ 'a\nb\r\nc'.splitlines() }} {{ '-'.join(words) }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ s.removeprefix('Hello ') }} {{ s.removesuffix('World') }}
{{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'aé'.isalpha() }} {{ ' \t'.isspace() }} {{ 'a1'.isalnum() }} {{ 'AB1'.isupper() }} {{ '1'.islower() }}
{{ '{} {} {{}}'.format(1, 'b') }} {{ '{1}{0}{k}'.format(1, 2, k=3) }} {{ '%s is %d, %5.2f|%-4s|%04d|%x|%%' % ('a', 5, 2.5, 'x', 42, 255) }} {{ '%s' % l }} {{ '%(k)s' % {'k': 1} }} {{ '%r' % quote }} {{ '%s %s'|format(1, 2) }} {{ '%+d' % 5 }} {{ '%.2s' % 'éàx' }}
{{ '%d' % 'x' }}
{{ '%s' % (1, 2) }}
{{ 'x' % 1 }}
{{ '-'.join([1]) }}
{{ d.get('x') }} {{ d.get('none') }} {{ d.get('none', 5) }} {{ d.copy() == d }} {{ dict(a=1, b=2) }} {{ dict({'x': 1}, y=2) }} {{ l.index(2) }} {{ l.count(1) }}
{{ l.append(1) }}
{{ d.pop('x') }}
{{ d.update({}) }}
{{ l.append is defined }} {{ s.__class__ is defined }} {{ ''['upper']() }}
{{ s.missing() }}
{{ i() }}
{{ raise_exception('stop') }}
{{ strftime_now('%Y-%m-%d %H:%M:%S %d %b %B %A %j %y %I %p %e %-d %%') }}
{{ [1, 2][::-1]|first ~ -1|abs }} {{ (1 if no else 2)|string }} {{ -(l|length) + 5 }} {{ not s is string }} {{ i|string|length }} {{ l|length > 2 and d is mapping }} {{ 'a' ~ 'b'|upper }} {{ l[0] if l else none }}
{{ 'x' if 'a' in words and words|length == 4 else 'y' }} {{ words[1:]|join(',') if words|length > 1 else '' }}
{%- for m in msgs %}{%- if m['role'] == 'user' -%}U{%- elif m.role == 'tool' and m.n is defined -%}T{%- else -%}A{%- endif -%}{%- if not loop.last %}-{% endif %}{%- endfor %}
{% for m in msgs[::-1] %}{% set idx = msgs|length - 1 - loop.index0 %}{{ idx }}{{ m.role[0] }} {% endfor %}
"""


MULTILINE = [
    "{{ 'a\\\nb' }}",
    "first\r\nsecond\rthird {{ s }}\n",
    "ends with two line ends\n\n",
    """{% if yes %}
  line
{% endif %}
tail""",
    """  {% if yes %}
indented tag
  {% endif %}  after""",
    """  {%+ if yes %}
kept indent
  {% endif +%}
kept line end""",
    """one
  {# a comment alone on its line #}
two
\t {#- closer #}
three {{ s }}
four
 {{- s -}}
 five""",
    """{% for x in l %}
  {{ x }}
  {% if x == 2 %}
  two
  {% else -%}
  other
  {% endif %}
{% endfor %}
{% raw %}
  {{ raw }}
  {% endraw %}
end""",
    """{%- for x in l -%}
  {{- x -}}
{%- endfor -%}
""",
    """{%-
  set long = [
    1,
    2
  ]
-%}
{{ long
   | join(
     '-'
   ) }}""",
]


def constructs():
    return CONSTRUCTS.strip("\n").split("\n") + MULTILINE


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, indent=1)
    (HERE / name).write_text(text + "\n", encoding="utf-8")


def main():
    inputs = {}
    for name, variables in CONVERSATIONS.items():
        inputs[name] = {**SPECIAL, **variables, "add_generation_prompt": True}
        inputs[name + "_closed"] = {**SPECIAL, **variables}
    write("inputs.json", inputs)
    for path in sorted(HERE.glob("*.jinja")):
        template = path.read_text(encoding="utf-8")
        write(path.stem + ".json", {name: render(template, v) for name, v in inputs.items()})
    write("constructs.json", {"variables": VARIABLES,
                              "cases": [{"template": t, "expected": render(t, VARIABLES)}
                                        for t in constructs()]})


if __name__ == "__main__":
    main()
