// The benchmarks behind `./bench`.
#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/launch/world.h"

namespace tessera {

struct BenchStepOptions {
  int64_t warmup = 3, steps = 10;  // optimizer steps
  bool roofline = false;           // also compares each operation with the time that its bytes and its
                                   // arithmetic need
  std::string trace;               // also writes a trace of a step to this file
  std::string json, markdown;      // files to write; empty: none. Markdown: the table of the roofline
};
// Measures a training step on random tokens: tokens/s, TFLOP/s, share of the GEMM peak, and milliseconds by
// operation. With several ranks it also measures the step of one rank by itself, and the exposed
// communication. Rank 0 prints.
void bench_step(const Config& config, const BenchStepOptions& options, const World& world);

struct BenchGemmOptions {
  std::string write;  // the table of algorithms to which the chosen ones are added; empty: none
  std::string json;   // file to write; empty: none
};
// Every GEMM of a training step: milliseconds by the algorithm that cuBLASLt takes first and by the
// fastest, TFLOP/s, share of the GEMM peak. Of a model with experts, the products of a layer of them too.
// Error: a device without a choice, as the CPU.
void bench_gemm(const Config& config, const BenchGemmOptions& options);

struct BenchMemoryOptions {
  std::vector<int64_t> sequence_lengths;  // in ascending order; at least one
  std::vector<AttentionKind> attention;   // empty: all kinds that can run
  std::string device_memory;              // "80GiB": the memory to assume; empty: what is free on the device
  int64_t steps = 3;                      // timed, after one to warm up
  std::string json, svg;                  // files to write; empty: none
};
// Measures the memory and the time of a training step of one sequence, by sequence length and kind of
// attention, from the ledger; and the power of N with which memory grows. A length that does not fit has a
// row that says so. Error: the user named a kind that cannot run; a step needed other memory than planned.
void bench_memory(const Config& config, const BenchMemoryOptions& options);

struct BenchDecodeOptions {
  std::vector<int64_t> contexts = {128, 1024}, batches = {1};
  int64_t steps = 64;             // timed
  bool without_cache = false;     // also measures a forward over the whole text for each token
  bool by_operation = false;      // also prints the milliseconds of every operation; implies separate_kernels
  bool separate_kernels = false;  // see Decoder::Settings
  CacheDtype cache = CacheDtype::kAuto;  // see Decoder::Settings
  std::string json;               // file to write; empty: none
};
// Measures the time of a token while texts are continued over a cache of keys and values, next to the time in
// which the bytes of weights and cache could be copied. The texts are random, and without train.init_from the
// weights are, too: the time does not depend on them. Error: the weights have fewer learned positions than
// the longest text has tokens.
void bench_decode(const Config& config, const BenchDecodeOptions& options);

struct BenchNeedleOptions {
  DeviceRequest device = DeviceRequest::kAuto;
  Precision precision = Precision::kAuto;
  AttentionKind attention = AttentionKind::kFlash;
  std::string model;                             // a checkpoint, or a folder of another program
  // If it is a small number format, texts are read in groups of tokens; each group sees the older ones as the
  // cache holds them
  CacheDtype cache = CacheDtype::kAuto;
  std::string tokenizer;                         // as load_tokenizer() takes it; empty: the model's own
  std::vector<std::string> ignored_fields = {};  // of the folder, as read_model_config() takes them
  std::string filler;                            // a text file; empty: the built-in corpus
  std::vector<int64_t>
      contexts;  // tokens of the texts; empty: the model's context, and its half, quarter and eighth
  int64_t depths = 11, needles = 4;
  int64_t seed = 1337;
  std::string json, svg;  // files to write; empty: none
};
// Measures whether the model finds a fact at each depth of texts of each length: see needle.h. Several ranks
// share the texts. Error: the folder has no model or no tokenizer; a context is larger than the model's.
void bench_needle(const BenchNeedleOptions& options, const World& world);

struct BenchAttentionOptions {
  DeviceRequest device = DeviceRequest::kAuto;
  std::vector<std::string> rungs;  // empty: the best of the device and cuDNN; on the CPU all
  std::vector<int64_t> head_dims = {64, 128};
  std::vector<std::string> masks = {"causal", "full"};
  std::vector<int64_t> seq_lens;           // empty: those that suit the device
  int64_t tokens = 0, channels = 0;        // batch x N, heads x head dim; 0: what suits the device
  int64_t group = 1;                       // query heads that share a head of keys and values
  std::vector<std::string> shapes;         // further problems: "B,N,H,D"
  bool decode = false;                     // measures one query of each sequence over seq_lens cached tokens
  std::vector<int64_t> batches = {1, 16};  // with decode
  std::vector<std::string> caches;         // with decode: words of CacheDtype; empty: as is computed
  std::vector<std::string> extras;         // each of our rungs is also measured with each of these: see
                                           // with_extras()
  int64_t repeats = 11;
  bool cudnn_deterministic = false;  // cuDNN's deterministic backward, which is slower
  double longest_ms = 500;           // a cell whose call is expected to take longer is skipped
  std::string json, svg;             // files to write; empty: none
};
// Measures the time, the arithmetic and the memory of attention by itself, forward and backward: the rungs of
// the ladder and cuDNN, over head dims, masks and sequence lengths, in one run.
void bench_attention(const BenchAttentionOptions& options);
// With options.decode: measures one query of each sequence over its cached keys and values, and shows what
// bounds it.
void bench_decode_attention(const BenchAttentionOptions& options);

struct BenchLinksOptions {
  DeviceRequest device = DeviceRequest::kAuto;
  std::string folder = ".";  // the folder on whose disk files are measured
  std::string json;          // file to write; empty: none
};
// Measures what the ranks of a run have: the speed of each, the links between them, and which figures are
// slow compared with the others
void bench_links(const BenchLinksOptions& options, const World& world);

}  // namespace tessera
