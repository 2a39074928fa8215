// The options of a run that are not part of its configuration
#pragma once

#include <string>

namespace tessera {

struct TrainerOptions {
  bool resume = false;     // resume from the newest checkpoint in train.folder
  bool or_start = false;   // with resume: start a new run if there is no checkpoint
  bool overwrite = false;  // remove the checkpoints of an earlier run in train.folder
  std::string memory_profile =
      {};  // a folder to write a profile of the memory to (memory_profile.h); empty: none
};

}  // namespace tessera
