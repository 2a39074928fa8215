#include "train/export/merge_scores.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string_view>

#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/symbols.h"
#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

constexpr const char* kBlankPiece = "\u2581";
constexpr const char* kExportToHf = "Export it with --format hf";
constexpr size_t kLongestRun = 256;       // of one character, in a token whose score others have too
constexpr size_t kRunsThatAreRead = 299;  // characters; or three times the longest token

// Merges [first, end) whose tokens have one score
struct Group {
  size_t first, end;
};

// A token that is one character, several times
struct RunOf {
  std::string_view character;
  size_t times;
};
RunOf run_of(std::string_view token) {
  const auto first = first_code_point(token);
  if (!first || token.size() % first->bytes != 0) return {"", 0};
  const std::string_view character = token.substr(0, first->bytes);
  for (size_t at = 0; at < token.size(); at += character.size())
    if (token.substr(at, character.size()) != character) return {"", 0};
  return {character, token.size() / character.size()};
}

class MergeScores {
 public:
  MergeScores(const TokenizerDefinition& definition, int64_t vocab_size)
      : definition_(definition),
        scores_(static_cast<size_t>(vocab_size)),
        first_use_(definition.tokens.size(), definition.merges.size()) {
    for (const AddedToken& token : definition.added) {
      added_.insert(token.id);
      const bool is_blanks = token.content.find(kBlankPiece) != std::string::npos;
      if (!token.special && !token.single_word && !token.normalized && !is_blanks)
        matched_first_.insert(token.id);
    }
    for (size_t id = 0; id < definition.tokens.size(); ++id)
      if (!definition.tokens[id].empty()) ids_[definition.tokens[id]] = static_cast<int32_t>(id);
  }

  std::vector<float> make() {
    for (size_t i = definition_.merges.size(); i-- > 0;)
      for (const int32_t piece : {definition_.merges[i].left, definition_.merges[i].right})
        first_use_[static_cast<size_t>(piece)] = i;
    const std::vector<Group> groups = groups_of_merges();
    float score = 0;
    for (const Group& group : groups) {
      --score;
      for (size_t i = group.first; i < group.end; ++i)
        scores_[static_cast<size_t>(definition_.merges[i].result)] = score;
    }
    for (const Group& group : groups) check_group(group);
    check_other_merges();
    return scores_;
  }

 private:
  const std::string& text(int32_t id) const { return definition_.tokens[static_cast<size_t>(id)]; }
  std::vector<Group> groups_of_merges() const;
  void check_group(const Group& group) const;
  void check_apart(const Group& group, const std::set<int32_t>& tokens) const;
  void check_runs(std::string_view character, size_t longest) const;
  void check_other_merges() const;
  [[noreturn]] void refuse(int32_t a, int32_t b, const std::string& why) const {
    fail(
        "llama.cpp cannot merge as the tokenizer does: the merges that make {} and {} are interleaved, so "
        "both have one score there, and {}. {}",
        in_quotes(text(a)), in_quotes(text(b)), why, kExportToHf);
  }

  const TokenizerDefinition& definition_;
  std::vector<float> scores_;
  std::vector<size_t> first_use_;  // the first merge that takes a token
  std::map<std::string_view, int32_t> ids_;
  std::set<int32_t> added_;
  std::set<int32_t> matched_first_;  // both programs look for them before they merge
};

// Groups that follow one another: the merges of a token are in one
std::vector<Group> MergeScores::groups_of_merges() const {
  const std::vector<Merge>& merges = definition_.merges;
  std::vector<size_t> last(definition_.tokens.size());
  for (size_t i = 0; i < merges.size(); ++i) last[static_cast<size_t>(merges[i].result)] = i;
  std::vector<Group> groups;
  for (size_t i = 0, end = 0; i < merges.size(); ++i) {
    if (i >= end) groups.push_back({.first = i, .end = i});
    end = std::max(end, last[static_cast<size_t>(merges[i].result)] + 1);
    groups.back().end = end;
  }
  return groups;
}

// That the merges of tokens with one score give the same tokens from left to right as in their order
void MergeScores::check_group(const Group& group) const {
  const std::vector<Merge>& merges = definition_.merges;
  if (std::all_of(merges.begin() + static_cast<int64_t>(group.first),
                  merges.begin() + static_cast<int64_t>(group.end),
                  [&](const Merge& merge) { return merge.result == merges[group.first].result; }))
    return;
  std::set<int32_t> tokens;
  for (size_t i = group.first; i < group.end; ++i)
    if (!matched_first_.contains(merges[i].result)) tokens.insert(merges[i].result);
  if (tokens.size() < 2) return;
  for (const int32_t token : tokens)
    if (const size_t use = first_use_[static_cast<size_t>(token)]; use < group.first)
      refuse(token, token == *tokens.begin() ? *tokens.rbegin() : *tokens.begin(),
             fmt::format("the earlier merge of {} and {} takes one of them",
                         in_quotes(text(merges[use].left)), in_quotes(text(merges[use].right))));
  check_apart(group, tokens);
  std::map<std::string_view, size_t> longest;
  for (const int32_t token : tokens)
    if (const RunOf run = run_of(text(token)); run.times > 0)
      longest[run.character] = std::max(longest[run.character], run.times);
  for (const auto& [character, times] : longest) check_runs(character, times);
}

// That no two merges of a group which make other tokens share a piece, so that either may be first. Runs of
// one character do; they are compared by themselves.
void MergeScores::check_apart(const Group& group, const std::set<int32_t>& tokens) const {
  constexpr int32_t kSeveral = -1;
  std::map<int32_t, int32_t> by_left, by_right;  // what a piece becomes a part of
  const auto add = [&](std::map<int32_t, int32_t>& makes, int32_t piece, int32_t result) {
    const auto [found, is_new] = makes.emplace(piece, result);
    if (!is_new && found->second != result) found->second = kSeveral;
  };
  const auto each = [&](auto&& visit) {
    for (size_t i = group.first; i < group.end; ++i)
      if (tokens.contains(definition_.merges[i].result)) visit(definition_.merges[i]);
  };
  each([&](const Merge& merge) {
    add(by_left, merge.left, merge.result);
    add(by_right, merge.right, merge.result);
  });
  each([&](const Merge& merge) {
    if (run_of(text(merge.result)).times > 0) return;
    const int32_t other = *tokens.begin() != merge.result ? *tokens.begin() : *tokens.rbegin();
    for (const auto& [makes, piece] : {std::pair(&by_left, merge.right), std::pair(&by_right, merge.left)})
      if (const auto found = makes->find(piece); found != makes->end() && found->second != merge.result)
        refuse(merge.result, found->second != kSeveral ? found->second : other,
               fmt::format("both may want the same {}", in_quotes(text(piece))));
  });
}

// The lengths of the tokens of a run of `count` characters. `order` is lower for the pair that is merged
// first; of equal ones the leftmost is.
template <class Order>
std::vector<size_t> merged_run(size_t count, Order&& order) {
  std::vector<size_t> pieces(count, 1);
  while (true) {
    double best = std::numeric_limits<double>::infinity();
    size_t at = 0;
    for (size_t i = 0; i + 1 < pieces.size(); ++i)
      if (const double found = order(pieces[i], pieces[i + 1]); found < best) best = found, at = i;
    if (best == std::numeric_limits<double>::infinity()) return pieces;
    pieces[at] += pieces[at + 1];
    pieces.erase(pieces.begin() + static_cast<int64_t>(at) + 1);
  }
}

// That runs of a character become the same tokens. Every piece of one is a run too, so this sees all its
// merges.
void MergeScores::check_runs(std::string_view character, size_t longest) const {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const auto is_run = [&](int32_t id, size_t& times) {
    const RunOf run = run_of(text(id));
    times = run.times;
    return run.character == character && times > 0 && times <= kLongestRun;
  };
  check(
      longest <= kLongestRun,
      "the token of {} times {} has the score of others; llama.cpp's merges are compared up to {} times. {}",
      longest, in_quotes(character), kLongestRun, kExportToHf);
  std::vector<double> score(kLongestRun + 1, kNever);  // negated: of the token with so many
  std::map<std::pair<size_t, size_t>, double> ranks;
  for (const auto& [token, id] : ids_)
    if (size_t times = 0; is_run(id, times))
      score[times] = -scores_[static_cast<size_t>(id)], longest = std::max(longest, times);
  for (size_t i = 0; i < definition_.merges.size(); ++i) {
    const Merge& merge = definition_.merges[i];
    size_t result = 0, left = 0, right = 0;
    if (is_run(merge.result, result) && is_run(merge.left, left) && is_run(merge.right, right))
      ranks.emplace(std::pair(left, right), static_cast<double>(i));
  }
  std::vector<double> rank_of((longest + 1) * (longest + 1), kNever);
  for (const auto& [pair, rank] : ranks) rank_of[pair.first * (longest + 1) + pair.second] = rank;
  const auto by_rank = [&](size_t a, size_t b) {
    return a > longest || b > longest ? kNever : rank_of[a * (longest + 1) + b];
  };
  const auto by_score = [&](size_t a, size_t b) { return a + b > longest ? kNever : score[a + b]; };
  for (size_t count = 1; count <= std::max(kRunsThatAreRead, 3 * longest); ++count)
    check(merged_run(count, by_rank) == merged_run(count, by_score),
          "llama.cpp cannot merge as the tokenizer does: the merges of runs of {} are interleaved, so their "
          "tokens have one score there, and {} in a row become other tokens. {}",
          in_quotes(character), count, kExportToHf);
}

// That llama.cpp merges no pair to a token that the tokenizer does not
void MergeScores::check_other_merges() const {
  std::map<int32_t, std::set<int32_t>> lefts;  // of the merges that make a token
  for (const Merge& merge : definition_.merges) lefts[merge.result].insert(merge.left);
  const auto may_stand = [&](std::string_view part) {
    const auto first = first_code_point(part);
    return ids_.contains(part) || (first && first->bytes == part.size());
  };
  for (const auto& [token, id] : ids_) {
    const bool is_text = !added_.contains(id) && !byte_of_token(token);
    for (size_t at = 1; is_text && at < token.size(); ++at) {
      if ((token[at] & 0xC0) == 0x80 || !may_stand(token.substr(0, at)) || !may_stand(token.substr(at)))
        continue;
      const auto left = ids_.find(token.substr(0, at));
      const auto known = lefts.find(id);
      check(left != ids_.end() && ids_.contains(token.substr(at)) && known != lefts.end() &&
                known->second.contains(left->second),
            "llama.cpp would merge {} and {}, which together are a token, and the tokenizer does not. {}",
            in_quotes(token.substr(0, at)), in_quotes(token.substr(at)), kExportToHf);
    }
  }
}

}  // namespace

std::vector<float> llama_cpp_scores(const TokenizerDefinition& definition, int64_t vocab_size) {
  return MergeScores(definition, vocab_size).make();
}

}  // namespace tessera
