// A fingerprint of a token stream: tells whether two streams hold the same tokens without reading all of
// them, and wherever their files are.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/token_stream.h"

namespace tessera {

struct StreamFingerprint {
  struct Source {
    std::string file;  // its name without folders: for messages, not compared
    int64_t bytes = 0;
    std::string start;  // checksum of its first 4 KiB, a shard's header among them
  };
  int64_t tokens = 0;
  std::string tokenizer;
  std::vector<Source> sources;
  std::string sample;  // checksum of 66 blocks of 4 KiB: the first, the last, and 64 spread between them
  std::string documents = "";  // the same of the files that say where documents begin; "": there are none
};

// Reads the start of each file and the blocks of the sample.
StreamFingerprint fingerprint_of(const TokenStream& stream);

nlohmann::json json_of(const StreamFingerprint& fingerprint);
// `name` is for messages. Error: another structure, or numbers that no stream has.
StreamFingerprint read_fingerprint(const nlohmann::json& json, const std::string& name);

// The first difference, such as "it had 1000 tokens, now 1200"; nothing if the streams are the same.
std::optional<std::string> difference(const StreamFingerprint& before, const StreamFingerprint& now);

}  // namespace tessera
