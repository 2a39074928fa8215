"""A tiny run, the losses that it must end with, and the count of what was tried."""

import json
import os
import shutil
import subprocess
import time

CONFIG = """\
device: cpu
model: {vocab_size: 257, context: 16, layers: 1, heads: 1, channels: 16}
data: {train: text.txt}
train: {steps: 8, tokens_per_step: 64, micro_batch: 2, log_every: 1}
optimizer: {learning_rate: 1e-2, warmup_steps: 1}
evaluation: {every: 4, sequences: 8}
sampling: {every: 0}
checkpoint: {every: 2, keep: 2}
"""
SECONDS = 120  # of one process; a run takes less than one where nothing else runs


class Skipped(Exception):
    pass


class Tally:
    """What an attack tried, until its time is over, and what went wrong."""

    def __init__(self, name, deadline):
        self.name, self.deadline = name, deadline
        self.tried, self.failures, self.notes = 0, [], []

    def time_is_over(self):
        return time.monotonic() > self.deadline

    def expect(self, truth, case, found):
        if not truth:
            self.failures.append(f"{case}: {found}")
            print(f"{self.name}: FAILED: {case}: {found}", flush=True)
        return truth

    def summary(self):
        notes = "".join("; " + note for note in self.notes)
        return f"{self.name}: {self.tried} tried, {len(self.failures)} failed{notes}"


class Run:
    """Runs `train` in a folder of its own."""

    def __init__(self, build, folder):
        self.build, self.folder = build, folder
        folder.mkdir()
        (folder / "small.yaml").write_text(CONFIG)
        (folder / "text.txt").write_text(
            "".join(f"line {i % 17} of a text that repeats itself\n" for i in range(500))
        )
        help_text = subprocess.run([build / "train", "--help"], capture_output=True, text=True).stdout
        self.knows_auto = "auto" in help_text.split("--resume", 1)[-1][:200]
        self.knows_verify = "--verify" in help_text

    def arguments(self, name, *more, steps=8):
        return [
            self.build / "train",
            "--config",
            "small.yaml",
            "--set",
            f"train.folder={self.folder / name}",
            "--set",
            f"train.steps={steps}",
            *more,
        ]

    def start(self, name, *more, steps=8, environment=None):
        return subprocess.Popen(
            self.arguments(name, *more, steps=steps),
            cwd=self.folder,
            text=True,
            errors="replace",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        )

    def train(self, name, *more, **options):
        """The exit code (none: it hung), and what was printed as an error."""
        process = self.start(name, *more, **options)
        try:
            _, error = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return None, f"it did not end within {SECONDS} s"
        return process.returncode, error.strip()

    def resume(self, name, *more, **options):
        """Goes on where there is a checkpoint, else starts anew; a run that is over is well."""
        if self.knows_auto:
            code, error = self.train(name, "--resume", "auto", *more, **options)
        else:
            code, error = self.train(
                name, "--resume" if self.checkpoints(name) else "--overwrite", *more, **options
            )
        return (0, "") if "nothing is left to do" in error else (code, error)

    def checkpoints(self, name):
        folder = self.folder / name / "checkpoints"
        found = (
            [path for path in folder.glob("step_*") if path.name[5:].isdigit()] if folder.is_dir() else []
        )
        return sorted(found, key=lambda path: int(path.name[5:]))

    def results(self, name):
        """By step: every loss, as written. Equal texts are equal bits."""
        found = {}
        metrics = self.folder / name / "metrics.jsonl"
        for line in metrics.read_text().splitlines() if metrics.exists() else []:
            values = json.loads(line)
            for key in ("loss", "grad_norm", "validation_loss"):
                if key in values:
                    found.setdefault(values["step"], {})[key] = repr(values[key])
        return found

    def weights(self, name):
        """The bytes of the newest checkpoint's tensors."""
        newest = self.checkpoints(name)[-1:]
        return {path.name: path.read_bytes() for folder in newest for path in folder.glob("*.safetensors")}

    def expect_as(self, reference, name, tally, case):
        """Whether the run ended as the other did. Its folder goes if so; else it is named."""
        if not tally.expect(
            self.results(name) == reference["results"], case, "other losses than an undisturbed run's"
        ) or not tally.expect(
            self.weights(name) == reference["weights"], case, "other weights than an undisturbed run's"
        ):
            return
        shutil.rmtree(self.folder / name)

    def reference(self, tally):
        """A run undisturbed."""
        code, error = self.train("reference")
        if code != 0:
            raise RuntimeError(f"the run cannot even be made undisturbed: {error}")
        return {"results": self.results("reference"), "weights": self.weights("reference")}


def spread(count):
    """1 to count, each once, evenly spread at any time."""
    step = max(1, round(count * 0.6180339887))
    while any(step % d == 0 and count % d == 0 for d in range(2, step + 1)):
        step += 1
    return [1 + i * step % count for i in range(count)]
