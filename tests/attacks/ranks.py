"""Runs of several ranks, which split the model in one way or another: a process is killed at any moment, and
the run goes on with as many ranks and the same split, which ends with the same bits, or with others."""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

from common import SECONDS

STEPS = 40
TOKENS = ["--set", "train.tokens_per_step=192"]  # 12 sequences: of 1, 2 and 3 ranks
SPLITS = ["optimizer", "gradients", "weights"]
# Sums in another order, in fp32, and what AdamW makes of them in so many steps
TOLERANCE = 1e-3


def arguments(ranks, split):
    return [*TOKENS, "--ranks", str(ranks), "--set", f"parallel.shard={split}"]


def processes_of(launcher):
    children = Path(f"/proc/{launcher}/task/{launcher}/children")
    try:
        return [launcher, *map(int, children.read_text().split())]
    except OSError:  # it is over
        return [launcher]


def kill_one(process, chance):
    """Of the launcher and its ranks; the others end by themselves. Whether there was one to kill."""
    victim = chance.choice(processes_of(process.pid))
    if process.poll() is not None:
        return False
    try:
        signal.pidfd_send_signal(os.pidfd_open(victim), signal.SIGKILL)
    except ProcessLookupError:
        return False
    process.communicate(timeout=SECONDS)  # all have closed their output
    return True


def losses(run, name):
    found = {}
    for line in (run.folder / name / "metrics.jsonl").read_text().splitlines():
        values = json.loads(line)
        for key in ("loss", "validation_loss"):
            if key in values:
                found[values["step"], key] = values[key]
    return found


def is_near(found, wanted):
    return found.keys() == wanted.keys() and all(
        abs(found[at] - wanted[at]) <= TOLERANCE * abs(wanted[at]) for at in wanted
    )


def in_checkpoints(run, tally):
    """Every step writes one, of a model that the ranks split, so that they gather it from each other."""
    chance = random.Random(2)
    often = [*arguments(3, "weights"), "--set", "checkpoint.every=1", "--set", "evaluation.every=0"]
    while not tally.time_is_over():
        name, case = f"checkpoint_{tally.tried}", f"kill {tally.tried} in a checkpoint"
        process = run.start(name, *often, steps=10**6)
        begin = time.monotonic()
        while not run.checkpoints(name) and process.poll() is None and time.monotonic() - begin < SECONDS:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.3))
        victims = processes_of(process.pid)[1:]
        if not tally.expect(len(victims) == 3, case, "the ranks are not there"):
            return
        victim = chance.choice(victims)
        signal.pidfd_send_signal(os.pidfd_open(victim), signal.SIGKILL)
        _, error = process.communicate(timeout=SECONDS)
        tally.tried += 1
        tally.expect(process.returncode == 128 + signal.SIGKILL, case, f"exit code {process.returncode}; {error}")
        tally.expect(
            error.count("error:") == 1 and f"(pid {victim})" in error, case, f"the message: {error.strip()}"
        )
        shutil.rmtree(run.folder / name)


def attack(run, tally):
    chance = random.Random(1)
    references, lengths = {}, {}
    kills = 0
    while not tally.time_is_over():
        ranks, split, same = chance.choice([2, 3]), chance.choice(SPLITS), chance.random() < 0.5
        if (ranks, split) not in references:
            reference, begin = f"whole_{ranks}_{split}", time.monotonic()
            code, error = run.train(reference, *arguments(ranks, split), steps=STEPS)
            if not tally.expect(code == 0, reference, f"exit code {code}; {error}"):
                return
            lengths[ranks, split] = time.monotonic() - begin
            references[ranks, split] = {
                "results": run.results(reference),
                "weights": run.weights(reference),
                "losses": losses(run, reference),
            }
        reference, length = references[ranks, split], lengths[ranks, split]
        name, case = f"killed_{tally.tried}", f"{tally.tried}: {ranks} ranks, {split}"
        tally.tried += 1
        process = run.start(name, *arguments(ranks, split), steps=STEPS)
        for _ in range(3):
            time.sleep(chance.uniform(0.2, 1) * length)
            kills += kill_one(process, chance)
            process.communicate()
            if not same:
                ranks, split = chance.choice([1, 2, 3]), chance.choice(SPLITS)
                case += f"; {ranks} ranks, {split}"
            again = ["--resume", "auto", *arguments(ranks, split)]
            process = run.start(name, *again, steps=STEPS)
        process.communicate()
        code, error = run.resume(name, *arguments(ranks, split), steps=STEPS)
        if not tally.expect(code == 0, case, f"it cannot go on: exit code {code}; {error}"):
            continue
        if same:
            run.expect_as(reference, name, tally, case)
        else:
            tally.expect(is_near(losses(run, name), reference["losses"]), case, "other losses")
    tally.notes.append(f"{kills} processes killed")
