"""Renders conversations with Hugging Face's `transformers`, for conversation_test.cpp.

render_with_transformers.py JOBS: a JSON list of {"tokenizer": a tokenizer.json, "template": "chatml" or "llama3",
"messages", "out"}. Writes to "out" one line of ids, and one with 1 where an id counts. The templates are the loops of
Qwen2.5's and Llama 3's chat_template; what assistants write is marked as transformers wants it.
"""
import json
import sys
from pathlib import Path

from transformers import PreTrainedTokenizerFast

TEMPLATES = {
    "chatml": "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.role == 'assistant' %}{% generation %}{{- m.content + '<|im_end|>' }}{% endgeneration %}"
    "{%- else %}{{- m.content + '<|im_end|>' }}{%- endif %}{{- '\n' }}{%- endfor %}",
    "llama3": "{{- '<|begin_of_text|>' }}{%- for m in messages %}"
    "{{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' }}"
    "{%- if m['role'] == 'assistant' %}{% generation %}{{- m['content'] | trim + '<|eot_id|>' }}{% endgeneration %}"
    "{%- else %}{{- m['content'] | trim + '<|eot_id|>' }}{%- endif %}{%- endfor %}",
}

for job in json.loads(Path(sys.argv[1]).read_text()):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=job["tokenizer"])
    made = tokenizer.apply_chat_template(job["messages"], chat_template=TEMPLATES[job["template"]], tokenize=True,
                                         return_dict=True, return_assistant_tokens_mask=True)
    lines = [made["input_ids"], made["assistant_masks"]]
    Path(job["out"]).write_text("\n".join(" ".join(map(str, line)) for line in lines))
