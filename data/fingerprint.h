// A fingerprint of a token stream tells whether two streams hold the same tokens. It does not read all of
// them, and does not depend on where the files are.
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
    std::string start;  // a checksum of its first 4 KiB, which include a shard's header
  };
  int64_t tokens = 0;
  std::string tokenizer;
  std::vector<Source> sources;
  std::string sample;  // checksum of 66 blocks of 4 KiB: the first, the last, and 64 spread between them
  std::string documents = "";  // the same for the files that say where documents begin; "": there are none
};

// Reads the start of each file and the blocks of the sample.
StreamFingerprint fingerprint_of(const TokenStream& stream);

nlohmann::json json_of(const StreamFingerprint& fingerprint);
// `name` is for messages. Error: the JSON has another structure, or numbers that no stream has.
StreamFingerprint read_fingerprint(const nlohmann::json& json, const std::string& name);

// The first difference, such as "it had 1000 tokens, now 1200"; nullopt if the streams are the same.
std::optional<std::string> difference(const StreamFingerprint& before, const StreamFingerprint& now);

}  // namespace tessera
