"""Writes expressions and small templates drawn at random, each with what jinja2 makes of it, for jinja_expressions_test.cpp.

make_jinja_expressions.py COUNT SEED > OUT.json. Needs jinja2 (pip). The environment is set up as transformers sets up
that of its chat templates. Expressions that Python evaluates to an error have the key "error" in place of "text".
"""
import datetime
import json
import random
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

VARIABLES = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Hi there\n"},
        {"role": "assistant", "content": "Hello é. ", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1, "y": [1.5, None]}}}]},
        {"role": "user", "content": "Bye"},
    ],
    "tools": [{"type": "function", "function": {"name": "get", "description": "It's <fine> & \"good\"", "parameters": {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer", "enum": [1, 2]}}}}}],
    "empty": [], "nothing": None, "yes": True, "no": False, "n": 7, "m": -3, "big": 18446744073709551615, "huge": -123456789012345678901234567890,
    "f": 2.5, "g": -0.1, "e": 1e20, "tiny": 1.5e-7,
    "s": "The quick brown fox", "t": "añb ß ǆ Σς", "u": "  pad\t", "v": "one\ntwo\r\nthree\u2028four\x85five\x0bsix\x1cseven\n", "w": "a,b,,c", "q": "it's \"q\"\\\n\x7f\u200b\U0001f600", "z": "", "digits": "0042",
    "numbers": [3, 1, 2, 10, -5], "floats": [1.5, 2.0, 0.1], "words": ["b", "A", "c", "a", "B"], "nested": [[1, 2], [3, [4, 5]], []],
    "mixed": [1, "a", None, True, 2.5], "rows": [{"k": "x", "v": 2, "d": {"n": 1}}, {"k": "Y", "v": 1, "d": {"n": 3}}, {"k": "x", "v": 3, "d": {"n": 2}}],
    "table": {"b": 1, "A": 3, "c": 2}, "deep": {"a": {"b": {"c": [1, {"d": "x"}]}}, "list": [1, 2], "items": 5},
}
DATE = datetime.datetime(2026, 1, 31)

TEXTS = ["s", "t", "u", "v", "w", "q", "z", "digits", "'abc'", "'Hello World'", "\"it's\"", "'x-y z_w'", "'ÀÉ ok'", "'%d%%'", "messages[1].content"]
NUMBERS = ["n", "m", "f", "g", "e", "tiny", "0", "1", "2", "3", "-1", "10", "255", "1.0", "0.5", "2.675", "1e3", "1_000", "yes", "no"]
INTEGERS = ["n", "m", "0", "1", "2", "3", "-1", "-2", "5", "10", "100", "yes"]
LISTS = ["numbers", "floats", "words", "nested", "mixed", "empty", "[1, 2, 3]", "(1, 'a')", "(1,)", "()", "[]", "range(5)", "range(2, 20, 3)", "range(5, 0, -2)", "['x', 'y']", "messages", "s.split()", "rows", "[1, [2, (3, 4)]]", "table.items() | list", "table.keys() | list"]
DICTS = ["table", "deep", "{}", "{'a': 1, 'b': [1, 2]}", "{1: 'x', 'y': none}", "messages[0]", "rows[0]", "dict(a=1, b='c')", "dict([('x', 1), ('y', 2)])", "{'a': 1, 'a': 2}", "{(1, 2): 'p', 2.0: 3}", "tools[0].function"]
OTHERS = ["none", "true", "false", "missing", "messages[0].missing", "big", "huge", "nothing"]
SHORT = ["'a'", "'o'", "' '", "', '", "''", "'é'", "'\\n'", "'Hello'", "'b'", "'the'"]

FILLS = ["", ', "*"', ", 'é'"]
JOINS = ["", '(", ")', "(1)", '(d="-")']
STYLES = ["indent=2", "ensure_ascii=true", "sort_keys=true", 'separators=(",", ":")', "indent=0", 'indent="--"', "true", "indent=1, sort_keys=true"]
ROUNDINGS = ["abs", "round", "round(1)", "round(2)", "int", "float", 'round(0, "floor")', 'round(1, "ceil")', "round(-1)", "int(default=3)"]
JOINED = ['words', 's.split()', 'w', 'table', '("a", "b")']
ITEMS = ["1", "2", '"a"']
SPLITS = ["", "','", "' '", "none, 1", "'o', 1", "none, 0", "maxsplit=2", "'a', -1"]
PARTS = ['" "', '"o"', '"zz"']
DICTSORTS = ["dictsort", "list", "items | list", "dictsort(true)", 'dictsort(by="value")', "dictsort(reverse=true)", 'dictsort(false, "key", true)']
ROW_LISTS = ['map(attribute="k")', 'map(attribute="d.n")', 'selectattr("v", "gt", 1)', 'selectattr("k", "equalto", "x")', 'rejectattr("v", "odd")', 'selectattr("d.n")', 'rejectattr("missing")', 'unique(attribute="k")', 'map(attribute="zz", default=0)', 'selectattr("v", "in", [1, 3])']
ROW_SORTS = ['sort(attribute="v")', 'sort(attribute="k,v")', 'sort(attribute="k", reverse=true)', 'groupby("k")', 'groupby("k", case_sensitive=true)', 'groupby("zz", default=1)', 'sort(attribute="d.n")']
ROW_ONES = ["first", "last", 'max(attribute="v")', 'min(attribute="v")']
KEYS = ["1", "2.5", "none", "yes", "'z'", "'role'", "'a'"]
BEGINS = SHORT + ['("T", "a")', '"T", 1', '"", 100']
NAMES = ["'upper'", "'nope'", "'in'"]
CALLS = ["1", "1, 2", "1, 2, 3", "a=1", "1, c=3", "b=2", "*[1, 2]", "1, **table"]
FILTERS = ["upper", "trim", 'replace("a", "b")', "upper | trim", "indent(2)"]


class Draw:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def one(self, choices):
        return self.random.choice(choices)

    def any(self, depth=0):
        return self.one([self.text, self.number, self.list, self.dict, lambda d: self.one(OTHERS)])(depth)

    def text(self, depth=0):
        if depth > 2 or self.random.random() < 0.35:
            return self.one(TEXTS)
        d = depth + 1
        t, i = lambda: self.text(d), lambda: self.one(INTEGERS)
        return self.one([
            lambda: f"({t()} ~ {self.any(d)})", lambda: f"({t()} + {t()})", lambda: f"({t()} * {self.one(['2', '0', '-1', 'yes'])})",
            lambda: f"({t()})[{self.slice()}]", lambda: f"({t()})[{i()}]",
            lambda: f"({t()})." + self.one(["upper()", "lower()", "title()", "capitalize()", "strip()", "lstrip()", "rstrip()", "swapcase()", "strip('a ')", "rstrip('d\\n')", "lstrip(' T')", "expandtabs(4)", "casefold()"]),
            lambda: f"({t()}).replace({self.one(SHORT)}, {self.one(SHORT)}{self.one(['', ', 1', ', -1', ', 0'])})",
            lambda: f"({t()}).{self.one(['center', 'ljust', 'rjust'])}({self.one(['0', '10', '25'])}{self.one(FILLS)})",
            lambda: f"({t()}).zfill({self.one(['3', '8', '30'])})", lambda: f"({self.one(SHORT)}).join({self.one(JOINED)})",
            lambda: f"({t()}).{self.one(['removeprefix', 'removesuffix'])}({self.one(SHORT)})",
            lambda: f"({t()}) | " + self.one(["upper", "lower", "title", "capitalize", "trim", "trim('aT ')", "string", "indent", "indent(2)", "indent(2, true)", "indent('> ', first=true, blank=true)", "truncate(9)", "truncate(8, true)", "truncate(9, false, '..', 0)", "center(20)", "replace('o', '0')", "replace('o', '00', 1)", "reverse", "safe", "urlencode", "default('D')", "d('D', true)", "first", "last", "format(1)", "tojson"]),
            lambda: f"({self.any(d)}) | string", lambda: f"({self.any(d)}) | tojson", lambda: f"({self.list(d)}) | join{self.one(JOINS)}",
            lambda: f"({self.any(d)}) | tojson({self.one(STYLES)})",
            self.percent, self.formatted,
        ])()

    def percent(self):
        kind = self.one(["d", "i", "5d", "-5d|", "05d", "+d", "x", "#X", "o", "s", "10s|", "-10s|", ".2s", "r", "f", ".1f", "08.3f", "+.2e", "g", ".3g", "G", "#o", " d", "c", "5.1f", ".0f", "a", ".4d", "#x"])
        value = self.one(TEXTS[:8] + ["numbers", "(1, 2)", "nothing"]) if kind[-1] in "sra" or kind.endswith("s|") else "'x'" if kind == "c" else self.one([n for n in NUMBERS if n != "e"])
        return self.one([lambda: f"('%{kind}' % ({value},))", lambda: f"('<%{kind}>' | format({value}))", lambda: f"('%s and %{kind} %%' % ({self.any(2)}, {value}))", lambda: f"('%(k){kind}' % {{'k': {value}}})"])()

    def formatted(self):
        kind = self.one(["", ":>10", ":<10", ":^11", ":*^9", "!r", "!s:>12", ":é>8"])
        number = self.one(["", ":d", ":5d", ":05d", ":+d", ":,", ":x", ":#x", ":b", ":.2f", ":10.3f", ":e", ":.3g", ":%", ":.1%", ":_", ":<8", ":^+9.2f", ":g", ":.3", ":08.2f", ":n", ":,.2f", ":o", ":X"])
        whole = number.endswith(("d", "x", "b", "o", "X"))
        value = self.one(INTEGERS) if whole else self.one(NUMBERS)
        return self.one([lambda: f"'{{{kind}}}|'.format({self.one(TEXTS)})", lambda: f"'{{0{number}}}'.format({value})", lambda: f"'{{a{number}}} {{0}}'.format({self.any(2)}, a={value})",
                         lambda: "'{0[0]} {0[1]}'.format(numbers)", lambda: "'{a[b]} {{x}}'.format(a={'b': 3})", lambda: f"'{{:{{w}}}}|'.format({self.one(TEXTS)}, w=12)", lambda: f"'{{}} {{}}'.format({self.any(2)}, {self.any(2)})", lambda: f"'{{a}}'.format_map({{'a': {value}}})"])()

    def number(self, depth=0):
        if depth > 2 or self.random.random() < 0.3:
            return self.one(NUMBERS)
        d = depth + 1
        x = lambda: self.number(d)
        return self.one([
            lambda: f"({x()} {self.one(['+', '-', '*', '/', '//', '%'])} {x()})", lambda: f"({x()} ** {self.one(['2', '0', '3', '-1', '0.5'])})", lambda: f"(-{self.one(['n', 'f', '(1 + 2)'])})",
            lambda: f"({x()}) | {self.one(ROUNDINGS)}",
            lambda: f"({self.text(d)}) | {self.one(['length', 'count', 'wordcount', 'int', 'float', 'int(9)', 'int(0, 16)', 'float(1.5)', 'int(default=-1)'])}",
            lambda: f"({self.list(d)}) | {self.one(['length', 'sum', 'max', 'min', 'first', 'last', 'count'])}", lambda: f"{self.one(['numbers', 'floats'])} | {self.one(['sum', 'max', 'min', 'sum(start=10)', 'first', 'last'])}",
            lambda: f"rows | sum(attribute='v'{self.one(['', ', start=1.5'])})", lambda: f"({self.text(d)}).{self.one(['find', 'rfind', 'count'])}({self.one(SHORT)}{self.one(['', ', 1', ', 2, 6', ', -4', ', 0, -1'])})",
            lambda: f"('12' | int) + {x()}", lambda: f"({self.dict(d)}) | length", lambda: f"({self.one(['numbers', 'words', '(1, 2, 1)'])}).{self.one(['index', 'count'])}({self.one(ITEMS)})",
            lambda: f"'{self.one(['12', ' 12 ', '1.9', '-3', '1e3', 'x', '0x1f', '1_0', '', 'inf', 'nan', '١'])}' | {self.one(['int', 'float', 'int(5)'])}",
            lambda: self.one(["0x1F", "0b101", "0o17", "1_0.5", "12345678901234567890123"]), lambda: f"{x()} if {self.condition(d)} else {x()}",
        ])()

    def slice(self):
        part = lambda: self.one(["", "", "0", "1", "2", "-1", "-2", "3", "100", "-100", "none"])
        step = self.one(["", "", ":", ":1", ":2", ":-1", ":-2", ":3"])
        return f"{part()}:{part()}{step}"

    def list(self, depth=0):
        if depth > 2 or self.random.random() < 0.3:
            return self.one(LISTS)
        d = depth + 1
        l = lambda: self.list(d)
        filters = ["list", "sort", "sort(reverse=true)", "sort(case_sensitive=true)", "reverse | list", "unique | list", "map('string') | list", "map('upper') | list", "select | list", "reject | list", "select('string') | list", "select('number') | list", "reject('none') | list", "batch(2) | list", "batch(3, 'z') | list", "slice(2) | list", "slice(3, 0) | list", "map('length') | list", "select('gt', 1) | list", "select('in', [1, 'a']) | list", "map('default', 'x') | list", "reject('defined') | list", "unique(true) | list", "map('int') | list", "map('trim') | list"]
        return self.one([
            lambda: f"({l()}) | {self.one(filters)}", lambda: f"({l()})[{self.slice()}]", lambda: f"({l()} + {l()})", lambda: f"({l()} * {self.one(['2', '0'])})",
            lambda: f"[{self.any(d)}, {self.any(d)}]", lambda: f"({self.any(d)}, {self.any(d)})", lambda: f"({self.any(d)},)",
            lambda: f"({self.text(d)}).{self.one(['split', 'rsplit'])}({self.one(SPLITS)})",
            lambda: f"({self.text(d)}).splitlines({self.one(['', 'true', 'keepends=true'])})", lambda: f"({self.text(d)}).{self.one(['partition', 'rpartition'])}({self.one(PARTS)})",
            lambda: f"({self.text(d)}) | list", lambda: f"({self.dict(d)}) | {self.one(DICTSORTS)}",
            lambda: f"({self.dict(d)}).{self.one(['items()', 'keys()', 'values()'])} | list", lambda: f"rows | {self.one(ROW_LISTS)} | list",
            lambda: f"rows | {self.one(ROW_SORTS)}",
            lambda: f"{l()} if {self.condition(d)} else {l()}", lambda: "messages | map(attribute='role') | list", lambda: "messages | selectattr('tool_calls', 'defined') | list", lambda: "rows | map(attribute='v') | map('string') | map('indent', 2, true) | list",
        ])()

    def dict(self, depth=0):
        if depth > 2 or self.random.random() < 0.6:
            return self.one(DICTS)
        d = depth + 1
        return self.one([lambda: f"{{'k': {self.any(d)}, {self.one(KEYS)}: {self.any(d)}}}", lambda: f"dict(({self.dict(d)}), q={self.any(d)})", lambda: f"rows | {self.one(ROW_ONES)}", lambda: "deep.a.b", lambda: f"({self.dict(d)}).copy()"])()

    def condition(self, depth=0):
        if depth > 3 or self.random.random() < 0.1:
            return self.one(["yes", "no", "true", "n > 3", "missing", "empty"])
        d = depth + 1
        c = lambda: self.condition(d)
        tests = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence", "iterable", "callable", "true", "false", "lower", "upper"]
        return self.one([
            lambda: f"({self.any(d)}) is {self.one(['', 'not '])}{self.one(tests)}", lambda: f"({self.number(d)} {self.one(['<', '<=', '>', '>=', '==', '!='])} {self.number(d)})",
            lambda: f"({self.any(d)} {self.one(['==', '!='])} {self.any(d)})", lambda: f"({self.number(d)} < {self.number(d)} <= {self.number(d)})", lambda: f"({self.any(d)} {self.one(['in', 'not in'])} {self.list(d)})",
            lambda: f"({self.one(SHORT)} {self.one(['in', 'not in'])} {self.text(d)})", lambda: f"({self.one(KEYS)} in {self.dict(d)})", lambda: f"({self.text(d)} < {self.text(d)})", lambda: f"({self.list(d)} < {self.list(d)})",
            lambda: f"not {c()}", lambda: f"({c()} and {c()})", lambda: f"({c()} or {c()})", lambda: f"({self.text(d)}).{self.one(['isdigit', 'isalpha', 'isalnum', 'isspace', 'islower', 'isupper', 'istitle', 'isnumeric', 'isdecimal', 'isascii', 'isprintable'])}()",
            lambda: f"({self.text(d)}).{self.one(['startswith', 'endswith'])}({self.one(BEGINS)})", lambda: f"({self.one(INTEGERS)}) is {self.one(['odd', 'even', 'divisibleby 3', 'divisibleby(2)', 'gt 2', 'lt(3)', 'eq 7', 'ne 1', 'in [1, 7]', 'sameas true', 'ge 3', 'le 3'])}",
            lambda: f"({self.any(d)} and {self.any(d)})", lambda: f"({self.any(d)} or {self.any(d)})", lambda: f"({self.one(NAMES)} is {self.one(['filter', 'test'])})",
        ])()

    def expression(self):
        made = self.one([self.any, self.any, self.condition, self.text, self.list, self.number])(0)
        return self.one([lambda: made, lambda: made, lambda: made, lambda: f"{made} if {self.condition(2)}", lambda: f"({made}) | {self.one(['default(1)', 'tojson', 'list', 'length', 'string'])}"])()

    def template(self):
        if self.random.random() < 0.75:
            return "{{ " + self.expression() + " }}"
        e, l, c, t = lambda: self.any(2), lambda: self.list(1), lambda: self.condition(2), lambda: self.text(2)
        mark = lambda: self.one(["", "", "-", "+"])
        loop = self.one(["loop.index", "loop.index0", "loop.revindex", "loop.revindex0", "loop.first", "loop.last", "loop.length", "loop.depth", "loop.depth0", "loop.previtem", "loop.nextitem", "loop.cycle('a', 'b')", "loop.changed(x)", "loop", "loop.missing"])
        return self.one([
            lambda: f"{{% for x in {l()} %}}{{{{ x }}}}:{{{{ {loop} }}}};{{% else %}}none{{% endfor %}}",
            lambda: f"{{% for x in {l()} if {c()} %}}\n  {{%{mark()} if {c()} {mark()}%}} {{{{ x }}}} {{%{mark()} endif {mark()}%}}\n{{{{ {loop} }}}}{{% endfor %}}\n",
            lambda: f"{{% for k, v in ({self.dict(1)}).items() %}}{{{{ k }}}}={{{{ v }}}},{{% endfor %}}",
            lambda: f"{{% for k, v in ({self.dict(1)}) | dictsort %}}{{{{ k ~ v }}}}{{{{ {loop.replace('x)', 'k)')} }}}}{{% endfor %}}",
            lambda: f"{{% set x = {e()} %}}{{{{ x }}}}{{% set x %}}\n <{{{{ {t()} }}}}> {{% endset %}}[{{{{ x }}}}]",
            lambda: f"{{% set a, b = {e()}, {e()} %}}{{{{ (b, a) }}}}",
            lambda: f"{{% set ns = namespace(c=0, t='') %}}{{% for x in {l()} %}}{{% set ns.c = ns.c + 1 %}}{{% set ns.t = ns.t ~ x %}}{{% endfor %}}{{{{ ns.c }}}} {{{{ ns.t }}}}",
            lambda: f"{{% macro m(a, b={e()}) %}}({{{{ a }}}}|{{{{ b }}}}|{{{{ varargs }}}}|{{{{ kwargs }}}}){{% endmacro %}}{{{{ m({self.one(CALLS)}) }}}}",
            lambda: f"{{% macro m(a) %}}{{{{ caller({self.one(['', 'a', '1, 2'])}) }}}}{{% endmacro %}}{{% call{self.one(['', '(x)', '(x, y=3)'])} m({e()}) %}}<{{{{ x }}}}{{{{ y }}}}>{{% endcall %}}",
            lambda: f"{{% filter {self.one(FILTERS)} %}} {{{{ {t()} }}}} {{% endfilter %}}",
            lambda: f"{{% for x in {l()} %}}{{% if {c()} %}}{{% {self.one(['break', 'continue'])} %}}{{% endif %}}{{{{ x }}}}{{% endfor %}}.",
            lambda: f"{{% for a, b in [(1, 2), (3, {e()})] recursive %}}{{{{ a }}}}{{{{ loop.depth }}}}{{{{ loop([(5, 6)]) if a == 1 and loop.depth == 1 }}}}{{% endfor %}}",
            lambda: f"{{% with a = {e()}, b = 2 %}}{{{{ a }}}}{{{{ b }}}}{{% endwith %}}{{{{ a }}}}",
            lambda: f" {{%{mark()} raw {self.one(['', '-'])}%}} {{{{ x }}}} {{% if %}} {{%{mark()} endraw {mark()}%}} \n z",
            lambda: f"a \n  {{#{mark()} c {mark()}#}} \n {{{{{self.one(['', '-'])} {t()} {self.one(['', '-'])}}}}} \n\n b",
            lambda: f"  {{%{mark()} if {c()} {mark()}%}}  \n yes\n  {{%{mark()} elif {c()} {mark()}%}}\n maybe \n{{%{mark()} else {mark()}%}} \n no {{%{mark()} endif {mark()}%}} \n.",
            lambda: f"{{% for (a, b), c in [((1, {e()}), 3)] %}}{{{{ a }}}}{{{{ b }}}}{{{{ c }}}}{{% endfor %}}{{% for x in missing %}}{{% else %}}E{{% endfor %}}",
            lambda: f"{{% set g = {l()} | map('string') %}}{{{{ g | list }}}}{{{{ g | list }}}}{{{{ g is iterable }}}}{{{{ g is sequence }}}}",
            lambda: f"{{% for g in rows | groupby('{self.one(['k', 'v'])}') %}}{{{{ g.grouper }}}}={{{{ g.list | map(attribute='v') | list }}}}{{{{ g }}}};{{% endfor %}}",
            lambda: f"{{% for x in {l()} %}}{{% for y in {l()} %}}{{{{ loop.index }}}}{{% set x = y %}}{{% endfor %}}{{{{ x }}}}{{% endfor %}}",
        ])()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda format: DATE.strftime(format)
    return made


def result(made, template):
    try:
        text = made.from_string(template).render(**json.loads(json.dumps(VARIABLES)))
        text.encode()
        # What has an address, and a type's name, is no text that another program writes.
        return {"template": template, "text": text} if " at 0x" not in text and "<class" not in text and "<built-in" not in text else None
    except RecursionError:
        return None
    except Exception as error:
        return {"template": template, "error": f"{type(error).__name__}: {error}"[:200]}


def main():
    count, draw, made = int(sys.argv[1]), Draw(int(sys.argv[2])), environment()
    templates = []
    while len(templates) < count:
        template = draw.template()
        if len(template) < 400 and (one := result(made, template)):
            templates.append(one)
    lines = ",\n".join(json.dumps(one, ensure_ascii=True) for one in templates)
    print(f'{{"jinja2": "{jinja2.__version__}", "variables": {json.dumps(VARIABLES)}, "templates": [\n{lines}\n]}}')


if __name__ == "__main__":
    main()
