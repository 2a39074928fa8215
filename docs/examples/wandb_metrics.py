"""Sends the figures of a run to Weights & Biases, as they come:
./train quickstart.yaml --set "train.metrics_command=python3 docs/examples/wandb_metrics.py my-project"
"""
import json
import sys

import wandb


def figures(name, value):  # {"a": {"b": [1, 2]}} is a/b/0 = 1, a/b/1 = 2
    if isinstance(value, (dict, list)):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from figures(f"{name}/{key}", one)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield name, value


run = None
for text in sys.stdin:
    line = json.loads(text)
    if line["type"] in ("start", "resume"):  # the same run goes on under its name
        run = wandb.init(project=sys.argv[1], id=line["name"], resume="allow", config=line)
        run.define_metric("*", step_metric="step")
    elif run:
        run.log({"step": line["step"], **dict(figures(line.pop("type"), line))})
if run:
    run.finish()
