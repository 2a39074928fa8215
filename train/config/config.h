// Config: everything a run can be told, read from YAML and `--set key=value`.
//
// One list per fact: for_each_field() in config_fields.h names every key with its documentation and its
// limits; reading YAML, --set, printing, the nearest-key advice and docs/configuration.md all walk that list.
// Errors: every refusal is an Error that begins with file:line:column or "--set key=value" and says what was
// wanted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace tessera {

struct Config {
  std::string device = "auto";  // auto | cpu | cuda

  struct Model {
    int64_t vocab_size = 50257;
    int64_t context = 1024;
    int64_t layers = 12;
    int64_t heads = 12;
    int64_t channels = 768;
    std::string attention = "flash";          // naive | flash | cudnn
    std::string position_extension = "none";  // none | interpolate | repeat | blend
    int64_t mlp_width = 0;                    // 0: 4 channels (written "auto")
    std::string mlp = "gelu";                 // gelu | gelu_exact | relu
    double norm_epsilon = 1e-5;
    bool tied = true;
    bool scale_attention = true;
    bool scale_attention_by_layer = false;
    bool operator==(const Model&) const = default;
  } model;

  struct Data {
    std::string train = "builtin";  // builtin, or a shard, a folder of shards, a text file
    std::string validation = "";    // like train; empty: hold out a part of train
    double validation_fraction = 0.05;
    bool shuffle = true;
    bool operator==(const Data&) const = default;
  } data;

  struct Train {
    std::string folder = "";     // load_config fills in runs/<name of the config file> where it is empty
    std::string init_from = "";  // a folder whose weights and model are taken over; empty: random
    int64_t steps = 1000;
    int64_t tokens_per_step = 524288;
    int64_t sequence_length = 0;  // 0: model.context (written "auto")
    int64_t micro_batch = 0;  // sequences in one forward and backward; 0: the most that fit (written "auto")
    std::string precision = "auto";  // auto | bf16 | fp32
    std::string recompute = "none";  // none | mlp | block
    int64_t classifier_chunk = 0;    // tokens; 0: those of a micro-batch (written "all")
    std::string zero = "1";          // 0 | 1
    std::string reduce = "bf16";     // bf16 | fp32
    int64_t time_limit = 25;         // seconds
    bool deterministic = true;
    int64_t seed = 1337;
    int64_t log_every = 10;
    bool report = true;        // report.html in the folder
    bool tensorboard = false;  // tensorboard/ in the folder
    bool operator==(const Train&) const = default;
  } train;

  struct Optimizer {
    double learning_rate = 6e-4;
    double min_learning_rate = 6e-5;
    std::string schedule = "cosine";  // cosine | linear | constant | wsd
    int64_t warmup_steps = 100;
    double decay_fraction = 0.2;  // wsd: the share of the steps, at the end, in which the rate falls
    double beta1 = 0.9;
    double beta2 = 0.95;
    double epsilon = 1e-8;
    double weight_decay = 0.1;
    double max_grad_norm = 1.0;    // 0: no clipping
    std::string moments = "fp32";  // fp32 | bf16
    bool operator==(const Optimizer&) const = default;
  } optimizer;

  struct Evaluation {
    int64_t every = 100;  // steps; 0: never
    int64_t sequences = 64;
    bool at_start = true;
    bool operator==(const Evaluation&) const = default;
  } evaluation;

  struct Sampling {
    int64_t every = 500;  // steps; 0: never; a run that samples also samples at its end
    std::string prompt = "\n";
    int64_t tokens = 200;
    double temperature = 0.8;
    int64_t top_k = 40;  // 0: all tokens
    bool operator==(const Sampling&) const = default;
  } sampling;

  struct Checkpoint {
    int64_t every = 500;     // steps; 0: only at the end
    int64_t keep = 2;        // the newest that are kept; 0: all
    int64_t keep_every = 0;  // those of steps that are multiples of this are kept as well; 0: none
    bool keep_best = false;  // so is that of the lowest validation loss
    bool operator==(const Checkpoint&) const = default;
  } checkpoint;

  int64_t ranks = 1;  // processes that share the run; no key: whoever starts them decides

  bool operator==(const Config&) const = default;
  int64_t sequence_length() const { return train.sequence_length ? train.sequence_length : model.context; }
};

// Where what ships with the program may lie, whether or not it is there: beside the program, one above,
// and where `cmake --install` puts it, ../share/tessera.
std::vector<std::filesystem::path> shipped_folders();
std::vector<std::filesystem::path> shipped_config_folders();  // the configs/ in them

// Looks `name` up in the current folder, then, if it is a bare name, in `folders`; ".yaml" may be left out.
// Error: every place that was tried, and the names of the configurations in `folders`.
std::filesystem::path find_config(
    const std::string& name, const std::vector<std::filesystem::path>& folders = shipped_config_folders());

// Reads a file, then applies overrides ("key=value", later ones win), takes the keys that describe the model
// from the folder that train.init_from names, and checks what spans several keys. A run that goes on
// (`resume`) need not agree with that folder, nor have it any more.
Config load_config(const std::filesystem::path& file, std::span<const std::string> overrides,
                   bool resume = false);

// The configuration as YAML with a line of documentation above every key; load_config() reads it back to the
// same.
std::string print_config(const Config& config);

// One line a key, "train.seed: 1", to compare configurations by.
std::string config_lines(const Config& config);

}  // namespace tessera
