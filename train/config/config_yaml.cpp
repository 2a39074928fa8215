#include "train/config/config_yaml.h"

#include <yaml-cpp/eventhandler.h>

#include <algorithm>
#include <sstream>

#include "kernels/base/check.h"

namespace tessera {
namespace {

constexpr std::string_view kQuotesHelp = "; put double quotes around a text with special characters";

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

constexpr int kDeepest = 64;  // nested maps and lists; a configuration has 3

// Reads a text event by event before yaml-cpp builds nodes from it, and refuses texts on which yaml-cpp
// would not terminate, or would recurse too deeply. Before version 0.9, content after the end of the root,
// as in `"a","b"`, is an endless series of empty documents: YAML::LoadAll() would allocate until memory runs
// out.
class Guard final : public YAML::EventHandler {
 public:
  Guard(const std::string& text, const YamlSource& source)
      : text_(text), source_(source), most_events_(4 * text.size() + 16) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) refuse_more(mark);
    count(mark);
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { count(mark); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { count(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t, const std::string&) override {
    count(mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    deeper(mark);
  }
  void OnSequenceEnd() override { --depth_; }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    deeper(mark);
  }
  void OnMapEnd() override { --depth_; }

 private:
  // A text has at most a few events a byte: this bounds anything else that yaml-cpp might repeat without end.
  void count(const YAML::Mark& mark) {
    check(++events_ <= most_events_, "{}: not YAML: cannot be understood", source_.at(mark));
  }
  void deeper(const YAML::Mark& mark) {
    count(mark);
    check(++depth_ <= kDeepest, "{}: maps and lists are nested more than {} deep", source_.at(mark),
          kDeepest);
  }
  [[noreturn]] void refuse_more(const YAML::Mark& mark) const {
    const size_t at = static_cast<size_t>(std::max(mark.pos, 0));
    const bool marked = at < text_.size() && text_.compare(at, 3, "---") == 0;
    if (marked)
      fail(
          "{}: a second YAML document begins here: a configuration must be one document. Remove this line "
          "and what follows",
          source_.at(mark));
    fail("{}: not YAML: the value has ended before this{}", source_.at(mark), kQuotesHelp);
  }

  const std::string& text_;
  const YamlSource& source_;
  const size_t most_events_;
  size_t events_ = 0;
  int documents_ = 0, depth_ = 0;
};

}  // namespace

std::string YamlSource::at(const YAML::Mark& mark) const {
  return has_lines ? fmt::format("{}:{}:{}", name, mark.line + 1, mark.column + 1) : name;
}

YAML::Node parse_yaml(const std::string& text, const YamlSource& source) {
  check(text.size() <= kMostYamlBytes, "{}: a configuration may have at most {} bytes, found more",
        source.name, kMostYamlBytes);
  check_bytes(text, source);
  // The mark "..." ends the document. Without it, yaml-cpp takes a quote that is never closed for one closed
  // by the end of the file.
  const std::string_view line_end = text.empty() || text.ends_with('\n') ? "" : "\n";
  try {
    const std::string ended = fmt::format("{}{}...\n", text, line_end);
    Guard guard(ended, source);
    std::istringstream events(ended);
    YAML::Parser parser(events);
    while (parser.HandleNextDocument(guard)) continue;
    const std::vector<YAML::Node> documents = YAML::LoadAll(ended);
    return documents.empty() ? YAML::Node() : documents[0];
  } catch (const YAML::Exception& error) {
    // *.bin is an alias to YAML. yaml-cpp 0.8 appends its name, 0.7 does not.
    constexpr std::string_view kUnknownAlias = "the referenced anchor is not defined";
    std::string_view what = error.msg;
    if (what.starts_with(kUnknownAlias)) what = kUnknownAlias;
    if (what == YAML::ErrorMsg::DOC_IN_SCALAR) what = "a quoted text is not closed";
    // An override is mostly a plain text
    const bool quotes_help = what == kUnknownAlias || !source.has_lines;
    fail("{}: not YAML: {}{}", source.at(error.mark), what, quotes_help ? kQuotesHelp : "");
  }
}

namespace {

Written written_flat(const std::string& key, const YAML::Node& node, const YamlSource& source) {
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

}  // namespace

Written written(const std::string& key, const YAML::Node& node, const YamlSource& source) {
  Written value = written_flat(key, node, source);
  if (value.kind == Written::Kind::kList)
    for (const YAML::Node& one : node) value.values.push_back(written_flat(key, one, source));
  if (value.kind != Written::Kind::kMap) return value;
  for (const auto& entry : node)
    value.values.push_back(
        written_flat(entry.first.IsScalar() ? entry.first.Scalar() : "", entry.second, source));
  return value;
}

}  // namespace tessera
