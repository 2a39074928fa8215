#!/usr/bin/env python3
"""Writes texts that teach a model to look things up: pieces of a text, with facts between its lines that are
asked for further down. `./bench needle` asks for such a fact.

  python3 secret_numbers.py TEXT LENGTH COUNT > facts.jsonl

TEXT: any long text. LENGTH: characters of each of the COUNT texts. Names and numbers are new in every text, and
every fact stands at two to four places. Some texts are all facts, which is where a model learns first to look
one up; others have few of them.
"""

import json
import random
import string
import sys

FACT = len("\nThe secret number of Lima is 48213.\n")  # characters


def name() -> str:
    return "".join(random.choices(string.ascii_lowercase, k=random.randint(3, 7))).capitalize()


def text(lines: list[str], length: int) -> str:
    times = random.randint(2, 4)
    most = max(1, length // (times * FACT))
    names = dict.fromkeys(name() for _ in range(round(most ** random.random())))
    facts = [f"\nThe secret number of {n} is {random.randint(10000, 99999)}.\n" for n in names] * times
    first, pieces, size = random.randrange(len(lines)), [], sum(map(len, facts))
    while size < length:
        pieces.append(lines[first % len(lines)])
        size += len(pieces[-1])
        first += 1
    places = sorted((random.randint(0, len(pieces)), fact) for fact in facts)
    for place, fact in reversed(places):
        pieces.insert(place, fact)
    return "".join(pieces)


def main() -> None:
    lines = open(sys.argv[1], encoding="utf-8").read().splitlines(keepends=True)
    length, count = int(sys.argv[2]), int(sys.argv[3])
    random.seed(length)
    for _ in range(count):
        print(json.dumps({"text": text(lines, length)}))


main()
