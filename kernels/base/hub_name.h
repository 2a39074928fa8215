// When a folder is expected and a name of Hugging Face's hub is given: the command that downloads the model.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

enum class HubFiles { kModel, kTokenizer };

// The end of a message about a path that does not exist: how to download the model that the path may name,
// such as "Qwen/Qwen3-0.6B" or "gpt2". "" if it looks like a path only.
std::string hub_advice(std::string_view name, HubFiles files);

}  // namespace tessera
