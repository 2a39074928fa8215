// The needle test: can a model use a fact that stands anywhere in a long text? (G. Kamradt, "Needle in a
// haystack", 2023.) A text of filler holds "The secret number of Lima is 48213." at some depth, and ends
// with "The secret number of Lima is". The fact is found if greedy decoding continues with the number.
//
// Greedy decoding gives the number exactly if each of its tokens is the most probable one after the text and
// the number's earlier tokens. So one forward over the text together with the answer decides, and no token is
// drawn.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"

namespace tessera {

struct NeedleText {
  std::vector<int32_t> tokens;  // of the whole text, with the answer at the end
  int64_t answer = 0;           // how many tokens the answer has
};

// The texts of a needle have the same fact, and filler from the same place on, at every length and depth.
class NeedleTexts {
 public:
  // `filler`: any text; it is repeated where it is too short. Error: a filler without tokens.
  NeedleTexts(const Tokenizer& tokenizer, std::string_view filler, uint64_t seed);

  // A text of `context` tokens. The fact stands after the share `depth` (0 to 1) of the filler, moved back to
  // the end of a line or sentence if one is near. Error: `context` tokens do not hold the fact and the
  // question.
  NeedleText make(int64_t context, double depth, int64_t needle) const;
  int64_t shortest(int64_t needle) const;  // the smallest `context` that can hold this needle

 private:
  struct Words {
    std::vector<int32_t> before, fact, question, answer;
    int64_t first_filler;  // where its filler begins
    int64_t count() const;
  };

  Words words_of(int64_t needle) const;
  std::vector<int32_t> encode(const std::string& text) const;  // as a part of a longer text
  int64_t cut_near(int64_t first, int64_t at, int64_t within) const;

  const Tokenizer& tokenizer_;
  uint64_t seed_;
  std::vector<int32_t> filler_;
};

struct NeedleScore {
  bool found = false;
  double log_probability = 0;  // the mean over the answer's tokens, nats
};
// `logits`: [n, V], those before each of the n tokens of `answer`. Ids from `known` on are not tokens and are
// ignored.
NeedleScore score_answer(std::span<const float> logits, std::span<const int32_t> answer, int64_t known);

struct NeedleCell {
  int64_t context = 0;
  double depth = 0;
  int64_t found = 0, total = 0;
  double log_probability = 0;  // the mean over all cells

  void add(const NeedleScore& score);
};

struct NeedleResults {
  std::string model = {}, device = {}, precision = {}, tokenizer = {};
  uint64_t seed = 0;
  std::vector<int64_t> contexts;
  std::vector<double> depths;
  std::vector<NeedleCell> cells;  // context by context, and by depth within each

  const NeedleCell& at(size_t context, size_t depth) const { return cells[context * depths.size() + depth]; }
};

// `count` depths from 0 to 1; if `count` is 1, the middle
std::vector<double> needle_depths(int64_t count);

std::string needle_table(const NeedleResults& results);
nlohmann::ordered_json to_json(const NeedleResults& results);
std::string to_svg(const NeedleResults& results);

}  // namespace tessera
