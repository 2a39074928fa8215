#include "train/config/config_values.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/split.h"
#include "model/dropout.h"

namespace tessera {

std::string Whole::expected() const {
  const int64_t least = zero.empty() ? at_least : std::max<int64_t>(at_least, 1);
  const std::string number =
      fmt::format("{} of at least {}",
                  multiple_of == 1 ? "a whole number" : fmt::format("a multiple of {}", multiple_of), least);
  std::vector<std::string_view> all{minus_one, zero, number};
  std::erase(all, std::string_view());
  return join_words(all);
}

int64_t Whole::read(const Written& value) const {
  if (value.kind != Written::Kind::kPlain) refuse(value, expected());
  if (!zero.empty() && value.text == zero) return 0;
  if (!minus_one.empty() && value.text == minus_one) return -1;
  int64_t number = 0;
  const std::errc error = parse_number(value.text, number);
  const bool too_large = error == std::errc::result_out_of_range ? value.text[0] != '-' : number > at_most;
  if (too_large) fail("{}: {} must be at most {}, found {}", value.where, value.key, at_most, value.text);
  if (error != std::errc{} || number < at_least || number % multiple_of != 0) refuse(value, expected());
  return number;
}

std::string Whole::write(int64_t value) const {
  if (value == 0 && !zero.empty()) return std::string(zero);
  if (value == -1 && !minus_one.empty()) return std::string(minus_one);
  return fmt::format("{}", value);
}

std::string Number::expected() const {
  std::string out = zero.empty() ? "a number" : fmt::format("{} or a number", zero);
  if (at_least) out += fmt::format(" of at least {}", *at_least);
  if (above) out += fmt::format(" above {}", *above);
  if (at_most) out += fmt::format(" {} at most {}", at_least || above ? "and" : "of", *at_most);
  if (below) out += fmt::format("{} below {}", at_least || above ? " and" : "", *below);
  return out;
}

double Number::read(const Written& value) const {
  double number = 0;
  if (value.kind == Written::Kind::kPlain && !zero.empty() && value.text == zero) return 0;
  if (value.kind != Written::Kind::kPlain || parse_number(value.text, number) != std::errc{})
    refuse(value, expected());
  if ((at_least && number < *at_least) || (above && number <= *above) || (at_most && number > *at_most) ||
      (below && number >= *below))
    refuse(value, expected());
  return number;
}

namespace {

template <class T>
std::string shortest(T value) {  // that reads back to the same
  std::string text = fmt::format("{}", value);
  const size_t e = text.find('e');
  // To YAML 1.1, 1e-08 is a text and 1.0e-08 a number.
  if (e != std::string::npos && text.find('.') == std::string::npos) text.insert(e, ".0");
  return text;
}

}  // namespace

std::string Number::write(double value) const {
  return value == 0 && !zero.empty() ? std::string(zero) : shortest(value);
}
std::string Number::write(float value) const {
  return value == 0 && !zero.empty() ? std::string(zero) : shortest(value);
}

double Probability::read(const Written& value) const {
  double number = 0;
  if (value.kind != Written::Kind::kPlain || parse_number(value.text, number) != std::errc{} || number < 0 ||
      number >= 1)
    refuse(value, expected());
  try {
    dropout_threshold(number);
  } catch (const Error& error) {
    fail("{}: {}: {}", value.where, value.key, error.what());
  }
  return number;
}

std::string Numbers::expected() const {
  return fmt::format("none, or a list of numbers above 0 and at most {}, such as [1, 1.5]", at_most);
}

std::vector<double> Numbers::read(const Written& value) const {
  std::vector<double> numbers;
  for (const std::string& text : entries_of(value, expected())) {
    double number = 0;
    if (parse_number(text, number) != std::errc{} || number <= 0 || number > at_most)
      refuse(value, expected(), fmt::format(", with {}", in_quotes(text)));
    numbers.push_back(number);
  }
  return numbers;
}

std::string Numbers::write(const std::vector<double>& values) const {
  if (values.empty()) return "none";
  std::string text;
  for (const double value : values) text += (text.empty() ? "[" : ", ") + shortest(value);
  return text + "]";
}

std::string BlockNumbers::expected() const {
  return "none, or a list of numbers of blocks, rising, from 0, such as [0, 3]";
}

std::vector<int64_t> BlockNumbers::read(const Written& value) const {
  std::vector<int64_t> numbers;
  for (const std::string& text : entries_of(value, expected())) {
    int64_t number = -1;
    const int64_t least = numbers.empty() ? 0 : numbers.back() + 1;
    if (parse_number(text, number) != std::errc{} || number < least || number > most_of("model.layers"))
      refuse(value, expected(), fmt::format(", with {}", in_quotes(text)));
    numbers.push_back(number);
  }
  return numbers;
}

std::string BlockNumbers::write(const std::vector<int64_t>& values) const {
  return values.empty() ? "none" : fmt::format("[{}]", fmt::join(values, ", "));
}

std::string Probability::write(double value) const { return shortest(value); }

TextOfBlocks without_blocks(const Written& value, std::string_view text) {
  const size_t star = text.find('*');
  if (star == text.npos) return {std::string(text), {}};
  int64_t blocks = 0;
  const std::string_view number = text.substr(star + 1);
  check(parse_number(number, blocks) == std::errc{} && blocks >= 1 && blocks <= Whole{}.at_most,
        "{}: {}: after a star must be the number of blocks, at least 1, found {} in {}", value.where,
        value.key, in_quotes(number), value.describe());
  return {std::string(text.substr(0, star)), blocks};
}

std::vector<TextOfBlocks> entries_by_block(const Written& value) {
  std::vector<TextOfBlocks> entries;
  const std::vector<std::string_view> texts = split(value.text, ',');
  for (const std::string_view text : texts) {
    entries.push_back(without_blocks(value, text));
    check(value.also.empty() || entries.back().text != value.also, "{}: {} must be \"{}\" alone, found {}",
          value.where, value.key, value.also, value.describe());
    check(entries.back().blocks || entries.size() == texts.size(),
          "{}: {}: each entry but the last needs a number of blocks, as in none*12,linear, found {}; several "
          "words of the same blocks have a plus between them: norms+attention",
          value.where, value.key, value.describe());
  }
  return entries;
}

std::string WindowPattern::expected() const {
  return "full, or a whole number of tokens of at least 1; a pattern of blocks: 1024*5,full or [1024, full]";
}

namespace {

// [1024, full] is 1024,full
std::string joined_entries(const Written& value, const std::string& expected) {
  if (value.kind == Written::Kind::kPlain) return value.text;
  if (value.kind != Written::Kind::kList) refuse(value, expected);
  std::string text;
  for (const Written& entry : value.values) {
    if (entry.kind != Written::Kind::kPlain) refuse(value, expected);
    text += (text.empty() ? "" : ",") + entry.text;
  }
  return text;
}

}  // namespace

Windows WindowPattern::read(const Written& value) const {
  const std::string entries = joined_entries(value, expected());
  std::vector<Windows::Run> pattern;
  int64_t blocks = 0;
  for (const std::string_view text : split(entries, ',')) {
    const TextOfBlocks entry = without_blocks(value, text);
    Windows::Run& run = pattern.emplace_back();
    run.blocks = entry.blocks.value_or(1), blocks += run.blocks;
    if (entry.text != "full") {
      const bool is_number = parse_number(entry.text, run.window) == std::errc{};
      if (!is_number || run.window < 1 || run.window > Whole{}.at_most) refuse(value, expected());
    }
    if (blocks > Windows::kMostBlocks)
      refuse(value, fmt::format("a pattern of at most {} blocks", Windows::kMostBlocks));
  }
  return Windows(pattern);
}

std::string SparseAttention::expected() const {
  return "full, or window:8 and with a plus between them global:1, stride:16, random:2, seed:1, block:128; "
         "or "
         "chosen:8+block:512; a pattern of blocks: window:8+global:1*3,full";
}

SparseBlocks SparseAttention::read(const Written& value) const {
  const std::string text = joined_entries(value, expected());
  try {
    return read_sparse(text);
  } catch (const Error& error) {
    fail("{}: {}: {}", value.where, value.key, error.what());
  }
}

std::string OffloadedParts::expected() const {
  return SetOf<Offload, Offloaded>{}.expected() + "; of the first blocks alone: activations*12";
}

Offload OffloadedParts::read(const Written& value) const {
  const std::string counted = name_of(Offloaded::kActivations) + std::string("*");
  Written words = value;
  const size_t found = ("+" + value.text).find("+" + counted);
  std::optional<int64_t> blocks;
  if (found != value.text.npos) {
    const size_t end = std::min(value.text.find('+', found), value.text.size());
    const TextOfBlocks word = without_blocks(value, std::string_view(value.text).substr(found, end - found));
    blocks = word.blocks;
    words.text.replace(found, end - found, word.text);
  }
  Offload offload = SetOf<Offload, Offloaded>{}.read(words);
  if (blocks) offload.blocks = *blocks;
  return offload;
}

namespace {

// "3" and "0-5" after "blocks:"
std::optional<Freeze::Blocks> parse_blocks(std::string_view text) {
  const size_t dash = text.find('-');
  Freeze::Blocks blocks{};
  const std::string first(text.substr(0, dash));
  const std::string last(dash == text.npos ? text : text.substr(dash + 1));
  const auto whole = [](const std::string& digits, int64_t& number) {
    const bool plain = !digits.empty() && digits.size() < 10 &&
                       std::ranges::all_of(digits, [](char c) { return '0' <= c && c <= '9'; });
    if (plain) number = std::stoll(digits);
    return plain;
  };
  if (!whole(first, blocks.first) || !whole(last, blocks.last) || blocks.last < blocks.first) return {};
  return blocks;
}

}  // namespace

std::string FrozenParts::expected() const {
  constexpr auto parts = values_with_words<ParamPart>();
  return "none, or with a plus between them: " + join_words(names_of<ParamPart>(parts), ", ") +
         ", blocks:3 and blocks:0-5";
}

Freeze FrozenParts::read(const Written& value) const {
  Freeze freeze;
  if (value.kind != Written::Kind::kPlain && value.kind != Written::Kind::kQuoted) refuse(value, expected());
  if (value.text == "none") return freeze;
  std::string seen = "+";
  for (const std::string_view text : split(value.text, '+')) {
    const std::string word(text);
    check(seen.find("+" + word + "+") == seen.npos, "{}: {} names {} twice, found {}", value.where, value.key,
          word, value.describe());
    seen += word + "+";
    if (word.starts_with(kBlocksWord)) {
      const auto blocks = parse_blocks(std::string_view(word).substr(std::string_view(kBlocksWord).size()));
      if (!blocks) refuse(value, expected());
      freeze.add(*blocks);
    } else if (const auto part = from_word<ParamPart>(word)) {
      freeze.add(*part);
    } else {
      refuse(value, expected());
    }
  }
  return freeze;
}

std::string Phases::expected() const {
  return "none, or sequence lengths by the steps done before them, such as {0: 1024, 800: 8192}";
}

namespace {

// "0:1024,800:8192" as the entries of a map
std::vector<std::pair<std::string, std::string>> pairs_in(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string_view pair : split(text, ',')) {
    const size_t colon = std::min(pair.find(':'), pair.size());
    pairs.emplace_back(pair.substr(0, colon), pair.substr(std::min(colon + 1, pair.size())));
  }
  return pairs;
}

}  // namespace

std::vector<ContextPhase> Phases::read(const Written& value) const {
  const bool is_text = value.kind == Written::Kind::kPlain || value.kind == Written::Kind::kQuoted;
  std::vector<ContextPhase> phases;
  if (is_text && value.text == "none") return phases;
  std::vector<std::pair<std::string, std::string>> entries;
  if (is_text) entries = pairs_in(value.text);
  for (const Written& entry : value.values) entries.emplace_back(entry.key, entry.text);
  if (entries.empty()) refuse(value, expected());
  for (const auto& [step, length] : entries) {
    ContextPhase phase;
    if (parse_number(step, phase.from_step) != std::errc{} ||
        parse_number(length, phase.sequence_length) != std::errc{} || phase.from_step < 0 ||
        phase.sequence_length < 1)
      fail("{}: {} must be {}; found {}: {}", value.where, value.key, expected(), in_quotes(step),
           in_quotes(length));
    const bool is_first = phases.empty();
    check(
        is_first ? phase.from_step == 0 : phase.from_step > phases.back().from_step,
        "{}: {}: the first phase must begin after 0 steps, and each other later than the one before; found a "
        "phase after {}{}",
        value.where, value.key, phase.from_step,
        is_first ? "" : fmt::format(", which follows that after {}", phases.back().from_step));
    check(is_first || phase.sequence_length != phases.back().sequence_length,
          "{}: {}: the phases after {} and {} steps have the same length, {}: write one of them", value.where,
          value.key, is_first ? 0 : phases.back().from_step, phase.from_step, phase.sequence_length);
    phases.push_back(phase);
  }
  return phases;
}

std::string Phases::write(const std::vector<ContextPhase>& value) const {
  if (value.empty()) return "none";
  std::string text;
  for (const ContextPhase& phase : value)
    text += fmt::format("{}{}: {}", text.empty() ? "{" : ", ", phase.from_step, phase.sequence_length);
  return text + "}";
}

std::string WarmUpLength::expected() const {
  return Whole{}.expected() + ", or a share of the steps from 0% to 100%, such as 3%";
}

WarmUp WarmUpLength::read(const Written& value) const {
  if (value.kind != Written::Kind::kPlain) refuse(value, expected());
  Written number = value;
  if (number.text.ends_with('%')) {
    number.text.pop_back();
    double percent = 0;
    if (parse_number(number.text, percent) != std::errc{} || percent < 0 || percent > 100)
      refuse(value, expected());
    return {.percent = percent};
  }
  int64_t steps = 0;
  if (parse_number(number.text, steps) == std::errc::invalid_argument || steps < 0) refuse(value, expected());
  return {.steps = Whole{}.read(number)};
}

std::string WarmUpLength::write(const WarmUp& value) const {
  return value.percent > 0 ? shortest(value.percent) + "%" : Whole{}.write(value.steps);
}

std::string Text::read(const Written& value) const {
  if (value.kind == Written::Kind::kList || value.kind == Written::Kind::kMap)
    fail("{}: {} must be text, found {}; put double quotes around the text", value.where, value.key,
         value.describe());
  if (value.kind == Written::Kind::kNothing) refuse(value, "text, or \"\" for none");
  if (utf8_prefix(value.text) != value.text.size()) refuse(value, "UTF-8");
  return value.text;
}

std::string Text::write(const std::string& value) const { return in_quotes(value); }

std::string Paths::expected() const { return fmt::format("none, a {0}, or a list of {0}s: [a, b]", of); }

std::vector<std::string> Paths::read(const Written& value) const {
  const bool is_text = value.kind == Written::Kind::kPlain || value.kind == Written::Kind::kQuoted;
  if (is_text && (value.text == "none" || value.text.empty())) return {};
  if (is_text) return {Text().read(value)};
  if (value.kind != Written::Kind::kList) refuse(value, expected());
  std::vector<std::string> paths;
  for (const Written& one : value.values) {
    const std::string path = Text().read(one);
    if (path.empty()) refuse(value, expected(), fmt::format(", with an empty {}", of));
    check(std::ranges::find(paths, path) == paths.end(), "{}: {} names {} twice", one.where, value.key,
          in_quotes(path));
    paths.push_back(path);
  }
  return paths;
}

std::string Paths::write(const std::vector<std::string>& value) const {
  if (value.empty()) return "none";
  std::string text;
  for (const std::string& path : value) text += (text.empty() ? "[" : ", ") + in_quotes(path);
  return text + "]";
}

std::string text_of(const std::vector<DataSource>& sources) {
  if (sources.size() == 1) return sources[0].path;
  std::string text;
  for (const DataSource& source : sources)
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", source.path, source.weight);
  return text;
}

std::vector<DataSource> Sources::read(const Written& value) const {
  const bool is_text = value.kind == Written::Kind::kPlain || value.kind == Written::Kind::kQuoted;
  if (is_text && !value.text.empty()) return {{.path = Text().read(value)}};
  if (value.kind != Written::Kind::kMap || value.values.empty()) refuse(value, expected());
  std::vector<DataSource> sources;
  for (Written weight : value.values) {
    const std::string path = weight.key;
    if (path.empty()) refuse(value, expected(), ", with an empty path");
    for (const DataSource& other : sources)
      check(other.path != path, "{}: {} names {} twice", weight.where, value.key, in_quotes(path));
    weight.key = fmt::format("{}, the weight of {},", value.key, in_quotes(path));
    sources.push_back({.path = path, .weight = Number{.above = 0, .at_most = 1e9}.read(weight)});
  }
  if (sources.size() == 1) sources[0].weight = 1;
  return sources;
}

std::string Sources::write(const std::vector<DataSource>& value) const {
  if (value.size() == 1) return in_quotes(value[0].path);
  std::string text;
  for (const DataSource& source : value)
    text +=
        fmt::format("{}{}: {}", text.empty() ? "{" : ", ", in_quotes(source.path), shortest(source.weight));
  return text + "}";
}

bool Flag::read(const Written& value) const {
  if (value.kind != Written::Kind::kPlain || (value.text != "true" && value.text != "false"))
    refuse(value, expected());
  return value.text == "true";
}

}  // namespace tessera
