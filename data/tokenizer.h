// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Immutable: one Tokenizer may be used by several threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string_view name() const = 0;  // for make_tokenizer()
  virtual int32_t vocab_size() const = 0;     // ids are 0 .. vocab_size() - 1
  virtual int32_t end_of_text() const = 0;    // the id that follows every document; encode never returns it
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // end_of_text() decodes to nothing. Error: an id outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
};

// `bytes`: ids 0..255 are the bytes, 256 is the end of text. A plain text file is therefore a token file.
inline constexpr std::string_view kBytesTokenizer = "bytes";

// Error: an unknown name; the message lists the known ones.
std::unique_ptr<Tokenizer> make_tokenizer(std::string_view name);

}  // namespace tessera
