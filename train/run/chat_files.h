// What a checkpoint stores about conversations: the chat template of the data, and the tokens that end its
// turns.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "train/run/checkpoint_files.h"

namespace tessera {

// The conversations of the prepared data that a run trains on
struct ChatData {
  std::string name, jinja;          // of the template; "": the data has no conversations
  std::string tools_jinja;          // the template of conversations with tools, if they have their own
  std::string special_tokens;       // special_tokens_map.json; "": none
  std::vector<int32_t> turn_ends;   // the tokens that end turns and have a loss
  bool knows_turn_ends = false;     // false: the data is of an earlier version, which does not say
  std::vector<std::string> others;  // the names of further templates, if the data has several
};
// Error: a manifest is not valid
ChatData read_chat_data(const std::vector<std::filesystem::path>& folders);

// Lets programs that read a checkpoint talk to the model as the data did. `copied` gets the template of the
// data, unless it already has that template. The ends of turns are added to the eos_token_id of
// generation_config.json. `token_ids`: those of config.json. Returns what a run says about this at its start.
std::vector<std::string> keep_chat(const ChatData& chat, const Tokenizer& tokenizer,
                                   const nlohmann::json& token_ids, CopiedFiles& copied);

}  // namespace tessera
