// A text of a chat template. It knows of each of its bytes whether the template wrote it or the
// conversation, so that a message cannot forge a special token, and so that what an assistant says is found
// again in the rendered text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::jinja {

// Who wrote a byte. 0, 1, ...: the message with this number.
using Origin = int32_t;
inline constexpr Origin kTemplate = -1;   // the template, or the program
inline constexpr Origin kOtherData = -2;  // the sample, but not the content of a message: a role, a tool

// Bytes in UTF-8, each with its origin
class Text {
 public:
  struct Run {  // the bytes from the end of the run before up to `end`
    size_t end;
    Origin origin;
    bool operator==(const Run&) const = default;
  };

  Text() = default;
  Text(std::string bytes, Origin origin = kTemplate);
  Text(const char* bytes) : Text(std::string(bytes)) {}
  Text(const Text& other);
  Text(Text&& other) noexcept;
  Text& operator=(Text other) noexcept;
  ~Text();

  const std::string& bytes() const { return bytes_; }
  const std::vector<Run>& runs() const { return runs_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  Origin origin_at(size_t at) const;

  void append(std::string_view bytes, Origin origin);
  void append(const Text& text) { append(text, 0, text.size()); }
  void append(const Text& text, size_t first, size_t count);  // that part of `text`
  void append(size_t times, char c);                          // by the template
  Text part(size_t first, size_t count = std::string::npos) const;
  // Part `first` up to `last` of its characters, as Python counts: code points
  Text characters(int64_t first, int64_t last, int64_t step = 1) const;
  int64_t length() const { return static_cast<int64_t>(size() - inner_); }  // in code points
  int64_t length_before(size_t at) const;                                   // of the bytes before this one
  size_t place_of(int64_t character) const;                                 // its first byte

 private:
  void hold();

  std::string bytes_;
  std::vector<Run> runs_;  // neighbours have different origins; the last one ends at the end
  size_t inner_ = 0;       // bytes that begin no character
  size_t held_ = 0;        // of the rendering's budget
};

Text repeated(const Text& text, int64_t times);

}  // namespace tessera::jinja
