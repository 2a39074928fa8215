// The tokenizer `bytes`.
#pragma once

#include <memory>

#include "data/tokenizers/tokenizer.h"

namespace tessera {

std::unique_ptr<Tokenizer> make_byte_tokenizer();

}  // namespace tessera
