"""The folder of a bad step: every field of bad_step.json damaged, and runs that the same step stops again."""

import json
import shutil
import subprocess

from common import SECONDS

# One step makes the weights infinite.
SPOILED = ["optimizer.learning_rate=1e30", "optimizer.max_grad_norm=0", "evaluation.every=0", "checkpoint.every=1"]


def replay(run, folder):
    done = subprocess.run(
        [run.build / "train", "--replay", folder],
        cwd=run.folder,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SECONDS,
    )
    return done.returncode, done.stdout + done.stderr


def attack(run, tally):
    settings = [word for one in SPOILED for word in ("--set", one)]
    code, error = run.train("run", *settings)
    found = sorted((run.folder / "run").glob("bad_step_*"))
    if not tally.expect(code == 1 and len(found) == 1, "a bad step", f"exit code {code}; {found}; {error}"):
        return
    size = sum(path.stat().st_size for path in found[0].rglob("*"))
    for ranks in (1, 2, 1):
        tally.tried += 1
        code, error = run.train("run", "--resume", "auto", "--ranks", str(ranks), *settings)
        kept = sorted((run.folder / "run").glob("bad_step_*"))
        tally.expect(code == 1 and kept == found, f"a restart by {ranks} ranks", f"exit code {code}; {kept}")
        code, said = replay(run, found[0])
        tally.expect(code == 1 and "the step is bad again" in said, f"its replay, {ranks} ranks", said)
    tally.notes.append(f"the folder has {size} bytes")

    facts = json.loads((found[0] / "bad_step.json").read_text())
    files = json.loads((found[0] / "checksums.json").read_text())["files"]
    del files["bad_step.json"]
    older = {**facts, "format": "tessera bad step 1", "files": files}  # without checksums.json
    copy = run.folder / "copy"
    for facts, has_checksums in ((facts, True), (older, False)):
        for key in facts:
            for wrong in ("left out", "a text", True, [], {"a": 1}, -1, 1e30):
                if tally.time_is_over():
                    return
                changed = {**facts, key: wrong}
                if wrong == "left out":
                    del changed[key]
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(found[0], copy)
                if not has_checksums:
                    (copy / "checksums.json").unlink()
                (copy / "bad_step.json").write_text(json.dumps(changed))
                tally.tried += 1
                code, said = replay(run, copy)
                case = f"{key}: {wrong}, {'with' if has_checksums else 'without'} checksums"
                tally.expect(code in (0, 1), case, f"exit code {code}; {said}")
                if has_checksums:
                    tally.expect("bad_step.json is damaged" in said, case, f"not noticed: {said}")
