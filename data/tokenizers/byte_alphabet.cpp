#include "data/tokenizers/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "kernels/base/text.h"

namespace tessera {
namespace {

constexpr uint32_t kOthers = 0x100;  // where the characters of bytes that are not printable begin
constexpr uint32_t kOtherCount = 68;

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

constexpr std::array<unsigned char, kOtherCount> others() {
  std::array<unsigned char, kOtherCount> out{};
  for (uint32_t byte = 0; byte < 256; ++byte)
    if (!is_printable(byte)) out[kCharacters[byte] - kOthers] = static_cast<unsigned char>(byte);
  return out;
}
constexpr std::array<unsigned char, kOtherCount> kOtherBytes = others();

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
  while (!text.empty()) {
    const std::optional<CodePoint> next = first_code_point(text);
    if (!next) return {};
    if (next->code >= kOthers && next->code < kOthers + kOtherCount) {
      out += static_cast<char>(kOtherBytes[next->code - kOthers]);
    } else if (next->code < kOthers && is_printable(next->code)) {
      out += static_cast<char>(next->code);
    } else {
      return {};
    }
    text.remove_prefix(next->bytes);
  }
  return out;
}

}  // namespace tessera
