// Generating text: a model continues texts token by token, with a cache of keys and values (kv_cache.h).
//
// Two forwards, made of the stages of a block (stages.h):
//   prefill  reads T tokens of a prompt at once. They see one another and the tokens before them, so T
//            queries meet start + T keys, under a causal mask whose first query stands at `start`.
//   decode   reads one token of each slot. One row of a GEMM is little work for reading all the weights. So
//            all slots are computed together, and a step takes as long as reading the weights and the caches.
//
// In both forwards the new keys and values go to the cache first, and attention reads all of them there. The
// places in the text come from cache.starts, and so do position rows, angles and rows of the cache. This is a
// tensor, so that every step of decode() has the same launches with the same arguments.
//
// Both give the logits after each token. They are the logits of training for the same text, except for
// rounding.
#pragma once

#include <string>
#include <vector>

#include "model/transformer.h"

namespace tessera {

// A prefill: reads `tokens` [1, T] after the `start` tokens that a cache of one slot holds.
struct Prefill {
  const Model& model;  // of any batch size: its weights and its kind of attention are used
  const KvCache& cache;
  Tensor tokens;
  int64_t start;  // must be the value in cache.starts
  // [n, padded V], the logits after the last n tokens; none: they are not computed, as between chunks of a
  // long prompt
  Tensor logits = {};
};
// How many of the `left` tokens of a prompt one prefill takes after `start`. With sparse blocks, a prefill
// that begins within a block ends with that block.
int64_t prompt_tokens_at_once(const ModelConfig& config, int64_t start, int64_t left);
// Error: the cache has no room for the tokens; as choose_attention().
void prefill(const Stream& stream, Arena& arena, const Prefill& prompt);

// `model` for one new token of each slot, with attention over the cache. Error: as choose_decode().
Model decoding(const Model& model, const KvCache& cache, const DeviceTraits& device);

// What decode() runs; it is made once for all steps. It reads tokens [slots, 1], each at the place in
// cache.starts, and writes logits [slots, padded V]. The rows of idle slots have no meaning. It computes the
// forward of transformer.h, with GEMMs that include their norm and activation.
struct DecodeStep {
  Model model;  // made by decoding()
  Batch batch;
  Saved saved;  // made by allocate_saved() with Keep::nothing()
  Tensor logits;
  std::vector<DecodeOp> operations = {};  // empty if weights are split, or a stage has no decode form
  // Leases of all weights: operations hold views of them, and a step in a graph makes no new leases.
  WeightLease<TableParams> tables = {};
  std::vector<WeightLease<BlockParams>> blocks = {};
  WeightLease<HeadParams> head = {};
  Tensor memory = {};                     // for FusedDecodeStep, if the device computes the step as one
                                          // kernel
  std::string why_separate_kernels = {};  // why it does not: "head dim 160: more than 128"
};

struct DecodeTensors {
  const Model& model;  // made by decoding()
  const KvCache& cache;
  Tensor tokens;
  const Saved& saved;
  Tensor logits;
  bool separate_kernels = false;  // compute separate kernels even if one kernel could compute the step
};
// `cache` and the memory of the tensors must outlive the step. If the step is one kernel, this function
// allocates the memory that the kernel needs.
DecodeStep prepare_decode(const Stream& stream, Arena& arena, const DecodeTensors& tensors);
void decode(const Stream& stream, const DecodeStep& step);

}  // namespace tessera
