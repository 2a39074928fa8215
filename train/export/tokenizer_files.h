// The files beside the weights that other programs read from a folder of Hugging Face.
#pragma once

#include "train/export/source.h"

namespace tessera {

// Those of the source, unchanged, and where they are missing tokenizer.json, tokenizer_config.json (with the
// chat template where it is known), special_tokens_map.json and generation_config.json. Error: one that is
// not JSON, though its name says so
CopiedFiles hugging_face_files(const ExportSource& source);

}  // namespace tessera
