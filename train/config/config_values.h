// The kinds of values in a configuration. Each kind has three functions: expected() completes the sentence
// "this key must be ..."; read() has an Error for a value that it does not accept; write() returns the value
// in YAML.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/base/text.h"
#include "kernels/base/words.h"
#include "model/by_block.h"
#include "model/freeze.h"
#include "model/lora.h"
#include "model/offload.h"
#include "model/sparse.h"
#include "model/windows.h"
#include "train/config/config.h"
#include "train/config/data_sources.h"
#include "train/config/written.h"

namespace tessera {

struct Whole {
  int64_t at_least = 0;
  int64_t at_most = 1'000'000'000;  // keeps the products of two such numbers within int64_t
  int64_t multiple_of = 1;
  std::string_view zero = {};       // the word for 0, if there is one; other numbers then begin at 1
  std::string_view minus_one = {};  // the word for -1, if there is one

  std::string expected() const;
  int64_t read(const Written& value) const;
  std::string write(int64_t value) const;
};

struct Number {  // must be finite
  std::optional<double> at_least = {}, above = {}, at_most = {}, below = {};
  std::string_view zero = {};  // the word for 0, if there is one; 0 itself is then out of bounds

  std::string expected() const;
  double read(const Written& value) const;
  std::string write(double value) const;
  std::string write(float value) const;
};

// A probability that dropout_threshold() accepts
struct Probability {
  std::string expected() const { return "a number of at least 0 and below 1"; }
  double read(const Written& value) const;
  std::string write(double value) const;
};

template <HasWords E>
struct OneOf {
  std::vector<E> values = all();  // the values that the key accepts

  static std::vector<E> all() {
    constexpr auto values = values_with_words<E>();
    return {values.begin(), values.end()};
  }
  std::string expected() const { return join_words(names_of<E>(values)); }
  E read(const Written& value) const { return values[read_word(value, names_of<E>(values))]; }
  std::string write(E value) const { return name_of(value); }
};

// A set of words, as a class with add(E) and text_of(set)
template <class Set, HasWords E>
struct SetOf {
  std::string expected() const {
    return "none, or with a plus between them: " + join_words(names(), " and ");
  }
  Set read(const Written& value) const {
    Set set;
    for (const size_t place : read_words(value, names())) set.add(values_with_words<E>()[place]);
    return set;
  }
  std::string write(Set value) const { return text_of(value); }

 private:
  static std::vector<std::string_view> names() {
    constexpr auto values = values_with_words<E>();
    return names_of<E>(values);
  }
};

// The number of blocks in the text "12" after a star; nothing without a star. Error: not a whole number of at
// least 1.
struct TextOfBlocks {
  std::string text;
  std::optional<int64_t> blocks;
};
TextOfBlocks without_blocks(const Written& value, std::string_view text);
// The entries of "none*12,linear". Error: an entry other than the last has no number of blocks.
std::vector<TextOfBlocks> entries_by_block(const Written& value);

// One value for all blocks of a model, or a list of values with numbers of blocks, beginning with the first
// block
template <class Kind>
struct ByBlockOf {
  Kind kind = {};

  using Value = decltype(kind.read(std::declval<const Written&>()));
  std::string expected() const { return kind.expected() + "; of blocks in turn: none*12,linear"; }
  ByBlock<Value> read(const Written& value) const {
    std::vector<typename ByBlock<Value>::Run> runs;
    Written one = value;
    for (const auto& [text, blocks] : entries_by_block(value)) {
      one.text = text;
      runs.push_back({.value = kind.read(one), .blocks = blocks.value_or(ByBlock<Value>::kRest)});
    }
    return ByBlock<Value>(runs);
  }
  std::string write(const ByBlock<Value>& value) const { return text_of(value); }
};

// full, tokens, or a pattern of both with numbers of blocks; the pattern repeats
struct WindowPattern {
  std::string expected() const;
  Windows read(const Written& value) const;
  std::string write(const Windows& value) const { return text_of(value); }
};

// full, a pattern of sparse blocks, or several of these with numbers of blocks, which repeat: read_sparse()
struct SparseAttention {
  std::string expected() const;
  SparseBlocks read(const Written& value) const;
  std::string write(const SparseBlocks& value) const { return text_of(value); }
};

// A set of words; activations may be followed by a number of blocks: optimizer+activations*12
struct OffloadedParts {
  std::string expected() const;
  Offload read(const Written& value) const;
  std::string write(const Offload& value) const { return text_of(value); }
};

// A value of another kind, or none, which is written "auto"
template <class Kind>
struct OrAuto {
  Kind kind = {};

  std::string expected() const { return "auto, " + kind.expected(); }
  using Value = decltype(kind.read(std::declval<const Written&>()));
  std::optional<Value> read(const Written& value) const {
    if (value.kind == Written::Kind::kPlain && value.text == "auto") return std::nullopt;
    Written other = value;
    other.also = "auto";
    return kind.read(other);
  }
  std::string write(const std::optional<Value>& value) const { return value ? kind.write(*value) : "auto"; }
};

// "none", or parts and blocks with a plus between them: "embeddings+blocks:0-5"
struct FrozenParts {
  std::string expected() const;
  Freeze read(const Written& value) const;
  std::string write(const Freeze& value) const { return text_of(value); }
};

// "none", or a list of numbers above 0: [1, 1.5], also written 1,1.5
struct Numbers {
  double at_most = 1e6;

  std::string expected() const;
  std::vector<double> read(const Written& value) const;
  std::string write(const std::vector<double>& values) const;
};

// "none", or a list of numbers of blocks in ascending order, from 0: [0, 3], also written 0,3
struct BlockNumbers {
  std::string expected() const;
  std::vector<int64_t> read(const Written& value) const;
  std::string write(const std::vector<int64_t>& values) const;
};

// "none", or the number of steps before each length: {0: 1024, 800: 8192}, also written 0:1024,800:8192
struct Phases {
  std::string expected() const;
  std::vector<ContextPhase> read(const Written& value) const;
  std::string write(const std::vector<ContextPhase>& value) const;
};

// A whole number of steps, or a share of the run: 3%
struct WarmUpLength {
  std::string expected() const;
  WarmUp read(const Written& value) const;
  std::string write(const WarmUp& value) const;
};

struct Text {
  std::string expected() const { return "text"; }
  std::string read(const Written& value) const;
  std::string write(const std::string& value) const;  // always writes double quotes
};

// "none", a path, or a list of paths; the same for texts that are not paths
struct Paths {
  std::string_view of = "path";

  std::string expected() const;
  std::vector<std::string> read(const Written& value) const;
  std::string write(const std::vector<std::string>& value) const;
};

// A path, or a map from paths to weights
struct Sources {
  std::string expected() const { return "a path, or several with weights: {a: 0.7, b: 0.3}"; }
  std::vector<DataSource> read(const Written& value) const;
  std::string write(const std::vector<DataSource>& value) const;
};

struct Flag {
  std::string expected() const { return "true or false"; }
  bool read(const Written& value) const;
  std::string write(bool value) const { return value ? "true" : "false"; }
};

}  // namespace tessera
