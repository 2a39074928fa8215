#include "train/run/run_checks.h"

#include <algorithm>

#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/check.h"
#include "kernels/base/text.h"
#include "train/run/epochs.h"
#include "train/run/schedule.h"
#include "train/session/from_config.h"
#include "train/session/sampler.h"

namespace tessera {
namespace {

// Rows of a model beyond the ids of a tokenizer: often a multiple of 128, for speed on GPUs, or room for
// tokens to come. Published models have up to 2.4% of them; another tokenizer may have about as many ids.
bool is_padded(int64_t vocab_size, int64_t tokens) {
  constexpr int64_t kPadding = 128, kShare = 32;
  return vocab_size >= tokens && vocab_size < tokens + std::max(kPadding, tokens / kShare);
}

std::string ids_of(const Tokenizer& tokenizer) {
  return fmt::format("the tokenizer `{}` ({} ids)", tokenizer.name(), tokenizer.vocab_size());
}

std::string known(const std::string& tokenizer) {
  return tokenizer.empty() ? "a tokenizer that is not known" : fmt::format("the tokenizer `{}`", tokenizer);
}

void check_sources(const RunParts& run, std::vector<std::string>& notices) {
  const std::vector<RunData::Source>& sources = run.data.sources();
  const TokenStream& first = sources[0].stream;
  for (const RunData::Source& source : sources) {
    const TokenStream& stream = source.stream;
    if (stream.tokenizer() == first.tokenizer()) continue;
    const std::string what =
        fmt::format("of data.train, {} is encoded by {}, and {} by {}", first.path().string(),
                    known(first.tokenizer()), stream.path().string(), known(stream.tokenizer()));
    check(first.tokenizer().empty() || stream.tokenizer().empty(),
          "{}: one model reads the ids of one tokenizer. Prepare both with the same one: ./prepare "
          "--tokenizer PATH FILES --output FOLDER",
          what);
    notices.push_back(what + ": the run is meaningless unless they are the same");
  }
}

// A loss of pairs needs them, and cross entropy would train on rejected answers as on others.
void check_pairs(const RunParts& run) {
  const bool wanted = run.config.train.trains_pairs();
  const std::string loss = name_of(run.config.train.loss);
  const bool labels = run.config.train.loss == LossKind::kKto;
  const auto check_stream = [&](const TokenStream& stream) {
    const bool found = stream.documents() && stream.documents()->has_pairs();
    if (labels) {
      check(
          stream.documents() && stream.documents()->has_labels(),
          "train.loss=kto is a loss of answers with a label, and {} has none: prepare lines with \"prompt\", "
          "\"completion\" and \"label\", or set {}",
          stream.path().string(), found ? "train.loss=dpo" : "train.loss=cross_entropy");
      return;
    }
    check(
        found || !wanted,
        "train.loss={} is a loss of pairs, and {} has none: prepare lines with \"chosen\" and \"rejected\", "
        "or set train.loss=cross_entropy",
        loss, stream.path().string());
    check(wanted || !found,
          "{} has pairs of a chosen and a rejected answer, and train.loss={} would train on both: set "
          "train.loss=dpo, ipo, simpo or orpo",
          stream.path().string(), loss);
  };
  for (const RunData::Source& source : run.data.sources()) check_stream(source.stream);
  if (run.data.validation_stream()) check_stream(*run.data.validation_stream());
}

void check_validation(const RunParts& run, std::vector<std::string>& notices) {
  if (run.data.validation_stream() == nullptr) return;
  const std::string& train = run.data.sources()[0].stream.tokenizer();
  const std::string& validation = run.data.validation_stream()->tokenizer();
  if (train == validation) return;
  const std::string what = fmt::format("data.validation, {}, is encoded by {}, and data.train, {}, by {}",
                                       run.config.data.validation, known(validation),
                                       text_of(run.config.data.train), known(train));
  check(train.empty() || validation.empty(),
        "{}: the validation loss would be meaningless. Prepare both with the same tokenizer, or hold out a "
        "part of data.train with --set data.validation=",
        what);
  notices.push_back(what + ": the validation loss is meaningless unless they are the same");
}

// Whether the data is encoded by the tokenizer beside the weights that the run starts from
bool check_own_tokenizer(const RunParts& run, std::vector<std::string>& notices) {
  const std::string& folder = run.config.train.init_from;
  if (folder.empty() || run.resuming || !has_tokenizer(folder)) return false;
  std::unique_ptr<Tokenizer> own;
  try {
    own = load_tokenizer(folder);
  } catch (const Error& error) {
    notices.push_back(fmt::format(
        "the tokenizer of train.init_from is not compared with that of the data: {}", error.what()));
    return false;
  }
  check(
      own->name() == run.data.tokenizer()->name(),
      "data.train, {}, is encoded by {}, and train.init_from, {}, has {}: its weights would be given ids of "
      "another tokenizer. Prepare the data with the model's: ./prepare --tokenizer {} FILES --output FOLDER",
      text_of(run.config.data.train), ids_of(*run.data.tokenizer()), folder, ids_of(*own), folder);
  return true;
}

// Whether a token is the same to the teacher
void check_teacher(const RunParts& run, std::vector<std::string>& notices) {
  const std::string& folder = run.config.train.teacher;
  if (folder.empty() || !run.data.tokenizer()) return;
  if (!has_tokenizer(folder)) {
    notices.push_back(fmt::format("train.teacher, {}, has no tokenizer: it is not compared with {}", folder,
                                  ids_of(*run.data.tokenizer())));
    return;
  }
  const std::unique_ptr<Tokenizer> teachers = load_tokenizer(folder);
  check(teachers->name() == run.data.tokenizer()->name(),
        "data.train, {}, is encoded by {}, and train.teacher, {}, has {}: a teacher reads the ids of its own "
        "tokenizer. Prepare the data with it: ./prepare --tokenizer {} FILES --output FOLDER",
        text_of(run.config.data.train), ids_of(*run.data.tokenizer()), folder, ids_of(*teachers), folder);
}

// A model may have any number of rows beyond the ids of its own tokenizer, `is_own`.
void check_vocabulary(const RunParts& run, bool is_own, std::vector<std::string>& notices) {
  const Tokenizer& tokenizer = *run.data.tokenizer();
  const int64_t tokens = tokenizer.vocab_size(), rows = run.model.vocab_size;
  if (tokens == rows || (is_own && tokens < rows)) return;
  const std::string what =
      fmt::format("data.train, {}, is encoded by {}", text_of(run.config.data.train), ids_of(tokenizer));
  const std::string& init_from = run.config.train.init_from;
  const bool starts_from_weights = !init_from.empty() && !run.resuming;
  check(is_own || !starts_from_weights || is_padded(rows, tokens),
        "{}, and the model of train.init_from, {}, has a vocabulary of {}: its weights would be given ids of "
        "another tokenizer. Train on shards of the model's own tokenizer (for GPT-2's, 50257 ids, those that "
        "llm.c's scripts write: --set data.train='FOLDER/*_train_*.bin'), or train a model of your own from "
        "random weights, without train.init_from, with --set model.vocab_size={}",
        what, init_from, rows, tokens);
  const bool all_known = std::ranges::all_of(
      run.data.sources(), [](const auto& source) { return source.stream.knows_largest_token(); });
  if (rows < tokens && all_known) return;  // check_largest_token() compares what is used
  if (rows < tokens) {
    notices.push_back(fmt::format(
        "{}, and model.vocab_size is {}: a token above {} in the data ends the run{}", what, rows, rows - 1,
        starts_from_weights ? "" : fmt::format(". --set model.vocab_size={} takes them all", tokens)));
  } else if (is_padded(rows, tokens)) {
    notices.push_back(
        fmt::format("{}, and model.vocab_size is {}: the ids from {} on are padding", what, rows, tokens));
  } else {
    notices.push_back(
        fmt::format("{}, and model.vocab_size is {}: the ids from {} on are never used. --set "
                    "model.vocab_size={} suits the data",
                    what, rows, tokens, tokens));
  }
}

void check_prompt(const RunParts& run, std::vector<std::string>& notices) {
  const Config::Sampling& sampling = run.config.sampling;
  if (sampling.every == 0) return;
  const std::vector<int32_t> tokens = prompt_tokens(*run.data.tokenizer(), sampling);
  const auto bad = std::find_if(tokens.begin(), tokens.end(),
                                [&](int32_t token) { return token < 0 || token >= run.model.vocab_size; });
  if (bad != tokens.end())
    fail(
        "sampling.prompt {} has the token {} at position {}, and the model's vocabulary has {} tokens (0 to "
        "{}), the tokenizer of the data {}. --set model.vocab_size={} takes them all; or, for the weights of "
        "a model, change the prompt, or turn samples off with --set sampling.every=0",
        in_quotes(sampling.prompt), *bad, bad - tokens.begin(), run.model.vocab_size,
        run.model.vocab_size - 1, run.data.tokenizer()->vocab_size(), run.data.tokenizer()->vocab_size());
  if (const int64_t context = run.model.context; std::ssize(tokens) > context)
    notices.push_back(
        fmt::format("sampling.prompt has {} tokens, and the model reads {} at most (model.context): only the "
                    "last {} are used",
                    tokens.size(), context, context));
}

}  // namespace

std::vector<std::string> check_run(const RunParts& run) {
  std::vector<std::string> notices;
  check_sources(run, notices);
  check_pairs(run);
  check_teacher(run, notices);
  check_validation(run, notices);
  const bool is_own = run.data.tokenizer() && check_own_tokenizer(run, notices);
  if (run.data.tokenizer()) check_vocabulary(run, is_own, notices);
  for (const RunData::Source& source : run.data.sources()) source.stream.check_largest_token();
  if (run.data.validation_stream()) run.data.validation_stream()->check_largest_token();
  if (run.data.tokenizer()) check_prompt(run, notices);
  return notices;
}

PlannedRun planned_run(const Config& config) {
  PlannedRun found;
  const bool by_epochs = config.train.epochs > 0;
  // The built-in corpus stands for data that is not there yet.
  const bool has_data = config.data.train != Config().data.train;
  std::optional<RunData> data;
  try {
    if (by_epochs || has_data) data.emplace(config.of_phase(0), config.data.shifts());
    if (by_epochs) found.steps = steps_of_epochs(config, data->train().sequences_per_epoch());
  } catch (const Error& error) {
    found.notices.push_back(by_epochs ? fmt::format("the steps of train.epochs={} are not known: {}",
                                                    config.train.epochs, error.what())
                                      : fmt::format("the data is not checked: {}", error.what()));
  }
  if (!by_epochs) found.steps = config.steps();
  if (data && has_data) {
    found.weights = data->has_weights();
    const ModelConfig model = model_config(config);
    const std::vector<std::string> notices = check_run({.config = config, .model = model, .data = *data});
    found.notices.insert(found.notices.end(), notices.begin(), notices.end());
  }
  if (found.steps) found.notices.push_back(warm_up_notice(*found.steps, config.optimizer));
  std::erase(found.notices, "");
  return found;
}

}  // namespace tessera
