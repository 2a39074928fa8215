// The benchmarks behind `./bench`.
#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/launch/world.h"

namespace tessera {

struct BenchStepOptions {
  int64_t warmup = 3, steps = 10;  // optimizer steps
  bool roofline = false;           // also each operation beside what its bytes and its arithmetic need
  std::string trace;               // also a trace of a step, to this file
  std::string json, markdown;      // files to write; empty: none. Markdown: of the roofline
};
// Tokens/s, TFLOP/s, share of the GEMM peak and milliseconds by operation of a training step on random
// tokens. With several ranks also the step of one rank alone, and the exposed communication; rank 0 prints.
void bench_step(const Config& config, const BenchStepOptions& options, const World& world);

struct BenchGemmOptions {
  std::string write;  // a table of algorithms to add the chosen ones to; empty: none
  std::string json;   // file to write; empty: none
};
// Every GEMM of a training step: milliseconds by the algorithm that cuBLASLt takes first and by the
// fastest, TFLOP/s, share of the GEMM peak. Of a model with experts, the products of a layer of them too.
// Error: a device without a choice, as the CPU.
void bench_gemm(const Config& config, const BenchGemmOptions& options);

struct BenchMemoryOptions {
  std::vector<int64_t> sequence_lengths;  // in ascending order; at least one
  std::vector<AttentionKind> attention;   // none: all kinds that can run
  std::string device_memory;              // "80GiB": the memory to assume; empty: what is free on the device
  int64_t steps = 3;                      // timed, after one to warm up
  std::string json, svg;                  // files to write; empty: none
};
// Memory and time of a training step of one sequence, by sequence length and kind of attention, from the
// ledger, and the power of N that memory grows with. A length that does not fit has a row that says so.
// Error: a kind that the user named and that cannot run; a step that needed other memory than planned.
void bench_memory(const Config& config, const BenchMemoryOptions& options);

struct BenchDecodeOptions {
  std::vector<int64_t> contexts = {128, 1024}, batches = {1};
  int64_t steps = 64;             // timed
  bool without_cache = false;     // also a forward over the whole text
  bool by_operation = false;      // also print the milliseconds of every operation; implies separate_kernels
  bool separate_kernels = false;  // see Decoder::Settings
  CacheDtype cache = CacheDtype::kAuto;  // likewise
  std::string json;               // file to write; empty: none
};
// The time of a token where texts are continued over a cache of keys and values, beside the time in which the
// bytes of weights and cache could be copied. Random texts, and without train.init_from random weights: the
// time does not depend on them. Error: weights with fewer learned positions than the longest text.
void bench_decode(const Config& config, const BenchDecodeOptions& options);

struct BenchNeedleOptions {
  DeviceRequest device = DeviceRequest::kAuto;
  Precision precision = Precision::kAuto;
  AttentionKind attention = AttentionKind::kFlash;
  std::string model;                             // a checkpoint, or a folder of another program
  // Small: texts are read by groups of tokens, each of which sees the older ones as the cache has them
  CacheDtype cache = CacheDtype::kAuto;
  std::string tokenizer;                         // as load_tokenizer(); empty: the model's own
  std::vector<std::string> ignored_fields = {};  // of the folder, as read_model_config() takes them
  std::string filler;                            // a text file; empty: the built-in corpus
  std::vector<int64_t>
      contexts;  // tokens of the texts; none: the model's context, and its half, quarter, eighth
  int64_t depths = 11, needles = 4;
  int64_t seed = 1337;
  std::string json, svg;  // files to write; empty: none
};
// Whether the model finds a fact at each depth of texts of each length: see needle.h. Error: a folder
// without a model or a tokenizer, a context above the model's. Several ranks share the texts.
void bench_needle(const BenchNeedleOptions& options, const World& world);

struct BenchAttentionOptions {
  DeviceRequest device = DeviceRequest::kAuto;
  std::vector<std::string> rungs;  // none: the best of the device and cuDNN; on the CPU all
  std::vector<int64_t> head_dims = {64, 128};
  std::vector<std::string> masks = {"causal", "full"};
  std::vector<int64_t> seq_lens;           // none: those that suit the device
  int64_t tokens = 0, channels = 0;        // batch x N, heads x head dim; 0: what suits the device
  int64_t group = 1;                       // query heads that share a head of keys and values
  std::vector<std::string> shapes;         // further problems: "B,N,H,D"
  bool decode = false;                     // one query of each sequence over seq_lens cached tokens
  std::vector<int64_t> batches = {1, 16};  // with decode
  std::vector<std::string> caches;         // with decode: words of CacheDtype; none: as is computed
  std::vector<std::string> extras;         // each of ours also with each: see with_extras()
  int64_t repeats = 11;
  bool cudnn_deterministic = false;  // its backward, which pays for it
  double longest_ms = 500;           // a cell whose call should take longer is skipped
  std::string json, svg;             // files to write; empty: none
};
// Time, arithmetic and memory of attention alone, forward and backward: the rungs of the ladder and cuDNN,
// over head dims, masks and sequence lengths, in one run.
void bench_attention(const BenchAttentionOptions& options);
// With options.decode: one query of each sequence over its cached keys and values, and what bounds it.
void bench_decode_attention(const BenchAttentionOptions& options);

struct BenchLinksOptions {
  DeviceRequest device = DeviceRequest::kAuto;
  std::string folder = ".";  // whose disk is measured
  std::string json;          // file to write; empty: none
};
// What the ranks of a run have, each and between one another, and what of it is slow beside the others
void bench_links(const BenchLinksOptions& options, const World& world);

}  // namespace tessera
