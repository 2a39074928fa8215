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

// The key that is now so called: "optimizer.warmup" for "optimizer.warmup_steps"
std::string_view present_name(std::string_view key);
// Likewise of a value: "tessera" for "own" of train.gemm_backend
std::string_view present_value(std::string_view key, std::string_view value);

// Whether one value may stand for the section, and be that of each of its keys
bool takes_one_value(std::string_view section);

std::vector<std::string_view> keys_in(std::string_view section);  // dotted; "": those in no section

// How a file nests a dotted key or section: "model:" and, indented below it, "layers: ..."
std::string nested(std::string_view key);

// The message for a key, or a section, that does not exist, with the nearest known ones
std::string unknown_key(std::string_view key);
std::string unknown_section(std::string_view name);

// How to set the key that an unknown option of the command line names, such as "--steps=5" or
// "train.steps=5". "" if it names no key.
std::string option_is_a_key(std::string_view option);

}  // namespace tessera
