"""Power cuts: the run writes to a file system on a loop device. At some moment the device is copied as it
is, which is what a disk holds when the power goes, and a run goes on from the copy."""

import os
import random
import shutil
import subprocess
import time

from common import SECONDS, Skipped

MEGABYTES = 32


def system(*command):
    return subprocess.run(command, capture_output=True, text=True)


class Disk:
    """A file with an ext4 file system, and where it is mounted."""

    def __init__(self, image, place):
        self.image, self.place = image, place
        place.mkdir(exist_ok=True)

    def make(self):
        with open(self.image, "wb") as file:
            file.truncate(MEGABYTES << 20)
        return system("mkfs.ext4", "-q", "-F", str(self.image))

    def mount(self):
        return system("mount", "-o", "loop", str(self.image), str(self.place))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        system("umount", "--lazy", str(self.place))


def attack(run, tally):
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        raise Skipped("only root may mount, with mkfs.ext4")
    memory = run.folder / "memory"  # of the images, so that a copy takes no time in which the disk changes
    memory.mkdir()
    if system("mount", "-t", "tmpfs", "tmpfs", str(memory)).returncode != 0:
        raise Skipped("nothing can be mounted here")
    try:
        cuts(run, tally, memory)
    finally:
        system("umount", "--lazy", str(memory))


def cuts(run, tally, memory):
    reference = run.reference(tally)
    chance = random.Random(1)
    length = None  # seconds of the run
    while not tally.time_is_over():
        at, name = tally.tried, "run"
        with Disk(memory / "image", run.folder / "disk") as disk:
            made = disk.make()
            mounted = disk.mount()
            if made.returncode or mounted.returncode:
                raise Skipped(f"no loop device: {(made.stderr + mounted.stderr).strip()}")
            begin = time.monotonic()
            process = run.start(f"disk/{name}")
            if length is None:  # undisturbed, on that disk
                process.communicate(timeout=SECONDS)
                length = time.monotonic() - begin
                continue
            time.sleep(chance.uniform(0.1, 1.1) * length)
            shutil.copyfile(disk.image, memory / "copy")
            process.kill()
            process.communicate()
        tally.tried += 1
        case = f"power cut {at}"
        with Disk(memory / "copy", run.folder / "disk") as disk:
            system("fsck.ext4", "-p", str(disk.image))
            mounted = disk.mount()
            if not tally.expect(
                mounted.returncode == 0, case, f"the copy cannot be mounted: {mounted.stderr}"
            ):
                continue
            code, error = run.resume(f"disk/{name}")
            if tally.expect(code == 0, case, f"it cannot go on: exit code {code}; {error}"):
                run.expect_as(reference, f"disk/{name}", tally, case)
