"""Writes unicode_tables.h: what Python's str knows of letters, for text_cases.cpp.

make_unicode_tables.py > unicode_tables.h
"""
import unicodedata

ALL = range(0x110000)


def changed(change):
    """Ranges [first, last] in steps whose characters become code + delta; and characters that become several"""
    ranges, several = [], []
    for code in ALL:
        made = change(chr(code))
        if len(made) > 1:
            several.append((code, made))
        elif made != chr(code):
            delta = ord(made) - code
            last = ranges[-1] if ranges else None
            if last and last[3] == delta and code - last[1] in (1, 2) and last[2] in (0, code - last[1]):
                last[1:3] = [code, code - last[1]]
            else:
                ranges.append([code, code, 0, delta])
    return [(a, b, max(step, 1), delta) for a, b, step, delta in ranges], several


def flags(code):
    c = chr(code)
    lower, upper = c.islower() != (c.upper() != c), c.isupper() != (c.lower() != c)
    of_form = c.upper() == c and c.lower() == c and c.title() == c
    return (c.isalpha() | c.isdecimal() << 1 | c.isdigit() << 2 | c.isnumeric() << 3 | c.isprintable() << 4
            | lower << 5 | upper << 6 | (not of_form and not c.islower() and not c.isupper()) << 7)


def lines(words):
    line = " "
    for word in words:
        if len(line) + len(word) > 107:
            print(line)
            line = " "
        line += " " + word
    print(line)


print(f"""// Written by make_unicode_tables.py from Unicode {unicodedata.unidata_version}.
// clang-format off
#pragma once

#include <cstdint>

namespace tessera::jinja {{

// The characters from `first` to `last`, of each `step` one, become code + delta.
struct CaseRange {{
  uint32_t first, last, step;
  int32_t delta;
}};
struct LongCase {{
  uint32_t code;
  const char* text;
}};
// The characters from `code` on, up to the next entry. Bits 0 to 4: alphabetic, decimal, digit, numeric,
// printable; 5 and 6: lower and upper case are not as the existence of the other case says; 7: title case
struct Property {{
  uint32_t code;
  uint8_t flags;
}};
""")
for name, change in {"Upper": str.upper, "Lower": str.lower, "Title": str.title, "Fold": str.casefold}.items():
    ranges, several = changed(change)
    print(f"inline constexpr CaseRange k{name}[] = {{")
    lines([f"{{{a},{b},{step},{delta}}}," for a, b, step, delta in ranges])
    print("};")
    print(f"inline constexpr LongCase kLong{name}[] = {{")
    lines(["{%d,\"%s\"}," % (code, "".join(f"\\{byte:03o}" for byte in made.encode())) for code, made in several])
    print("};")
print("inline constexpr Property kProperties[] = {")
words, before = [], None
for code in ALL:
    if flags(code) != before:
        before = flags(code)
        words.append(f"{{{code},{before}}},")
lines(words)
print("};\n\n}  // namespace tessera::jinja")
