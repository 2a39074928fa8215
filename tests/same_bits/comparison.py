"""Compares two runs' folders. A change of a file's format is stated here."""

import json
from pathlib import Path

# Keys that may differ, with the reason.
FREE_KEYS = {
    "config.json": {},
    "state.json": {},
}
RESULTS = ("loss", "grad_norm", "validation_loss", "sample")  # of metrics.jsonl


def tensors_of(path: Path) -> dict:
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    found = {}
    for name, info in header.items():
        first, last = info["data_offsets"]
        found[name] = (info["dtype"], info["shape"], content[8 + size + first : 8 + size + last])
    return found


def differing_bits(a: bytes, b: bytes) -> int:
    return (int.from_bytes(a, "little") ^ int.from_bytes(b, "little")).bit_count()


def results_of(metrics: Path) -> list[str]:
    """Each result with its step, as it was written: equal texts are equal bits."""
    found = []
    for line in metrics.read_text(errors="surrogateescape").splitlines():
        record = json.loads(line)
        found += [f"step {record['step']} {key} {record[key]!r}" for key in RESULTS if key in record]
    return found


class Comparison:
    def __init__(self, by_tensors: bool):
        self.by_tensors = by_tensors
        self.passed, self.failed, self.skipped = 0, [], []
        self.bytes, self.results = 0, 0
        self.name, self.faults = "", []

    def skip(self, name: str, reason: str):
        self.skipped.append(name)
        print(f"{name:18} skipped: {reason}", flush=True)

    def fail(self, name: str, message: str):
        self.failed.append(name)
        print(f"{name:18} FAILED: {message}", flush=True)

    def runs(self, name: str, base: Path, tree: Path, training):
        self.name, self.faults = name, []
        for step in training.compared_steps:
            checkpoint = f"checkpoints/step_{step:08}"
            for file in ("model.safetensors", "optimizer.safetensors"):
                self.tensors(base / checkpoint / file, tree / checkpoint / file, f"step {step} {file}")
            for file in FREE_KEYS:
                self.keys(base / checkpoint / file, tree / checkpoint / file, f"step {step} {file}")
        self.metrics(base / "metrics.jsonl", tree / "metrics.jsonl")
        if self.faults:
            self.failed.append(name)
        else:
            self.passed += 1

    def tensors(self, base: Path, tree: Path, place: str):
        if not (base.exists() and tree.exists()):
            self.faults.append(f"{place} is missing")
            return
        a, b = base.read_bytes(), tree.read_bytes()
        self.bytes += len(a)
        if a == b:
            return
        before, after = tensors_of(base), tensors_of(tree)
        different = [n for n in before if n not in after or before[n][:2] != after[n][:2]]
        different += [n for n in after if n not in before]
        if different:
            self.faults.append(f"{place}: other tensors: {', '.join(different[:4])}")
        changed = [n for n in before if n in after and before[n] != after[n] and n not in different]
        for n in changed[:4]:
            self.faults.append(f"{place}: {n} differs in {differing_bits(before[n][2], after[n][2])} bits")
        if len(changed) > 4:
            self.faults.append(f"{place}: and {len(changed) - 4} more tensors differ")
        if not different and not changed and not self.by_tensors:
            self.faults.append(f"{place}: the tensors are the same, the header or the order is not (--tensors)")

    def keys(self, base: Path, tree: Path, place: str):
        if not (base.exists() and tree.exists()):
            self.faults.append(f"{place} is missing")
            return
        before, after = json.loads(base.read_text()), json.loads(tree.read_text())
        for key in before:
            if key in FREE_KEYS[base.name]:
                continue
            if key not in after:
                self.faults.append(f"{place}: {key} is gone")
            elif before[key] != after[key]:
                self.faults.append(f"{place}: {key} was {before[key]}, is {after[key]}")

    def metrics(self, base: Path, tree: Path):
        before, after = results_of(base), results_of(tree)
        self.results += len(before)
        if len(before) < 50:
            self.faults.append(f"{base} has {len(before)} results, wanted at least 50")
        for a, b in zip(before, after):
            if a != b:
                self.faults.append(f"metrics.jsonl: {a}, now {b}")
                return
        if len(before) != len(after):
            self.faults.append(f"metrics.jsonl: {len(before)} results, now {len(after)}")

    def print_last(self, seconds: float):
        if not self.faults:
            print(f"{self.name:18} the same bits ({seconds:.1f} s)", flush=True)
            return
        print(f"{self.name:18} DIFFERENT", flush=True)
        for fault in self.faults:
            print(f"    {fault}")

    def print_summary(self) -> bool:
        print(f"{self.passed} the same, {len(self.failed)} different, {len(self.skipped)} skipped; "
              f"{self.bytes} bytes of tensors and {self.results} results compared")
        return not self.failed and self.passed > 0


def check_that_a_flipped_bit_is_found(folder: Path):
    """The comparison itself is tried first, on two files of one tensor."""
    folder.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    content = bytearray(len(header).to_bytes(8, "little") + header + bytes(16))
    (folder / "a").write_bytes(content)
    content[-3] ^= 1
    (folder / "b").write_bytes(content)
    for other, faults in (("a", 0), ("b", 1)):
        trial = Comparison(by_tensors=True)
        trial.tensors(folder / "a", folder / other, "trial")
        if len(trial.faults) != faults:
            raise AssertionError(f"the comparison finds {trial.faults} in {folder / other}")
