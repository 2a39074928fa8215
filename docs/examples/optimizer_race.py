#!/usr/bin/env python3
"""Races Muon against AdamW: the same small model, data and batch, on one GPU, some five minutes.

  python3 docs/examples/optimizer_race.py BUILD [TEXT]

BUILD: the folder with `train`. TEXT: some megabytes; without it the text that ships with the program. AdamW's
learning rate is the best of four, by the validation loss after 800 steps; so is Muon's, after 533, two thirds. Then both
run with two more seeds, and Muon with half the steps, too.
"""

import re
import subprocess
import sys

STEPS, TWO_THIRDS, HALF = 800, 533, 400
SETTINGS = {
    "device": "cuda", "model.context": 256, "model.layers": 6, "model.heads": 6, "model.channels": 384,
    "train.tokens_per_step": 65536, "evaluation.every": STEPS, "evaluation.sequences": 1024,
    "evaluation.at_start": "false", "sampling.every": 0, "checkpoint.every": 0, "optimizer.warmup": "5%",
}


def race(build: str, text: str, rule: str, rate: float, steps: int, seed: int) -> float:
    settings = SETTINGS | {
        "data.train": text, "optimizer.rule": rule, "optimizer.learning_rate": rate,
        "optimizer.min_learning_rate": rate / 10, "train.steps": steps, "train.seed": seed,
        "train.folder": f"runs/race_{rule}_{steps}",
    }
    command = ["./train", "--config", "quickstart.yaml", "--overwrite"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    done = subprocess.run(command, cwd=build, check=True, capture_output=True, text=True)
    loss = float(re.findall(r"validation loss ([\d.]+)", done.stdout)[-1])
    print(f"{rule:6} {rate:.0e} {steps:4} steps, seed {seed}: {loss}", flush=True)
    return loss


def main() -> None:
    build, text = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "builtin"
    for rule, steps, rates in [("adamw", STEPS, [1e-3, 2e-3, 4e-3, 8e-3]),
                               ("muon", TWO_THIRDS, [2e-3, 4e-3, 8e-3, 16e-3])]:
        best = min(rates, key=lambda rate: race(build, text, rule, rate, steps, 1))
        for seed in 2, 3:
            race(build, text, rule, best, steps, seed)
    for seed in 1, 2, 3:
        race(build, text, "muon", best, HALF, seed)


if __name__ == "__main__":
    main()
