// The names of configuration keys, and advice for those that are misspelled.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct SplitKey {
  std::string_view section, leaf;  // "model.rope" and "theta"; "" and "device"
};
SplitKey split_key(std::string_view key);

bool is_key(std::string_view key);       // dotted: "model.layers"; also by an earlier name
bool is_section(std::string_view name);  // "model", "model.rope"

// The present name of a key: "optimizer.warmup" for "optimizer.warmup_steps"
std::string_view present_name(std::string_view key);
// The present name of a value: "tessera" for "own" of train.gemm_backend
std::string_view present_value(std::string_view key, std::string_view value);

// Whether a section may have one value, which is then the value of each of its keys
bool takes_one_value(std::string_view section);

std::vector<std::string_view> keys_in(std::string_view section);  // dotted; "": the keys without a section

// A dotted key or section as a file writes it: "model:" and, indented below it, "layers: ..."
std::string nested(std::string_view key);

// The message for a key or section that does not exist. It names the nearest known ones.
std::string unknown_key(std::string_view key);
std::string unknown_section(std::string_view name);

// How to set the key that an unknown command-line option names, such as "--steps=5" or "train.steps=5". "" if
// the option names no key.
std::string option_is_a_key(std::string_view option);

}  // namespace tessera
