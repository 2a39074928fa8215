#pragma once

#include <string>
#include <vector>

namespace tessera {

// A part of the training data
struct DataSource {
  std::string path;   // builtin, or as TokenStream::open() takes it
  double weight = 1;  // its share of the sequences is that of the sum of all weights
  bool operator==(const DataSource&) const = default;
};

// "a", or "a (0.7), b (0.3)" with the weights
std::string text_of(const std::vector<DataSource>& sources);

}  // namespace tessera
