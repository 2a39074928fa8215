// Config: the settings of a run, with their defaults.
//
// Each fact is in one list. for_each_field() in config_fields.h names every key with its documentation and
// its limits; load_config(), --set, print_config(), the advice on misspelled keys and docs/configuration.md
// are all made from that list. A setting that is one of several words is an enum; words_of() next to the enum
// lists the words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/attention/attention_kind.h"
#include "kernels/attention/small_cache.h"
#include "kernels/base/gemm_source.h"
#include "kernels/base/link_rates.h"
#include "kernels/base/special_tokens.h"
#include "kernels/base/tensor.h"
#include "model/by_block.h"
#include "model/config.h"
#include "model/experts.h"
#include "model/formats/positions.h"
#include "model/fp8_config.h"
#include "model/freeze.h"
#include "model/keep.h"
#include "model/offload.h"
#include "model/presets.h"
#include "model/shards.h"
#include "model/update_rule.h"
#include "train/config/data_sources.h"

namespace tessera {

enum class DeviceRequest : uint8_t { kAuto, kCpu, kCuda };
constexpr auto words_of(DeviceRequest) {  // of device
  return std::array{Word{"auto", DeviceRequest::kAuto}, Word{"cpu", DeviceRequest::kCpu},
                    Word{"cuda", DeviceRequest::kCuda}};
}

enum class Precision : uint8_t { kAuto, kBf16, kFp32 };
constexpr auto words_of(Precision) {  // of train.precision
  return std::array{Word{"auto", Precision::kAuto}, Word{"bf16", Precision::kBf16},
                    Word{"fp32", Precision::kFp32}};
}

enum class Tune : uint8_t { kAuto, kOff };
constexpr auto words_of(Tune) {  // of train.tune
  return std::array{Word{"auto", Tune::kAuto}, Word{"off", Tune::kOff}};
}

enum class Schedule : uint8_t { kCosine, kLinear, kConstant, kWsd };
constexpr auto words_of(Schedule) {  // of optimizer.schedule
  return std::array{Word{"cosine", Schedule::kCosine}, Word{"linear", Schedule::kLinear},
                    Word{"constant", Schedule::kConstant}, Word{"wsd", Schedule::kWsd}};
}

enum class OptimizerRule : uint8_t { kAdamW, kMuon };
constexpr auto words_of(OptimizerRule) {  // of optimizer.rule
  return std::array{Word{"adamw", OptimizerRule::kAdamW}, Word{"muon", OptimizerRule::kMuon}};
}

enum class Shift : uint8_t { kAuto, kOff, kOn };
constexpr auto words_of(Shift) {  // of data.shift
  return std::array{Word{"auto", Shift::kAuto}, Word{"false", Shift::kOff}, Word{"true", Shift::kOn}};
}

enum class LossKind : uint8_t { kCrossEntropy, kDpo, kIpo, kSimpo, kOrpo, kKto };
constexpr auto words_of(LossKind) {  // of train.loss
  return std::array{Word{"cross_entropy", LossKind::kCrossEntropy},
                    Word{"dpo", LossKind::kDpo},
                    Word{"ipo", LossKind::kIpo},
                    Word{"simpo", LossKind::kSimpo},
                    Word{"orpo", LossKind::kOrpo},
                    Word{"kto", LossKind::kKto}};
}

// A phase of train.context_schedule
struct ContextPhase {
  int64_t from_step = 0;  // the phase begins after so many steps
  int64_t sequence_length = 0;
  bool operator==(const ContextPhase&) const = default;
};

enum class Documents : uint8_t { kJoin, kMask };
constexpr auto words_of(Documents) {  // of data.documents
  return std::array{Word{"join", Documents::kJoin}, Word{"mask", Documents::kMask}};
}

enum class OnNonfinite : uint8_t { kStop, kSkip, kRewind };
constexpr auto words_of(OnNonfinite) {  // of train.on_bad_step.nonfinite
  return std::array{Word{"stop", OnNonfinite::kStop}, Word{"skip", OnNonfinite::kSkip},
                    Word{"rewind", OnNonfinite::kRewind}};
}

enum class OnSpike : uint8_t { kIgnore, kSkip, kRewind, kStop };
constexpr auto words_of(OnSpike) {  // of train.on_bad_step.spike
  return std::array{Word{"ignore", OnSpike::kIgnore}, Word{"skip", OnSpike::kSkip},
                    Word{"rewind", OnSpike::kRewind}, Word{"stop", OnSpike::kStop}};
}

// train.on_bad_step: what a run does at steps whose gradients cannot be trusted
struct OnBadStep {
  OnNonfinite nonfinite = OnNonfinite::kStop;  // if a loss or a gradient norm is not finite
  OnSpike spike = OnSpike::kIgnore;            // if the score of a loss or a gradient norm is above
                                               // spike_score
  double spike_score = 20;                     // see scores_of()
  int64_t most_skips = 10;                     // in a run; one more stops it
  int64_t most_rewinds = 3;                    // in a run; one more stops it
  bool judges_spikes() const { return spike != OnSpike::kIgnore; }
  bool operator==(const OnBadStep&) const = default;
};

// The value of optimizer.warmup: steps, or a share of the run
struct WarmUp {
  int64_t steps = 0;   // if `percent` is 0
  double percent = 0;  // of all steps, to the nearest step
  bool operator==(const WarmUp&) const = default;
  int64_t of(int64_t all_steps) const;
};

inline constexpr int64_t kAutoChunk = -1;               // train.classifier_chunk, train.mlp_chunk: auto
inline constexpr const char* kBuiltinData = "builtin";  // a source: the text that ships with the program
inline constexpr const char* kRequired = "required";    // train.init_from: a folder has to be named

struct Config {
  DeviceRequest device = DeviceRequest::kAuto;

  // As a user writes it: kv_heads, head_dim and mlp_width may be 0, written "auto".
  struct Model : ModelConfig {
    Preset preset = Preset::kNone;  // load_config() has set the keys to its values
    AttentionKind attention = AttentionKind::kFlash;
    PositionExtension position_extension = PositionExtension::kNone;

    Model();                                   // GPT-2 small
    explicit Model(const ModelConfig& model);  // sizes that auto would give are written as auto
    bool operator==(const Model&) const = default;
    ModelConfig resolved() const;  // without auto

    // Only resolved() sets these.
    int64_t parameters() const = delete;
    int64_t qkv_heads() const = delete;
    int64_t attention_width() const = delete;
    double flops_per_token(double T) const = delete;
  } model;

  struct Data {
    std::vector<DataSource> train = {{.path = kBuiltinData}};
    std::string validation = "";  // a path; empty: hold out a part of each source of train
    double validation_fraction = 0.05;
    bool shuffle = true;
    Shift shift = Shift::kAuto;
    Documents documents = Documents::kJoin;
    bool operator==(const Data&) const = default;
    bool masks() const { return documents == Documents::kMask; }
    bool shifts() const {  // for a new run
      return shift == Shift::kAuto ? shuffle && !masks() : shift == Shift::kOn;
    }
  } data;

  struct Train {
    std::string folder = "";     // if empty, load_config() sets it to runs/<name of the config file>
    std::string init_from = "";  // a folder with weights and their model; empty: random; or kRequired
    std::vector<std::string> ignore_fields = {};  // in its config.json: see FolderOptions (written "none")
    int64_t steps = 1000;                         // 0: train.epochs decides (written "auto")
    double epochs = 0;                            // replaces steps; 0: steps decides (written "none")
    int64_t patience = 0;  // the run ends after so many evaluations in a row without a new lowest loss; 0:
                           // never
    int64_t tokens_per_step = 524288;
    int64_t sequence_length = 0;                      // 0: model.context (written "auto")
    std::vector<ContextPhase> context_schedule = {};  // empty: one length (written "none")
    int64_t micro_batch = 0;  // sequences in one forward and backward; 0: the most that fit (written "auto")
    Precision precision = Precision::kAuto;
    Tune tune = Tune::kAuto;
    GemmSource gemm_backend = GemmSource::kAuto;
    bool cuda_graphs = true;
    Fp8Config fp8 = {};                                        // train.fp8, and also train.gemm_dtype
    std::optional<ByBlock<Keep>> recompute = ByBlock<Keep>{};  // nothing: see fastest_shape() (written
                                                               // "auto")
    Freeze freeze = {};
    LoraConfig lora = {};
    struct StoredBase {                 // see model/lora_config.h
      BaseForm form = BaseForm::kAuto;  // train.lora.base
      LoraBaseParts parts = LoraBaseParts::kAuto;
      bool operator==(const StoredBase&) const = default;
      bool of_experts(const ModelConfig& model) const {
        return parts == LoraBaseParts::kExperts ||
               (parts == LoraBaseParts::kAuto && form == BaseForm::kMxfp4 && model.experts);
      }
    };
    StoredBase lora_base = {};
    RouterLosses experts = {};  // for the losses of routers; 0: none
    LossKind loss = LossKind::kCrossEntropy;
    double z_loss = 0, label_smoothing = 0;  // for cross entropy
    struct Preference {                      // see kernels/preference.h
      double beta = 0.1, label_smoothing = 0, gamma = 0.5, cross_entropy = 0;
      double desirable = 1, undesirable = 1;
      bool operator==(const Preference&) const = default;
    } preference;
    std::string reference = "";     // a folder; empty: see trains_pairs()
    bool stored_reference = false;  // log-probabilities are stored next to the data, see data/log_probs.h
    std::string teacher = "";       // a folder; empty: none
    BaseForm teacher_base = BaseForm::kAuto;
    int64_t teacher_logits = 0;  // of each token, that lie beside the data: see data/teacher_logits.h
    struct Distillation {
      double temperature = 1, cross_entropy = 0, reverse = 0;
      bool operator==(const Distillation&) const = default;
    } distillation;
    OnBadStep on_bad_step = {};
    int64_t classifier_chunk = kAutoChunk;  // tokens; 0: all of a micro-batch (written "all")
    int64_t mlp_chunk = 0;                  // tokens; 0: all of a micro-batch; or kAutoChunk
    DType reduce = DType::kBF16;
    int64_t time_limit = 25;  // seconds
    bool deterministic = true;
    int64_t seed = 1337;
    int64_t log_every = 10;
    int64_t inside_every = 0;          // steps; 0: never
    bool report = true;                // write report.html in the folder
    bool tensorboard = false;          // write tensorboard/ in the folder
    std::string metrics_command = "";  // empty: none
    bool operator==(const Train&) const = default;
    bool trains_pairs() const { return loss != LossKind::kCrossEntropy; }
    bool distils() const { return !teacher.empty() || teacher_logits > 0; }
    bool runs_teacher() const { return !teacher.empty() && teacher_logits == 0; }
    // With a loss of pairs: what it is measured against. `reference`; if that is empty, with adapters the
    // model without them, else the weights that the run began with
    bool needs_reference() const {
      return loss == LossKind::kDpo || loss == LossKind::kIpo || loss == LossKind::kKto;
    }
    const std::string& reference_folder() const { return reference.empty() ? init_from : reference; }
    bool reference_without_adapters() const { return lora && reference.empty(); }
  } train;

  struct Memory {
    std::optional<Offload> offload = Offload{};  // nothing: see fastest_shape() (written "auto")
    bool operator==(const Memory&) const = default;
  } memory;

  struct Parallel {
    std::optional<Shard> shard = Shard::kOptimizer;  // nothing: see fastest_shape() (written "auto")
    int64_t replicas = 0;                            // of the parameters; 0: auto
    int64_t context = 1;                             // ranks that share the tokens of each sequence
    int64_t context_heads = 0;                       // heads of keys that are gathered at a time; 0: auto
    bool operator==(const Parallel&) const = default;
  } parallel;

  struct Optimizer {
    OptimizerRule rule = OptimizerRule::kAdamW;
    double learning_rate = 6e-4;
    double min_learning_rate = 6e-5;
    Schedule schedule = Schedule::kCosine;
    WarmUp warmup = {.steps = 100};
    double decay_fraction = 0.2;  // wsd: the fraction of the steps, at the end of the run, in which the rate
                                  // falls
    double beta1 = 0.9;
    double beta2 = 0.95;
    double epsilon = 1e-8;
    double weight_decay = 0.1;
    double max_grad_norm = 1.0;  // 0: no clipping
    DType moments = DType::kF32;
    MuonConfig muon = {};  // with rule kMuon
    double qk_clip = 0;    // heads with a larger score of attention are clipped; 0: none are
    bool operator==(const Optimizer&) const = default;
  } optimizer;

  struct Evaluation {
    int64_t every = 100;  // steps; 0: never
    int64_t sequences = 64;
    bool at_start = true;
    bool by_position = false;
    std::vector<std::string> tasks = {};  // files, as read_task() takes them (written "none")
    int64_t task_items = 0;               // items of each task; 0: all (written "all")
    bool operator==(const Evaluation&) const = default;
  } evaluation;

  struct Sampling {
    int64_t every = 500;  // steps; also at the end of the run; 0: never
    std::string prompt = "\n";
    SpecialTokens special_tokens = SpecialTokens::kAsText;
    int64_t tokens = 200;
    double temperature = 0.8;
    int64_t top_k = 40;  // 0: all tokens
    CacheDtype cache_dtype = CacheDtype::kAuto;
    bool operator==(const Sampling&) const = default;
  } sampling;

  struct Checkpoint {
    int64_t every = 500;        // steps; 0: only at the end
    int64_t keep = 2;           // how many of the newest are kept; 0: all
    int64_t keep_every = 0;     // also keeps those of steps that are multiples of this; 0: none
    bool keep_best = false;     // also keeps the one with the lowest validation loss
    DType dtype = DType::kF32;  // of the weights
    int64_t file_gib = 8;       // the size of the largest file of tensors
    bool operator==(const Checkpoint&) const = default;
  } checkpoint;

  int64_t ranks = 1;                      // processes of the run; there is no key for it: the launcher sets
                                          // it
  int64_t nodes = 1;                      // machines, with the same number of ranks on each; set like ranks
  LinkRates links = {};                   // measured if parallel.replicas=auto needs them; set like ranks
  std::vector<std::string> notices = {};  // for the user, when a run starts: about names that have changed
  int64_t epoch_steps =
      0;  // the steps that train.epochs takes; no key: known once the data is open, see train/run/epochs.h

  bool operator==(const Config&) const = default;
  int64_t steps() const { return train.epochs > 0 ? epoch_steps : train.steps; }
  int64_t data_ranks() const { return ranks / parallel.context; }  // ranks that have their own sequences
  // Whether the estimate of a step's time decides how many replicas there are
  bool finds_replicas() const {
    return parallel.replicas == 0 && nodes > 1 && parallel.shard != Shard::kNone;
  }
  int64_t sequences_per_step() const { return train.tokens_per_step / sequence_length(); }
  int64_t sequence_length() const;  // with train.context_schedule: the longest one

  // The phases of train.context_schedule; without one, the run is one phase.
  size_t phases() const { return train.context_schedule.empty() ? 1 : train.context_schedule.size(); }
  size_t phase_after(int64_t step) const;  // the phase of the step after `step`
  bool begins_phase(int64_t step) const;   // whether a phase other than the first begins right after `step`
  Config of_phase(size_t phase) const;     // a copy with the train.sequence_length of that phase
};

}  // namespace tessera
