#include "train/config/config_yaml.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera {
namespace {

// yaml-cpp would replace such bytes by U+FFFD, and so change a path or a prompt.
void check_bytes(const std::string& text, const YamlSource& source) {
  const auto is_control = [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7F;
  };
  const auto control = std::find_if(text.begin(), text.end(), is_control);
  const size_t bad = std::min(utf8_prefix(text), static_cast<size_t>(control - text.begin()));
  if (bad == text.size()) return;
  YAML::Mark mark;
  mark.line = static_cast<int>(std::count(text.begin(), text.begin() + static_cast<int64_t>(bad), '\n'));
  mark.column = static_cast<int>(bad - (bad == 0 ? 0 : text.rfind('\n', bad - 1) + 1));
  fail("{}: byte 0x{:02x} is not text; a configuration is UTF-8 without control characters", source.at(mark),
       static_cast<unsigned char>(text[bad]));
}

}  // namespace

std::string YamlSource::at(const YAML::Mark& mark) const {
  return has_lines ? fmt::format("{}:{}:{}", name, mark.line + 1, mark.column + 1) : name;
}

YAML::Node parse_yaml(const std::string& text, const YamlSource& source) {
  check_bytes(text, source);
  // The mark "..." ends the document. Without it, yaml-cpp takes a quote that is never closed for one closed
  // by the end of the file.
  const std::string_view line_end = text.empty() || text.ends_with('\n') ? "" : "\n";
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(fmt::format("{}{}...\n", text, line_end));
    if (documents.empty()) return {};
    if (documents.size() > 1)
      fail("{}: a second YAML document begins here; one is wanted", source.at(documents[1].Mark()));
    return documents[0];
  } catch (const YAML::Exception& error) {
    // *.bin is an alias to YAML. yaml-cpp 0.8 goes on with its name, 0.7 does not.
    constexpr std::string_view kUnknownAlias = "the referenced anchor is not defined";
    std::string_view what = error.msg;
    if (what.starts_with(kUnknownAlias)) what = kUnknownAlias;
    if (what == YAML::ErrorMsg::DOC_IN_SCALAR) what = "a quoted text is not closed";
    const bool quotes_help =
        what == kUnknownAlias || !source.has_lines;  // an override is mostly a plain text
    fail("{}: not YAML: {}{}", source.at(error.mark), what,
         quotes_help ? "; put double quotes around a text with special characters" : "");
  }
}

Written written(const std::string& key, const YAML::Node& node, const YamlSource& source) {
  Written value{.key = key, .where = source.at(node.Mark()), .kind = Written::Kind::kNothing, .text = ""};
  switch (node.Type()) {
    case YAML::NodeType::Scalar:
      // yaml-cpp tags a plain scalar "?", a quoted one "!"; a tag like !!str quotes as well.
      value.kind = node.Tag() == "?" ? Written::Kind::kPlain : Written::Kind::kQuoted;
      value.text = node.Scalar();
      break;
    case YAML::NodeType::Sequence:
      value.kind = Written::Kind::kList;
      break;
    case YAML::NodeType::Map:
      value.kind = Written::Kind::kMap;
      break;
    case YAML::NodeType::Null:
    case YAML::NodeType::Undefined:
      break;
  }
  return value;
}

}  // namespace tessera
