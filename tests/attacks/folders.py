"""What happens to a run's folder while the run goes on: it is removed, moved, taken over. The run stops, says
why, and touches nothing of what is there then."""

import itertools
import os
import shutil
import subprocess
import time

from common import SECONDS

ENDLESS = ["--set", "checkpoint.every=50", "--set", "evaluation.every=0"]


def tree(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def away(folder):
    """Gone at once: with rm alone the run may write a file while others are removed. So it may see it moved."""
    aside = folder.with_name(folder.name + "_aside")
    folder.rename(aside)
    shutil.rmtree(aside)


def removed(run, folder):
    away(folder)


def removed_and_made_again(run, folder):
    away(folder)
    folder.mkdir()


def taken_over(run, folder):
    away(folder)
    code, error = run.train(folder.name, "--set", "train.seed=7", steps=20)
    assert code == 0, error


def moved(run, folder):
    folder.rename(folder.with_name(folder.name + "_moved"))


def moved_and_made_again(run, folder):
    moved(run, folder)
    folder.mkdir()


def lock_removed(run, folder):
    (folder / "run.lock").unlink()


def lock_replaced(run, folder):
    (folder / "other").touch()
    (folder / "other").rename(folder / "run.lock")


def unmounted(run, folder):
    subprocess.run(["umount", "-l", folder], check=True)


CASES = [
    (removed, "was "),
    (removed_and_made_again, "was "),
    (taken_over, "was "),
    (moved, "moved to"),
    (moved_and_made_again, "moved to"),
    (lock_removed, "run.lock was removed"),
    (lock_replaced, "run.lock was replaced"),
    (unmounted, "not mounted"),
]


def can_mount(run):
    place = run.folder / "mount"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "none", place], capture_output=True).returncode == 0
    if mounted:
        subprocess.run(["umount", place], check=True)
    return mounted


def wait_for_a_checkpoint(run, name, process):
    begin = time.monotonic()
    while not run.checkpoints(name) and process.poll() is None and time.monotonic() - begin < SECONDS:
        time.sleep(0.01)


def attack(run, tally):
    mounts = can_mount(run)
    for number, (act, words) in enumerate(itertools.cycle(CASES)):
        if tally.time_is_over():
            break
        if act is unmounted and not mounts:
            continue
        ranks = 1 + number // len(CASES) % 2
        name, case = f"run_{number}", f"{number}: {act.__name__}, {ranks} ranks"
        folder = run.folder / name
        folder.mkdir()
        if act is unmounted:
            subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
        tally.tried += 1
        process = run.start(name, *ENDLESS, "--ranks", str(ranks), steps=10**6)
        wait_for_a_checkpoint(run, name, process)
        if not tally.expect(process.poll() is None, case, "the run ended before the attack"):
            continue
        act(run, folder)
        before = tree(folder) if act in (removed_and_made_again, taken_over, moved_and_made_again) else None
        try:
            _, error = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            tally.expect(False, case, "the run goes on")
            continue
        tally.expect(process.returncode == 1, case, f"exit code {process.returncode}; {error}")
        tally.expect(error.count("error:") == 1 and words in error, case, f"the message: {error}")
        if before is not None:
            tally.expect(tree(folder) == before, case, "the run has changed what took its place")
        elif act is removed:
            tally.expect(not os.path.exists(folder), case, "the run has made its folder again")
