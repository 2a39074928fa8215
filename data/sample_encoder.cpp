#include "data/sample_encoder.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera {
namespace {

// Whether any text counts, so that there is something to learn
bool has_counted_text(const std::vector<ChatPart>& parts) {
  return std::ranges::any_of(parts, [](const ChatPart& part) { return part.counts && !part.is_marker; });
}

[[noreturn]] void refuse_byte(const ByteWithoutToken& error, const Piece& piece, int64_t line) {
  fail("{}:{}: {}. --bytes-without-token skip leaves such bytes out and counts them", piece.input, line,
       error.what());
}

}  // namespace

SampleEncoder::SampleEncoder(const SampleEncoderOptions& options) : options_(options) {
  if (!options_.chat) return;
  check_chat_template(*options_.chat, *options_.tokenizer);
  for (const std::string_view marker : markers_of(*options_.chat))
    markers_.emplace(marker, options_.tokenizer->encode(marker, SpecialTokens::kMatched));
}

// The ids from `first` on are new.
void SampleEncoder::note(int64_t first, bool counts, EncodedPiece& out) const {
  const int64_t count = std::ssize(out.ids) - first;
  if (counts || options_.loss == CountedLoss::kAll || count == 0) return;
  auto& runs = out.marks.uncounted;
  if (!runs.empty() && runs.back().first_token + runs.back().token_count == first) {
    runs.back().token_count += count;
  } else {
    runs.push_back({first, count});
  }
}

void SampleEncoder::add_ids(std::span<const int32_t> ids, bool counts, EncodedPiece& out) const {
  const int64_t first = std::ssize(out.ids);
  out.ids.insert(out.ids.end(), ids.begin(), ids.end());
  note(first, counts, out);
}

void SampleEncoder::add_text(std::string_view text, bool counts, EncodedPiece& out) const {
  const int64_t first = std::ssize(out.ids);
  if (options_.bytes_without_token == BytesWithoutToken::kSkip)
    out.skipped_bytes += options_.tokenizer->encode_known(text, SpecialTokens::kAsText, out.ids);
  else
    options_.tokenizer->encode(text, SpecialTokens::kAsText, out.ids);
  note(first, counts, out);
}

void SampleEncoder::add_part(const ChatPart& part, EncodedPiece& out) const {
  if (!part.is_marker) return add_text(part.text, part.counts, out);
  const auto known = markers_.find(part.text);
  check(known != markers_.end(), "the chat template has no marker {}", part.text);
  add_ids(known->second, part.counts, out);
}

void SampleEncoder::end(bool counts, bool after_text, EncodedPiece& out) const {
  const auto after = options_.tokenizer->after_text();
  const int32_t end_of_text = options_.tokenizer->end_of_text();
  if (after_text) add_ids(after, counts, out);
  if (!after_text || after.empty() || after.back() != end_of_text) add_ids({&end_of_text, 1}, counts, out);
  ++out.documents;
}

void SampleEncoder::add_line(std::string_view line, const std::string& input, int64_t number,
                             EncodedPiece& out) const {
  const Sample sample = parse_sample(line, input, number, options_.text_field);
  const auto place = [&] { return fmt::format("{}:{}", input, number); };
  const auto drop = [&](const char* why) {
    check(!options_.strict,
          "{}: no token of this sample counts: {}; without --strict such samples are dropped", place(), why);
    out.dropped.push_back(place());
  };
  const bool all = options_.loss == CountedLoss::kAll;
  if (const auto* text = std::get_if<std::string>(&sample)) {
    begin(out);
    add_ids(options_.tokenizer->before_text(), true, out);
    add_text(*text, true, out);
    end(true, true, out);
  } else if (const auto* completion = std::get_if<Completion>(&sample)) {
    if (completion->completion.empty() && !all) return drop("its completion is empty");
    begin(out);
    add_ids(options_.tokenizer->before_text(), false, out);
    add_text(completion->prompt, false, out);
    add_text(completion->completion, true, out);
    end(true, true, out);
  } else {
    check(
        options_.chat.has_value(),
        "{}: a conversation needs a chat template, and the tokenizer {} does not tell which: chatml has the "
        "special token <|im_start|>, llama3 <|start_header_id|>, and it has neither or both; name one with "
        "--chat-template chatml or llama3",
        place(), options_.tokenizer->name());
    const std::vector<ChatPart> parts = render(*options_.chat, std::get<Conversation>(sample));
    if (!all && !has_counted_text(parts)) return drop("no assistant says anything in it");
    begin(out);
    for (const ChatPart& part : parts) add_part(part, out);
    end(false, false, out);
    ++out.conversations;
  }
}

EncodedPiece SampleEncoder::encode(const Piece& piece) const {
  EncodedPiece out;
  if (piece.is_lines) {
    for_each_line(piece, [&](std::string_view line, int64_t number) {
      try {
        add_line(line, piece.input, number, out);
      } catch (const ByteWithoutToken& error) {  // whose line is that of a text within the line
        refuse_byte(error, piece, number);
      }
    });
    return out;
  }
  if (piece.begins) {
    begin(out);
    add_ids(options_.tokenizer->before_text(), true, out);
  }
  try {
    add_text(piece.bytes, true, out);
  } catch (const ByteWithoutToken& error) {
    refuse_byte(error, piece, piece.first_line + error.line - 1);
  }
  if (piece.ends) end(true, true, out);
  return out;
}

}  // namespace tessera
