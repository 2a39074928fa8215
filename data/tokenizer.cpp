#include "data/tokenizer.h"

#include "kernels/base/check.h"

namespace tessera {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  std::string_view name() const override { return kBytesTokenizer; }
  int32_t vocab_size() const override { return kEndOfText + 1; }
  int32_t end_of_text() const override { return kEndOfText; }

  std::vector<int32_t> encode(std::string_view text) const override {
    // Through unsigned char: a plain char above 127 would become a negative id.
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    return {bytes, bytes + text.size()};
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const int32_t id : ids) {
      check(0 <= id && id < vocab_size(), "token {} is outside the {} ids of the tokenizer '{}'", id,
            vocab_size(), name());
      if (id != kEndOfText) text += static_cast<char>(id);
    }
    return text;
  }

 private:
  static constexpr int32_t kEndOfText = 256;
};

struct KnownTokenizer {
  std::string_view name;
  std::unique_ptr<Tokenizer> (*make)();
};

template <class T>
std::unique_ptr<Tokenizer> make() {
  return std::make_unique<T>();
}

constexpr KnownTokenizer kKnownTokenizers[] = {
    {kBytesTokenizer, make<ByteTokenizer>},
};

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view name) {
  std::string known_names;
  for (const KnownTokenizer& known : kKnownTokenizers) {
    if (known.name == name) return known.make();
    known_names += fmt::format("{}'{}'", known_names.empty() ? "" : ", ", known.name);
  }
  fail("unknown tokenizer '{}'; known: {}", name, known_names);
}

}  // namespace tessera
