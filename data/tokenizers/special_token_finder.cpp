#include "data/tokenizers/special_token_finder.h"

#include <algorithm>

namespace tessera {
namespace {

// Each is searched for as it is written: a template and a message are not normalised first.
std::vector<AddedToken> special_tokens(const Tokenizer& tokenizer) {
  std::vector<AddedToken> tokens;
  for (AddedToken token : tokenizer.added_tokens()) {
    if (!token.special) continue;
    token.normalized = false;
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

SpecialTokenFinder::SpecialTokenFinder(const Tokenizer& tokenizer)
    : tokens_(special_tokens(tokenizer)), finder_(tokens_, false, {}) {}

bool SpecialTokenFinder::is_special(int32_t id) const {
  return std::ranges::find(tokens_, id, &AddedToken::id) != tokens_.end();
}

int64_t SpecialTokenFinder::count(std::string_view text) const {
  int64_t count = 0;
  if (!tokens_.empty())
    split(
        text, [](std::string_view) {}, [&](const AddedToken&) { ++count; });
  return count;
}

std::string list_tokens(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  std::string list;
  for (const int32_t id : ids)
    list += fmt::format("{}{} ({})", list.empty() ? "" : ", ", tokenizer.token_text(id, true), id);
  return list;
}

}  // namespace tessera
