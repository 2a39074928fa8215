"""Sends the figures of a run to MLflow, as they come:
./train quickstart.yaml --set "train.metrics_command=python3 docs/examples/mlflow_metrics.py my-experiment"
"""
import json
import sys

import mlflow


def figures(name, value):  # {"a": {"b": [1, 2]}} is a/b/0 = 1, a/b/1 = 2
    if isinstance(value, (dict, list)):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from figures(f"{name}/{key}", one)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield name, value


mlflow.set_experiment(sys.argv[1])
for text in sys.stdin:
    line = json.loads(text)
    if line["type"] in ("start", "resume"):  # a run in MLflow for each process
        mlflow.start_run(run_name=line["name"])
        mlflow.log_params({key: line[key] for key in ("parameters", "steps", "precision", "dataset")})
    else:
        mlflow.log_metrics(dict(figures(line.pop("type"), line)), step=line["step"])
mlflow.end_run()
