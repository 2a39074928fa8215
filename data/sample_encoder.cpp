#include "data/sample_encoder.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/signals.h"

namespace tessera {
namespace {

template <class List>
void append_list(const List& more, List& out) {
  out.insert(out.end(), more.begin(), more.end());
}

// The documents of `more` after those of `out`
void append(const EncodedPiece& more, EncodedPiece& out) {
  const int64_t first = std::ssize(out.ids);
  append_list(more.ids, out.ids);
  for (const int64_t start : more.marks.starts) out.marks.starts.push_back(first + start);
  append_list(more.marks.labels, out.marks.labels);
  for (const auto& [token, count] : more.marks.uncounted)
    out.marks.uncounted.push_back({first + token, count});
  for (const auto& [token, count, weight] : more.marks.weights)
    out.marks.weights.push_back({first + token, count, weight});
  out.documents += more.documents;
  out.conversations += more.conversations;
  out.pairs += more.pairs;
  append_list(more.dropped, out.dropped);
  if (out.unfit.empty()) out.why_unfit = more.why_unfit;
  append_list(more.unfit, out.unfit);
  append_list(more.refused, out.refused);
  append_list(more.lost_thoughts, out.lost_thoughts);
  if (out.special_names == 0) out.first_special_name = more.first_special_name;
  out.special_names += more.special_names;
  append_list(more.joined, out.joined);
  out.turn_ends.insert(more.turn_ends.begin(), more.turn_ends.end());
  out.skipped_bytes += more.skipped_bytes;
}

[[noreturn]] void refuse_byte(const ByteWithoutToken& error, const Piece& piece, int64_t line) {
  fail("{}:{}: {}. --bytes-without-token skip leaves such bytes out and counts them", piece.input, line,
       error.what());
}

}  // namespace

SampleEncoder::SampleEncoder(const SampleEncoderOptions& options)
    : options_(options), specials_(*options.tokenizer) {}

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

// The tokens from `first` on, which are the last ones, have their weights times this.
void SampleEncoder::weigh(int64_t first, double weight, EncodedPiece& out) const {
  auto& runs = out.marks.weights;
  if (weight == 1) return;
  const auto of_these = std::ranges::lower_bound(runs, first, {}, &WeightedTokens::first_token);
  std::vector<WeightedTokens> made;
  int64_t at = first;
  const auto add = [&](int64_t end, double its) {
    if (at < end && its != 1) made.push_back({at, end - at, its});
    at = std::max(at, end);
  };
  for (auto run = of_these; run != runs.end(); ++run) {
    add(run->first_token, weight);
    add(run->first_token + run->token_count, weight * run->weight);
  }
  add(std::ssize(out.ids), weight);
  runs.erase(of_these, runs.end());
  append_list(made, runs);
}

void SampleEncoder::add_ids(std::span<const int32_t> ids, bool counts, EncodedPiece& out) const {
  const int64_t first = std::ssize(out.ids);
  out.ids.insert(out.ids.end(), ids.begin(), ids.end());
  note(first, counts, out);
}

void SampleEncoder::encode_text(std::string_view text, SpecialTokens special, TextPlace begin,
                                std::vector<int32_t>& ids, EncodedPiece& out) const {
  if (options_.bytes_without_token == BytesWithoutToken::kSkip)
    out.skipped_bytes += options_.tokenizer->encode_known(text, special, ids, begin);
  else
    options_.tokenizer->encode(text, special, ids, begin);
}

void SampleEncoder::add_document_text(std::string_view text, TextPlace begin, const std::string& place,
                                      bool counts, EncodedPiece& out) const {
  const int64_t first = std::ssize(out.ids), names = specials_.count(text);
  if (names > 0 && out.special_names == 0) out.first_special_name = place;
  out.special_names += names;
  encode_text(text, options_.special, begin, out.ids, out);
  note(first, counts, out);
}

// Ends a text or a completion
void SampleEncoder::end(EncodedPiece& out) const {
  const auto after = options_.tokenizer->after_text();
  const int32_t end_of_text = options_.tokenizer->end_of_text();
  add_ids(after, true, out);
  if (after.empty() || after.back() != end_of_text) add_ids({&end_of_text, 1}, true, out);
  ++out.documents;
}

void SampleEncoder::drop(const std::string& place, const char* why, EncodedPiece& out) const {
  check(!options_.strict, "{}: no token of this sample counts: {}; without --strict such samples are dropped",
        place, why);
  out.dropped.push_back(place);
}

void SampleEncoder::add_conversation(const Conversation& conversation, const std::string& place,
                                     EncodedPiece& out) const {
  check(options_.chat != nullptr, "{}: {}", place, options_.no_chat);
  const bool all = options_.loss == CountedLoss::kAll;
  check(!all || conversation.weights.empty(),
        "{}: message {} has a weight, which says how much an assistant's turn counts, and with --loss all "
        "every token counts the same: leave out the weight, or --loss all",
        place, conversation.weights.empty() ? 0 : conversation.weights.begin()->first + 1);
  const bool tools = !conversation.tools.is_none() && options_.chat_with_tools != nullptr;
  EncodedChat chat;
  try {
    chat = (tools ? options_.chat_with_tools : options_.chat)
               ->encode(conversation, all,
                        [&](std::string_view text, SpecialTokens special, TextPlace begin,
                            std::vector<int32_t>& ids) { encode_text(text, special, begin, ids, out); });
  } catch (const ByteWithoutToken&) {
    throw;
  } catch (const RefusedConversation& error) {
    check(!options_.strict, "{}: {}", place, error.what());
    out.refused.push_back({place, error.what()});
    return;
  } catch (const UnfitConversation& error) {
    check(!options_.strict, "{}: {}", place, error.what());
    if (out.unfit.empty()) out.why_unfit = error.what();
    out.unfit.push_back(place);
    return;
  } catch (const Error& error) {
    fail("{}: {}", place, error.what());
  }
  if (!all && !chat.has_targets) return drop(place, "no assistant says anything in it", out);
  begin(out);
  for (const ChatPart& part : chat.parts) {
    add_ids(part.ids, part.counts, out);
    weigh(std::ssize(out.ids) - std::ssize(part.ids), part.weight, out);
  }
  const int32_t end_of_text = options_.tokenizer->end_of_text();
  if (chat.parts.empty() || out.ids.back() != end_of_text) {
    const bool counts = chat.ends_with_target > 0;
    add_ids({&end_of_text, 1}, counts, out);
    if (counts) {
      weigh(std::ssize(out.ids) - 1, chat.ends_with_target, out);
      out.turn_ends.insert(end_of_text);
    }
  }
  if (chat.special_names > 0 && out.special_names == 0) out.first_special_name = place;
  out.special_names += chat.special_names;
  if (chat.joined > 0) out.joined.push_back(place);
  if (chat.lost_thoughts) out.lost_thoughts.push_back(place);
  out.turn_ends.insert(chat.turn_ends.begin(), chat.turn_ends.end());
  ++out.documents;
  ++out.conversations;
}

void SampleEncoder::add_completion(const Completion& completion, const std::string& place,
                                   EncodedPiece& out) const {
  begin(out);
  add_ids(options_.tokenizer->before_text(), false, out);
  add_document_text(completion.prompt, TextPlace::kStart, place, false, out);
  const TextPlace after = completion.prompt.empty() ? TextPlace::kStart : TextPlace::kWithin;
  add_document_text(completion.completion, after, place, true, out);
  end(out);
}

void SampleEncoder::add_answer(const Completion& completion, const std::string& place,
                               EncodedPiece& out) const {
  if (completion.completion.empty() && options_.loss != CountedLoss::kAll)
    return drop(place, "its completion is empty", out);
  add_completion(completion, place, out);
}

void SampleEncoder::add_labelled(const Labelled& sample, const std::string& place, EncodedPiece& out) const {
  const int64_t before = out.documents;
  if (const auto* completion = std::get_if<Completion>(&sample.answer))
    add_answer(*completion, place, out);
  else
    add_conversation(std::get<Conversation>(sample.answer), place, out);
  if (out.documents == before) return;  // dropped
  out.marks.labels.back() = sample.desirable ? DocumentLabel::kDesirable : DocumentLabel::kUndesirable;
  ++(sample.desirable ? out.desirable : out.undesirable);
}

void SampleEncoder::add_preference(const Preference& pair, const std::string& place,
                                   EncodedPiece& out) const {
  EncodedPiece both;
  for (const auto* side : {&pair.chosen, &pair.rejected}) {
    const int64_t before = both.documents;
    if (const auto* completion = std::get_if<Completion>(side))
      add_completion(*completion, place, both);
    else
      add_conversation(std::get<Conversation>(*side), place, both);
    if (both.documents == before) break;  // dropped, and so is the other side
  }
  if (both.documents < 2) {
    both.ids.clear();
    both.marks = {};
    both.documents = both.conversations = 0;
    both.joined.clear(), both.lost_thoughts.clear();
  }
  both.pairs = both.documents / 2;
  append(both, out);
}

void SampleEncoder::add_line(std::string_view line, const std::string& input, int64_t number,
                             EncodedPiece& out) const {
  const auto [sample, weight] = parse_weighted_sample(line, input, number, options_.text_field);
  const std::string place = fmt::format("{}:{}", input, number);
  std::string& first_of_kind =
      std::holds_alternative<Preference>(sample) ? out.first_pair : out.first_unpaired;
  if (first_of_kind.empty()) first_of_kind = place;
  if (weight == 0) return out.dropped.push_back(place);
  const int64_t first = std::ssize(out.ids);
  if (const auto* text = std::get_if<std::string>(&sample)) {
    begin(out);
    add_ids(options_.tokenizer->before_text(), true, out);
    add_document_text(*text, TextPlace::kStart, place, true, out);
    end(out);
  } else if (const auto* completion = std::get_if<Completion>(&sample)) {
    add_answer(*completion, place, out);
  } else if (const auto* labelled = std::get_if<Labelled>(&sample)) {
    add_labelled(*labelled, place, out);
  } else if (const auto* pair = std::get_if<Preference>(&sample)) {
    add_preference(*pair, place, out);
  } else {
    add_conversation(std::get<Conversation>(sample), place, out);
  }
  weigh(first, weight, out);
}

EncodedPiece SampleEncoder::encode(const Piece& piece) const {
  EncodedPiece out;
  if (piece.is_lines) {
    for_each_line(piece, [&](std::string_view line, int64_t number) {
      check(stop_signal() == 0, "interrupted");
      try {
        add_line(line, piece.input, number, out);
      } catch (const ByteWithoutToken& error) {  // whose line is that of a text within the line
        refuse_byte(error, piece, number);
      }
    });
    return out;
  }
  if (piece.begins) {
    out.first_unpaired = piece.input;
    begin(out);
    add_ids(options_.tokenizer->before_text(), true, out);
  }
  try {
    add_document_text(piece.bytes, piece.begins ? TextPlace::kStart : TextPlace::kWithin, piece.input, true,
                      out);
  } catch (const ByteWithoutToken& error) {
    refuse_byte(error, piece, piece.first_line + error.line - 1);
  }
  if (piece.ends) end(out);
  return out;
}

}  // namespace tessera
