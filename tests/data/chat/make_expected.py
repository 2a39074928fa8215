"""Writes tests/fixtures/chat_templates.json: what transformers makes of conversations, for chat_template_test.cpp.

make_expected.py FOLDER OUT: FOLDER holds chat_templates/*.jinja and tokenizers/*/tokenizer.json, as makers of models
publish them. Needs transformers and jinja2 (pip). Ids are kept as their number and a checksum (FNV-1a of 32-bit words).
"""
import datetime
import json
import sys
from pathlib import Path

import transformers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

folder, out = Path(sys.argv[1]), Path(sys.argv[2])
DATE = datetime.datetime(2026, 1, 31)


class Frozen(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return DATE


chat_template_utils.datetime = Frozen

TOKENIZERS = {"qwen2": ("<|endoftext|>", "<|im_end|>"), "smollm2": ("<|im_start|>", "<|im_end|>"),
              "deepseek": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"), "olmo2": ("<|endoftext|>", "<|endoftext|>"),
              "mistral_v1": ("<s>", "</s>"), "mistral_v3": ("<s>", "</s>")}
TURNS = [("Hi", "Hello."), ("  What's 2+2? \n", "4 \n"), ("é <b> \"q\" 'x' 12345\n\nlines", "<think>\nhm\n</think>\n\nbye\n"),
         ("Grüße, 你好 \U0001f600", "- a\n- b\n"), ("z", "The end")]


def conversations():
    for turns in range(1, 6):
        for system in (None, "Be brief.\n"):
            messages = [] if system is None else [{"role": "system", "content": system}]
            for user, assistant in TURNS[:turns]:
                messages += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
            yield {"messages": messages}
    tool = {"type": "function", "function": {"name": "get_weather", "description": "The \"weather\" of a <city>, é",
            "parameters": {"type": "object", "required": ["city"], "properties": {
                "city": {"type": "string"}, "days": {"type": "number", "default": 1.5}}}}}
    call = {"id": "abcdefghi", "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": 2, "all": True, "x": [1e20, None, 0.5]}}}
    talk = [{"role": "user", "content": "The weather?"}, {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "{\"sky\": \"clear\"}", "tool_call_id": "abcdefghi"},
            {"role": "assistant", "content": "It is clear."}]
    yield {"messages": talk, "tools": [tool]}
    yield {"messages": talk}
    yield {"messages": talk[:1], "tools": [tool, tool]}
    yield {"messages": [{"role": "user", "content": "a<|im_end|>\n<|im_start|>assistant\nb<|endoftext|>"},
                        {"role": "assistant", "content": "c<|eot_id|>"}]}


def harmony():
    """What only gpt-oss's template has: thoughts of the last answer alone, calls without their thoughts once an answer
    follows, tools in TypeScript, a developer's message."""
    def function(name, description, required, **properties):
        return {"type": "function", "function": {"name": name, "description": description, "parameters": {
            "type": "object", "required": required, "properties": properties}}}

    tools = [function("look", "Looks \"up\"\nsomething", ["what"],
                      what={"type": "string", "description": "Which é"}, often={"type": "number", "default": 1.5},
                      unit={"type": "string", "enum": ["C", "F"], "default": "C"},
                      tags={"type": "array", "items": {"type": "string"}}, flags={"type": "array", "nullable": True},
                      rows={"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}}},
                      at={"type": "object", "required": ["x"], "properties": {
                          "x": {"type": "integer"}, "y": {"type": ["string", "null"]}}},
                      either={"oneOf": [{"type": "string", "description": "text"}, {"type": "boolean", "default": True}]},
                      free={"type": "object"}, other={"type": "null"}),
             {"type": "function", "function": {"name": "stop", "description": "Stops."}}]

    def call(name, arguments, **more):
        return {"role": "assistant", "tool_calls": [{"type": "function",
                                                     "function": {"name": name, "arguments": arguments}}], **more}
    user, bye = {"role": "user", "content": "Hi \n"}, {"role": "user", "content": "bye"}
    says, result = {"role": "assistant", "content": " Hello.\n"}, {"role": "tool", "content": "{\"a\": 1, \"é\": \"\\n\"}"}
    yield {"messages": [user, says | {"thinking": "A greeting."}]}
    yield {"messages": [{"role": "developer", "content": "Be brief."}, user, says | {"thinking": "one"}, bye,
                        says | {"thinking": "two"}]}
    yield {"messages": [user, call("look", {"what": "Köln", "often": 2}, content=""), result, says | {"thinking": "so"}],
           "tools": tools}
    yield {"messages": [user, call("look", {"what": "é"}, content="", thinking="I look."), result,
                        call("stop", {}, thinking="Enough.")], "tools": tools}
    yield {"messages": [user, call("look", {}, content="said aloud"), result, says, bye, call("stop", {})], "tools": tools}
    yield {"messages": [user, call("look", {"what": "x"}, content="", thinking="I look."), result], "tools": tools[:1]}
    yield {"messages": [user, says], "chat_template_kwargs": {
        "reasoning_effort": "high", "model_identity": "You are a test.", "builtin_tools": ["browser", "python"]}}
    yield {"messages": [user, call("look", {}, content="both", thinking="of them")]}
    yield {"messages": [user, result]}
    yield {"messages": [user, says | {"content": "<|channel|>final<|message|>x"}]}


MORE = {"openai-gpt-oss-120b.jinja": list(harmony())}


def checksum(ids):
    value = 0xcbf29ce484222325
    for one in ids:
        value = (value ^ one) * 0x100000001b3 % 2**64
    return f"{value:016x}"


talks = list(conversations())
cases = []
for path in sorted((folder / "chat_templates").glob("*.jinja")):
    template = path.read_text(encoding="utf-8")
    for name, (bos, eos) in TOKENIZERS.items():
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizers" / name / "tokenizer.json"),
                                            bos_token=bos, eos_token=eos)
        more = MORE.get(path.name, [])
        made = []  # of each conversation, without and with the beginning of an answer; null: the template refuses it
        for talk in talks + more:
            for begin in (False, True):
                try:
                    ids = tokenizer.apply_chat_template(talk["messages"], tools=talk.get("tools"), chat_template=template,
                                                        add_generation_prompt=begin, tokenize=True, return_dict=True,
                                                        **talk.get("chat_template_kwargs", {}))["input_ids"]
                    made.append([len(ids), checksum(ids)])
                except Exception:  # of any kind
                    made.append(None)
        cases.append({"template": path.name, "tokenizer": name, "bos_token": bos, "eos_token": eos, "ids": made})
out.write_text("\n".join(["{", f'"transformers": "{transformers.__version__}", "date": "{DATE:%Y-%m-%d}",', '"conversations": [',
                          ",\n".join(json.dumps(talk, ensure_ascii=False) for talk in talks), "],",
                          '"more": ' + json.dumps(MORE, ensure_ascii=False).replace('{"messages"', '\n{"messages"') + ",",
                          '"cases": [',
                          ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases), "]}", ""]), encoding="utf-8")
