// A fixture that runs the train program in a folder of its own, with a small configuration and a small text.
#pragma once

#include <nlohmann/json.hpp>

#include "tests/data/support.h"
#include "tests/process.h"

namespace tessera::testing {

class TrainProgram : public InTempFolder {
 protected:
  const std::filesystem::path& folder = folder_;

  // `config` is YAML; it may train on text.txt.
  explicit TrainProgram(const std::string& config) {
    write("small.yaml", config);
    std::string text;
    for (int i = 0; i < 2000; ++i)
      text += "line " + std::to_string(i % 17) + " of a text that repeats itself\n";
    write("text.txt", text);
  }

  ProcessResult train(std::vector<std::string> arguments, rlim_t most_file_bytes = 0) const {
    arguments.insert(arguments.begin(), {"--config", "small.yaml"});
    return run_process(TRAIN_BINARY, arguments, {.folder = folder, .most_file_bytes = most_file_bytes});
  }

  void refused(const std::vector<std::string>& arguments, std::initializer_list<const char*> parts,
               rlim_t most_file_bytes = 0) const {
    const ProcessResult result = train(arguments, most_file_bytes);
    EXPECT_EQ(result.status, 1) << result.out << result.error;
    for (const char* part : parts)
      EXPECT_NE(result.error.find(part), std::string::npos)
          << "wanted: " << part << "\nfound:  " << result.error;
  }

  // What a run's metrics file says of its results, as written: equal texts are equal bits.
  std::vector<std::string> losses(const std::filesystem::path& run) const {
    std::ifstream file(folder / run / "metrics.jsonl");
    std::vector<std::string> found;
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      for (const char* key : {"loss", "grad_norm", "validation_loss", "sample"})
        if (json.contains(key))
          found.push_back(json["step"].dump() + " " + key + " " +
                          json[key].dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    }
    return found;
  }
};

}  // namespace tessera::testing
