#!/usr/bin/env python3
"""Writes nfc_tables.h beside this file from Python's unicodedata: python3 data/tokenizers/make_nfc_tables.py

Python 3.11 has Unicode 14.0. The normal forms of characters that are assigned never change; later versions
add characters.
"""
import pathlib
import unicodedata

CODES = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF and not 0xAC00 <= c <= 0xD7A3]
LEAST_REUSED = 6  # characters that become what the text has already


def lines_of(items, between=" ", lead="    ", width=106):
    lines, line = [], ""
    for item in items:
        if line and len(line) + len(between) + len(item) > width:
            lines.append(line)
            line = ""
        line += (between if line else "") + item
    return "\n".join(lead + line for line in lines + [line])


def escaped(character):
    code = ord(character)
    if 0x20 < code < 0x7F and character not in "\"\\?":
        return character
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class Text:
    """What all characters become, one after another"""

    def __init__(self):
        self.text = ""

    def runs(self, table):
        """[code, characters, place in the text, what each becomes: so many] of [(code, text)] by code"""
        runs = []
        at = 0
        while at < len(table):
            code, to = table[at]
            following = "".join(t for t in self.same_lengths(table, at))
            reused = 0
            while reused < min(len(following) // len(to), 255) and following[: (reused + 1) * len(to)] in self.text:
                reused += 1
            if reused >= LEAST_REUSED or reused * len(to) == len(following):
                runs.append([code, reused, self.text.index(following[: reused * len(to)]), len(to)])
                at += reused
                continue
            last = runs[-1] if runs else None
            grows = last and last[0] + last[1] == code and last[3] == len(to) and last[1] < 255
            if grows and last[2] + last[1] * last[3] == len(self.text):
                last[1] += 1
            else:
                runs.append([code, 1, len(self.text), len(to)])
            self.text += to
            at += 1
        return runs

    @staticmethod
    def same_lengths(table, at):
        code, to = table[at]
        while at < len(table) and table[at][0] == code and len(table[at][1]) == len(to):
            yield table[at][1]
            at, code = at + 1, code + 1


def main():
    composites, others, compatible = [], [], []
    for code in CODES:
        parts = unicodedata.decomposition(chr(code))
        if parts and not parts.startswith("<"):
            text = "".join(chr(int(p, 16)) for p in parts.split())
            composes = unicodedata.normalize("NFC", text) == chr(code)
            assert composes is False or len(text) == 2
            (composites if composes else others).append((code, text))
        text = unicodedata.normalize("NFKD", chr(code))
        if text != unicodedata.normalize("NFD", chr(code)):
            compatible.append((code, text))
    classes = []  # [first, last, class]
    for code in CODES:
        number = unicodedata.combining(chr(code))
        if number == 0:
            continue
        if classes and classes[-1][1] == code - 1 and classes[-1][2] == number:
            classes[-1][1] = code
        else:
            classes.append([code, code, number])

    becomes = Text()

    def runs(table):
        found = becomes.runs(table)
        unpacked = [
            (code + i, becomes.text[place + i * each : place + (i + 1) * each])
            for code, count, place, each in found
            for i in range(count)
        ]
        assert unpacked == table
        return lines_of(f"{{{hex(code)}, {place}, {count}, {each}}}," for code, count, place, each in found)

    tables = [runs(table) for table in (compatible, others, composites)]
    text_lines = lines_of(map(escaped, becomes.text), between="", width=100).replace("    ", "    U\"")
    class_lines = lines_of(f"{{{hex(first)}, {hex(last)}, {number}}}," for first, last, number in classes)
    newline = "\n"
    text = f"""// Written by make_nfc_tables.py from Unicode {unicodedata.unidata_version}.
// clang-format off
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace tessera {{

// Characters one after another, from `code` on: the first becomes `each` characters of kReplacements from
// `place` on, the second those after them, and so on.
struct Replaced {{
  uint32_t code;
  uint16_t place;
  uint8_t characters, each;
}};

// Those that form KC replaces, by what is decomposed
inline constexpr Replaced kCompatible[] = {{
{tables[0]}
}};

// Those that are canonically the same as one or two others, and are never composed again
inline constexpr Replaced kNeverComposed[] = {{
{tables[1]}
}};

// Those that are canonically the same as two others, which NFC composes again
inline constexpr Replaced kComposites[] = {{
{tables[2]}
}};

inline constexpr std::u32string_view kReplacements =
{text_lines.replace(newline, '"' + newline)}";

// visit(code, what it becomes) for each character of a table
template <class Visit>
void for_each_replaced(std::span<const Replaced> table, const Visit& visit) {{
  for (const Replaced& run : table)
    for (uint32_t i = 0; i < run.characters; ++i)
      visit(run.code + i, kReplacements.substr(run.place + size_t{{i}} * run.each, run.each));
}}

// Canonical combining classes that are not 0
struct CombiningClass {{
  uint32_t first, last;  // characters
  uint8_t number;
}};
inline constexpr CombiningClass kCombiningClasses[] = {{
{class_lines}
}};

}}  // namespace tessera
"""
    (pathlib.Path(__file__).parent / "nfc_tables.h").write_text(text)


main()
