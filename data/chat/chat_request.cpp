#include "data/chat/chat_request.h"

#include <charconv>
#include <ctime>
#include <nlohmann/json.hpp>

#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::tm today() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

std::tm day_of(const std::string& date) {
  if (date.empty()) return today();
  std::tm day{};
  const char* const end = strptime(date.c_str(), "%Y-%m-%d", &day);
  check(end != nullptr && *end == '\0' && date.size() == 10,
        "--date {}: expected YYYY-MM-DD, such as 2026-01-31", date);
  day.tm_isdst = -1;
  std::tm given = day;
  std::mktime(&day);  // the day of the week, and of the year
  check(day.tm_mday == given.tm_mday, "--date {}: there is no such day", date);
  return day;
}

// A value is JSON, such as false or 3, and else a text.
jinja::Dict values_of(const std::vector<std::string>& given) {
  jinja::Dict values;
  for (const std::string& one : given) {
    const size_t sign = one.find('=');
    check(sign != one.npos && sign > 0,
          "--template-value {}: expected NAME=VALUE, such as enable_thinking=false", one);
    const std::string value = one.substr(sign + 1);
    jinja::Value read = jinja::Text(value);
    if (nlohmann::ordered_json::accept(value))
      read = jinja::value_of(jinja::parse_json_exactly(value), jinja::kTemplate);
    values.emplace_back(jinja::Text(one.substr(0, sign)), std::move(read));
  }
  return values;
}

}  // namespace

fs::path folder_of_tokenizer(const std::string& source) {
  if (source == kBytesTokenizer) return {};
  const fs::path path(source);
  std::error_code error;
  if (fs::is_directory(path, error)) return path;
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

std::unique_ptr<ChatTemplate> choose_chat_template(const ChatRequest& request, const fs::path& folder,
                                                   const Tokenizer& tokenizer, bool tools) {
  ChatOptions options{
      .values = values_of(request.values), .now = day_of(request.date), .special = request.special};
  std::optional<ChatForm> form;
  if (!request.named.empty()) form = chat_form(request.named, folder);
  if (!form && !folder.empty()) form = find_chat_form(folder, tools);
  if (!form) form = guess_chat_form(tokenizer);
  if (!form) return nullptr;
  if (!folder.empty())
    for (auto& [name, token] : special_tokens_of(folder))
      if (!find(options.values, name.bytes())) options.values.emplace_back(name, token);
  return std::make_unique<ChatTemplate>(std::move(*form), tokenizer, std::move(options));
}

std::string no_chat_template(const Tokenizer& tokenizer) {
  return fmt::format(
      "a conversation needs a chat template: there is none beside the tokenizer {}, and it has not the "
      "special tokens of exactly one of chatml (<|im_start|>) and llama3 (<|start_header_id|>). Name one: "
      "--chat-template chatml, or a file with a template in Jinja",
      tokenizer.name());
}

}  // namespace tessera
