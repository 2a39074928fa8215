#include "train/generate/text_stream.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

constexpr uint32_t kReplacement = 0xFFFD;

bool within(unsigned char byte, unsigned char first, unsigned char last) {
  return byte >= first && byte <= last;
}

// Bytes of the character that begins with this one; 1 if none does
size_t character_bytes(unsigned char first) {
  return within(first, 0xC2, 0xDF) ? 2 : within(first, 0xE0, 0xEF) ? 3 : within(first, 0xF0, 0xF4) ? 4 : 1;
}

// Whether the second byte may follow the first: no longer form than needed, no surrogate, at most U+10FFFF
bool may_follow(unsigned char first, unsigned char second) {
  const unsigned char least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  return within(second, least, most);
}

// The number of bytes at the end of `text` that are the beginning of `stop`, but not all of it
size_t begun(std::string_view text, std::string_view stop) {
  for (size_t bytes = std::min(text.size(), stop.size() - 1); bytes > 0; --bytes)
    if (text.ends_with(stop.substr(0, bytes))) return bytes;
  return 0;
}

}  // namespace

size_t unfinished_utf8(std::string_view text) {
  for (size_t bytes = std::min<size_t>(text.size(), 3); bytes > 0; --bytes) {
    const std::string_view end = text.substr(text.size() - bytes);
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(end[i]); };
    if (bytes >= character_bytes(byte(0)) || (bytes > 1 && !may_follow(byte(0), byte(1)))) continue;
    if (bytes == 3 && !within(byte(2), 0x80, 0xBF)) continue;
    return bytes;
  }
  return 0;
}

TextStream::TextStream(const Tokenizer& tokenizer, const Options& options)
    : tokenizer_(tokenizer), options_(options) {
  for (const std::string& stop : options_.stops) check(!stop.empty(), "a stop string is empty");
}

std::string TextStream::add(int32_t token) {
  if (stopped_) return "";
  bytes_ += tokenizer_.token_text(token, options_.show_special);
  return take(/*all=*/false);
}

std::string TextStream::finish() { return stopped_ ? "" : take(/*all=*/true); }

std::string TextStream::take(bool all) {
  const size_t held = all ? 0 : unfinished_utf8(bytes_);
  std::string_view rest = std::string_view(bytes_).substr(0, bytes_.size() - held);
  while (!rest.empty()) {
    const size_t well = utf8_prefix(rest);
    text_ += rest.substr(0, well);
    rest.remove_prefix(well);
    if (rest.empty()) break;
    append_utf8(text_, kReplacement);
    rest.remove_prefix(1);
  }
  bytes_.erase(0, bytes_.size() - held);

  size_t end = text_.npos, kept = 0;
  for (const std::string& stop : options_.stops) {
    end = std::min(end, text_.find(stop));
    kept = std::max(kept, begun(text_, stop));
  }
  stopped_ = end != text_.npos;
  std::string out = text_.substr(0, stopped_ ? end : all ? text_.npos : text_.size() - kept);
  text_.erase(0, out.size());
  return out;
}

}  // namespace tessera
