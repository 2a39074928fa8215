// What the command line says about a run, beside its configuration.
#pragma once

#include <string>

namespace tessera {

struct TrainerOptions {
  bool resume = false;         // go on from the newest checkpoint of train.folder
  bool or_start = false;       // with resume: start where there is no checkpoint
  bool overwrite = false;      // remove the checkpoints that an earlier run left in train.folder
  std::string memory_profile;  // a folder to write a profile of the memory to (memory_profile.h); empty: none
};

}  // namespace tessera
