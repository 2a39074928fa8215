// The files that other programs read next to the weights in a folder of Hugging Face.
#pragma once

#include "train/export/source.h"

namespace tessera {

// The files of the source, unchanged. If these are missing, they are made: tokenizer.json,
// tokenizer_config.json (with the chat template, if it is known), special_tokens_map.json and
// generation_config.json. Error: the name of a file says that it is JSON, but it is not
CopiedFiles hugging_face_files(const ExportSource& source);

}  // namespace tessera
