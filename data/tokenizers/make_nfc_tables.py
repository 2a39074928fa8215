#!/usr/bin/env python3
"""Writes nfc_tables.h beside this file from Python's unicodedata: python3 data/tokenizers/make_nfc_tables.py

Python 3.11 has Unicode 14.0. The normal forms of characters that are assigned never change; later versions
add characters.
"""
import pathlib
import unicodedata

CODES = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF and not 0xAC00 <= c <= 0xD7A3]


def rows(items, width=108):
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > width:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return "\n".join(lines + [line])


def main():
    composites, others = [], []
    for code in CODES:
        parts = unicodedata.decomposition(chr(code))
        if not parts or parts.startswith("<"):
            continue
        parts = [int(p, 16) for p in parts.split()]
        text = "".join(map(chr, parts))
        composes = unicodedata.normalize("NFC", text) == chr(code)
        assert composes is False or len(parts) == 2
        (composites if composes else others).append((code, *parts, *[0] * (2 - len(parts))))
    classes = []  # [first, last, class]
    for code in CODES:
        number = unicodedata.combining(chr(code))
        if number == 0:
            continue
        if classes and classes[-1][1] == code - 1 and classes[-1][2] == number:
            classes[-1][1] = code
        else:
            classes.append([code, code, number])

    pool, compatible = [], []  # code points; [code, the first of them, their number]
    for code in CODES:
        text = unicodedata.normalize("NFKD", chr(code))
        if text == unicodedata.normalize("NFD", chr(code)):
            continue
        compatible.append((code, len(pool), len(text)))
        pool += map(ord, text)

    def entries(table):
        return rows("{" + ", ".join(hex(n) if i < 2 or n > 255 else str(n) for i, n in enumerate(e)) + "}" for e in table)

    text = f"""// Written by make_nfc_tables.py from Unicode {unicodedata.unidata_version}.
// clang-format off
#pragma once

#include <cstdint>

namespace tessera {{

// A character and the one or two characters (else 0) that it is canonically the same as
struct Decomposition {{
  uint32_t code, first, second;
}};

// Those that are composed again in NFC
inline constexpr Decomposition kComposites[] = {{
{entries(composites)}
}};

// Those that never are
inline constexpr Decomposition kNeverComposed[] = {{
{entries(others)}
}};

// A character that form KC replaces: `count` of kCompatibleCodes from `first` on, which are decomposed
struct Compatible {{
  uint32_t code;
  uint16_t first, count;
}};
inline constexpr uint32_t kCompatibleCodes[] = {{
{rows(map(hex, pool))}
}};
inline constexpr Compatible kCompatible[] = {{
{rows(f"{{{hex(code)}, {first}, {count}}}" for code, first, count in compatible)}
}};

// Canonical combining classes that are not 0
struct CombiningClass {{
  uint32_t first, last;  // characters
  uint8_t number;
}};
inline constexpr CombiningClass kCombiningClasses[] = {{
{entries(classes)}
}};

}}  // namespace tessera
"""
    (pathlib.Path(__file__).parent / "nfc_tables.h").write_text(text)


main()
