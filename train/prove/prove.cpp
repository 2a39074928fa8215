#include "train/prove/prove.h"

#include <nlohmann/json.hpp>

#include "kernels/base/output.h"
#include "model/formats/folder.h"
#include "train/config/find_config.h"
#include "train/config/load_config.h"
#include "train/prove/prover.h"
#include "train/run/ignored_fields.h"
#include "train/run/model_folder.h"

namespace tessera {
namespace {

constexpr int64_t kTokens = 1024;  // of a sequence of a model of another program

ProvedModel read_proved(const ModelFolder& folder, const std::vector<std::string>& settings,
                        const std::vector<std::string>& ignored_fields) {
  ProvedModel model{.config = {}, .weights = folder.path, .state = {}};
  if (std::filesystem::exists(folder.path / kConfigFile) &&
      std::filesystem::exists(folder.path / kStateFile)) {
    model.config = load_config(folder.path / kConfigFile, settings, /*resume=*/true);
    model.state = read_run_state(folder.path);
    model.checkpoint = true;
  } else {
    check(settings.empty(), "--set is of a run's configuration, and {} is of another program",
          folder.path.string());
    model.config.model = Config::Model(read_model_config(folder.path, ignored_fields).model);
    model.config.train.ignore_fields = ignored_fields;
  }
  return model;
}

// Error: --record names what is no file, which would be replaced, or cannot be written.
void check_file(const std::string& path) {
  std::error_code error;
  check(path.empty() || !std::filesystem::exists(path, error) || !std::filesystem::is_other(path, error),
        "cannot write {}: it is no file; name one with --record FILE", path);
  check_writable(path);
}

}  // namespace

ProvedModel open_proved(const ProveOptions& options) {
  check(options.model.empty() != options.config.empty(),
        "name either a model, {}, or a configuration with --config FILE", kModelSources);
  ProvedModel model;
  if (options.config.empty()) {
    model = read_model_folder(options.model, [&](const ModelFolder& folder) {
      return read_proved(folder, options.settings, options.ignored_fields);
    });
  } else {
    std::vector<std::string> settings = options.settings;
    add_ignored_fields(options.ignored_fields, settings);
    model.config = load_config(find_config(options.config), settings);
    model.weights = model.config.train.init_from;
    check(model.weights != kRequired,
          "{} needs the weights of a model: name their folder with --set train.init_from=FOLDER",
          options.config);
  }
  Config& c = model.config;
  check(!options.data.empty() || !options.config.empty() || model.state,
        "{} does not say which data it was trained on: only a checkpoint of ./train does. Name data with "
        "--data PATH",
        model.weights.string());
  const int64_t T = options.sequence_length > 0 ? options.sequence_length
                    : model.state               ? model.state->sequence_length
                    : options.config.empty()    ? std::min(c.model.context, kTokens)
                                                : c.sequence_length();
  check(T <= c.model.context, "--sequence-length {}: the model reads at most {} tokens", T, c.model.context);
  c.train.context_schedule.clear();
  c.train.sequence_length = T;
  c.ranks = 1;
  c.parallel.context = 1;
  c.sampling.every = 0;
  c.evaluation.every = std::max<int64_t>(c.evaluation.every, 1);  // so that the data is the run's
  c.device = options.device;
  c.model.dropout = {};  // each way would drop the same; without, rows can be computed again
  if (options.precision) c.train.precision = *options.precision;
  if (options.attention) c.model.attention = *options.attention;
  return model;
}

ProvedModel read_other(const std::string& name, const std::vector<std::string>& ignored_fields) {
  return read_model_folder(
      name, [&](const ModelFolder& folder) { return read_proved(folder, {}, ignored_fields); });
}

std::vector<Proof> prove(const ProvedModel& model, const ProveOptions& options, const World& world,
                         const BackendMaker& make) {
  RankGroup ranks(world, model.config);
  std::optional<Prover> prover;  // outlives guard(): see RankGroup
  std::vector<Proof> proofs;
  ranks.guard([&] {
    if (ranks.is_rank_0())
      check_writable(options.json), check_writable(options.html), check_file(options.record);
    proofs = prover.emplace(model, options, ranks, make).run();
    ranks.finish();
    if (!ranks.is_rank_0()) return;
    const nlohmann::ordered_json json = to_json(prover->subject(), proofs);
    write_output(options.json, json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    if (!options.html.empty()) write_output(options.html, prove_page(json));
  });
  return proofs;
}

}  // namespace tessera
