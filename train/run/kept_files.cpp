#include "train/run/kept_files.h"

#include "data/tokenizers/load_tokenizer.h"
#include "train/run/chat_files.h"

namespace tessera {

void KeptFiles::take_over(const std::filesystem::path& folder) {
  copied = read_copied_files(folder);
  token_ids = read_token_ids(folder);
}

std::vector<std::string> KeptFiles::keep_tokenizer(const RunData& data, bool chat) {
  const Tokenizer* tokenizer = data.tokenizer();
  if (!tokenizer) return {};
  if (!tokenizer->json().empty() && !copied.contains(kTokenizerFile) && !copied.contains("vocab.json"))
    copied[kTokenizerFile] = tokenizer->json();
  if (!chat) return {};
  return keep_chat(read_chat_data(data.paths()), *tokenizer, token_ids, copied);
}

}  // namespace tessera
