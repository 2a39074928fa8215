#include "data/chat/text.h"

#include <algorithm>
#include <utility>

#include "data/chat/budget.h"

namespace tessera::jinja {
namespace {

bool starts_character(char byte) { return (byte & 0xC0) != 0x80; }
size_t inner_bytes(std::string_view bytes) {
  return bytes.size() - static_cast<size_t>(std::ranges::count_if(bytes, starts_character));
}

}  // namespace

Text::Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)), inner_(inner_bytes(bytes_)) {
  if (!bytes_.empty()) runs_.push_back({bytes_.size(), origin});
  hold();
}
Text::Text(const Text& other) : bytes_(other.bytes_), runs_(other.runs_), inner_(other.inner_) {
  Budget::spend_bytes(bytes_.size());
  hold();
}
Text::Text(Text&& other) noexcept
    : bytes_(std::move(other.bytes_)),
      runs_(std::move(other.runs_)),
      inner_(std::exchange(other.inner_, 0)),
      held_(std::exchange(other.held_, 0)) {
  other.bytes_.clear();
  other.runs_.clear();
}
Text& Text::operator=(Text other) noexcept {
  bytes_.swap(other.bytes_);
  runs_.swap(other.runs_);
  std::swap(inner_, other.inner_);
  std::swap(held_, other.held_);
  return *this;
}
Text::~Text() { Budget::release(held_); }

// Counts what the text takes beyond what is counted already.
void Text::hold() {
  const size_t takes = bytes_.size() + runs_.size() * sizeof(Run);
  if (takes > held_) held_ += Budget::hold(takes - held_);
}

Origin Text::origin_at(size_t at) const {
  const auto run = std::ranges::upper_bound(runs_, at, {}, &Run::end);
  return run == runs_.end() ? kTemplate : run->origin;
}

void Text::append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  Budget::spend_bytes(bytes.size());
  held_ += Budget::hold(bytes.size());
  bytes_ += bytes;
  inner_ += inner_bytes(bytes);
  if (!runs_.empty() && runs_.back().origin == origin) {
    runs_.back().end = bytes_.size();
  } else {
    held_ += Budget::hold(sizeof(Run));
    runs_.push_back({bytes_.size(), origin});
  }
}

void Text::append(const Text& text, size_t first, size_t count) {
  const size_t last = first + std::min(count, text.size() - std::min(first, text.size()));
  const std::string_view bytes = text.bytes_;
  auto run = std::ranges::upper_bound(text.runs_, first, {}, &Run::end);
  for (size_t at = first; at < last; ++run) {
    const size_t end = std::min(run->end, last);
    append(bytes.substr(at, end - at), run->origin);
    at = end;
  }
}

void Text::append(size_t times, char c) {
  constexpr size_t kPiece = 4096;
  const std::string piece(std::min(times, kPiece), c);
  for (; times > 0; times -= std::min(times, kPiece))
    append(std::string_view(piece).substr(0, std::min(times, kPiece)), kTemplate);
}

Text Text::part(size_t first, size_t count) const {
  Text out;
  out.append(*this, first, count);
  return out;
}

int64_t Text::length_before(size_t at) const {
  if (inner_ == 0) return static_cast<int64_t>(at);
  Budget::spend_bytes(at);
  return static_cast<int64_t>(at - inner_bytes(std::string_view(bytes_).substr(0, at)));
}

size_t Text::place_of(int64_t character) const {
  if (inner_ == 0 || character <= 0) return static_cast<size_t>(std::clamp<int64_t>(character, 0, length()));
  if (character >= length()) return size();
  size_t at = 0;
  for (int64_t left = character; left >= 0; ++at) left -= starts_character(bytes_[at]);
  Budget::spend_bytes(at);
  return at - 1;
}

Text Text::characters(int64_t first, int64_t last, int64_t step) const {
  if (step == 1) {
    if (first >= last) return {};
    const size_t begin = place_of(first);
    return part(begin, place_of(last) - begin);
  }
  const int64_t count = step > 0 ? (last - first + step - 1) / step : (first - last - step - 1) / -step;
  if (count <= 0) return {};
  Budget::spend(count);
  std::vector<size_t, Counted<size_t>> starts;  // of all characters; none for a text in ASCII
  if (inner_ > 0)
    for (size_t at = 0; at < size(); ++at)
      if (starts_character(bytes_[at])) starts.push_back(at);
  if (inner_ > 0) starts.push_back(size());
  Text out;
  for (int64_t at = first, done = 0; done < count; at += step, ++done) {
    const auto place = static_cast<size_t>(at);
    if (inner_ == 0)
      out.append(*this, place, 1);
    else
      out.append(*this, starts[place], starts[place + 1] - starts[place]);
  }
  return out;
}

Text repeated(const Text& text, int64_t times) {
  Text out, piece;  // a short text is repeated by pieces
  if (text.empty()) return out;
  constexpr int64_t kPiece = 4096;
  const int64_t in_piece =
      std::clamp<int64_t>(kPiece / static_cast<int64_t>(text.size()), 1, std::max<int64_t>(times, 1));
  for (int64_t i = 0; i < in_piece; ++i) piece.append(text);
  for (; times >= in_piece; times -= in_piece) {
    Budget::spend(1);
    out.append(piece);
  }
  for (; times > 0; --times) out.append(text);
  return out;
}

}  // namespace tessera::jinja
