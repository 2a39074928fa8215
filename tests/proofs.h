// A fixture that runs the proofs of ./prove, in this process or as the program.
#pragma once

#include <set>

#include "tests/train_ranks.h"
#include "train/prove/prove.h"
#include "train/session/device.h"

namespace tessera::testing {

struct Prove : TrainRanks {
  ProveOptions options(const std::vector<std::string>& settings = {}) const {
    ProveOptions o;
    o.config = (folder / "small.yaml").string();
    o.settings = settings;
    o.settings.push_back("data.train=" + (folder / "text.txt").string());
    o.device = DeviceRequest::kCpu;
    o.json = (folder / "proofs.json").string();
    return o;
  }
  static std::vector<Proof> proofs(const ProveOptions& o, const BackendMaker& make = make_backend) {
    return prove(open_proved(o), o, World{}, make);
  }
  static std::set<std::string> names(const std::vector<Proof>& all, Verdict verdict) {
    std::set<std::string> found;
    for (const Proof& proof : all)
      if (proof.verdict() == verdict) found.insert(proof.name);
    return found;
  }
  static const Proof& of(const std::vector<Proof>& all, const std::string& name) {
    return *std::ranges::find(all, name, &Proof::name);
  }
  ProcessResult program(const Words& arguments) const {
    return run_process(PROVE_BINARY, arguments, {.folder = folder});
  }
};

}  // namespace tessera::testing
