#include "data/tokenizers/byte_alphabet.h"

#include <fmt/core.h>

#include <array>
#include <charconv>

#include "kernels/base/text.h"

namespace tessera {
namespace {

constexpr uint32_t kOthers = 0x100;  // where the characters of bytes that are not printable begin
constexpr uint32_t kOtherCount = 68;
constexpr uint32_t kEnd = kOthers + kOtherCount;

constexpr bool is_printable(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<uint32_t, 256> characters() {
  std::array<uint32_t, 256> out{};
  uint32_t other = kOthers;
  for (uint32_t byte = 0; byte < 256; ++byte) out[byte] = is_printable(byte) ? byte : other++;
  return out;
}
constexpr std::array<uint32_t, 256> kCharacters = characters();

// The byte of each character below kEnd; -1: it stands for none.
constexpr std::array<int16_t, kEnd> bytes() {
  std::array<int16_t, kEnd> out{};
  out.fill(-1);
  for (uint32_t byte = 0; byte < 256; ++byte) out[kCharacters[byte]] = static_cast<int16_t>(byte);
  return out;
}
constexpr std::array<int16_t, kEnd> kBytes = bytes();

}  // namespace

std::string to_byte_alphabet(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (const char byte : bytes) append_utf8(out, kCharacters[static_cast<unsigned char>(byte)]);
  return out;
}

std::optional<std::string> from_byte_alphabet(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size(); ++at) {
    // All of them have one or two bytes in UTF-8; of two the first is 0b110 and five bits, the second 0b10
    // and six.
    uint32_t code = static_cast<unsigned char>(text[at]);
    if (code >= 0x80) {
      const uint32_t second = at + 1 < text.size() ? static_cast<unsigned char>(text[at + 1]) : 0;
      if (code < 0xC2 || code > 0xDF || second >> 6 != 0b10) return {};
      code = (code & 0x1F) << 6 | (second & 0x3F);
      ++at;
    }
    if (code >= kEnd || kBytes[code] < 0) return {};
    out += static_cast<char>(kBytes[code]);
  }
  return out;
}

std::string byte_token(uint8_t byte) { return fmt::format("<0x{:02X}>", byte); }

std::optional<uint8_t> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return {};
  uint8_t byte = 0;
  const char* const end = token.data() + 5;
  const auto [stop, error] = std::from_chars(token.data() + 3, end, byte, 16);
  const bool is_byte = error == std::errc() && stop == end && byte_token(byte) == token;
  return is_byte ? std::optional(byte) : std::nullopt;
}

}  // namespace tessera
