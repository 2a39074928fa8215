// What a checkpoint says of conversations: the chat template of the data, and the tokens that end its turns.
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
  std::string name, jinja;          // of the template; "": there are no conversations
  std::string tools_jinja;          // of conversations with tools, if that is another one
  std::string special_tokens;       // special_tokens_map.json; "": none
  std::vector<int32_t> turn_ends;   // that have a loss
  bool knows_turn_ends = false;     // data of earlier versions does not say
  std::vector<std::string> others;  // names of further templates, where the data has several
};
// Error: a manifest that is not valid
ChatData read_chat_data(const std::vector<std::filesystem::path>& folders);

// Makes programs that read a checkpoint talk to the model as the data did: `copied` gets the template of the
// data, unless it has that already, and the ends of turns beside the eos_token_id of generation_config.json.
// `token_ids`: those of config.json. Returns what a run says of it at its start.
std::vector<std::string> keep_chat(const ChatData& chat, const Tokenizer& tokenizer,
                                   const nlohmann::json& token_ids, CopiedFiles& copied);

}  // namespace tessera
