"""Connections to rank 0's port that are not the run's: random bytes, forged hellos, half messages, many."""

import json
import random
import secrets
import socket
import struct
import threading
import time

from common import SECONDS, Skipped

MAGIC, HELLO = 0x41535354, 0


def message(body, kind=HELLO, length=None):
    return struct.pack("<IIQ", MAGIC, kind, len(body) if length is None else length) + body


def forged(rank, size):
    return json.dumps({"rank": rank, "size": size, "name": "forged", "build": "x", "config": "x"}).encode()


def what_strangers_say(chance):
    yield b""
    yield b"GET / HTTP/1.1\r\n\r\n"
    yield chance.randbytes(chance.randrange(1, 5000))
    for rank, size in ((1, 2), (0, 2), (7, 2), (1, 3), (-1, 2), (2**40, 2)):
        yield message(forged(rank, size))
        yield message(secrets.token_hex(32).encode() + forged(rank, size))
    yield message(b"[" * 1_000_000)
    yield message(b"", length=2**62)
    yield message(b"x" * 100, length=2**29)
    yield message(forged(1, 2))[:20]
    for kind in (*range(1, 9), 2**31):
        yield message(chance.randbytes(50), kind=kind)


class Strangers(threading.Thread):
    """Comes again and again until it is told to stop; most connections stay open."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.over, self.came, self.open = port, threading.Event(), 0, []

    def run(self):
        chance = random.Random(1)
        while not self.over.is_set():
            for text in what_strangers_say(chance):
                try:
                    connection = socket.create_connection(("127.0.0.1", self.port), timeout=1)
                    connection.sendall(text)
                    self.came += 1
                    self.open.append(connection)
                except OSError:
                    pass  # the meeting is over: nobody listens
                if len(self.open) > 300:
                    self.open.pop(0).close()
            time.sleep(0.01)

    def stop(self):
        self.over.set()
        self.join()
        for connection in self.open:
            connection.close()
        return self.came


def free_port():
    with socket.socket() as any_socket:
        any_socket.bind(("127.0.0.1", 0))
        return any_socket.getsockname()[1]


def by_hand(run, rank, name, port, secret):
    return run.start(
        name,
        environment={
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TESSERA_SECRET": secret,
        },
    )


def attack(run, tally):
    process = run.start("reference", "--ranks", "2")
    _, error = process.communicate(timeout=SECONDS)
    if "cannot exchange gradients" in error:
        raise Skipped("this build has no Gloo, which ranks on the CPU communicate through (libgloo-dev)")
    if not tally.expect(
        process.returncode == 0, "two ranks undisturbed", f"exit code {process.returncode}; {error}"
    ):
        return
    reference = {"results": run.results("reference"), "weights": run.weights("reference")}
    came = 0
    while not tally.time_is_over():
        tally.tried += 1
        case, name, port, secret = (
            f"strangers, run {tally.tried}",
            f"run_{tally.tried}",
            free_port(),
            secrets.token_hex(32),
        )
        first = by_hand(run, 0, name, port, secret)
        strangers = Strangers(port)
        strangers.start()
        time.sleep(1.5)
        second = by_hand(run, 1, name, port, secret)
        codes, errors = [], []
        for process in (first, second):
            _, error = process.communicate(timeout=SECONDS)
            codes.append(process.returncode)
            errors.append(error.strip())
        came_now = strangers.stop()
        came += came_now
        tally.expect(came_now > 20, case, f"only {came_now} strangers came in")
        if tally.expect(codes == [0, 0], case, f"exit codes {codes}; {errors}"):
            run.expect_as(reference, name, tally, case)
    tally.notes.append(f"{came} strangers")
