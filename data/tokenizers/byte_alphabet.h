// The 256 characters by which files of byte-level BPE write bytes: the printable ones of Latin-1 are
// themselves, and the other 68, in order, are U+0100 and on. A blank is "Ġ".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

// The characters of some bytes, in UTF-8.
std::string to_byte_alphabet(std::string_view bytes);

// The bytes that `text` writes; nothing if one of its characters stands for none, or it is not UTF-8.
std::optional<std::string> from_byte_alphabet(std::string_view text);

// Vocabularies of characters have a byte as "<0x0A>".
std::string byte_token(uint8_t byte);
// The byte of such a token; nothing: `token` is another one.
std::optional<uint8_t> byte_of_token(std::string_view token);

}  // namespace tessera
