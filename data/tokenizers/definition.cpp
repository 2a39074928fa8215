#include "data/tokenizers/definition.h"

#include <initializer_list>
#include <span>
#include <string_view>

#include "kernels/base/checksum.h"

namespace tessera {

std::string name_of_content(const TokenizerDefinition& d) {
  Checksum checksum;
  const auto add_text = [&](std::string_view text) {
    const uint64_t bytes = text.size();
    checksum.update(std::as_bytes(std::span(&bytes, 1)));
    checksum.update(std::as_bytes(std::span(text)));
  };
  const auto add_numbers = [&](std::initializer_list<int64_t> numbers) {
    checksum.update(std::as_bytes(std::span(numbers.begin(), numbers.size())));
  };
  add_numbers({static_cast<int64_t>(d.form), d.prefix_blank, d.ignore_merges, std::ssize(d.splits),
               std::ssize(d.added), std::ssize(d.tokens), std::ssize(d.merges)});
  const auto add_rules = [&](const std::vector<SplitRule>& rules) {
    for (const SplitRule& rule : rules) {
      add_numbers({static_cast<int64_t>(rule.behavior), rule.literal, rule.invert});
      add_text(rule.pattern);
    }
  };
  add_rules(d.splits);
  for (const AddedToken& token : d.added) {
    // Whether the text is normalised first matters only where it is.
    const bool is_changed = d.form != NormalForm::kNone || !d.changes.empty();
    add_numbers({token.id, token.special, token.normalized && is_changed, token.single_word, token.strip_left,
                 token.strip_right});
    add_text(token.content);
  }
  for (const std::string& token : d.tokens) add_text(token);
  for (const Merge& merge : d.merges) add_numbers({merge.left, merge.right});
  // What few tokenizers have is named where it is, so that the others keep their checksums.
  if (!d.late_splits.empty()) {
    add_text("byte_splits");
    add_rules(d.late_splits);
  }
  if (!d.byte_level) {
    add_text("characters");
    add_numbers({d.byte_fallback, d.fuse_unknown, d.unknown});
  }
  for (const TextChange& change : d.changes) {
    add_text("change");
    add_numbers({change.literal});
    add_text(change.pattern);
    add_text(change.content);
  }
  if (d.metaspace) {
    add_text("metaspace");
    add_numbers({static_cast<int64_t>(d.metaspace->prepend), d.metaspace->split});
    add_text(d.metaspace->replacement);
  }
  if (!d.unreachable.empty()) add_text("unreachable");
  for (const UnreachableToken& token : d.unreachable) {
    add_numbers({token.id});
    add_text(token.content);
  }
  return "bpe-" + checksum.digits();
}

}  // namespace tessera
