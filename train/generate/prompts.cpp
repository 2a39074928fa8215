#include "train/generate/prompts.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/input_file.h"
#include "data/samples.h"
#include "kernels/base/check.h"
#include "kernels/base/json_text.h"

namespace tessera {
namespace {

void add(std::vector<Prompt>& prompts, std::string text, const std::string& place) {
  prompts.push_back({std::move(text), place});
}

std::string all_of_standard_input() {
  InputFile input(kStandardInput);
  std::string text;
  char buffer[1 << 16];
  while (const size_t count = input.read(buffer)) text.append(buffer, count);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

void add_file(std::vector<Prompt>& prompts, const std::string& name, InputFormat format) {
  if (name == kStandardInput && format == InputFormat::kByName) format = InputFormat::kText;
  check_input(name, format);
  std::string text;  // of a text file, whose pieces may end anywhere
  read_pieces(name, format, {.on_piece = [&](const Piece& piece) {
                if (!piece.is_lines) {
                  text += piece.bytes;
                  return true;
                }
                for_each_line(piece, [&](std::string_view line, int64_t number) {
                  const std::string place = fmt::format("{}:{}", piece.input, number);
                  add(prompts, text_value(parse_json(line, name, {.first_line = number}), "prompt", place),
                      place);
                });
                return true;
              }});
  for_each_line({.bytes = std::move(text), .input = name}, [&](std::string_view line, int64_t number) {
    add(prompts, std::string(line), fmt::format("{}:{}", name, number));
  });
}

}  // namespace

std::vector<Prompt> read_prompts(const PromptSources& sources) {
  const auto of_input = std::ranges::count(sources.texts, kStandardInput);
  check(of_input + (sources.file == kStandardInput ? 1 : 0) <= 1,
        "standard input is named more than once: only one of --prompt - and --prompts - can read it");
  std::vector<Prompt> prompts;
  for (const std::string& text : sources.texts) {
    const bool is_input = text == kStandardInput;
    add(prompts, is_input ? all_of_standard_input() : text, is_input ? "standard input" : "--prompt");
  }
  if (sources.file.empty()) return prompts;
  const size_t before = prompts.size();
  add_file(prompts, sources.file, sources.format);
  check(prompts.size() > before,
        "--prompts {} has no prompt: it must have a text a line, or JSON lines with \"prompt\"",
        sources.file);
  return prompts;
}

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const Prompt& prompt, SpecialTokens special) {
  const auto before = tokenizer.before_text();
  std::vector<int32_t> ids(before.begin(), before.end());
  tokenizer.encode(prompt.text, special, ids);
  if (ids.empty() && tokenizer.end_of_text() >= 0)
    ids.push_back(tokenizer.end_of_text());  // which texts follow
  check(!ids.empty(), "{}: the tokenizer {} makes no token of it", prompt.place, tokenizer.name());
  return ids;
}

}  // namespace tessera
