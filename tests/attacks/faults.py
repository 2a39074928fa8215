"""Kills and errors at file-system calls, by a library that is preloaded into the run (faults.c)."""

import shutil
import subprocess
from pathlib import Path

from common import Skipped, spread


def build_library(run):
    library = run.folder / "faults.so"
    if shutil.which("cc") is None:
        raise Skipped("no C compiler, for the library that is preloaded")
    subprocess.run(
        ["cc", "-O1", "-shared", "-fPIC", "-o", library, Path(__file__).parent / "faults.c", "-ldl"],
        check=True,
    )
    return library


def environment(run, library, name, fault, at):
    return {
        "LD_PRELOAD": f"./{library.name}",  # in the run's folder, whose path may have a blank: that divides
        "TESSERA_FAULT_FOLDER": str(run.folder / name),
        "TESSERA_FAULT_AT": str(at),
        "TESSERA_FAULT": fault,
        "TESSERA_FAULT_COUNT": str(run.folder / "count"),
    }


def count_calls(run, library, tally):
    code, error = run.train("counted", environment=environment(run, library, "counted", "kill", 0))
    count = int((run.folder / "count").read_text()) if code == 0 else 0
    if not tally.expect(
        count > 20,
        "the run undisturbed, with its calls counted",
        f"{count} calls; exit code {code}; {error}",
    ):
        return 0
    shutil.rmtree(run.folder / "counted")
    return count


def kills(run, tally):
    library = build_library(run)
    reference = run.reference(tally)
    count = count_calls(run, library, tally)
    for at in spread(count) if count else []:
        if tally.time_is_over():
            break
        case, name = f"kill at call {at} of {count}", f"kill_{at}"
        tally.tried += 1
        code, error = run.train(name, environment=environment(run, library, name, "kill", at))
        if not tally.expect(code == -9, case, f"exit code {code}; {error}"):
            continue
        before = run.checkpoints(name)
        code, error = run.resume(name)
        if tally.expect(
            code == 0, case, f"it cannot go on from {[p.name for p in before]}: exit code {code}; {error}"
        ):
            run.expect_as(reference, name, tally, case)
    tally.notes.append(f"of {count} calls of the run")


def errors(run, tally):
    library = build_library(run)
    reference = run.reference(tally)
    count = count_calls(run, library, tally)
    kinds = ["ENOSPC", "once-ENOSPC", "EIO", "once-EIO"]
    ended_well = 0
    for i, at in enumerate(spread(count) if count else []):
        if tally.time_is_over():
            break
        fault = kinds[i % len(kinds)]
        case, name = f"{fault} at call {at} of {count}", f"error_{at}"
        tally.tried += 1
        code, error = run.train(name, environment=environment(run, library, name, fault, at))
        if code == 0:
            ended_well += 1
        else:
            tally.expect(
                code == 1 and "train: error: " in error, case, f"exit code {code}, and the message: {error}"
            )
        code, error = run.resume(name)
        if tally.expect(code == 0, case, f"it cannot go on: exit code {code}; {error}"):
            run.expect_as(reference, name, tally, case)
    tally.notes.append(f"of {count} calls of the run; {ended_well} runs ended well in spite of it")
