// Cuts the source of a template in Jinja into tokens, with the blanks around its tags removed as
// transformers has them removed (trim_blocks and lstrip_blocks).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::jinja {

struct Token {
  enum class Kind : uint8_t {
    kData,        // text between tags
    kBlockBegin,  // {%
    kBlockEnd,
    kValueBegin,  // {{
    kValueEnd,
    kName,
    kText,  // a literal; `text` is what it stands for
    kWhole,
    kReal,
    kSign,  // an operator, a bracket
    kEnd    // of the template
  };
  Kind kind;
  std::string text;
  int line;
};

// The last token is kEnd. Error, with `name`:line: a tag, a comment or a text without its end; a character
// that begins no token.
std::vector<Token> tokenize(std::string_view source, const std::string& name);

}  // namespace tessera::jinja
