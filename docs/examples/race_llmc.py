#!/usr/bin/env python3
"""Draws a race of llm.c and Tessera, and prints its table: what docs/examples/race_llmc.sh left in FOLDER.

  python3 docs/examples/race_llmc.py FOLDER TOKENS_OF_A_STEP

FOLDER/race.svg has the losses over tokens and over minutes of training, evaluations left out. The table has the
validation losses, and the mean of the differences between the training losses of the same step.
"""

import json
import math
import pathlib
import re
import sys

COLOURS = {"llm.c": "#dd6633", "Tessera": "#4477dd"}


class Run:
    """Of each step, from 1 on: its training loss and its seconds. Of some steps: the validation loss after them."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.seconds: dict[int, float] = {}
        self.validation: dict[int, float] = {}

    def minutes(self) -> dict[int, float]:
        """From the first step to the end of each. The first one is as long as the second: it also prepares."""
        total, found = 0.0, {0: 0.0}
        for step in sorted(self.seconds):
            total += self.seconds[2 if step == 1 and 2 in self.seconds else step]
            found[step] = total / 60
        return found


def read_llmc(path: pathlib.Path) -> Run:
    run, step = Run(), 0  # a validation loss belongs to the step before it; a resumed run repeats some
    for line in path.read_text(errors="replace").splitlines():
        if found := re.match(r"step +(\d+)/\d+ \| loss +([\d.naif-]+) .*\| ([\d.]+) ms \|", line):
            step = int(found[1])
            run.losses[step], run.seconds[step] = float(found[2]), float(found[3]) / 1000
        elif found := re.match(r"val loss ([\d.naif-]+)", line):
            run.validation[step] = float(found[1])
        elif line.startswith("| weight init method"):  # of what step a checkpoint is, the next line of a step says
            step = -1 if "intermediate checkpoint" in line else 0
    run.validation.pop(-1, None)
    return run


def read_tessera(path: pathlib.Path) -> Run:
    run = Run()
    for line in path.read_text().splitlines():
        record = json.loads(line)
        if record["type"] == "step":
            run.losses[record["step"]], run.seconds[record["step"]] = record["loss"], record["seconds"]
        elif record["type"] == "evaluation":
            run.validation[record["step"]] = record["validation_loss"]
    return run


def smooth(losses: dict[int, float], width: int) -> dict[int, float]:
    steps = sorted(losses)
    ends = range(width - 1, len(steps), width)
    return {steps[i]: sum(losses[s] for s in steps[i - width + 1:i + 1]) / width for i in ends}


def ticks(low: float, high: float, most: int) -> list[float]:
    rough = (high - low) / most
    power = 10 ** math.floor(math.log10(rough))
    width = next(power * k for k in (1, 2, 5, 10) if power * k >= rough)
    return [width * k for k in range(math.ceil(low / width - 1e-9), math.floor(high / width + 1e-9) + 1)]


def panel(left: float, width: float, title: str, curves: dict, points: dict, top_loss: float) -> list[str]:
    top, bottom = 92, 372
    right = max(x for line in [*curves.values(), *points.values()] for x, _ in line)
    least = min(y for line in [*curves.values(), *points.values()] for _, y in line)
    low, high = math.floor(least * 2) / 2, top_loss
    x_of = lambda x: left + width * x / right
    y_of = lambda y: bottom - (bottom - top) * (min(y, high) - low) / (high - low)
    drawn = [f'<text x="{left + width / 2:.1f}" y="80" text-anchor="middle" class="t">{title}</text>']
    for value in ticks(low, high, 6):
        drawn += [f'<path class="g" d="M{left} {y_of(value):.1f}h{width}"/>',
                  f'<text x="{left - 8}" y="{y_of(value) + 4:.1f}" text-anchor="end">{value:.1f}</text>']
    for value in ticks(0, right, 6):
        drawn.append(f'<text x="{x_of(value):.1f}" y="{bottom + 17}" text-anchor="middle">{value:g}</text>')
    for name, line in curves.items():
        path = "L".join(f"{x_of(x):.1f} {y_of(y):.1f}" for x, y in line if y <= high)
        style = 'stroke-width="4" stroke-opacity=".55"' if name == "llm.c" else 'stroke-width="1.5"'
        drawn.append(f'<path fill="none" stroke="{COLOURS[name]}" {style} d="M{path}"/>')
    for name, line in points.items():
        hollow = name == "llm.c"  # both are seen where they lie on each other
        for x, y in line:
            if y <= high:
                drawn.append(f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="{5 if hollow else 2.5}" '
                             f'fill="{"none" if hollow else COLOURS[name]}" stroke="{COLOURS[name]}">'
                             f"<title>{name}, {x:.4g}: {y:.3f}</title></circle>")
    return drawn


def draw(runs: dict[str, Run], tokens: int) -> str:
    first = list(runs.values())[0]
    width = max(1, len(first.losses) // 115)
    million = lambda step: step * tokens / 1e6
    curves = {name: smooth(run.losses, width) for name, run in runs.items()}
    lowest = min(min(run.validation.values()) for run in runs.values())
    top_loss = math.ceil(min(max(max(line.values()) for line in curves.values()), lowest + 3.5) * 2) / 2

    def over(x_of) -> list[dict]:  # the curves and points of a panel, as pairs of x and loss
        kinds = [curves, {name: run.validation for name, run in runs.items()}]
        return [{name: [(x_of(name, s), y) for s, y in sorted(of[name].items()) if s] for name in runs} for of in kinds]

    minutes = {name: run.minutes() for name, run in runs.items()}
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 840 412" width="840" height="412" role="img" '
           'font-family="sans-serif" font-size="12">',
           "<title>Losses of GPT-2 124M by llm.c and by Tessera</title>",
           "<style>text{fill:#333}.t{font-weight:bold}.g{stroke:#888;stroke-opacity:.3;fill:none}.b{fill:#fff}",
           "@media(prefers-color-scheme:dark){text{fill:#ddd}.b{fill:#0d1117}}</style>",
           '<rect class="b" width="100%" height="100%"/>',
           '<text x="420" y="22" text-anchor="middle" class="t" font-size="15">GPT-2 124M: the same weights, tokens, '
           "batches and schedule</text>"]
    for x, name in ((130, "llm.c"), (230, "Tessera")):
        out += [f'<path stroke="{COLOURS[name]}" stroke-width="3" d="M{x} 44h18"/>',
                f'<text x="{x + 24}" y="48">{name}</text>']
    out.append(f'<text x="345" y="48">lines: training loss, means of {width} steps; circles: validation loss</text>')
    out += panel(56, 360, "over millions of tokens", *over(lambda _, step: million(step)), top_loss)
    out += panel(466, 360, "over minutes of training", *over(lambda name, step: minutes[name].get(step, 0)), top_loss)
    for y, (name, run) in zip((116, 134), runs.items()):
        last = max(run.validation)
        out.append(f'<text x="826" y="{y}" text-anchor="end" style="fill:{COLOURS[name]}">{name}: '
                   f"{run.validation[last]:.3f} after {minutes[name][last]:.2f} minutes</text>")
    return "\n".join([*out, '<text x="236" y="404" text-anchor="middle">million tokens</text>',
                      '<text x="646" y="404" text-anchor="middle">minutes</text>', "</svg>", ""])


def table(runs: dict[str, Run], tokens: int) -> None:
    llmc, tessera = runs["llm.c"], runs["Tessera"]
    minutes = {name: run.minutes() for name, run in runs.items()}
    shared = sorted(set(llmc.validation) & set(tessera.validation))
    print("| Step | Million tokens | llm.c: validation loss | minutes | Tessera: validation loss | minutes | "
          "Difference |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for step in shared:
        print(f"| {step} | {step * tokens / 1e6:.1f} | "
              f"{llmc.validation[step]:.4f} | {minutes['llm.c'].get(step, 0):.2f} | "
              f"{tessera.validation[step]:.4f} | {minutes['Tessera'].get(step, 0):.2f} | "
              f"{tessera.validation[step] - llmc.validation[step]:+.4f} |")
    print()
    steps = sorted(set(llmc.losses) & set(tessera.losses))
    between = [tessera.losses[s] - llmc.losses[s] for s in steps]
    largest = max(steps, key=lambda s: abs(tessera.losses[s] - llmc.losses[s]))
    print(f"Training loss of the first step: {llmc.losses[steps[0]]:.6f} and {tessera.losses[steps[0]]:.6f}. "
          f"Tessera's less llm.c's: mean {sum(between) / len(between):+.5f}, "
          f"mean size {sum(map(abs, between)) / len(between):.5f}, "
          f"largest {tessera.losses[largest] - llmc.losses[largest]:+.5f} in step {largest} of {len(steps)}.")
    for name, run in runs.items():
        last = max(run.seconds)
        middle = sorted(run.seconds[s] for s in run.seconds)[len(run.seconds) // 2]
        print(f"{name}: {last * tokens / 1e6:.1f} million tokens in {minutes[name][last]:.2f} minutes of training, "
              f"{last * tokens / 60 / minutes[name][last]:,.0f} tokens/s; median step {middle * 1000:.1f} ms, "
              f"{tokens / middle:,.0f} tokens/s.")


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, tokens = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    runs = {"llm.c": read_llmc(folder / "llmc.txt"), "Tessera": read_tessera(folder / "tessera" / "metrics.jsonl")}
    for name, run in runs.items():
        if not run.losses or not run.validation:
            sys.exit(f"race_llmc.py: error: no losses of {name} in {folder}: see llmc.txt and tessera.txt there")
    table(runs, tokens)
    (folder / "race.svg").write_text(draw(runs, tokens))


if __name__ == "__main__":
    main()
