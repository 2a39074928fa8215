// Text out: a model continues texts token by token, over a cache of keys and values (kv_cache.h).
//
// Two forwards, made of the stages of a block (stages.h):
//   prefill  reads T tokens of a prompt at once. They see one another and the tokens before them, so queries
//            [T] meet keys [start + T] under a causal mask whose first query stands at `start`.
//   decode   reads one token of each slot. A row of each GEMM is little work for all the weights that it
//            reads: so the slots go together, and a step takes as long as reading the weights and the caches.
//
// Of both, the new keys and values go to the cache first, and attention reads all of them there. Places in
// the text, and so position rows, angles and rows of the cache, come from cache.starts: a tensor, so that a
// step of decode() is the same launches with the same arguments as the step before.
//
// Both give the logits of the token after: what training computes for the same text, but for rounding.
#pragma once

#include <string>
#include <vector>

#include "model/transformer.h"

namespace tessera {

// Reads tokens [1, T] after the `start` tokens that a cache of one slot holds.
struct Prefill {
  const Model& model;  // of any batch size: its weights and its kind of attention are used
  const KvCache& cache;
  Tensor tokens;
  int64_t start;  // cache.starts must be this
  // [n, padded V] after the last n tokens; none: not computed, as between chunks of a long prompt
  Tensor logits = {};
};
// Of so many tokens of a prompt, those that one prefill takes after `start`. With sparse blocks one that
// begins within a block ends with it.
int64_t prompt_tokens_at_once(const ModelConfig& config, int64_t start, int64_t left);
// Error: the cache has no room for them; as choose_attention().
void prefill(const Stream& stream, Arena& arena, const Prefill& prompt);

// `model` at one new token of each slot, with attention over the cache. Error: as choose_decode().
Model decoding(const Model& model, const KvCache& cache, const DeviceTraits& device);

// What decode() runs, made once for all steps. It reads tokens [slots, 1], each at the place that
// cache.starts says: logits [slots, padded V]. Rows of idle slots mean nothing. It is the forward of
// transformer.h with GEMMs that have their norm and activation in them.
struct DecodeStep {
  Model model;  // of decoding()
  Batch batch;
  Saved saved;  // of allocate_saved() with Keep::nothing()
  Tensor logits;
  std::vector<DecodeOp> operations = {};  // none where weights are split, or a stage has no decode form
  // Of all weights: operations hold views of them, and a step in a graph leases nothing more.
  WeightLease<TableParams> tables = {};
  std::vector<WeightLease<BlockParams>> blocks = {};
  WeightLease<HeadParams> head = {};
  Tensor memory = {};                     // of FusedDecodeStep, where the device computes them as one kernel
  std::string why_separate_kernels = {};  // why it does not: "head dim 160: more than 128"
};

struct DecodeTensors {
  const Model& model;  // of decoding()
  const KvCache& cache;
  Tensor tokens;
  const Saved& saved;
  Tensor logits;
  bool separate_kernels = false;  // also where the device could compute the step as one kernel
};
// `cache` and what the tensors lie in must outlive the step. Where the step is one kernel, this allocates
// what that needs.
DecodeStep prepare_decode(const Stream& stream, Arena& arena, const DecodeTensors& tensors);
void decode(const Stream& stream, const DecodeStep& step);

}  // namespace tessera
