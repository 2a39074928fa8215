#include "data/prepare_report.h"

#include <cstdio>

#include "data/tokenizers/special_token_finder.h"
#include "kernels/base/status_line.h"
#include "kernels/base/text.h"

namespace tessera {

void notice(const std::string& text) { print_stderr("prepare: notice: " + text + "\n"); }

namespace {

std::string counted(int64_t count, const char* one, const char* several) {
  return fmt::format("{} {}", count, count == 1 ? one : several);
}

}  // namespace

void tell_left_out(const Totals& totals) {
  if (totals.dropped.count > 0)
    notice(
        fmt::format("{} dropped, since no token of them counts (no assistant speaks, or the completion is "
                    "empty): {}; --strict refuses them",
                    counted(totals.dropped.count, "sample was", "samples were"), totals.dropped.names()));
  if (totals.unfit.count > 0)
    notice(
        fmt::format("{} dropped: {}: {}; --strict refuses them, --loss all keeps them, --chat-template names "
                    "another template",
                    counted(totals.unfit.count, "conversation was", "conversations were"), totals.why_unfit,
                    totals.unfit.names()));
  for (const auto& [why, places] : totals.refused)
    notice(fmt::format("{} dropped: {}: {}. --strict refuses them, --chat-template names another template",
                       counted(places.count, "conversation was", "conversations were"), places.names(), why));
  if (totals.lost_thoughts.count > 0)
    notice(fmt::format(
        "{} thoughts that are lost: the chat template reads no field {}: {}; --chat-template names another "
        "template",
        counted(totals.lost_thoughts.count, "conversation has", "conversations have"),
        join_words({std::begin(kThoughts), std::end(kThoughts)}, " or "), totals.lost_thoughts.names()));
  if (totals.joined.count > 0)
    notice(fmt::format(
        "{} an answer whose first characters would share a token with the end of its header: it is "
        "encoded apart, as the model meets it when it answers, and transformers gives other ids: {}",
        counted(totals.joined.count, "conversation has", "conversations have"), totals.joined.names()));
  if (totals.skipped_bytes > 0)
    notice(fmt::format("{} skipped, for which the tokenizer has no token",
                       counted(totals.skipped_bytes, "byte was", "bytes were")));
}

void tell_special_names(const Totals& totals, SpecialTokens special) {
  if (totals.special_names == 0) return;
  const bool as_text = special == SpecialTokens::kAsText;
  notice(fmt::format("the texts hold {}, the first at {}: read as {}; --special-tokens {} reads them as {}",
                     counted(totals.special_names, "name of a special token", "names of special tokens"),
                     totals.first_special_name, as_text ? "characters" : "the tokens",
                     as_text ? "parse" : "text", as_text ? "the tokens" : "characters"));
}

void tell_turn_ends(const Totals& totals, const Tokenizer& tokenizer, const ChatTemplate& chat) {
  if (totals.conversations == 0) return;
  if (totals.turn_ends.empty())
    notice(fmt::format(
        "no special token that ends a turn has a loss with the chat template {}: other programs will "
        "not know where an answer of the model ends",
        chat.form().name));
  else
    fmt::print("prepare: conversations in the form of {}; these ends of turns have a loss: {}\n",
               chat.form().name,
               list_tokens(tokenizer, std::vector(totals.turn_ends.begin(), totals.turn_ends.end())));
}

}  // namespace tessera
