#include "data/sample_show.h"

#include <unistd.h>

#include <cstdio>
#include <span>

#include "kernels/base/status_line.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

// The sample as text, with the parts that count in green on a terminal, else in brackets
std::string marked_text(const EncodedPiece& sample, const Tokenizer& tokenizer) {
  constexpr size_t kMostBytes = 4000;
  const bool in_colour = draws_in_place(STDOUT_FILENO);
  const auto text_of = [&](int64_t first, int64_t count) {
    std::string text;
    for (const int32_t id :
         std::span(sample.ids).subspan(static_cast<size_t>(first), static_cast<size_t>(count)))
      if (id == tokenizer.end_of_text() && tokenizer.name() == kBytesTokenizer) {
        text += "<|endoftext|>";  // this token has no bytes
      } else {
        text += tokenizer.token_text(id, true);
      }
    const size_t cut = text.size() <= kMostBytes ? text.size() : utf8_prefix(text.substr(0, kMostBytes));
    return printable(text.substr(0, cut)) +
           (cut < text.size() ? fmt::format("... ({} bytes)", text.size()) : "");
  };
  std::string out;
  const auto add_counted = [&](int64_t first, int64_t end) {
    if (first < end)
      out += (in_colour ? "\x1b[32m" : "[") + text_of(first, end - first) + (in_colour ? "\x1b[0m" : "]");
  };
  int64_t at = 0;
  for (const auto& [first, count] : sample.marks.uncounted) {
    add_counted(at, first);
    out += text_of(first, count);
    at = first + count;
  }
  add_counted(at, std::ssize(sample.ids));
  return out;
}

}  // namespace

void SampleShow::print(const Piece& piece, const std::string& place) {
  const EncodedPiece sample = encoder_.encode(piece);
  int64_t counted = std::ssize(sample.ids);
  for (const TokenRange& run : sample.marks.uncounted) counted -= run.token_count;
  fmt::print("{}: ", place);
  if (sample.documents + std::ssize(sample.marks.starts) == 0) {
    fmt::print("dropped: {}\n", !sample.refused.empty()     ? sample.refused[0].why
                                : !sample.why_unfit.empty() ? sample.why_unfit
                                                            : "no token counts");
  } else {
    const std::vector<int32_t> ends(sample.turn_ends.begin(), sample.turn_ends.end());
    fmt::print("tokens {}, counted {}{}{}\n{}\n\n", sample.ids.size(), counted,
               sample.conversations == 0 ? std::string()
               : ends.empty()            ? ", no end of a turn has a loss"
                                         : ", ends of turns with a loss: " + list_tokens(tokenizer_, ends),
               sample.documents == 0 ? " (the text goes on)" : "", marked_text(sample, tokenizer_));
  }
  ++shown_;
}

bool SampleShow::add(const Piece& piece) {
  if (!piece.is_lines && piece.begins) print(piece, piece.input);
  if (piece.is_lines)
    for_each_line(piece, [&](std::string_view line, int64_t number) {
      if (needs_more())
        print({.bytes = std::string(line), .input = piece.input, .is_lines = true, .first_line = number},
              fmt::format("{}:{}", piece.input, number));
    });
  return piece.is_lines && needs_more();
}

}  // namespace tessera
