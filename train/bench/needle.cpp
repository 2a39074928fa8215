#include "train/bench/needle.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/random.h"
#include "kernels/base/text.h"
#include "train/plot/svg_grid.h"

namespace tessera {
namespace {

constexpr std::array kNames{"Lima",  "Oslo",  "Quito", "Cairo", "Dakar", "Hanoi", "Kyoto",  "Lagos",
                            "Malmo", "Nancy", "Porto", "Riga",  "Sofia", "Turin", "Vienna", "Zagreb"};
constexpr int64_t kLeastNumber = 10000, kNumbers = 90000;
// The fact moves back by at most this share of the filler to stand between sentences.
constexpr double kMostMoved = 0.02;

std::string whole_percent(double share) { return fmt::format("{:.0f}%", 100 * share); }

}  // namespace

NeedleTexts::NeedleTexts(const Tokenizer& tokenizer, std::string_view filler, uint64_t seed)
    : tokenizer_(tokenizer), seed_(seed), filler_(tokenizer.encode(filler)) {
  check(!filler_.empty(), "the filler is empty: --filler must be a file with text");
}

std::vector<int32_t> NeedleTexts::encode(const std::string& text) const {
  return tokenizer_.encode(text, SpecialTokens::kAsText, TextPlace::kWithin);
}

// The last place at most `within` before `at` of the filler from `first` on that follows a line or a
// sentence; `at` if there is none.
int64_t NeedleTexts::cut_near(int64_t first, int64_t at, int64_t within) const {
  for (int64_t place = at; place > std::max<int64_t>(at - within, 0); --place) {
    const size_t before = static_cast<size_t>(first + place - 1) % filler_.size();
    const std::string text = tokenizer_.token_text(filler_[before]);
    if (text.ends_with('\n') || text.ends_with('.')) return place;
  }
  return at;
}

int64_t NeedleTexts::Words::count() const {
  return std::ssize(before) + std::ssize(fact) + std::ssize(question) + std::ssize(answer);
}

NeedleTexts::Words NeedleTexts::words_of(int64_t needle) const {
  const Philox random(seed_, static_cast<uint64_t>(needle));
  const auto draw = [&](uint64_t index, int64_t below) {
    return std::min(static_cast<int64_t>(random.uniform(index) * static_cast<double>(below)), below - 1);
  };
  const std::string name = kNames[static_cast<size_t>(draw(0, std::ssize(kNames)))];
  const int64_t number = kLeastNumber + draw(1, kNumbers);
  const auto before = tokenizer_.before_text();
  return {.before = {before.begin(), before.end()},
          .fact = encode(fmt::format("\nThe secret number of {} is {}.\n", name, number)),
          .question = encode(fmt::format("\nThe secret number of {} is", name)),
          .answer = encode(fmt::format(" {}", number)),
          .first_filler = draw(2, std::ssize(filler_))};
}

int64_t NeedleTexts::shortest(int64_t needle) const { return words_of(needle).count(); }

NeedleText NeedleTexts::make(int64_t context, double depth, int64_t needle) const {
  const Words words = words_of(needle);
  check(context >= words.count(),
        "a context of {} tokens does not hold the fact, the question and the answer, which take {}", context,
        words.count());
  const int64_t filler = context - words.count();
  const int64_t cut = cut_near(words.first_filler, std::llround(depth * static_cast<double>(filler)),
                               static_cast<int64_t>(kMostMoved * static_cast<double>(filler)));
  NeedleText text{.tokens = words.before, .answer = std::ssize(words.answer)};
  const auto append = [&](const std::vector<int32_t>& ids) {
    text.tokens.insert(text.tokens.end(), ids.begin(), ids.end());
  };
  for (int64_t i = 0; i < filler; ++i) {
    if (i == cut) append(words.fact);
    text.tokens.push_back(filler_[static_cast<size_t>(words.first_filler + i) % filler_.size()]);
  }
  if (cut == filler) append(words.fact);
  append(words.question);
  append(words.answer);
  return text;
}

NeedleScore score_answer(std::span<const float> logits, std::span<const int32_t> answer, int64_t known) {
  const size_t V = logits.size() / answer.size();
  NeedleScore score{.found = true};
  for (size_t i = 0; i < answer.size(); ++i) {
    const std::span<const float> row = logits.subspan(i * V, V).first(static_cast<size_t>(known));
    const auto largest =
        std::max_element(row.begin(), row.end());  // the first of equals, as in greedy decoding
    double sum = 0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit) - static_cast<double>(*largest));
    const auto token = static_cast<size_t>(answer[i]);
    score.found &= largest - row.begin() == answer[i];
    score.log_probability += static_cast<double>(row[token]) - static_cast<double>(*largest) - std::log(sum);
  }
  score.log_probability /= static_cast<double>(answer.size());
  return score;
}

void NeedleCell::add(const NeedleScore& score) {
  log_probability =
      (log_probability * static_cast<double>(total) + score.log_probability) / static_cast<double>(total + 1);
  found += score.found;
  ++total;
}

std::vector<double> needle_depths(int64_t count) {
  if (count == 1) return {0.5};
  std::vector<double> depths;
  for (int64_t i = 0; i < count; ++i)
    depths.push_back(static_cast<double>(i) / static_cast<double>(count - 1));
  return depths;
}

std::string needle_table(const NeedleResults& results) {
  std::string text =
      "found, and the mean log-probability of a token of the answer, by depth and context:\n  depth";
  for (const int64_t context : results.contexts)
    text += fmt::format("  {:>16}", format_count(static_cast<double>(context)));
  for (size_t d = 0; d < results.depths.size(); ++d) {
    text += fmt::format("\n  {:>5}", whole_percent(results.depths[d]));
    for (size_t c = 0; c < results.contexts.size(); ++c) {
      const NeedleCell& cell = results.at(c, d);
      text +=
          fmt::format("  {:>16}", fmt::format("{}/{} {:8.3f}", cell.found, cell.total, cell.log_probability));
    }
  }
  text += "\n    all";
  for (size_t c = 0; c < results.contexts.size(); ++c) {
    int64_t found = 0, total = 0;
    double sum = 0;
    for (size_t d = 0; d < results.depths.size(); ++d) {
      const NeedleCell& cell = results.at(c, d);
      found += cell.found, total += cell.total, sum += cell.log_probability;
    }
    text += fmt::format("  {:>16}", fmt::format("{}/{} {:8.3f}", found, total,
                                                sum / static_cast<double>(results.depths.size())));
  }
  return text + "\n";
}

nlohmann::ordered_json to_json(const NeedleResults& results) {
  nlohmann::ordered_json json{{"model", results.model},         {"device", results.device},
                              {"precision", results.precision}, {"tokenizer", results.tokenizer},
                              {"seed", results.seed},           {"cells", nlohmann::ordered_json::array()}};
  for (const NeedleCell& cell : results.cells)
    json["cells"].push_back({{"context", cell.context},
                             {"depth", cell.depth},
                             {"found", cell.found},
                             {"total", cell.total},
                             {"log_probability", cell.log_probability}});
  return json;
}

std::string to_svg(const NeedleResults& results) {
  SvgGrid grid{
      .title = "Facts found in long texts", .x_label = "tokens of the text", .y_label = "depth of the fact"};
  for (const int64_t context : results.contexts)
    grid.columns.push_back(format_count(static_cast<double>(context)));
  for (size_t d = 0; d < results.depths.size(); ++d) {
    grid.rows.push_back(whole_percent(results.depths[d]));
    for (size_t c = 0; c < results.contexts.size(); ++c) {
      const NeedleCell& cell = results.at(c, d);
      grid.cells.push_back({.share = static_cast<double>(cell.found) / static_cast<double>(cell.total),
                            .text = fmt::format("{}/{}", cell.found, cell.total)});
    }
  }
  return grid.draw();
}

}  // namespace tessera
