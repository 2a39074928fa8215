"""Bits flipped, bytes cut off and files lost, in a checkpoint and in a dataset of shards."""

import random
import shutil
import subprocess
import time


def damages(path, chance):
    """What is done to a file: its name, and its bytes afterwards (None: the file is lost)."""
    good = path.read_bytes()
    places = {0, len(good) - 1, len(good) // 2, *(chance.randrange(len(good)) for _ in range(20))}
    for place in sorted(places):
        bad = bytearray(good)
        bad[place] ^= 1 << chance.randrange(8)
        yield f"a bit of byte {place} flipped", bytes(bad)
    yield "the last byte cut off", good[:-1]
    yield "cut in half", good[: len(good) // 2]
    yield "a byte more", good + b"\0"
    yield "empty", b""
    yield "lost", None


def try_all(files, attempt, tally, chance, harmless=lambda path: False):
    """Each damage by itself, in a random order, until the time is over: it is refused, or harmless."""
    cases = [(path, what, bad) for path in files for what, bad in damages(path, chance)]
    chance.shuffle(cases)
    for path, what, bad in cases:
        if tally.time_is_over():
            break
        good = path.read_bytes()
        if bad is None:
            path.unlink()
        else:
            path.write_bytes(bad)
        tally.tried += 1
        code, error = attempt()
        path.write_bytes(good)
        if code == 0 and harmless(path):
            continue
        tally.expect(
            code == 1 and ": error: " in error,
            f"{path.parent.name}/{path.name}, {what}",
            f"not refused: exit code {code}, and the message: {error[-300:]}",
        )
    return len(cases)


def attack(run, tally):
    chance = random.Random(1)
    end = tally.deadline
    run.reference(tally)
    checkpoint = run.checkpoints("reference")[-1]
    files = sorted(path for path in checkpoint.iterdir() if path.is_file())

    def resume():
        """Goes on from a copy without the older checkpoints: no refusal can hide behind them."""
        copy = run.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(
            run.folder / "reference",
            copy,
            ignore=lambda _, names: [
                name for name in names if name.startswith("step_") and name != checkpoint.name
            ],
        )
        return run.train("copy", "--resume", steps=10)

    tally.deadline = end - (end - time.monotonic()) / 2
    cases = try_all(files, resume, tally, chance)
    code, error = resume()
    tally.expect(code == 0, "the checkpoint undamaged", f"exit code {code}; {error}")

    tally.deadline = end
    data = run.folder / "data"
    subprocess.run(
        [
            run.build / "prepare",
            "--input",
            run.folder / "text.txt",
            "--output",
            data,
            "--shard-tokens",
            "12000",
        ],
        check=True,
        capture_output=True,
    )
    shards = sorted(path for path in data.iterdir() if path.is_file())

    def train_on_shards():
        shutil.rmtree(run.folder / "sharded", ignore_errors=True)
        return run.train("sharded", "--set", f"data.train={data}", steps=1)

    code, error = train_on_shards()
    tally.expect(code == 0, "the dataset undamaged", f"exit code {code}; {error}")
    undamaged = run.results("sharded")

    def harmless(path):
        """The manifest may lose a line's end, or all (llm.c's shards have none): the run is the same."""
        return path.suffix == ".json" and run.results("sharded") == undamaged

    cases += try_all(shards, train_on_shards, tally, chance, harmless)
    tally.notes.append(
        f"of {cases} cases, in {len(files)} files of a checkpoint and {len(shards)} of a dataset"
    )
