// Names of models on Hugging Face's hub where the name of a folder is expected: the command that makes one.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

enum class HubFiles { kModel, kTokenizer };

// For the end of a message on a path that does not exist: how to download what it may name, such as
// "Qwen/Qwen3-0.6B" or "gpt2"; "" if it looks like a path alone.
std::string hub_advice(std::string_view name, HubFiles files);

}  // namespace tessera
